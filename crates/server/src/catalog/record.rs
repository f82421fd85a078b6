//! What the meta store keeps of a table, and its encoding.
//!
//! ```text
//! key    tables/projects/PROJECT/instances/INSTANCE/tables/TABLE
//! value  version u8 = 1 | TableRecord, protobuf
//! ```
//!
//! One key per table name, so that creating, changing and deleting a table are each one atomic commit. A
//! deleted table keeps its key until it is undeleted, swept, or replaced by a new table of the name.
//! Families keep the API's own messages, so a client is shown what it set; what the engine is given is
//! derived from them ([`super::families`]).

use std::cmp::Ordering;
use std::time::Duration;

use prost::Message as _;
use tepui_bigtable::error::{Code, Error, Result};
use tepui_bigtable::value_type;
use tepui_engine::tablet::TabletId;

use crate::api::admin;
use crate::api::spelled_out::AutomatedBackupPolicy;

/// The version that is written, and the only one that is read.
const VERSION: u8 = 1;

/// Everything durable about one table.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TableRecord {
    /// The full name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A random number that tells this table from earlier and later ones of the same name.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// The tablets' numbers. Their ranges are the engine's to know.
    #[prost(uint64, repeated, tag = "3")]
    pub tablets: Vec<u64>,
    /// The families.
    #[prost(message, repeated, tag = "4")]
    pub families: Vec<FamilyRecord>,
    /// The number that the next family gets; numbers are never reused within a table.
    #[prost(uint32, tag = "5")]
    pub next_family_id: u32,
    /// Whether the table and its families are protected from deletion.
    #[prost(bool, tag = "6")]
    pub deletion_protection: bool,
    /// When it was created: microseconds since 1970.
    #[prost(int64, tag = "7")]
    pub created_micros: i64,
    /// When it was deleted: microseconds since 1970; absent for a live table.
    #[prost(int64, optional, tag = "8")]
    pub deleted_micros: Option<i64>,
    /// How long its changes are kept, if they are.
    #[prost(message, optional, tag = "9")]
    pub change_stream_config: Option<admin::ChangeStreamConfig>,
    /// How it is backed up by itself, if it is.
    #[prost(message, optional, tag = "10")]
    pub automated_backup_policy: Option<AutomatedBackupPolicy>,
    /// What would go to which tier of storage. There is one tier, so it has no effect.
    #[prost(message, optional, tag = "11")]
    pub tiered_storage_config: Option<admin::TieredStorageConfig>,
    /// How row keys are taken apart by queries.
    #[prost(message, optional, tag = "12")]
    pub row_key_schema: Option<admin::r#type::Struct>,
    /// What it was restored from, if it was.
    #[prost(message, optional, tag = "20")]
    pub restore_info: Option<admin::RestoreInfo>,
    /// The position in its history before which its change stream, if it has one, does not reach.
    #[prost(uint64, tag = "40")]
    pub change_stream_since: u64,
    /// Families that it had since it has a change stream, which may still show them; the last ones, without their configuration.
    #[prost(message, repeated, tag = "41")]
    pub former_families: Vec<FamilyRecord>,
}

/// One column family.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FamilyRecord {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its number in the engine, from 1.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its configuration as the client gave it.
    #[prost(message, optional, tag = "3")]
    pub config: Option<admin::ColumnFamily>,
    /// When its garbage-collection rule was changed last, in microseconds since 1970: what was deleted before may be all that the
    /// rule would have kept, and must be seen before it counts versions.
    #[prost(int64, tag = "4")]
    pub gc_since_micros: i64,
    /// The position in the server's history after which it was created, where the table had a change stream; 0 where it was there before.
    #[prost(uint64, tag = "5")]
    pub created_at: u64,
    /// The one after which it was dropped; 0 where it was not, or by a server that did not note it.
    #[prost(uint64, tag = "6")]
    pub dropped_at: u64,
}

/// The error of an entry that a newer server wrote: no damage, and to be left as it is.
pub(super) fn newer(key: &str, what: impl std::fmt::Display) -> Error {
    let text = format!("catalog entry {key}: {what}; a newer server wrote it");
    Error::failed_precondition(text)
}

/// What follows the version in the value of an entry, where that is the one that is `known`.
pub(super) fn of_version<'v>(key: &str, value: &'v [u8], known: u8) -> Result<&'v [u8]> {
    let damaged = |what: &str| Error::data_loss(format!("catalog entry {key}: offset 0: {what}"));
    let (version, rest) = value.split_first().ok_or_else(|| damaged("it is empty"))?;
    let unknown = || format!("version {version} is not known here");
    match version.cmp(&known) {
        Ordering::Equal => Ok(rest),
        Ordering::Greater => Err(newer(key, format_args!("offset 0: {}", unknown()))),
        Ordering::Less => Err(damaged(&unknown())),
    }
}

impl TableRecord {
    /// Bytes for the meta store.
    pub fn encode_versioned(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.encoded_len());
        out.push(VERSION);
        self.encode_raw(&mut out);
        out
    }

    /// Reads what [`Self::encode_versioned`] wrote under `key`. `FAILED_PRECONDITION` where that of a newer version did.
    pub fn decode_versioned(key: &str, value: &[u8]) -> Result<Self> {
        let damaged =
            |what: String| Error::new(Code::DataLoss, format!("catalog entry {key}: {what}"));
        let rest = of_version(key, value, VERSION)?;
        let record = Self::decode(rest).map_err(|error| damaged(format!("offset 1: {error}")))?;
        let record = record.modern();
        if key.strip_prefix(super::store::PREFIX) != Some(record.name.as_str()) {
            return Err(damaged(format!("offset 1: it names the table {:?}", record.name)));
        }
        Ok(record)
    }

    /// The same in memory of its own: what a client gave shares the buffer of its whole request, which may be much larger.
    pub fn apart(&self) -> Self {
        let bytes = self.encode_to_vec();
        Self::decode(bytes.as_slice()).expect("what was encoded can be decoded")
    }

    /// With what was deprecated when it was kept as what replaced it.
    pub fn modern(mut self) -> Self {
        let configs = self.families.iter_mut().filter_map(|family| family.config.as_mut());
        configs.filter_map(|config| config.value_type.as_mut()).for_each(value_type::modernize);
        self.row_key_schema.iter_mut().for_each(value_type::modernize_fields);
        self
    }

    /// The last position in its history that it names: what is written from now on is to come after it.
    pub fn last_position(&self) -> u64 {
        let families = self.families.iter().chain(&self.former_families);
        let noted = families.map(|family| family.created_at.max(family.dropped_at));
        noted.fold(self.change_stream_since, u64::max)
    }

    /// The tablets' numbers as the engine writes them.
    pub fn tablet_ids(&self) -> impl Iterator<Item = TabletId> + '_ {
        self.tablets.iter().map(|id| TabletId(*id))
    }

    /// How it is backed up by itself; `None` where it is not.
    pub fn backup_policy(&self) -> Option<&AutomatedBackupPolicy> {
        self.automated_backup_policy.as_ref().filter(|policy| !policy.disabled)
    }

    /// For how long its changes are kept; `None` where they are not.
    pub fn change_stream_retention(&self) -> Option<Duration> {
        let period = self.change_stream_config.as_ref()?.retention_period?;
        Duration::try_from(period).ok()
    }

    /// The family of a name.
    pub fn family(&self, name: &str) -> Option<&FamilyRecord> {
        self.families.iter().find(|family| family.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TableRecord {
        TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            incarnation: 7,
            tablets: vec![3, 4],
            families: vec![FamilyRecord {
                name: "cf".to_owned(),
                id: 1,
                config: Some(admin::ColumnFamily::default()),
                gc_since_micros: 9_000,
                created_at: 7,
                dropped_at: 0,
            }],
            next_family_id: 2,
            deletion_protection: true,
            created_micros: 5,
            deleted_micros: Some(0),
            restore_info: Some(admin::RestoreInfo::default()),
            change_stream_config: Some(admin::ChangeStreamConfig::default()),
            automated_backup_policy: Some(AutomatedBackupPolicy {
                disabled: true,
                ..AutomatedBackupPolicy::default()
            }),
            tiered_storage_config: Some(admin::TieredStorageConfig::default()),
            row_key_schema: Some(admin::r#type::Struct::default()),
            change_stream_since: 6,
            former_families: vec![FamilyRecord {
                name: "old".to_owned(),
                id: 2,
                dropped_at: 8,
                ..FamilyRecord::default()
            }],
        }
    }

    const KEY: &str = "tables/projects/p/instances/i/tables/t";

    #[test]
    fn a_record_survives_its_encoding() {
        let bytes = record().encode_versioned();
        assert_eq!(bytes[0], 1);
        assert_eq!(TableRecord::decode_versioned(KEY, &bytes).unwrap(), record());
    }

    #[test]
    fn damage_is_data_loss_and_names_the_entry() {
        let good = record().encode_versioned();
        let of_version = |version| [&[version], &good[1..]].concat();
        let cut = &good[..good.len() - 1];
        for (bytes, code) in [
            (&[][..], Code::DataLoss),
            (&of_version(0), Code::DataLoss),
            (cut, Code::DataLoss),
            // No damage: to be told from it, or a repair would give it up.
            (&of_version(2), Code::FailedPrecondition),
        ] {
            let error = TableRecord::decode_versioned(KEY, bytes).unwrap_err();
            assert_eq!(error.kind(), code);
            assert!(error.message().contains(KEY), "{error}");
        }
        assert!(TableRecord::decode_versioned("tables/other", &good).is_err());
    }
}

//! What the catalog keeps of a backup.

use bytes::Bytes;
use prost::Message as _;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::backup::BackupId;

use crate::api::admin;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::Resource;

/// A backup: what clients see of it, and what a restore needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BackupRecord {
    /// The backup as it is shown.
    #[prost(message, optional, tag = "1")]
    pub shown: Option<admin::Backup>,
    /// The table's record when the backup was asked for: its families, with their numbers. As it is stored: decoded it may take sixty times as
    /// much, and there are many backups of a table.
    #[prost(bytes = "bytes", tag = "2")]
    pub table: Bytes,
    /// The number of the engine's backup; absent while it is being made.
    #[prost(fixed64, optional, tag = "3")]
    pub engine_id: Option<u64>,
    /// A random number that tells this backup from earlier and later ones of the same name.
    #[prost(fixed64, tag = "4")]
    pub incarnation: u64,
    /// Whether a table's policy asked for it.
    #[prost(bool, tag = "5")]
    pub automated: bool,
}

/// What tells a table's record from those of others, without the rest of it.
#[derive(Clone, PartialEq, prost::Message)]
struct Incarnation {
    #[prost(fixed64, tag = "2")]
    incarnation: u64,
}

impl Resource for BackupRecord {
    const KIND: &'static str = "backup";
    const NOUN: &'static str = "backup";
    const HOLDS: bool = true;
}

impl BackupRecord {
    /// The engine's backup, once it is made.
    pub fn made_id(&self) -> Option<BackupId> {
        self.engine_id.map(BackupId)
    }

    /// Which table it is of, whatever has that one's name by now.
    pub fn table_incarnation(&self) -> Option<u64> {
        Some(Incarnation::decode(&*self.table).ok()?.incarnation)
    }

    /// The table's record; `DATA_LOSS` where it is damaged.
    pub fn table(&self) -> Result<TableRecord> {
        TableRecord::decode(&*self.table).map_err(|error| {
            let name = self.shown().name;
            Error::data_loss(format!(
                "backup {name:?}: the record of its table is damaged: {error}"
            ))
        })
    }

    /// The same for clients: one that is being made has a time at which it ends, too, that of its beginning. Go's client takes
    /// none for damage, and with it all other backups of a page.
    pub fn told(&self) -> admin::Backup {
        told(self.shown())
    }

    /// The backup as it is shown.
    pub fn shown(&self) -> admin::Backup {
        self.shown.clone().unwrap_or_default()
    }

    /// What tables and operations say of it.
    pub fn info(&self) -> admin::BackupInfo {
        let shown = self.shown();
        admin::BackupInfo {
            backup: shown.name,
            start_time: shown.start_time,
            end_time: shown.end_time,
            source_table: shown.source_table,
            source_backup: shown.source_backup,
        }
    }
}

/// A backup as clients are told of it.
pub fn told(shown: admin::Backup) -> admin::Backup {
    let is_being_made = shown.state == i32::from(admin::backup::State::Creating);
    let end_time = shown.end_time.or_else(|| shown.start_time.filter(|_| is_being_made));
    admin::Backup { end_time, ..shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_is_being_made_has_a_time_at_which_it_ends() {
        let (start, end) =
            [7, 9].map(|seconds| prost_types::Timestamp { seconds, nanos: 0 }).into();
        for (state, end_time, expected) in [
            (admin::backup::State::Creating, None, start),
            (admin::backup::State::Ready, Some(end), end),
        ] {
            let shown = admin::Backup {
                state: state.into(),
                start_time: Some(start),
                end_time,
                ..admin::Backup::default()
            };
            let record = BackupRecord { shown: Some(shown), ..BackupRecord::default() };
            assert_eq!(record.told().end_time, Some(expected));
            assert_eq!(record.info().end_time, end_time, "as it is kept");
        }
    }

    #[test]
    fn a_tables_record_is_stored_as_a_message_and_told_by_its_number_alone() {
        /// As versions that decoded it had it.
        #[derive(Clone, PartialEq, prost::Message)]
        struct Before {
            #[prost(message, optional, tag = "2")]
            table: Option<TableRecord>,
            #[prost(fixed64, tag = "4")]
            incarnation: u64,
        }
        let name = "projects/p/instances/i/tables/t".to_owned();
        let table =
            TableRecord { name, incarnation: 7, tablets: vec![1, 300], ..TableRecord::default() };
        let before = Before { table: Some(table.clone()), incarnation: 9 };
        let record = BackupRecord::decode(&*before.encode_to_vec()).unwrap();
        assert_eq!((record.incarnation, record.table_incarnation()), (9, Some(7)));
        assert_eq!(record.table().unwrap(), table);
        assert_eq!(Before::decode(&*record.encode_to_vec()).unwrap(), before);
        let damaged = BackupRecord { table: record.table.slice(1..), ..record };
        assert!(damaged.table().is_err());
    }
}

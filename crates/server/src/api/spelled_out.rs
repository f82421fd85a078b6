//! Requests and answers that hold tables, with what the messages of [`admin`] leave out: fields that are younger, and empty
//! families.
//!
//! `Table.column_families` is a map from names to messages, and a family that was never configured is an
//! empty message. An encoder may leave an empty value out of a map's entry, and prost does:
//!
//! ```text
//! left out:      1A 04  0A 02 'c' 'f'            Node's client: null, and an error on its first field
//! spelled out:   1A 06  0A 02 'c' 'f'  12 00     every client: an empty message
//! ```
//!
//! The types here are the same messages on the wire as those of [`admin`], but each entry has its value.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut};
use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, btree_map, encode_key, encode_varint, encoded_len_varint, key_len,
    message, string,
};

use super::admin;
use super::admin::table::AutomatedBackupConfig;

/// The number of `Table.column_families`.
const COLUMN_FAMILIES_TAG: u32 = 3;

/// The number of `Table.automated_backup_policy`.
const AUTOMATED_BACKUP_POLICY_TAG: u32 = 13;

/// `google.bigtable.admin.v2.Table`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Everything but the families and the policy, which are empty in it.
    pub rest: admin::Table,
    /// The families by name: in one order, so that answers are the same each time.
    pub families: BTreeMap<String, admin::ColumnFamily>,
    /// How it is backed up by itself.
    pub automated_backup_policy: Option<AutomatedBackupPolicy>,
}

/// `google.bigtable.admin.v2.Table.AutomatedBackupPolicy`.
#[derive(Clone, PartialEq, Message)]
pub struct AutomatedBackupPolicy {
    /// How long each backup is kept.
    #[prost(message, optional, tag = "1")]
    pub retention_period: Option<prost_types::Duration>,
    /// How often there is one.
    #[prost(message, optional, tag = "2")]
    pub frequency: Option<prost_types::Duration>,
    /// The zones that have them; none for all.
    #[prost(string, repeated, tag = "3")]
    pub locations: Vec<String>,
    /// How long they are hot; they are standard ones where it is not set.
    #[prost(message, optional, tag = "4")]
    pub keep_hot_duration: Option<prost_types::Duration>,
    /// Whether there are none, whatever the rest says.
    #[prost(bool, tag = "5")]
    pub disabled: bool,
}

/// `google.bigtable.admin.v2.CreateTableRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateTableRequest {
    /// The instance.
    #[prost(string, tag = "1")]
    pub parent: String,
    /// The id within the instance.
    #[prost(string, tag = "2")]
    pub table_id: String,
    /// The table.
    #[prost(message, optional, tag = "3")]
    pub table: Option<Table>,
    /// Rows at which tablets start.
    #[prost(message, repeated, tag = "4")]
    pub initial_splits: Vec<admin::create_table_request::Split>,
}

/// `google.bigtable.admin.v2.UpdateTableRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateTableRequest {
    /// The table, with what is to change.
    #[prost(message, optional, tag = "1")]
    pub table: Option<Table>,
    /// What is to change.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<prost_types::FieldMask>,
    /// Whether to go on where readers may break.
    #[prost(bool, tag = "3")]
    pub ignore_warnings: bool,
}

/// `google.bigtable.admin.v2.ListTablesResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ListTablesResponse {
    /// The tables of this page.
    #[prost(message, repeated, tag = "1")]
    pub tables: Vec<Table>,
    /// What asks for the next page; empty on the last.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

impl From<admin::Table> for Table {
    fn from(mut rest: admin::Table) -> Self {
        let policy = rest.automated_backup_config.take();
        let automated_backup_policy =
            policy.map(|AutomatedBackupConfig::AutomatedBackupPolicy(p)| AutomatedBackupPolicy {
                retention_period: p.retention_period,
                frequency: p.frequency,
                locations: p.locations,
                ..AutomatedBackupPolicy::default()
            });
        let families = std::mem::take(&mut rest.column_families).into_iter().collect();
        Self { rest, families, automated_backup_policy }
    }
}

/// Bytes of an entry of `Table.column_families`: a message of the name, with number 1, and the family, with number 2.
fn entry_len(name: &String, family: &admin::ColumnFamily) -> usize {
    string::encoded_len(1, name) + message::encoded_len(2, family)
}

impl Message for Table {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.rest.encode_raw(buf);
        for (name, family) in &self.families {
            encode_key(COLUMN_FAMILIES_TAG, WireType::LengthDelimited, buf);
            encode_varint(entry_len(name, family) as u64, buf);
            string::encode(1, name, buf);
            message::encode(2, family, buf);
        }
        if let Some(policy) = &self.automated_backup_policy {
            message::encode(AUTOMATED_BACKUP_POLICY_TAG, policy, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        match tag {
            COLUMN_FAMILIES_TAG => {
                btree_map::merge(string::merge, message::merge, &mut self.families, buf, ctx)
            }
            AUTOMATED_BACKUP_POLICY_TAG => {
                let policy = self.automated_backup_policy.get_or_insert_default();
                message::merge(wire_type, policy, buf, ctx)
            }
            _ => self.rest.merge_field(tag, wire_type, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let entries = self.families.iter().map(|(name, family)| {
            let len = entry_len(name, family);
            key_len(COLUMN_FAMILIES_TAG) + encoded_len_varint(len as u64) + len
        });
        let policy = self.automated_backup_policy.as_ref();
        self.rest.encoded_len()
            + entries.sum::<usize>()
            + policy.map_or(0, |policy| message::encoded_len(AUTOMATED_BACKUP_POLICY_TAG, policy))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> admin::Table {
        let one_version = admin::GcRule { rule: Some(admin::gc_rule::Rule::MaxNumVersions(1)) };
        let configured =
            admin::ColumnFamily { gc_rule: Some(one_version), ..admin::ColumnFamily::default() };
        let families = [("cf", admin::ColumnFamily::default()), ("g", configured)];
        let policy = admin::table::AutomatedBackupPolicy {
            retention_period: Some(prost_types::Duration { seconds: 7 * 86_400, nanos: 0 }),
            frequency: Some(prost_types::Duration { seconds: 86_400, nanos: 0 }),
            locations: vec!["projects/p/locations/z".to_owned()],
        };
        let policy = AutomatedBackupConfig::AutomatedBackupPolicy(policy);
        admin::Table {
            name: "t".to_owned(),
            column_families: families.map(|(name, family)| (name.to_owned(), family)).into(),
            deletion_protection: true,
            automated_backup_config: Some(policy),
            ..admin::Table::default()
        }
    }

    #[test]
    fn an_unconfigured_family_has_a_value_on_the_wire() {
        let bytes = Table::from(table()).encode_to_vec();
        let entry = b"\x1a\x06\x0a\x02cf\x12\x00";
        assert!(bytes.windows(entry.len()).any(|window| window == entry), "{bytes:?}");
    }

    #[test]
    fn the_messages_are_those_of_the_api() {
        let spelled = Table::from(table());
        let bytes = spelled.encode_to_vec();
        assert_eq!(admin::Table::decode(bytes.as_slice()).unwrap(), table());
        assert_eq!(Table::decode(bytes.as_slice()).unwrap(), spelled);

        let list = ListTablesResponse {
            tables: vec![spelled.clone(), spelled],
            next_page_token: "next".to_owned(),
        };
        let list = admin::ListTablesResponse::decode(list.encode_to_vec().as_slice()).unwrap();
        assert_eq!(list.tables, [table(), table()]);
        assert_eq!(list.next_page_token, "next");

        let create = admin::CreateTableRequest {
            parent: "p".to_owned(),
            table_id: "t".to_owned(),
            table: Some(table()),
            initial_splits: vec![admin::create_table_request::Split { key: "k".into() }],
        };
        let decoded = CreateTableRequest::decode(create.encode_to_vec().as_slice()).unwrap();
        assert_eq!((decoded.parent, decoded.table_id), (create.parent, create.table_id));
        assert_eq!(decoded.table, Some(Table::from(table())));
        assert_eq!(decoded.initial_splits, create.initial_splits);

        let update = admin::UpdateTableRequest {
            table: Some(table()),
            update_mask: Some(prost_types::FieldMask { paths: vec!["f".to_owned()] }),
            ignore_warnings: true,
        };
        let decoded = UpdateTableRequest::decode(update.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded.table, Some(Table::from(table())));
        assert_eq!(decoded.update_mask, update.update_mask);
        assert!(decoded.ignore_warnings);
    }

    #[test]
    fn a_policy_has_the_fields_that_are_younger_than_the_crate() {
        let policy = AutomatedBackupPolicy {
            keep_hot_duration: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
            disabled: true,
            ..AutomatedBackupPolicy::default()
        };
        let table = Table { automated_backup_policy: Some(policy), ..Table::default() };
        let bytes = table.encode_to_vec();
        assert_eq!(bytes, b"\x6a\x06\x22\x02\x08\x02\x28\x01", "numbers 13, of it 4 and 5");
        assert_eq!(Table::decode(bytes.as_slice()).unwrap(), table);
    }
}

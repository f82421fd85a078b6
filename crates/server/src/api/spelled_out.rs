//! Answers that hold tables, with their families spelled out on the wire.
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

use bytes::{Buf, BufMut};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, message};

use super::admin;

/// The number of `Table.column_families`.
const COLUMN_FAMILIES_TAG: u32 = 3;

/// `google.bigtable.admin.v2.Table`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Everything but the families.
    rest: admin::Table,
    /// A map is a repeated message on the wire. By ascending name, so that answers are the same each time.
    families: Vec<FamilyEntry>,
}

/// An entry of `Table.column_families`.
#[derive(Clone, PartialEq, Message)]
struct FamilyEntry {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    family: Option<admin::ColumnFamily>,
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
        let families = std::mem::take(&mut rest.column_families);
        let mut families: Vec<_> = families
            .into_iter()
            .map(|(name, family)| FamilyEntry { name, family: Some(family) })
            .collect();
        families.sort_by(|a, b| a.name.cmp(&b.name));
        Self { rest, families }
    }
}

impl Message for Table {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.rest.encode_raw(buf);
        message::encode_repeated(COLUMN_FAMILIES_TAG, &self.families, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        match tag {
            COLUMN_FAMILIES_TAG => message::merge_repeated(wire_type, &mut self.families, buf, ctx),
            _ => self.rest.merge_field(tag, wire_type, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.rest.encoded_len() + message::encoded_len_repeated(COLUMN_FAMILIES_TAG, &self.families)
    }

    fn clear(&mut self) {
        self.rest.clear();
        self.families.clear();
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
        admin::Table {
            name: "t".to_owned(),
            column_families: families.map(|(name, family)| (name.to_owned(), family)).into(),
            deletion_protection: true,
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
    }
}

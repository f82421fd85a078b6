//! The records of a meta store's file, and their encoding.
//!
//! ```text
//! snapshot:  1 | revision | (key bytes | revision | value bytes) ...     keys ascending
//! commit:    2 | revision | (key bytes | 0 deletes, or 1 | value bytes) ...
//! ```
//!
//! Numbers are varints, keys are UTF-8 (codec: [`crate::codec`]). An unknown kind of record is refused.

use std::path::Path;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use super::MetaChange;
use super::journal::{Journal, Record, Tail};
use super::meta_store::SERIES;
use crate::codec::{BytesReader, put_bytes, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;

const SNAPSHOT: u64 = 1;
const COMMIT: u64 = 2;

/// One record of a meta store's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MetaRecord {
    /// Everything.
    Snapshot {
        /// The store's revision.
        revision: u64,
        /// Key, revision and value of each entry, keys ascending.
        #[serde(serialize_with = "entries_as_text")]
        entries: Vec<(String, u64, Bytes)>,
    },
    /// What one commit changed.
    Commit {
        /// The store's revision after it.
        revision: u64,
        /// Keys and new values; `None` deletes.
        #[serde(serialize_with = "changes_as_text")]
        changes: Vec<(String, Option<Bytes>)>,
    },
}

fn entries_as_text<S: Serializer>(
    entries: &[(String, u64, Bytes)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        entries
            .iter()
            .map(|(key, revision, value)| (key, revision, value.escape_ascii().to_string())),
    )
}

fn changes_as_text<S: Serializer>(
    changes: &[(String, Option<Bytes>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        changes
            .iter()
            .map(|(key, value)| (key, value.as_ref().map(|v| v.escape_ascii().to_string()))),
    )
}

impl MetaRecord {
    /// Decodes a whole record. `Corruption` where it is malformed, `InvalidArgument` where a newer version
    /// wrote it.
    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut reader = BytesReader::new(bytes);
        let tag = reader.u64()?;
        let known = [SNAPSHOT, COMMIT].contains(&tag);
        if !known {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("record of kind {tag} was written by a newer version"),
            ));
        }
        let revision = reader.u64()?;
        if tag == SNAPSHOT {
            let mut entries: Vec<(String, u64, Bytes)> = Vec::new();
            while !reader.is_empty() {
                let order = reader.malformed("keys are out of order");
                let entry = (reader.string()?, reader.u64()?, reader.bytes()?);
                if entries.last().is_some_and(|(last, ..)| *last >= entry.0) {
                    return Err(order.into());
                }
                entries.push(entry);
            }
            return Ok(Self::Snapshot { revision, entries });
        }
        let mut changes = Vec::new();
        while !reader.is_empty() {
            let key = reader.string()?;
            let value = match reader.u64()? {
                0 => None,
                1 => Some(reader.bytes()?),
                _ => return Err(reader.malformed("neither a value nor a deletion").into()),
            };
            changes.push((key, value));
        }
        Ok(Self::Commit { revision, changes })
    }
}

/// The record of a whole store: key, revision and value of each entry, keys ascending.
pub(crate) fn encode_snapshot<'a>(
    revision: u64,
    entries: impl Iterator<Item = (&'a str, u64, &'a Bytes)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(&mut out, SNAPSHOT);
    put_u64(&mut out, revision);
    for (key, revision, value) in entries {
        put_bytes(&mut out, key.as_bytes());
        put_u64(&mut out, revision);
        put_bytes(&mut out, value);
    }
    out
}

/// The record of a commit.
pub(crate) fn encode_commit(revision: u64, changes: &[MetaChange]) -> Vec<u8> {
    let mut record = Vec::new();
    put_u64(&mut record, COMMIT);
    put_u64(&mut record, revision);
    for MetaChange { key, value, .. } in changes {
        put_bytes(&mut record, key.as_bytes());
        put_u64(&mut record, u64::from(value.is_some()));
        if let Some(value) = value {
            put_bytes(&mut record, value);
        }
    }
    record
}

/// The records of a meta store's file with their offsets, and whether bytes follow that do not verify.
/// Changes nothing.
pub fn dump(files: &dyn Files, path: &Path) -> Result<(Vec<(u64, MetaRecord)>, bool)> {
    let contents = Journal::read(files, path, SERIES.magic, None)?;
    let torn = contents.tail != Tail::Clean;
    let decode = |record: Record| {
        let offset = record.offset;
        let record = MetaRecord::decode(record.payload)
            .map_err(|e| e.context(format!("{}: record at offset {offset}", path.display())))?;
        Ok((offset, record))
    };
    Ok((contents.records.into_iter().map(decode).collect::<Result<_>>()?, torn))
}

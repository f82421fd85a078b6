//! The list of a backup: which SSTs, of which tablets, and which value files these name.
//!
//! ```text
//! BACKUP-<16 hex>:  a journal of one record (docs/formats-manifest.md)
//! record:  tablets | tablet bytes ... | value files | (id | bytes that SSTs name) ...      ids ascending
//! tablet:  the snapshot edit of a version without dropped ranges
//! ```
//!
//! The file is written once, under a name that nobody looks for, and renamed when it is durable. So whatever has its
//! name is whole, or damaged.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::BackupId;
use crate::codec::{BytesReader, put_bytes, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::layout::Layout;
use crate::manifest::journal::{Journal, Magic};
use crate::manifest::{Version, VersionEdit};
use crate::sst::FileId;

/// First bytes of a backup's file.
pub const BACKUP_MAGIC: Magic = *b"TEPUIBAK";

/// What a backup names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupList {
    /// The tablets' versions, in the order of their rows. None has dropped ranges, and none needs a log.
    pub tablets: Vec<Version>,
    /// The value files that the SSTs name, and how many bytes of each.
    pub values: BTreeMap<FileId, u64>,
}

impl BackupList {
    /// The SSTs, each once, and the bytes of each that are visible in some tablet.
    pub fn ssts(&self) -> BTreeMap<FileId, u64> {
        let mut ssts: BTreeMap<FileId, u64> = BTreeMap::new();
        for sst in self.tablets.iter().flat_map(Version::ssts) {
            let bytes = ssts.entry(sst.id).or_default();
            *bytes = bytes.saturating_add(sst.bytes);
        }
        ssts
    }

    /// Bytes of data: of SSTs, and of value files as far as the SSTs name them.
    pub fn bytes(&self) -> u64 {
        self.ssts().values().chain(self.values.values()).fold(0, |sum, b| sum.saturating_add(*b))
    }

    /// The greatest number in it: of a file, or a sequence.
    pub(crate) fn greatest_number(&self) -> u64 {
        let of_tablet = |version: &Version| {
            let ssts = version.ssts().map(|sst| sst.id.max(sst.max_seq));
            ssts.fold(version.last_seq().max(version.flushed_seq()), u64::max)
        };
        let tablets = self.tablets.iter().map(of_tablet);
        tablets.chain(self.values.keys().copied()).max().unwrap_or(0)
    }

    /// Appends the encoded list.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.tablets.len() as u64);
        let mut edit = Vec::new();
        for version in &self.tablets {
            edit.clear();
            version.snapshot().encode(&mut edit);
            put_bytes(out, &edit);
        }
        put_u64(out, self.values.len() as u64);
        for (id, bytes) in &self.values {
            put_u64(out, *id);
            put_u64(out, *bytes);
        }
    }

    /// Decodes a whole list. `Corruption` where it is malformed, `InvalidArgument` where it holds what a newer version
    /// wrote.
    pub fn decode(bytes: Bytes) -> Result<Self> {
        let mut reader = BytesReader::new(bytes);
        let mut list = Self::default();
        // Counts are not trusted with memory: what they count takes bytes that must be there.
        for _ in 0..reader.u64()? {
            let at = reader.position();
            let edit = VersionEdit::decode(reader.bytes()?)
                .map_err(|error| error.context(format!("tablet at byte {at}")))?;
            let wrong = |what: &str| {
                Error::new(ErrorKind::Corruption, format!("tablet at byte {at}: {what}"))
            };
            if !edit.remove.is_empty()
                || !edit.add_excised.is_empty()
                || !edit.remove_excised.is_empty()
            {
                return Err(wrong("removes or drops something"));
            }
            let range = edit.range.clone().ok_or_else(|| wrong("has no range"))?;
            let version = Version::empty(range).apply(&edit).map_err(|e| wrong(e.message()))?;
            list.tablets.push(version);
        }
        for _ in 0..reader.u64()? {
            let at = reader.malformed("value files are out of order");
            let (id, bytes) = (reader.u64()?, reader.u64()?);
            if list.values.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return Err(at.into());
            }
            list.values.insert(id, bytes);
        }
        reader.finish_known()?;
        Ok(list)
    }
}

/// Writes a backup, durably. After a failure it may be there or not; what was written of it otherwise is removed.
pub(crate) fn write(
    files: &dyn Files,
    layout: &Layout,
    id: BackupId,
    list: &BackupList,
) -> Result<()> {
    let mut record = Vec::new();
    list.encode(&mut record);
    Journal::create_whole(files, &layout.backup(id), BACKUP_MAGIC, id.0, &record)?;
    Ok(())
}

/// Reads a backup. `Corruption`, naming the file, where it is damaged.
pub(crate) fn read(files: &dyn Files, layout: &Layout, id: BackupId) -> Result<BackupList> {
    let path = layout.backup(id);
    let contents = Journal::read(files, &path, BACKUP_MAGIC, Some(id.0))?;
    let mut records = contents.records.into_iter();
    let (Some(record), None) = (records.next(), records.next()) else {
        let what = "its list does not verify; restore the file, or run `tepui repair` on the data directory";
        return Err(Error::corruption(path.display(), 0, what));
    };
    let offset = record.offset;
    BackupList::decode(record.payload).map_err(|error| match error.kind() {
        // Of a newer version: not damage.
        ErrorKind::InvalidArgument => error.context(path.display()),
        _ => Error::corruption(path.display(), offset, error.message()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cell::RowRange;
    use crate::manifest::SstRef;

    fn sst(id: u64, level: u8, first: &'static str, last: &'static str) -> SstRef {
        SstRef {
            id,
            level,
            visible: RowRange::all(),
            bytes: 100,
            first_row: Bytes::from(first),
            last_row: Bytes::from(last),
            min_seq: id,
            max_seq: id + 5,
            entries: 3,
        }
    }

    /// Two tablets that share SST 7, and a value file.
    fn list() -> BackupList {
        let tablet = |range: RowRange, add: Vec<SstRef>| {
            let edit = VersionEdit { add, last_seq: Some(50), ..VersionEdit::default() };
            Version::empty(range).apply(&edit).unwrap()
        };
        BackupList {
            tablets: vec![
                tablet(RowRange::new("", "m"), vec![sst(7, 1, "a", "z"), sst(8, 0, "a", "b")]),
                tablet(RowRange::new("m", ""), vec![sst(7, 1, "a", "z")]),
            ],
            values: BTreeMap::from([(9, 1000), (300, 5)]),
        }
    }

    fn encoded(list: &BackupList) -> Vec<u8> {
        let mut out = Vec::new();
        list.encode(&mut out);
        out
    }

    #[test]
    fn a_list_comes_back_as_it_was_and_its_figures_count_each_file() {
        let list = list();
        assert_eq!(BackupList::decode(encoded(&list).into()).unwrap(), list);
        assert_eq!(list.ssts(), BTreeMap::from([(7, 200), (8, 100)]));
        assert_eq!((list.bytes(), list.greatest_number()), (1305, 300));
        let none = BackupList::default();
        assert_eq!(BackupList::decode(encoded(&none).into()).unwrap(), none);
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let bytes = encoded(&BackupList {
            tablets: vec![Version::empty(RowRange::new("a", "z"))],
            values: BTreeMap::from([(9, 300)]),
        });
        let want = b"\x01\x0c\x01\x04\x01a\x01z\x04\x01\x00\x07\x01\x00\x01\x09\xac\x02";
        assert_eq!(bytes, want);
    }

    #[test]
    fn a_list_with_something_behind_it_is_a_newer_versions() {
        let bytes = encoded(&list());
        let longer = [&bytes[..], &[0]].concat();
        let error = BackupList::decode(longer.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("a newer version wrote it"), "{error}");
        for len in 0..bytes.len() {
            let error = BackupList::decode(Bytes::copy_from_slice(&bytes[..len])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{len}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
            cut in any::<usize>(),
        ) {
            let mut bytes = encoded(&list());
            for (at, byte) in changes {
                let len = bytes.len();
                bytes[at % len] = byte;
            }
            bytes.truncate(bytes.len() - cut % (bytes.len() + 1) % 5);
            if let Ok(decoded) = BackupList::decode(bytes.into()) {
                let again = BackupList::decode(encoded(&decoded).into()).unwrap();
                prop_assert_eq!(again, decoded);
            }
        }

        #[test]
        fn random_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BackupList::decode(raw.into());
        }
    }
}

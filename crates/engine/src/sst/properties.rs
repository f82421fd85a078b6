//! Properties: what an SST holds, in figures.
//!
//! ```text
//! (tag varint | len varint | len bytes) ...       a number is one varint; unknown tags are skipped
//!
//!  1 entries            6 row tombstones     11 seq max             16 created, micros (zigzag)
//!  2 rows               7 family tombstones  12 first row (bytes)   32 family, repeated:
//!  3 cells              8 column tombstones  13 last row (bytes)         1 id   2 entries   3 cells   4 tombstones
//!  4 key bytes          9 cell tombstones    14 (unused)                 5 timestamp min (zigzag)   6 timestamp max (zigzag)
//!  5 value bytes       10 seq min            15 data blocks              7 versions of a column, max
//!
//! 17 index bytes       19 filter partitions        21 filter entries   23 filter kinds: bit k for kind k
//! 18 padding bytes     20 with common columns      22 filter bytes     24 tombstones in a row, max
//!
//! 25 offset of the coarse filter   26 bytes of its frame   27 least seq of a cell tombstone over several timestamps
//!
//! 33 value file, repeated:   1 file   2 bytes that the SST's pointers name in it
//! ```
//!
//! A family's properties are encoded in the same way within its bytes. Absent means zero, so a later version
//! may leave out what it no longer has.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use super::FileId;
use super::footer::Handle;
use super::key::Change;
use crate::cell::{FAMILY_NONE, FamilyId, KeyView, Kind, SEQ_MAX, Seq, Timestamp};
use crate::codec::{Malformed, Parsed, Reader, put_bytes, put_u64, zigzag};
use crate::values::ValuePointer;

/// What an SST holds. Compaction picks by it, reads skip by it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SstProperties {
    /// Records of every kind.
    pub entries: u64,
    /// Distinct rows.
    pub rows: u64,
    /// Records that are not tombstones.
    pub cells: u64,
    /// Row tombstones.
    pub row_tombstones: u64,
    /// Family tombstones.
    pub family_tombstones: u64,
    /// Column tombstones.
    pub column_tombstones: u64,
    /// Cell tombstones.
    pub cell_tombstones: u64,
    /// Bytes of all encoded keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Smallest sequence; 0 without records.
    pub seq_min: Seq,
    /// Largest sequence; 0 without records.
    pub seq_max: Seq,
    /// First row.
    pub first_row: Bytes,
    /// Last row.
    pub last_row: Bytes,
    /// Data blocks.
    pub data_blocks: u64,
    /// When it was made, in microseconds since 1970, as its writer was told.
    pub created_micros: i64,
    /// Bytes of index partitions and the top-level index in the file.
    pub index_bytes: u64,
    /// Zeros between blocks, which keep them from crossing pages.
    pub padding_bytes: u64,
    /// The filter.
    pub filter: FilterFigures,
    /// The most tombstones that follow each other without another record between them.
    pub tombstone_run_max: u64,
    /// Smallest sequence of a cell tombstone over more than one timestamp. Those over one alone are what garbage collection leaves; what clients
    /// delete has at least the thousand of a millisecond. [`SEQ_MAX`] where there is none, 0 where the file does not say.
    pub deletion_seq_min: Seq,
    /// By family. Row tombstones belong to none.
    pub families: BTreeMap<FamilyId, FamilyProperties>,
    /// The value files that its pointers lead to, and the bytes of their frames that they name there. Empty in what an engine has open, which keeps the
    /// open files in their place.
    pub value_files: BTreeMap<FileId, u64>,
}

/// What the filter of an SST is made of; all 0 without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct FilterFigures {
    /// Partitions.
    pub partitions: u64,
    /// Those that list the columns that their rows have in common.
    pub common_partitions: u64,
    /// Entries of all partitions.
    pub entries: u64,
    /// Bytes of all partitions, of the filter index and of the coarse filter in the file.
    pub bytes: u64,
    /// Bit `k` is set where a partition is of kind `k`: 1 blocked Bloom, 2 and 3 binary fuse of 8 and 16 bits.
    pub kinds: u64,
    /// Where the coarse filter is in the file.
    pub coarse_offset: u64,
    /// Bytes of its frame; 0 without one.
    pub coarse_bytes: u64,
}

/// What an SST holds of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FamilyProperties {
    /// Records of every kind.
    pub entries: u64,
    /// Records that are not tombstones.
    pub cells: u64,
    /// Family, column and cell tombstones.
    pub tombstones: u64,
    /// Smallest timestamp of a cell, in microseconds; 0 where `cells` is 0.
    pub timestamp_min: Timestamp,
    /// Largest timestamp of a cell, in microseconds; 0 where `cells` is 0.
    pub timestamp_max: Timestamp,
    /// The most cells that one column has.
    pub column_versions_max: u64,
}

impl FilterFigures {
    /// Where the coarse filter is, if there is one; all before `end`.
    pub(super) fn coarse(&self, end: u64) -> Parsed<Option<Handle>> {
        (self.coarse_bytes > 0)
            .then(|| Handle::checked(self.coarse_offset, self.coarse_bytes, end))
            .transpose()
    }
}

impl SstProperties {
    /// Records that hide others.
    pub fn tombstones(&self) -> u64 {
        // Saturating, since the figures of a file may be anything.
        self.row_tombstones
            .saturating_add(self.family_tombstones)
            .saturating_add(self.column_tombstones)
            .saturating_add(self.cell_tombstones)
    }

    /// Whether it has tombstones over cells of more than one timestamp, as far as it says.
    pub(crate) fn has_wide_tombstones(&self) -> bool {
        self.cell_tombstones > 0 && self.deletion_seq_min != SEQ_MAX
    }

    /// Appends the encoding.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (tag, value) in [
            (1, self.entries),
            (2, self.rows),
            (3, self.cells),
            (4, self.key_bytes),
            (5, self.value_bytes),
            (6, self.row_tombstones),
            (7, self.family_tombstones),
            (8, self.column_tombstones),
            (9, self.cell_tombstones),
            (10, self.seq_min),
            (11, self.seq_max),
            (15, self.data_blocks),
            (16, zigzag(self.created_micros)),
            (17, self.index_bytes),
            (18, self.padding_bytes),
            (19, self.filter.partitions),
            (20, self.filter.common_partitions),
            (21, self.filter.entries),
            (22, self.filter.bytes),
            (23, self.filter.kinds),
            (24, self.tombstone_run_max),
            (25, self.filter.coarse_offset),
            (26, self.filter.coarse_bytes),
            (27, self.deletion_seq_min),
        ] {
            put_number(out, tag, value);
        }
        put_field(out, 12, &self.first_row);
        put_field(out, 13, &self.last_row);
        for (id, family) in &self.families {
            let mut inner = Vec::new();
            for (tag, value) in [
                (1, u64::from(id.0)),
                (2, family.entries),
                (3, family.cells),
                (4, family.tombstones),
                (5, zigzag(family.timestamp_min)),
                (6, zigzag(family.timestamp_max)),
                (7, family.column_versions_max),
            ] {
                put_number(&mut inner, tag, value);
            }
            put_field(out, 32, &inner);
        }
        for (file, bytes) in &self.value_files {
            let mut inner = Vec::new();
            put_number(&mut inner, 1, *file);
            put_number(&mut inner, 2, *bytes);
            put_field(out, 33, &inner);
        }
    }

    /// Reads an encoding.
    pub(super) fn decode(bytes: &[u8]) -> Parsed<Self> {
        let mut properties = Self::default();
        each_tag(bytes, |tag, field| {
            let target = match tag {
                1 => &mut properties.entries,
                2 => &mut properties.rows,
                3 => &mut properties.cells,
                4 => &mut properties.key_bytes,
                5 => &mut properties.value_bytes,
                6 => &mut properties.row_tombstones,
                7 => &mut properties.family_tombstones,
                8 => &mut properties.column_tombstones,
                9 => &mut properties.cell_tombstones,
                10 => &mut properties.seq_min,
                11 => &mut properties.seq_max,
                15 => &mut properties.data_blocks,
                17 => &mut properties.index_bytes,
                18 => &mut properties.padding_bytes,
                19 => &mut properties.filter.partitions,
                20 => &mut properties.filter.common_partitions,
                21 => &mut properties.filter.entries,
                22 => &mut properties.filter.bytes,
                23 => &mut properties.filter.kinds,
                24 => &mut properties.tombstone_run_max,
                25 => &mut properties.filter.coarse_offset,
                26 => &mut properties.filter.coarse_bytes,
                27 => &mut properties.deletion_seq_min,
                12 => {
                    properties.first_row = Bytes::copy_from_slice(field);
                    return Ok(());
                }
                13 => {
                    properties.last_row = Bytes::copy_from_slice(field);
                    return Ok(());
                }
                16 => {
                    properties.created_micros = signed(field)?;
                    return Ok(());
                }
                32 => {
                    let (id, family) = decode_family(field)?;
                    properties.families.insert(id, family);
                    return Ok(());
                }
                33 => {
                    let (file, bytes) = decode_value_file(field)?;
                    properties.value_files.insert(file, bytes);
                    return Ok(());
                }
                _ => return Ok(()),
            };
            *target = number(field)?;
            Ok(())
        })?;
        Ok(properties)
    }
}

fn decode_family(bytes: &[u8]) -> Parsed<(FamilyId, FamilyProperties)> {
    let mut id = 0;
    let mut family = FamilyProperties::default();
    each_tag(bytes, |tag, field| {
        match tag {
            1 => id = number(field)?,
            2 => family.entries = number(field)?,
            3 => family.cells = number(field)?,
            4 => family.tombstones = number(field)?,
            5 => family.timestamp_min = signed(field)?,
            6 => family.timestamp_max = signed(field)?,
            7 => family.column_versions_max = number(field)?,
            _ => {}
        }
        Ok(())
    })?;
    let id = u32::try_from(id).map_err(|_| Malformed::whole("a family id is out of range"))?;
    Ok((FamilyId(id), family))
}

fn decode_value_file(bytes: &[u8]) -> Parsed<(FileId, u64)> {
    let (mut file, mut named) = (0, 0);
    each_tag(bytes, |tag, field| {
        match tag {
            1 => file = number(field)?,
            2 => named = number(field)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((file, named))
}

fn each_tag<'a>(bytes: &'a [u8], mut take: impl FnMut(u64, &'a [u8]) -> Parsed<()>) -> Parsed<()> {
    let mut input = Reader::new(bytes);
    while !input.is_empty() {
        let tag = input.u64()?;
        take(tag, input.bytes()?)?;
    }
    Ok(())
}

fn number(field: &[u8]) -> Parsed<u64> {
    Reader::new(field).u64()
}

fn signed(field: &[u8]) -> Parsed<i64> {
    Reader::new(field).i64()
}

fn put_number(out: &mut Vec<u8>, tag: u64, value: u64) {
    let mut field = Vec::with_capacity(10);
    put_u64(&mut field, value);
    put_field(out, tag, &field);
}

fn put_field(out: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    put_u64(out, tag);
    put_bytes(out, bytes);
}

/// Counts records into properties.
#[derive(Debug)]
pub(super) struct PropertiesBuilder {
    properties: SstProperties,
    /// Cells seen so far in the current column.
    versions: u64,
    /// Tombstones since the last other record.
    tombstone_run: u64,
    /// The current family, so that the map is touched once per family and not once per record.
    family_id: FamilyId,
    family: FamilyProperties,
}

impl PropertiesBuilder {
    /// Nothing counted.
    pub(super) fn new(created_micros: i64) -> Self {
        Self {
            properties: SstProperties {
                created_micros,
                seq_min: SEQ_MAX,
                deletion_seq_min: SEQ_MAX,
                ..Default::default()
            },
            versions: 0,
            tombstone_run: 0,
            family_id: FAMILY_NONE,
            family: FamilyProperties::default(),
        }
    }

    /// Counts a record.
    pub(super) fn add(&mut self, change: Change, key: KeyView<'_>, value: &[u8]) {
        let kind = key.kind();
        if key.family() != self.family_id {
            self.put_family();
            self.family_id = key.family();
            self.family =
                self.properties.families.get(&self.family_id).copied().unwrap_or_default();
        }
        let all = &mut self.properties;
        if change.row {
            all.rows += 1;
            if all.entries == 0 {
                all.first_row = Bytes::from(key.row());
            }
        }
        if change.column {
            self.versions = 0;
        }
        all.entries += 1;
        all.key_bytes += key.bytes().len() as u64;
        all.value_bytes += value.len() as u64;
        // A malformed pointer names nothing; who reads it will say so.
        if kind == Kind::ValueElsewhere
            && let Ok(pointer) = ValuePointer::decode(value)
        {
            let named = all.value_files.entry(pointer.file).or_default();
            *named = named.saturating_add(u64::from(pointer.stored_len));
        }
        all.seq_min = all.seq_min.min(key.seq());
        all.seq_max = all.seq_max.max(key.seq());
        let family = &mut self.family;
        family.entries += 1;
        match kind {
            Kind::RowTombstone => all.row_tombstones += 1,
            Kind::FamilyTombstone => all.family_tombstones += 1,
            Kind::ColumnTombstone => all.column_tombstones += 1,
            Kind::CellTombstone => {
                all.cell_tombstones += 1;
                if value != key.timestamp().to_be_bytes() {
                    all.deletion_seq_min = all.deletion_seq_min.min(key.seq());
                }
            }
            Kind::Merge | Kind::Value | Kind::ValueElsewhere => {
                let timestamp = key.timestamp();
                let first = family.cells == 0;
                all.cells += 1;
                family.cells += 1;
                self.versions += 1;
                family.timestamp_min =
                    if first { timestamp } else { timestamp.min(family.timestamp_min) };
                family.timestamp_max =
                    if first { timestamp } else { timestamp.max(family.timestamp_max) };
                family.column_versions_max = family.column_versions_max.max(self.versions);
            }
        }
        if kind.is_tombstone() {
            family.tombstones += 1;
            self.tombstone_run += 1;
            all.tombstone_run_max = all.tombstone_run_max.max(self.tombstone_run);
        } else {
            self.tombstone_run = 0;
        }
    }

    fn put_family(&mut self) {
        if self.family_id != FAMILY_NONE {
            self.properties.families.insert(self.family_id, self.family);
        }
    }

    /// The properties of what was counted; `last_row` is the row of the last record.
    pub(super) fn finish(mut self, last_row: Vec<u8>, data_blocks: u64) -> SstProperties {
        self.put_family();
        self.properties.last_row = Bytes::from(last_row);
        self.properties.data_blocks = data_blocks;
        self.properties.seq_min = self.properties.seq_min.min(self.properties.seq_max);
        self.properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hex, unhex};
    use proptest::prelude::*;

    fn properties() -> SstProperties {
        let family = FamilyProperties {
            entries: 5,
            cells: 3,
            tombstones: 2,
            timestamp_min: -4,
            timestamp_max: 1 << 50,
            column_versions_max: 2,
        };
        SstProperties {
            entries: 300,
            rows: 9,
            cells: 2,
            row_tombstones: 31,
            family_tombstones: 32,
            column_tombstones: 33,
            cell_tombstones: 34,
            key_bytes: 1 << 40,
            value_bytes: 1 << 41,
            seq_min: 3,
            seq_max: u64::MAX,
            first_row: Bytes::from_static(b"a\0"),
            last_row: Bytes::from_static(b"z"),
            data_blocks: 40,
            created_micros: -1,
            index_bytes: 7000,
            padding_bytes: 1,
            tombstone_run_max: 12,
            deletion_seq_min: 1 << 60,
            filter: FilterFigures {
                partitions: 4,
                common_partitions: 3,
                entries: 9000,
                bytes: 16_000,
                kinds: 6,
                coarse_offset: 70_000,
                coarse_bytes: 500,
            },
            families: [(FamilyId(1), family), (FamilyId(u32::MAX), family)].into(),
            value_files: [(9, 1 << 33), (u64::MAX, 0)].into(),
        }
    }

    /// All of [`properties`].
    const STORED: &str = concat!(
        "0102ac020201090301020406808080808020050680808080804006011f070120080121090122",
        "0a01030b0affffffffffffffffff010f01281001011102d8361201011301041401031502a846",
        "1602807d17010618010c1903f0a2041a02f4031b098080808080808080100c0261000d017a",
        "201c01010102010503010304010205010706088080808080808004070102",
        "20200105ffffffff0f02010503010304010205010706088080808080808004070102",
        "210a01010902058080808020210f010affffffffffffffffff01020100",
    );

    #[test]
    fn properties_on_a_disk_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        properties().encode(&mut bytes);
        assert_eq!(hex(&bytes), STORED);
        assert_eq!(SstProperties::decode(&unhex(STORED)), Ok(properties()));
    }

    #[test]
    fn properties_read_back_and_unknown_tags_are_skipped() {
        let mut bytes = Vec::new();
        put_field(&mut bytes, 999, b"from a later version");
        properties().encode(&mut bytes);
        put_number(&mut bytes, 77, 1);
        assert_eq!(SstProperties::decode(&bytes), Ok(properties()));
        for len in 0..bytes.len() {
            let _ = SstProperties::decode(&bytes[..len]);
        }
    }

    proptest! {
        #[test]
        fn random_properties_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SstProperties::decode(&bytes);
        }
    }
}

//! Rows that lie whole in one block of one SST, which is what most point reads and scans find: their cells in
//! one walk over the block, with no merge and no keys built.
//!
//! Only values are handled here. A tombstone, an operand of an aggregate, or a row beyond the size limit sends
//! the read to the general way, which knows all of that; the two agree on everything else.

use bytes::Bytes;

use crate::cell::{Cell, FAMILY_NONE, FamilyId, Kind, Row, Seq, unescape_into};
use crate::error::Result;
use crate::read::plan::in_ranges;
use crate::read::ready::ReadyRows;
use crate::read::{Projection, QualifierRange};
use crate::schema::TabletSchema;
use crate::sst::{RowInBlock, RowSink};
use crate::values::{Elsewhere, FoundRow, ValuePointer};

/// Rows that are taken at once at most: some ten blocks of small rows, which wait in memory. More would gain
/// nothing, since what a turn costs is spread over enough of them; and a caller that stops early has had less
/// work done in vain.
pub(super) const ROWS_TAKEN_MAX: usize = 128;

/// Assembles rows, one after the other.
#[derive(Debug)]
pub(crate) struct Assembler<'a> {
    snapshot: Seq,
    schema: &'a TabletSchema,
    projection: &'a Projection,
    row_bytes_max: u64,
    /// The family looked at last, and whether it is wanted.
    family: FamilyId,
    family_wanted: bool,
    /// The values of the last row that are to be fetched.
    elsewhere: Vec<Elsewhere>,
    /// Of its qualifiers, these; `None` for all.
    ranges: Option<&'a [QualifierRange]>,
}

impl<'a> Assembler<'a> {
    /// For what `projection` wants of what is visible at `snapshot`.
    pub(crate) fn new(
        snapshot: Seq,
        schema: &'a TabletSchema,
        projection: &'a Projection,
        row_bytes_max: u64,
    ) -> Self {
        Self {
            snapshot,
            schema,
            projection,
            row_bytes_max,
            family: FAMILY_NONE,
            family_wanted: false,
            ranges: None,
            elsewhere: Vec::new(),
        }
    }

    /// Which values of the row that [`Self::cells`] gave last are to be fetched.
    pub(crate) fn take_elsewhere(&mut self) -> Vec<Elsewhere> {
        std::mem::take(&mut self.elsewhere)
    }

    /// The cells of a row, perhaps none, without the values that lie elsewhere; `None` where it takes the general
    /// way.
    pub(crate) fn cells(&mut self, row: &RowInBlock<'_>) -> Result<Option<Vec<Cell>>> {
        let projection = self.projection;
        self.elsewhere.clear();
        if projection.versions_max == 0 || projection.cells_per_row_max == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut cells = Vec::new();
        let mut general = false;
        let mut bytes = 0u64;
        let mut column_wanted = false;
        let mut qualifier: Option<Bytes> = None;
        let mut versions = 0;
        let mut last_timestamp = None;
        row.walk(|record| {
            let kind = record.kind();
            if kind != Kind::Value && kind != Kind::ValueElsewhere {
                general = true;
                return false;
            }
            if !record.same_column {
                if record.family() != self.family {
                    self.enter_family(record.family());
                }
                qualifier = None;
                column_wanted = self.family_wanted;
                if column_wanted && let Some(ranges) = self.ranges {
                    let raw = record.qualifier();
                    column_wanted = in_ranges(ranges, &raw);
                    qualifier = Some(raw);
                }
                versions = 0;
                last_timestamp = None;
            }
            let timestamp = record.timestamp();
            // Of the records of one cell, the newest that is visible decides.
            if !column_wanted
                || versions >= projection.versions_max
                || record.seq() > self.snapshot
                || last_timestamp == Some(timestamp)
            {
                return true;
            }
            last_timestamp = Some(timestamp);
            if !projection.timestamps.contains(timestamp) {
                return true;
            }
            let qualifier = match &qualifier {
                Some(known) => known.clone(),
                None if versions + 1 == projection.versions_max => record.qualifier(),
                None => qualifier.insert(record.qualifier()).clone(),
            };
            let mut value = record.value();
            let mut value_len = value.len();
            if kind == Kind::ValueElsewhere {
                // One that is malformed is for the general way to report.
                let Ok(pointer) = ValuePointer::decode(&value) else {
                    general = true;
                    return false;
                };
                (value, value_len) = (Bytes::new(), 0);
                if projection.values {
                    value_len = pointer.value_len as usize;
                    self.elsewhere.push(Elsewhere { cell: cells.len(), pointer });
                }
            }
            bytes += (qualifier.len() + value_len + size_of::<Cell>()) as u64;
            if bytes > self.row_bytes_max {
                general = true;
                return false;
            }
            if cells.is_empty() {
                cells.reserve_exact(row.records_hint());
            }
            cells.push(Cell { family: self.family, qualifier, timestamp, value });
            versions += 1;
            (cells.len() as u64) < u64::from(projection.cells_per_row_max)
        })?;
        Ok((!general).then_some(cells))
    }

    fn enter_family(&mut self, family: FamilyId) {
        self.family = family;
        let named = self.projection.families.as_ref();
        let wanted = named.map(|wanted| wanted.iter().find(|f| f.family == family));
        let is_shown = if named.is_none() { !family.is_own() } else { wanted != Some(None) };
        self.family_wanted = is_shown && self.schema.family(family).is_some();
        let qualifiers = wanted.flatten().map(|wanted| wanted.qualifiers.as_slice());
        self.ranges = qualifiers.filter(|qualifiers| !qualifiers.is_empty());
    }
}

/// Assembles the rows that a cursor hands over.
#[derive(Debug)]
pub(super) struct RowTaker<'a> {
    pub(super) assembler: Assembler<'a>,
    /// Makes the rows' keys.
    pub(super) keys: &'a mut RowKeys,
    /// Those with cells.
    pub(super) rows: &'a mut ReadyRows,
    pub(super) rows_max: usize,
    /// Bytes of values to fetch with which it is full.
    pub(super) fetch_max: u64,
    /// Whether `last` is to be right whatever the row has.
    pub(super) keeps_last: bool,
    /// The prefix of the last row that was taken, or of the last without cells.
    pub(super) last: &'a mut Vec<u8>,
    /// Records of all rows that were taken, at least one each.
    pub(super) looked_at: u64,
}

impl RowSink for RowTaker<'_> {
    fn take(&mut self, row_prefix: &[u8], row: &RowInBlock<'_>) -> Result<bool> {
        let Some(cells) = self.assembler.cells(row)? else { return Ok(false) };
        self.looked_at += row.records_hint() as u64;
        if self.keeps_last || cells.is_empty() {
            self.last.clear();
            self.last.extend_from_slice(row_prefix);
        }
        if !cells.is_empty() {
            let key = self.keys.key(row_prefix);
            let elsewhere = self.assembler.take_elsewhere();
            self.rows.push(FoundRow { row: Row { key, cells }, elsewhere });
        }
        Ok(true)
    }

    fn room(&self) -> usize {
        if self.rows.fetch_bytes() >= self.fetch_max {
            return 0;
        }
        self.rows_max.saturating_sub(self.rows.len())
    }
}

/// Makes row keys, each in memory of its own: an allocation costs no more than a reference that is counted, and whoever
/// keeps a key keeps nothing else.
#[derive(Debug, Default)]
pub(super) struct RowKeys {
    scratch: Vec<u8>,
}

impl RowKeys {
    /// The row of a prefix.
    #[inline]
    pub(super) fn key(&mut self, prefix: &[u8]) -> Bytes {
        let escaped = prefix.get(..prefix.len().saturating_sub(2)).unwrap_or_default();
        if escaped.contains(&0) {
            unescape_into(escaped, &mut self.scratch);
            return Bytes::copy_from_slice(&self.scratch);
        }
        Bytes::copy_from_slice(escaped)
    }
}

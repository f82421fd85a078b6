//! A row that lies whole in one block of one SST, which is what most point reads find: its cells in one
//! walk over the block, with no merge and no keys built.
//!
//! Only values are handled here. A tombstone, an operand of an aggregate, or a row beyond the size limit sends
//! the read to the general way, which knows all of that; the two agree on everything else.

use bytes::Bytes;

use crate::cell::{Cell, FAMILY_NONE, FamilyId, Kind, Row, Seq};
use crate::error::Result;
use crate::read::Projection;
use crate::read::plan::in_ranges;
use crate::schema::TabletSchema;
use crate::sst::PointRow;

/// What became of the walk.
#[derive(Debug)]
pub(crate) enum Assembled {
    /// The row as the snapshot sees it, perhaps without cells.
    Cells(Vec<Cell>),
    /// It takes the general way.
    General,
}

/// Cells that a row's vector has room for from the start: most rows are read whole, and have few.
const CELLS_TYPICAL: usize = 4;

/// The cells of `row` that `projection` wants of what is visible at `snapshot`.
pub(crate) fn assemble(
    found: &PointRow,
    snapshot: Seq,
    schema: &TabletSchema,
    projection: &Projection,
    row_bytes_max: u64,
) -> Result<Assembled> {
    if projection.versions_max == 0 || projection.cells_per_row_max == 0 {
        return Ok(Assembled::Cells(Vec::new()));
    }
    let mut cells = Vec::with_capacity(CELLS_TYPICAL);
    let mut general = false;
    let mut bytes = 0u64;
    let mut family = FAMILY_NONE;
    let mut family_wanted = false;
    let mut column_wanted = false;
    let mut qualifier: Option<Bytes> = None;
    let mut versions = 0;
    let mut last_timestamp = None;
    found.walk(|record| {
        if record.kind() != Kind::Value {
            general = true;
            return false;
        }
        if !record.same_column {
            if record.family() != family {
                family = record.family();
                family_wanted = wants_family(schema, projection, family);
            }
            qualifier = None;
            column_wanted = family_wanted;
            if family_wanted && let Some(ranges) = ranges(projection, family) {
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
            || record.seq() > snapshot
            || last_timestamp == Some(timestamp)
        {
            return true;
        }
        last_timestamp = Some(timestamp);
        if !projection.timestamps.contains(timestamp) {
            return true;
        }
        let qualifier = qualifier.get_or_insert_with(|| record.qualifier()).clone();
        let value = record.value();
        bytes += (qualifier.len() + value.len() + size_of::<Cell>()) as u64;
        if bytes > row_bytes_max {
            general = true;
            return false;
        }
        cells.push(Cell { family, qualifier, timestamp, value });
        versions += 1;
        (cells.len() as u64) < u64::from(projection.cells_per_row_max)
    })?;
    Ok(if general { Assembled::General } else { Assembled::Cells(cells) })
}

fn wants_family(schema: &TabletSchema, projection: &Projection, family: FamilyId) -> bool {
    let named = projection.families.as_ref();
    schema.family(family).is_some()
        && named.is_none_or(|wanted| wanted.iter().any(|f| f.family == family))
}

/// The qualifiers that are wanted of a family; `None` for all.
fn ranges(projection: &Projection, family: FamilyId) -> Option<&[crate::read::QualifierRange]> {
    let wanted = projection.families.as_ref()?.iter().find(|f| f.family == family)?;
    (!wanted.qualifiers.is_empty()).then_some(wanted.qualifiers.as_slice())
}

/// The row of these cells; `None` without cells.
pub(crate) fn row_of(key: &[u8], cells: Vec<Cell>) -> Option<Row> {
    (!cells.is_empty()).then(|| Row { key: Bytes::copy_from_slice(key), cells })
}

//! Reads of the newest cell of named columns, which end where the columns are found.
//!
//! Timestamps are the clients': a younger file may hold the older cell, so that in general every place that has
//! something of a row is read. But each SST knows the largest timestamp of each family. Once a cell of every
//! column is in hand, an older SST none of whose cells could be newer is left out:
//!
//! ```text
//! memtable  r: a@9 b@9      both columns found        a row just written costs no read of the disk
//! L0        r: a@7 b@7      family's largest 8 < 9    left out
//! L6        r: a@3 b@3      family's largest 5 < 9    left out
//! ```
//!
//! At equal timestamps the younger place wins, by its sequence. An SST with tombstones is never left out: what they
//! hide is older still, but may be in a file that is read. Aggregates are the sum of all places, so they take no part.

use crate::cell::{FamilyId, Timestamp};
use crate::read::Projection;
use crate::schema::TabletSchema;
use crate::sst::{Loaded, RowProbe, SstReader};

/// What a read has to find before older places cannot matter.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestOf {
    /// Columns that are named; each has one cell at most.
    columns: usize,
}

impl NewestOf {
    /// For a read that wants one cell of each column that it names; `None` for others.
    pub(super) fn of(projection: &Projection, schema: &TabletSchema) -> Option<Self> {
        let families = projection.families.as_ref().filter(|_| projection.versions_max == 1)?;
        let columns: usize = families.iter().map(|family| family.qualifiers.len()).sum();
        let is_plain = |family| schema.family(family).is_some_and(|o| o.aggregate.is_none());
        let fits = columns > 0 && projection.cells_per_row_max as usize >= columns;
        let spares =
            fits && families.iter().all(|f| is_plain(f.family)) && projection.names_columns();
        spares.then_some(Self { columns })
    }

    /// Whether `cells`, which a place younger than `older` has, leave nothing to find there.
    pub(super) fn spares(
        self,
        cells: impl Iterator<Item = (FamilyId, Timestamp)>,
        older: &SstReader,
    ) -> bool {
        if older.properties().tombstones() > 0 {
            return false;
        }
        let families = &older.properties().families;
        let newer = |(family, timestamp)| {
            let known = families.get(&family).filter(|family| family.cells > 0);
            known.is_none_or(|family| family.timestamp_max <= timestamp)
        };
        let mut found = 0;
        let all_newer = cells.inspect(|_| found += 1).all(newer);
        all_newer && found == self.columns
    }

    /// Whether whatever `younger` has of the columns would spare `older`.
    pub(super) fn may_spare(
        probe: &RowProbe<'_>,
        loaded: &Loaded,
        younger: &SstReader,
        older: &SstReader,
    ) -> bool {
        let (young, old) = (&younger.properties().families, &older.properties().families);
        let newer = |family| {
            let known = old.get(&family).filter(|family| family.cells > 0);
            known.is_none_or(|old| {
                young.get(&family).is_some_and(|young| old.timestamp_max <= young.timestamp_min)
            })
        };
        older.properties().tombstones() == 0
            && probe.column_families().is_some_and(|mut families| families.all(newer))
            && younger.may_have_all_columns(probe, loaded)
    }
}

//! From a row probe to questions for filter partitions, and back to one answer.
//!
//! A read asks about one row: all questions go to the partition where the row starts, or, in a row that is
//! wider than a partition, to few behind it. So the partition at hand is remembered from one question to the
//! next, and n columns of a row cost one look into the directory.

use std::cmp::Ordering;

use super::filter::{Ask, family_tombstone_entry};
use super::index::IndexBlock;
use super::probe::{RowProbe, Wants};
use super::reader::SstReader;
use crate::cache::Resident;
use crate::codec::Parsed;

/// The partitions of one SST's filter, as one read sees them.
struct Partitions<'a, F> {
    filters: &'a IndexBlock,
    /// The partition where the row starts.
    row_at: usize,
    find: F,
    /// The partition asked last; none of it where it is missing.
    at: usize,
    block: Option<Resident>,
    /// Partitions that are not in memory, each once.
    missing: Vec<usize>,
}

/// Whether the SST may hold anything that the probe wants. `find` gives the partitions that are in memory;
/// where the others decide, the answer is their places.
pub(super) fn ask_filter(
    reader: &SstReader,
    filters: &IndexBlock,
    probe: &RowProbe,
    find: impl FnMut(usize) -> Option<Resident>,
) -> Parsed<Result<bool, Vec<usize>>> {
    let row_at = filters.find(&probe.row_prefix, false)?;
    let mut parts =
        Partitions { filters, row_at, find, at: usize::MAX, block: None, missing: Vec::new() };
    let found = parts.ask_all(reader, probe)?;
    Ok(if found || parts.missing.is_empty() { Ok(found) } else { Err(parts.missing) })
}

/// Whether the SST may hold every column that the probe names, as far as the partitions in memory tell: one that
/// is missing says no.
pub(super) fn may_have_all_columns(
    filters: &IndexBlock,
    probe: &RowProbe,
    find: impl FnMut(usize) -> Option<Resident>,
) -> Parsed<bool> {
    let Wants::Columns(wants) = &probe.wants else { return Ok(false) };
    let row_at = filters.find(&probe.row_prefix, false)?;
    let mut parts =
        Partitions { filters, row_at, find, at: usize::MAX, block: None, missing: Vec::new() };
    for want in wants {
        let ask = Ask::Column { row: probe.row_entry, column: want.column };
        if !parts.ask_at(&want.prefix, &ask)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<F: FnMut(usize) -> Option<Resident>> Partitions<'_, F> {
    fn ask_all(&mut self, reader: &SstReader, probe: &RowProbe) -> Parsed<bool> {
        let (row, row_at) = (probe.row_entry, self.row_at);
        let row_tombstones = reader.properties().row_tombstones > 0;
        let family_tombstones = reader.properties().family_tombstones > 0;
        // Every entry implies the row's: where its partition is needed anyway, it may spare the other
        // questions, and it makes false positives rarer.
        let first_at = match &probe.wants {
            Wants::Row => return self.ask(row_at, &Ask::Row(row)),
            Wants::Families(wants) => wants.first().map(|w| &w.prefix),
            Wants::Columns(wants) => wants.first().map(|w| &w.prefix),
        };
        let first_at = first_at.map(|prefix| self.place_of(prefix)).transpose()?;
        if (row_tombstones || first_at == Some(row_at)) && !self.ask(row_at, &Ask::Row(row))? {
            // No, or not known yet.
            if self.missing.is_empty() {
                return Ok(false);
            }
        }
        if row_tombstones && self.ask(row_at, &Ask::Tombstone(probe.row_tombstone_entry))? {
            return Ok(true);
        }
        match &probe.wants {
            Wants::Row => {}
            Wants::Families(wants) => {
                for want in wants {
                    let ask = Ask::Family { row, family: want.family };
                    if self.ask_at(&want.prefix, &ask)? {
                        return Ok(true);
                    }
                }
            }
            Wants::Columns(wants) => {
                for want in wants {
                    let ask = Ask::Column { row, column: want.column };
                    if self.ask_at(&want.prefix, &ask)? {
                        return Ok(true);
                    }
                    if family_tombstones {
                        let entry = family_tombstone_entry(row, want.family.family);
                        if self.ask_at(&want.family.prefix, &Ask::Tombstone(entry))? {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        Ok(false)
    }

    fn place_of(&self, prefix: &[u8]) -> Parsed<usize> {
        // All prefixes begin with the row's, so none belongs to an earlier partition than it, and most to the
        // same: one comparison tells, where a search for each column would cost more than its filter.
        if self.row_at < self.filters.len()
            && self.filters.compare(self.row_at, prefix)? == Ordering::Greater
        {
            return Ok(self.row_at);
        }
        self.filters.find(prefix, false)
    }

    fn ask_at(&mut self, prefix: &[u8], ask: &Ask) -> Parsed<bool> {
        let at = self.place_of(prefix)?;
        self.ask(at, ask)
    }

    /// What a partition says; no where it is not in memory, which is noted.
    fn ask(&mut self, at: usize, ask: &Ask) -> Parsed<bool> {
        if at >= self.filters.len() {
            // Past the last partition: no key has the prefix.
            return Ok(false);
        }
        if self.at != at {
            self.block = (self.find)(at);
            self.at = at;
        }
        match &self.block {
            Some(block) => Ok(block.filter()?.may_contain(ask)),
            None => {
                if !self.missing.contains(&at) {
                    self.missing.push(at);
                }
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::{PartitionId, QuickBlockCache};
    use crate::cell::{FamilyId, KeyView, Kind, encode_key};
    use crate::io::Files as _;
    use crate::sst::block::Fill;
    use crate::sst::testing::TestFiles;
    use crate::sst::{SstOptions, SstWriter};

    #[test]
    fn many_columns_of_a_row_look_for_its_filter_once() {
        let files = TestFiles::default();
        let path = std::path::Path::new("sst");
        let file = files.create(path).unwrap();
        let mut writer = SstWriter::new(file, path, 1, SstOptions::default(), 0);
        for row in 0..20_000 {
            let mut key = Vec::new();
            let name = format!("row-{row:05}");
            let column = format!("c{}", row % 10);
            let column = Some(column.as_bytes());
            encode_key(name.as_bytes(), FamilyId(1), column, 1_000, 7, Kind::Value, &mut key);
            writer.add(KeyView::parse(&key).unwrap(), b"value").unwrap();
        }
        writer.finish().unwrap();
        let cache = Arc::new(QuickBlockCache::new(64 << 20));
        let reader = SstReader::open(&files, path, 1, cache).unwrap();
        let filters = reader.filters().unwrap();
        assert!(filters.len() > 3, "{} partitions", filters.len());
        let mut says_no = false;
        for row in 10_000..10_010 {
            let absent = (0..10).map(|column| (FamilyId(1), format!("x{column}").into_bytes()));
            let probe = RowProbe::columns(format!("row-{row}").as_bytes(), absent.collect());
            let mut looks = Vec::new();
            let answer = ask_filter(&reader, filters, &probe, |at| {
                looks.push(at);
                let handle = filters.handle(at, reader.blocks_end()).ok()?;
                let request = reader.request_partition(PartitionId::Filter(at), handle, Fill::Keep);
                request.load_blocking().ok().map(Resident::from)
            });
            // Unless one of the columns happens to be where another is, it is asked for all ten.
            says_no |= matches!(answer, Ok(Ok(false)));
            let places: std::collections::BTreeSet<_> = looks.iter().collect();
            assert_eq!(looks.len(), places.len(), "{looks:?}");
        }
        assert!(says_no);
    }
}

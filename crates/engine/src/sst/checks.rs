//! From a row probe to questions for filter partitions, and back to one answer.
//!
//! A read asks about one row: all questions go to the partition where the row starts, or, in a row that is
//! wider than a partition, to few behind it. So the partition at hand is remembered from one question to the
//! next, and n columns of a row cost one look into the directory.

use super::filter::{Ask, family_tombstone_entry};
use super::index::IndexBlock;
use super::probe::{RowProbe, Wants};
use super::reader::SstReader;
use crate::cache::Resident;
use crate::cell::{FamilyId, encode_family, encode_qualifier};
use crate::codec::Parsed;

/// The partitions of one SST's filter, as one read sees them.
struct Partitions<'a, F> {
    filters: &'a IndexBlock,
    row_prefix: &'a [u8],
    /// The partition where the row starts, and whether what is asked of it may be in later ones.
    row_at: usize,
    goes_on: bool,
    /// The prefix that was looked for last, where the row goes on: it begins with the row's, which is copied once.
    prefix: Vec<u8>,
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
    probe: &RowProbe<'_>,
    find: impl FnMut(usize) -> Option<Resident>,
) -> Parsed<Result<bool, Vec<usize>>> {
    let mut parts = Partitions::new(filters, probe, find)?;
    let found = parts.ask_all(reader, probe)?;
    Ok(if found || parts.missing.is_empty() { Ok(found) } else { Err(parts.missing) })
}

/// Whether the SST may hold every column that the probe names, as far as the partitions in memory tell: one that
/// is missing says no.
pub(super) fn may_have_all_columns(
    filters: &IndexBlock,
    probe: &RowProbe<'_>,
    find: impl FnMut(usize) -> Option<Resident>,
) -> Parsed<bool> {
    let Wants::Columns(wants) = &probe.wants else { return Ok(false) };
    let mut parts = Partitions::new(filters, probe, find)?;
    for want in wants {
        let ask = Ask::Column { row: probe.row_entry, column: want.column };
        let at = parts.place_of(want.family, Some(want.qualifier))?;
        if !parts.ask(at, &ask)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<'a, F: FnMut(usize) -> Option<Resident>> Partitions<'a, F> {
    fn new(filters: &'a IndexBlock, probe: &'a RowProbe<'_>, find: F) -> Parsed<Self> {
        let row_prefix = probe.row_prefix.as_slice();
        let row_at = filters.find(row_prefix, false)?;
        // The separator is behind the row's prefix. One that does not begin with it is behind all of the row: in most rows that is
        // all there is to know of where columns are, where a search for each would cost more than its filter.
        let goes_on = !matches!(probe.wants, Wants::Row)
            && row_at < filters.len()
            && filters.begins_with(row_at, row_prefix)?;
        Ok(Self {
            filters,
            row_prefix,
            row_at,
            goes_on,
            prefix: Vec::new(),
            find,
            at: usize::MAX,
            block: None,
            missing: Vec::new(),
        })
    }

    fn ask_all(&mut self, reader: &SstReader, probe: &RowProbe<'_>) -> Parsed<bool> {
        let (row, row_at) = (probe.row_entry, self.row_at);
        let row_tombstones = reader.properties().row_tombstones > 0;
        let family_tombstones = reader.properties().family_tombstones > 0;
        // Every entry implies the row's: where its partition is needed anyway, it may spare the other
        // questions, and it makes false positives rarer.
        let first_at = match &probe.wants {
            Wants::Row => return self.ask(row_at, &Ask::Row(row)),
            Wants::Families(families) => families.first().map(|f| self.place_of(*f, None)),
            Wants::Columns(wants) => {
                wants.first().map(|w| self.place_of(w.family, Some(w.qualifier)))
            }
        };
        let first_at = first_at.transpose()?;
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
            Wants::Families(families) => {
                for family in families.iter().copied() {
                    let at = self.place_of(family, None)?;
                    if self.ask(at, &Ask::Family { row, family })? {
                        return Ok(true);
                    }
                }
            }
            Wants::Columns(wants) => {
                for want in wants {
                    let at = self.place_of(want.family, Some(want.qualifier))?;
                    if self.ask(at, &Ask::Column { row, column: want.column })? {
                        return Ok(true);
                    }
                    if family_tombstones {
                        let entry = family_tombstone_entry(row, want.family);
                        let at = self.place_of(want.family, None)?;
                        if self.ask(at, &Ask::Tombstone(entry))? {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        Ok(false)
    }

    /// The partition of a column, or of where a family begins.
    fn place_of(&mut self, family: FamilyId, qualifier: Option<&[u8]>) -> Parsed<usize> {
        if !self.goes_on {
            return Ok(self.row_at);
        }
        if self.prefix.is_empty() {
            self.prefix.extend_from_slice(self.row_prefix);
        }
        self.prefix.truncate(self.row_prefix.len());
        encode_family(family, &mut self.prefix);
        if qualifier.is_some() {
            encode_qualifier(qualifier, &mut self.prefix);
        }
        self.filters.find(&self.prefix, false)
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
            let absent: Vec<_> = (0..10).map(|column| format!("x{column}")).collect();
            let absent = absent.iter().map(|column| (FamilyId(1), column.as_bytes()));
            let probe = RowProbe::columns(format!("row-{row}").as_bytes(), absent);
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

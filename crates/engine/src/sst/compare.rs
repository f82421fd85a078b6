//! Two ways to the filters of an SST, side by side, so that a benchmark can tell what the directory is worth.
//!
//! ```text
//! by directory   one probe for all columns; each partition once, by its position
//! by hash        each column by itself; its partition looked up in a cache by (file, offset), each time
//! ```
//!
//! The second way is what the first replaced. Both ask the same filters, all of them in memory, and both
//! search the same resident filter index.

use std::sync::Arc;

use quick_cache::sync::Cache;

use super::FileId;
use super::block::{Block, Fill};
use super::checks::ask_filter;
use super::footer::Handle;
use super::probe::RowProbe;
use super::reader::SstReader;
use crate::cache::{PartitionId, Resident};
use crate::cell::FamilyId;
use crate::error::Result;

/// Filter partitions that the hashed cache has room for besides those of the SSTs.
const SPARE_ENTRIES: usize = 1024;

/// The filters of some SSTs, whole and in memory in both ways.
#[derive(Debug)]
pub struct FilterComparison {
    readers: Vec<Arc<SstReader>>,
    hashed: Cache<(FileId, u64), Arc<Block>>,
}

impl FilterComparison {
    /// Loads the filters of these SSTs. Blocks. The block cache must be large enough for them.
    pub fn new(readers: Vec<Arc<SstReader>>) -> Result<Self> {
        let partitions = readers.iter().filter_map(|r| r.filters().map(|f| f.len())).sum::<usize>();
        let hashed = Cache::new(partitions + SPARE_ENTRIES);
        for reader in &readers {
            for at in 0..reader.filters().map_or(0, |f| f.len()) {
                let handle = Self::handle(reader, at)?;
                let id = PartitionId::Filter(at);
                let block = reader.request_partition(id, handle, Fill::Keep).load_blocking()?;
                hashed.insert((reader.id(), handle.offset), block);
            }
        }
        Ok(Self { readers, hashed })
    }

    fn handle(reader: &SstReader, at: usize) -> Result<Handle> {
        let Some(filters) = reader.filters() else { return Ok(Handle::default()) };
        Ok(reader.at_filters(filters.entry(at, reader.blocks_end()))?.handle)
    }

    /// How many of the SSTs may hold any of these columns of a row, with one probe and the directory.
    pub fn by_directory(&self, row: &[u8], columns: &[(FamilyId, Vec<u8>)]) -> Result<usize> {
        let probe = RowProbe::columns(row, columns.iter().map(|(f, q)| (*f, q.as_slice())));
        let mut perhaps = 0;
        for reader in &self.readers {
            let find = |at: usize| Ok(reader.filter_slot(at, probe.row_entry));
            perhaps += usize::from(ask(reader, &probe, find)?);
        }
        Ok(perhaps)
    }

    /// The same, each column by itself, through the hashed cache.
    pub fn by_hash<'c>(&self, row: &[u8], columns: &'c [(FamilyId, Vec<u8>)]) -> Result<usize> {
        let probe = |(f, q): &'c (FamilyId, Vec<u8>)| RowProbe::columns(row, [(*f, q.as_slice())]);
        let probes: Vec<_> = columns.iter().map(probe).collect();
        let mut perhaps = 0;
        for reader in &self.readers {
            let mut any = false;
            for probe in &probes {
                let find = |at: usize| {
                    let place = (reader.id(), Self::handle(reader, at)?.offset);
                    let found = self.hashed.get(&place);
                    let counted = &reader.metrics().filter;
                    if found.is_some() { &counted.hits } else { &counted.misses }.increment();
                    Ok(found.map(Resident::from))
                };
                any |= ask(reader, probe, find)?;
            }
            perhaps += usize::from(any);
        }
        Ok(perhaps)
    }
}

/// What the filter of one SST says; one that is not in memory says "perhaps".
fn ask(
    reader: &SstReader,
    probe: &RowProbe<'_>,
    find: impl Fn(usize) -> Result<Option<Resident>>,
) -> Result<bool> {
    let Some(filters) = reader.filters() else { return Ok(true) };
    let mut failed = None;
    let answer = ask_filter(reader, filters, probe, |at| {
        find(at).unwrap_or_else(|e| {
            failed = Some(e);
            None
        })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(reader.at_filters(answer)?.unwrap_or(true)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::{BlockCache, QuickBlockCache};
    use crate::cell::{KeyView, Kind, encode_key};
    use crate::io::Files;
    use crate::sst::testing::TestFiles;
    use crate::sst::{SstOptions, SstWriter};

    #[test]
    fn both_ways_to_the_filters_give_the_same_answer() {
        let files = TestFiles::default();
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(1 << 20));
        let mut readers = Vec::new();
        for id in 1..4u64 {
            let path = format!("{id}.sst");
            let path = Path::new(&path);
            let options = SstOptions { filter_partition_bytes: 64, ..SstOptions::default() };
            let file = files.create(path).unwrap();
            let mut writer = SstWriter::new(file, path, id, options, 0);
            for i in (0..300).filter(|i| i % 4 == id) {
                let mut key = Vec::new();
                let row = format!("row-{i:03}");
                encode_key(row.as_bytes(), FamilyId(1), Some(b"q"), 5, 9, Kind::Value, &mut key);
                writer.add(KeyView::parse(&key).unwrap(), b"v").unwrap();
            }
            writer.finish().unwrap();
            readers.push(SstReader::open(&files, path, id, Arc::clone(&cache)).unwrap());
        }
        let compared = FilterComparison::new(readers).unwrap();
        let columns = [(FamilyId(1), b"p".to_vec()), (FamilyId(1), b"q".to_vec())];
        let mut found = 0;
        for i in 0..300 {
            let row = format!("row-{i:03}");
            let by_directory = compared.by_directory(row.as_bytes(), &columns).unwrap();
            assert_eq!(by_directory, compared.by_hash(row.as_bytes(), &columns).unwrap());
            assert!(by_directory >= usize::from(i % 4 != 0));
            found += by_directory;
        }
        assert!(found < 260, "{found}: the filters rule out most");
        assert_eq!(cache.stats().filter.misses, 0);
    }
}

//! Checking a whole SST: every byte under a checksum, every record in its place, every figure true.

use super::PAGE_BYTES;
use super::block::BlockKind;
use super::coarse::CoarseFilter;
use super::data::{DataBlock, Fresh, Record};
use super::filter::{Ask, FilterBlock, FilterEntries, Under};
use super::footer::Handle;
use super::index::{BlockStats, IndexBlock};
use super::key::Change;
use super::properties::{FilterFigures, PropertiesBuilder};
use super::reader::SstReader;
use crate::cell::{KeyView, encode_suffix};
use crate::codec::Parsed;
use crate::error::Result;

impl SstReader {
    /// Reads the whole file past the cache, blocking, and checks everything that can be checked: checksums,
    /// that blocks lie one after the other from the first byte to the footer, key order within and between
    /// blocks, separators, the figures of the index, the properties, and that the filter knows every record.
    /// `progress` is called with the bytes read by each step.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        // The file may be open without them. Where they are damaged, the data comes first.
        let (coarse, damage) = match self.read_coarse() {
            Ok(coarse) => (coarse, None),
            Err(error) => (None, Some(error)),
        };
        let damage = self.filters_lost().cloned().or(damage);
        let mut check = Check {
            reader: self,
            coarse,
            progress,
            next_offset: 0,
            last_key: Vec::new(),
            last_row_len: 0,
            last_separator: Vec::new(),
            properties: PropertiesBuilder::new(self.properties().created_micros),
            data_blocks: 0,
            entries: FilterEntries::default(),
            filter: None,
            padding_bytes: 0,
            index_bytes: 0,
            figures: FilterFigures::default(),
        };
        check.data()?;
        damage.map_or(Ok(()), Err)?;
        check.rest()
    }
}

struct Check<'a> {
    reader: &'a SstReader,
    coarse: Option<CoarseFilter>,
    progress: &'a mut dyn FnMut(u64),
    /// Where the next block must begin.
    next_offset: u64,
    last_key: Vec<u8>,
    last_row_len: usize,
    last_separator: Vec<u8>,
    properties: PropertiesBuilder,
    data_blocks: u64,
    entries: FilterEntries,
    /// The filter partition that was used last, by its place in the filter index.
    filter: Option<(usize, FilterBlock)>,
    padding_bytes: u64,
    index_bytes: u64,
    figures: FilterFigures,
}

impl Check<'_> {
    fn wrong<T>(&self, offset: u64, what: &str) -> Result<T> {
        Err(self.reader.damaged(offset, what))
    }

    fn at<T>(&self, handle: Handle, parsed: Parsed<T>) -> Result<T> {
        parsed.map_err(|m| self.reader.damaged(handle.offset, m.what))
    }

    /// A block must begin where the one before it ended, or at the next page with zeros before it. The zeros
    /// are under no checksum: what they are is known without one.
    fn adjoins(&mut self, handle: Handle) -> Result<()> {
        let before = Handle { offset: self.next_offset, len: 0 };
        if handle.offset != before.offset {
            let at_page = handle.offset.is_multiple_of(PAGE_BYTES as u64);
            if !at_page || !handle.follows(before) {
                return self.wrong(handle.offset, "a block does not adjoin the one before it");
            }
            let padding = handle.offset - before.offset;
            let zeros = self.reader.file().read_at(before.offset, padding as usize)?;
            if zeros.len() as u64 != padding || zeros.iter().any(|b| *b != 0) {
                return self.wrong(before.offset, "the padding between two blocks is not zero");
            }
            self.padding_bytes += padding;
            (self.progress)(padding);
        }
        self.next_offset = handle.end();
        (self.progress)(u64::from(handle.len));
        Ok(())
    }

    /// The partitions and the data blocks.
    fn data(&mut self) -> Result<()> {
        for top_at in 0..self.reader.top().len() {
            let top = self.reader.at_top(self.reader.top_entry(top_at))?;
            let block = self.reader.read_block(top.handle, BlockKind::Index)?;
            let index = self.at(top.handle, block.index())?;
            let mut stats = BlockStats::NONE;
            for at in 0..index.len() {
                let entry = self.at(top.handle, self.reader.data_entry(index, at))?;
                let found = self.data_block(entry.handle)?;
                if !entry.stats.describes(&found) {
                    return self
                        .wrong(entry.handle.offset, "a block's figures in the index are wrong");
                }
                stats.merge(&found);
                self.separator(top.handle, index, at)?;
            }
            let last = index.len().checked_sub(1);
            let separator = match last {
                Some(last) => self.at(top.handle, index.separator(last))?,
                None => return self.wrong(top.handle.offset, "an index partition without entries"),
            };
            if self.reader.at_top(self.reader.top().separator(top_at))? != separator
                || !top.stats.describes(&stats)
                || self.next_offset != top.data_end
            {
                return self
                    .wrong(top.handle.offset, "the top-level index disagrees with a partition");
            }
        }
        Ok(())
    }

    /// The separator of the block that was just read: greater than its last key. That it is less than the
    /// next block's first key is seen there.
    fn separator(&mut self, handle: Handle, index: &IndexBlock, at: usize) -> Result<()> {
        self.last_separator = self.at(handle, index.separator(at))?;
        if self.last_separator <= self.last_key {
            return self
                .wrong(handle.offset, "a separator is not greater than its block's last key");
        }
        Ok(())
    }

    fn data_block(&mut self, handle: Handle) -> Result<BlockStats> {
        self.adjoins(handle)?;
        let block = self.reader.read_block(handle, BlockKind::Data)?;
        let data = self.at(handle, block.data())?;
        let mut stats = BlockStats::NONE;
        let mut next = Some(self.at(handle, data.first())?);
        while let Some(record) = next {
            self.record(handle, data, &record, &mut stats)?;
            next = self.at(handle, data.after(&record))?;
        }
        if stats.records != u64::from(data.records()) {
            return self.wrong(handle.offset, "a block has not as many records as it says");
        }
        self.data_blocks += 1;
        Ok(stats)
    }

    fn record(
        &mut self,
        handle: Handle,
        data: &DataBlock,
        record: &Record,
        stats: &mut BlockStats,
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(self.last_key.len() + 32);
        data.push_row(record, &mut bytes);
        self.at(handle, data.push_column(record, &mut bytes))?;
        encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut bytes);
        let key =
            KeyView::parse(&bytes).map_err(|e| self.reader.damaged(handle.offset, e.message()))?;
        if !self.last_key.is_empty() && bytes <= self.last_key {
            return self.wrong(handle.offset, "keys do not ascend");
        }
        if stats.records == 0 {
            // Else a search for the key would end in the block before.
            let led_here = self.last_separator.is_empty() || bytes > self.last_separator;
            if !led_here {
                return self
                    .wrong(handle.offset, "a separator is not less than the key that follows");
            }
        }
        let change = Change::between(&self.last_key, self.last_row_len, key);
        if change.row && record.fresh != Fresh::Row {
            return self.wrong(handle.offset, "a row begins where none should");
        }
        self.filter(change, key)?;
        self.properties.add(change, key, data.value(record));
        stats.add(key);
        self.last_row_len = key.row_len();
        self.last_key = bytes;
        Ok(())
    }

    /// The filter must answer "perhaps" to every question that the record answers.
    fn filter(&mut self, change: Change, key: KeyView<'_>) -> Result<()> {
        let Some(filters) = self.reader.filters() else { return Ok(()) };
        let mut entries = std::mem::take(&mut self.entries);
        let mut result = Ok(());
        entries.of(change, key, |under, ask| {
            if result.is_ok() {
                result = self.filter_entry(filters, under, key, ask);
            }
        });
        self.entries = entries;
        result
    }

    fn filter_entry(
        &mut self,
        filters: &IndexBlock,
        under: Under,
        key: KeyView<'_>,
        ask: Ask,
    ) -> Result<()> {
        if let (Ask::Row(entry), Some(coarse)) = (ask, &self.coarse)
            && !coarse.may_contain(entry)
        {
            let offset = self.reader.properties().filter.coarse_offset;
            return self.wrong(offset, "the coarse filter does not know a row that is there");
        }
        let prefix_len = match under {
            Under::Row => key.row_len(),
            Under::Family => key.row_len() + 4,
            Under::Column => key.column_prefix().len(),
        };
        let prefix = key.bytes().get(..prefix_len).unwrap_or_default();
        let at = self.reader.at_filters(filters.find(prefix, false))?;
        if self.filter.as_ref().is_none_or(|(loaded, _)| *loaded != at) {
            let end = self.reader.blocks_end();
            let handle = self.reader.at_filters(filters.entry(at, end))?.handle;
            let block = self.reader.read_block(handle, BlockKind::Filter)?;
            self.filter = Some((at, self.at(handle, block.filter())?.clone()));
        }
        match &self.filter {
            Some((_, filter)) if filter.may_contain(&ask) => Ok(()),
            _ => {
                let offset = self.reader.footer().filter_index.unwrap_or_default().offset;
                self.wrong(offset, "the filter does not know a record that is there")
            }
        }
    }

    /// Everything after the data blocks, in file order, and the totals.
    fn rest(mut self) -> Result<()> {
        let reader = self.reader;
        let footer = *reader.footer();
        for at in 0..reader.top().len() {
            let handle = reader.at_top(reader.top_entry(at))?.handle;
            self.adjoins(handle)?;
            self.index_bytes += u64::from(handle.len);
        }
        if let Some(filters) = reader.filters() {
            for at in 0..filters.len() {
                let handle = reader.at_filters(filters.entry(at, reader.blocks_end()))?.handle;
                self.adjoins(handle)?;
                let block = reader.read_block(handle, BlockKind::Filter)?;
                let filter = self.at(handle, block.filter())?;
                self.figures.partitions += 1;
                self.figures.common_partitions += u64::from(filter.has_common_columns());
                self.figures.kinds |= 1 << filter.kind();
                self.figures.bytes += u64::from(handle.len);
            }
        }
        if let Some(handle) = reader.coarse_handle()? {
            self.adjoins(handle)?;
            self.figures.coarse_offset = handle.offset;
            self.figures.coarse_bytes = u64::from(handle.len);
            self.figures.bytes += self.figures.coarse_bytes;
        }
        // These were verified when the file was opened.
        let resident = [
            footer.dictionary,
            Some(footer.top_index),
            footer.filter_index,
            Some(footer.properties),
        ];
        for handle in resident.into_iter().flatten() {
            self.adjoins(handle)?;
        }
        if self.next_offset != reader.blocks_end() {
            return self
                .wrong(self.next_offset, "there is something between the blocks and the footer");
        }
        let last_row = match KeyView::from_parts(&self.last_key, self.last_row_len) {
            Ok(key) => key.row(),
            Err(_) => Vec::new(),
        };
        let mut counted = self.properties.finish(last_row, self.data_blocks);
        counted.padding_bytes = self.padding_bytes;
        counted.index_bytes = self.index_bytes + u64::from(footer.top_index.len);
        counted.filter = self.figures;
        counted.filter.bytes += footer.filter_index.map_or(0, |h| u64::from(h.len));
        // How many entries went into a partition cannot be told from it.
        counted.filter.entries = reader.properties().filter.entries;
        if reader.properties().deletion_seq_min == 0 {
            // It is from before that was told.
            counted.deletion_seq_min = 0;
        }
        if counted != *reader.properties() {
            return Err(reader.damaged(footer.properties.offset, "the properties are wrong"));
        }
        Ok(())
    }
}

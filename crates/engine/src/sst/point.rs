//! Looking up one row in one SST: filter, index partition, data block, record.
//!
//! A lookup is a stage that only moves forward. A step goes as far as memory allows; where a block is
//! missing it says which, and the caller, who loads the blocks that all SSTs of the read wait for at once,
//! steps again with them in hand:
//!
//! ```text
//! Filter ── no ──► Absent
//!   │ perhaps        ▲
//!   ▼                │ not in the block
//! Index ──► Data ────┴──► Found (the row's first record)
//!                    └──► Wide  (the row begins or goes on in a later block: a cursor reads it)
//! ```
//!
//! Where the cache has room for all data blocks there are, one that is missing is read with its neighbours: they will be asked for
//! too, and to read 32 KiB takes little longer than 4. So small data is in memory again soon after a start, or after a
//! compaction wrote it anew.

use std::sync::Arc;

use bytes::Bytes;

use super::block::{Block, BlockRequest, Fill};
use super::checks::{ask_filter, may_have_all_columns};
use super::data::Record;
use super::footer::Handle;
use super::index::IndexBlock;
use super::probe::RowProbe;
use super::reader::SstReader;
use super::rows::RowInBlock;
use crate::cache::{PartitionId, Resident};
use crate::cell::{Kind, Seq};
use crate::codec::{Malformed, Parsed};
use crate::error::Result;

/// Bytes of the file that are read around a missing block where all blocks fit into memory: the stretch between two multiples of it
/// that the block begins in. More takes a device longer than it saves, since the read that waits needs but one.
const AROUND_BYTES: u64 = 32 << 10;

/// How far a lookup is.
#[derive(Debug)]
pub(crate) enum PointStage {
    /// The filter is to be asked.
    Filter,
    /// The filter cannot rule the row out.
    Index,
    /// The block that holds the row, if the SST does, is known.
    Data(PointBlock),
    /// Nothing of what is wanted is here.
    Absent,
    /// The whole row is in one block.
    Found(PointRow),
    /// The row spans blocks.
    Wide,
}

/// The block where a row begins, if it is in the SST.
#[derive(Debug)]
pub(crate) struct PointBlock {
    handle: Handle,
    /// Where it is in memory.
    block: Option<Arc<Block>>,
    /// The row may go on in the next block.
    goes_on: bool,
}

/// A row within one data block.
#[derive(Debug)]
pub(crate) struct PointRow {
    offset: u64,
    block: Arc<Block>,
    memory: Bytes,
    first: Record,
}

/// Blocks that a read has loaded.
pub(crate) type Loaded = [(BlockRequest, Arc<Block>)];

/// Adds what came of the requests of a step, with those that are only beside what is needed left to the cache: where such a one cannot
/// be read, that fails whoever comes there.
pub(crate) fn add_loaded(
    loaded: &mut Vec<(BlockRequest, Arc<Block>)>,
    requests: impl IntoIterator<Item = BlockRequest>,
    blocks: Vec<Result<Arc<Block>>>,
) -> Result<()> {
    for (request, block) in requests.into_iter().zip(blocks) {
        if !request.is_ahead() {
            loaded.push((request, block?));
        }
    }
    Ok(())
}

impl PointRow {
    /// The sequence of a tombstone of the row that a snapshot at `seq` sees, where the row begins with one.
    pub(crate) fn tombstone(&self, seq: Seq) -> Option<Seq> {
        (self.first.kind == Kind::RowTombstone && self.first.seq <= seq).then_some(self.first.seq)
    }

    /// The row, to be walked over; `reader` is the file that it was found in.
    pub(crate) fn row<'a>(&'a self, reader: &'a SstReader) -> Result<RowInBlock<'a>> {
        RowInBlock::new(reader, self.offset, &self.block, &self.memory, &self.first)
    }
}

impl PointStage {
    /// Goes on as far as memory and `loaded` allow, and adds the blocks that are missing to `want`; none
    /// are where the lookup is over.
    pub(crate) fn step(
        &mut self,
        reader: &Arc<SstReader>,
        probe: &RowProbe<'_>,
        loaded: &Loaded,
        want: &mut Vec<BlockRequest>,
    ) -> Result<()> {
        let missing = want.len();
        while want.len() == missing {
            *self = match self {
                Self::Filter => match reader.filter_says(probe, loaded, want)? {
                    None => return Ok(()),
                    Some(true) => Self::Index,
                    Some(false) => Self::Absent,
                },
                Self::Index => match reader.locate(probe, loaded, want)? {
                    None => return Ok(()),
                    Some(next) => next,
                },
                // Where in the row a cursor begins, it knows itself.
                Self::Data(PointBlock { goes_on: true, .. }) => Self::Wide,
                Self::Data(PointBlock { handle, block, .. }) => {
                    let held = block.take();
                    let held = held.or_else(|| reader.among(loaded, *handle).map(Arc::clone));
                    let Some(block) = held else {
                        want.push(reader.request_data(*handle, Fill::Keep));
                        return Ok(());
                    };
                    let find = || block.data()?.find_row(&probe.row_prefix);
                    if let Some(first) =
                        find().map_err(|m| reader.damaged(handle.offset, m.what))?
                    {
                        let memory = block.lease();
                        Self::Found(PointRow { offset: handle.offset, block, memory, first })
                    } else {
                        if reader.filters().is_some() {
                            reader.metrics().filter_false_positives.increment();
                        }
                        Self::Absent
                    }
                }
                Self::Absent | Self::Found(_) | Self::Wide => return Ok(()),
            };
        }
        Ok(())
    }
}

impl SstReader {
    /// The block at a handle, if the read has loaded it: what is loaded need not stay in memory.
    fn among<'l>(&self, loaded: &'l Loaded, handle: Handle) -> Option<&'l Arc<Block>> {
        let mut blocks = loaded.iter();
        blocks.find(|(request, _)| request.is_at(self.id(), handle.offset)).map(|(_, block)| block)
    }

    /// What the filter says of the probe; `None` where partitions are missing, which are then wanted.
    fn filter_says(
        self: &Arc<Self>,
        probe: &RowProbe<'_>,
        loaded: &Loaded,
        want: &mut Vec<BlockRequest>,
    ) -> Result<Option<bool>> {
        let Some(filters) = self.filters() else {
            self.metrics().point_lookups.increment();
            return Ok(Some(true));
        };
        if self.coarse().is_some_and(|coarse| !coarse.may_contain(probe.row_entry)) {
            self.metrics().filter_coarse_negatives.increment();
            return Ok(Some(self.filter_said(false)));
        }
        let find = |at| self.filter_partition(filters, loaded, at, probe);
        let perhaps = match self.at_filters(ask_filter(self, filters, probe, find))? {
            Ok(perhaps) => perhaps,
            Err(missing) => {
                for at in missing {
                    let handle = self.at_filters(filters.handle(at, self.blocks_end()))?;
                    let id = PartitionId::Filter(at);
                    want.push(self.request_partition(id, handle, Fill::Keep));
                }
                return Ok(None);
            }
        };
        Ok(Some(self.filter_said(perhaps)))
    }

    /// Counts an answer of the filter.
    fn filter_said(&self, perhaps: bool) -> bool {
        self.metrics().point_lookups.increment();
        self.metrics().filter_probes.increment();
        if !perhaps {
            self.metrics().filter_negatives.increment();
        }
        perhaps
    }

    /// Whether each column that the probe names may be here, by the filter partitions that the read has loaded or
    /// that are in memory.
    pub(crate) fn may_have_all_columns(&self, probe: &RowProbe<'_>, loaded: &Loaded) -> bool {
        // A damaged filter is told of where it is asked for the read itself.
        self.filters().is_some_and(|filters| {
            let find = |at| self.filter_partition(filters, loaded, at, probe);
            may_have_all_columns(filters, probe, find).unwrap_or(false)
        })
    }

    /// A filter partition: among those that the read has loaded, or in memory.
    fn filter_partition(
        &self,
        filters: &IndexBlock,
        loaded: &Loaded,
        at: usize,
        probe: &RowProbe<'_>,
    ) -> Option<Resident> {
        let held = match loaded {
            [] => None,
            _ => self.among(loaded, filters.handle(at, self.blocks_end()).ok()?),
        };
        held.map(|block| Resident::from(Arc::clone(block)))
            .or_else(|| self.filter_slot(at, probe.row_entry))
    }

    /// The stage after the filter; `None` where the index partition is missing.
    fn locate(
        self: &Arc<Self>,
        probe: &RowProbe<'_>,
        loaded: &Loaded,
        want: &mut Vec<BlockRequest>,
    ) -> Result<Option<PointStage>> {
        let target = probe.row_prefix.as_slice();
        let top_at = self.at_top(self.top().find(target, false))?;
        if top_at >= self.top().len() {
            return Ok(Some(PointStage::Absent));
        }
        // Its handle lies in lines of their own, and is seldom needed.
        let handle = || self.top().handle(top_at, self.blocks_end());
        let held = match loaded {
            [] => None,
            _ => self.among(loaded, self.at_top(handle())?),
        };
        let held = held.map(|block| Resident::from(Arc::clone(block)));
        let Some(block) = held.or_else(|| self.index_slot(top_at)) else {
            let id = PartitionId::Index(top_at);
            want.push(self.request_partition(id, self.at_top(handle())?, Fill::Keep));
            return Ok(None);
        };
        let mut place = || {
            let index = block.index()?;
            let at = index.find(target, false)?;
            if at >= index.len() {
                return Ok(None);
            }
            let in_slot = block.in_slot(at);
            let handle = index.handle(at, self.blocks_end())?;
            let data = self.data_block(&block, at, handle, in_slot);
            // The separator lies behind all keys of the block: more of the row may follow where it is the row's,
            // unless nothing follows at all.
            let is_last = top_at + 1 == self.top().len() && at + 1 == index.len();
            let goes_on = !is_last && index.begins_with(at, target)?;
            if data.is_none() && self.cache().has_room_for_all() {
                self.ask_around(index, at, handle, want)?;
            }
            Ok(Some(PointBlock { handle, block: data, goes_on }))
        };
        let damaged = |m: Malformed| {
            let offset = handle().map_or(0, |partition| partition.offset);
            self.damaged(offset, m.what)
        };
        let found = place().map_err(damaged)?;
        Ok(Some(match found {
            // Between the last key of a partition and its separator.
            None => PointStage::Wide,
            Some(block) => PointStage::Data(block),
        }))
    }

    /// Asks for the block at entry `at` of an index partition and for those around it that are missing too, as far as they are one
    /// read.
    fn ask_around(
        self: &Arc<Self>,
        index: &IndexBlock,
        at: usize,
        handle: Handle,
        want: &mut Vec<BlockRequest>,
    ) -> Parsed<()> {
        want.push(self.request_data(handle, Fill::Keep));
        let stretch = handle.offset / AROUND_BYTES;
        for places in
            [&mut (0..at).rev() as &mut dyn Iterator<Item = usize>, &mut (at + 1..index.len())]
        {
            for place in places {
                let handle = index.handle(place, self.blocks_end())?;
                let is_near = handle.offset / AROUND_BYTES == stretch;
                if !is_near || self.peek(None, handle).is_some() {
                    break;
                }
                want.push(self.request_data(handle, Fill::Keep).ahead());
            }
        }
        Ok(())
    }
}

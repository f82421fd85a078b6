//! Blocks in memory, requests for blocks, and loading what was requested.
//!
//! Loading is where a cursor's wish becomes a read: the same block is read once however many ask for it in
//! one call, what the page cache has is taken at once, blocks that lie one after the other are read
//! together, and everything else goes to the I/O engine as one batch.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::data::DataBlock;
use super::filter::FilterBlock;
use super::footer::Handle;
use super::index::{IndexBlock, Level};
use super::reader::SstReader;
use crate::codec::{Malformed, Parsed};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoEngine, ReadRequest};

/// Bytes of neighbouring blocks that are read together at most: beyond 1 MiB a device gains nothing, and
/// the buffer lives until the last of its blocks is copied out.
const RUN_BYTES_MAX: usize = 1 << 20;

/// Bytes that a cached block costs besides its own: the allocation, its fields and the cache's entry.
const BLOCK_OVERHEAD_BYTES: u64 = 192;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Data,
    Index,
    Filter,
}

/// A parsed block. It keeps one buffer alive; the values and qualifiers handed out are slices of it.
#[derive(Debug)]
pub struct Block {
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Data(DataBlock),
    Index(IndexBlock),
    Filter(FilterBlock),
}

impl Block {
    /// Parses the bytes of a block of this kind.
    pub(super) fn parse(kind: BlockKind, bytes: Bytes) -> Parsed<Self> {
        let content = match kind {
            BlockKind::Data => Content::Data(DataBlock::parse(bytes)?),
            BlockKind::Index => Content::Index(IndexBlock::parse(bytes, Level::Partition)?),
            BlockKind::Filter => Content::Filter(FilterBlock::parse(bytes)?),
        };
        Ok(Self { content })
    }

    /// Bytes of memory that the block is charged with.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = match &self.content {
            Content::Data(block) => block.bytes(),
            Content::Index(block) => block.bytes(),
            Content::Filter(block) => block.bytes(),
        };
        bytes as u64 + BLOCK_OVERHEAD_BYTES
    }

    pub(super) fn data(&self) -> Parsed<&DataBlock> {
        match &self.content {
            Content::Data(block) => Ok(block),
            _ => Err(Malformed::whole("not a data block")),
        }
    }

    pub(super) fn index(&self) -> Parsed<&IndexBlock> {
        match &self.content {
            Content::Index(block) => Ok(block),
            _ => Err(Malformed::whole("not an index partition")),
        }
    }

    pub(super) fn filter(&self) -> Parsed<&FilterBlock> {
        match &self.content {
            Content::Filter(block) => Ok(block),
            _ => Err(Malformed::whole("not a filter partition")),
        }
    }
}

/// A block that a cursor waits for. Equal to every other request for the same place in the same file.
#[derive(Clone)]
pub struct BlockRequest {
    pub(super) reader: Arc<SstReader>,
    pub(super) handle: Handle,
    pub(super) kind: BlockKind,
    pub(super) fill_cache: bool,
}

impl PartialEq for BlockRequest {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for BlockRequest {}

impl fmt::Debug for BlockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockRequest")
            .field("file", &self.reader.id())
            .field("handle", &self.handle)
            .field("kind", &self.kind)
            .finish()
    }
}

impl BlockRequest {
    /// File and offset.
    fn place(&self) -> (u64, u64) {
        (self.reader.id(), self.handle.offset)
    }

    /// Bytes that the block has on disk.
    pub fn len(&self) -> u64 {
        u64::from(self.handle.len)
    }

    /// Never: every block has a trailer.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Reads, verifies and parses the block, and puts it into the cache if the cursor was to fill it.
    pub fn load_blocking(&self) -> Result<Arc<Block>> {
        if let Some(block) = self.cached() {
            return Ok(block);
        }
        let bytes = self.reader.file().read_at(self.handle.offset, self.handle.len as usize)?;
        self.decode(&bytes, false)
    }

    fn cached(&self) -> Option<Arc<Block>> {
        self.reader.cached(self.handle, self.fill_cache)
    }

    /// `shared`: the bytes are part of a larger buffer.
    fn decode(&self, bytes: &Bytes, shared: bool) -> Result<Arc<Block>> {
        let block = Arc::new(self.reader.decode_block(self.handle, self.kind, bytes, shared)?);
        if self.fill_cache {
            self.reader.fill(self.handle, &block);
        }
        Ok(block)
    }
}

/// Neighbouring blocks of one file, read together. The numbers are places in the list of distinct requests.
struct Run {
    members: Vec<usize>,
    offset: u64,
    len: usize,
}

/// The distinct requests of a call, what is known of each, and where each original request finds its own.
struct Plan {
    requests: Vec<BlockRequest>,
    results: Vec<Option<Result<Arc<Block>>>>,
    place_of: Vec<usize>,
    runs: Vec<Run>,
}

impl Plan {
    /// Drops repetitions, takes what is cached, and joins neighbours.
    fn new(all: Vec<BlockRequest>) -> Self {
        // In file order, so that repetitions and neighbours are next to each other.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|i| all.get(*i).map(BlockRequest::place));
        let mut plan = Self {
            requests: Vec::with_capacity(all.len()),
            results: Vec::with_capacity(all.len()),
            place_of: vec![0; all.len()],
            runs: Vec::new(),
        };
        for original in order {
            let Some(request) = all.get(original) else { continue };
            if plan.requests.last() != Some(request) {
                plan.add(request.clone());
            }
            if let Some(place) = plan.place_of.get_mut(original) {
                *place = plan.requests.len() - 1;
            }
        }
        plan
    }

    fn add(&mut self, request: BlockRequest) {
        let place = self.requests.len();
        let cached = request.cached();
        let (offset, len) = (request.handle.offset, request.handle.len as usize);
        if cached.is_none() {
            let joins = self.runs.last_mut().filter(|run| {
                let follows =
                    run.members.last().and_then(|m| self.requests.get(*m)).is_some_and(|r| {
                        r.reader.id() == request.reader.id() && request.handle.follows(r.handle)
                    });
                follows && request.handle.end() - run.offset <= RUN_BYTES_MAX as u64
            });
            match joins {
                Some(run) => {
                    run.members.push(place);
                    run.len = (request.handle.end() - run.offset) as usize;
                }
                None => self.runs.push(Run { members: vec![place], offset, len }),
            }
        }
        self.requests.push(request);
        self.results.push(cached.map(Ok));
    }

    fn file_of(&self, run: &Run) -> Option<&BlockRequest> {
        run.members.first().and_then(|m| self.requests.get(*m))
    }

    /// The reads that are still to be done, after those that need no waiting.
    fn take_ready(&mut self) -> (Vec<Run>, Vec<ReadRequest>) {
        let (mut waiting, mut reads) = (Vec::new(), Vec::new());
        for run in std::mem::take(&mut self.runs) {
            let Some(request) = self.file_of(&run) else { continue };
            let file = Arc::clone(request.reader.file());
            match file.try_read_at(run.offset, run.len) {
                Some(read) => self.complete(&run, read),
                None => {
                    reads.push(ReadRequest { file, offset: run.offset, len: run.len });
                    waiting.push(run);
                }
            }
        }
        (waiting, reads)
    }

    /// Gives the blocks of a run what was read for them.
    fn complete(&mut self, run: &Run, read: Result<Bytes>) {
        let shared = run.members.len() > 1;
        for member in &run.members {
            let Some(request) = self.requests.get(*member) else { continue };
            let result = read.clone().and_then(|bytes| {
                let start = (request.handle.offset - run.offset) as usize;
                let end = start + request.handle.len as usize;
                if end > bytes.len() {
                    return Err(request.reader.damaged(run.offset, "a read came back short"));
                }
                request.decode(&bytes.slice(start..end), shared)
            });
            if let Some(slot) = self.results.get_mut(*member) {
                *slot = Some(result);
            }
        }
    }

    /// The results, in the order of the original requests.
    fn finish(self) -> Vec<Result<Arc<Block>>> {
        let missing = || Err(Error::new(ErrorKind::Io, "a read was not answered"));
        self.place_of
            .iter()
            .map(|place| self.results.get(*place).cloned().flatten().unwrap_or_else(missing))
            .collect()
    }
}

/// Loads blocks: verified, parsed, and put into the cache where the cursor was to fill it. The results are
/// in the order of the requests. What can be had without waiting is read during the call; the future waits
/// for one batch of reads for the rest.
pub fn load_blocks(
    io: &dyn IoEngine,
    requests: Vec<BlockRequest>,
) -> impl Future<Output = Vec<Result<Arc<Block>>>> + Send + use<> {
    let mut plan = Plan::new(requests);
    let (waiting, reads) = plan.take_ready();
    let batch = (!reads.is_empty()).then(|| io.read_batch(reads));
    async move {
        if let Some(batch) = batch {
            for (run, read) in waiting.iter().zip(batch.await) {
                plan.complete(run, read);
            }
        }
        plan.finish()
    }
}

/// The same on the caller's thread.
pub fn load_blocks_blocking(requests: Vec<BlockRequest>) -> Vec<Result<Arc<Block>>> {
    let mut plan = Plan::new(requests);
    for run in std::mem::take(&mut plan.runs) {
        let Some(request) = plan.file_of(&run) else { continue };
        let read = request.reader.file().read_at(run.offset, run.len);
        plan.complete(&run, read);
    }
    plan.finish()
}

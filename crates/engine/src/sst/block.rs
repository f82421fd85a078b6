//! Blocks in memory, requests for blocks, and loading what was requested.
//!
//! Loading is where a cursor's wish becomes a read: the same block is read once however many ask for it in
//! one call, or in others that are under way; what the page cache has is taken at once, blocks that lie one
//! after the other are read together, and everything else goes to the I/O engine as one batch.
//!
//! ```text
//! requests ─► distinct ─► in memory? ─► in the page cache? ─► being loaded? ─► lead: one batch of reads
//!                             │               │                  │ join             │
//!                             ▼               ▼                  ▼                  ▼
//!                          result          result             its result     result, for all who joined
//! ```
//!
//! Where a read of several neighbours fails, that says nothing of any one of them: the fault may lie in a block that was
//! read ahead and is never needed. Each is read by itself then, once for all who wait for it, and only the block that the device
//! cannot give is an error. The same where another call was joined whose
//! runtime ended before it had read.
//!
//! A damaged filter partition is no reason to fail a read: it holds no data. It is loaded as one that says
//! "perhaps" to everything, which is not kept, and the damage is logged once for each open file.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};

use super::FileId;
use super::data::DataBlock;
use super::filter::FilterBlock;
use super::footer::Handle;
use super::index::{IndexBlock, Level};
use super::reader::SstReader;
use crate::cache::{
    ARC_BYTES, Awaiting, DataSlots, Leader, Load, Loaded, PartitionId, Residence, TABLE_BYTES,
};
use crate::codec::{Malformed, Parsed};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoEngine, OWNED_BYTES, RandomFile, ReadRequest};
use crate::touch::{fetch, fetch_value};

/// Bytes of neighbouring blocks that are read together at most: beyond 1 MiB a device gains nothing, and
/// the buffer lives until the last of its blocks is copied out.
const RUN_BYTES_MAX: usize = 1 << 20;

/// The part of a block by which the buffer that it was read into may be larger, and stay with it in the cache. A copy costs
/// less than a microsecond, so what is not charged is better kept small; none at all would copy every block of one page.
const BUFFER_EXCESS_DIVISOR: u64 = 8;

/// Loads of others that are joined for a block, one after the other, where those before gave nothing. Each is a read that somebody else
/// made and lost; fewer have all who wait read the block at once, on a device that fails.
const JOINS_MAX: usize = 4;

/// Bytes that a cached block costs besides its own: its fields, what keeps the buffer that it was read into, and what the
/// cache's table takes for it. A partition is in no table; its place in the pool's ring takes somewhat less.
pub(super) const BLOCK_OVERHEAD_BYTES: u64 =
    (ARC_BYTES + size_of::<Block>() + OWNED_BYTES + TABLE_BYTES) as u64;

/// The fields of a block, with the counts of its references, are to fit into the allocator's class of 256 bytes: the next
/// has 320, and there is a block for every page of the cache.
const _: () = assert!(ARC_BYTES + size_of::<Block>() <= 256);

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Rows.
    Data,
    /// A partition of the index.
    Index,
    /// A partition of the filter.
    Filter,
    /// A value of a value file. Never asked for by a request; it is in the cache beside data blocks.
    Value,
}

/// Where a block goes that was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// Nowhere: a compaction read it.
    Nothing,
    /// Among the data blocks, index partitions too: a scan read it, and may have been the last for long.
    Probation,
    /// A partition into its SST's directory, a data block among its like: a point read needed it.
    Keep,
}

/// A parsed block. It keeps one buffer alive; the values and qualifiers handed out are slices of it.
#[derive(Debug)]
pub struct Block {
    pub(super) content: Content,
    residence: Residence,
}

#[derive(Debug)]
pub(super) enum Content {
    Data(DataBlock),
    Index(IndexBlock, Arc<DataSlots>),
    Filter(FilterBlock),
    Value(Bytes),
}

impl Block {
    /// Parses the bytes of a block of this kind.
    pub(super) fn parse(kind: BlockKind, bytes: Bytes) -> Parsed<Self> {
        let content = match kind {
            BlockKind::Data => Content::Data(DataBlock::parse(bytes)?),
            BlockKind::Index => {
                let index = IndexBlock::parse(bytes, Level::Partition)?;
                let slots = DataSlots::new(index.len());
                Content::Index(index, slots)
            }
            BlockKind::Filter => Content::Filter(FilterBlock::parse(bytes)?),
            BlockKind::Value => Content::Value(bytes),
        };
        Ok(Self::of(content))
    }

    fn of(content: Content) -> Self {
        Self { content, residence: Residence::default() }
    }

    /// A filter partition that cannot tell anything.
    fn unknowing_filter() -> Self {
        Self::of(Content::Filter(FilterBlock::perhaps()))
    }

    /// The memory of a data block under a count of references of its own. What is cut from it counts there, in
    /// a line that this thread has at hand, and not in the block's, which comes from memory and is
    /// every other reader's too.
    pub(super) fn lease(self: &Arc<Self>) -> Bytes {
        Bytes::from_owner(Lease(Arc::clone(self)))
    }

    /// A value of a value file, which has its memory to itself.
    pub(crate) fn of_value(value: Bytes) -> Self {
        Self::of(Content::Value(value))
    }

    /// The value, where it is one.
    pub(crate) fn value(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Value(value) => Some(value),
            _ => None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> BlockKind {
        match &self.content {
            Content::Data(_) => BlockKind::Data,
            Content::Index(..) => BlockKind::Index,
            Content::Filter(_) => BlockKind::Filter,
            Content::Value(_) => BlockKind::Value,
        }
    }

    /// Bytes of memory that the block is charged with.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = match &self.content {
            Content::Data(block) => block.bytes(),
            Content::Index(block, slots) => block.bytes() + slots.bytes(),
            Content::Filter(block) => block.bytes(),
            Content::Value(value) => value.len(),
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
            Content::Index(block, _) => Ok(block),
            _ => Err(Malformed::whole("not an index partition")),
        }
    }

    /// The slots of the data blocks that an index partition names.
    pub(super) fn data_slots(&self) -> Option<&Arc<DataSlots>> {
        match &self.content {
            Content::Index(_, slots) => Some(slots),
            _ => None,
        }
    }

    /// The data block that entry `at` of an index partition names, if it has it in its slot. Best asked before the entry is read:
    /// what is in the slot then comes from memory meanwhile.
    pub(super) fn in_slot(&self, at: usize) -> Option<Arc<Self>> {
        self.data_slots()?.get(at)
    }

    /// Where it stands in the cache.
    pub(crate) fn residence(&self) -> &Residence {
        &self.residence
    }

    /// Of its bytes, those that are looked at whatever is sought in it: all but the values of a data block, and of an index partition
    /// all up to the end of its heads. Of a filter each question looks at others.
    pub(crate) fn searched(&self) -> &[u8] {
        match &self.content {
            Content::Data(block) => block.searched(),
            Content::Index(block, _) => block.searched(),
            Content::Filter(_) | Content::Value(_) => &[],
        }
    }

    /// Of a filter partition, where what each question looks at lies (see [`fuse::spot`](super::fuse::spot)); 0 of others, and where that is not known.
    pub(crate) fn spot(&self) -> u64 {
        if let Content::Filter(block) = &self.content { block.spot() } else { 0 }
    }

    /// Begins to fetch these into the processor's cache.
    #[inline]
    pub(crate) fn fetch_searched(&self) {
        fetch(self.searched());
    }

    /// Begins to fetch its fields into the processor's cache.
    #[inline]
    pub(crate) fn fetch_fields(&self) {
        fetch_value(self);
    }

    pub(super) fn filter(&self) -> Parsed<&FilterBlock> {
        match &self.content {
            Content::Filter(block) => Ok(block),
            _ => Err(Malformed::whole("not a filter partition")),
        }
    }
}

/// See [`Block::lease`].
struct Lease(Arc<Block>);

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.0.data().map_or(&[], |data| data.memory())
    }
}

/// A block that a cursor waits for. Equal to every other request for the same place in the same file.
#[derive(Clone)]
pub struct BlockRequest {
    pub(super) reader: Arc<SstReader>,
    pub(super) handle: Handle,
    /// `None` for a data block.
    pub(super) partition: Option<PartitionId>,
    pub(super) fill: Fill,
    /// Asked for because it may be needed next.
    pub(super) ahead: bool,
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
            .field("partition", &self.partition)
            .finish()
    }
}

impl BlockRequest {
    /// File and offset.
    fn place(&self) -> (u64, u64) {
        (self.reader.id(), self.handle.offset)
    }

    /// Whether it asks for the block at `offset` of `file`.
    pub(super) fn is_at(&self, file: FileId, offset: u64) -> bool {
        self.place() == (file, offset)
    }

    /// Bytes that the block has on disk.
    pub fn len(&self) -> u64 {
        u64::from(self.handle.len)
    }

    /// Never: every block has a trailer.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The same for a block that is read because it lies beside one that is needed.
    pub(super) fn ahead(self) -> Self {
        Self { ahead: true, ..self }
    }

    /// Whether the read can go on without: the block lies ahead, or beside. Where it cannot be read, that is an error
    /// only once somebody comes to it and asks again.
    pub fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// What kind of block it asks for.
    pub fn kind(&self) -> BlockKind {
        self.partition.map_or(BlockKind::Data, PartitionId::kind)
    }

    /// Reads, verifies and parses the block, and puts it into the cache if the cursor was to fill it.
    pub fn load_blocking(&self) -> Result<Arc<Block>> {
        if let Some(block) = self.cached() {
            return Ok(block);
        }
        let read = self.reader.file().read_at(self.handle.offset, self.handle.len as usize);
        self.decode(read, false)
    }

    /// In memory, which the cursor has looked at and counted before it asked.
    fn cached(&self) -> Option<Arc<Block>> {
        self.reader.peek(self.partition, self.handle)
    }

    /// Joins the load that brings the block, or registers it as the one at place `at` of this leader's.
    fn board(&self, leader: &Leader, at: usize) -> Option<Awaiting> {
        if self.is_alone() {
            return None;
        }
        let load = self.reader.cache().flights().board(self.place(), leader, at)?;
        self.reader.metrics().loads_shared.increment();
        Some(load)
    }

    /// In memory after all: the last load of it may have ended between the look into memory and boarding.
    fn cached_after_boarding(&self) -> Option<Arc<Block>> {
        if self.is_alone() { None } else { self.cached() }
    }

    /// Whether it is nobody else's: a read that fills no cache.
    fn is_alone(&self) -> bool {
        self.fill == Fill::Nothing
    }

    /// Takes it out of the table of loads.
    fn leave(&self, load: *const Load) {
        if !self.is_alone() {
            self.reader.cache().flights().leave(self.place(), load);
        }
    }

    /// The read of this block alone.
    fn read(&self) -> ReadRequest {
        let Handle { offset, len, .. } = self.handle;
        ReadRequest { file: Arc::clone(self.reader.file()), offset, len: len as usize }
    }

    /// Loads it where the load that was waited for gave nothing: by itself, and once for all who lack it.
    async fn load_again(mut self, io: &dyn IoEngine) -> Result<Arc<Block>> {
        for _ in 0..JOINS_MAX {
            if let Some(block) = self.cached() {
                return Ok(block);
            }
            match lead_or_join(io, self) {
                One::Had(result) => return result,
                One::Led(load) => return load.await.unwrap_or_else(unanswered),
                One::Joined(load, request) => match of_joined(load.await) {
                    Some(result) => return result,
                    None => self = request,
                },
            }
        }
        let read = io.read_batch(vec![self.read()]).await.pop();
        read.map_or_else(unanswered, |read| self.complete(read))
    }

    /// What was read for this block alone becomes a block.
    fn complete(&self, read: Result<Bytes>) -> Result<Arc<Block>> {
        let whole = read.and_then(|bytes| {
            if bytes.len() == self.handle.len as usize {
                Ok(bytes)
            } else {
                Err(self.short(self.handle.offset))
            }
        });
        self.decode(whole, false)
    }

    /// What a read from `offset` is answered that does not bring what was asked for.
    fn short(&self, offset: u64) -> Error {
        self.reader.damaged(offset, "a read came back short")
    }

    /// Whether a read of the block alone is into memory that is only lent, or noticeably more of it than the block has bytes: a device
    /// that reads whole units of 4 KiB takes two of them for a block of 2 KiB that lies across their boundary.
    fn buffer_must_go(&self) -> bool {
        let Some(device) = self.reader.file().device() else { return false };
        let Handle { offset, len, .. } = self.handle;
        let span = device.span(offset, self.handle.end());
        device.lends(&span)
            || span.end - span.start > u64::from(len) + u64::from(len) / BUFFER_EXCESS_DIVISOR
    }

    /// What was read becomes a block, in its place in memory. `many`: with others, so that its bytes are part of a larger buffer.
    fn decode(&self, read: Result<Bytes>, many: bool) -> Result<Arc<Block>> {
        // What enters no cache goes soon, and the buffer with the last of it.
        let shared = self.fill != Fill::Nothing && (many || self.buffer_must_go());
        let decoded = read
            .and_then(|bytes| self.reader.decode_block(self.handle, self.kind(), &bytes, shared));
        match decoded {
            Ok(block) => {
                let block = Arc::new(block);
                self.reader.fill(self.partition, self.handle, self.fill, &block);
                Ok(block)
            }
            Err(error)
                if self.kind() == BlockKind::Filter && error.kind() == ErrorKind::Corruption =>
            {
                self.reader.filter_is_damaged(&error);
                Ok(Arc::new(Block::unknowing_filter()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Neighbouring blocks of one file, read together. The numbers are places in the list of distinct requests.
struct Run {
    members: Vec<usize>,
    offset: u64,
    len: usize,
}

impl Run {
    /// Whether its read is for one block: what it comes to is that block's result, errors too.
    fn is_one(&self) -> bool {
        self.members.len() == 1
    }
}

/// Distinct blocks, what is known of each, and the reads that the others need.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<BlockRequest>,
    results: Vec<Option<Result<Arc<Block>>>>,
    runs: Vec<Run>,
}

impl Batch {
    /// Adds a block, in file order; one without a result joins its neighbours' read.
    fn add(&mut self, request: BlockRequest, known: Option<Result<Arc<Block>>>) {
        let place = self.requests.len();
        let (offset, len) = (request.handle.offset, request.handle.len as usize);
        if known.is_none() {
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
        self.results.push(known);
    }

    fn file_of(&self, run: &Run) -> Option<&Arc<dyn RandomFile>> {
        run.members.first().and_then(|m| self.requests.get(*m)).map(|r| r.reader.file())
    }

    /// Does the reads that need no waiting.
    fn read_ready(&mut self) {
        for run in std::mem::take(&mut self.runs) {
            let read = self.file_of(&run).and_then(|file| file.try_read_at(run.offset, run.len));
            match read {
                Some(read) if read.is_ok() || run.is_one() => self.complete(&run, &read),
                _ => self.runs.push(run),
            }
        }
    }

    /// The reads that are to be done, one for each run.
    fn reads(&self) -> Vec<ReadRequest> {
        let read = |run: &Run| {
            let file = Arc::clone(self.file_of(run)?);
            Some(ReadRequest { file, offset: run.offset, len: run.len })
        };
        self.runs.iter().filter_map(read).collect()
    }

    /// Gives the blocks of a run what was read for them; several that a failed read was for have no result after it.
    fn complete(&mut self, run: &Run, read: &Result<Bytes>) {
        let many = !run.is_one();
        if many && read.is_err() {
            return;
        }
        for member in &run.members {
            let Some(request) = self.requests.get(*member) else { continue };
            let bytes = read.clone().and_then(|bytes| {
                let start = (request.handle.offset - run.offset) as usize;
                let end = start + request.handle.len as usize;
                if end > bytes.len() {
                    return Err(request.short(run.offset));
                }
                Ok(bytes.slice(start..end))
            });
            if let Some(slot) = self.results.get_mut(*member) {
                *slot = Some(request.decode(bytes, many));
            }
        }
    }

    /// Blocks without a result, with the places of these.
    fn left(&mut self) -> impl Iterator<Item = (&BlockRequest, &mut Option<Result<Arc<Block>>>)> {
        self.requests.iter().zip(&mut self.results).filter(|(_, result)| result.is_none())
    }

    /// Loads what has no result, each block by itself, all at once.
    async fn load_left(&mut self, io: &dyn IoEngine) {
        let loads: Vec<_> =
            self.left().map(|(request, _)| request.clone().load_again(io)).collect();
        let loaded = join_all(loads).await;
        for ((_, result), block) in self.left().zip(loaded) {
            *result = Some(block);
        }
    }
}

fn unanswered() -> Result<Arc<Block>> {
    Err(Error::new(ErrorKind::Io, "a read was not answered"))
}

/// A batch of reads that the I/O engine has.
type Reading = BoxFuture<'static, Vec<Result<Bytes>>>;

/// What a load reads, and for which blocks.
pub(crate) enum Departure {
    One { request: BlockRequest, reading: Reading },
    Many { led: Batch, reading: Option<Reading> },
}

impl Departure {
    /// What was read, once it is there. Not to be polled after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Result<Bytes>>> {
        match self {
            Self::One { reading, .. } | Self::Many { reading: Some(reading), .. } => {
                reading.as_mut().poll(cx)
            }
            Self::Many { reading: None, .. } => Poll::Ready(Vec::new()),
        }
    }

    /// Decodes what was read, and fills the cache.
    pub(crate) fn decode(&mut self, mut reads: Vec<Result<Bytes>>) -> Loaded {
        match self {
            Self::One { request, .. } => {
                Loaded::One(reads.pop().map_or_else(unanswered, |read| request.complete(read)))
            }
            Self::Many { led, .. } => {
                for (run, read) in std::mem::take(&mut led.runs).iter().zip(&reads) {
                    led.complete(run, read);
                }
                Loaded::Many(std::mem::take(&mut led.results))
            }
        }
    }

    /// Takes its blocks out of the table of loads.
    pub(crate) fn leave(&self, load: *const Load) {
        match self {
            Self::One { request, .. } => request.leave(load),
            Self::Many { led, .. } => led.requests.iter().for_each(|request| request.leave(load)),
        }
    }
}

/// The distinct requests of a call, and where each original request finds its own.
struct Plan {
    batch: Batch,
    place_of: Vec<usize>,
}

/// A block that this call waits for: its place in the plan, and the load that brings it.
struct Awaited {
    place: usize,
    load: Awaiting,
    /// Whether another call leads the load.
    joined: bool,
}

/// What the load that another call leads says of a block. Nothing where the runtime that it is read on has ended: that is the other's
/// end, and the block is to be read by itself.
fn of_joined(result: Option<Result<Arc<Block>>>) -> Option<Result<Arc<Block>>> {
    result.filter(|result| !matches!(result, Err(error) if error.kind() == ErrorKind::Closed))
}

impl Plan {
    /// Drops repetitions, takes what is in memory, and joins neighbours.
    fn new(all: Vec<BlockRequest>) -> Self {
        // In file order, so that repetitions and neighbours are next to each other.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|i| all.get(*i).map(BlockRequest::place));
        let mut plan = Self { batch: Batch::default(), place_of: vec![0; all.len()] };
        for original in order {
            let Some(request) = all.get(original) else { continue };
            if plan.batch.requests.last() != Some(request) {
                let cached = request.cached();
                plan.batch.add(request.clone(), cached.map(Ok));
            }
            if let Some(place) = plan.place_of.get_mut(original) {
                *place = plan.batch.requests.len() - 1;
            }
        }
        plan
    }

    /// Joins the loads under way that bring what is missing, and leads one for the rest.
    fn depart(&mut self, io: &dyn IoEngine) -> Vec<Awaited> {
        let missing: Vec<usize> =
            self.batch.runs.drain(..).flat_map(|run| run.members.into_iter()).collect();
        let mut awaited = Vec::with_capacity(missing.len());
        if missing.is_empty() {
            return awaited;
        }
        let leader = Leader::new();
        let mut led = Batch::default();
        let mut led_places = Vec::new();
        for place in missing {
            let Some(request) = self.batch.requests.get(place) else { continue };
            match request.board(&leader, led_places.len()) {
                Some(load) => awaited.push(Awaited { place, load, joined: true }),
                None => {
                    led.add(request.clone(), request.cached_after_boarding().map(Ok));
                    led_places.push(place);
                }
            }
        }
        if led_places.is_empty() {
            return awaited;
        }
        let reads = led.reads();
        let reading = (!reads.is_empty()).then(|| io.read_batch(reads));
        let led_places = led_places.into_iter().enumerate();
        awaited.extend(led_places.map(|(at, place)| Awaited {
            place,
            load: leader.awaiting(at),
            joined: false,
        }));
        leader.depart(Departure::Many { led, reading });
        awaited
    }

    /// The results, in the order of the original requests.
    fn finish(self) -> Vec<Result<Arc<Block>>> {
        let results = &self.batch.results;
        self.place_of
            .iter()
            .map(|place| results.get(*place).cloned().flatten().unwrap_or_else(unanswered))
            .collect()
    }
}

/// Loads blocks: verified, parsed, and put into the cache where the cursor was to fill it. The results are
/// in the order of the requests. What can be had without waiting is read during the call; the future waits
/// for one batch of reads for the rest, and for what other calls are reading already.
pub fn load_blocks(
    io: &dyn IoEngine,
    mut requests: Vec<BlockRequest>,
) -> impl Future<Output = Vec<Result<Arc<Block>>>> + Send {
    let begun = match requests.pop() {
        Some(request) if requests.is_empty() => Begun::One(begin_one(io, request)),
        last => {
            requests.extend(last);
            let mut plan = Plan::new(requests);
            plan.batch.read_ready();
            let awaited = plan.depart(io);
            Begun::Many(plan, awaited)
        }
    };
    async move {
        match begun {
            Begun::One(One::Had(result)) => vec![result],
            Begun::One(One::Led(load)) => vec![load.await.unwrap_or_else(unanswered)],
            Begun::One(One::Joined(load, request)) => vec![match of_joined(load.await) {
                Some(result) => result,
                // Seldom, and not to make every read's future larger.
                None => Box::pin(request.load_again(io)).await,
            }],
            Begun::Many(mut plan, awaited) => {
                // The load that this call leads comes last: its reads are under way while others' are waited
                // for.
                for Awaited { place, load, joined } in awaited {
                    let result = load.await;
                    let result = if joined { of_joined(result) } else { result };
                    if let Some(slot) = plan.batch.results.get_mut(place) {
                        *slot = result;
                    }
                }
                if plan.batch.left().next().is_some() {
                    Box::pin(plan.batch.load_left(io)).await;
                }
                plan.finish()
            }
        }
    }
}

/// A call of [`load_blocks`] before it waits.
enum Begun {
    /// As most point reads miss.
    One(One),
    Many(Plan, Vec<Awaited>),
}

/// A load of one block before it is waited for.
enum One {
    /// It is there.
    Had(Result<Arc<Block>>),
    /// It is read by itself.
    Led(Awaiting),
    /// Another call's load brings it: by itself, or among others.
    Joined(Awaiting, BlockRequest),
}

/// What [`Plan`] does, for one block: there is nothing to sort, to join or to share out.
fn begin_one(io: &dyn IoEngine, request: BlockRequest) -> One {
    let (offset, len) = (request.handle.offset, request.handle.len as usize);
    if let Some(read) = request.reader.file().try_read_at(offset, len) {
        return One::Had(request.complete(read));
    }
    lead_or_join(io, request)
}

/// The same for a block that cannot be had without waiting.
fn lead_or_join(io: &dyn IoEngine, request: BlockRequest) -> One {
    let leader = Leader::new();
    if let Some(load) = request.board(&leader, 0) {
        return One::Joined(load, request);
    }
    if let Some(block) = request.cached_after_boarding() {
        request.leave(leader.load());
        leader.land(Loaded::One(Ok(Arc::clone(&block))));
        return One::Had(Ok(block));
    }
    let reading = io.read_batch(vec![request.read()]);
    let load = leader.awaiting(0);
    leader.depart(Departure::One { request, reading });
    One::Led(load)
}

/// The same on the caller's thread, which waits for no other: what it waited for might be waiting to run on
/// this very thread.
pub fn load_blocks_blocking(requests: Vec<BlockRequest>) -> Vec<Result<Arc<Block>>> {
    let Plan { mut batch, place_of } = Plan::new(requests);
    for run in std::mem::take(&mut batch.runs) {
        let Some(file) = batch.file_of(&run) else { continue };
        let read = file.read_at(run.offset, run.len);
        batch.complete(&run, &read);
    }
    for (request, result) in batch.left() {
        *result = Some(request.load_blocking());
    }
    Plan { batch, place_of }.finish()
}

#[cfg(test)]
mod tests;

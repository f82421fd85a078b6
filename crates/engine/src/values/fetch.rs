//! Reading the values that rows have elsewhere: many at once, neighbours together.
//!
//! ```text
//! rows with gaps ─► pointers ─► in the cache? ─► by file and offset, neighbours joined ─► one batch of reads ─► filled rows
//! ```
//!
//! Where a read of several values fails, each is read by itself: the fault may lie in another of them, or in a gap that
//! nobody asked for.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;

use super::store::unknown;
use super::{ValueFile, ValueFiles, ValuePointer};
use crate::aside::Aside;
use crate::cache::BlockCache;
use crate::cell::ReadRow;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoEngine, ReadRequest};
use crate::sst::Block;
use crate::tablet::TabletId;

/// Bytes of values that are read in one batch: what a scan reads ahead at most, as for blocks. More only makes the
/// first row wait.
pub(crate) const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Bytes between two values up to which they are read together: reading them costs less than another request.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Bytes of a value that is kept in the cache at most. Larger ones are read from the device at its full speed anyway,
/// and each would drive out hundreds of blocks.
const CACHED_BYTES_MAX: usize = 256 << 10;

/// Bytes of a value that this thread's helper unpacks, at least: to check and to unpack so many takes a tenth of a millisecond and more,
/// and to hand them over two hundredths.
const ASIDE_BYTES_MIN: u32 = 512 << 10;

// What is unpacked aside enters no cache.
const _: () = assert!(ASIDE_BYTES_MIN as usize > CACHED_BYTES_MAX);

/// A cell of a row whose value is to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    /// Its place in the row.
    pub(crate) cell: usize,
    pub(crate) pointer: ValuePointer,
}

/// A row, of which some values may have to be fetched; they are empty so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundRow {
    pub(crate) row: ReadRow,
    pub(crate) elsewhere: Vec<Elsewhere>,
}

/// Where a read has its values from.
#[derive(Debug)]
pub(crate) struct ValueSource {
    pub(crate) files: Arc<ValueFiles>,
    pub(crate) cache: Option<Arc<dyn BlockCache>>,
    /// Whether what is read enters the cache.
    pub(crate) fill: bool,
    /// Whose values they are.
    pub(crate) tablet: Option<TabletId>,
    /// Where large ones are unpacked.
    pub(crate) aside: Aside,
}

/// A large value that was read and is to be unpacked.
struct Packed {
    /// Its place in the list of pointers.
    at: usize,
    file: Arc<ValueFile>,
    pointer: ValuePointer,
    /// Its frame, in memory that is not lent.
    frame: Bytes,
}

/// Values that lie so close together that they are read at once. The numbers are places in the list of pointers.
struct Run<'a> {
    file: &'a Arc<ValueFile>,
    members: Vec<usize>,
    offset: u64,
    end: u64,
}

impl<'a> Run<'a> {
    /// Of a value by itself, the one at this place.
    fn of_one(file: &'a Arc<ValueFile>, at: usize, pointer: &ValuePointer) -> Self {
        Self { file, members: vec![at], offset: pointer.offset, end: pointer.end() }
    }

    /// Whether its read is for one value: what it comes to is that value's result, errors too.
    fn is_one(&self) -> bool {
        self.members.len() == 1
    }

    /// Its values, each by itself.
    fn split(&self, pointers: &[ValuePointer]) -> impl Iterator<Item = Self> {
        let alone = |at: &usize| Some(Self::of_one(self.file, *at, pointers.get(*at)?));
        self.members.iter().filter_map(alone)
    }
}

impl ValueSource {
    /// Without value files.
    pub(crate) fn none() -> Self {
        Self {
            files: Arc::default(),
            cache: None,
            fill: false,
            tablet: None,
            aside: Aside::default(),
        }
    }

    /// Fetches the values of a row.
    pub(crate) async fn fill_row(&self, io: &dyn IoEngine, found: FoundRow) -> Result<ReadRow> {
        let FoundRow { mut row, elsewhere } = found;
        let mut rest = elsewhere.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch_len(rest.iter().map(|e| &e.pointer)));
            rest = later;
            let pointers: Vec<_> = now.iter().map(|e| e.pointer).collect();
            for (place, value) in now.iter().zip(self.fetch(io, &pointers).await) {
                row.set_value(place.cell, value?);
            }
        }
        Ok(row)
    }

    /// The values, in the order of the pointers. Waits only where a value is neither in the cache nor in the page
    /// cache, and for large ones to be unpacked.
    pub(crate) async fn fetch(
        &self,
        io: &dyn IoEngine,
        pointers: &[ValuePointer],
    ) -> Vec<Result<Bytes>> {
        let mut results: Vec<Option<Result<Bytes>>> =
            pointers.iter().map(|pointer| self.cached(pointer).map(Ok)).collect();
        let mut runs = self.runs(pointers, &mut results);
        let mut large = Vec::new();
        while !runs.is_empty() {
            let mut reads = Vec::with_capacity(runs.len());
            let (mut waiting, mut requests) = (Vec::new(), Vec::new());
            for run in runs.drain(..) {
                let Ok(reader) = run.file.reader() else { continue };
                let len = (run.end - run.offset) as usize;
                match reader.file().try_read_at(run.offset, len) {
                    Some(read) if read.is_ok() || run.is_one() => reads.push((run, read)),
                    _ => {
                        let file = Arc::clone(reader.file());
                        requests.push(ReadRequest { file, offset: run.offset, len });
                        waiting.push(run);
                    }
                }
            }
            if !requests.is_empty() {
                reads.extend(waiting.into_iter().zip(io.read_batch(requests).await));
            }
            for (run, read) in reads {
                if read.is_err() && !run.is_one() {
                    runs.extend(run.split(pointers));
                } else {
                    self.complete(&run, pointers, &read, &mut results, &mut large);
                }
            }
        }
        if !large.is_empty() {
            // Boxed, so that reads without such values stay small.
            Box::pin(self.unpack(large, &mut results)).await;
        }
        let unanswered = || Err(Error::new(ErrorKind::Io, "a read of a value was not answered"));
        results.into_iter().map(|result| result.unwrap_or_else(unanswered)).collect()
    }

    fn cached(&self, pointer: &ValuePointer) -> Option<Bytes> {
        let cache = self.cache.as_ref()?;
        if pointer.value_len as usize > CACHED_BYTES_MAX {
            return None;
        }
        let found = cache.get(pointer.file, pointer.offset)?;
        found.value().filter(|value| value.len() == pointer.value_len as usize).cloned()
    }

    /// What is to be read; pointers that lead nowhere get their error.
    fn runs<'a>(
        &'a self,
        pointers: &[ValuePointer],
        results: &mut [Option<Result<Bytes>>],
    ) -> Vec<Run<'a>> {
        let mut order: Vec<usize> =
            (0..pointers.len()).filter(|i| results.get(*i).is_some_and(Option::is_none)).collect();
        order.sort_by_key(|i| pointers.get(*i).map(|p| (p.file, p.offset)));
        let mut runs: Vec<Run<'a>> = Vec::new();
        for at in order {
            let Some(pointer) = pointers.get(at) else { continue };
            let file = self.files.get(&pointer.file).ok_or_else(|| unknown(pointer));
            let file = file.and_then(|file| file.reader()?.check(pointer).map(|()| file));
            let file = match file {
                Ok(file) => file,
                Err(error) => {
                    if let Some(slot) = results.get_mut(at) {
                        *slot = Some(Err(error));
                    }
                    continue;
                }
            };
            let joins = runs.last_mut().filter(|run| {
                run.file.id() == pointer.file
                    && pointer.offset <= run.end.saturating_add(GAP_BYTES_MAX)
                    && pointer.end() - run.offset <= FETCH_BYTES_MAX
            });
            match joins {
                Some(run) => {
                    run.members.push(at);
                    run.end = run.end.max(pointer.end());
                }
                None => runs.push(Run::of_one(file, at, pointer)),
            }
        }
        runs
    }

    /// Gives the values of a run what was read for them; `large` those that are to be unpacked yet.
    fn complete(
        &self,
        run: &Run<'_>,
        pointers: &[ValuePointer],
        read: &Result<Bytes>,
        results: &mut [Option<Result<Bytes>>],
        large: &mut Vec<Packed>,
    ) {
        for at in &run.members {
            let Some(pointer) = pointers.get(*at) else { continue };
            let value = match read.clone().and_then(|bytes| self.frame(run, pointer, &bytes)) {
                Ok((frame, copy)) if pointer.value_len >= ASIDE_BYTES_MIN => {
                    // What it is a part of, which others may lack, is not kept until it is unpacked.
                    let frame = if copy { Bytes::copy_from_slice(&frame) } else { frame };
                    let (file, pointer) = (Arc::clone(run.file), *pointer);
                    large.push(Packed { at: *at, file, pointer, frame });
                    continue;
                }
                Ok((frame, copy)) => self.value(run, pointer, &frame, copy),
                Err(error) => Err(error),
            };
            if let Some(slot) = results.get_mut(*at) {
                *slot = Some(value);
            }
        }
    }

    /// The frame of a value in what was read of a run, and whether what stays of it is to be copied.
    fn frame(&self, run: &Run<'_>, pointer: &ValuePointer, bytes: &Bytes) -> Result<(Bytes, bool)> {
        let reader = run.file.reader()?;
        let start = (pointer.offset - run.offset) as usize;
        let end = start + pointer.stored_len as usize;
        if end > bytes.len() {
            return Err(reader.damaged(pointer, "a read came back short"));
        }
        // It goes to a cache or to a client, who may be slow: it must keep neither what was read with it nor memory that is lent.
        let is_lent = || {
            let device = reader.file().device();
            device.is_some_and(|device| device.lends(&device.span(run.offset, run.end)))
        };
        let copy = self.keeps(pointer) || !run.is_one() || is_lent();
        Ok((bytes.slice(start..end), copy))
    }

    /// Whether a value enters the cache.
    fn keeps(&self, pointer: &ValuePointer) -> bool {
        self.fill && pointer.value_len as usize <= CACHED_BYTES_MAX
    }

    /// The value in a frame.
    fn value(
        &self,
        run: &Run<'_>,
        pointer: &ValuePointer,
        frame: &Bytes,
        copy: bool,
    ) -> Result<Bytes> {
        let value = run.file.reader()?.decode(pointer, frame, copy)?;
        if self.keeps(pointer)
            && let Some(cache) = &self.cache
        {
            let block = Arc::new(Block::of_value(value.clone()));
            cache.insert(pointer.file, pointer.offset, block);
        }
        Ok(value)
    }

    /// Unpacks large values, which are handed over together.
    async fn unpack(&self, large: Vec<Packed>, results: &mut [Option<Result<Bytes>>]) {
        let values = join_all(large.into_iter().map(async |packed| {
            let Packed { at, file, pointer, frame } = packed;
            let unpack = move || file.reader()?.decode(&pointer, &frame, false);
            (at, self.aside.carry_out(self.tablet, unpack).await.flatten())
        }));
        for (at, value) in values.await {
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(value);
            }
        }
    }
}

/// How many of these values, from the first on, are read in one batch: one at least.
pub(crate) fn batch_len<'a>(pointers: impl Iterator<Item = &'a ValuePointer>) -> usize {
    let mut bytes = 0u64;
    let fits = |pointer: &&ValuePointer| {
        let room = bytes < FETCH_BYTES_MAX;
        bytes += u64::from(pointer.value_len);
        room
    };
    pointers.take_while(fits).count()
}

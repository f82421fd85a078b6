//! One budget of memory, divided among what takes it.
//!
//! ```text
//! memory ─┬─ the process itself, and what the allocator keeps     32 MiB and a tenth, and 2 MiB for each core beyond eight
//!         ├─ memtables                                            a quarter
//!         ├─ requests being read and carried out                  an eighth
//!         ├─ what those of many small parts are decoded into      a thirty-second
//!         ├─ answers that clients have not read                   a sixteenth
//!         ├─ the log's queue                                      a thirty-second, 128 MiB at most
//!         ├─ a flush and compactions                              32 MiB each
//!         └─ the block cache, with indexes and filters            the rest
//! ```
//!
//! What tablets take by being there, and connections, is of the first of these, and bounded by parts of `memory` of their own.
//!
//! A part that is configured is as configured, and the others have what is left. Parts that do not fit are refused, with
//! the least memory that they fit into.

use tepui_engine::db::EngineOptions;
use tepui_engine::options::{JOB_BYTES, LOG_SEGMENTS_MIN};

use crate::limits::REQUEST_BYTES_MIN;

/// How much memory the process is to stay within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Percent of what the machine, or the control group, has.
    Percent(u32),
    /// Bytes.
    Bytes(u64),
}

/// The default: leaves the rest of the machine to the page cache, which the log and buffered files need, and to
/// others.
pub const MEMORY_DEFAULT: Memory = Memory::Percent(60);

/// What a machine that does not say is taken to have, which is warned of.
pub(super) const MACHINE_BYTES_DEFAULT: u64 = 4 << 30;

/// Bytes of the process before it has any data: code, stacks, runtimes, catalog, and memory for buffers of reads, which is 8 MiB, or 16 from
/// eight cores on. Measured without those: 14 MB on two cores.
const PROCESS_BYTES: u64 = 32 << 20;

/// Cores that this suffices for.
const PROCESS_CORES: usize = 8;

/// Bytes of each core beyond these: its thread and its helper's, their runtimes, ring and figures, what the allocator keeps of both. Measured: 1.2 MB
/// before any request, 1.4 after load; and 5 in the midst of it with as many of the allocator's arenas as a machine with 64 processors has, which the part
/// of the allocator has to bear.
const CORE_BYTES: u64 = 2 << 20;

/// Bytes of memory for each core that serves, where the configuration does not say how many, but for [`PROCESS_CORES`]: those beyond take a sixteenth of
/// it then. A container with 512 MiB on a node with 64 processors, and no limit on these, has 16 cores. Less, and cores take what the cache would have; more, and
/// a large machine with little data serves with a part of its processors.
const MEMORY_BYTES_PER_CORE: u64 = 32 << 20;

/// The part of the budget that is left to the allocator, which keeps freed memory for a while and in pieces.
const ALLOCATOR_PART: u64 = 10;

const MEMTABLES_PART: u64 = 4;
const REQUESTS_PART: u64 = 8;
const ANSWERS_PART: u64 = 16;
const LOG_QUEUE_PART: u64 = 32;

/// Bytes of requests: at least what a bulk takes that every server accepts; at most a few of the largest.
const REQUESTS_BYTES_MIN: u64 = 3 * REQUEST_BYTES_MIN;
const REQUESTS_BYTES_MAX: u64 = 2 << 30;

/// What requests are decoded into, as a part of the bytes for requests, on top of these. Of a message half is counted for that
/// already, which is enough where names and values are some hundred bytes; what has more and smaller parts takes of this. Less, and a dozen bulks of
/// counters wait for each other; more, and the block cache has less. In a small budget it is less, so that the cache has its least.
const DECODED_PART: u64 = 4;
const DECODED_PART_LEAST: u64 = 32;

/// Bytes of answers: at least first messages for a hundred clients; at most full messages for a thousand.
const ANSWERS_BYTES_MIN: u64 = 8 << 20;
const ANSWERS_BYTES_MAX: u64 = 1 << 30;

/// Bytes of the log's queue, at least: a few of the largest rows that are common.
const LOG_QUEUE_BYTES_MIN: u64 = 4 << 20;

/// The part of `memory` that tablets may take by being there, those of deleted tables included, before no more are made: a sixteenth, as much as
/// [connections](crate::limits::CONNECTIONS_PART_OF_MEMORY) may, and most of what the process and its allocator have where they take as much. Sixteen
/// thousand tablets for a gigabyte. Smaller, and that has no room for the ten thousand small tables that a server may have; larger, and tables with a
/// thousand splits each, made one after the other, take what nobody has left them, at each start again.
const TABLETS_PART: u64 = 16;

/// Memtables that the memory for them is divided into, so that one can fill while others are flushed.
const MEMTABLES: u64 = 4;

/// Bytes of a memtable, at least: below it, flushes make more files than compaction can merge.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// Segments that the log is divided into, so that its oldest can be removed.
const LOG_SEGMENTS: u64 = 8;
const LOG_SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// Bytes of the block cache, at least: the top of a small tree, and some data.
const CACHE_BYTES_MIN: u64 = 8 << 20;

/// The largest budget that is looked for.
const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// The parts that were configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// Bytes of a memtable.
    pub memtable_bytes: Option<u64>,
    /// Bytes of all memtables.
    pub memtables_total_bytes: Option<u64>,
    /// Bytes of the block cache.
    pub block_cache_bytes: Option<u64>,
    /// Bytes of a segment of the log.
    pub log_segment_bytes: Option<u64>,
    /// Bytes of the log.
    pub log_bytes_max: Option<u64>,
    /// Threads that compact.
    pub compaction_threads: Option<usize>,
}

/// What the server itself may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that the process is to stay within.
    pub total_bytes: u64,
    /// Bytes of requests.
    pub requests_bytes: u64,
    /// Bytes of what requests are decoded into.
    pub decoded_bytes: u64,
    /// Bytes of answers.
    pub answers_bytes: u64,
}

/// The bytes of a budget on a machine with this much memory.
pub fn total(memory: Memory, machine_bytes: Option<u64>) -> u64 {
    match memory {
        Memory::Bytes(bytes) => bytes,
        Memory::Percent(percent) => {
            machine_bytes.unwrap_or(MACHINE_BYTES_DEFAULT) / 100 * u64::from(percent)
        }
    }
}

/// Cores that serve on a machine with so many processors, where the configuration does not say: all, as far as there is memory for them.
pub fn cores(processors: usize, total: u64) -> usize {
    let fit = usize::try_from(total / MEMORY_BYTES_PER_CORE).unwrap_or(usize::MAX);
    processors.min(fit.max(PROCESS_CORES))
}

/// Divides a budget of a server with so many cores. The engine's options other than those of memory are taken over from `engine`. The error says
/// what would fit.
pub fn divide(
    total: u64,
    cores: usize,
    shares: &Shares,
    engine: &EngineOptions,
) -> Result<(EngineOptions, Budget), String> {
    if let Some(divided) = try_divide(total, cores, shares, engine) {
        return Ok(divided);
    }
    let (mut below, mut enough) = (total, MEMORY_BYTES_MAX);
    while enough - below > (1 << 20) {
        let middle = below + (enough - below) / 2;
        match try_divide(middle, cores, shares, engine) {
            Some(_) => enough = middle,
            None => below = middle,
        }
    }
    let mib = enough.div_ceil(1 << 20);
    Err(format!(
        "{total} bytes are too few for the parts: at least {mib}MiB is needed, or smaller parts"
    ))
}

fn try_divide(
    total: u64,
    cores: usize,
    shares: &Shares,
    engine: &EngineOptions,
) -> Option<(EngineOptions, Budget)> {
    let defaults = EngineOptions::default();
    let requests_bytes = (total / REQUESTS_PART).clamp(REQUESTS_BYTES_MIN, REQUESTS_BYTES_MAX);
    let answers_bytes = (total / ANSWERS_PART).clamp(ANSWERS_BYTES_MIN, ANSWERS_BYTES_MAX);
    let log_queue_bytes =
        (total / LOG_QUEUE_PART).clamp(LOG_QUEUE_BYTES_MIN, defaults.log_queue_bytes);
    let fit = usize::try_from(total / REQUESTS_PART / JOB_BYTES).unwrap_or(usize::MAX);
    let threads = defaults.compaction_threads.min(fit).max(1);
    let memtables = match (shares.memtables_total_bytes, shares.memtable_bytes) {
        (Some(bytes), _) => bytes,
        (None, Some(one)) => (total / MEMTABLES_PART).max(one.saturating_mul(MEMTABLES)),
        (None, None) => (total / MEMTABLES_PART).max(MEMTABLES * MEMTABLE_BYTES_MIN),
    };
    let memtable = (memtables / MEMTABLES).clamp(MEMTABLE_BYTES_MIN, defaults.memtable_bytes);
    // A segment that is set may be larger than memtables would have it.
    let log_least = shares.log_segment_bytes.unwrap_or(0).saturating_mul(LOG_SEGMENTS_MIN);
    let log_bytes_max = shares.log_bytes_max.unwrap_or(memtables.max(log_least));
    let segment =
        (log_bytes_max / LOG_SEGMENTS).clamp(LOG_SEGMENT_BYTES_MIN, defaults.log_segment_bytes);
    let mut divided = EngineOptions {
        memtables_total_bytes: memtables,
        memtable_bytes: shares.memtable_bytes.unwrap_or(memtable),
        log_bytes_max,
        log_segment_bytes: shares.log_segment_bytes.unwrap_or(segment),
        log_queue_bytes,
        tablets_bytes_max: total / TABLETS_PART,
        compaction_threads: shares.compaction_threads.unwrap_or(threads),
        block_cache_bytes: 0,
        ..engine.clone()
    };
    let of_cores = CORE_BYTES * cores.saturating_sub(PROCESS_CORES) as u64;
    let itself = PROCESS_BYTES + of_cores + total / ALLOCATOR_PART;
    let cache_least = shares.block_cache_bytes.unwrap_or(CACHE_BYTES_MIN);
    let engine_least = divided.memory_bytes_min().checked_add(cache_least)?;
    let spare = total.saturating_sub(itself + requests_bytes + answers_bytes);
    let decoded_bytes = spare
        .saturating_sub(engine_least)
        .clamp(requests_bytes / DECODED_PART_LEAST, requests_bytes / DECODED_PART);
    divided.memory_bytes = spare.checked_sub(decoded_bytes)?;
    let rest = divided.memory_bytes.checked_sub(divided.memory_bytes_min())?;
    divided.block_cache_bytes = shares.block_cache_bytes.unwrap_or(rest);
    let fits = divided.block_cache_bytes <= rest
        && (shares.block_cache_bytes.is_some() || rest >= CACHE_BYTES_MIN);
    fits.then_some((
        divided,
        Budget { total_bytes: total, requests_bytes, decoded_bytes, answers_bytes },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::INITIAL_SPLITS_MAX;

    fn divided(total: u64, shares: Shares) -> Result<(EngineOptions, Budget), String> {
        divide(total, 2, &shares, &EngineOptions::default())
    }

    #[test]
    fn many_cores_are_counted_and_no_more_serve_than_there_is_memory_for() {
        assert_eq!(cores(2, u64::MAX), 2);
        assert_eq!(
            [256 << 20, 512 << 20, 1 << 30, 8 << 30].map(|total| cores(64, total)),
            [8, 16, 32, 64]
        );
        assert_eq!(cores(64, 0), 8, "what does not fit is refused with a figure");
        let parts = |total, cores| {
            let shares = Shares::default();
            divide(total, cores, &shares, &EngineOptions::default()).map(|(engine, budget)| {
                engine.memory_bytes
                    + budget.requests_bytes
                    + budget.decoded_bytes
                    + budget.answers_bytes
            })
        };
        for total in [244 << 20, 512 << 20, 1 << 30] {
            let few = parts(total, 2).unwrap();
            assert_eq!(parts(total, 8).unwrap(), few, "the least memory is as it was");
            let most = cores(64, total);
            let taken = (most as u64 - 8) * CORE_BYTES;
            assert_eq!(parts(total, most).unwrap(), few - taken);
            assert!(taken <= total / 16);
        }
        let error = parts(256 << 20, 64).unwrap_err();
        assert!(error.contains("at least"), "{error}");
    }

    #[test]
    fn parts_add_up_to_the_budget_whatever_its_size() {
        for total in [244 << 20, 256 << 20, 1 << 30, 5 << 30, 100 << 30, 4 << 40] {
            let (engine, budget) = divided(total, Shares::default()).unwrap();
            let requests = budget.requests_bytes + budget.decoded_bytes;
            let sum = engine.memory_bytes_min() + requests + budget.answers_bytes;
            assert!(sum <= total - total / 10, "{total}: {sum}");
            assert!(sum >= total - total / 10 - PROCESS_BYTES - 1, "{total}: {sum}");
            engine.validate().unwrap();
            assert!(engine.log_bytes_max <= engine.memtables_total_bytes);
            assert!(engine.log_segment_bytes * 2 <= engine.log_bytes_max);
        }
    }

    #[test]
    fn ten_thousand_tablets_have_room_in_a_gigabyte_and_a_table_of_any_splits_in_the_least() {
        let room = |total| divided(total, Shares::default()).unwrap().0.tablets_bytes_max;
        assert!(room(1 << 30) > 10_000 * (4 << 10));
        let longest = 2 * tepui_bigtable::limits::ROW_KEY_BYTES_MAX as u64;
        assert!(room(244 << 20) > INITIAL_SPLITS_MAX as u64 * ((4 << 10) + longest));
        assert_eq!(room(16 << 30), 16 * room(1 << 30));
    }

    #[test]
    fn a_part_that_is_set_is_as_it_was_set_and_the_others_have_the_rest() {
        let free = divided(2 << 30, Shares::default()).unwrap().0;
        let shares = Shares { memtables_total_bytes: Some(64 << 20), ..Shares::default() };
        let set = divided(2 << 30, shares).unwrap().0;
        assert_eq!(set.memtables_total_bytes, 64 << 20);
        assert_eq!(set.memtable_bytes, 16 << 20);
        let gained = set.block_cache_bytes - free.block_cache_bytes;
        assert_eq!(gained, free.memtables_total_bytes - (64 << 20));
        let shares = Shares { block_cache_bytes: Some(1 << 20), ..Shares::default() };
        assert_eq!(divided(2 << 30, shares).unwrap().0.block_cache_bytes, 1 << 20);
    }

    #[test]
    fn a_log_that_follows_from_memory_has_two_of_the_segments_that_are_set() {
        let free = divided(1 << 30, Shares::default()).unwrap().0;
        for (segment, log) in [(1 << 20, free.log_bytes_max), (4 << 30, 8 << 30)] {
            let shares = Shares { log_segment_bytes: Some(segment), ..Shares::default() };
            let engine = divided(1 << 30, shares).unwrap().0;
            assert_eq!((engine.log_segment_bytes, engine.log_bytes_max), (segment, log));
            engine.validate().unwrap();
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_least_that_works() {
        let shares = Shares { block_cache_bytes: Some(1 << 30), ..Shares::default() };
        let error = divided(1 << 30, shares).unwrap_err();
        let (_, rest) = error.split_once("at least ").unwrap();
        let (mib, _) = rest.split_once("MiB").unwrap();
        let least: u64 = mib.parse::<u64>().unwrap() << 20;
        divided(least, shares).unwrap();
        divided(least - (2 << 20), shares).unwrap_err();
        assert!(divided(32 << 20, Shares::default()).is_err());
    }

    #[test]
    fn percents_are_of_the_machine_or_its_group() {
        assert_eq!(total(Memory::Percent(50), Some(8 << 30)), (8 << 30) / 100 * 50);
        assert_eq!(total(Memory::Bytes(7), Some(8 << 30)), 7);
        assert_eq!(total(MEMORY_DEFAULT, None), (4_u64 << 30) / 100 * 60);
    }
}

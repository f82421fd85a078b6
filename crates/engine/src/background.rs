//! Background threads: one that flushes, some that flush what is small beside it, some that compact, one that collects garbage where changes are kept, one that keeps
//! house (frees log segments, removes files, bounds memory). A bell wakes them; none of them polls faster
//! than its interval. What compacts gives way where processors are short: reads and writes then wait for one another and not
//! for a compaction, which may take seconds, and falls behind by less than its share suggests, since a writer that is refused
//! for it ([`crate::pressure`]) leaves it the processor.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::core::{Bell, Core};
use crate::db::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::io::JoinHandle;
use crate::tablet::{Claim, Look, Tablet};

/// How long an idle background thread sleeps at most: the bell wakes it for work, time for garbage.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Bytes of the inputs of a compaction that a thread does in the midst of another, at most: 2 GiB, some seconds, and more than
/// a level 0 in good order with what it meets below. With more, that thread's own compaction would wait for long in turn.
const LENT_BYTES_MAX: u64 = 2 << 30;

/// Flushes before it is looked anew what is to be flushed: with more, a large memtable would wait behind as many small ones,
/// each some milliseconds; with fewer, thousands of tablets would be looked at for next to no work.
pub(crate) const FLUSHES_PER_ROUND: usize = 64;

/// Threads that flush small memtables, beside the one that flushes any. A flush of a small one is three syncs, one after the other, and little else:
/// with thousands of tablets that are written evenly one thread spends its time waiting for the disk. More share ever fewer syncs.
const SMALL_FLUSH_THREADS: usize = 3;

/// Bytes of a small memtable, at most: what its flush holds beside it, two buffers for the most part, is within what a flush of any size may take, which
/// reads nothing ahead.
pub(crate) const SMALL_FLUSH_BYTES: u64 = 512 << 10;

/// Tablets from which on a look at all of them may be worth sparing.
const MANY_TABLETS: usize = 1_000;

/// A look at them that takes less leaves nothing to be spared.
const LOOK_MICROS: u64 = 1_000;

/// When the thread that flushes any memtable looks again where another had a tablet: it may have left that to it, and rung before.
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// How often as long as a look that found nothing the next one waits: of thousands of tablets, each of a thousand flushes a second would have all threads look
/// at all of them.
const REST_LOOKS: u64 = 9;

/// How long a thread leaves the bell alone at most after it has found nothing: what it would do is not that urgent.
const REST_MAX: Duration = Duration::from_millis(100);

/// The same for those that bound memory and flush: so much is soon written.
const URGENT_REST_MAX: Duration = Duration::from_millis(10);

/// When to work again: not before `rest`, whoever rings, and after `next` though nobody does.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wait {
    next: Option<Duration>,
    rest: Duration,
}

impl Wait {
    /// After a look at all tablets that began then (monotonic micros).
    fn after_look(engine: &Engine, begun_micros: u64, rest_max: Duration) -> Self {
        let took = engine.core().env.clock.monotonic_micros().saturating_sub(begun_micros);
        // Where there are few, it was kept from its processor, or did something.
        let is_long = took >= LOOK_MICROS && engine.tablet_count() >= MANY_TABLETS;
        let rest = if is_long { took.saturating_mul(REST_LOOKS) } else { 0 };
        Self { next: None, rest: Duration::from_micros(rest).min(rest_max) }
    }
}

/// Does what a thread is there for, and says when there will be more, where it knows.
pub(crate) type Work = fn(&Engine) -> Wait;

/// Starts the threads of an engine.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<Vec<Box<dyn JoinHandle>>> {
    lend_threads(engine);
    let spawner = &engine.core().env.spawner;
    let mut threads = Vec::new();
    let of = |work: Work| {
        let (engine, bell) = (Arc::downgrade(engine), Arc::clone(&engine.core().bell));
        Box::new(move || run(&engine, &bell, work))
    };
    threads.push(spawner.spawn("tepui-flush", of(flush))?);
    for _ in 0..SMALL_FLUSH_THREADS {
        threads.push(spawner.spawn("tepui-flush", of(flush_small))?);
    }
    for _ in 0..engine.core().options.compaction_threads.max(1) {
        threads.push(spawner.spawn_yielding("tepui-compact", of(compact))?);
    }
    threads.push(spawner.spawn("tepui-collect", of(collect))?);
    threads.push(spawner.spawn("tepui-house", of(keep_house))?);
    Ok(threads)
}

/// From here on, a thread in the middle of a long compaction does what is more urgent meanwhile.
pub(crate) fn lend_threads(engine: &Arc<Engine>) {
    engine.core().engine.get_or_init(|| Arc::downgrade(engine));
}

/// Lets files go that have expired as a whole, or does the most urgent compaction of a level 0, unless it is itself a long one: for
/// a thread in the middle of another. One
/// large compaction has every thread that compacts, for many minutes, and writers of other tables would be refused meanwhile.
/// Where that other one is what refused writers of `own` wait for, only tablets that are further behind go first, and those that let
/// in nothing. `let_go` is called before it: what that other one can do without is not kept beside it.
pub(crate) fn relieve(engine: &Engine, own: Option<&Arc<Tablet>>, let_go: &mut dyn FnMut()) {
    let own = own
        .map(|own| (own, own.pressure_of_level_zero()))
        .filter(|(_, pressure)| pressure.refused_share() > 0.0);
    let goes_first = |tablet: &Arc<Tablet>| {
        own.is_none_or(|(own, least)| {
            let pressure = tablet.pressure_of_level_zero();
            Arc::ptr_eq(own, tablet)
                || pressure.level > least.level
                || pressure.refused_share() >= 1.0
        })
    };
    let tablets = engine.tablets();
    let level_zero = || {
        let mut first = by_urgency(&tablets).into_iter().filter(|tablet| goes_first(tablet));
        first.find_map(|tablet| tablet.claim_level_zero(LENT_BYTES_MAX))
    };
    if let Some(claim) = claim_expired(&tablets).or_else(level_zero) {
        let_go();
        // A failure is logged by the claim, and its files are left alone for a while.
        drop(claim.run_lent());
    }
}

/// Whether a compaction by shape waits for a thread.
pub(crate) fn is_behind(engine: &Engine) -> bool {
    engine.tablets().iter().any(|tablet| tablet.awaits_thread())
}

/// A thread keeps the engine only while it works: one that its owner lets go without closing it ends.
pub(crate) fn run(engine: &Weak<Engine>, bell: &Bell, work: Work) {
    loop {
        let seen = bell.count();
        let Some(engine) = engine.upgrade() else { return };
        if engine.core().stopping() {
            return;
        }
        let on_panic = OnPanic(engine.core());
        let Wait { next, rest } = work(&engine);
        drop(on_panic);
        drop(engine);
        if !rest.is_zero() {
            // Through whatever rings.
            bell.wait(u64::MAX, rest);
        }
        bell.wait(seen, next.map_or(IDLE_WAIT, |next| next.min(IDLE_WAIT)));
    }
}

/// Turns a panic of a background thread into a failure of the engine: without it writers would wait for
/// room for ever.
struct OnPanic<'a>(&'a Core);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&Error::new(ErrorKind::ReadOnly, "a background thread panicked"));
        }
    }
}

/// Flushes the waiting memtables of all tablets, some in each round.
fn flush(engine: &Engine) -> Wait {
    let (_, is_busy) = flush_rounds(engine, u64::MAX);
    Wait { next: is_busy.then_some(BUSY_WAIT), ..Wait::default() }
}

/// The same of small memtables.
fn flush_small(engine: &Engine) -> Wait {
    let (begun, _) = flush_rounds(engine, SMALL_FLUSH_BYTES);
    Wait::after_look(engine, begun, URGENT_REST_MAX)
}

/// Flushes round by round until there is nothing to flush: when that round began (monotonic micros), and whether another thread had a tablet.
fn flush_rounds(engine: &Engine, bytes_max: u64) -> (u64, bool) {
    loop {
        let (begun, mut is_busy) = (engine.core().env.clock.monotonic_micros(), false);
        // After an error the engine is read-only and has said why.
        let flushed = flush_round(engine, bytes_max, &mut is_busy).unwrap_or(0);
        if flushed == 0 || engine.core().stopping() {
            return (begun, is_busy);
        }
    }
}

/// Flushes a memtable of each tablet that has one waiting, unless it has more bytes than these or another thread flushes one of the tablet, of
/// [`FLUSHES_PER_ROUND`] at most, in this [order](flush_order). How many were flushed, and whether another thread had a tablet.
pub(crate) fn flush_round(engine: &Engine, bytes_max: u64, is_busy: &mut bool) -> Result<usize> {
    let mut flushed = 0;
    for tablet in flush_order(engine.tablets()) {
        match tablet.flush_when_due(bytes_max)? {
            Some(is_flushed) => flushed += usize::from(is_flushed),
            None => *is_busy = true,
        }
        if flushed == FLUSHES_PER_ROUND || engine.core().stopping() {
            break;
        }
    }
    Ok(flushed)
}

/// The tablets with memtables that wait: where most waits first, since that gives most memory back and is nearest to refusing
/// writes. Ahead of all goes what has waited longest, so that it does not wait for ever.
pub(crate) fn flush_order(mut tablets: Vec<Arc<Tablet>>) -> Vec<Arc<Tablet>> {
    tablets.retain(|tablet| tablet.has_waiting());
    tablets.sort_by_cached_key(|tablet| Reverse(tablet.waiting_bytes()));
    let oldest = (0..tablets.len()).min_by_key(|at| tablets.get(*at)?.waiting_since());
    if let Some(through) = oldest.and_then(|at| tablets.get_mut(..=at)) {
        through.rotate_right(1);
    }
    tablets
}

/// Lets files go that have expired as a whole, which costs an edit; lends a hand with compactions that run, unless a level 0 is
/// due; compacts the most urgent tablet until none is over its shape, then collects garbage by compactions.
pub(crate) fn compact(engine: &Engine) -> Wait {
    while engine.core().check_writable().is_ok() {
        let begun = engine.core().env.clock.monotonic_micros();
        let tablets = engine.tablets();
        let offers = &engine.core().offers;
        let level_zero =
            || by_urgency(&tablets).iter().find_map(|tablet| tablet.claim_level_zero(u64::MAX));
        // Helping comes before all but that: a job may have thousands of parts, and what has expired is to go meanwhile.
        let first = || claim_expired(&tablets).or_else(level_zero);
        let first = if offers.any() { first() } else { None };
        if first.is_none() && offers.help() {
            continue;
        }
        match first.or_else(|| claim_next(engine.core(), &tablets)) {
            // A failure is logged by the claim, and its files are left alone for a while.
            Some(claim) => drop(claim.run()),
            // There is something to help with any moment.
            None if offers.any() => return Wait::default(),
            None => return Wait::after_look(engine, begun, REST_MAX),
        }
    }
    Wait::default()
}

/// The tablets with a compaction by shape that is due, the most urgent first.
fn by_urgency(tablets: &[Arc<Tablet>]) -> Vec<&Arc<Tablet>> {
    let mut urgent: Vec<_> = tablets
        .iter()
        .map(|tablet| (tablet.compaction_score(), tablet))
        .filter(|(score, _)| *score >= 1.0)
        .collect();
    urgent.sort_by(|a, b| b.0.total_cmp(&a.0));
    urgent.into_iter().map(|(_, tablet)| tablet).collect()
}

/// The next compaction: what an edit does, then the most urgent tablet, then what reads have paid for and garbage in turn; of
/// garbage that of value files and of SSTs in turn, too, since there may be always one more of each, and value files rest beside reads.
pub(crate) fn claim_next(core: &Core, tablets: &[Arc<Tablet>]) -> Option<Claim> {
    let reclaim = || after(&core.reclaimed_last, tablets, |tablet| tablet.claim_to_reclaim());
    let collect = || after(&core.collected_last, tablets, |tablet| tablet.claim_to_collect());
    let garbage = || in_turn(&core.has_reclaimed, reclaim, collect);
    let for_reads = || {
        let mut paying: Vec<_> = tablets.iter().filter(|tablet| tablet.looks() > 0).collect();
        paying.sort_by_cached_key(|tablet| Reverse(tablet.looks()));
        paying.into_iter().find_map(|tablet| tablet.claim_for_reads())
    };
    let for_reads_or_garbage = || in_turn(&core.has_merged_for_reads, for_reads, garbage);
    claim_expired(tablets)
        .or_else(|| by_urgency(tablets).iter().find_map(|tablet| tablet.claim_by_shape()))
        .or_else(for_reads_or_garbage)
}

/// A claim of the tablets in turn, which are in the order of their numbers: one may always have one more, and is not to have all the
/// others wait.
pub(crate) fn after<T>(
    last: &AtomicU64,
    tablets: &[Arc<Tablet>],
    claim: impl Fn(&Arc<Tablet>) -> Option<T>,
) -> Option<T> {
    let had = last.load(Ordering::Relaxed);
    let (had, next) = tablets.split_at(tablets.partition_point(|tablet| tablet.id().0 <= had));
    let mut claims = next.iter().chain(had).filter_map(|tablet| Some((tablet, claim(tablet)?)));
    let (tablet, claim) = claims.next()?;
    last.store(tablet.id().0, Ordering::Relaxed);
    Some(claim)
}

fn claim_expired(tablets: &[Arc<Tablet>]) -> Option<Claim> {
    tablets.iter().find_map(|tablet| tablet.claim_expired())
}

/// A claim of one of two kinds; of the second, where `was_first` says that the last was one of the first.
fn in_turn(
    was_first: &AtomicBool,
    first: impl Fn() -> Option<Claim>,
    second: impl Fn() -> Option<Claim>,
) -> Option<Claim> {
    let first = || {
        let claim = first();
        was_first.fetch_or(claim.is_some(), Ordering::Relaxed);
        claim
    };
    if was_first.swap(false, Ordering::Relaxed) {
        second().or_else(first)
    } else {
        first().or_else(second)
    }
}

/// Collects garbage where changes are kept. Not by those who compact: it takes the locks of rows, and a thread that gives way
/// would have their writers wait for its turn.
fn collect(engine: &Engine) -> Wait {
    while !engine.core().stopping() {
        let begun = engine.core().env.clock.monotonic_micros();
        match claim_to_look(&engine.tablets()) {
            Some(look) => drop(look.run()),
            None => return Wait::after_look(engine, begun, REST_MAX),
        }
    }
    Wait::default()
}

/// The next piece of garbage collection where changes are kept: of the tablet that has waited longest.
fn claim_to_look(tablets: &[Arc<Tablet>]) -> Option<Look> {
    let mut keeping: Vec<_> =
        tablets.iter().filter(|tablet| tablet.changes_kept().is_some()).collect();
    keeping.sort_by_cached_key(|tablet| tablet.looked_at());
    keeping.iter().find_map(|tablet| tablet.claim_to_look())
}

/// Keeps house, and removes files at the pace that the disk's space asks for.
pub(crate) fn keep_house(engine: &Engine) -> Wait {
    let begun = engine.core().env.clock.monotonic_micros();
    let next = keep_house_at(engine, engine.core().removal_pace());
    if next == Some(Duration::ZERO) {
        return Wait { next, ..Wait::default() };
    }
    Wait { next, ..Wait::after_look(engine, begun, URGENT_REST_MAX) }
}

/// Keeps house, and removes files at this pace; 0 for none.
fn keep_house_at(engine: &Engine, delete_bytes_per_second: u64) -> Option<Duration> {
    engine.core().check_lock();
    engine.bound_memory();
    let more = engine.trim_log().then_some(Duration::ZERO);
    let core = engine.core();
    let gone = core.pipeline.log().give_back();
    // Whoever starts a server again that is read-only may want to keep what time has let go meanwhile.
    let is_healthy = core.check_healthy().is_ok();
    let expiry = is_healthy.then(|| engine.expire_changes(delete_bytes_per_second)).flatten();
    let leftovers = is_healthy.then(|| engine.remove_leftovers()).flatten();
    let removal = core.remove_doomed(delete_bytes_per_second);
    // Memory that a read held is given back without anybody being told.
    core.room.notify_waiters();
    [more, gone, expiry, leftovers, removal].into_iter().flatten().min()
}

/// Does all work that is due, on the caller's thread, until there is none.
pub(crate) fn run_until_idle(engine: &Engine) -> Result<()> {
    loop {
        let mut worked = false;
        for tablet in engine.tablets() {
            if tablet.has_waiting() {
                tablet.flush_waiting()?;
                worked = true;
            }
            while let Some(claim) = tablet
                .claim_expired()
                .or_else(|| tablet.claim_by_shape())
                .or_else(|| tablet.claim_for_reads())
                .or_else(|| tablet.claim_to_reclaim())
                .or_else(|| tablet.claim_to_collect())
            {
                claim.run()?;
                worked = true;
            }
            while let Some(look) = tablet.claim_to_look() {
                look.run()?;
                worked = true;
            }
        }
        while keep_house_at(engine, 0) == Some(Duration::ZERO) {}
        if !worked && !engine.tablets().iter().any(|t| t.has_waiting()) {
            return Ok(());
        }
    }
}

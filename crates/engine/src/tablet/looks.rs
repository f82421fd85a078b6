//! How often reads look into more places than one, and the [merges](crate::compaction::reads) that they pay for with it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Tablet;
use super::compact::Claim;
use super::view::View;
use crate::compaction::reads::{are_enough, is_worth, pick_for_reads, price};
use crate::core::EngineMetrics;
use crate::options::CompactionStyle;
use crate::random::splitmix64;

/// What a look costs where blocks of its place and of another had to be loaded, in looks beyond itself: 10 us of the processor and
/// more of waiting.
pub(super) const LOOKS_PER_LOAD: usize = 7;

/// Looks that are told at once, one time in as many: readers on all cores write to that line.
const TOLD_TOGETHER: u64 = 64;

/// How long after a merge for reads the next one of the tablet is, at least, in microseconds. Where many cores read a small
/// table, they pay for one several times a second, each with its syncs.
const MERGE_WAIT_MICROS: u64 = 3_000_000;

/// How long after a look at what reads have paid for that found nothing the next one is, in microseconds: it arranges all of level 0.
const LOOK_WAIT_MICROS: u64 = 1_000_000;

/// The part of a full memtable from which one is flushed for reads, as a divisor: 4 MiB of 64. Smaller ones would be many
/// files for little.
const MEMTABLE_PART: u64 = 16;

thread_local! {
    /// State of the dice that say who tells.
    static DICE: Cell<u64> = const { Cell::new(0) };
}

/// The looks of a tablet since its level 0 was merged.
#[derive(Debug, Default)]
pub(super) struct Looks(AtomicU64);

/// The merges of a tablet that reads pay for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ForReads {
    /// No look at what was paid for before (monotonic micros).
    at_micros: u64,
    /// A memtable was flushed for merges that are still to come.
    is_flushed: bool,
}

impl Looks {
    /// Adds so many; of less than [`TOLD_TOGETHER`] as many on average. How many were added.
    pub(super) fn add(&self, more: u64) -> u64 {
        if more == 0 {
            return 0;
        }
        let told = if more >= TOLD_TOGETHER {
            more
        } else {
            // By chance, so that tablets that take turns are told apart.
            let mut state = DICE.get();
            let bits = splitmix64(&mut state);
            DICE.set(state);
            if bits % TOLD_TOGETHER < more { TOLD_TOGETHER } else { 0 }
        };
        if told > 0 {
            self.0.fetch_add(told, Ordering::Relaxed);
        }
        told
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes away what was paid for.
    fn spend(&self, looks: u64) {
        // Looks that come meanwhile may be lost: it is a count of about so many.
        self.0.store(self.count().saturating_sub(looks), Ordering::Relaxed);
    }

    /// Begins anew.
    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Tablet {
    /// A read has looked into so many places that a merge would have spared it.
    pub(super) fn count_looks(&self, more: usize) {
        let told = self.looks.add(more as u64);
        if told > 0 {
            EngineMetrics::add(&self.core.metrics.looks, told);
        }
    }

    /// How much reads have paid for a merge of level 0.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.count()
    }

    /// Level 0 was merged, or was to be and cannot: reads begin anew to pay for it, not before this moment (monotonic micros).
    pub(super) fn forget_looks(&self, at_micros: u64) {
        self.looks.clear();
        self.picks().for_reads = ForReads { at_micros, is_flushed: false };
    }

    /// What reads had paid for is merged: what they looked into meanwhile is gone, unless there is more to merge.
    pub(super) fn has_merged_for_reads(&self) {
        if !self.picks().for_reads.is_flushed {
            self.looks.clear();
        }
    }

    /// Claims a merge of level 0 that reads have paid for. A memtable that is worth it is sent to be flushed first, and then merged,
    /// column after column, for what was paid by then.
    pub(crate) fn claim_for_reads(self: &Arc<Self>) -> Option<Claim> {
        let looks = self.looks.count();
        if looks == 0 || self.is_dropped() || self.schema.load().is_none() {
            return None;
        }
        let now = self.core.env.clock.monotonic_micros();
        let mut picks = self.picks();
        let ForReads { at_micros, is_flushed } = picks.for_reads;
        if now < at_micros || !(is_flushed || are_enough(looks, 0)) {
            return None;
        }
        let jobs = self.jobs();
        let view = self.view.load_full();
        let waits = !view.waiting.is_empty() || jobs.awaited > 0;
        if waits || jobs.any_under_way(view.version.level(0)) {
            // It comes down in a moment; the bell is rung for it.
            return None;
        }
        let blocked = self.blocked(&jobs);
        drop(jobs);
        picks.for_reads.at_micros = now + LOOK_WAIT_MICROS;
        if view.shape.style == CompactionStyle::Tiered || self.core.space.is_tight() {
            return None;
        }
        let is_free = blocked.files.is_empty() && blocked.outputs.is_empty();
        if !is_flushed && let Some(all) = self.worth_with_memtable(&view) {
            if is_free && are_enough(looks, all) {
                picks.for_reads = ForReads { at_micros: now, is_flushed: true };
                self.rotate_now();
                self.core.bell.ring();
            }
            return None;
        }
        let Some(pick) = pick_for_reads(&view.version, &view.shape, looks, is_flushed, &blocked)
        else {
            // While something is in the way, what was paid for is still to come.
            if is_flushed && is_free {
                drop(picks);
                self.forget_looks(now + MERGE_WAIT_MICROS);
            }
            return None;
        };
        self.looks.spend(price(pick.input_bytes(), is_flushed));
        picks.for_reads.at_micros = if is_flushed { now } else { now + MERGE_WAIT_MICROS };
        Some(self.claim(picks, pick))
    }

    /// Bytes of the memtable and all that it could be merged with, where it is worth to be flushed for that.
    fn worth_with_memtable(&self, view: &View) -> Option<u64> {
        let active = self.active_bytes();
        let values: u64 = view.values.files.values().map(|file| file.frame_bytes()).sum();
        let all = active.saturating_add(view.version.total_bytes()).saturating_add(values);
        let is_large = active >= self.core.options.memtable_bytes / MEMTABLE_PART;
        (is_large && is_worth(active, all)).then_some(all)
    }
}

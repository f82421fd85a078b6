//! Value files of a tablet: what compactions read through, and claiming the compaction that frees those with much garbage.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::compaction::pick::{Pick, Reason};
use crate::compaction::reclaim::{MOVE_FILES_MAX, SparseShare, ValueBytes, pick_to_reclaim};
use crate::compaction::separate::{ValueInputs, ValueOutput};
use crate::core::EngineMetrics;
use crate::sst::FileId;
use crate::values::{MoveBudget, NamedValues, ValueFiles};

use super::Tablet;
use super::compact::Claim;
use super::view::View;

/// After how long it is looked again what is worth it, in microseconds, where a job has some of the files: it may end soon, and what is
/// rewritten for its value files goes one by one.
const BUSY_WAIT_MICROS: u64 = 1_000_000;

/// That no SST was worth it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nothing {
    /// When to look again (monotonic micros).
    until: u64,
    /// Whether the disk was filling then: more is worth it while it does.
    tight: bool,
}

impl Nothing {
    fn holds(self, now: u64, is_tight: impl Fn() -> bool) -> bool {
        now < self.until && is_tight() == self.tight
    }
}

impl Tablet {
    /// Whether value files are to be freed for their own sake.
    pub(crate) fn must_reclaim(&self) -> bool {
        !self.is_dropped()
            && self.schema.load().is_some()
            && self.pick_to_reclaim(&mut self.picks()).is_some()
    }

    /// Claims a compaction that moves values out of value files with much garbage, if it is worth it.
    pub(crate) fn claim_to_reclaim(self: &Arc<Self>) -> Option<Claim> {
        if self.is_dropped() || self.schema.load().is_none() {
            return None;
        }
        let mut picks = self.picks();
        if self.jobs().awaited > 0 {
            return None;
        }
        let pick = self.pick_to_reclaim(&mut picks)?;
        Some(self.claim(picks, pick))
    }

    /// Goes through all that SSTs name, where there is enough garbage: millions of names at terabytes of values, so not again soon where
    /// nothing came of it.
    fn pick_to_reclaim(&self, picks: &mut super::Picks) -> Option<Pick> {
        let now = self.core.env.clock.monotonic_micros();
        let is_tight = || self.core.space.is_tight();
        if picks.nothing_to_reclaim.is_some_and(|nothing| nothing.holds(now, is_tight)) {
            return None;
        }
        picks.nothing_to_reclaim = None;
        let blocked = self.blocked_for_space(&self.jobs());
        let view = self.view.load();
        let mut bytes = ValueBytes::default();
        for file in view.values.files.values() {
            bytes.total += file.frame_bytes();
            if file.is_sparse() {
                bytes.sparse_garbage += file.garbage_bytes();
            }
        }
        if !bytes.is_due() {
            return None;
        }
        let sparse = |id: FileId| {
            let named = view.files.get(&id).map_or(&[][..], |file| file.value_files());
            let mut share = SparseShare::default();
            for (file, bytes) in named.iter().filter(|(file, _)| file.is_sparse()) {
                let garbage = file.garbage_bytes();
                share.add(*bytes, file.frame_bytes().saturating_sub(garbage), garbage);
            }
            share
        };
        let tight = is_tight();
        let pick = pick_to_reclaim(&view.version, &blocked, bytes, &sparse, tight);
        if pick.is_none() {
            let gc_interval_micros = self.core.options.gc_interval_ms.saturating_mul(1000);
            let jobs = self.jobs();
            let next = jobs.next_after_failures(now);
            let wait =
                if jobs.busy.files.is_empty() { gc_interval_micros } else { BUSY_WAIT_MICROS };
            let until = now.saturating_add(wait.min(gc_interval_micros));
            picks.nothing_to_reclaim = Some(Nothing { until: until.min(next), tight });
        }
        pick
    }

    /// The value files that the inputs of a compaction in so many parts name, and those of them whose values it moves, where the disk has
    /// room for so many bytes of values. One that is made for their sake alone moves some in any case: what room it lacks it is told by the
    /// promise that it asks for.
    pub(super) fn value_inputs(
        &self,
        view: &View,
        pick: &Pick,
        parts: usize,
        room: u64,
    ) -> ValueInputs {
        let mut files = ValueFiles::new();
        let mut named: BTreeMap<FileId, u64> = BTreeMap::new();
        let mut seen = HashSet::new();
        for input in &pick.inputs {
            // A file that is cut has several references.
            if !seen.insert(input.id) {
                continue;
            }
            let Some(sst) = view.files.get(&input.id) else { continue };
            for (file, bytes) in sst.value_files() {
                *named.entry(file.id()).or_default() += *bytes;
                files.insert(file.id(), Arc::clone(file));
            }
        }
        let files = NamedValues::new(files);
        let file_bytes = self.core.options.target_file_bytes;
        let budget = |wanted, max| MoveBudget::new(file_bytes, parts, wanted, max);
        let wanted = file_bytes.saturating_mul(MOVE_FILES_MAX);
        let mut to_move = files.to_move(&named, budget(wanted, room));
        if to_move.is_empty() && pick.reason == Reason::Reclaim {
            to_move = files.to_move(&named, budget(0, u64::MAX));
        }
        ValueInputs { files, to_move }
    }

    /// Counts what a job did to value files.
    pub(super) fn count_values(&self, values: &ValueOutput) {
        let metrics = &self.core.metrics;
        EngineMetrics::add(&metrics.value_write_bytes, values.written);
        EngineMetrics::add(&metrics.value_moved_bytes, values.moved);
    }
}

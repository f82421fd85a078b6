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

impl Tablet {
    /// Whether value files are to be freed for their own sake.
    pub(crate) fn must_reclaim(&self) -> bool {
        !self.is_dropped()
            && self.schema.load().is_some()
            && self.pick_to_reclaim(&self.jobs()).is_some()
    }

    /// Claims a compaction that moves values out of value files with much garbage, if it is worth it.
    pub(crate) fn claim_to_reclaim(self: &Arc<Self>) -> Option<Claim> {
        if self.is_dropped() || self.schema.load().is_none() {
            return None;
        }
        let mut jobs = self.jobs();
        if jobs.awaited > 0 {
            return None;
        }
        let pick = self.pick_to_reclaim(&jobs)?;
        Some(self.claim(&mut jobs, pick))
    }

    fn pick_to_reclaim(&self, jobs: &super::Jobs) -> Option<Pick> {
        let view = self.view.load();
        let mut bytes = ValueBytes::default();
        for file in view.values.values() {
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
        let tight = self.core.space.is_tight();
        pick_to_reclaim(&view.version, &self.blocked_for_space(jobs), bytes, &sparse, tight)
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

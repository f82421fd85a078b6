//! The merge of a compaction, part by part: what it reads, and for whom it stops, waits, works and rests between two rows.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::cell::RowRange;
use crate::compaction::CompactionSpec;
use crate::compaction::cuts::CutRule;
use crate::compaction::input::RunCursor;
use crate::compaction::job::{JobContext, JobOutput};
use crate::compaction::pace::Urgency;
use crate::compaction::pick::{Pick, Reason};
use crate::compaction::rest::Rests;
use crate::compaction::separate::ValueInputs;
use crate::compaction::shape::LAST_LEVEL;
use crate::compaction::space::{LOOK_EVERY_BYTES, Promise};
use crate::compaction::sublevels;
use crate::core::EngineMetrics;
use crate::cursor::Cursor;
use crate::error::Result;
use crate::log::lock;
use crate::sst::{WINDOWS_BYTES, window_bytes};
use crate::values::value_windows_bytes;

use super::Tablet;
use super::flush::Merging;
use super::view::{OpenFiles, open_file};

/// How often a thread in the middle of a compaction looks for one that is more urgent, in microseconds. A flush takes longer, and
/// looking at ten thousand tablets a hundredth of it.
const LEND_EVERY_MICROS: u64 = 250_000;

/// What the parts of a compaction share.
pub(super) struct Merge {
    pub(super) tablet: Arc<Tablet>,
    /// Of the inputs that are not done.
    pub(super) files: Arc<Mutex<OpenFiles>>,
    pub(super) pick: Pick,
    pub(super) spec: CompactionSpec,
    pub(super) cuts: CutRule,
    pub(super) rows: Vec<RowRange>,
    pub(super) values: Arc<ValueInputs>,
    pub(super) room: Arc<Promise>,
    pub(super) lends: bool,
}

impl Merge {
    /// Merges the rows of one part.
    pub(super) fn run(&self, part: usize, stops: &dyn Fn() -> bool) -> Result<JobOutput> {
        let core = &self.tablet.core;
        let all = RowRange::all();
        let cursors = self.cursors(self.rows.get(part).unwrap_or(&all))?;
        let no_room = RefCell::new(None);
        let stop =
            || stops() || no_room.borrow().is_some() || core.stopping() || self.tablet.is_dropped();
        let urgency = match self.pick.reason {
            Reason::L0 | Reason::WithinL0 => Urgency::L0,
            _ => Urgency::Rest,
        };
        let lent_at = Cell::new(None);
        let unlooked = Cell::new(0);
        let rests = self.pick.reason.can_wait().then(|| {
            RefCell::new(Rests::new(core.env.clock.monotonic_micros(), core.store.cache().misses()))
        });
        let pace = |bytes, let_go: &mut dyn FnMut()| {
            self.room.spend(bytes);
            unlooked.set(unlooked.get() + bytes);
            if unlooked.get() >= LOOK_EVERY_BYTES {
                unlooked.set(0);
                *no_room.borrow_mut() = core.space.check().err();
            }
            if let Some(rests) = &rests {
                self.give_way(&mut rests.borrow_mut(), &stop);
            }
            if self.lends {
                self.lend(&lent_at, let_go);
            }
            core.keep_pace(bytes, urgency, &stop);
            // What it waited for, and did for others, was no work of its own.
            if let Some(rests) = &rests {
                rests.borrow_mut().resume(core.env.clock.monotonic_micros());
            }
        };
        let context =
            JobContext { stop: &stop, pace: &pace, ..self.tablet.job_context(&self.values) };
        let (spec, level) = (self.spec.clone(), self.pick.output_level);
        let merging = Merging::begin(core);
        let made = self.tablet.run_job(&context, cursors, spec, level, &self.cuts);
        drop(merging);
        made.map_err(|stopped| no_room.take().unwrap_or(stopped))
    }

    /// Rests where reads go to the device, until somebody waits for what it holds.
    fn give_way(&self, rests: &mut Rests, stop: &dyn Fn() -> bool) {
        let core = &self.tablet.core;
        let now = || core.env.clock.monotonic_micros();
        let begun = now();
        let Some(rest) = rests.due(begun, core.store.cache().misses()) else { return };
        let mut left = rest;
        loop {
            let seen = core.bell.count();
            if left.is_zero() || stop() || self.is_wanted() {
                break;
            }
            if !core.bell.wait(seen, left) {
                left = Duration::ZERO;
                break;
            }
            left = rest.saturating_sub(Duration::from_micros(now().saturating_sub(begun)));
        }
        let rested = u64::try_from(rest.saturating_sub(left).as_micros()).unwrap_or(u64::MAX);
        EngineMetrics::add(&core.metrics.compaction_rested_micros, rested);
    }

    /// Whether somebody wants the files, this tablet's level 0 among them, a thread for a compaction by shape that could begin, or space.
    fn is_wanted(&self) -> bool {
        let core = &self.tablet.core;
        let engine = core.engine.get().and_then(Weak::upgrade);
        let awaited = self.tablet.jobs().awaited;
        awaited > 0
            || core.space.is_tight()
            || self.tablet.is_kept_waiting_by(&self.pick)
            || engine.is_some_and(|engine| crate::background::is_behind(&engine))
    }

    /// Does what is more urgent meanwhile, now and then; `let_go` gives back memory before that. `at` is when it was looked for (monotonic micros).
    fn lend(&self, at: &Cell<Option<u64>>, let_go: &mut dyn FnMut()) {
        let core = &self.tablet.core;
        let now = core.env.clock.monotonic_micros();
        if at.get().is_some_and(|at: u64| now < at.saturating_add(LEND_EVERY_MICROS)) {
            return;
        }
        if let Some(engine) = core.engine.get().and_then(Weak::upgrade) {
            let own = (self.pick.reason == Reason::L0).then_some(&self.tablet);
            crate::background::relieve(&engine, own, let_go);
        }
        at.set(Some(core.env.clock.monotonic_micros()));
    }

    /// Bytes of the windows over its inputs: what those over value files leave. Beside the compaction that has lent its thread there is half as much.
    fn windows_bytes(&self) -> u64 {
        let all = if self.lends { WINDOWS_BYTES } else { WINDOWS_BYTES / 2 };
        all - value_windows_bytes(self.values.to_move.len())
    }

    /// Cursors over the inputs' part of `rows`: one for each sublevel of level 0 and each deeper level. They
    /// bypass the block cache.
    fn cursors(&self, rows: &RowRange) -> Result<Vec<Box<dyn Cursor>>> {
        let of_level = |level: u8| {
            let files = self.pick.inputs.iter().filter(move |f| f.level == level);
            files.filter(|f| f.overlaps(rows)).cloned().collect::<Vec<_>>()
        };
        let mut runs = sublevels::arrange(&of_level(0));
        runs.reverse();
        for level in 1..=LAST_LEVEL {
            let mut run = of_level(level);
            run.sort_by(|a, b| a.first_visible().cmp(b.first_visible()));
            runs.push(run);
        }
        runs.retain(|run| !run.is_empty());
        let window_bytes = window_bytes(runs.len(), self.windows_bytes());
        let open = lock(&self.files);
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for run in &runs {
            let mut files = Vec::with_capacity(run.len());
            for file in run {
                files.push((Arc::clone(open_file(&open, file.id)?), Arc::clone(file)));
            }
            let io = &self.tablet.core.env.io;
            cursors.push(Box::new(RunCursor::new(files.into_iter(), io, rows, window_bytes)));
        }
        Ok(cursors)
    }
}

//! How long a group of the log may grow before it is written, where that pays.
//!
//! Whoever is answered tends to write again at once. Were a group closed as soon as the log's thread comes
//! free, the first of them to return would be a group of one, and all others would wait out its sync: groups
//! of 1 and 63 in turn, each writer waiting for two syncs. So after a group is answered, the next one waits
//! for its writers to return, as long as the wait costs less than it saves:
//!
//! ```text
//!            answered: 64          target: 64
//! ── sync ──┤                     ┌─ reached: written
//!           └ 1 ─── 20 ─── 50 ─── 64           queued
//!             │  slice │  slice │              each an eighth of a sync
//!
//! At the end of a slice: `arrived` are spared a sync each if the group is closed after them and not before,
//! `queued` have waited for a slice. On it goes while    arrived * sync > queued * slice.
//! ```
//!
//! Where all came back in the waits before, a few slices may go against this sum: a writer whose thread does not get
//! its turn for a moment is on its way all the same. Each wait that ends without it halves that patience.
//!
//! A lone writer waits for nothing: its target is itself. Writers that come at their own pace, and not as the
//! answer to an answer, arrive in a slice at the rate at which they did during the sync, so that the sum does
//! not come out in favour of a second slice; and after a slice in which nobody came the wait is left out for
//! a while, twice as long each time.
//!
//! A sync that is as short as the wake-up of a thread is not worth such a wait: nobody gains time by it. But where processors are scarce,
//! each group takes one from those who would fill the next: the writers' own threads, which the log's thread interrupts as soon as
//! it has something to write. So there it gives its processor away once, if more writers are expected, and where that took time, waits a
//! little more. Where it took none, nobody wanted that processor, and the group is written at once.

/// Syncs shorter than this are not worth a wait: slices of them would be shorter than timers are exact.
const SYNC_MICROS_MIN: u64 = 400;
/// To give the processor away takes so long where it is scarce: twenty times as long as to find that nobody wants it.
pub(super) const SCARCE_MICROS: u64 = 20;
/// For so long a group waits for writers after that, as exactly as timers are: less than a tenth of what a write takes where 64 are under way
/// on two processors.
pub(super) const SCARCE_WAIT_MICROS: u64 = 100;
/// Writers are expected for so long after an answer, where syncs are short: as long as a write takes where processors are scarce.
const EXPECTED_MICROS: u64 = 2_000;
/// A sync counts for so much at most, so that a device that hung for once does not make the next group wait.
const SYNC_MICROS_MAX: u64 = 8_000;
/// Slices of a sync, which are also the most that a group waits: a sync's time in all.
const SLICES: u64 = 8;
/// Slices that may go against the sum in a wait, after as many waits that all came back in.
const PATIENCE_SLICES_MAX: u64 = 6;
/// Groups that are written without a wait after waits that were in vain, at most: 1 % of a sync added on average.
const SKIPS_MAX: u32 = 15;

/// What decides about the next group.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Of recent groups: microseconds of a write with its sync.
    sync_micros: u64,
    /// When the last group was answered.
    answered_at: u64,
    /// Writers that may be back in the next group: those answered, and those queued by then.
    target: usize,
    /// Groups to come that are written without a wait.
    skips: u32,
    /// Half of the skips that the next wait in vain costs.
    penalty: u32,
    /// Slices of the next wait that may go against the sum.
    patience: u64,
}

/// A wait for writers to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// Ends when so many are queued.
    pub(super) target: usize,
    /// Otherwise after this, to be [judged](Gather::goes_on).
    pub(super) slice_micros: u64,
    slices_left: u64,
    patience: u64,
    queued: usize,
}

impl Gather {
    /// Notes a group that was answered at `now`, having taken `micros` to be written and synced, while `queued`
    /// already wait for the next.
    pub(super) fn answered(&mut self, now: u64, micros: u64, group: usize, queued: usize) {
        let micros = micros.min(SYNC_MICROS_MAX);
        // A slow one after fast ones counts little; a fast one after slow ones counts in full.
        self.sync_micros = ((self.sync_micros * 7 + micros) / 8).min(micros);
        self.answered_at = now;
        self.target = group + queued;
    }

    /// The wait that the next group starts with, if any, when `queued` are there at `now`.
    pub(super) fn begin(&mut self, now: u64, queued: usize) -> Option<Wait> {
        let worth = self.sync_micros >= SYNC_MICROS_MIN
            && queued < self.target
            && now.saturating_sub(self.answered_at) < self.sync_micros;
        if !worth {
            return None;
        }
        if self.skips_one() {
            return None;
        }
        let slice_micros = self.sync_micros / SLICES;
        Some(Wait {
            target: self.target,
            slice_micros,
            slices_left: SLICES,
            patience: self.patience,
            queued,
        })
    }

    /// Whether the processor is given away before the next group is written, when `queued` are there at `now`: where syncs are short.
    pub(super) fn gives_way(&mut self, now: u64, queued: usize) -> bool {
        let worth = self.sync_micros < SYNC_MICROS_MIN
            && queued < self.target
            && now.saturating_sub(self.answered_at) < EXPECTED_MICROS;
        worth && !self.skips_one()
    }

    /// Notes that it was, and whether somebody came meanwhile.
    pub(super) fn gave_way(&mut self, came: bool) {
        self.punish(!came);
    }

    /// Whether this group is one of those that are written without a wait.
    fn skips_one(&mut self) -> bool {
        let skips = self.skips > 0;
        self.skips = self.skips.saturating_sub(1);
        skips
    }

    /// Leaves the next waits out after one in vain, more of them each time.
    fn punish(&mut self, in_vain: bool) {
        self.penalty = if in_vain { (self.penalty * 2 + 1).min(SKIPS_MAX) } else { 0 };
        self.skips = self.penalty;
    }

    /// Writers that are expected in the next group.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// Whether the wait goes on after a slice at whose end `queued` are there.
    pub(super) fn goes_on(&mut self, wait: &mut Wait, queued: usize) -> bool {
        let arrived = queued.saturating_sub(wait.queued);
        let pays = arrived as u64 * self.sync_micros > queued as u64 * wait.slice_micros;
        let in_vain = arrived == 0 && wait.slices_left == SLICES;
        wait.queued = queued;
        wait.slices_left = wait.slices_left.saturating_sub(1);
        if queued < wait.target && wait.slices_left > 0 {
            if pays {
                return true;
            }
            if wait.patience > 0 {
                wait.patience -= 1;
                return true;
            }
        }
        self.patience /= 2;
        self.punish(in_vain);
        false
    }

    /// Notes that all were back.
    pub(super) fn reached(&mut self) {
        self.penalty = 0;
        self.patience = (self.patience + 1).min(PATIENCE_SLICES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After several groups of `group` that took `micros` each.
    fn after(group: usize, queued: usize, micros: u64) -> Gather {
        let mut gather = Gather::default();
        for _ in 0..100 {
            gather.answered(0, micros, group, queued);
        }
        gather
    }

    #[test]
    fn a_lone_writer_and_a_fast_disk_wait_for_no_slices() {
        assert_eq!(after(1, 0, 2000).begin(10, 1), None);
        assert_eq!(after(64, 0, 50).begin(10, 1), None);
        assert_eq!(Gather::default().begin(10, 1), None);
    }

    #[test]
    fn the_processor_is_given_away_where_syncs_are_short_and_writers_expected() {
        assert!(after(64, 0, 300).gives_way(10, 10));
        assert!(after(2, 3, 50).gives_way(10, 4));
        assert!(!after(2, 3, 50).gives_way(10, 5), "all are there");
        assert!(!after(1, 0, 50).gives_way(10, 1), "a lone writer");
        assert!(!after(64, 0, 50).gives_way(2_000, 10), "they went elsewhere");
        assert!(!Gather::default().gives_way(10, 1));
        assert!(!after(64, 0, 500).gives_way(10, 10), "a slow disk");
    }

    #[test]
    fn the_processor_is_rarely_given_away_where_nobody_comes_for_it() {
        let mut gather = after(64, 0, 50);
        let given_away = |gather: &mut Gather, came: bool| {
            let give = |_: &u32| {
                let gives = gather.gives_way(10, 10);
                if gives {
                    gather.gave_way(came);
                }
                gives
            };
            (0..1_000).filter(give).count()
        };
        assert!((1_000 / 16..80).contains(&given_away(&mut gather, false)));
        gather.skips = 0;
        assert_eq!(given_away(&mut gather, true), 1_000);
    }

    #[test]
    fn writers_that_return_in_a_burst_are_waited_for_until_all_are_back() {
        let mut gather = after(64, 0, 2000);
        let mut wait = gather.begin(10, 1).unwrap();
        assert_eq!(wait.target, 64);
        assert!(wait.slice_micros <= 250);
        for queued in [20, 40, 60] {
            assert!(gather.goes_on(&mut wait, queued));
        }
        assert!(!gather.goes_on(&mut wait, 64));
    }

    #[test]
    fn the_wait_ends_when_too_few_come_for_what_it_costs_those_who_wait() {
        let mut gather = after(200, 0, 2000);
        let mut wait = gather.begin(10, 1).unwrap();
        assert!(gather.goes_on(&mut wait, 100));
        assert!(!gather.goes_on(&mut wait, 110), "10 spare 20 ms, 110 wait for 27");
    }

    #[test]
    fn writers_at_their_own_pace_are_not_waited_for() {
        // A writer each 20 us: a hundred queued during the sync, a dozen in a slice.
        let mut gather = after(100, 100, 2000);
        let mut wait = gather.begin(0, 100).unwrap();
        assert!(!gather.goes_on(&mut wait, 112));
    }

    #[test]
    fn a_group_never_waits_for_longer_than_a_sync() {
        let mut gather = after(100_000, 0, 2000);
        let mut wait = gather.begin(0, 1).unwrap();
        let mut slices = 1;
        while gather.goes_on(&mut wait, slices * 1000) {
            slices += 1;
        }
        assert!(slices as u64 * wait.slice_micros <= 2000, "{slices}");
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_that_pays_brings_them_back() {
        let mut gather = after(2, 0, 2000);
        let mut waits = 0;
        for _ in 0..1000 {
            gather.answered(0, 2000, 2, 0);
            if let Some(mut wait) = gather.begin(10, 1) {
                waits += 1;
                assert!(!gather.goes_on(&mut wait, 1));
            }
        }
        assert!((1000 / 16..80).contains(&waits), "{waits}");
        gather.skips = 0;
        gather.begin(10, 1).unwrap();
        gather.reached();
        assert!(gather.begin(10, 1).is_some());
    }

    #[test]
    fn patience_is_earned_by_waits_that_all_came_back_in_and_lost_by_others() {
        let mut gather = after(64, 0, 2000);
        let slices = |gather: &mut Gather| {
            let mut wait = gather.begin(10, 10).unwrap();
            let mut slices = 1;
            while gather.goes_on(&mut wait, 10) {
                slices += 1;
            }
            gather.skips = 0;
            slices
        };
        assert_eq!(slices(&mut gather), 1);
        for _ in 0..100 {
            gather.reached();
        }
        assert_eq!(slices(&mut gather), 1 + PATIENCE_SLICES_MAX);
        assert_eq!(slices(&mut gather), 1 + PATIENCE_SLICES_MAX / 2);
        assert_eq!(slices(&mut gather), 2);
        assert_eq!(slices(&mut gather), 1);
    }

    #[test]
    fn one_sync_that_hung_does_not_make_the_next_group_wait_long() {
        let mut gather = after(64, 0, 2000);
        gather.answered(0, 5_000_000, 64, 0);
        assert!(gather.begin(10, 1).unwrap().slice_micros < 400);
        gather.answered(0, 10, 64, 0);
        assert_eq!(gather.begin(10, 1), None);
    }

    #[test]
    fn who_comes_long_after_the_answer_does_not_wait() {
        assert_eq!(after(64, 0, 2000).begin(2000, 1), None);
    }
}

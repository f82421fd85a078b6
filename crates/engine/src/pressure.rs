//! How far the background work is behind the writers, and which writes are refused for it.
//!
//! The engine never makes a writer wait for a flush or a compaction. It lets each write in, or refuses it at
//! once with [`ErrorKind::Overloaded`] and a hint when to try again:
//!
//! ```text
//! share refused
//! 1.0 ┤                       ╭──────── never over the limit
//!     │                   ╭───╯
//!     │                  ╭╯
//!   0 ┼──────────────────╯
//!     0 %      kept free │ half      100 %   of what memtables, level 0 or the log's queue may hold
//! ```
//!
//! Below half of a limit, which background work that keeps up never passes, nothing is refused. From there
//! on the share of the writes that are refused rises to all of them at the limit, steeply at first: what is let in is the square
//! of the part of the way that is left. So a load of twice what the device takes settles where half of it is refused, three tenths of
//! the way if those who are refused stay away as they are told, and at no moment is everything refused: writers see a steady trickle of refusals, not a wall and then a flood. While
//! nothing goes down for minutes, as under a large compaction, what is let in falls with the square of the time, and so goes on;
//! along a straight line it would halve every ten seconds or so, and be nothing soon. The hint grows with the debt for the same reason, and
//! is spread by chance over everything up to twice its middle: those who were refused together, as everybody is within
//! moments when a load sets in, neither come back together nor all stay away for the same while.
//!
//! A request of many rows is let in or refused as one: its client has one answer to come back by, and not thousands. What was let in
//! is carried out in parts, of which only those that meet the limit are refused.
//!
//! Writes of a lower [`Priority`] are refused from the same point on, and all of them well before the limit, so that they
//! make room for the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// Where refusing begins, as a part of the limit. At half, the limit of a tablet's memtables (four by default) leaves
/// one that fills and one that is being flushed; earlier, ordinary work would be refused; later, the rise
/// would be steep and the last step of a flush or a compaction could take it to the limit.
const REFUSED_FROM: f64 = 0.5;

/// The middle of the hints where hardly anything is refused: about a group of the log, or a client's round trip.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(20);

/// The middle of the hints where everything is refused: about a flush. Longer would leave the device idle after one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// The shortest hint: anything shorter is a client that asks all the time.
const RETRY_AFTER_LEAST: Duration = Duration::from_millis(5);

/// Which of the writes that come at the same time are refused first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Priority {
    /// All are refused where of the high ones a quarter is.
    Low,
    /// All are refused where of the high ones three quarters are.
    Medium,
    /// All are refused at the limit.
    #[default]
    High,
}

impl Priority {
    /// The part of the way from where refusing begins to the limit, at which all are refused.
    fn refused_at(self) -> f64 {
        match self {
            Self::Low => 0.125,
            Self::Medium => 0.5,
            Self::High => 1.0,
        }
    }
}

/// What is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// The memory of all memtables together: flushes are behind, or long reads keep what was flushed.
    Memory,
    /// The memtables of the tablet: its flushes are behind.
    Memtables,
    /// Level 0 of the tablet: its compactions are behind.
    LevelZero,
    /// The queue of the commit log: the device's syncs are behind.
    Log,
    /// Level 0 of the tablet, whose compaction fails: only an operator can help.
    Failing,
    /// The disk, which has no room for the log: only an operator can help.
    Room,
}

impl Behind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Memtables, Self::LevelZero, Self::Log, Self::Failing, Self::Room];

    /// A name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memtable_memory",
            Self::Memtables => "tablet_memtables",
            Self::LevelZero => "level_zero",
            Self::Log => "log_queue",
            Self::Failing => "compaction_fails",
            Self::Room => "disk_full",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Memory | Self::Memtables => {
                "its memory for writes is full until flushes catch up"
            }
            Self::LevelZero => "its compactions are behind the writes",
            Self::Log => "its commit log is behind the writes",
            Self::Failing => "its compaction fails; the server's log says why",
            Self::Room => "its disk is full",
        }
    }
}

/// How much of what it may hold the thing that is furthest behind holds: 0 is idle, 1 the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// The part of the limit; above 1 where one large write went past it.
    pub level: f64,
    /// What is behind.
    pub behind: Behind,
}

impl Pressure {
    /// The pressure of `used` of `limit`.
    pub(crate) fn of(behind: Behind, used: f64, limit: f64) -> Self {
        let level = if limit > 0.0 { used / limit } else { 1.0 };
        Self { level, behind }
    }

    /// The pressure of `used` where refusing begins at `from`.
    pub(crate) fn beyond(behind: Behind, used: f64, from: f64) -> Self {
        Self::of(behind, used * REFUSED_FROM, from)
    }

    /// The higher of two.
    pub fn or(self, other: Self) -> Self {
        if other.level > self.level { other } else { self }
    }

    /// How far it is from where refusing begins: 1 is idle, 0 from there on.
    pub fn headroom(&self) -> f64 {
        ((REFUSED_FROM - self.level) / REFUSED_FROM).clamp(0.0, 1.0)
    }

    /// The share of writes of high priority that is refused, 0 to 1.
    pub fn refused_share(&self) -> f64 {
        self.refused_share_of(Priority::High)
    }

    /// The share of writes of this priority that is refused, 0 to 1.
    pub fn refused_share_of(&self, priority: Priority) -> f64 {
        let way = (self.level - REFUSED_FROM) / (1.0 - REFUSED_FROM);
        let left = 1.0 - (way / priority.refused_at()).clamp(0.0, 1.0);
        1.0 - left * left
    }

    /// The refusal of one write, if it is among those that are refused. `chance` is a random number.
    pub(crate) fn refuses(
        &self,
        priority: Priority,
        chance: impl FnOnce() -> u64,
    ) -> Option<Error> {
        let share = self.refused_share_of(priority);
        if share <= 0.0 {
            return None;
        }
        let chance = chance();
        (unit(chance) < share).then(|| {
            let after = retry_after(share, unit(chance.rotate_left(32)));
            Error::overloaded(format!("the server is overloaded: {}", self.behind.text()), after)
        })
    }

    /// The refusal of a write where nothing at all of its priority is let in. `chance`, a random number, is for the hint.
    pub(crate) fn refuses_all(
        &self,
        priority: Priority,
        chance: impl FnOnce() -> u64,
    ) -> Option<Error> {
        if self.refused_share_of(priority) < 1.0 { None } else { self.refuses(priority, chance) }
    }
}

/// A random number as one from 0 up to, and without, 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// When to try again where `share` of the writes is refused; spread by `chance` up to twice its middle.
fn retry_after(share: f64, chance: f64) -> Duration {
    let span = RETRY_AFTER_MAX.as_secs_f64() - RETRY_AFTER_MIN.as_secs_f64();
    let middle = RETRY_AFTER_MIN.as_secs_f64() + span * share * share;
    Duration::from_secs_f64(middle * 2.0 * chance).max(RETRY_AFTER_LEAST)
}

/// Refused writes, by what was behind.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Behind::ALL.len()]);

impl Refusals {
    pub(crate) fn count(&self, behind: Behind) {
        if let Some(counter) = self.0.get(behind as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many there were for this.
    pub fn get(&self, behind: Behind) -> u64 {
        self.0.get(behind as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// The refusal of a write to a tablet whose compaction fails: it is the operator's turn, so the client is
/// told to wait for as long as a hint ever says, and why, where that is known still.
pub(crate) fn failing(why: Option<&Error>) -> Error {
    let text = why.map_or_else(
        || Behind::Failing.text().to_owned(),
        |error| format!("its compaction fails: {error}"),
    );
    Error::overloaded(format!("the tablet takes no writes: {text}"), RETRY_AFTER_MAX)
}

/// The refusal of a write while the log lacks space, and why, where that is known still. `chance` is a random number.
pub(crate) fn lacks_room(why: Option<&str>, chance: u64) -> Error {
    let text = why.unwrap_or_else(|| Behind::Room.text());
    Error::overloaded(format!("the server takes no writes: {text}"), retry_after(1.0, unit(chance)))
}

/// Whether the error is a refusal for pressure: the same write may succeed later.
pub fn is_refusal(error: &Error) -> bool {
    error.kind() == ErrorKind::Overloaded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(level: f64) -> Pressure {
        Pressure { level, behind: Behind::Memory }
    }

    #[test]
    fn nothing_is_refused_below_half_and_everything_at_the_limit() {
        for (level, share) in [(0.0, 0.0), (0.5, 0.0), (0.75, 0.75), (1.0, 1.0), (7.0, 1.0)] {
            assert!((at(level).refused_share() - share).abs() < 1e-9, "{level}");
        }
        for (level, headroom) in [(0.0, 1.0), (0.25, 0.5), (0.5, 0.0), (7.0, 0.0)] {
            assert!((at(level).headroom() - headroom).abs() < 1e-9, "{level}");
        }
        assert!(at(0.5).refuses(Priority::High, || 0).is_none());
        assert!(at(1.0).refuses(Priority::High, || u64::MAX).is_some());
        let all = |level, priority| at(level).refuses_all(priority, || 0).is_some();
        assert!(all(1.0, Priority::High) && !all(0.99, Priority::High));
        assert!(all(0.6, Priority::Low) && !all(0.55, Priority::Low));
        assert!(all(0.75, Priority::Medium) && !all(0.7, Priority::Medium));
        assert!(at(0.75).refuses(Priority::High, || u64::MAX / 8 * 5).is_some());
        assert!(at(0.75).refuses(Priority::High, || u64::MAX / 8 * 7).is_none());
        assert!(Pressure::of(Behind::Log, 1.0, 0.0).refuses(Priority::High, || u64::MAX).is_some());
    }

    #[test]
    fn a_trickle_is_let_in_for_as_long_as_nothing_goes_down() {
        // Each second a twentieth of the way, times what is let in: twenty seconds would fill it.
        let mut level = 0.5;
        for _ in 0..600 {
            level += 0.5 / 20.0 * (1.0 - at(level).refused_share());
        }
        let let_in = 1.0 - at(level).refused_share();
        assert!((0.000_5..0.002).contains(&let_in), "{let_in}");
    }

    #[test]
    fn lower_priorities_are_all_refused_before_the_higher_ones_are() {
        let shares = |level| {
            [Priority::Low, Priority::Medium, Priority::High].map(|p| at(level).refused_share_of(p))
        };
        for (level, expected) in [
            (0.5, [0.0, 0.0, 0.0]),
            (0.5625, [1.0, 0.4375, 0.234_375]),
            (0.75, [1.0, 1.0, 0.75]),
            (1.0, [1.0, 1.0, 1.0]),
        ] {
            let close = shares(level).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(close, "{level}: {:?}", shares(level));
        }
        assert!(at(0.5625).refuses(Priority::Low, || u64::MAX).is_some());
        assert!(at(0.5625).refuses(Priority::Medium, || u64::MAX).is_none());
    }

    #[test]
    fn hints_grow_with_the_debt_and_are_spread() {
        let middle = |share| retry_after(share, 0.5);
        assert_eq!(middle(0.0), RETRY_AFTER_MIN);
        assert_eq!(middle(1.0), RETRY_AFTER_MAX);
        assert!(middle(0.2) < middle(0.3) && middle(0.3) < middle(0.9));
        assert_eq!(retry_after(1.0, 0.0), RETRY_AFTER_LEAST);
        assert!(retry_after(1.0, 0.999) < RETRY_AFTER_MAX * 2);
        // Of a thousand that were refused at once, some are back within a tenth of a second.
        let soon = (0..1000).filter(|n| retry_after(0.95, f64::from(*n) / 1e3).as_millis() < 100);
        assert!(soon.count() > 10);
    }

    #[test]
    fn what_is_furthest_behind_decides() {
        let pressure = Pressure::of(Behind::Memory, 1.0, 4.0)
            .or(Pressure::of(Behind::LevelZero, 3.0, 4.0))
            .or(Pressure::of(Behind::Log, 2.0, 4.0));
        assert_eq!(pressure.behind, Behind::LevelZero);
    }

    #[test]
    fn a_refusal_is_an_error_with_a_hint() {
        let error = at(1.0).refuses(Priority::High, || 5).unwrap();
        assert!(is_refusal(&error) && error.retry_after().is_some());
        let failing = failing(Some(&Error::new(ErrorKind::NoSpace, "the disk is full")));
        assert!(is_refusal(&failing) && failing.retry_after() == Some(RETRY_AFTER_MAX));
        assert!(failing.message().contains("the disk is full"), "{failing}");
        let refusals = Refusals::default();
        for behind in Behind::ALL {
            refusals.count(behind);
            assert_eq!(refusals.get(behind), 1, "{}", behind.name());
        }
    }
}

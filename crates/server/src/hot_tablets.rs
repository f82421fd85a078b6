//! Which tablets took the processor's time, for `ListHotTablets`: measured by looking, four times a second, at what each
//! core works for ([`tepui_bigtable::activity`]).
//!
//! ```text
//! looks ──► a window of a minute: the part of all looks that found a core at a tablet
//!       ──► an interval of 15 minutes: each tablet's hottest window        14 days of these are kept, in memory
//! ```
//!
//! A page token holds the time that its first page was asked for, and where its page ended. So windows that are measured between two
//! pages, and those that a hotter one replaces, move nothing: each of the others is listed once.
//!
//! A core's whole work counts for the tablet that it turned to last, transport and decoding included; a core that has run
//! out of work counts for none.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tepui_bigtable::activity::Working;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::tablet::TabletId;
use xxhash_rust::xxh3::xxh3_64;

use crate::page_tokens;

const MINUTE_MICROS: i64 = 60 * 1_000_000;

/// How long a window is: short enough to show a peak, long enough for 240 looks.
const WINDOW_MICROS: i64 = MINUTE_MICROS;

/// In an interval of this length a tablet is listed once: Bigtable's documented one.
const INTERVAL_MICROS: i64 = 15 * MINUTE_MICROS;

/// How far back is kept, and may be asked for: Bigtable's documented 14 days.
const KEPT_MICROS: i64 = 14 * 24 * 60 * MINUTE_MICROS;

/// The time that one request may span: Bigtable's documented 48 hours.
const SPAN_MICROS_MAX: i64 = 48 * 60 * MINUTE_MICROS;

/// The time that is listed where the request does not say.
const SPAN_MICROS_DEFAULT: i64 = 24 * 60 * MINUTE_MICROS;

/// Percent of a node's processor from which a tablet is worth telling of.
const PERCENT_MIN: f32 = 1.0;

/// Tablets that an interval keeps, at most: with [`PERCENT_MIN`] no window has more, and few intervals see such different
/// ones. Bounds the memory to some megabytes.
const TABLETS_PER_INTERVAL_MAX: usize = 200;

/// Characters of a page token, at most: two for each byte of six numbers.
const PAGE_TOKEN_CHARS_MAX: usize = 128;

/// A tablet's hottest window of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hot {
    /// The tablet.
    pub tablet: TabletId,
    /// When the window began: microseconds since 1970.
    pub start_micros: i64,
    /// When it ended.
    pub end_micros: i64,
    /// The part of the server's cores that it took, in percent.
    pub cpu_percent: f32,
}

/// What was measured.
#[derive(Debug)]
pub struct HotTablets {
    cores: usize,
    threads: Vec<Arc<Working>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the present window began, once there is one.
    start_micros: Option<i64>,
    /// How often was looked in it.
    looks: u64,
    /// At how many threads a tablet was found in these, together.
    found: HashMap<TabletId, u64>,
    /// By the time of their beginning: where the clock was set back, one that there was goes on.
    intervals: BTreeMap<i64, BTreeMap<TabletId, Hot>>,
}

impl HotTablets {
    /// Looks at so many threads for each of this many cores.
    pub fn new(cores: usize, threads_each: usize) -> Self {
        let threads = (0..cores * threads_each).map(|_| Arc::default()).collect();
        Self { cores, threads, state: Mutex::default() }
    }

    /// What each thread publishes: those of one core, then those of the next.
    pub fn threads(&self) -> &[Arc<Working>] {
        &self.threads
    }

    /// Looks once.
    pub fn look(&self, now_micros: i64) {
        let mut state = self.lock();
        let start = *state.start_micros.get_or_insert(now_micros);
        if now_micros < start {
            // The clock was set back: nobody knows how long this one was.
            state.take_looks();
            state.start_micros = Some(now_micros);
        } else if now_micros - start >= WINDOW_MICROS {
            state.close_window(start, self.cores);
            state.start_micros = Some(now_micros);
        }
        state.looks += 1;
        for tablet in self.threads.iter().filter_map(|thread| thread.on()) {
            *state.found.entry(tablet).or_default() += 1;
        }
    }

    /// The windows that began within a time, the hottest first.
    pub fn list(&self, start_micros: i64, end_micros: i64) -> Vec<Hot> {
        let state = self.lock();
        let within = start_micros..=end_micros;
        let all = state.intervals.values().flat_map(BTreeMap::values);
        let mut hot: Vec<_> =
            all.filter(|hot| within.contains(&hot.start_micros)).copied().collect();
        drop(state);
        hot.sort_by(|a, b| Rank::of(a).compare(&Rank::of(b)));
        hot
    }

    // A panic under the lock leaves counts that are whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The looks of the window, which is over, and what they found.
    fn take_looks(&mut self) -> (u64, HashMap<TabletId, u64>) {
        (std::mem::take(&mut self.looks), std::mem::take(&mut self.found))
    }

    fn close_window(&mut self, start_micros: i64, cores: usize) {
        let (looks, found) = self.take_looks();
        let chances = looks.saturating_mul(cores as u64).max(1) as f32;
        let interval = start_micros - start_micros.rem_euclid(INTERVAL_MICROS);
        // All looks were before that, however far ahead the clock was set since.
        let end_micros = start_micros.saturating_add(WINDOW_MICROS);
        // By distance: what a clock that was ahead once has left goes, too.
        self.intervals.retain(|start, _| start_micros.abs_diff(*start) <= KEPT_MICROS as u64);
        let hottest = self.intervals.entry(interval).or_default();
        for (tablet, count) in found {
            // Threads of one core that wait for each other are at work, all of them.
            let cpu_percent = (100.0 * count as f32 / chances).min(100.0);
            let hot = Hot { tablet, start_micros, end_micros, cpu_percent };
            let is_hotter = hottest.get(&tablet).is_none_or(|old| old.cpu_percent < cpu_percent);
            let has_room =
                hottest.contains_key(&tablet) || hottest.len() < TABLETS_PER_INTERVAL_MAX;
            if cpu_percent >= PERCENT_MIN && is_hotter && has_room {
                hottest.insert(tablet, hot);
            }
        }
        if hottest.is_empty() {
            self.intervals.remove(&interval);
        }
    }
}

/// What windows are ordered by.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Rank {
    #[prost(float, tag = "1")]
    cpu_percent: f32,
    #[prost(int64, tag = "2")]
    start_micros: i64,
    #[prost(fixed64, tag = "3")]
    tablet: u64,
}

impl Rank {
    fn of(hot: &Hot) -> Self {
        let Hot { tablet, start_micros, cpu_percent, .. } = *hot;
        Self { cpu_percent, start_micros, tablet: tablet.0 }
    }

    /// The hottest come first.
    fn compare(&self, other: &Self) -> Ordering {
        let by_heat = other.cpu_percent.total_cmp(&self.cpu_percent);
        let by_start = self.start_micros.cmp(&other.start_micros);
        by_heat.then(by_start).then(self.tablet.cmp(&other.tablet))
    }
}

/// What is left to list of what a request asks for: all of it, or what comes behind the page before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Left {
    /// Of the request but for its page, so that a token is not taken for another's.
    #[prost(fixed64, tag = "1")]
    request: u64,
    /// The time that is listed, in microseconds since 1970, as the first page found it.
    #[prost(int64, tag = "2")]
    start_micros: i64,
    #[prost(int64, tag = "3")]
    end_micros: i64,
    /// The last of the page before.
    #[prost(message, optional, tag = "4")]
    last: Option<Rank>,
}

impl Left {
    /// What a request for a cluster's tablets and a time asks for, checked.
    pub fn of(
        cluster: &str,
        start: Option<i64>,
        end: Option<i64>,
        page_token: &str,
        now_micros: i64,
    ) -> Result<Self> {
        let request = xxh3_64(format!("{cluster}\0{start:?}\0{end:?}").as_bytes());
        if page_token.is_empty() {
            let (start_micros, end_micros) = asked_span(start, end, now_micros)?;
            return Ok(Self { request, start_micros, end_micros, last: None });
        }
        let left: Option<Self> = page_tokens::decode(page_token, PAGE_TOKEN_CHARS_MAX);
        left.filter(|left| left.request == request && left.last.is_some()).ok_or_else(|| {
            Error::invalid_argument("page_token is not one of this parent, start_time and end_time")
        })
    }

    /// These windows, the hottest first.
    pub fn list(&self, hot_tablets: &HotTablets) -> Vec<Hot> {
        let mut all = hot_tablets.list(self.start_micros, self.end_micros);
        if let Some(last) = &self.last {
            all.retain(|hot| last.compare(&Rank::of(hot)).is_lt());
        }
        all
    }

    /// The token for what comes behind this one.
    pub fn behind(&self, last: &Hot) -> String {
        page_tokens::encode(&Self { last: Some(Rank::of(last)), ..self.clone() })
    }
}

/// The time that a request asks for, in microseconds, checked: at most 48 hours of the last 14 days.
fn asked_span(start: Option<i64>, end: Option<i64>, now_micros: i64) -> Result<(i64, i64)> {
    let end = end.unwrap_or(now_micros);
    let start = start.unwrap_or_else(|| end.saturating_sub(SPAN_MICROS_DEFAULT));
    let span = end.saturating_sub(start);
    let oldest = now_micros.saturating_sub(KEPT_MICROS);
    if span <= 0 {
        return Err(Error::invalid_argument("start_time must be before end_time"));
    }
    if span > SPAN_MICROS_MAX {
        return Err(Error::invalid_argument(
            "start_time and end_time must be at most 48 hours apart",
        ));
    }
    if start < oldest || end > now_micros.saturating_add(MINUTE_MICROS) {
        return Err(Error::invalid_argument(
            "start_time and end_time must be within the last 14 days",
        ));
    }
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use tepui_bigtable::activity;
    use tepui_bigtable::error::Code;
    use tepui_engine::io::{Spawner as _, ThreadSpawner};

    use super::*;

    const LOOK_MICROS: i64 = 250_000;
    const T: i64 = 1_000 * INTERVAL_MICROS;

    /// Looks for a window from `start` on, while one of two cores works for `tablet` in `busy` of four looks.
    fn window(hot: &HotTablets, start: i64, tablet: u64, busy: i64) {
        for look in 0..WINDOW_MICROS / LOOK_MICROS {
            if look % 4 < busy {
                activity::turn_to(TabletId(tablet));
            } else {
                activity::rest();
            }
            hot.look(start + look * LOOK_MICROS);
        }
    }

    #[test]
    fn a_tablet_is_as_hot_as_it_is_found_and_once_in_an_interval() {
        let hot = HotTablets::new(2, 1);
        activity::publish(Arc::clone(&hot.threads()[0]));
        window(&hot, T, 7, 2);
        window(&hot, T + WINDOW_MICROS, 7, 4);
        window(&hot, T + 2 * WINDOW_MICROS, 8, 1);
        window(&hot, T + INTERVAL_MICROS, 7, 1);
        hot.look(T + INTERVAL_MICROS + WINDOW_MICROS);
        let all = hot.list(T, T + INTERVAL_MICROS);
        let told: Vec<_> =
            all.iter().map(|h| (h.tablet.0, h.start_micros - T, h.cpu_percent)).collect();
        assert_eq!(
            told,
            [(7, WINDOW_MICROS, 50.0), (8, 2 * WINDOW_MICROS, 12.5), (7, INTERVAL_MICROS, 12.5)]
        );
        assert_eq!(all[0].end_micros - all[0].start_micros, WINDOW_MICROS);
        assert_eq!(hot.list(T + 2 * WINDOW_MICROS, T + 3 * WINDOW_MICROS).len(), 1);
        activity::rest();
        hot.look(T + KEPT_MICROS + 2 * INTERVAL_MICROS);
        hot.look(T + KEPT_MICROS + 3 * INTERVAL_MICROS);
        assert!(hot.list(0, i64::MAX).is_empty());
    }

    #[test]
    fn windows_are_of_a_minute_and_tell_of_a_tablet_once_in_an_interval_though_the_clock_is_set() {
        let hot = HotTablets::new(1, 1);
        activity::publish(Arc::clone(&hot.threads()[0]));
        let late = T + INTERVAL_MICROS;
        window(&hot, late, 7, 2);
        activity::turn_to(TabletId(9));
        hot.look(late + WINDOW_MICROS);
        // Back: 9 was found in a window that has no end.
        window(&hot, T, 8, 4);
        // And ahead: the window of 8 is over, but not that long.
        window(&hot, late + 2 * WINDOW_MICROS, 7, 4);
        activity::rest();
        hot.look(late + 3 * WINDOW_MICROS);
        let told: Vec<_> = hot
            .list(0, i64::MAX)
            .iter()
            .map(|hot| (hot.tablet.0, hot.start_micros - T, hot.end_micros - hot.start_micros))
            .collect();
        let later = late + 2 * WINDOW_MICROS - T;
        assert_eq!(told, [(8, 0, WINDOW_MICROS), (7, later, WINDOW_MICROS)]);
    }

    #[test]
    fn a_tablet_that_both_threads_of_a_core_work_for_takes_all_of_it_and_no_more() {
        let hot = HotTablets::new(1, 2);
        let other = Arc::clone(&hot.threads()[1]);
        let work = move || {
            activity::publish(other);
            // It is seen so from now on.
            activity::turn_to(TabletId(7));
        };
        ThreadSpawner.spawn("other", Box::new(work)).unwrap().join();
        activity::publish(Arc::clone(&hot.threads()[0]));
        window(&hot, T, 7, 4);
        hot.look(T + WINDOW_MICROS);
        let told: Vec<_> =
            hot.list(T, T).iter().map(|hot| (hot.tablet.0, hot.cpu_percent)).collect();
        assert_eq!(told, [(7, 100.0)]);
        activity::rest();
    }

    #[test]
    fn windows_that_are_measured_between_two_pages_move_nothing() {
        let hot = HotTablets::new(1, 1);
        activity::publish(Arc::clone(&hot.threads()[0]));
        for (tablet, busy) in [(7_u32, 3), (8, 2), (9, 1)] {
            window(&hot, T + i64::from(tablet) * WINDOW_MICROS, u64::from(tablet), busy);
        }
        let now = T + 10 * WINDOW_MICROS;
        hot.look(now);
        let left = |token: &str, now| Left::of("c", None, None, token, now);
        let tablets =
            |left: &Left| -> Vec<u64> { left.list(&hot).iter().map(|hot| hot.tablet.0).collect() };
        let first = left("", now).unwrap();
        assert_eq!(tablets(&first), [7, 8, 9]);
        let token = first.behind(&first.list(&hot)[0]);
        // Hotter ones come: one that began in the time that is listed, and one that did not.
        window(&hot, now, 6, 4);
        window(&hot, now + INTERVAL_MICROS, 9, 4);
        let later = now + INTERVAL_MICROS + WINDOW_MICROS;
        hot.look(later);
        activity::rest();
        let second = left(&token, later).unwrap();
        assert_eq!(tablets(&second), [8, 9]);
        assert_eq!(tablets(&left("", later).unwrap()), [9, 6, 7, 8, 9]);
        for other in [
            Left::of("d", None, None, &token, later),
            Left::of("c", Some(T), None, &token, later),
            left("1", later),
            left("2x", later),
            left(&"00".repeat(PAGE_TOKEN_CHARS_MAX), later),
        ] {
            assert_eq!(other.unwrap_err().kind(), Code::InvalidArgument);
        }
    }

    #[test]
    fn a_request_spans_at_most_48_hours_of_the_last_14_days() {
        let now = 100 * KEPT_MICROS;
        assert_eq!(asked_span(None, None, now).unwrap(), (now - SPAN_MICROS_DEFAULT, now));
        asked_span(Some(now - SPAN_MICROS_MAX), None, now).unwrap();
        for (start, end) in [
            (Some(now), Some(now)),
            (Some(now), Some(now - 1)),
            (Some(now - SPAN_MICROS_MAX - 1), Some(now)),
            (Some(now - KEPT_MICROS - 1), Some(now - KEPT_MICROS + 1)),
            (None, Some(now + 2 * MINUTE_MICROS)),
            (Some(i64::MIN), Some(i64::MAX)),
        ] {
            let error = asked_span(start, end, now).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{start:?} {end:?}");
        }
    }
}

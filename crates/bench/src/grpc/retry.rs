//! What a server says when it is asked for more than it can do: `RESOURCE_EXHAUSTED`, or of an entry of a request that it has
//! begun `UNAVAILABLE`, with `google.rpc.RetryInfo` in the status's details to say when to come back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use googleapis_tonic_google_rpc::google::rpc;
use prost::Message as _;
use tonic::Code;

use crate::clock::Timer;
use crate::error::{Error, Result};
use crate::workload::Limit;

/// How long to wait where a server does not say: long enough to take the load off, short enough to notice
/// when it is over.
const DELAY_DEFAULT: Duration = Duration::from_millis(10);
/// The longest wait that is obeyed: a benchmark that slept longer would measure nothing.
const DELAY_MAX: Duration = Duration::from_mins(1);
/// How long a server may refuse all that it is asked for while nothing but its answers ends the work. An overloaded one takes some
/// within seconds, and one that asks for the longest delay that is obeyed is asked once more behind it; one with a full disk refuses until somebody makes
/// room, who must be told.
const PATIENCE: Duration = DELAY_MAX.saturating_mul(2);
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// What becomes of an operation that the server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenRefused {
    /// It is made again after the time that the server asks for, and all of that is in its latency.
    Again,
    /// It is over, and counts as refused: the server is asked for what the workload says, however much it refuses.
    Over,
}

/// What a server says that is to be asked later.
#[derive(Debug)]
pub struct Refusal {
    /// After this time.
    pub delay: Duration,
    /// In its words.
    pub message: String,
}

/// How long a load or a run bears being refused, over all of its requests.
#[derive(Debug)]
pub struct Patience {
    /// None: for ever, since something else ends it.
    limit: Option<Duration>,
    timer: Timer,
    /// Of the first refusal since a request succeeded, in the timer's nanoseconds; 0 where there was none.
    since_nanos: AtomicU64,
}

impl Patience {
    /// Of a load.
    pub fn of_load() -> Self {
        Self::new(Some(PATIENCE))
    }

    /// Of a run, which time may end.
    pub fn of_run(limit: Limit) -> Self {
        match limit {
            Limit::Ops(_) => Self::new(Some(PATIENCE)),
            Limit::Seconds(_) => Self::new(None),
        }
    }

    fn new(limit: Option<Duration>) -> Self {
        Self { limit, timer: Timer::start(), since_nanos: AtomicU64::new(0) }
    }

    /// A request succeeded, at least in part.
    #[inline]
    pub fn served(&self) {
        // Looked at first: all threads share it, and it seldom changes.
        if self.since_nanos.load(Ordering::Relaxed) != 0 {
            self.since_nanos.store(0, Ordering::Relaxed);
        }
    }

    /// A request was refused: how long to wait before it is made again. An error with the server's words where no
    /// request has succeeded for too long.
    pub fn refused(&self, refusal: &Refusal) -> Result<Duration> {
        let now = self.timer.nanos().max(1);
        let first = self.since_nanos.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        match (first, self.limit) {
            (Err(since), Some(limit))
                if Duration::from_nanos(now.saturating_sub(since)) >= limit =>
            {
                Err(Error::failed(format!(
                    "the server has refused everything for {} s: {}",
                    limit.as_secs(),
                    refusal.message
                )))
            }
            _ => Ok(refusal.delay),
        }
    }
}

/// How often a server refused.
#[derive(Debug, Default)]
pub struct Refusals {
    all: AtomicU64,
    without_retry_info: AtomicU64,
    waited_micros: AtomicU64,
}

impl Refusals {
    /// Counts a refusal with these details; how long to wait before the next attempt.
    pub fn count(&self, details: &[u8]) -> Duration {
        self.take(retry_delay_of_details(details))
    }

    /// Whether the status of an entry within a response is that of a refusal.
    pub fn is_one(status: &rpc::Status) -> bool {
        match Code::from(status.code) {
            Code::ResourceExhausted => true,
            Code::Unavailable => retry_delay(status).is_some(),
            _ => false,
        }
    }

    /// What the status of an entry says: how long to wait.
    pub fn delay(status: &rpc::Status) -> Option<Duration> {
        retry_delay(status)
    }

    /// Counts the refusal of entries of one request, by the longest delay that they say where each of them says one; how long
    /// to wait before the next attempt.
    pub fn count_entries(&self, said: Option<Duration>) -> Duration {
        self.take(said)
    }

    fn take(&self, said: Option<Duration>) -> Duration {
        self.all.fetch_add(1, Ordering::Relaxed);
        if said.is_none() {
            self.without_retry_info.fetch_add(1, Ordering::Relaxed);
        }
        let delay = said.unwrap_or(DELAY_DEFAULT).min(DELAY_MAX);
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
        delay
    }

    /// Refused requests.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Of these, those that did not say when to come back.
    pub fn without_retry_info(&self) -> u64 {
        self.without_retry_info.load(Ordering::Relaxed)
    }

    /// What they were told to wait in all, in microseconds.
    pub fn waited_micros(&self) -> u64 {
        self.waited_micros.load(Ordering::Relaxed)
    }
}

/// The delay in the details of a gRPC status (`grpc-status-details-bin`), which are a `google.rpc.Status`.
fn retry_delay_of_details(details: &[u8]) -> Option<Duration> {
    retry_delay(&rpc::Status::decode(details).ok()?)
}

fn retry_delay(status: &rpc::Status) -> Option<Duration> {
    let info = status.details.iter().find(|any| any.type_url == RETRY_INFO)?;
    let delay = rpc::RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?);
    Some(Duration::from_secs(seconds) + Duration::from_nanos(u64::from(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(delay: prost_types::Duration) -> Vec<u8> {
        let info = rpc::RetryInfo { retry_delay: Some(delay) };
        let any = prost_types::Any { type_url: RETRY_INFO.to_owned(), value: info.encode_to_vec() };
        rpc::Status { code: 8, message: "busy".to_owned(), details: vec![any] }.encode_to_vec()
    }

    #[test]
    fn an_entry_is_refused_where_it_says_so_or_when_to_come_back() {
        let told = details(prost_types::Duration { seconds: 1, nanos: 0 });
        let told = rpc::Status::decode(&told[..]).unwrap();
        for (code, with_hint, without) in [
            (Code::ResourceExhausted, true, true),
            (Code::Unavailable, true, false),
            (Code::NotFound, false, false),
        ] {
            let told = rpc::Status { code: code.into(), ..told.clone() };
            assert_eq!(Refusals::is_one(&told), with_hint, "{code:?}");
            let silent = rpc::Status { details: Vec::new(), ..told };
            assert_eq!(Refusals::is_one(&silent), without, "{code:?}");
        }
    }

    #[test]
    fn who_is_refused_for_too_long_without_a_success_hears_what_the_server_says() {
        let refusal = || Refusal { delay: DELAY_DEFAULT, message: "disk full".to_owned() };
        let patience = Patience::new(Some(Duration::ZERO));
        for _ in 0..3 {
            assert_eq!(patience.refused(&refusal()), Ok(DELAY_DEFAULT), "the first one");
            patience.served();
        }
        patience.refused(&refusal()).unwrap();
        let error = patience.refused(&refusal()).unwrap_err().to_string();
        assert!(error.contains("disk full"), "{error}");
        for (patience, refusals) in [(Patience::of_load(), 2), (Patience::new(None), 1000)] {
            assert!((0..refusals).all(|_| patience.refused(&refusal()).is_ok()), "{patience:?}");
        }
        assert!(Patience::of_run(Limit::Ops(1)).limit.is_some());
        assert!(Patience::of_run(Limit::Seconds(1.0)).limit.is_none());
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_or_is_counted_as_one_that_does_not() {
        let refusals = Refusals::default();
        let told = details(prost_types::Duration { seconds: 1, nanos: 250_000_000 });
        assert_eq!(refusals.count(&told), Duration::from_millis(1250));
        assert_eq!((refusals.all(), refusals.without_retry_info()), (1, 0));
        let negative = details(prost_types::Duration { seconds: -1, nanos: 0 });
        for silent in [&b""[..], b"\xff\xff", &negative] {
            assert_eq!(refusals.count(silent), DELAY_DEFAULT);
        }
        assert_eq!((refusals.all(), refusals.without_retry_info()), (4, 3));
        let ages = details(prost_types::Duration { seconds: i64::MAX, nanos: 0 });
        assert_eq!(refusals.count(&ages), DELAY_MAX);
        assert!(refusals.waited_micros() > 61_000_000);
    }
}

//! Tokens by which a mutation of an aggregate family is applied once, however often it is sent.
//!
//! The token of a mutation is written with it, in the same batch, as a cell of a family that only reads which name it see:
//!
//! ```text
//! row r    sum:clicks @1000   operand +1     ┐ one batch: both are there or neither, after a crash too
//!          [server's own]:TOKEN @now         ┘
//! ```
//!
//! A mutation with a token first takes the row's lock and looks for it among what is written and pending. If it is there,
//! the mutation was applied and is answered as if it were now, once that is durable. So a retry does not count twice,
//! whether the first attempt's answer was lost, or the server. Memory holds nothing for it; compaction drops tokens
//! [`WINDOW`] and [`WAIT`] after their time: the server's, or that at which the first attempt began by its client, up to an hour ahead.
//!
//! Other mutations need no token: applied twice, they leave what they leave applied once. A row that is deleted loses its
//! tokens with its counts.

use std::time::Duration;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::{FAMILY_OWN_MIN, FamilyId, Mutation, RowBatch, Timestamp};
use tepui_engine::read::Projection;
use tepui_engine::schema::{FamilyOptions, GcRule};
use tepui_engine::tablet::{ReadView, Tablet};

use crate::error::{Error, Result};
use crate::mutation::truncate_to_granularity;

/// How long a token protects: Bigtable's documented fifteen minutes.
pub const WINDOW: Duration = Duration::from_mins(15);

/// How much longer a token is kept: a retry that is taken at the end of [`WINDOW`] looks for it when it has its row, behind other writes of that and
/// of its request. A shorter time, and one that waits as long as clients do would count twice; a longer one keeps tokens that nobody asks for.
pub const WAIT: Duration = Duration::from_mins(5);

/// How far the clock of a client may be ahead of the server's, so that its tokens are kept by it: the server's may be set right while
/// they protect. Those of a clock that is further ahead are kept for so long in addition.
const AHEAD_MAX: Duration = Duration::from_hours(1);

/// Bytes of a token, at least: Bigtable's documented limit.
pub const TOKEN_BYTES_MIN: usize = 8;

/// Bytes of a token, at most. Clients send 16 or so; each is kept for a while.
pub const TOKEN_BYTES_MAX: usize = 256;

/// The family of tokens.
pub const FAMILY: FamilyId = FAMILY_OWN_MIN;

/// What compaction must know of it.
pub fn family_options() -> FamilyOptions {
    let kept = GcRule::MaxAge(micros(WINDOW + WAIT));
    FamilyOptions { gc: Some(kept), aggregate: None, gc_since_micros: 0 }
}

fn window_micros() -> i64 {
    micros(WINDOW)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// A token that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    token: Bytes,
    /// The server's time of the request.
    now: Timestamp,
    /// When the first attempt began, by the client, where it says so.
    started: Option<Timestamp>,
}

impl Token {
    /// The token that goes with `batch`; `None` where none is given or nothing is added up. `now` is the server's time.
    ///
    /// Fails with INVALID_ARGUMENT for a token of a length that none has, and with FAILED_PRECONDITION for the first
    /// attempt of an addition so long ago that its token may be gone: nobody could tell whether it was applied.
    pub fn of(
        given: Option<&v2::Idempotency>,
        batch: &RowBatch,
        now: Timestamp,
    ) -> Result<Option<Self>> {
        let Some(given) = given else { return Ok(None) };
        let bytes = given.token.len();
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&bytes) {
            return Err(Error::field(
                "idempotency.token",
                format!("must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes, but has {bytes}"),
            ));
        }
        let adds = batch.mutations.iter().any(|m| matches!(m, Mutation::Merge { .. }));
        if !adds {
            return Ok(None);
        }
        let started = given.start_time.map(|time| {
            time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1_000)
        });
        let started = started.filter(|started| *started != 0);
        if started.is_some_and(|started| started < now.saturating_sub(window_micros())) {
            return Err(Error::failed_precondition(format!(
                "the first attempt of this mutation began more than {} minutes ago: whether it was \
                 applied is not known any more; read the cell before you send it anew",
                WINDOW.as_secs() / 60
            )));
        }
        Ok(Some(Self {
            token: given.token.clone(),
            now: truncate_to_granularity(now),
            started: started.map(truncate_to_granularity),
        }))
    }

    /// Whether a token with this timestamp is of the same mutation: of the last [`WINDOW`], or no older than the first attempt, which
    /// was not begun longer ago; the server's clock may have been set right since.
    fn is_applied(&self, seen: Timestamp, now: Timestamp) -> bool {
        seen >= now.saturating_sub(window_micros())
            || self.started.is_some_and(|started| seen >= started)
    }

    /// By when it is kept: the later one of the two clocks.
    fn kept_from(&self) -> Timestamp {
        let started = self.started.unwrap_or(self.now);
        started.clamp(self.now, self.now.saturating_add(micros(AHEAD_MAX)))
    }

    /// Applies the batch, which the tablet has let in, unless one with this token was applied within [`WINDOW`], or since its first attempt
    /// began.
    pub async fn apply(self, tablet: &Tablet, mut batch: RowBatch) -> Result<()> {
        let projection = Projection::newest_of([(FAMILY, self.token.clone())]);
        let lock = tablet.lock_row(&batch.row).await;
        let found = tablet.read_row(&batch.row, &projection, ReadView::Pending).await?;
        let newest = found.as_ref().and_then(|row| row.cells.first()).map(|cell| cell.timestamp);
        // While the clock is doubted, as after a jump, tokens stay.
        let now = self.now.min(tablet.expiry_micros());
        if newest.is_some_and(|seen| self.is_applied(seen, now)) {
            // Where that fails, the attempt that left it may be in the log, or lost.
            return Ok(tablet.wait_durable(lock).await.map_err(tepui_engine::Error::in_doubt)?);
        }
        drop(found);
        batch.mutations.push(Mutation::Put {
            family: FAMILY,
            timestamp: self.kept_from(),
            qualifier: self.token,
            value: Bytes::new(),
        });
        tablet.apply_locked(lock, batch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    const NOW: Timestamp = 1_700_000_000_123_456;

    fn given(token: &'static [u8], seconds: i64) -> v2::Idempotency {
        let start_time = (seconds != 0).then_some(prost_types::Timestamp { seconds, nanos: 0 });
        v2::Idempotency { token: Bytes::from_static(token), start_time }
    }

    fn batch(adds: bool) -> RowBatch {
        let (family, qualifier, timestamp) = (FamilyId(1), Bytes::new(), 0);
        let mutation = if adds {
            Mutation::Merge { family, qualifier, timestamp, operand: Bytes::new() }
        } else {
            Mutation::Put { family, qualifier, timestamp, value: Bytes::new() }
        };
        RowBatch { row: Bytes::from_static(b"r"), mutations: vec![mutation] }
    }

    #[test]
    fn only_what_adds_up_needs_a_token() {
        let token = given(b"12345678", 0);
        assert_eq!(Token::of(None, &batch(true), NOW).unwrap(), None);
        assert_eq!(Token::of(Some(&token), &batch(false), NOW).unwrap(), None);
        let found = Token::of(Some(&token), &batch(true), NOW).unwrap().unwrap();
        assert_eq!((found.token.as_ref(), found.now), (&b"12345678"[..], 1_700_000_000_123_000));
    }

    #[test]
    fn tokens_of_no_documented_length_and_expired_attempts_are_refused() {
        let now = NOW / 1_000_000;
        for (bad, code) in [
            (given(b"1234567", 0), Code::InvalidArgument),
            (given(&[7; 257], 0), Code::InvalidArgument),
            (given(b"12345678", now - 15 * 60 - 1), Code::FailedPrecondition),
            (given(b"12345678", i64::MIN), Code::FailedPrecondition),
        ] {
            assert_eq!(Token::of(Some(&bad), &batch(true), NOW).unwrap_err().kind(), code);
            // What is the same however often it is applied may come late.
            let other = Token::of(Some(&bad), &batch(false), NOW);
            assert_eq!(other.is_err(), code == Code::InvalidArgument);
        }
        for good in [now - 14 * 60, now + 3_600, i64::MAX] {
            Token::of(Some(&given(b"12345678", good)), &batch(true), NOW).unwrap();
        }
    }
}

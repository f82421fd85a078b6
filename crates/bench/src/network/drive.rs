//! Carrying out operations over a network: a thread has a runtime, some connections and a lane, and keeps as many
//! operations under way as are to be.
//!
//! ```text
//! closed loop:  an operation begins when one has ended
//! open loop:    an operation begins when it is due, or, with too many under way, when one has ended; then its
//!               latency counts from when it was due (see crate::run)
//! ```
//!
//! An operation that ends as [refused](ErrorKind::Refused) counts as such and gives its place to the next.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;

use super::pacer::Pacer;
use crate::error::{Error, ErrorKind, Result};
use crate::run::{Found, Lane, Ticket};

/// How soon after it has begun operations of an open loop a thread wakes up for the next ones, at the earliest: those that are
/// due meanwhile begin together, then or when an operation ends. A wake-up for each costs more than the operation does, on
/// processors that a server may share; the lateness, a quarter of a millisecond on average at high rates, is part of the
/// latencies.
const STEP_NANOS: u64 = 500_000;

/// How often a thread looks whether it is to stop, whatever its operations do.
const TICK: Duration = Duration::from_millis(100);
/// How long operations that are under way at the end are waited for; what takes longer is given up, which the run counts.
const DRAIN: Duration = Duration::from_secs(10);

/// Carries out the operations of a lane, so many at a time, on connections that are used in turn.
pub async fn drive<C: Clone>(
    lane: Lane<'_>,
    in_flight: usize,
    clients: &[C],
    carry_out: &impl AsyncFn(C, &Ticket) -> Result<Found>,
) -> Result<()> {
    drive_and_drain(lane, in_flight, clients, carry_out, DRAIN).await
}

/// The same, and waits so long for what is under way at the end.
async fn drive_and_drain<C: Clone>(
    mut lane: Lane<'_>,
    in_flight: usize,
    clients: &[C],
    carry_out: &impl AsyncFn(C, &Ticket) -> Result<Found>,
    drain: Duration,
) -> Result<()> {
    let mut clients = clients.iter().cycle();
    let mut pacer = Pacer::new()?;
    let mut ticks = tokio::time::interval(TICK);
    let mut working = FuturesUnordered::new();
    // An operation of an open loop that is not due yet.
    let mut next: Option<Ticket> = None;
    let mut begun_nanos = 0;
    let (mut ended, mut drained_ticks) = (false, 0);
    loop {
        let mut due_nanos = None;
        while working.len() < in_flight && !ended {
            let Some(ticket) = next.take().or_else(|| lane.begin()) else {
                ended = true;
                break;
            };
            let now_nanos = lane.now_nanos();
            if ticket.due_nanos() > now_nanos {
                due_nanos = Some(ticket.due_nanos().max(begun_nanos + STEP_NANOS));
                next = Some(ticket);
                break;
            }
            begun_nanos = now_nanos;
            let client = clients.next().cloned().ok_or_else(|| Error::failed("no connection"))?;
            working.push(async move {
                let found = carry_out(client, &ticket).await;
                (ticket, found)
            });
        }
        if ended && working.is_empty() {
            return Ok(());
        }
        let (now, under_way) = (lane.now_nanos(), working.len() as u64);
        let due = async {
            match due_nanos {
                Some(at) => pacer.until(at, now).await,
                None => std::future::pending().await,
            }
        };
        let done = async {
            match working.next().await {
                Some(done) => done,
                None => std::future::pending().await,
            }
        };
        let (due, tick) = (std::pin::pin!(due), std::pin::pin!(ticks.tick()));
        match select(std::pin::pin!(done), select(due, tick)).await {
            Either::Left(((ticket, found), _)) => {
                match found {
                    Ok(found) => drop(lane.end(&ticket, found)?),
                    // Its place is free: in an open loop for what is due next.
                    Err(error) if error.kind() == ErrorKind::Refused => lane.refuse(),
                    Err(error) => return Err(error),
                }
            }
            Either::Right((Either::Left((due, _)), _)) => due?,
            Either::Right((Either::Right(_), _)) => {
                if lane.is_over() {
                    if !ended {
                        // Nothing has ended since: the lane counts what it could not begin.
                        ended = lane.begin().is_none();
                    }
                    drained_ticks += 1;
                }
                if drained_ticks > (drain.as_millis() / TICK.as_millis()) as u32 {
                    lane.give_up(under_way);
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::network::runtime;
    use crate::progress::Progress;
    use crate::run::Run;
    use crate::workload::{Limit, OpKind, Workload};

    #[test]
    fn refused_operations_end_and_leave_their_places_to_what_is_due_next() {
        let dataset = Dataset { rows: 100, key_bytes: 24, columns: 1, value_bytes: 10, seed: 1 };
        let workload =
            Workload { in_flight: 4, limit: Limit::Ops(100), ..Workload::of("w", OpKind::Put) };
        let progress = Progress::hidden();
        let run = Run::new(&dataset, &workload, &progress).unwrap();
        let asked = std::cell::Cell::new(0);
        // The server takes one of ten.
        let answer = async |(): (), _: &Ticket| {
            asked.set(asked.get() + 1);
            if asked.get() % 10 == 0 { Ok(Found::default()) } else { Err(Error::refused()) }
        };
        let driven = drive(run.lane(0, 1), 4, &[()], &answer);
        runtime().unwrap().block_on(driven).unwrap();
        let measured = run.finish();
        assert_eq!((asked.get(), measured.ops, measured.refused), (100, 10, 90));
        assert_eq!((measured.writes.len(), measured.unsent, measured.given_up), (10, 0, 0));
    }

    #[test]
    fn what_a_server_that_stops_for_good_owes_is_counted() {
        let dataset = Dataset { rows: 100, key_bytes: 24, columns: 1, value_bytes: 10, seed: 1 };
        // 40 operations are due; 8 may be under way, and the server answers the first one only.
        let workload = Workload {
            rate: Some(80.0),
            in_flight: 8,
            limit: Limit::Seconds(0.5),
            ..Workload::of("w", OpKind::Put)
        };
        let progress = Progress::hidden();
        let run = Run::new(&dataset, &workload, &progress).unwrap().over_time(0.1);
        let first = std::cell::Cell::new(true);
        let answer = async |(): (), _: &Ticket| {
            if first.replace(false) { Ok(Found::default()) } else { std::future::pending().await }
        };
        let lane = run.lane(0, 1);
        let driven = drive_and_drain(lane, 8, &[()], &answer, Duration::from_millis(200));
        runtime().unwrap().block_on(driven).unwrap();
        let measured = run.finish();
        assert_eq!((measured.ops, measured.given_up, measured.unsent), (1, 8, 40 - 9));
        let gap = measured.write_gap_nanos.unwrap();
        assert!(gap >= 600_000_000, "{gap}: the rest of the time, and what was waited after it");
    }
}

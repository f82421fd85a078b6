//! Carrying out operations over a network: a thread has a runtime, some connections and a lane, and keeps as many
//! operations under way as are to be.
//!
//! ```text
//! closed loop:  an operation begins when one has ended
//! open loop:    an operation begins when it is due, or, with too many under way, when one has ended; then its
//!               latency counts from when it was due (see crate::run)
//! ```

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;

use super::ask::{Asks, Naming};
use super::client::{Client, Failure, Outcome};
use super::pacer::Pacer;
use super::retry::Refusals;
use super::rows::{Expected, RowsCheck};
use crate::check::ScanCheck;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::run::{Found, Lane, Ticket};
use crate::workload::Op;

/// How often a thread looks whether it is to stop, whatever its operations do.
const TICK: Duration = Duration::from_millis(100);
/// How long operations that are under way at the end are waited for; what takes longer is given up and not in
/// the figures.
const DRAIN: Duration = Duration::from_secs(10);
/// Rows that inserts may add to a data set: keys of rows up to there are known to a scan.
const INSERTS_MAX: u64 = 1 << 40;

/// One thread's worker.
pub struct Worker<'a> {
    /// Its connections, used in turn.
    pub clients: Vec<Client>,
    /// What it asks for.
    pub asks: &'a Asks,
    /// The rows that were loaded.
    pub dataset: &'a Dataset,
    /// What the server refused.
    pub refusals: &'a Refusals,
}

impl Worker<'_> {
    /// Carries out the operations of a lane, so many at a time.
    pub async fn work(&self, mut lane: Lane<'_>, in_flight: usize) -> Result<()> {
        let known =
            Dataset { rows: self.dataset.rows.saturating_add(INSERTS_MAX), ..*self.dataset };
        let mut clients = self.clients.iter().cycle();
        let mut pacer = Pacer::new()?;
        let mut ticks = tokio::time::interval(TICK);
        let mut working = FuturesUnordered::new();
        // An operation of an open loop that is not due yet.
        let mut next: Option<Ticket> = None;
        let (mut ended, mut drained_ticks) = (false, 0);
        loop {
            let mut due_nanos = None;
            while working.len() < in_flight && !ended {
                let Some(ticket) = next.take().or_else(|| lane.begin()) else {
                    ended = true;
                    break;
                };
                if ticket.due_nanos() > lane.now_nanos() {
                    due_nanos = Some(ticket.due_nanos());
                    next = Some(ticket);
                    break;
                }
                let client =
                    clients.next().cloned().ok_or_else(|| Error::failed("no connection"))?;
                working.push(self.carry_out(client, &known, ticket));
            }
            if ended && working.is_empty() {
                return Ok(());
            }
            let now = lane.now_nanos();
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
                    lane.end(&ticket, found?)?;
                }
                Either::Right((Either::Left((due, _)), _)) => due?,
                Either::Right((Either::Right(_), _)) => {
                    if lane.is_over() {
                        ended = true;
                        drained_ticks += 1;
                    }
                    if drained_ticks > (DRAIN.as_millis() / TICK.as_millis()) as u32 {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn carry_out(
        &self,
        mut client: Client,
        known: &Dataset,
        ticket: Ticket,
    ) -> (Ticket, Result<Found>) {
        loop {
            match self.attempt(&mut client, known, &ticket).await {
                Ok(found) => return (ticket, Ok(found)),
                Err(Failure::Failed(error)) => return (ticket, Err(error)),
                // What it waits is in its latency: the client has not been served yet.
                Err(Failure::Refused(delay)) => tokio::time::sleep(delay).await,
            }
        }
    }

    async fn attempt(
        &self,
        client: &mut Client,
        known: &Dataset,
        ticket: &Ticket,
    ) -> Outcome<Found> {
        let columns = self.dataset.columns;
        let depth = ticket.depth;
        match &ticket.op {
            Op::Get { row } => self.read(client, &[*row], Naming::Columns, 0..columns, depth).await,
            Op::GetFamily { row } | Op::GetAbsent { row } => {
                self.read(client, &[*row], Naming::Family, 0..columns, depth).await
            }
            Op::GetRow { row } => self.read(client, &[*row], Naming::Row, 0..columns, depth).await,
            Op::GetColumns { row, first, count } => {
                let naming = Naming::Neighbours(*first, *count);
                self.read(client, &[*row], naming, *first..first + count, depth).await
            }
            Op::MultiGet { rows } => self.multi_get(client, rows, depth).await,
            Op::Scan { row, rows, reverse } => {
                let scan = ScanCheck::new(known, *row, *reverse, depth);
                let check = RowsCheck::new(known, Expected::Scan(scan), 0..columns, depth);
                let request = self.asks.scan(*row, *rows, *reverse);
                client.read(request, check, self.refusals).await
            }
            Op::Put { row } | Op::Insert { row } => self.write(client, *row, 0..columns).await,
            Op::Update { row, column } => self.write(client, *row, *column..column + 1).await,
            Op::ReadUpdate { row, column } => {
                let found = self.read(client, &[*row], Naming::Family, 0..columns, depth).await?;
                self.write(client, *row, *column..column + 1).await?;
                Ok(found)
            }
            Op::Increment { row } => {
                let request = self.asks.increment(*row);
                client.increment(request, self.refusals).await?;
                Ok(Found::default())
            }
        }
    }

    async fn read(
        &self,
        client: &mut Client,
        rows: &[u64],
        naming: Naming,
        columns: std::ops::Range<u32>,
        depth: Depth,
    ) -> Outcome<Found> {
        let check = RowsCheck::new(self.dataset, Expected::Rows(rows), columns, depth);
        client.read(self.asks.rows(rows, naming), check, self.refusals).await
    }

    /// Reads several rows in one call. One that is asked for twice comes once, and counts as asked.
    async fn multi_get(&self, client: &mut Client, rows: &[u64], depth: Depth) -> Outcome<Found> {
        let distinct: std::collections::BTreeSet<u64> = rows.iter().copied().collect();
        let distinct: Vec<u64> = distinct.into_iter().collect();
        let mut found =
            self.read(client, &distinct, Naming::Columns, 0..self.dataset.columns, depth).await?;
        if found.rows == distinct.len() as u64 {
            found.rows = rows.len() as u64;
        }
        Ok(found)
    }

    async fn write(
        &self,
        client: &mut Client,
        row: u64,
        columns: std::ops::Range<u32>,
    ) -> Outcome<Found> {
        client.write(self.asks.write(row, columns), self.refusals).await?;
        Ok(Found::default())
    }
}

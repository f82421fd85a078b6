//! What an operation asks of a server of the API, and again where the server asks to come back.

use super::ask::{Asks, Naming};
use super::client::{Client, Failure, Outcome};
use super::retry::{Patience, Refusals, WhenRefused};
use super::rows::ChunkCheck;
use crate::check::{Expected, RowsCheck, ScanCheck};
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::run::{Found, Ticket};
use crate::workload::Op;

/// Carries out operations on a table.
pub struct Worker<'a> {
    /// What it asks for.
    pub asks: &'a Asks,
    /// The rows that were loaded.
    pub dataset: &'a Dataset,
    /// These, and those that a run may insert.
    pub known: Dataset,
    /// What the server refused.
    pub refusals: &'a Refusals,
    /// And what becomes of that.
    pub when_refused: WhenRefused,
    /// How long it may refuse everything.
    pub patience: Patience,
}

impl Worker<'_> {
    /// Carries out an operation, however often the server refuses it while it takes others; or [refused](crate::ErrorKind::Refused), where that is
    /// its end.
    pub async fn carry_out(&self, mut client: Client, ticket: &Ticket) -> Result<Found> {
        let mut left = match &ticket.op {
            Op::MultiPut { rows } => rows.to_vec(),
            _ => Vec::new(),
        };
        loop {
            let due = left.len();
            let attempted = self.attempt(&mut client, ticket, &mut left).await;
            if attempted.is_ok() || left.len() < due {
                self.patience.served();
            }
            match attempted {
                Ok(found) => return Ok(found),
                Err(Failure::Failed(error)) => return Err(error),
                Err(Failure::Refused(_)) if self.when_refused == WhenRefused::Over => {
                    return Err(Error::refused());
                }
                // What it waits is in its latency: the client has not been served yet.
                Err(Failure::Refused(refusal)) => {
                    tokio::time::sleep(self.patience.refused(&refusal)?).await;
                }
            }
        }
    }

    /// Carries it out once; `left` are the rows of a write of many that are still to be written.
    async fn attempt(
        &self,
        client: &mut Client,
        ticket: &Ticket,
        left: &mut Vec<u64>,
    ) -> Outcome<Found> {
        let columns = self.dataset.columns;
        let depth = ticket.depth;
        match &ticket.op {
            Op::Get { row } => self.read(client, &[*row], Naming::Columns, 0..columns, depth).await,
            Op::GetFamily { row } | Op::GetAbsent { row } => {
                self.read(client, &[*row], Naming::Family, 0..columns, depth).await
            }
            Op::GetRow { row } | Op::GetAbsentRow { row } => {
                self.read(client, &[*row], Naming::Row, 0..columns, depth).await
            }
            op @ Op::GetLackedFamily { .. } => Err(op.unsupported("a server").into()),
            Op::GetColumns { row, first, count } => {
                let naming = Naming::Neighbours(*first, *count);
                self.read(client, &[*row], naming, *first..first + count, depth).await
            }
            Op::MultiGet { rows } => self.multi_get(client, rows, depth).await,
            Op::Scan { row, rows, reverse } => {
                let scan = ScanCheck::new(&self.known, *row, *reverse, depth);
                let check = RowsCheck::new(&self.known, Expected::Scan(scan), 0..columns, depth);
                let request = self.asks.scan(*row, *rows, *reverse);
                client.read(request, ChunkCheck::new(check), self.refusals).await
            }
            Op::Put { row } | Op::Insert { row } => self.write(client, *row, 0..columns).await,
            Op::MultiPut { .. } => {
                client.load(self.asks, left, self.refusals).await?;
                Ok(Found::default())
            }
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
        let check = RowsCheck::new(&self.known, Expected::Rows(rows), columns, depth);
        client.read(self.asks.rows(rows, naming), ChunkCheck::new(check), self.refusals).await
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

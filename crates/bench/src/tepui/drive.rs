//! Carrying out operations: a runtime a thread, as many loops on it as operations are to be in flight, each
//! taking the next operation when its last is done. With one loop a thread there is no runtime: the thread
//! blocks while it reads, as a program would that embeds the engine and has a thread for each read.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tepui_engine::cell::{ReadRow, RowRange};
use tepui_engine::read::{FamilyProjection, Projection, Qualifiers};
use tepui_engine::tablet::{ReadView, ScanOptions};

use super::{FAMILY, LACKED, Tepui, increment, load};
use crate::check::ScanCheck;
use crate::cores::Cores;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::run::{Found, Lane, Run, Ticket};
use crate::workload::{Op, OpKind, Workload};

/// How long a loop may go on without once waiting before the others have their turn, in nanoseconds: what has
/// arrived for them in the meantime must not seem late. Shorter turns would cost the loops of a cached run more
/// in turns than this makes anyone wait.
const TURN_NANOS: u64 = 50_000;

/// What operations ask of the engine, made once a run.
struct Asks {
    named: Projection,
    family: Projection,
    lacked: Projection,
    row: Projection,
    counter: Projection,
    /// By number of columns: neighbours, by the first of them.
    neighbours: HashMap<u32, Vec<Projection>>,
}

impl Asks {
    fn new(dataset: &Dataset, kinds: impl Iterator<Item = OpKind>) -> Self {
        let all: Vec<u32> = (0..dataset.columns).collect();
        let neighbours = kinds
            .filter_map(|kind| match kind {
                OpKind::GetColumns(count) => {
                    Some((count, all.windows(count as usize).map(exactly).collect()))
                }
                _ => None,
            })
            .collect();
        let whole =
            |family| newest(Some(vec![FamilyProjection { family, qualifiers: Qualifiers::ALL }]));
        Self {
            named: exactly(&all),
            family: whole(FAMILY),
            lacked: whole(LACKED),
            row: newest(None),
            counter: increment::ask(),
            neighbours,
        }
    }

    fn neighbours(&self, first: u32, count: u32) -> &Projection {
        self.neighbours.get(&count).and_then(|by| by.get(first as usize)).unwrap_or(&self.named)
    }
}

fn newest(families: Option<Vec<FamilyProjection>>) -> Projection {
    Projection { families, versions_max: 1, ..Projection::all() }
}

/// Names each of the columns.
fn exactly(columns: &[u32]) -> Projection {
    Projection::newest_of(columns.iter().map(|c| (FAMILY, Dataset::qualifier(*c).into())))
}

/// Runs a workload.
pub(super) fn run(store: &Tepui, run: &Run<'_>) -> Result<()> {
    let workload = run.workload();
    let asks = Asks::new(run.dataset(), workload.mix.iter().map(|share| share.kind));
    let threads = workload.threads;
    run.on_threads(threads, |index, lane| {
        let io = Arc::clone(&store.engine.env().io);
        let worker =
            Worker { store, asks: &asks, dataset: run.dataset(), lane: RefCell::new(lane) };
        if waits_for_one_read(workload) {
            let attached = io.attach_blocking()?;
            // What else an operation waits for (the log, another's load) wakes it from another thread.
            if attached.is_attached() {
                return pollster::block_on(worker.work(false));
            }
        }
        // What does not divide goes to the first threads.
        let loops =
            workload.in_flight / threads + usize::from(index < workload.in_flight % threads);
        let _core = Cores::of_worker(index, workload)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::failed(format!("runtime: {error}")))?;
        runtime.block_on(async {
            let _attached = io.attach()?;
            if loops <= 1 {
                return worker.work(false).await;
            }
            let mut working: FuturesUnordered<_> = (0..loops).map(|_| worker.work(true)).collect();
            let mut result = Ok(());
            while let Some(ended) = working.next().await {
                if ended.is_err() {
                    run.abort();
                }
                result = result.and(ended);
            }
            result
        })
    })
}

/// Whether each thread has one operation in flight, which asks for its blocks together: then it can as well
/// sleep in the read itself.
fn waits_for_one_read(workload: &Workload) -> bool {
    workload.in_flight <= workload.threads
        && workload.mix.iter().all(|share| !matches!(share.kind, OpKind::MultiGet(_)))
}

struct Worker<'a> {
    store: &'a Tepui,
    asks: &'a Asks,
    dataset: &'a Dataset,
    lane: RefCell<Lane<'a>>,
}

/// Gives the other tasks of the runtime a turn.
async fn step_aside() {
    let mut stepped = false;
    poll_fn(|context| {
        if stepped {
            return std::task::Poll::Ready(());
        }
        stepped = true;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

impl Worker<'_> {
    async fn work(&self, shared: bool) -> Result<()> {
        let mut key = Vec::with_capacity(self.dataset.key_bytes);
        let mut turn_began = None;
        loop {
            let Some(ticket) = self.lane.borrow_mut().begin() else { return Ok(()) };
            let mut waited = false;
            let found = {
                let mut operation = pin!(self.carry_out(&ticket, &mut key));
                poll_fn(|context| {
                    let polled = operation.as_mut().poll(context);
                    waited |= polled.is_pending();
                    polled
                })
                .await?
            };
            let ended = self.lane.borrow_mut().end(&ticket, found)?;
            if !shared {
                continue;
            }
            let began = if waited { ended } else { *turn_began.get_or_insert(ended) };
            turn_began = Some(began);
            if ended.saturating_sub(began) >= TURN_NANOS {
                turn_began = None;
                step_aside().await;
            }
        }
    }

    async fn carry_out(&self, ticket: &Ticket, key: &mut Vec<u8>) -> Result<Found> {
        let depth = ticket.depth;
        match &ticket.op {
            Op::Get { row } | Op::GetAbsent { row } => {
                self.get(*row, &self.asks.named, self.all(), depth, key).await
            }
            Op::GetFamily { row } => {
                self.get(*row, &self.asks.family, self.all(), depth, key).await
            }
            Op::GetRow { row } | Op::GetAbsentRow { row } => {
                self.get(*row, &self.asks.row, self.all(), depth, key).await
            }
            Op::GetLackedFamily { row } => {
                self.get(*row, &self.asks.lacked, 0..0, depth, key).await
            }
            Op::GetColumns { row, first, count } => {
                let asked = *first..first + count;
                self.get(*row, self.asks.neighbours(*first, *count), asked, depth, key).await
            }
            Op::MultiGet { rows } => self.multi_get(rows, depth).await,
            Op::Scan { row, rows, reverse } => self.scan(*row, *rows, *reverse, depth, key).await,
            Op::Put { row } => {
                let batch = load::batch(self.dataset, *row, self.all());
                self.store.tablet.apply_when_room(batch).await?;
                Ok(Found::default())
            }
            Op::MultiPut { rows } => {
                let batches = rows.iter().map(|row| load::batch(self.dataset, *row, self.all()));
                self.store.tablet.apply_rows_when_room(batches.collect()).await?;
                Ok(Found::default())
            }
            Op::Increment { row } => {
                self.dataset.key_into(*row, key);
                increment::increment(&self.store.counters, key, &self.asks.counter).await?;
                Ok(Found::default())
            }
            op => Err(op.unsupported(&self.store.name)),
        }
    }

    fn all(&self) -> std::ops::Range<u32> {
        0..self.dataset.columns
    }

    async fn get(
        &self,
        row: u64,
        ask: &Projection,
        columns: std::ops::Range<u32>,
        depth: Depth,
        key: &mut Vec<u8>,
    ) -> Result<Found> {
        self.dataset.key_into(row, key);
        match self.store.tablet.read_row_in_place(key, ask, ReadView::Durable).await? {
            Some(found) => self.check(row, &found, &columns, depth),
            None => Ok(Found::default()),
        }
    }

    async fn multi_get(&self, rows: &[u64], depth: Depth) -> Result<Found> {
        let mut reads: FuturesUnordered<_> = rows
            .iter()
            .map(|row| async move {
                let mut key = Vec::new();
                self.get(*row, &self.asks.named, self.all(), depth, &mut key).await
            })
            .collect();
        let mut total = Found::default();
        while let Some(found) = reads.next().await {
            let found = found?;
            total.rows += found.rows;
            total.value_bytes += found.value_bytes;
        }
        Ok(total)
    }

    async fn scan(
        &self,
        row: u64,
        rows: u32,
        reverse: bool,
        depth: Depth,
        key: &mut Vec<u8>,
    ) -> Result<Found> {
        self.dataset.key_into(row, key);
        let here = RowRange::row(key);
        let range = if reverse {
            RowRange::new(Bytes::new(), here.end)
        } else {
            RowRange::new(here.start, Bytes::new())
        };
        let options = ScanOptions {
            range,
            projection: self.asks.family.clone(),
            reverse,
            rows_hint: Some(rows as usize),
            snapshot: None,
        };
        let mut stream = self.store.tablet.scan(options)?;
        let mut check = ScanCheck::new(self.dataset, row, reverse, depth);
        let mut total = Found::default();
        while total.rows < u64::from(rows)
            && let Some(found) = stream.next_in_place().await?
        {
            if found.is_mark() {
                continue;
            }
            total.rows += 1;
            total.value_bytes += match check.row(found.key())? {
                Some(number) => self.check(number, &found, &self.all(), depth)?.value_bytes,
                None => self.lengths(&found)?,
            };
        }
        Ok(total)
    }

    /// Compares a row with what was written.
    fn check(
        &self,
        row: u64,
        found: &ReadRow,
        columns: &std::ops::Range<u32>,
        depth: Depth,
    ) -> Result<Found> {
        if depth == Depth::Full && *found.key() != self.dataset.key(row) {
            return Err(Error::mismatch(format!(
                "row {row} came back under the key {:?}",
                found.key()
            )));
        }
        let expected = self.store.columns.sorted.iter().filter(|(_, c)| columns.contains(c));
        let mut cells = found.cells();
        let mut value_bytes = 0;
        for (qualifier, column) in expected {
            let cell =
                cells.next().filter(|cell| cell.qualifier == qualifier).ok_or_else(|| {
                    Error::mismatch(format!("row {row} came back without column {column}"))
                })?;
            self.dataset.check(row, *column, cell.value, depth)?;
            value_bytes += cell.value.len() as u64;
        }
        match cells.next() {
            Some(extra) => {
                let extra = extra.qualifier.escape_ascii();
                Err(Error::mismatch(format!("row {row} has a cell \"{extra}\" too many")))
            }
            None => Ok(Found { rows: 1, value_bytes }),
        }
    }

    /// The bytes of a row's values, whose number must be right.
    fn lengths(&self, found: &ReadRow) -> Result<u64> {
        let value_bytes: usize = found.cells().map(|cell| cell.value.len()).sum();
        if value_bytes != self.dataset.columns as usize * self.dataset.value_bytes {
            return Err(Error::mismatch(format!(
                "{:?} came back with {value_bytes} bytes of values",
                found.key()
            )));
        }
        Ok(value_bytes as u64)
    }
}

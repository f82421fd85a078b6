//! `tepui import`: files into a table.
//!
//! ```text
//! file ──► records ──► batches ──► MutateRows, several at once ──► acknowledged in order ──► journal
//!             │                        │
//!             └─ no row ──► rejected ◄─┴─ refused for good
//! ```
//!
//! Each worker takes one file after the other, with a connection of its own. What it holds in memory is its requests
//! under way. The journal moves on in the order of the file, so that an interrupted import goes on behind the last
//! record before which everything is dealt with.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use indicatif::ProgressBar;

use crate::client::{Client, Patience, Stop, Target};
use crate::error::{Error, Result};
use crate::files::{self, Position};
use crate::format::rejected::Line;
use crate::format::{self, ReadOptions, Record, Source};
use crate::journal::{Earlier, Journal, Step};
use crate::row::{MUTATIONS_MAX, Row};
use crate::write::{Entry, write};
use crate::{lock, runtime};

/// Bytes after which a request is sent, however few rows it has: larger ones are no faster, and are held in memory.
const BATCH_BYTES: usize = 1 << 20;
/// Most workers: each is a thread, a connection and an open file.
pub const WORKERS_MAX: usize = 256;
/// Most requests under way of one worker.
pub const IN_FLIGHT_MAX: usize = 1000;

/// What to import, and how.
#[derive(Debug, Clone)]
pub struct Import {
    /// Where to.
    pub target: Target,
    /// Files, patterns and directories.
    pub names: Vec<String>,
    /// How to read them.
    pub read: ReadOptions,
    /// Files that are read at the same time.
    pub workers: usize,
    /// Requests under way of each.
    pub in_flight: usize,
    /// Most rows of a request.
    pub batch_rows: usize,
    /// Where the progress is kept.
    pub state: PathBuf,
    /// What to do about progress that is there.
    pub earlier: Earlier,
    /// Where records are set aside.
    pub rejected: PathBuf,
    /// The most of them.
    pub rejected_max: u64,
    /// Make the table and families that are missing.
    pub create: bool,
    /// Read and check everything, write nothing to the table.
    pub dry_run: bool,
    /// How long without success until it gives up.
    pub retry_for: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files.
    pub files: usize,
    /// Rows that were written.
    pub rows: u64,
    /// Their cells and bytes.
    pub cells: u64,
    /// See `cells`.
    pub bytes: u64,
    /// Rows without cells, of which nothing is written.
    pub empty: u64,
    /// Records that were set aside, and where.
    pub rejected: u64,
    /// See `rejected`.
    pub rejected_path: PathBuf,
}

/// Runs an import.
pub fn import(import: &Import, bar: &ProgressBar, stop: &Stop) -> Result<Summary> {
    let sound = [
        ("workers", import.workers, WORKERS_MAX),
        ("requests in flight", import.in_flight, IN_FLIGHT_MAX),
        ("rows of a request", import.batch_rows, MUTATIONS_MAX),
    ];
    for (what, value, most) in sound {
        if !(1..=most).contains(&value) {
            return Err(Error::failed(format!("{value} {what}: from 1 to {most}")));
        }
    }
    let paths = files::expand(&import.names)?;
    let families = runtime()?.block_on(families(import))?;
    let table = import.target.table_name();
    let journal = Journal::open(
        (!import.dry_run).then_some(import.state.as_path()),
        &table,
        &import.read,
        &paths,
        &import.rejected,
        import.rejected_max,
        if import.dry_run { Earlier::Refuse } else { import.earlier },
    )?;
    bar.set_length(journal.files().iter().map(|file| file.file.bytes).sum());
    let shared = Shared {
        import,
        read: journal.read_options().clone(),
        journal: Mutex::new(journal),
        families: Mutex::new(families),
        next: AtomicUsize::new(0),
        bar,
        stop,
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers = import.workers.min(paths.len());
        let work = || {
            let done = runtime().and_then(|runtime| runtime.block_on(shared.work()));
            if done.is_err() {
                // The others finish what they have under way; this error is the one that counts.
                shared.next.store(paths.len(), Ordering::Relaxed);
                stop.stop();
            }
            done
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let journal = shared.journal.into_inner().map_err(|_| Error::failed("a thread panicked"))?;
    // Whatever happened, what is done is noted.
    journal.save()?;
    crate::first_failure(ended)?;
    let mut summary = Summary {
        files: journal.files().len(),
        rejected_path: journal.rejected_path().to_owned(),
        ..Summary::default()
    };
    for file in journal.files() {
        summary.rows += file.rows;
        summary.cells += file.cells;
        summary.bytes += file.bytes;
        summary.empty += file.empty;
        summary.rejected += file.rejected;
    }
    journal.finish()?;
    Ok(summary)
}

/// The table's families.
async fn families(import: &Import) -> Result<BTreeSet<String>> {
    let mut client = Client::connect(&import.target).await?;
    if let Some(families) = client.families().await? {
        return Ok(families.into_iter().collect());
    }
    if !import.create {
        let table = import.target.table_name();
        return Err(Error::failed(format!("{table} does not exist: create it, or give --create")));
    }
    if !import.dry_run {
        client.create_table().await?;
    }
    Ok(BTreeSet::new())
}

struct Shared<'a> {
    import: &'a Import,
    read: ReadOptions,
    journal: Mutex<Journal>,
    /// Those that the table has.
    families: Mutex<BTreeSet<String>>,
    /// The next file.
    next: AtomicUsize,
    bar: &'a ProgressBar,
    stop: &'a Stop,
}

/// What one request writes, and what else is dealt with once it is acknowledged.
#[derive(Default)]
struct Batch {
    file: String,
    entries: Vec<Entry>,
    step: Step,
    /// Families to be made first.
    create: BTreeSet<String>,
    /// How far the file was read, in bytes.
    position: u64,
}

/// Cuts a file into batches.
struct Batches<'a> {
    shared: &'a Shared<'a>,
    source: Box<dyn Source>,
    file: String,
    position: Position,
    records: u64,
    /// The rest of a row that has more cells than a request takes.
    rest: Option<Row>,
    ended: bool,
}

impl Shared<'_> {
    async fn work(&self) -> Result<()> {
        let mut client = None;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(state) = lock(&self.journal)?.files().get(index).cloned() else {
                return Ok(());
            };
            if state.done {
                self.bar.inc(state.file.bytes);
                continue;
            }
            let client = match &client {
                Some(client) => client,
                None => client.insert(Client::connect(&self.import.target).await?),
            };
            let name = state.file.path.display().to_string();
            self.file(client, index, &state).await.map_err(|error| error.context(name))?;
        }
    }

    async fn file(
        &self,
        client: &Client,
        index: usize,
        state: &crate::journal::FileState,
    ) -> Result<()> {
        let position = Position::default();
        let mut source = format::open(&state.file.path, &self.read, &position)?;
        for _ in 0..state.records {
            self.stop.check()?;
            if source.next()?.is_none() {
                return Err(Error::failed("the file has fewer records than were imported of it"));
            }
        }
        let mut batches = Batches {
            shared: self,
            source,
            file: state.file.path.display().to_string(),
            position,
            records: state.records,
            rest: None,
            ended: false,
        };
        let mut drawn = 0;
        let mut flying = FuturesOrdered::new();
        // What cannot be read ends the import, but not before what was read is written and noted.
        let mut failure = None;
        loop {
            while failure.is_none() && !batches.ended && flying.len() < self.import.in_flight {
                match self.stop.check().and_then(|()| batches.next()) {
                    Ok(batch) => flying.push_back(self.send(client.clone(), batch)),
                    Err(error) => failure = Some(error),
                }
            }
            let Some(sent) = flying.next().await else { break };
            let (step, read) = sent?;
            lock(&self.journal)?.step(index, step)?;
            self.bar.inc(read.saturating_sub(drawn));
            drawn = drawn.max(read);
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.bar.inc(state.file.bytes.saturating_sub(drawn));
        Ok(())
    }

    /// Writes a batch; what is dealt with then.
    async fn send(&self, mut client: Client, batch: Batch) -> Result<(Step, u64)> {
        let Batch { file, entries, mut step, create, position } = batch;
        if self.import.dry_run {
            return Ok((step, position));
        }
        for family in create {
            client.create_family(&family).await?;
            lock(&self.families)?.insert(family);
        }
        let mut patience = Patience::new(self.import.retry_for, self.stop.clone());
        let refused = write(&mut client, entries, &mut patience).await?;
        for refused in refused {
            let Entry { record, last, row } = refused.entry;
            step.rows -= u64::from(last);
            step.cells -= row.cells.len() as u64;
            step.bytes -= row.wire_bytes() as u64;
            step.rejected.push(Line::of_row(&file, record, refused.reason, row));
        }
        step.rejected.sort_by_key(Line::record);
        Ok((step, position))
    }
}

impl Batches<'_> {
    /// The next batch; the last one may be empty and says that the file is done.
    fn next(&mut self) -> Result<Batch> {
        let mut batch = Batch { file: self.file.clone(), ..Batch::default() };
        let (mut bytes, mut cells) = (0, 0);
        let import = self.shared.import;
        while batch.entries.len() < import.batch_rows
            && batch.step.rejected.len() < import.batch_rows
            && bytes < BATCH_BYTES
            && cells < MUTATIONS_MAX
        {
            let Some((record, mut row)) = self.row(&mut batch)? else { break };
            if row.cells.len() > MUTATIONS_MAX - cells {
                let rest = row.cells.split_off(MUTATIONS_MAX - cells);
                self.rest = Some(Row { key: row.key.clone(), cells: rest });
            }
            bytes += row.wire_bytes();
            cells += row.cells.len();
            let last = self.rest.is_none();
            batch.step.rows += u64::from(last);
            batch.step.cells += row.cells.len() as u64;
            batch.step.bytes += row.wire_bytes() as u64;
            batch.entries.push(Entry { record, last, row });
        }
        // A row of which a part is still to come is not dealt with.
        batch.step.records = self.records - u64::from(self.rest.is_some());
        batch.step.done = self.ended;
        batch.position = self.position.get();
        Ok(batch)
    }

    /// The next row that can be sent; others are dealt with in `batch`.
    fn row(&mut self, batch: &mut Batch) -> Result<Option<(u64, Row)>> {
        if let Some(row) = self.rest.take() {
            return Ok(Some((self.records - 1, row)));
        }
        while batch.step.rejected.len() < self.shared.import.batch_rows {
            let Some(record) = self.source.next()? else {
                self.ended = true;
                return Ok(None);
            };
            let number = self.records;
            self.records += 1;
            match record {
                Record::Empty => batch.step.empty += 1,
                Record::Bad(bad) => {
                    batch.step.rejected.push(Line::of_bad(&self.file, number, bad));
                }
                Record::Row(row) => match self.fault(&row, &mut batch.create)? {
                    None => return Ok(Some((number, row))),
                    Some(reason) => {
                        let line = Line::of_row(&self.file, number, reason, row);
                        batch.step.rejected.push(line);
                    }
                },
            }
        }
        Ok(None)
    }

    /// Why a row is not sent. Families that are to be made are added to `create`.
    fn fault(&self, row: &Row, create: &mut BTreeSet<String>) -> Result<Option<String>> {
        if let Some(fault) = row.fault() {
            return Ok(Some(fault));
        }
        let families = lock(&self.shared.families)?;
        let mut known: Option<&str> = None;
        for cell in &row.cells {
            if known == Some(&cell.family) {
                continue;
            }
            known = Some(&cell.family);
            if families.contains(&cell.family) {
                continue;
            }
            if !self.shared.import.create {
                let family = &cell.family;
                return Ok(Some(format!(
                    "family {family:?} does not exist in the table; --create makes it"
                )));
            }
            create.insert(cell.family.clone());
        }
        Ok(None)
    }
}

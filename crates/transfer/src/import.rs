//! `tepui import`: files into a table.
//!
//! ```text
//! a thread:                          another:
//! file ──► records ──► batches ──►   MutateRows, several at once ──► acknowledged in order ──► journal
//!             │                          │
//!             └─ no row ──► rejected ◄───┴─ refused for good
//! ```
//!
//! Each worker takes one file after the other, with a connection of its own. What it holds in memory is its requests
//! under way and [`QUEUED_BATCHES`] more, together [`HELD_BYTES_MAX`](crate::held::HELD_BYTES_MAX) or one larger request, and
//! what comes next of the file. The journal moves on in the order of the file, so that an interrupted import
//! goes on behind the last record before which everything is dealt with. A file that cannot be read to its end does not keep
//! the others from being imported; the import fails when they are done, and tells of each. Of records that write the same cell, the last
//! one in a file is what the table has in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::FuturesOrdered;
use indicatif::ProgressBar;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::batch::{Batch, Batches, Cut, Families, Family};
use crate::client::{Client, Patience, Stop, TableNow, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::format::rejected::Line;
use crate::format::{self, ReadOptions};
use crate::held::{HELD_BYTES_MAX, Held, Room};
use crate::journal::{Asked, Earlier, FileState, Found, Journal, Step};
use crate::row::MUTATIONS_MAX;
use crate::write::{Entry, Refused, write};
use crate::{joined, lock, lock_file, patterns, runtime};

/// Batches that were read and wait for a request to end: enough that neither thread waits for the other's next
/// move, few enough to be little beside those under way.
const QUEUED_BATCHES: usize = 2;
/// Most workers: each is two threads, a connection and an open file.
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
    /// Where a dry run sets them aside, in the place of what an earlier one did, unless `rejected` was asked for.
    pub rejected_dry: PathBuf,
    /// Somebody has named where records are set aside.
    pub rejected_is_named: bool,
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

impl Summary {
    /// What came of all that a journal notes.
    pub(crate) fn of(journal: &Journal) -> Self {
        let mut summary = Self {
            files: journal.files().len(),
            rejected_path: journal.rejected_path().to_owned(),
            ..Self::default()
        };
        for file in journal.files() {
            summary.rows += file.rows;
            summary.cells += file.cells;
            summary.bytes += file.bytes;
            summary.empty += file.empty;
            summary.rejected += file.rejected;
        }
        summary
    }
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
    let own = [&import.state, &import.rejected, &import.rejected_dry].map(PathBuf::as_path);
    // It is noted in the state.
    files::check_name(&import.rejected)?;
    let paths = patterns::expand(&import.names, &own)?;
    for path in &paths {
        format::check(path, &import.read)?;
    }
    // Two imports would each write over what the other one notes. One that is dry notes nothing, and writes nothing but what
    // it sets aside: its journal takes that lock with the first record.
    let locked = |path| (!import.dry_run).then(|| lock_file(path, bar)).transpose();
    let _state_lock = locked(&import.state)?;
    let _rejected_lock = locked(&import.rejected)?;
    let sets_aside_dry = import.dry_run && !import.rejected_is_named;
    let asked = Asked {
        server: import.target.address(),
        table: &import.target.table_name(),
        read: &import.read,
        paths: &paths,
        rejected_path: if sets_aside_dry { &import.rejected_dry } else { &import.rejected },
        replaces_rejected: sets_aside_dry,
        rejected_max: import.rejected_max,
    };
    let state_path = (!import.dry_run).then_some(import.state.as_path());
    let mut found = Journal::find(state_path, &asked, import.earlier)?;
    found.check_rejected()?;
    found.give_up_dropped()?;
    let here = runtime()?;
    let mut patience = Patience::first(import.retry_for, stop.clone(), bar);
    let client = here.block_on(Client::connect(&import.target, stop))?;
    let families = here.block_on(client.families(&mut patience))?;
    if import.earlier == Earlier::Resume && !found.is_resumed() {
        crate::tell_of_no_state(bar, &import.state, "import");
    }
    if families.is_none() {
        check_made(import, found.has_begun())?;
        if !import.dry_run {
            here.block_on(client.create_table(&mut patience))?;
        }
    }
    let token = here.block_on(token_of_table(import, &client, &found, &mut patience))?;
    // Nothing drives this connection from here on: the server would ask in vain whether anybody is there.
    drop((client, here));
    let families = families.unwrap_or_default();
    let aggregates = families.iter().filter(|(_, aggregate)| aggregate.is_some());
    let aggregates = aggregates.map(|(name, _)| name.clone()).collect();
    let families = families.into_keys().collect();
    let journal = found.begin(token)?;
    bar.set_length(journal.files().iter().map(|file| file.file.bytes).sum());
    let shared = Shared {
        import,
        read: journal.read_options().clone(),
        journal: Mutex::new(journal),
        families: Mutex::new(families),
        aggregates,
        unmakeable: Mutex::default(),
        next: AtomicUsize::new(0),
        unreadable: Mutex::default(),
        bar,
        stop,
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers = import.workers.min(paths.len());
        let work = || {
            let done = shared.work();
            if done.is_err() {
                // The others finish what they have under way; this error is the one that counts.
                shared.next.store(paths.len(), Ordering::Relaxed);
                stop.stop();
            }
            done
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(joined).collect()
    });
    let panicked = "a thread panicked";
    let unreadable = shared.unreadable.into_inner().map_err(|_| Error::failed(panicked))?;
    let journal = shared.journal.into_inner().map_err(|_| Error::failed(panicked))?;
    // Whatever happened, what is done is noted.
    let saved = journal.save();
    crate::first_failure(ended)?;
    saved?;
    check_still(import, &journal, stop)?;
    check_readable(unreadable, paths.len())?;
    let summary = Summary::of(&journal);
    journal.finish()?;
    Ok(summary)
}

/// The error for files that could not be read to their ends.
fn check_readable(unreadable: Vec<Error>, files: usize) -> Result<()> {
    let count = unreadable.len();
    if count == 0 {
        return Ok(());
    }
    let what = format!(
        "{count} of {files} files cannot be read to the end; the others are imported, and what is before the damage"
    );
    Err(crate::partly(&unreadable, &what))
}

/// What tells the table from a later one of its name. An error where what is done went to an earlier one.
async fn token_of_table(
    import: &Import,
    client: &Client,
    found: &Found,
    patience: &mut Patience,
) -> Result<Option<String>> {
    if import.dry_run {
        return Ok(None);
    }
    if let Some(token) = found.token().filter(|_| found.has_begun()) {
        return match client.table_now(token, patience).await? {
            TableNow::Same => Ok(Some(token.to_owned())),
            TableNow::Another => Err(made_anew(import)),
            TableNow::Gone => Err(gone(import)),
        };
    }
    client.token(patience).await
}

/// The same once all files are done: while they were written, nothing was said of a table that was made anew.
fn check_still(import: &Import, journal: &Journal, stop: &Stop) -> Result<()> {
    let mut patience = Patience::new(import.retry_for, stop.clone());
    let asked = Client::table_at_end(&import.target, journal.token(), &mut patience);
    match runtime()?.block_on(asked)? {
        TableNow::Same => Ok(()),
        TableNow::Another => Err(made_anew(import)),
        TableNow::Gone => Err(gone(import)),
    }
}

fn gone(import: &Import) -> Error {
    Error::failed(format!(
        "{} does not exist any more, and what was imported is gone with it: --restart begins anew",
        import.target.table_name()
    ))
}

fn made_anew(import: &Import) -> Error {
    Error::failed(format!(
        "{} was made anew since the import was begun, and what was imported is gone with the earlier one: --restart \
         begins anew",
        import.target.table_name()
    ))
}

/// Whether a table that is missing is to be made.
fn check_made(import: &Import, has_begun: bool) -> Result<()> {
    if has_begun {
        return Err(gone(import));
    }
    if !import.create {
        let table = import.target.table_name();
        return Err(Error::failed(format!("{table} does not exist: create it, or give --create")));
    }
    Ok(())
}

struct Shared<'a> {
    import: &'a Import,
    read: ReadOptions,
    journal: Mutex<Journal>,
    /// Those that the table has.
    families: Mutex<BTreeSet<String>>,
    /// Of these, those that add up what is written; none that is made here does.
    aggregates: BTreeSet<String>,
    /// Those that the server refuses to make, and why.
    unmakeable: Mutex<BTreeMap<String, String>>,
    /// The next file.
    next: AtomicUsize,
    /// Why files could not be read to their ends.
    unreadable: Mutex<Vec<Error>>,
    bar: &'a ProgressBar,
    stop: &'a Stop,
}

impl Families for Shared<'_> {
    fn look(&self, family: &str) -> Result<Family> {
        if lock(&self.families)?.contains(family) {
            return Ok(Family::Known);
        }
        if let Some(why) = lock(&self.unmakeable)?.get(family) {
            return Ok(Family::Unmakeable(why.clone()));
        }
        Ok(if self.import.create { Family::ToBeMade } else { Family::Missing })
    }

    fn is_aggregate(&self, family: &str) -> bool {
        self.aggregates.contains(family)
    }
}

impl Shared<'_> {
    /// A worker: one file after the other.
    fn work(&self) -> Result<()> {
        let runtime = runtime()?;
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
                None => {
                    let _within = runtime.enter();
                    client.insert(Client::connect_lazily(&self.import.target)?)
                }
            };
            let name = state.file.path.display().to_string();
            let done = self.file(&runtime, client, index, &state);
            match done.map_err(|error| error.context(&name))? {
                Err(error) if error.kind() == ErrorKind::Failed => {
                    lock(&self.unreadable)?.push(error.context(name));
                }
                read => read?,
            }
        }
    }

    /// Imports a file: a thread reads it, this one writes. Within what came of writing it, what came of reading it.
    fn file(
        &self,
        runtime: &Runtime,
        client: &Client,
        index: usize,
        state: &FileState,
    ) -> Result<Result<()>> {
        let (batches, queue) = mpsc::channel(QUEUED_BATCHES);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || self.read(runtime, state, &batches));
            let written = runtime.block_on(self.write(client, index, state, queue));
            let read = joined(reader);
            written.map(|()| read)
        })
    }

    /// Reads a file. What cannot be read ends it, after what was read.
    fn read(
        &self,
        runtime: &Runtime,
        state: &FileState,
        batches: &mpsc::Sender<(Batch, Held)>,
    ) -> Result<()> {
        let cut = Cut {
            rows: self.import.batch_rows,
            // Those under way, those that wait, and one that either thread has in its hands.
            window: self.import.in_flight + QUEUED_BATCHES + 1,
            window_bytes: HELD_BYTES_MAX as usize,
        };
        let check = || {
            if batches.is_closed() {
                Err(Error::interrupted("interrupted"))
            } else {
                self.stop.check()
            }
        };
        let mut source = Batches::open(state, &self.read, self, cut, check)?;
        let room = Room::new();
        loop {
            self.stop.check()?;
            let Some(batch) = source.next_batch()? else { return Ok(()) };
            // Whoever has the other batches drops them, also where writing one has failed.
            let held = runtime.handle().block_on(room.hold_for(batch.bytes, batches));
            let Some(held) = held.transpose()? else { return Ok(()) };
            if batches.blocking_send((batch, held)).is_err() {
                // Who writes has failed, and says why.
                return Ok(());
            }
        }
    }

    /// Writes batches, several at once, and notes them in their order.
    async fn write(
        &self,
        client: &Client,
        index: usize,
        state: &FileState,
        mut queue: mpsc::Receiver<(Batch, Held)>,
    ) -> Result<()> {
        let name = state.file.path.display().to_string();
        let mut drawn = 0;
        let mut flying = FuturesOrdered::new();
        // One that has to wait for those under way.
        let mut waiting: Option<(Batch, Held)> = None;
        let mut all_read = false;
        let mut ended = Ok(());
        loop {
            if self.stop.stopped() && ended.is_ok() {
                // What is under way is waited for, and noted; nothing else begins.
                ended = Err(Error::interrupted("interrupted"));
                (all_read, waiting) = (true, None);
            }
            if let Some((batch, held)) = waiting.take_if(|_| flying.is_empty()) {
                flying.push_back(self.send(client.clone(), &name, batch, held));
            }
            let room = !all_read && waiting.is_none() && flying.len() < self.import.in_flight;
            let event = match (room, flying.is_empty()) {
                (true, true) => Either::Left(queue.recv().await),
                (true, false) => match select(pin!(queue.recv()), flying.next()).await {
                    Either::Left((read, _)) => Either::Left(read),
                    Either::Right((sent, _)) => Either::Right(sent),
                },
                (false, _) => Either::Right(flying.next().await),
            };
            match event {
                Either::Left(None) => all_read = true,
                Either::Left(Some(read)) if read.0.waits => waiting = Some(read),
                Either::Left(Some((batch, held))) => {
                    flying.push_back(self.send(client.clone(), &name, batch, held));
                }
                Either::Right(Some(sent)) => {
                    let (step, read, held) = sent?;
                    lock(&self.journal)?.step(index, step)?;
                    drop(held);
                    self.bar.inc(read.saturating_sub(drawn));
                    drawn = drawn.max(read);
                }
                // Nothing is under way, and nothing more comes.
                Either::Right(None) => break,
            }
        }
        self.bar.inc(state.file.bytes.saturating_sub(drawn));
        ended
    }

    /// Writes a batch of a file; what is dealt with then, of which lines that were rejected may be as large.
    async fn send(
        &self,
        mut client: Client,
        file: &str,
        batch: Batch,
        held: Held,
    ) -> Result<(Step, u64, Held)> {
        let Batch { entries, mut step, create, position, .. } = batch;
        if self.import.dry_run {
            return Ok((step, position, held));
        }
        let mut patience = Patience::new(self.import.retry_for, self.stop.clone());
        for family in create {
            // Another batch may have asked for it since this one was read.
            if self.look(&family)? != Family::ToBeMade {
                continue;
            }
            match client.create_family(&family, &mut patience).await? {
                Ok(()) => drop(lock(&self.families)?.insert(family)),
                Err(why) => drop(lock(&self.unmakeable)?.insert(family, why)),
            }
        }
        let unmakeable = lock(&self.unmakeable)?.clone();
        let why = |entry: &Entry| {
            entry.row.cells.iter().find_map(|cell| unmakeable.get(&cell.family)).cloned()
        };
        let (mut sound, mut refused) = (Vec::new(), Vec::new());
        for entry in entries {
            match why(&entry) {
                Some(reason) => refused.push(Refused { entry, reason }),
                None => sound.push(entry),
            }
        }
        refused.extend(write(&mut client, sound, &self.aggregates, &mut patience).await?);
        for refused in refused {
            let Entry { record, last, row } = refused.entry;
            step.rows -= u64::from(last);
            step.cells -= row.cells.len() as u64;
            step.bytes -= row.wire_bytes() as u64;
            step.rejected.extend(Line::of_row(file, record, &refused.reason, row));
        }
        step.rejected.sort_by_key(Line::record);
        Ok((step, position, held))
    }
}

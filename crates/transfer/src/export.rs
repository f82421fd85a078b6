//! `tepui export`: a table into files.
//!
//! The keys of SampleRowKeys cut the table into as many ranges as there are to be files; workers read them side by
//! side, each with a connection of its own and a thread that encodes what it reads. A file has its name
//! (`NAME-00002-of-00005.avro`, as Google's templates have it) only when it is whole, so an export that is interrupted
//! goes on with the files that are missing.
//!
//! One that replaces an earlier export keeps its files hidden (`.NAME-00002-of-00005.avro.new`) until all of them are whole,
//! and the earlier ones stay what they are. Then it notes that in its state, removes the earlier files, and only then gives
//! the new ones their names: at no time do files of two exports, of whatever formats, stand beside each other under that
//! name. What a crash interrupts there is done to its end by the next run with `--resume`, or with `--overwrite` before it
//! begins anew.
//!
//! Rows that the server does not give, damaged ones say, cost their file alone: the others are made, the export fails and tells
//! of each that was not, and `--resume` asks for these again. Till they are whole too, nothing is replaced.
//!
//! It is no snapshot: rows that are written meanwhile may be in it or not, each row by itself is whole. A table that was made
//! anew meanwhile, as far as the server tells, fails it at the end, before anything is replaced.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_filter::{Chain, Filter};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::client::{Client, FamilyTypes, Patience, Stop, TableNow, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::export_state::{
    Shard, State, VERSION, earlier_files, place, remove_regular, resumed, save, state_path,
    unfinished_files,
};
use crate::files::{self, Unfinished};
use crate::format::csv::{COLUMNS_MAX, Column, Timestamps};
use crate::format::{Format, Sink, avro, csv, parquet, sequence};
use crate::held::{Held, Room};
use crate::import::WORKERS_MAX;
use crate::journal::Pace;
use crate::row::Row;
use crate::scan::{Range, Scan};
use crate::{joined, lock, lock_file, partly, runtime, tell, tell_of_no_state};

/// Bytes of the table for one file, where the number of files is left open: a file that fails is begun anew, so
/// they should not be much larger; smaller ones are many.
const FILE_BYTES: u64 = 256 << 20;
/// Most files where the number is left open.
const FILES_DEFAULT_MAX: usize = 1000;
/// Bytes of rows that are handed to the thread that writes them at once: so many that the handing over costs nothing.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks that wait for that thread, as far as they and the one that it writes have [`Room`]: one may be a row of 256 MiB.
const QUEUED_CHUNKS: usize = 2;
/// Most files: what five digits count.
pub const FILES_MAX: usize = 99_999;

/// What is read of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// These rows.
    pub range: Range,
    /// Only these families; empty for all.
    pub families: Vec<String>,
    /// The newest so many versions of a column; none for all.
    pub versions: Option<i32>,
}

/// What to export, and how.
#[derive(Debug, Clone)]
pub struct Export {
    /// Where from.
    pub target: Target,
    /// What of it.
    pub selection: Selection,
    /// Into files of this format.
    pub format: Format,
    /// What the files' names begin with, directory included.
    pub output: PathBuf,
    /// How many files; none to go by the table's size.
    pub files: Option<usize>,
    /// Files that are written at the same time.
    pub workers: usize,
    /// Of CSV: the columns; empty for all that a scan finds.
    pub columns: Vec<Column>,
    /// Of CSV: whether values say their timestamps.
    pub timestamps: Timestamps,
    /// Go on with an export that was interrupted.
    pub resume: bool,
    /// Replace the files of an earlier one, once the new ones are whole; drop its state.
    pub overwrite: bool,
    /// How long without success until it gives up.
    pub retry_for: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files.
    pub files: usize,
    /// Rows.
    pub rows: u64,
    /// Cells.
    pub cells: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Cells whose columns CSV has no place for, since they came after the scan that looked for all columns.
    pub left_out: u64,
}

impl Summary {
    /// What came of these files.
    pub(crate) fn of(shards: &[Shard]) -> Self {
        let mut summary = Self { files: shards.len(), ..Self::default() };
        for (rows, cells, bytes) in shards.iter().filter_map(|shard| shard.done) {
            summary.rows += rows;
            summary.cells += cells;
            summary.bytes += bytes;
        }
        summary.left_out = shards.iter().map(|shard| shard.left_out).sum();
        summary
    }
}

/// The keys between files: at the samples that come nearest to an equal share of the bytes for each.
fn cuts(samples: &[(Bytes, u64)], range: &Range, files: Option<usize>) -> Vec<Bytes> {
    let within = |key: &Bytes| {
        *key > range.start && (range.end.is_empty() || *key < range.end) && !key.is_empty()
    };
    let before = samples.iter().filter(|(key, _)| !key.is_empty() && *key <= range.start);
    let low = before.map(|(_, offset)| *offset).max().unwrap_or(0);
    let behind = samples
        .iter()
        .find(|(key, _)| key.is_empty() || (!range.end.is_empty() && *key >= range.end))
        .or(samples.last());
    let high = behind.map_or(low, |(_, offset)| (*offset).max(low));
    let bytes = high - low;
    let count = files.unwrap_or_else(|| {
        usize::try_from(bytes.div_ceil(FILE_BYTES)).unwrap_or(usize::MAX).min(FILES_DEFAULT_MAX)
    });
    let mut keys: Vec<&(Bytes, u64)> = samples.iter().filter(|(key, _)| within(key)).collect();
    keys.sort();
    keys.dedup_by(|one, other| one.0 == other.0);
    let mut keys = keys.into_iter().peekable();
    let mut cuts = Vec::new();
    for index in 1..count as u64 {
        let wanted = low + (u128::from(bytes) * u128::from(index) / count as u128) as u64;
        let Some((key, offset)) = keys.next() else { break };
        let (mut key, mut offset) = (key, *offset);
        while let Some((next, at)) =
            keys.next_if(|(_, at)| at.abs_diff(wanted) < offset.abs_diff(wanted))
        {
            (key, offset) = (next, *at);
        }
        cuts.push(key.clone());
    }
    cuts
}

fn shards(cuts: Vec<Bytes>, range: &Range) -> Vec<Shard> {
    let starts = std::iter::once(range.start.clone()).chain(cuts.clone());
    let ends = cuts.into_iter().chain(std::iter::once(range.end.clone()));
    starts
        .zip(ends)
        .map(|(start, end)| Shard { range: Range { start, end }, done: None, left_out: 0 })
        .collect()
}

/// The filter that a selection is; none for everything.
fn filter(selection: &Selection, versions: Option<i32>, keys_only: bool) -> Option<v2::RowFilter> {
    let mut filters = Vec::new();
    if !selection.families.is_empty() {
        // A family's name has `.` and `-` beside what stands for itself.
        let names: Vec<String> = selection
            .families
            .iter()
            .map(|name| name.replace('\\', r"\\").replace('.', r"\.").replace('-', r"\-"))
            .collect();
        filters.push(Filter::FamilyNameRegexFilter(names.join("|")));
    }
    filters.extend(versions.map(Filter::CellsPerColumnLimitFilter));
    if keys_only {
        filters.push(Filter::StripValueTransformer(true));
    }
    let filter = |filter| v2::RowFilter { filter: Some(filter) };
    match filters.len() {
        0 | 1 => filters.pop().map(filter),
        _ => {
            let filters = filters.into_iter().map(filter).collect();
            Some(filter(Filter::Chain(Chain { filters })))
        }
    }
}

/// Runs an export.
pub fn export(export: &Export, bar: &ProgressBar, stop: &Stop) -> Result<Summary> {
    check(export)?;
    let state_path = state_path(&export.output);
    // Two exports would write into each other's files.
    let _lock = lock_file(&state_path, bar)?;
    let found = files::read_text(&state_path)?;
    let mut state = match found {
        Some(text) if export.resume => {
            let mut state =
                resumed(export, &text).map_err(|error| error.context(state_path.display()))?;
            let mut indexes = 0..state.shards.len();
            if indexes.any(|index| !state.is_whole(&export.output, index)) {
                let mut patience = Patience::first(export.retry_for, stop.clone(), bar);
                runtime()?.block_on(check_table(export, &mut state, &mut patience, bar, stop))?;
                save(&state_path, &state)?;
            }
            state
        }
        Some(text) if !export.overwrite => {
            let found = serde_json::from_str::<State>(&text);
            let goes_on = if found.is_ok_and(|found| found.given_up) {
                ""
            } else {
                "--resume goes on with it, "
            };
            return Err(Error::failed(format!(
                "{} is what an interrupted export left: {goes_on}--overwrite begins anew",
                state_path.display()
            )));
        }
        _ => {
            if export.resume {
                tell_of_no_state(bar, &state_path, "export");
            }
            let earlier = found.and_then(|text| serde_json::from_str::<State>(&text).ok());
            if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.placing) {
                place(&export.output, earlier)?;
            }
            let replaces = !earlier_files(export)?.is_empty();
            if let Some(earlier) = earlier {
                // Before anything that may fail: who went on with it then would have files of two times for one export.
                save(&state_path, &State { placing: false, given_up: true, ..earlier })?;
            }
            let mut state = runtime()?.block_on(plan(export, bar, stop))?;
            state.replaces = replaces;
            remove_regular(unfinished_files(export)?)?;
            save(&state_path, &state)?;
            state
        }
    };
    let count = state.shards.len();
    let is_whole = (0..count).all(|index| state.is_whole(&export.output, index));
    bar.set_length(count as u64);
    bar.set_position(state.shards.iter().filter(|shard| shard.done.is_some()).count() as u64);
    let columns_named = state.columns_named.unwrap_or(!export.columns.is_empty());
    let misses_columns = state.format == Format::Csv && !columns_named;
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((&mut state, Pace::of_files()));
    let unreadable: Mutex<Vec<(usize, Error)>> = Mutex::default();
    let work = || -> Result<()> {
        let runtime = runtime()?;
        let mut client = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (range, columns, path) = {
                let (state, _) = &*lock(&shared)?;
                let Some(shard) = state.shards.get(index) else { return Ok(()) };
                if state.is_whole(&export.output, index) {
                    continue;
                }
                let path = state.written(&export.output, index);
                (shard.range.clone(), state.columns.clone(), path)
            };
            let client: &Client = match &client {
                Some(client) => client,
                None => {
                    let _within = runtime.enter();
                    client.insert(Client::connect_lazily(&export.target)?)
                }
            };
            let (columns, range, path) = (&columns, &range, &*path);
            let part = Part { export, columns, misses_columns, range, path, stop };
            let done = part.transfer(&runtime, client.clone());
            let whole = match done.map_err(|error| error.context(path.display())) {
                Err(error) if error.kind() == ErrorKind::Unreadable => {
                    lock(&unreadable)?.push((index, error));
                    stop.check()?;
                    continue;
                }
                done => done?,
            };
            let (state, pace) = &mut *lock(&shared)?;
            if let Some(shard) = state.shards.get_mut(index) {
                (shard.done, shard.left_out) = (Some(whole.done), whole.left_out);
            }
            // A file that a crash keeps from being noted is made again, under its name.
            pace.save(|| save(&state_path, state))?;
            bar.inc(1);
        }
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let worker = || {
            let done = work();
            if done.is_err() {
                stop.stop();
            }
            done
        };
        let workers = export.workers.min(count);
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().map(joined).collect()
    });
    // Whatever happened, what is done is noted.
    let saved = save(&state_path, &state);
    crate::first_failure(ended)?;
    saved?;
    let unreadable = unreadable.into_inner();
    check_read(unreadable.map_err(|_| Error::failed("a thread panicked"))?, count)?;
    if !state.placing {
        // Nothing was asked of the server where all files were whole.
        let first = is_whole.then_some(bar);
        check_still(export, &state, first, stop)?;
    }
    if state.replaces {
        // From here on there is no way back, and nothing of the table is needed to go on.
        state.placing = true;
        save(&state_path, &state)?;
        place(&export.output, &state)?;
    }
    let summary = Summary::of(&state.shards);
    if summary.left_out > 0 {
        let count = summary.left_out;
        tell(
            bar,
            &format!(
                "{count} cells have columns that came after the scan for columns, and are in no file"
            ),
        );
    }
    files::remove(&state_path)?;
    Ok(summary)
}

/// The error for files whose rows the server did not give.
fn check_read(mut unreadable: Vec<(usize, Error)>, files: usize) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    unreadable.sort_by_key(|(index, _)| *index);
    let errors: Vec<Error> = unreadable.into_iter().map(|(_, error)| error).collect();
    let what = format!(
        "the rows of {} of {files} files cannot be read; the others are whole, and --resume reads these again",
        errors.len()
    );
    Err(partly(&errors, &what))
}

/// Whether a path is one of a directory, there or not: the last name of `new/` is that of the directory, and `Path` gives it as it
/// gives a file's.
fn names_directory(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    path.is_dir() || text.ends_with(b"/") || text.ends_with(b"/.")
}

fn check(export: &Export) -> Result<()> {
    let name = export.output.file_name().filter(|_| !names_directory(&export.output));
    if name.is_none() {
        // Without what it may end in.
        let directory = export.output.components().as_path();
        return Err(Error::failed(format!(
            "{} names a directory: add what the files' names are to begin with, as in {}",
            export.output.display(),
            directory.join("part").display()
        )));
    }
    files::check_name(Path::new(name.unwrap_or_default()))?;
    if !(1..=WORKERS_MAX).contains(&export.workers) {
        return Err(Error::failed(format!("{} workers: from 1 to {WORKERS_MAX}", export.workers)));
    }
    if export.files.is_some_and(|files| !(1..=FILES_MAX).contains(&files)) {
        return Err(Error::failed(format!("the number of files is from 1 to {FILES_MAX}")));
    }
    let Selection { range, versions, .. } = &export.selection;
    if versions.is_some_and(|versions| versions < 1) {
        return Err(Error::failed("the number of versions is 1 or more"));
    }
    if !range.end.is_empty() && range.start >= range.end {
        return Err(Error::failed("the range of rows is empty: it ends before it starts"));
    }
    let families = &export.selection.families;
    let is_left_out = |column: &&Column| !families.is_empty() && !families.contains(&column.family);
    // An export that is gone on with may have been begun before this was refused.
    if !export.resume
        && let Some(Column { family, .. }) = export.columns.iter().find(is_left_out)
    {
        return Err(Error::failed(format!(
            "--columns names family {family:?}, which --families leaves out"
        )));
    }
    match export.format {
        Format::Rejected => Err(Error::failed("that format is of imports alone")),
        Format::Csv if versions.is_some_and(|versions| versions > 1) => {
            Err(Error::failed("CSV has one version of each column: choose another format for more"))
        }
        Format::Csv => Ok(()),
        _ if !export.columns.is_empty() || export.timestamps != Timestamps::Now => {
            Err(Error::failed("columns and the form of timestamps are chosen for CSV only"))
        }
        _ => Ok(()),
    }
}

/// Connects, and looks for the table; its families. An endpoint that is not there is an error at once. The operator is told
/// what the files will lack.
async fn look(
    export: &Export,
    patience: &mut Patience,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<(Client, FamilyTypes)> {
    let client = Client::connect(&export.target, stop).await?;
    let Some(families) = client.families(patience).await? else {
        return Err(Error::failed(format!("{} does not exist", export.target.table_name())));
    };
    if let Some(lacking) = lacking(&export.selection, &families) {
        tell(bar, &lacking);
    }
    Ok((client, families))
}

/// What an import cannot know of the families that are exported: that some add up what is written.
fn lacking(selection: &Selection, families: &FamilyTypes) -> Option<String> {
    let is_exported =
        |name: &String| selection.families.is_empty() || selection.families.contains(name);
    let exported = families.iter().filter(|(name, _)| is_exported(name));
    let typed: Vec<String> = exported
        .filter_map(|(name, aggregate)| aggregate.map(|aggregate| format!("{name} ({aggregate})")))
        .collect();
    if typed.is_empty() {
        return None;
    }
    Some(format!(
        "aggregate families: {}. The files have what they came to, and neither types of families nor garbage-collection \
         rules: create the table with both before an import, which with --create would make families that add up nothing",
        typed.join(", ")
    ))
}

/// Refuses to go on where the table is gone, or another one has its name: the files would be of two tables.
async fn check_table(
    export: &Export,
    state: &mut State,
    patience: &mut Patience,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<()> {
    let (client, _) = look(export, patience, bar, stop).await?;
    if state.shards.iter().all(|shard| shard.done.is_none()) {
        state.token = client.token(patience).await?;
    } else if let Some(token) = &state.token
        && client.table_now(token, patience).await? != TableNow::Same
    {
        return Err(made_anew(state));
    }
    Ok(())
}

/// The same once all files are whole: while they were written, nothing was said of a table that was made anew. One that is gone was
/// there until all of it was read. Where that is the `first` that is asked of the server, one that is not there is an error at once, and
/// the bar says why it waits.
fn check_still(
    export: &Export,
    state: &State,
    first: Option<&ProgressBar>,
    stop: &Stop,
) -> Result<()> {
    let runtime = runtime()?;
    let mut patience = Patience::new(export.retry_for, stop.clone());
    if let Some(bar) = first.filter(|_| state.token.is_some()) {
        runtime.block_on(Client::connect(&export.target, stop))?;
        patience = Patience::first(export.retry_for, stop.clone(), bar);
    }
    let asked = Client::table_at_end(&export.target, state.token.as_deref(), &mut patience);
    match runtime.block_on(asked)? {
        TableNow::Same | TableNow::Gone => Ok(()),
        TableNow::Another => Err(made_anew(state)),
    }
}

fn made_anew(state: &State) -> Error {
    Error::failed(format!(
        "{} was made anew since the export was begun, and some files are of the earlier one: --overwrite begins anew",
        state.table
    ))
}

/// Looks at the table and divides it.
async fn plan(export: &Export, bar: &ProgressBar, stop: &Stop) -> Result<State> {
    let mut patience = Patience::first(export.retry_for, stop.clone(), bar);
    let (client, families) = look(export, &mut patience, bar, stop).await?;
    let table = export.target.table_name();
    let named = export.selection.families.iter();
    let named = named.chain(export.columns.iter().map(|column| &column.family));
    for family in named {
        if !families.contains_key(family) {
            return Err(Error::failed(format!("{table} has no family {family:?}")));
        }
    }
    let token = client.token(&mut patience).await?;
    let range = &export.selection.range;
    let samples = client.samples(&mut patience).await?;
    let shards = shards(cuts(&samples, range, export.files), range);
    let mut columns = export.columns.clone();
    if export.format == Format::Csv && columns.is_empty() {
        bar.set_message("columns");
        columns = columns_of(export, client, stop).await?;
        bar.set_message("export");
    }
    Ok(State {
        version: VERSION,
        server: export.target.address().to_owned(),
        table,
        token,
        format: export.format,
        selection: export.selection.clone(),
        timestamps: export.timestamps,
        columns,
        columns_named: Some(!export.columns.is_empty()),
        shards,
        replaces: false,
        placing: false,
        given_up: false,
    })
}

/// All columns of the selection: a scan of everything but the values.
async fn columns_of(export: &Export, client: Client, stop: &Stop) -> Result<Vec<Column>> {
    let selection = &export.selection;
    let mut scan = Scan::new(
        client,
        selection.range.clone(),
        filter(selection, Some(1), true),
        export.retry_for,
        stop.clone(),
    );
    let mut columns = BTreeSet::new();
    while let Some(row) = scan.next().await.map_err(without_columns)? {
        stop.check()?;
        for cell in row.cells {
            columns.insert(Column { family: cell.family, qualifier: cell.qualifier.to_vec() });
        }
        if columns.len() > COLUMNS_MAX {
            return Err(Error::failed(format!(
                "more than {COLUMNS_MAX} columns: name some with --columns, or choose another format"
            )));
        }
    }
    if columns.is_empty() {
        return Err(Error::failed("no rows, and so no columns for CSV: name them with --columns"));
    }
    Ok(columns.into_iter().collect())
}

/// Rows that cannot be read keep all columns from being known.
fn without_columns(error: Error) -> Error {
    if error.kind() != ErrorKind::Unreadable {
        return error;
    }
    Error::failed(format!("{error}; to export the other rows, name the columns with --columns"))
}

fn sink(export: &Export, columns: &[Column], file: files::File) -> Result<Box<dyn Sink>> {
    Ok(match export.format {
        Format::Csv => Box::new(csv::Writer::create(file, columns, export.timestamps)?),
        Format::Avro => Box::new(avro::Writer::create(file)?),
        Format::Parquet => Box::new(parquet::Writer::create(file)?),
        Format::SequenceFile => Box::new(sequence::Writer::create(file, random_mark())?),
        Format::Rejected => return Err(Error::failed("that format is of imports alone")),
    })
}

/// Sixteen bytes that no other file has: the standard library's only source of chance is the keys of its hashes.
fn random_mark() -> [u8; 16] {
    let half = || RandomState::new().build_hasher().finish().to_be_bytes();
    let mut mark = [0; 16];
    for (place, byte) in mark.iter_mut().zip(half().into_iter().chain(half())) {
        *place = byte;
    }
    mark
}

/// What came of a file.
struct Whole {
    /// Rows, cells, and bytes of the file.
    done: (u64, u64, u64),
    /// Cells without a place in it.
    left_out: u64,
}

/// Rows on their way from one thread to the other; none stands behind the last ones.
type Chunk = Option<(Vec<Row>, Held)>;

/// A range of the table on its way into a file.
struct Part<'a> {
    export: &'a Export,
    columns: &'a [Column],
    /// Whether cells of other columns are counted.
    misses_columns: bool,
    range: &'a Range,
    path: &'a Path,
    stop: &'a Stop,
}

impl Part<'_> {
    /// This thread reads the rows, another encodes and writes them.
    fn transfer(&self, runtime: &Runtime, client: Client) -> Result<Whole> {
        let (rows, queue) = mpsc::channel(QUEUED_CHUNKS);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || self.write(queue));
            let read = runtime.block_on(self.read(client, rows));
            // What cannot be written ends the reading too, and says why.
            let written = joined(writer)?;
            read?;
            written.ok_or_else(|| Error::failed("the file was not ended"))
        })
    }

    /// Reads the rows, in chunks; behind the last one stands none.
    async fn read(&self, client: Client, rows: mpsc::Sender<Chunk>) -> Result<()> {
        let Selection { versions, .. } = self.export.selection;
        let versions = if self.export.format == Format::Csv { Some(1) } else { versions };
        let filter = filter(&self.export.selection, versions, false);
        let retry_for = self.export.retry_for;
        let mut scan = Scan::new(client, self.range.clone(), filter, retry_for, self.stop.clone());
        let room = Room::new();
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while let Some(row) = scan.next().await? {
            self.stop.check()?;
            bytes += row.wire_bytes();
            chunk.push(row);
            if bytes >= CHUNK_BYTES {
                let held = room.hold_for(std::mem::take(&mut bytes), &rows).await;
                let Some(held) = held.transpose()? else { return Ok(()) };
                if rows.send(Some((std::mem::take(&mut chunk), held))).await.is_err() {
                    return Ok(());
                }
            }
        }
        // Nobody takes them where the writer has failed.
        if let Some(held) = room.hold_for(bytes, &rows).await.transpose()? {
            let _ = rows.send(Some((chunk, held))).await;
            let _ = rows.send(None).await;
        }
        Ok(())
    }

    /// Writes the file. It has its name only where all rows have come, and otherwise is gone.
    fn write(&self, mut queue: mpsc::Receiver<Chunk>) -> Result<Option<Whole>> {
        let (unfinished, file) = Unfinished::create(self.path)?;
        let mut sink = sink(self.export, self.columns, file)?;
        let (mut rows, mut cells, mut left_out) = (0, 0, 0);
        while let Some(chunk) = queue.blocking_recv() {
            let Some((chunk, held)) = chunk else {
                let file = sink.finish()?;
                let done = (rows, cells, unfinished.finish(&file)?);
                return Ok(Some(Whole { done, left_out }));
            };
            for row in chunk {
                let written = sink.write(&row)? as u64;
                rows += u64::from(written > 0);
                cells += written;
                if self.misses_columns {
                    left_out += (row.cells.len() as u64).saturating_sub(written);
                }
            }
            drop(held);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(keys: &[(&str, u64)]) -> Vec<(Bytes, u64)> {
        keys.iter().map(|(key, at)| (Bytes::copy_from_slice(key.as_bytes()), *at)).collect()
    }

    #[test]
    fn files_have_about_equal_shares() {
        let all = samples(&[("b", 100), ("c", 200), ("d", 300), ("e", 400), ("", 500)]);
        let everything = Range::default();
        assert!(cuts(&all, &everything, Some(1)).is_empty());
        assert!(cuts(&all, &everything, None).is_empty());
        assert_eq!(cuts(&all, &everything, Some(2)), ["c"]);
        assert_eq!(cuts(&all, &everything, Some(5)), ["b", "c", "d", "e"]);
        assert_eq!(cuts(&all, &everything, Some(50)).len(), 4);
        let part = Range { start: "c".into(), end: "e".into() };
        assert_eq!(cuts(&all, &part, Some(2)), ["d"]);
        let large = samples(&[("b", 3 << 28), ("c", 5 << 28), ("", 6 << 28)]);
        assert_eq!(cuts(&large, &everything, None), ["b", "c"]);
        assert!(cuts(&[], &everything, Some(3)).is_empty());
    }

    #[test]
    fn a_selection_is_one_filter() {
        let all = Selection::default();
        assert_eq!(filter(&all, None, false), None);
        let named = Selection { families: vec!["a.b".to_owned(), "c-d".to_owned()], ..all.clone() };
        let expected = Filter::FamilyNameRegexFilter(r"a\.b|c\-d".to_owned());
        assert_eq!(filter(&named, None, false).unwrap().filter, Some(expected));
        let chain = filter(&named, Some(2), true).unwrap().filter;
        assert!(matches!(chain, Some(Filter::Chain(chain)) if chain.filters.len() == 3));
    }

    #[test]
    fn what_files_lack_of_aggregate_families_is_told() {
        let families = [("a", Some("sum")), ("b", None), ("c", Some("hllpp"))];
        let families = families.map(|(name, aggregate)| (name.to_owned(), aggregate)).into();
        let told = |names: &[&str]| {
            let families_named = names.iter().map(|name| (*name).to_owned()).collect();
            let selection = Selection { families: families_named, ..Selection::default() };
            lacking(&selection, &families)
        };
        assert!(told(&[]).unwrap().starts_with("aggregate families: a (sum), c (hllpp). "));
        assert!(told(&["b", "c"]).unwrap().starts_with("aggregate families: c (hllpp). "));
        assert_eq!(told(&["b"]), None);
    }

    proptest! {
        /// Whatever the samples: the files' ranges follow each other and make up the whole.
        #[test]
        fn ranges_of_files_make_up_the_whole(
            mut keys in proptest::collection::vec(("[a-e]{1,3}", 0u64..1000), 0..20),
            bounds in ("[a-e]{0,2}", "[a-e]{0,2}"),
            files in proptest::option::of(1usize..12),
        ) {
            keys.sort();
            let samples: Vec<_> = keys.into_iter().map(|(key, at)| (Bytes::from(key), at)).collect();
            let range = Range { start: bounds.0.into(), end: bounds.1.into() };
            prop_assume!(range.end.is_empty() || range.start < range.end);
            let shards = shards(cuts(&samples, &range, files), &range);
            prop_assert!(shards.len() <= files.unwrap_or(FILES_DEFAULT_MAX));
            prop_assert_eq!(&shards[0].range.start, &range.start);
            prop_assert_eq!(&shards[shards.len() - 1].range.end, &range.end);
            for pair in shards.windows(2) {
                prop_assert_eq!(&pair[0].range.end, &pair[1].range.start);
                prop_assert!(pair[0].range.start < pair[0].range.end);
            }
        }
    }
}

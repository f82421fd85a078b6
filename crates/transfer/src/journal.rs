//! What an import keeps on disk while it runs: how far each file has come, and the records that were set aside.
//!
//! Guarantee: what the state says is done is done: written and acknowledged, or a line in the file of the rejected
//! that was synced before. After a crash some records behind that are written again, with the same timestamps. A record that
//! goes in several requests is noted as a whole, with the last of them: it is either a row that was written or one record that
//! was rejected, and its lines are there once, whatever a crash interrupts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::files::{self, Appended, Identity, Lock};
use crate::format::ReadOptions;
use crate::format::rejected::Line;

/// How often the state is written: what a crash costs in repeated work, against a sync of a small file.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// What a state may take to be written after each step where steps are few. More would have files wait for it that end together.
const FREE: Duration = Duration::from_millis(100);
/// The part of the time that saving may take: the state of a hundred thousand files takes a while to write.
const SAVE_SHARE: u32 = 20;
/// Text of rejected records that is in memory at once, but for a longer line: as much as one line has at most, unless it is of
/// a single cell. With less, a large record would be more syncs.
const APPEND_BYTES: usize = 4 << 20;
/// Of the state's layout.
const VERSION: u32 = 2;

/// How far a file has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Which file.
    pub file: Identity,
    /// The first so many records are dealt with.
    pub records: u64,
    /// Of these, rows that were written.
    pub rows: u64,
    /// Rows without cells.
    pub empty: u64,
    /// Records that were set aside.
    pub rejected: u64,
    /// Cells and bytes that were written.
    pub cells: u64,
    /// See `cells`.
    pub bytes: u64,
    /// Whether that was all of it.
    pub done: bool,
}

impl FileState {
    /// A file of which nothing is dealt with.
    pub fn new(file: Identity) -> Self {
        Self { file, records: 0, rows: 0, empty: 0, rejected: 0, cells: 0, bytes: 0, done: false }
    }
}

/// The state of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The server's address.
    #[serde(default)]
    server: String,
    table: String,
    /// What tells the table from a later one of its name, where the server gives such a token.
    #[serde(default)]
    token: Option<String>,
    read: ReadOptions,
    files: Vec<FileState>,
    rejected_path: PathBuf,
    rejected_bytes: u64,
    /// Whether the file of the rejected is this import's: it may hold lines that are not noted.
    #[serde(default)]
    rejected_begun: bool,
    /// An import that was to begin in its place may not have: nobody goes on with this one.
    #[serde(default)]
    given_up: bool,
}

/// An import as it is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The server's address.
    pub server: &'a str,
    /// The table's full name.
    pub table: &'a str,
    /// How the files are read; a resumed import keeps its own time, so that its cells have one timestamp.
    pub read: &'a ReadOptions,
    /// The files.
    pub paths: &'a [PathBuf],
    /// Where records are set aside.
    pub rejected_path: &'a Path,
    /// Whether what an earlier run set aside there goes: of dry runs, which leave what they found as it was.
    pub replaces_rejected: bool,
    /// The most of them.
    pub rejected_max: u64,
}

/// What is dealt with of one file since the last time.
#[derive(Debug, Default)]
pub struct Step {
    /// The first so many records are dealt with now.
    pub records: u64,
    /// Additions to [`FileState`].
    pub rows: u64,
    /// See `rows`.
    pub empty: u64,
    /// See `rows`.
    pub cells: u64,
    /// See `rows`.
    pub bytes: u64,
    /// Records to set aside, in their order; a large one is several lines.
    pub rejected: Vec<Line>,
    /// Whether a part of the next record is dealt with as well, and others are to follow.
    pub under_way: bool,
    /// Whether the file ends here.
    pub done: bool,
}

impl Step {
    /// Adds what is dealt with next. A record of which any part was set aside is no row that was written.
    fn add(&mut self, next: Self) {
        let record = self.records;
        let is_of_it = |line: &Line| line.record() == record;
        let is_counted = next.records > record && !next.rejected.iter().any(is_of_it);
        let spoilt = is_counted && self.rejected.iter().any(is_of_it);
        self.records = next.records;
        self.rows += next.rows - u64::from(spoilt);
        self.empty += next.empty;
        self.cells += next.cells;
        self.bytes += next.bytes;
        self.rejected.extend(next.rejected);
        (self.under_way, self.done) = (next.under_way, next.done);
    }
}

/// Keeps a [`State`].
#[derive(Debug)]
pub struct Journal {
    /// Where; none for one that is not kept, as in a dry run.
    path: Option<PathBuf>,
    state: State,
    /// Of files of whose next record only parts are dealt with, by the file's number. What is set aside of one is in memory
    /// till then, as the record was before.
    parts: HashMap<usize, Step>,
    rejected: Option<Appended>,
    /// Of the file of the rejected, where no caller has it: in a dry run, from the first record that is set aside, or from the
    /// start where it replaces that file.
    rejected_lock: Option<Lock>,
    /// Records that were set aside, of all files together.
    rejected_count: u64,
    rejected_max: u64,
    pace: Pace,
}

/// When a state is to be written next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    due: Instant,
    every: Duration,
}

impl Pace {
    /// From now on.
    pub(crate) fn new() -> Self {
        Self { due: Instant::now() + SAVE_EVERY, every: SAVE_EVERY }
    }

    /// For steps of which each is minutes of work, and may be the last one for as long: only what takes long is put off.
    pub(crate) fn of_files() -> Self {
        Self { due: Instant::now(), every: Duration::ZERO }
    }

    /// Writes the state where it is time to.
    pub(crate) fn save(&mut self, save: impl FnOnce() -> Result<()>) -> Result<()> {
        let now = Instant::now();
        if now >= self.due {
            save()?;
            let took = now.elapsed();
            let is_free = self.every.is_zero() && took <= FREE;
            self.due = now + if is_free { took } else { (took * SAVE_SHARE).max(self.every) };
        }
        Ok(())
    }
}

/// What to do about a state that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// There must be none.
    Refuse,
    /// Go on from it; begin where there is none.
    Resume,
    /// Drop it.
    Discard,
}

/// A journal that was looked for; nothing is changed on disk yet.
#[derive(Debug)]
pub struct Found {
    journal: Journal,
    resumed: bool,
    /// The state that is dropped, where it can be read.
    dropped: Option<State>,
    /// Whether the file of the rejected goes, with the state that says so.
    discarded: bool,
    /// Whether it goes since an earlier dry run made it.
    replaced: bool,
}

impl Found {
    /// Whether something of the files is dealt with already.
    pub fn has_begun(&self) -> bool {
        self.journal.files().iter().any(|file| file.records > 0)
    }

    /// An error where too many records were set aside before it goes on.
    pub fn check_rejected(&self) -> Result<()> {
        self.journal.check_rejected()
    }

    /// Whether it goes on from a state that was there.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Notes that nobody is to go on with the state that is dropped, since what it says is done is to be done again. Before anything
    /// that may fail.
    pub fn give_up_dropped(&mut self) -> Result<()> {
        let (Some(path), Some(dropped)) = (&self.journal.path, &mut self.dropped) else {
            return Ok(());
        };
        dropped.given_up = true;
        save(path, dropped)
    }

    /// The token of the table that it was begun in.
    pub fn token(&self) -> Option<&str> {
        self.journal.state.token.as_deref()
    }

    /// Begins, or goes on, in the table of this token.
    pub fn begin(self, token: Option<String>) -> Result<Journal> {
        let Self { mut journal, resumed, discarded, replaced, .. } = self;
        journal.state.token = token;
        if replaced && files::exists(&journal.state.rejected_path) {
            // Another dry run may be writing it.
            journal.rejected_lock = Some(Lock::take(&journal.state.rejected_path)?);
            files::remove(&journal.state.rejected_path)?;
        }
        let State { rejected_path, rejected_bytes, .. } = &journal.state;
        if resumed && *rejected_bytes > 0 {
            journal.rejected = Some(Appended::open(rejected_path, *rejected_bytes)?);
        } else if resumed || discarded {
            // Lines that an interrupted run wrote and did not note, or that are to be dropped.
            files::remove(rejected_path)?;
            journal.state.rejected_begun = false;
        }
        journal.save()?;
        Ok(journal)
    }
}

impl Journal {
    /// Finds or makes the state of an import, which is not on disk before [`Found::begin`]. The caller has the lock of it,
    /// and of the file of the rejected; without a path, of neither.
    pub fn find(path: Option<&Path>, asked: &Asked<'_>, earlier: Earlier) -> Result<Found> {
        let file = |path: &PathBuf| Identity::of(path).map(FileState::new);
        let files = asked.paths.iter().map(file).collect::<Result<_>>()?;
        let rejected_path = asked.rejected_path;
        let mut state = State {
            version: VERSION,
            server: asked.server.to_owned(),
            table: asked.table.to_owned(),
            token: None,
            read: asked.read.clone(),
            files,
            rejected_path: rejected_path.to_owned(),
            rejected_bytes: 0,
            rejected_begun: false,
            given_up: false,
        };
        let text = path.map(files::read_text).transpose()?.flatten();
        // A crash may have left it before it was noted, and then there is nothing in it.
        let is_empty = || Identity::of(rejected_path).is_ok_and(|file| file.bytes == 0);
        // What was set aside goes with the state that says so, and with no other. One of an earlier version says it by the
        // bytes alone.
        let dropped = text.as_ref().filter(|_| earlier == Earlier::Discard);
        let dropped = dropped.and_then(|text| serde_json::from_str::<State>(text).ok());
        let discarded = dropped.as_ref().is_some_and(|state| {
            state.rejected_path == rejected_path
                && (state.rejected_begun || state.rejected_bytes > 0 || is_empty())
        });
        let found = match (text, path, earlier) {
            (Some(text), Some(path), Earlier::Refuse) => {
                let found = serde_json::from_str::<State>(&text);
                let goes_on = if found.is_ok_and(|found| found.given_up) {
                    ""
                } else {
                    "--resume goes on with it, "
                };
                return Err(Error::failed(format!(
                    "{} is what an interrupted import left: {goes_on}--restart begins anew",
                    path.display()
                )));
            }
            (Some(text), Some(path), Earlier::Resume) => {
                let found: State = serde_json::from_str(&text).map_err(|error| {
                    Error::failed(format!("{}: {error}; --restart begins anew", path.display()))
                })?;
                check_same(&found, &state).map_err(|error| error.context(path.display()))?;
                Some(found)
            }
            _ => None,
        };
        let resumed = found.is_some();
        state = found.unwrap_or(state);
        let is_known = discarded || state.rejected_begun || (resumed && is_empty());
        if !is_known && !asked.replaces_rejected && files::exists(rejected_path) {
            return Err(Error::failed(format!(
                "{} exists: import it or move it away, or name another one with --rejected",
                rejected_path.display()
            )));
        }
        let path = path.map(Path::to_owned);
        let journal = Self {
            path,
            parts: HashMap::new(),
            rejected: None,
            rejected_lock: None,
            rejected_count: state.files.iter().map(|file| file.rejected).sum(),
            rejected_max: asked.rejected_max,
            pace: Pace::new(),
            state,
        };
        let replaced = asked.replaces_rejected;
        Ok(Found { journal, resumed, dropped, discarded, replaced })
    }

    /// How the files are read: an import that goes on does it as it began.
    pub fn read_options(&self) -> &ReadOptions {
        &self.state.read
    }

    /// The token of the table that it was begun in; none where the server gives none, and in a dry run.
    pub fn token(&self) -> Option<&str> {
        self.state.token.as_deref()
    }

    /// The files.
    pub fn files(&self) -> &[FileState] {
        &self.state.files
    }

    /// Where records are set aside.
    pub fn rejected_path(&self) -> &Path {
        &self.state.rejected_path
    }

    /// Notes that more of a file is dealt with, once that is whole records. An error where too many records were set aside,
    /// after they were.
    pub fn step(&mut self, index: usize, next: Step) -> Result<()> {
        let mut step = self.parts.remove(&index).unwrap_or_default();
        step.add(next);
        if step.under_way {
            self.parts.insert(index, step);
            return Ok(());
        }
        if !step.rejected.is_empty() {
            let file = match &mut self.rejected {
                Some(file) => file,
                None => {
                    if self.path.is_none() && self.rejected_lock.is_none() {
                        self.rejected_lock = Some(Lock::take(&self.state.rejected_path)?);
                    }
                    let made = Appended::create(&self.state.rejected_path)?;
                    self.state.rejected_begun = true;
                    self.save()?;
                    self.rejected.insert(made)
                }
            };
            let mut text = Vec::new();
            for line in &step.rejected {
                text.extend(line.to_text()?);
                if text.len() >= APPEND_BYTES {
                    file.append(&text)?;
                    text.clear();
                }
            }
            // All of them or none: where an addition failed, they come again.
            self.state.rejected_bytes = file.append(&text)?;
        }
        if let Some(file) = self.state.files.get_mut(index) {
            file.records = step.records;
            file.rows += step.rows;
            file.empty += step.empty;
            file.cells += step.cells;
            file.bytes += step.bytes;
            let lines = step.rejected.chunk_by(|one, next| one.record() == next.record());
            let rejected = lines.count() as u64;
            file.rejected += rejected;
            self.rejected_count += rejected;
            file.done = step.done;
        }
        let mut pace = self.pace;
        pace.save(|| self.save())?;
        self.pace = pace;
        self.check_rejected()
    }

    /// An error where too many records were set aside.
    fn check_rejected(&self) -> Result<()> {
        if self.rejected_count <= self.rejected_max {
            return Ok(());
        }
        Err(Error::failed(format!(
            "more than {} records were rejected (--max-rejected); see {}",
            self.rejected_max,
            self.state.rejected_path.display()
        )))
    }

    /// Writes the state.
    pub fn save(&self) -> Result<()> {
        self.path.as_deref().map_or(Ok(()), |path| save(path, &self.state))
    }

    /// Removes the state: everything is dealt with. An error where too many records were set aside, and then it stays.
    pub fn finish(&self) -> Result<()> {
        self.check_rejected()?;
        self.path.as_deref().map_or(Ok(()), files::remove)
    }
}

fn save(path: &Path, state: &State) -> Result<()> {
    let text = serde_json::to_vec_pretty(state)
        .map_err(|error| Error::failed(format!("JSON: {error}")))?;
    files::make_parent(path)?;
    files::replace(path, &text)
}

/// Goes on with an import of which these bytes are the state, for fuzzing: as far as that touches no file.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(begun) = serde_json::from_slice::<State>(data) else { return };
    let text = serde_json::to_vec_pretty(&begun).unwrap_or_default();
    let again = serde_json::from_slice::<State>(&text).ok();
    assert_eq!(again.as_ref(), Some(&begun), "what is written is read");
    // It is the one that is asked for.
    if check_same(&begun, &begun).is_err() {
        return;
    }
    let _ = begun.read.csv.given_micros();
    let mut journal = Journal {
        path: None,
        state: begun,
        parts: HashMap::new(),
        rejected: None,
        rejected_lock: None,
        rejected_count: 0,
        rejected_max: 0,
        pace: Pace::new(),
    };
    for index in 0..journal.files().len() {
        for under_way in [true, false] {
            let counts = Step { rows: 1, empty: 1, cells: 1, bytes: 1, ..Step::default() };
            // An error says that too many were set aside.
            let _ = journal.step(index, Step { under_way, ..counts });
        }
    }
    let _ = crate::import::Summary::of(&journal);
}

/// Whether it would go on with that.
#[cfg(test)]
pub(crate) fn is_good(data: &[u8]) -> bool {
    serde_json::from_slice::<State>(data).is_ok_and(|begun| check_same(&begun, &begun).is_ok())
}

/// Whether an import that was begun is the one that is asked for now.
fn check_same(begun: &State, asked: &State) -> Result<()> {
    let differs = |what: &str| {
        Err(Error::failed(format!("the import was begun with {what}; --restart begins anew")))
    };
    if begun.version != VERSION {
        return differs("another version of this program");
    }
    if begun.given_up {
        return Err(Error::failed(
            "the import was given up for a new one, which ended before it was begun: --restart begins anew",
        ));
    }
    let counts = |file: &FileState| {
        [file.records, file.rows, file.empty, file.rejected, file.cells, file.bytes]
    };
    let is_sound =
        begun.read.csv.now_micros >= 0 && crate::leaves_room(begun.files.iter().flat_map(counts));
    if !is_sound {
        return differs("a time or numbers that no import has");
    }
    if begun.server != asked.server {
        return Err(Error::failed(format!(
            "the import was begun at {0}, and {1} may lack what is done: go on with --endpoint {0}, or begin anew with \
             --restart",
            begun.server, asked.server
        )));
    }
    if begun.table != asked.table {
        return differs(&format!("table {}", begun.table));
    }
    let mut read = asked.read.clone();
    read.csv.now_micros = begun.read.csv.now_micros;
    if begun.read != read {
        return differs("other settings of the format");
    }
    if begun.rejected_path != asked.rejected_path {
        return differs(&format!("{} for what is rejected", begun.rejected_path.display()));
    }
    if begun.files.len() != asked.files.len() {
        return differs("other files");
    }
    for (begun, asked) in begun.files.iter().zip(&asked.files) {
        if begun.file.path != asked.file.path {
            return differs("other files");
        }
        if begun.file != asked.file {
            return Err(Error::failed(format!(
                "{} was changed since the import was begun; --restart begins anew",
                begun.file.path.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Bad, csv};

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            files::replace(&dir.path().join("in.csv"), b"12345").unwrap();
            Self { dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn open(&self, now_micros: i64, earlier: Earlier) -> Result<Journal> {
            self.open_table("s", "t", now_micros, earlier)
        }

        fn open_table(
            &self,
            server: &str,
            table: &str,
            now_micros: i64,
            earlier: Earlier,
        ) -> Result<Journal> {
            self.find(server, table, now_micros, earlier)?.begin(None)
        }

        fn find(
            &self,
            server: &str,
            table: &str,
            now_micros: i64,
            earlier: Earlier,
        ) -> Result<Found> {
            let csv = csv::Options { now_micros, ..csv::Options::default() };
            let read = &ReadOptions { format: None, csv };
            let (state, rejected_path) = (self.at("state"), &self.at("rejected"));
            let (paths, rejected_max) = (&[self.at("in.csv")][..], 3);
            let replaces_rejected = false;
            let asked = Asked {
                server,
                table,
                read,
                paths,
                rejected_path,
                replaces_rejected,
                rejected_max,
            };
            Journal::find(Some(&state), &asked, earlier)
        }

        fn lines(&self) -> usize {
            files::read_text(&self.at("rejected")).unwrap().map_or(0, |text| text.lines().count())
        }
    }

    fn reject(count: u64) -> Step {
        let line =
            |n| Line::of_bad("in.csv", n, Bad { reason: "short".to_owned(), raw: String::new() });
        Step { records: count, rejected: (0..count).map(line).collect(), ..Step::default() }
    }

    #[test]
    fn an_import_goes_on_where_it_was_saved_and_drops_lines_that_were_not() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        journal.step(0, reject(1)).unwrap();
        journal.save().unwrap();
        // Noted in the file of the rejected, and then the machine stops.
        journal.step(0, reject(2)).unwrap();
        assert_eq!(place.lines(), 3);
        drop(journal);
        assert!(place.open(8, Earlier::Refuse).unwrap_err().to_string().contains("--resume"));
        let journal = place.open(8, Earlier::Resume).unwrap();
        assert_eq!(place.lines(), 1);
        assert_eq!((journal.files()[0].records, journal.files()[0].rejected), (1, 1));
        assert_eq!(journal.read_options().csv.now_micros, 7, "the time of the import stays");
        journal.finish().unwrap();
        assert!(!place.at("state").exists() && place.at("rejected").exists());
        for earlier in [Earlier::Resume, Earlier::Discard] {
            let error = place.open(9, earlier).unwrap_err().to_string();
            assert!(error.contains("--rejected"), "what was set aside is not lost: {error}");
        }
        assert_eq!(place.lines(), 1);
    }

    #[test]
    fn a_new_beginning_drops_what_the_interrupted_import_had_set_aside() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        journal.step(0, reject(2)).unwrap();
        drop(journal);
        assert_eq!(place.open(9, Earlier::Discard).unwrap().files()[0].records, 0);
        assert_eq!(place.lines(), 0);
    }

    #[test]
    fn what_another_import_has_set_aside_since_is_not_lost() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        files::replace(&place.at("rejected"), b"of another\n").unwrap();
        assert!(journal.step(0, reject(1)).is_err());
        drop(journal);
        for earlier in [Earlier::Resume, Earlier::Discard] {
            let error = place.open(9, earlier).unwrap_err().to_string();
            assert!(error.contains("--rejected"), "{error}");
        }
        assert_eq!(place.lines(), 1);
        // A file in which nothing is yet is as a crash may leave it.
        files::replace(&place.at("rejected"), b"").unwrap();
        place.open(9, Earlier::Resume).unwrap().step(0, reject(1)).unwrap();
        assert_eq!(place.lines(), 1);
    }

    #[test]
    fn a_new_beginning_drops_what_an_import_of_an_earlier_version_had_set_aside() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        journal.step(0, reject(2)).unwrap();
        journal.save().unwrap();
        let text = files::read_text(&place.at("state")).unwrap().unwrap();
        let mut state: serde_json::Value = serde_json::from_str(&text).unwrap();
        state["version"] = 1.into();
        state.as_object_mut().unwrap().remove("rejected_begun").unwrap();
        let mut drops = |bytes: usize| {
            state["rejected_bytes"] = bytes.into();
            files::replace(&place.at("state"), state.to_string().as_bytes()).unwrap();
            let journal = place.open(9, Earlier::Discard).unwrap();
            assert!(!files::exists(&place.at("rejected")));
            journal.finish().unwrap();
        };
        drops(files::read_text(&place.at("rejected")).unwrap().unwrap().len());
        files::replace(&place.at("rejected"), b"").unwrap();
        drops(0);
    }

    #[test]
    fn another_import_does_not_go_on_with_this_ones_state() {
        let place = Place::new();
        place.open(7, Earlier::Refuse).unwrap();
        let error = place.open_table("s", "other", 7, Earlier::Resume).unwrap_err().to_string();
        assert!(error.contains("begun with table t"), "{error}");
        let error = place.open_table("other", "t", 7, Earlier::Resume).unwrap_err().to_string();
        assert!(error.contains("--endpoint s") && error.contains("--restart"), "{error}");
        files::replace(&place.at("in.csv"), b"123456").unwrap();
        let error = place.open(7, Earlier::Resume).unwrap_err().to_string();
        assert!(error.contains("changed since"), "{error}");
        files::replace(&place.at("state"), b"{").unwrap();
        assert!(place.open(7, Earlier::Resume).unwrap_err().to_string().contains("--restart"));
        place.open(7, Earlier::Discard).unwrap();
    }

    #[test]
    fn a_record_of_several_lines_is_rejected_once() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        let one = || reject(1).rejected;
        let rejected = [one(), one(), one(), one(), one()].concat();
        journal.step(0, Step { records: 1, rejected, ..Step::default() }).unwrap();
        assert_eq!((place.lines(), journal.files()[0].rejected), (5, 1));
    }

    #[test]
    fn a_record_in_several_requests_is_noted_as_a_whole() {
        let place = Place::new();
        let begin = |earlier| {
            let mut journal = place.open(7, earlier).unwrap();
            let refused = reject(1).rejected;
            let part = Step { cells: 2, bytes: 20, under_way: true, ..Step::default() };
            journal
                .step(0, Step { rejected: refused.clone(), under_way: true, ..Step::default() })
                .unwrap();
            journal.step(0, part).unwrap();
            journal.save().unwrap();
            let file = &journal.files()[0];
            assert_eq!((place.lines(), file.cells, file.rejected), (0, 0, 0));
            (journal, refused)
        };
        drop(begin(Earlier::Refuse));
        // As after a crash: all its parts come again.
        let (mut journal, rejected) = begin(Earlier::Resume);
        let last = Step { records: 3, rows: 2, cells: 3, bytes: 30, rejected, ..Step::default() };
        journal.step(0, last).unwrap();
        let file = &journal.files()[0];
        assert_eq!((place.lines(), file.rows, file.rejected), (2, 2, 1));
        assert_eq!((file.cells, file.bytes), (5, 50));
    }

    #[test]
    fn a_record_of_which_a_part_was_refused_is_no_row_that_was_written() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        let rejected = reject(1).rejected;
        journal.step(0, Step { rejected, under_way: true, ..Step::default() }).unwrap();
        let last = Step { records: 3, rows: 3, ..Step::default() };
        journal.step(0, last).unwrap();
        let file = &journal.files()[0];
        assert_eq!((place.lines(), file.rows, file.rejected), (1, 2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_is_written_now_and_then_and_not_with_each_file() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        let noted = || place.open(7, Earlier::Resume).unwrap().files()[0].records;
        journal.step(0, Step { records: 1, done: true, ..Step::default() }).unwrap();
        assert_eq!(noted(), 0);
        tokio::time::advance(SAVE_EVERY).await;
        journal.step(0, Step { records: 2, done: true, ..Step::default() }).unwrap();
        assert_eq!(noted(), 2);
        journal.step(0, Step { records: 3, done: true, ..Step::default() }).unwrap();
        assert_eq!(noted(), 2);
    }

    #[test]
    fn too_many_rejected_records_end_the_import() {
        let place = Place::new();
        let mut journal = place.open(7, Earlier::Refuse).unwrap();
        journal.step(0, reject(3)).unwrap();
        assert!(journal.step(0, reject(1)).unwrap_err().to_string().contains("--max-rejected"));
        assert_eq!(place.lines(), 4);
        // Also where that was the last of it.
        assert!(journal.finish().unwrap_err().to_string().contains("--max-rejected"));
        journal.save().unwrap();
        drop(journal);
        let found = place.find("s", "t", 7, Earlier::Resume).unwrap();
        assert!(found.check_rejected().unwrap_err().to_string().contains("--max-rejected"));
    }
}

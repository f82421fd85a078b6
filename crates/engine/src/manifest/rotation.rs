//! A rotating journal: a state that is kept as a snapshot and the changes since, in the newest of a
//! series of numbered journals.
//!
//! ```text
//! NAME-0000000000000007:  snapshot | change | change | ... outgrown
//! NAME-0000000000000008:  snapshot | change | ...                    the newest whole one counts
//! ```
//!
//! A file's number is its id. Rotation writes the next file, whose only record is a snapshot of the
//! *new* state, syncs it and its name, and removes the file before, durably, before the change is
//! answered. So a crash leaves either file or both, each a whole state; and once a change in a new file
//! was answered no older file is there to be mistaken for the state. The first file has no file before it: it
//! has its name only once it is whole (`Journal::create_whole`). So files without a whole one among them are damaged.
//!
//! Files are only written from their beginning (see [`crate::io::WritableFile`]), so a journal that was
//! opened is not continued: its first change rotates, or [`RotatingJournal::begin`] before that.
//!
//! A failed write leaves unknown what is on disk: the change may or may not be found at the next
//! opening. Nothing is written after it. Only where the next file cannot be begun, for want of an open file, of memory or of space, is it
//! known: that file has its name once it is whole, and before that nothing counts. The change goes into the file before, or may be tried again. So it may
//! where the disk is full: space for a change is reserved, where the file system can, before anything of it is written.
//!
//! On a full disk a series may go on for a while: behind what is written there is a reserve of space
//! ([`Series::reserve_bytes`]). Changes that give space back are written into it; others are refused where they would, and so is
//! one that it does not hold.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::journal::{Contents, DRAFT_SUFFIX, JOURNAL_BYTES_MAX, Journal, Magic, Record, Tail};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Directory, Files};

/// Bytes from which on an outgrown file takes no more changes but those that give space back, where the next cannot be begun: a quarter of
/// what a file may have at most, which a start reads in a second or so.
const OUTGROWN_BYTES_MAX: u64 = JOURNAL_BYTES_MAX / 4;

/// What tells one series of journals from another.
#[derive(Debug, Clone, Copy)]
pub struct Series {
    /// Start of the file names; 16 hexadecimal digits follow.
    pub name: &'static str,
    /// First bytes of the files.
    pub magic: Magic,
    /// Bytes of changes at which a file is outgrown, if they also exceed its snapshot. A smaller value
    /// rewrites the snapshot more often, a larger one makes opening read more.
    pub rotate_bytes: u64,
    /// Bytes of space that are kept behind the newest file for changes that give space back, where the file system reserves any;
    /// 0 for none. A smaller value takes fewer of them on a full disk before the first has given back any.
    pub reserve_bytes: u64,
}

/// What a change does to the space of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It gives space back: the reserve is there for it.
    Frees,
    /// Anything else.
    Takes,
}

impl Series {
    /// Where file `id` of the series is.
    pub fn path(&self, dir: &Path, id: u64) -> PathBuf {
        dir.join(format!("{}{id:016x}", self.name))
    }

    /// The id in a file name of the series.
    pub fn parse(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.name)?;
        let id = u64::from_str_radix(digits, 16).ok()?;
        // Refuses signs, capitals and other lengths: one id has one name.
        (digits == format!("{id:016x}")).then_some(id)
    }
}

/// What [`RotatingJournal::open`] found.
#[derive(Debug)]
pub enum Found<T> {
    /// What the newest whole file holds.
    State(T),
    /// Files, and none whose first record is whole; the newest.
    Damaged(PathBuf),
    /// No files at all.
    Nothing,
}

/// Whether an append that failed so has written nothing: its change is in no file, and will be in none.
pub(crate) fn wrote_nothing(error: &Error) -> bool {
    !error.is_in_doubt()
}

/// An error after which the outcome is not known.
fn unknown(error: Error) -> Error {
    match error.kind() {
        // Refused before anything was written.
        ErrorKind::InvalidArgument => error,
        ErrorKind::Exhausted => Error::new(ErrorKind::Io, error.message()).of_unknown_outcome(),
        _ => error.of_unknown_outcome(),
    }
}

/// An error of what does not count yet: a shortage there may pass; after any other the disk is not trusted.
fn unknown_unless_short(error: Error) -> Error {
    if error.is_shortage() { error } else { unknown(error) }
}

/// Writes a change into the file that there is, where there is space for all of it: found out by a write, the want of it would
/// leave the outcome unknown.
fn append_to(
    journal: &mut Journal,
    change: &[u8],
    effect: Effect,
    reserve_bytes: u64,
) -> Result<()> {
    let room = journal.keep_spare(change.len(), reserve_bytes).or_else(|error| match effect {
        Effect::Frees => journal.keep_spare(change.len(), 0).map_err(|error| {
            error
                .context("the disk is full, and what is kept for removals has no room for this one")
        }),
        Effect::Takes if reserve_bytes > 0 => {
            Err(error.context("the disk is full, and what is left is kept for removals"))
        }
        Effect::Takes => Err(error.context("the disk is full")),
    });
    room?;
    journal.append_sync(change).map_err(unknown)
}

/// The writing side.
#[derive(Debug)]
pub struct RotatingJournal {
    files: Arc<dyn Files>,
    dir: PathBuf,
    series: Series,
    /// The greatest id in use.
    newest: u64,
    /// The file being written; `None` after opening.
    current: Option<Journal>,
    /// Bytes of `current` when it was created: header and snapshot.
    snapshot_bytes: u64,
    /// Why nothing is written any more.
    failed: Option<String>,
}

impl RotatingJournal {
    /// Creates the first file of the series in `dir`, durably. `AlreadyExists` where there is one.
    pub fn create(
        files: Arc<dyn Files>,
        dir: &Path,
        series: Series,
        snapshot: &[u8],
    ) -> Result<Self> {
        if let Some(entry) = files.list(dir)?.iter().find(|e| series.parse(&e.name).is_some()) {
            let path = dir.join(&entry.name);
            return Err(Error::new(ErrorKind::AlreadyExists, path.display().to_string()));
        }
        let (id, path) = (1, series.path(dir, 1));
        let first = Journal::create_whole(files.as_ref(), &path, series.magic, id, snapshot)?;
        let dir = dir.to_owned();
        let mut journal =
            Self { files, dir, series, newest: 0, current: None, snapshot_bytes: 0, failed: None };
        journal.write_into(first, id);
        Ok(journal)
    }

    /// Finds the state in `dir`, makes it durable and removes files that do not count. `read` makes it of the newest whole
    /// file: where that is, its snapshot and its changes. With what it refuses nothing is done to any file.
    pub fn open<T>(
        files: Arc<dyn Files>,
        dir: &Path,
        series: Series,
        read: impl FnOnce(&Path, Vec<Record>) -> Result<T>,
    ) -> Result<(Self, Found<T>)> {
        let mut ids: Vec<u64> =
            files.list(dir)?.iter().filter_map(|entry| series.parse(&entry.name)).collect();
        ids.sort_unstable();
        let newest = ids.last().copied().unwrap_or(0);
        let mut state = None;
        for id in ids.iter().rev() {
            let path = series.path(dir, *id);
            let contents = Journal::read(files.as_ref(), &path, series.magic, Some(*id))?;
            if !contents.records.is_empty() {
                state = Some((*id, path, contents));
                break;
            }
        }
        let found = match state {
            None if ids.is_empty() => Found::Nothing,
            None => Found::Damaged(series.path(dir, newest)),
            Some((id, path, mut contents)) => {
                let state = read(&path, std::mem::take(&mut contents.records))?;
                if contents.tail == Tail::Bad {
                    tracing::warn!(
                        path = %path.display(),
                        bytes = contents.valid_len,
                        "what follows these bytes of the file does not verify and is cut off: a change that a crash interrupted, and that nobody was told is \
                         done, unless the disk has lost more"
                    );
                }
                settle(files.as_ref(), dir, series, &path, id, &contents, &ids)?;
                Found::State(state)
            }
        };
        let journal = Self {
            files,
            dir: dir.to_owned(),
            series,
            newest,
            current: None,
            snapshot_bytes: 0,
            failed: None,
        };
        Ok((journal, found))
    }

    /// Begins a file where none is being written, with the record of the whole state: what comes is appended to it, on a full
    /// disk, too. Errors as those of [`RotatingJournal::append`].
    pub fn begin(&mut self, snapshot: &[u8]) -> Result<()> {
        if self.current.is_some() {
            return Ok(());
        }
        let begun = self.check().and_then(|()| self.rotate(snapshot));
        self.note(begun)
    }

    /// Makes a change durable: `change` is its record, `snapshot` makes the record of the whole state
    /// after it. `Exhausted` and `NoSpace` that are not [in doubt](Error::is_in_doubt) where nothing was written, and may be
    /// later. After any other failure every later call fails with `ReadOnly`.
    pub fn append(
        &mut self,
        change: &[u8],
        effect: Effect,
        snapshot: impl FnOnce() -> Vec<u8>,
    ) -> Result<()> {
        self.check()?;
        let outgrown = self.current.as_ref().is_none_or(|journal| {
            let changes = journal.bytes().saturating_sub(self.snapshot_bytes);
            changes.saturating_add(change.len() as u64)
                > self.series.rotate_bytes.max(self.snapshot_bytes)
        });
        let rotated = if outgrown { Some(self.rotate(&snapshot())) } else { None };
        let reserve_bytes = self.series.reserve_bytes;
        let written = match (rotated, &mut self.current) {
            (None, Some(journal)) => append_to(journal, change, effect, reserve_bytes),
            // Without an open file or room for the next it goes into this one, which has grown beyond what is good for a start.
            (Some(Err(error)), Some(journal))
                if error.may_pass()
                    && (effect == Effect::Frees || journal.bytes() < OUTGROWN_BYTES_MAX) =>
            {
                append_to(journal, change, effect, reserve_bytes)
            }
            (rotated, _) => rotated.unwrap_or(Ok(())),
        };
        self.note(written)
    }

    fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |reason| {
            let dir = self.dir.display();
            let text = format!("{dir}: not written since an earlier failure: {reason}");
            Err(Error::new(ErrorKind::ReadOnly, text))
        })
    }

    fn note(&mut self, written: Result<()>) -> Result<()> {
        if let Err(error) = &written
            && self.failed.is_none()
            && !error.may_pass()
        {
            self.failed = Some(error.to_string());
        }
        written
    }

    fn rotate(&mut self, snapshot: &[u8]) -> Result<()> {
        let full = || Error::new(ErrorKind::InvalidArgument, "the series has no numbers left");
        let id = self.newest.checked_add(1).ok_or_else(full)?;
        let path = self.series.path(&self.dir, id);
        let files = Arc::clone(&self.files);
        let files = files.as_ref();
        // Once the file counts nothing may be missing: what needs an open file is done, or opened, before.
        let begun = files.open_dir(&self.dir).and_then(|dir| {
            let others = all_but(files, &self.dir, self.series, id)?;
            let draft = Journal::draft(files, &path, self.series.magic, id, snapshot)?;
            Ok((dir, others, draft))
        });
        let (dir, others, draft) = begun.map_err(unknown_unless_short)?;
        let published = draft.publish(files, dir.as_ref(), &path).and_then(|journal| {
            self.write_into(journal, id);
            remove(files, dir.as_ref(), &others)
        });
        published.map_err(unknown)
    }

    /// What comes is appended to this file, which holds a snapshot.
    fn write_into(&mut self, mut journal: Journal, id: u64) {
        self.newest = id;
        self.snapshot_bytes = journal.bytes();
        if self.series.reserve_bytes > 0 {
            // A change that takes space asks again.
            let _ = journal.keep_spare(0, self.series.reserve_bytes);
        }
        self.current = Some(journal);
    }
}

/// Makes the state that was found durable before anyone builds on it, and clears the rest away.
fn settle(
    files: &dyn Files,
    dir: &Path,
    series: Series,
    path: &Path,
    id: u64,
    contents: &Contents,
    ids: &[u64],
) -> Result<()> {
    // The records and the name may have been read from the page cache of a process that died between
    // write and sync.
    Journal::settle(files, path, contents)?;
    let opened = files.open_dir(dir)?;
    opened.sync()?;
    if ids.len() > 1 {
        remove(files, opened.as_ref(), &all_but(files, dir, series, id)?)
    } else {
        Ok(())
    }
}

/// The files of the series and their drafts, but for those of one id.
fn all_but(files: &dyn Files, dir: &Path, series: Series, keep: u64) -> Result<Vec<PathBuf>> {
    let other = |name: &str| {
        let name = name.strip_suffix(DRAFT_SUFFIX).unwrap_or(name);
        series.parse(name).is_some_and(|id| id != keep)
    };
    let entries = files.list(dir)?.into_iter().filter(|entry| other(&entry.name));
    Ok(entries.map(|entry| dir.join(entry.name)).collect())
}

/// Removes files of a directory, durably.
fn remove(files: &dyn Files, dir: &dyn Directory, paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        files.remove(path)?;
    }
    if paths.is_empty() { Ok(()) } else { dir.sync() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_id_has_one_name() {
        let series = Series { name: "X-", magic: *b"12345678", rotate_bytes: 1, reserve_bytes: 0 };
        let path = series.path(Path::new("d"), 0xAB);
        assert_eq!(path, Path::new("d/X-00000000000000ab"));
        assert_eq!(series.parse("X-00000000000000ab"), Some(0xAB));
        let others =
            ["X-ab", "X-00000000000000AB", "X-+0000000000000ab", "Y-00000000000000ab", "X-", "X"];
        for other in others {
            assert_eq!(series.parse(other), None, "{other}");
        }
    }
}

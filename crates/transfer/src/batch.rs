//! Cuts the records of a file into batches: what one request writes, and what else is dealt with beside it.
//!
//! A row of which several records write goes into different batches, of which the later one says that it has to wait
//! ([`Batch::waits`]): within a request, and between requests under way, nothing says which of two writes is the later.

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::files::{Identity, Position};
use crate::format::rejected::Line;
use crate::format::{self, ReadOptions, Record, Source};
use crate::journal::{FileState, Step};
use crate::row::{Cell, MUTATIONS_MAX, NO_TIME, Row};
use crate::write::{CELL_MUTATIONS_MAX, Entry, cost};

/// Bytes after which a request is sent, however few rows it has: larger ones are no faster, and are held in memory.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a request beyond which a row goes in several, cell by cell: a table has rows that nobody has written at
/// once. A server with little memory takes 4 MiB in a request, and what is counted here is an estimate.
const ROW_PART_BYTES: usize = 3 << 20;
/// Bytes of the row's key, once a mutation, beyond which it does so as well: what a server with the least memory takes of one row.
const ROW_PART_KEYS_BYTES: usize = 16 << 20;

/// What one request writes, and what else is dealt with once it is acknowledged.
#[derive(Debug, Default)]
pub struct Batch {
    /// What to write.
    pub entries: Vec<Entry>,
    /// What is dealt with then.
    pub step: Step,
    /// Families to be made first.
    pub create: BTreeSet<String>,
    /// Whether a row of it may be under way in an earlier batch.
    pub waits: bool,
    /// How far the file was read, in bytes.
    pub position: u64,
    /// About what it takes in memory: rows to write, and those that are set aside.
    pub bytes: usize,
}

/// What a row has to satisfy beside the limits of the API.
pub trait Families {
    /// Looks for a family.
    fn look(&self, family: &str) -> Result<Family>;

    /// Whether the table's family of this name adds up what is written.
    fn is_aggregate(&self, family: &str) -> bool;
}

/// What there is of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Family {
    /// The table has it.
    Known,
    /// It has not, and it is to be made.
    ToBeMade,
    /// It has not.
    Missing,
    /// The server does not make it, and says why.
    Unmakeable(String),
}

/// How batches are cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Records of a batch at most.
    pub rows: usize,
    /// Batches that may be under way, or wait, at the same time.
    pub window: usize,
    /// Bytes that they have together, or one of them alone.
    pub window_bytes: usize,
}

/// What is kept of a batch that may be under way.
struct Sent {
    number: u64,
    bytes: usize,
    keys: Vec<Bytes>,
}

/// A row, or what is left of it.
struct Rest {
    key: Bytes,
    cells: std::vec::IntoIter<Cell>,
}

/// A file as batches.
pub struct Batches<'a> {
    source: Box<dyn Source>,
    file: &'a Identity,
    name: String,
    families: &'a dyn Families,
    cut: Cut,
    position: Position,
    /// The time of cells that have none of their own.
    given_micros: Option<i64>,
    records: u64,
    /// What was read of a row and is in no batch yet. The cells of a large row go one part after the other: none is moved twice.
    rest: Option<Rest>,
    /// The number of the batch in which a row was written last: this one, or one that may be under way.
    recent: HashMap<Bytes, u64>,
    /// Those that may be under way, the oldest first, and their bytes.
    sent: VecDeque<Sent>,
    sent_bytes: usize,
    number: u64,
    /// An error where nobody wants more of it.
    check: Box<dyn Fn() -> Result<()> + 'a>,
    ended: bool,
    /// Why the rest of the file cannot be read: told after what was read.
    broken: Option<Error>,
}

impl<'a> Batches<'a> {
    /// Opens a file, and goes behind what is dealt with of it. An error of `check`, which is asked before each record, ends it.
    pub fn open(
        state: &'a FileState,
        options: &ReadOptions,
        families: &'a dyn Families,
        cut: Cut,
        check: impl Fn() -> Result<()> + 'a,
    ) -> Result<Self> {
        let position = Position::default();
        let mut source = format::open(&state.file.path, options, &position)?;
        state.file.check()?;
        for record in 0..state.records {
            check()?;
            let next = source.next().map_err(|error| error.context(place(record, &position)))?;
            if next.is_none() {
                return Err(Error::failed("the file has fewer records than were imported of it"));
            }
        }
        Ok(Self {
            source,
            file: &state.file,
            name: state.file.path.display().to_string(),
            families,
            cut,
            position,
            given_micros: options.given_micros(&state.file.path)?,
            records: state.records,
            rest: None,
            recent: HashMap::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            number: 0,
            check: Box::new(check),
            ended: false,
            broken: None,
        })
    }

    /// The next batch; the last one may be empty and says that the file is done. None behind it.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        if let Some(error) = self.broken.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended {
            return Ok(None);
        }
        let mut batch = Batch::default();
        self.number += 1;
        if let Err(error) = self.fill(&mut batch) {
            self.broken = Some(error);
        }
        self.keep(&batch);
        // A row of which a part is still to come is not dealt with.
        batch.step.records = self.records - u64::from(self.rest.is_some());
        batch.step.under_way = batch.entries.last().is_some_and(|entry| !entry.last);
        batch.step.done = self.ended;
        batch.position = self.position.get();
        Ok(Some(batch))
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<()> {
        let (mut records, mut mutations) = (0, 0);
        while records < self.cut.rows
            && batch.bytes < BATCH_BYTES
            && mutations + CELL_MUTATIONS_MAX <= MUTATIONS_MAX
        {
            records += 1;
            let mut row = match self.rest.take() {
                Some(row) => row,
                None => match self.next_record()? {
                    None => {
                        self.all_of_it()?;
                        self.ended = true;
                        return Ok(());
                    }
                    Some(record) => match self.sound(record, batch)? {
                        Ok(Row { key, cells }) => Rest { key, cells: cells.into_iter() },
                        Err(dealt_with) => {
                            batch.bytes += dealt_with;
                            continue;
                        }
                    },
                },
            };
            let before = self.recent.get(&row.key).copied();
            // A zero byte counts as two.
            let zeros = row.key.iter().map(|byte| usize::from(*byte == 0)).sum::<usize>();
            let of_its_key = ROW_PART_KEYS_BYTES / (row.key.len() + zeros + 2);
            let room = (
                of_its_key.min(MUTATIONS_MAX - mutations),
                ROW_PART_BYTES.saturating_sub(batch.bytes),
            );
            let (fits, taken) = self.fitting(row.cells.as_slice(), room);
            let whole = fits == row.cells.len();
            if before == Some(self.number) || (!whole && !batch.entries.is_empty()) {
                self.rest = Some(row);
                return Ok(());
            }
            let key = row.key.clone();
            let cells = if whole {
                row.cells.collect()
            } else {
                let part = row.cells.by_ref().take(fits).collect();
                self.rest = Some(row);
                part
            };
            batch.waits |= before.is_some();
            self.recent.insert(key.clone(), self.number);
            mutations += taken.0;
            batch.bytes += key.len() + taken.1;
            let row = Row { key, cells };
            batch.step.rows += u64::from(whole);
            batch.step.cells += row.cells.len() as u64;
            batch.step.bytes += row.wire_bytes() as u64;
            batch.entries.push(Entry { record: self.records - 1, last: whole, row });
            if !whole {
                return Ok(());
            }
        }
        Ok(())
    }

    /// How many of the first cells fit, one at least, and the mutations and bytes that they take.
    fn fitting(&self, cells: &[Cell], room: (usize, usize)) -> (usize, (usize, usize)) {
        let (mut fits, mut taken) = (0, (0, 0));
        for cell in cells {
            let (mutations, bytes) = cost(cell, self.families.is_aggregate(&cell.family));
            let with = (taken.0 + mutations, taken.1 + bytes);
            if fits > 0 && (with.0 > room.0 || with.1 > room.1) {
                break;
            }
            (fits, taken) = (fits + 1, with);
        }
        (fits, taken)
    }

    /// The next record of the file; an error says behind which one it is.
    fn next_record(&mut self) -> Result<Option<Record>> {
        (self.check)()?;
        let next = self.source.next();
        next.map_err(|error| error.context(place(self.records, &self.position)))
    }

    /// A record as a row that can be sent; others are dealt with in `batch`, and take so many bytes there.
    fn sound(&mut self, record: Record, batch: &mut Batch) -> Result<Result<Row, usize>> {
        let number = self.records;
        self.records += 1;
        let (lines, bytes) = match record {
            Record::Empty => {
                batch.step.empty += 1;
                return Ok(Err(0));
            }
            Record::Row(row) if row.cells.is_empty() => {
                batch.step.empty += 1;
                return Ok(Err(0));
            }
            Record::Bad(bad) => {
                let bytes = bad.raw.len();
                (vec![Line::of_bad(&self.name, number, bad)], bytes)
            }
            Record::Row(row) => match self.fault(&row, &mut batch.create)? {
                None => return Ok(Ok(row)),
                Some(reason) => {
                    let row = self.without_given(row);
                    let bytes = row.wire_bytes();
                    (Line::of_row(&self.name, number, &reason, row), bytes)
                }
            },
        };
        batch.step.rejected.extend(lines);
        Ok(Err(bytes))
    }

    /// A row that is set aside, its cells of aggregate families without the time that only this import has given them: as a time of
    /// their own it would make a value the state of a cell when the row is imported from there.
    fn without_given(&self, mut row: Row) -> Row {
        for cell in &mut row.cells {
            let is_given = self.given_micros == Some(cell.timestamp_micros);
            if is_given && self.families.is_aggregate(&cell.family) {
                cell.timestamp_micros = NO_TIME;
            }
        }
        row
    }

    /// Why a row is not sent. Families that are to be made are added to `create`.
    fn fault(&self, row: &Row, create: &mut BTreeSet<String>) -> Result<Option<String>> {
        if let Some(fault) = row.fault() {
            return Ok(Some(fault));
        }
        let mut last: Option<&str> = None;
        let mut missing = BTreeSet::new();
        for Cell { family, timestamp_micros, .. } in &row.cells {
            if self.given_micros == Some(*timestamp_micros) && self.families.is_aggregate(family) {
                return Ok(Some(format!(
                    "family {family:?} adds up what is written, and the value has no time of its own, so that nobody knows \
                     which cell it is the state of: --timestamp value-encoded reads VALUE@MICROS"
                )));
            }
            if last == Some(family) {
                continue;
            }
            last = Some(family);
            match self.families.look(family)? {
                Family::Known => {}
                Family::ToBeMade => drop(missing.insert(family.clone())),
                Family::Missing => {
                    return Ok(Some(format!(
                        "family {family:?} does not exist in the table; --create makes it"
                    )));
                }
                Family::Unmakeable(why) => return Ok(Some(why)),
            }
        }
        // For a row that is set aside nothing is made.
        create.append(&mut missing);
        Ok(None)
    }

    /// Whether the last record ends where the file did when the import was begun.
    fn all_of_it(&self) -> Result<()> {
        self.file.check()?;
        let (read, bytes) = (self.position.get(), self.file.bytes);
        if read != bytes {
            return Err(Error::failed(format!(
                "its records end at byte {read} of {bytes}: it is damaged there, or was changed while it was read"
            )));
        }
        Ok(())
    }

    /// Keeps the rows of a batch for as long as it may be under way, and drops those of batches that no longer are once it is.
    fn keep(&mut self, batch: &Batch) {
        // As much as it takes of what all of them may have.
        let bytes = batch.bytes.min(self.cut.window_bytes);
        let keys = batch.entries.iter().map(|entry| entry.row.key.clone()).collect();
        self.sent_bytes += bytes;
        self.sent.push_back(Sent { number: self.number, bytes, keys });
        while self.sent.len() > self.cut.window || self.sent_bytes > self.cut.window_bytes {
            let Some(Sent { number, bytes, keys }) = self.sent.pop_front() else { return };
            self.sent_bytes -= bytes;
            for key in keys {
                if self.recent.get(&key) == Some(&number) {
                    self.recent.remove(&key);
                }
            }
        }
    }
}

/// Where a file was read when it failed.
fn place(record: u64, position: &Position) -> String {
    format!("record {record}, near byte {}", position.get())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use super::*;
    use crate::error::ErrorKind;
    use crate::files::{self, Unfinished};
    use crate::format::golden::golden_file;
    use crate::format::{Sink as _, avro, csv};

    const MIB: usize = 1 << 20;

    /// A table with the family `f`, and with `sum`, which adds up.
    struct OneFamily;

    impl Families for OneFamily {
        fn look(&self, family: &str) -> Result<Family> {
            Ok(if matches!(family, "f" | "sum") { Family::Known } else { Family::Missing })
        }

        fn is_aggregate(&self, family: &str) -> bool {
            family == "sum"
        }
    }

    fn state(path: &Path) -> FileState {
        FileState::new(Identity::of(path).unwrap())
    }

    /// All batches of a file, and the error that it ends with.
    fn batches(state: &FileState, rows: usize) -> (Vec<Batch>, Option<String>) {
        let options = ReadOptions { format: None, csv: csv::Options::default() };
        let cut = Cut { rows, window: 3, window_bytes: 64 * MIB };
        let mut found = Vec::new();
        let opened = Batches::open(state, &options, &OneFamily, cut, || Ok(()));
        let mut source = match opened {
            Ok(source) => source,
            Err(error) => return (found, Some(error.to_string())),
        };
        loop {
            match source.next_batch() {
                Ok(Some(batch)) => found.push(batch),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    fn csv_file(dir: &Path, keys: &[&str]) -> FileState {
        let lines = keys.join(",v\n") + ",v\n";
        let path = dir.join("rows.csv");
        files::replace(&path, format!(",f\n,a\n{lines}").as_bytes()).unwrap();
        state(&path)
    }

    fn avro_file(dir: &Path, rows: &[Row]) -> FileState {
        let path = dir.join("rows.avro");
        let (unfinished, file) = Unfinished::create(&path).unwrap();
        let mut writer = Box::new(avro::Writer::create(file).unwrap());
        for row in rows {
            writer.write(row).unwrap();
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        state(&path)
    }

    fn row(key: &str, family: &str, cells: usize, value_bytes: usize) -> Row {
        let cell = |n: usize| Cell {
            family: family.to_owned(),
            qualifier: vec![n as u8].into(),
            timestamp_micros: 1000,
            value: vec![n as u8; value_bytes].into(),
        };
        Row { key: Bytes::copy_from_slice(key.as_bytes()), cells: (0..cells).map(cell).collect() }
    }

    #[test]
    fn a_key_is_in_a_batch_once_and_waits_for_those_that_may_be_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ["a", "b", "a", "a", "c", "d", "e", "f", "g", "h", "i", "j", "k", "a"];
        let (batches, ended) = batches(&csv_file(dir.path(), &keys), 2);
        assert_eq!(ended, None);
        let cut: Vec<(String, bool)> = batches
            .iter()
            .map(|batch| {
                let keys =
                    batch.entries.iter().map(|entry| entry.row.key.escape_ascii().to_string());
                (keys.collect(), batch.waits)
            })
            .collect();
        let expected = [
            ("ab", false),
            ("a", true),
            ("ac", true),
            ("de", false),
            ("fg", false),
            ("hi", false),
            ("jk", false),
            // The last one is acknowledged long since.
            ("a", false),
        ];
        assert_eq!(cut, expected.map(|(keys, waits)| (keys.to_owned(), waits)));
        let records: Vec<u64> = batches.iter().map(|batch| batch.step.records).collect();
        assert_eq!(records, [2, 3, 5, 7, 9, 11, 13, 14]);
        assert!(batches.last().unwrap().step.done);
    }

    #[test]
    fn keys_are_kept_of_batches_that_may_be_under_way_and_of_no_others() {
        let dir = tempfile::tempdir().unwrap();
        // Batches of two rows, each key in two that follow each other, and again much later.
        let key = |n: usize| ((n / 2 + n % 2) % 9).to_string();
        let rows: Vec<Row> = (0..39).map(|n| row(&key(n), "f", 1, MIB / 2)).collect();
        let file = avro_file(dir.path(), &rows);
        let options = ReadOptions { format: None, csv: csv::Options::default() };
        // By their number, by their bytes, and where one has more than all may have.
        for (window, window_bytes, most) in
            [(3, 64 * MIB, 3), (100, 5 * MIB / 2, 2), (100, MIB / 4, 1)]
        {
            let cut = Cut { rows: MUTATIONS_MAX, window, window_bytes };
            let mut source = Batches::open(&file, &options, &OneFamily, cut, || Ok(())).unwrap();
            let mut last = VecDeque::new();
            while let Some(batch) = source.next_batch().unwrap() {
                let is_sent =
                    |entry: &Entry| last.iter().flatten().any(|key: &Bytes| *key == entry.row.key);
                assert_eq!(batch.waits, batch.entries.iter().any(is_sent));
                last.push_back(batch.entries.into_iter().map(|entry| entry.row.key).collect());
                last.drain(..last.len().saturating_sub(most));
                let sent: BTreeSet<&Bytes> = last.iter().flat_map(|keys: &Vec<_>| keys).collect();
                assert_eq!(source.recent.keys().collect::<BTreeSet<_>>(), sent);
            }
        }
    }

    #[test]
    fn a_file_that_nobody_wants_more_of_ends_between_two_records() {
        let dir = tempfile::tempdir().unwrap();
        let file = csv_file(dir.path(), &["a", "b", "c", "d"]);
        let options = ReadOptions { format: None, csv: csv::Options::default() };
        let cut = Cut { rows: 500, window: 3, window_bytes: 64 * MIB };
        let asked = std::cell::Cell::new(0);
        let check = || {
            asked.set(asked.get() + 1);
            if asked.get() > 2 { Err(Error::interrupted("enough")) } else { Ok(()) }
        };
        let mut source = Batches::open(&file, &options, &OneFamily, cut, check).unwrap();
        assert_eq!(source.next_batch().unwrap().unwrap().entries.len(), 2);
        let error = source.next_batch().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn a_row_that_no_request_takes_goes_in_several_and_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let rows = [
            row("a", "f", 1, 10),
            row("b", "f", 7, MIB),
            row("c", "f", 1, 5 * MIB),
            row("d", "f", 2, 10),
        ];
        let (batches, ended) = batches(&avro_file(dir.path(), &rows), 500);
        assert_eq!(ended, None);
        let sizes: Vec<Vec<(u64, usize, bool)>> = batches
            .iter()
            .map(|b| b.entries.iter().map(|e| (e.record, e.row.cells.len(), e.last)).collect())
            .collect();
        assert_eq!(
            sizes,
            [
                vec![(0, 1, true)],
                vec![(1, 2, false)],
                vec![(1, 2, false)],
                vec![(1, 2, false)],
                vec![(1, 1, true)],
                vec![(2, 1, true)],
                vec![(3, 2, true)],
            ]
        );
        // After each part the whole row is still to be done; and parts wait for one another.
        let records: Vec<u64> = batches.iter().map(|batch| batch.step.records).collect();
        assert_eq!(records, [1, 1, 1, 1, 2, 3, 4]);
        let under_way: Vec<bool> = batches.iter().map(|batch| batch.step.under_way).collect();
        assert_eq!(under_way, [false, true, true, true, false, false, false]);
        let waits: Vec<bool> = batches.iter().map(|batch| batch.waits).collect();
        assert_eq!(waits, [false, false, true, true, true, false, false]);
        assert_eq!(batches.iter().map(|batch| batch.step.rows).sum::<u64>(), 4);
        let mut again: Vec<Row> = Vec::new();
        for entry in batches.into_iter().flat_map(|batch| batch.entries) {
            match again.last_mut() {
                Some(row) if row.key == entry.row.key => row.cells.extend(entry.row.cells),
                _ => again.push(entry.row),
            }
        }
        assert_eq!(again, rows);
    }

    #[test]
    fn a_cell_that_adds_up_counts_as_the_two_mutations_that_write_it() {
        let dir = tempfile::tempdir().unwrap();
        let rows = |family: &str| [row("a", family, MUTATIONS_MAX, 0), row("b", family, 1, 0)];
        for (family, expected) in
            [("f", vec![MUTATIONS_MAX, 1]), ("sum", vec![MUTATIONS_MAX / 2, MUTATIONS_MAX / 2, 1])]
        {
            let (batches, ended) = batches(&avro_file(dir.path(), &rows(family)), 500);
            assert_eq!(ended, None);
            let entries = batches.iter().map(|batch| &batch.entries);
            let cells = |entries: &Vec<Entry>| entries.iter().map(|e| e.row.cells.len()).sum();
            assert_eq!(entries.map(cells).collect::<Vec<usize>>(), expected, "{family}");
        }
    }

    #[test]
    fn a_row_with_a_long_key_goes_in_parts_whose_keys_a_small_server_takes() {
        let dir = tempfile::tempdir().unwrap();
        let rows = [row(&"k".repeat(4 << 10), "f", 5000, 0)];
        let (batches, ended) = batches(&avro_file(dir.path(), &rows), 500);
        assert_eq!(ended, None);
        let cells: Vec<usize> =
            batches.iter().flat_map(|b| b.entries.iter().map(|e| e.row.cells.len())).collect();
        assert_eq!(cells, [4094, 906]);
    }

    #[test]
    fn what_is_set_aside_is_bounded_by_its_bytes_and_empty_rows_by_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let rows: Vec<Row> = (0..9).map(|n| row(&n.to_string(), "gone", 1, MIB * 3 / 4)).collect();
        let (found, ended) = batches(&avro_file(dir.path(), &rows), 500);
        assert_eq!(ended, None);
        assert!(found.iter().all(|batch| batch.step.rejected.len() <= 2), "{found:?}");
        assert_eq!(found.iter().map(|batch| batch.step.rejected.len()).sum::<usize>(), 9);
        let empty: Vec<Row> = (0..9).map(|n| row(&n.to_string(), "f", 0, 0)).collect();
        let (found, _) = batches(&avro_file(dir.path(), &empty), 4);
        assert_eq!(found.iter().map(|batch| batch.step.empty).collect::<Vec<_>>(), [4, 4, 1]);
    }

    #[test]
    fn a_large_row_is_set_aside_in_several_lines() {
        let dir = tempfile::tempdir().unwrap();
        let (found, ended) = batches(&avro_file(dir.path(), &[row("a", "gone", 7, MIB)]), 500);
        assert_eq!(ended, None);
        assert_eq!(found.iter().map(|batch| batch.step.rejected.len()).sum::<usize>(), 4);
    }

    #[test]
    fn what_can_be_read_of_a_torn_file_comes_before_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = Vec::new();
        files::open(&golden_file("plain.seq")).unwrap().read_to_end(&mut whole).unwrap();
        let path = dir.path().join("torn.seq");
        files::replace(&path, whole.get(..whole.len() - 1).unwrap()).unwrap();
        let (found, ended) = batches(&state(&path), 500);
        let [batch] = &found[..] else { panic!("{found:?}") };
        assert_eq!((batch.step.records, batch.step.done), (2, false));
        assert!(ended.unwrap().contains("cut off"));
    }

    #[test]
    fn a_file_that_changes_or_whose_records_end_early_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = avro_file(dir.path(), &[row("a", "f", 1, 1)]);
        let mut bytes = Vec::new();
        files::open(&file.file.path).unwrap().read_to_end(&mut bytes).unwrap();
        let before = file.clone();
        // A block of no records ends the reading of others; here a whole block follows it.
        let marker = bytes.get(bytes.len() - 16..).unwrap().to_vec();
        let header = bytes.windows(16).position(|window| window == marker).unwrap() + 16;
        let block = bytes.get(header..).unwrap().to_vec();
        let nothing_in_snappy = [0, 10, 0, 0, 0, 0, 0];
        let tail = [&nothing_in_snappy[..], &marker, &block].concat();
        files::replace(&file.file.path, &[bytes, tail].concat()).unwrap();
        let (found, ended) = batches(&before, 500);
        assert!(found.is_empty() && ended.unwrap().contains("changed"));
        file = state(&file.file.path);
        let (found, ended) = batches(&file, 500);
        assert!(found.iter().all(|batch| !batch.step.done), "{found:?}");
        assert!(ended.unwrap().contains("its records end at byte"));
    }
}

//! Datadriven tests: scripts of histories, reads and compactions beside what they print.
//!
//! A script is a list of cases, parted by blank lines. A case is a command, its input, `----`, and its
//! output. `TEPUI_REWRITE=1 cargo test` writes the outputs anew; read the difference before keeping it.
//!
//! ```text
//! history                          events with sequences 1, 2, ...; prints their records in key order
//!   put ROW FAMILY:QUALIFIER@TIME NUMBER       merge ROW FAMILY:QUALIFIER@TIME NUMBER
//!   delete ROW FAMILY:QUALIFIER [START,END)    (without a range: all; `max` is no end)
//!   delete-family ROW FAMILY      delete-row ROW      excise [START,END)
//! runs SEQ SEQ ...                 cuts the history after these sequences
//! rule KIND N | rule union|intersection KIND N KIND N ...          KIND: versions, age
//! read [at=SEQ] [reverse] [rows=START,END] [versions=N] [cells=N] [times=START,END]
//! compact [runs=FIRST..LAST] [snapshots=SEQ,SEQ] [bottommost] [now=TIME]     run 0 is the newest
//! ```
//!
//! Families: 1 is plain, 2 sums, 3 keeps the maximum; others are not in the schema.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{
    FamilyId, KeyView, Kind, Mutation, RowRange, SEQ_MAX, Seq, TIMESTAMP_MAX, Timestamp,
    TimestampRange,
};
use crate::compaction::gc::Times;
use crate::compaction::{Beneath, CompactionSpec, CompactionStream};
use crate::read::testing::model::{Event, History, schema};
use crate::read::testing::{Record, cursors, read};
use crate::read::{Projection, ReadSpec};
use crate::schema::GcRule;

struct Script {
    history: History,
    /// Newest first.
    runs: Vec<Arc<Vec<Record>>>,
    rule: Option<GcRule>,
}

/// Runs `testdata/<name>` with the language of this file.
pub(crate) fn run(name: &str) {
    let mut script = Script { history: History(Vec::new()), runs: Vec::new(), rule: None };
    run_cases(name, |command, input| script.command(command, input.iter().copied()));
}

/// Runs `testdata/<name>`: `answer` gets the first line of each case and the others of its input.
pub(crate) fn run_cases(name: &str, mut answer: impl FnMut(&str, &[&str]) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut out = String::new();
    for (i, case) in text.trim_end().split("\n\n").enumerate() {
        if i > 0 {
            out.push_str("\n\n");
        }
        let (input, _) = case.split_once("\n----").unwrap_or((case, ""));
        let mut lines = input.lines().filter(|line| !line.starts_with('#'));
        let printed = match lines.next() {
            Some(command) => format!("\n----\n{}", answer(command, &lines.collect::<Vec<_>>())),
            None => String::new(),
        };
        write!(out, "{input}{}", printed.trim_end()).unwrap();
    }
    out.push('\n');
    if std::env::var_os("TEPUI_REWRITE").is_some() {
        #[expect(clippy::disallowed_methods, reason = "writes the test's own expectations")]
        std::fs::write(&path, out).unwrap();
    } else if let Some((at, (found, expected))) =
        (1..).zip(out.lines().zip(text.lines())).find(|(_, (a, b))| a != b)
    {
        panic!("{}:{at}: expected\n  {expected}\nbut it is\n  {found}", path.display());
    } else {
        assert_eq!(out.len(), text.len(), "{}: lines are missing", path.display());
    }
}

fn argument<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn number(text: &str) -> i64 {
    if text == "max" { TIMESTAMP_MAX } else { text.parse().unwrap() }
}

fn pair(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches('[').trim_end_matches(')');
    text.split_once(',').unwrap()
}

fn rows(text: &str) -> RowRange {
    let (start, end) = pair(text);
    RowRange::new(bytes(start), bytes(end))
}

fn times(text: &str) -> TimestampRange {
    let (start, end) = pair(text);
    TimestampRange { start: number(start), end: number(end) }
}

fn column(text: &str) -> (FamilyId, Bytes, Timestamp) {
    let (family, rest) = text.split_once(':').unwrap();
    let (qualifier, timestamp) = rest.split_once('@').unwrap_or((rest, "0"));
    (FamilyId(family.parse().unwrap()), bytes(qualifier), number(timestamp))
}

fn event(line: &str) -> Event {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |at: usize| Bytes::copy_from_slice(&number(words[at]).to_be_bytes());
    let mutation = match words[0] {
        "put" => {
            let (family, qualifier, timestamp) = column(words[2]);
            Mutation::Put { family, qualifier, timestamp, value: value(3) }
        }
        "merge" => {
            let (family, qualifier, timestamp) = column(words[2]);
            Mutation::Merge { family, qualifier, timestamp, operand: value(3) }
        }
        "delete" => {
            let (family, qualifier, _) = column(words[2]);
            let timestamps = words.get(3).map_or(TimestampRange::ALL, |range| times(range));
            Mutation::DeleteCells { family, qualifier, timestamps }
        }
        "delete-family" => Mutation::DeleteFamily { family: FamilyId(words[2].parse().unwrap()) },
        "delete-row" => Mutation::DeleteRow,
        "excise" => return Event::Excise(rows(words[1])),
        other => panic!("no event {other}"),
    };
    Event::Mutate(bytes(words[1]), mutation)
}

fn rule(words: &[&str]) -> GcRule {
    match words {
        ["versions", n] => GcRule::MaxVersions(n.parse().unwrap()),
        ["age", n] => GcRule::MaxAge(n.parse().unwrap()),
        ["union", rest @ ..] => GcRule::Union(rest.chunks(2).map(rule).collect()),
        ["intersection", rest @ ..] => GcRule::Intersection(rest.chunks(2).map(rule).collect()),
        other => panic!("no rule {other:?}"),
    }
}

fn show_time(timestamp: Timestamp) -> String {
    if timestamp == TIMESTAMP_MAX { "max".to_owned() } else { timestamp.to_string() }
}

fn show_value(value: &[u8]) -> String {
    let number = value.try_into().map(i64::from_be_bytes);
    number.map_or_else(|_| value.escape_ascii().to_string(), |n| n.to_string())
}

fn show(key: KeyView<'_>, value: &[u8]) -> String {
    let row = key.row().escape_ascii().to_string();
    let column = format!("{}:{}", key.family().0, key.qualifier().escape_ascii());
    let (time, seq) = (show_time(key.timestamp()), key.seq());
    match key.kind() {
        Kind::RowTombstone => format!("{row} #{seq} row tombstone"),
        Kind::FamilyTombstone => format!("{row} {} #{seq} family tombstone", key.family().0),
        Kind::ColumnTombstone => format!("{row} {column} #{seq} column tombstone"),
        Kind::CellTombstone => {
            format!("{row} {column}@{time} #{seq} cell tombstone from {}", show_value(value))
        }
        Kind::Merge => format!("{row} {column}@{time} #{seq} operand {}", show_value(value)),
        Kind::Value => format!("{row} {column}@{time} #{seq} value {}", show_value(value)),
        Kind::ValueElsewhere => format!("{row} {column}@{time} #{seq} value elsewhere"),
    }
}

fn show_all(records: &[Record]) -> String {
    let lines = records.iter().map(|(key, value)| show(KeyView::parse(key).unwrap(), value) + "\n");
    lines.collect()
}

impl Script {
    fn command<'a>(&mut self, line: &str, input: impl Iterator<Item = &'a str>) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "history" => {
                self.history = History(input.map(event).collect());
                self.rule = None;
                self.cut(&[]);
                show_all(&self.runs[0])
            }
            "runs" => {
                let cuts: Vec<Seq> = words[1..].iter().map(|w| w.parse().unwrap()).collect();
                self.cut(&cuts);
                let mut out = String::new();
                for (i, run) in self.runs.iter().enumerate() {
                    writeln!(out, "run {i}: {} records", run.len()).unwrap();
                }
                out
            }
            "rule" => {
                self.rule = Some(rule(&words[1..]));
                String::new()
            }
            "read" => self.read(&words),
            "compact" => self.compact(&words),
            other => panic!("no command {other}"),
        }
    }

    fn cut(&mut self, cuts: &[Seq]) {
        let mut ends = [&[0], cuts, &[self.history.last()]].concat();
        ends.dedup();
        self.runs = ends
            .windows(2)
            .rev()
            .map(|ends| {
                let mut run = self.history.records(|seq| ends[0] < seq && seq <= ends[1]);
                run.sort();
                Arc::new(run)
            })
            .collect();
    }

    fn read(&self, words: &[&str]) -> String {
        let limit = |name| argument(words, name).map_or(u32::MAX, |n| n.parse().unwrap());
        let spec = ReadSpec {
            snapshot: argument(words, "at").map_or(SEQ_MAX, |seq| seq.parse().unwrap()),
            schema: schema(None),
            excised: self.history.excised(),
            range: argument(words, "rows").map_or(RowRange::all(), rows),
            projection: Projection {
                families: None,
                timestamps: argument(words, "times").map_or(TimestampRange::ALL, times),
                versions_max: limit("versions"),
                cells_per_row_max: limit("cells"),
                values: true,
            },
            reverse: words.contains(&"reverse"),
            rows_hint: None,
            row_bytes_max: u64::MAX,
            wide_tombstones: true,
        };
        let mut out = String::new();
        for row in read(&self.runs, &spec, true).unwrap() {
            for cell in row.cells {
                writeln!(
                    out,
                    "{} {}:{}@{} = {}",
                    row.key.escape_ascii(),
                    cell.family.0,
                    cell.qualifier.escape_ascii(),
                    cell.timestamp,
                    show_value(&cell.value)
                )
                .unwrap();
            }
        }
        out
    }

    fn compact(&mut self, words: &[&str]) -> String {
        let (first, last) = match argument(words, "runs") {
            Some(range) => {
                let (first, last) = range.split_once("..").unwrap();
                (first.parse().unwrap(), last.parse().unwrap())
            }
            None => (0, self.runs.len() - 1),
        };
        let snapshots = argument(words, "snapshots").unwrap_or_default();
        let spec = CompactionSpec {
            schema: schema(self.rule.clone()),
            snapshots: snapshots
                .split(',')
                .filter(|s| !s.is_empty())
                .map(|s| s.parse().unwrap())
                .collect(),
            beneath: if words.contains(&"bottommost") {
                Beneath::NOTHING
            } else {
                Beneath::Anything
            },
            excised: self.history.excised(),
            times: Times::all_in_sight(argument(words, "now").map_or(0, number)),
        };
        let inputs = cursors(&self.runs[first..=last], true);
        let mut stream = CompactionStream::new(inputs, spec, &[]);
        let mut records = Vec::new();
        while let Some(entry) = stream.next().unwrap() {
            records.push((entry.key.bytes().to_vec(), Bytes::copy_from_slice(entry.value)));
        }
        let mut out = show_all(&records);
        let s = stream.stats();
        let counts = [
            (s.hidden, "hidden"),
            (s.overwritten, "overwritten"),
            (s.collected, "collected"),
            (s.family_dropped, "of dropped families"),
            (s.excised, "excised"),
            (s.tombstones_dropped, "tombstones dropped"),
            (s.buried, "buried"),
        ];
        write!(out, "{} in, {} out", s.records_in, s.records_out).unwrap();
        for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
            write!(out, ", {count} {what}").unwrap();
        }
        self.runs.splice(first..=last, [Arc::new(records)]);
        out
    }
}

#[test]
fn scripts_of_reads_print_what_is_written() {
    run("reads.txt");
}

#[test]
fn scripts_of_compactions_print_what_is_written() {
    run("compactions.txt");
}

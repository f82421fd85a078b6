//! Datadriven tests of picks: `testdata/picks.txt`. The cases share one tree.
//!
//! ```text
//! tree [tiered] [base=N] [ratio=N] [l0=N] [stop=N]  the tree that follows, and the options; prints the targets
//!   L5: 3[a-f]100 4[h-k]20@a,i 5[m-m]9!70/80 6[n-p]9+500 7[q-r]9!0+70/2+900
//!                                          a file: id, first and last row, bytes; visible from a up to i; with
//!                                          70 tombstones of rows, and 80 rows in all; with 500 bytes in value
//!                                          files; with 70 tombstones of cells, and 2 rows of 900 cells
//! sublevels                                how level 0 is arranged, the newest sublevel first
//! pick shape | urgent | full | reads [looks=N] [flushed] [busy=ID,ID] [writing=LEVEL:START,END] [most=BYTES]
//! pick collect [idle] [garbage=ID,ID] [versions=ID,ID] [resting=ID,ID] [later=ID,ID] [expired=ID,ID] [runs=ID,ID]
//!     [old=ID,ID] [data=ID:BYTES,ID:BYTES+VALUES] [tablet=BYTES] [tight]
//!                                          and the arguments above; `urgent` is of level 0, for writers
//! ```
//!
//! Prints the score, the reason, the inputs with what they show, and the output's level.

use std::collections::HashMap;
use std::fmt::Write;

use bytes::Bytes;

use super::*;
use crate::cell::FamilyId;
use crate::compaction::collect::{self, CollectInputs, Freed};
use crate::compaction::gc::Dues;
use crate::compaction::reads::pick_for_reads;
use crate::compaction::shape::Contents;
use crate::manifest::VersionEdit;
use crate::read::testing::script::run_cases;
use crate::schema::{FamilyOptions, GcRule, TabletSchema};
use crate::sst::{FamilyProperties, SstProperties};

struct Tree {
    style: CompactionStyle,
    version: Version,
    options: EngineOptions,
    contents: HashMap<FileId, Contents>,
}

fn argument<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn number(words: &[&str], name: &str, default: u64) -> u64 {
    argument(words, name).map_or(default, |text| text.parse().unwrap())
}

fn ids(words: &[&str], name: &str) -> HashSet<FileId> {
    argument(words, name)
        .map_or_else(HashSet::new, |text| text.split(',').map(|id| id.parse().unwrap()).collect())
}

fn range(text: &str) -> RowRange {
    let (start, end) = text.split_once(',').unwrap();
    RowRange::new(start.as_bytes().to_vec(), end.as_bytes().to_vec())
}

/// Files by what goes with them: the bytes of their data, and of values where they name any.
fn freed(words: &[&str]) -> HashMap<FileId, Freed> {
    let file = |text: &str| {
        let (id, bytes) = text.split_once(':').unwrap();
        let (data, values) = bytes.split_once('+').unwrap_or((bytes, "0"));
        let freed =
            Freed { data_bytes: data.parse().unwrap(), value_bytes: values.parse().unwrap() };
        (id.parse().unwrap(), freed)
    };
    argument(words, "data").map_or_else(HashMap::new, |text| text.split(',').map(file).collect())
}

fn contents(text: &str) -> Option<(FileId, Contents)> {
    let (id, rest) = text.split_once('[')?;
    let (rest, counts) = rest.split_once('!').unwrap_or((rest, "0/0"));
    let (tombstones, all) = counts.split_once('/')?;
    let pair = |text: &str, other: &str| -> Option<(u64, u64)> {
        let (of_rows, of_cells) = text.split_once('+').unwrap_or((text, other));
        Some((of_rows.parse().ok()?, of_cells.parse().ok()?))
    };
    let (row_tombstones, cell_tombstones) = pair(tombstones, "0")?;
    // A cell a row, where nothing is said.
    let (rows, cells) = pair(all, all)?;
    let value_bytes = rest.split_once('+').map_or("0", |(_, values)| values);
    let contents = Contents {
        rows,
        cells,
        row_tombstones,
        cell_tombstones,
        value_bytes: value_bytes.parse().ok()?,
    };
    Some((id.parse().ok()?, contents))
}

fn file(level: u8, text: &str) -> SstRef {
    let text = text.split('!').next().unwrap();
    let (text, visible) = text.split_once('@').unwrap_or((text, ","));
    let (id, rest) = text.split_once('[').unwrap();
    let (rows, bytes) = rest.split_once(']').unwrap();
    let (bytes, _) = bytes.split_once('+').unwrap_or((bytes, ""));
    let (first, last) = rows.split_once('-').unwrap();
    let id = id.parse().unwrap();
    let row = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let whole = SstRef::of_test(id, level, (row(first), row(last)), bytes.parse().unwrap());
    SstRef { visible: range(visible), ..whole }
}

fn tree(words: &[&str], levels: &[&str]) -> Tree {
    let mut edit = VersionEdit::default();
    let mut all = HashMap::new();
    for line in levels {
        let (level, files) = line.split_once(':').unwrap();
        let level = level.strip_prefix('L').unwrap().parse().unwrap();
        edit.add.extend(files.split_whitespace().map(|text| file(level, text)));
        all.extend(files.split_whitespace().filter_map(contents));
    }
    let options = EngineOptions {
        base_level_bytes: number(words, "base", 100),
        level_ratio: number(words, "ratio", 10),
        l0_compaction_files: number(words, "l0", 4) as usize,
        l0_stop_files: number(words, "stop", 48) as usize,
        memtable_bytes: 100,
        ..EngineOptions::default()
    };
    let version = Version::empty(RowRange::all()).apply(&edit).unwrap();
    let tiered = words.contains(&"tiered");
    let style = if tiered { CompactionStyle::Tiered } else { CompactionStyle::Leveled };
    Tree { style, version, options, contents: all }
}

fn show(version: &Version, pick: &Pick) -> String {
    let mut out = format!("{:?} into L{}", pick.reason, pick.output_level);
    if pick.bottommost {
        out.push_str(", bottommost");
    }
    if pick.is_move(version) {
        out.push_str(", a move");
    }
    for level in 0..=LAST_LEVEL {
        let files: Vec<_> = pick.inputs.iter().filter(|f| f.level == level).collect();
        if files.is_empty() {
            continue;
        }
        write!(out, "\nL{level}:").unwrap();
        for file in files {
            let span = file.span();
            let text = |row: &Bytes| String::from_utf8(row.to_vec()).unwrap().replace('\0', "+");
            write!(out, " {}[{},{})", file.id, text(&span.start), text(&span.end)).unwrap();
        }
    }
    out
}

/// Family 1 counts versions; family 2 is not in the schema; family 3 keeps a cell for a second.
fn schema() -> TabletSchema {
    let family = |gc| FamilyOptions { gc: Some(gc), aggregate: None, gc_since_micros: 0 };
    let families = [
        (FamilyId(1), family(GcRule::MaxVersions(1))),
        (FamilyId(3), family(GcRule::MaxAge(1_000_000))),
    ];
    TabletSchema { families: families.into() }
}

/// The time of the picks, in microseconds.
const NOW_MICROS: i64 = 100_000_000;

impl Tree {
    fn shape(&self) -> Shape {
        let contents = |file: &SstRef| self.contents.get(&file.id).copied().unwrap_or_default();
        Shape::new(&self.version, &self.options, self.style, &contents)
    }

    fn sublevels(&self) -> String {
        let shape = self.shape();
        let ids = |run: &Vec<Arc<SstRef>>| {
            run.iter().map(|file| file.id.to_string()).collect::<Vec<_>>().join(" ")
        };
        shape.sublevels.iter().rev().map(ids).collect::<Vec<_>>().join("\n")
    }

    fn pick(&self, words: &[&str]) -> String {
        let level_zero_bytes_max = argument(words, "most").map(|text| text.parse().unwrap());
        let files = ids(words, "busy");
        let mut busy = Busy { files, level_zero_bytes_max, ..Busy::default() };
        if let Some(text) = argument(words, "writing") {
            let (level, rows) = text.split_once(':').unwrap();
            busy.outputs.push((level.strip_prefix('L').unwrap().parse().unwrap(), range(rows)));
        }
        let pick = match words[0] {
            "shape" => {
                let shape = self.shape();
                match pick_by_shape(&self.version, &shape, &self.options, &busy) {
                    Some(pick) => {
                        return format!(
                            "score {:.2}: {}",
                            shape.score(),
                            show(&self.version, &pick)
                        );
                    }
                    None => None,
                }
            }
            "urgent" => pick_level_zero(&self.version, &self.shape(), &self.options, &busy),
            "full" => pick_full(&self.version, &busy),
            "reads" => {
                let (looks, flushed) = (number(words, "looks", 0), words.contains(&"flushed"));
                pick_for_reads(&self.version, &self.shape(), looks, flushed, &busy)
            }
            "collect" => self.pick_to_collect(words, &busy),
            other => panic!("pick {other}?"),
        };
        pick.map_or_else(|| "nothing".to_owned(), |pick| show(&self.version, &pick))
    }

    fn pick_to_collect(&self, words: &[&str], busy: &Busy) -> Option<Pick> {
        let (garbage, versions) = (ids(words, "garbage"), ids(words, "versions"));
        let (expired, runs, old) = (ids(words, "expired"), ids(words, "runs"), ids(words, "old"));
        let deletions = ids(words, "deletions");
        let freed = freed(words);
        let mut later = Dues::default();
        later.note(FamilyId(3), NOW_MICROS + 1);
        let dues = ids(words, "later").into_iter().map(|id| (id, later.clone())).collect();
        let properties = |id, question: &dyn Fn(&SstProperties) -> bool| {
            let mut properties = SstProperties {
                cells: 1,
                created_micros: if old.contains(&id) { 1 } else { NOW_MICROS },
                cell_tombstones: u64::from(deletions.contains(&id)),
                tombstone_run_max: if runs.contains(&id) { 1000 } else { 0 },
                ..SstProperties::default()
            };
            let family = FamilyProperties {
                cells: 1,
                timestamp_min: 1,
                timestamp_max: 1,
                column_versions_max: 1,
                ..FamilyProperties::default()
            };
            if expired.contains(&id) {
                properties.families.insert(FamilyId(3), family);
            } else {
                // A live cell.
                let live = FamilyProperties {
                    timestamp_min: NOW_MICROS,
                    timestamp_max: NOW_MICROS,
                    ..family
                };
                properties.families.insert(FamilyId(3), live);
            }
            if versions.contains(&id) {
                properties.families.insert(FamilyId(1), family);
            }
            if garbage.contains(&id) {
                properties.families.insert(FamilyId(2), family);
            }
            question(&properties)
        };
        let schema = schema();
        let ruleless = schema.without_user_rules();
        let inputs = CollectInputs {
            schema: if words.contains(&"collector") { &ruleless } else { &schema },
            collector: words.contains(&"collector").then_some(&schema),
            now_micros: NOW_MICROS,
            idle: words.contains(&"idle"),
            eager: !words.contains(&"rested"),
            tablet_bytes: number(words, "tablet", 0),
            tight: words.contains(&"tight"),
            rewrite_age_micros: NOW_MICROS / 2,
            resting: &ids(words, "resting"),
            dues: &dues,
            freed: &|id| freed.get(&id).copied().unwrap_or_default(),
            properties: &properties,
        };
        collect::pick_to_collect(&self.version, &self.shape(), busy, &inputs)
    }
}

#[test]
fn of_a_pick_that_failed_further_down_than_it_must_go_the_files_there_are_left_alone() {
    let levels = ["L4: 1[a-c]6", "L5: 2[a-c]20 3[d-m]40", "L6: 4[a-c]30 5[d-z]270"];
    assert_given_up(&tree(&["base=3"], &levels), [(6, vec![4]), (5, vec![1, 2])]);
}

/// What is picked fails again and again: where each goes, and what of it is left alone then.
fn assert_given_up(tree: &Tree, cases: [(u8, Vec<FileId>); 2]) {
    let mut busy = Busy::default();
    for (output_level, given_up) in cases {
        let pick = pick_by_shape(&tree.version, &tree.shape(), &tree.options, &busy).unwrap();
        let left: Vec<_> =
            pick.gives_up(&tree.version, &tree.shape()).map(|file| file.id).collect();
        assert_eq!((pick.output_level, left), (output_level, given_up));
        busy.files.extend(pick.gives_up(&tree.version, &tree.shape()).map(|file| file.id));
    }
}

#[test]
fn of_a_level_0_that_failed_further_down_than_at_rest_the_files_there_are_left_alone() {
    // Level 0 holds so much that it goes past level 5.
    let levels = ["L0: 1[a-c]300 2[a-c]300 3[a-c]300 4[a-c]300", "L5: 5[a-c]10", "L6: 6[a-z]300"];
    assert_given_up(&tree(&[], &levels), [(6, vec![6]), (5, vec![4, 3, 2, 1, 5])]);
}

#[test]
fn small_flushes_newer_than_one_that_is_left_alone_are_merged_without_it() {
    let flushes: Vec<String> = (1..=70).map(|n| format!("{n}[r{n:03}-r{n:03}]1")).collect();
    let tree = tree(&[], &[&format!("L0: {}", flushes.join(" "))]);
    let pick = |left_alone: &[FileId]| {
        let busy = Busy { files: left_alone.iter().copied().collect(), ..Busy::default() };
        pick_by_shape(&tree.version, &tree.shape(), &tree.options, &busy)
    };
    let all = pick(&[]).unwrap();
    assert_eq!((all.reason, all.inputs.len()), (Reason::Crowd, 70));
    let newer = pick(&[20]).unwrap();
    assert_eq!((newer.reason, newer.inputs.len()), (Reason::Crowd, 50));
    assert!(newer.inputs.iter().all(|file| file.id > 20));
    assert!(pick(&[50]).is_none(), "too few are newer");
}

#[test]
fn of_an_age_with_files_from_before_a_failed_crowd_nothing_is_merged_with_newer_flushes() {
    let flushes: Vec<String> = (1..=70).map(|n| format!("{n}[r{n:03}-r{n:03}]1")).collect();
    let mut tree = tree(&[], &[&format!("L0: {}", flushes.join(" "))]);
    let files = level_files(&tree.version, 0);
    // Merged with what was there before, so that it is of one age with the others up to there.
    let mut merged = SstRef::clone(files.iter().find(|file| file.id == 25).unwrap());
    merged.min_seq = files.iter().find(|file| file.id == 15).unwrap().min_seq;
    let edit = VersionEdit { remove: vec![(0, 25)], add: vec![merged], ..Default::default() };
    tree.version = tree.version.apply(&edit).unwrap();
    let busy = Busy { crowds_after: 20, ..Busy::default() };
    let pick = pick_by_shape(&tree.version, &tree.shape(), &tree.options, &busy).unwrap();
    assert_eq!((pick.reason, pick.inputs.len()), (Reason::Crowd, 45));
    assert!(pick.inputs.iter().all(|file| file.id > 25));
}

#[test]
fn a_pick_that_failed_where_nothing_lies_leaves_files_alone_too() {
    let levels = ["L4: 1[a-c]6", "L5: 2[a-c]20 3[d-m]40", "L6: 5[d-z]300"];
    let tree = tree(&["base=3"], &levels);
    let pick = |busy: &Busy| pick_by_shape(&tree.version, &tree.shape(), &tree.options, busy);
    let mut busy = Busy::default();
    let failed = pick(&busy).unwrap();
    let left: Vec<_> = failed.gives_up(&tree.version, &tree.shape()).map(|file| file.id).collect();
    assert_eq!((failed.output_level, &left), (6, &vec![2]));
    busy.files.extend(left);
    let next = pick(&busy);
    assert!(next.is_none_or(|next| next.inputs.iter().all(|file| file.id != 1 && file.id != 2)));
}

#[test]
fn picks() {
    let mut current = tree(&[], &[]);
    run_cases("picks.txt", |command, input| {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[0] {
            "tree" => {
                current = tree(&words[1..], input);
                let targets = current.shape().targets;
                let mut out = format!("base L{}:", targets.base_level);
                for level in targets.base_level..=LAST_LEVEL {
                    write!(out, " L{level} {}", targets.bytes[usize::from(level)]).unwrap();
                }
                out
            }
            "sublevels" => current.sublevels(),
            "pick" => current.pick(&words[1..]),
            other => panic!("command {other}?"),
        }
    });
}

//! Datadriven tests of picks: `testdata/picks.txt`. The cases share one tree.
//!
//! ```text
//! tree [base=N] [ratio=N] [l0=N]           the tree that follows, and the options; prints the targets
//!   L5: 3[a-f]100 4[h-k]20@a,i             a file: id, first and last row, bytes; visible from a up to i
//! pick size | full [busy=ID,ID] [writing=LEVEL:START,END]
//! pick collect [idle] [garbage=ID,ID] [versions=ID,ID] [futile=ID,ID]   and the arguments above
//! ```
//!
//! Prints the score, the reason, the inputs with what they show, and the output's level.

use std::fmt::Write;

use bytes::Bytes;

use super::*;
use crate::cell::FamilyId;
use crate::manifest::VersionEdit;
use crate::read::testing::script::run_cases;
use crate::schema::{FamilyOptions, GcRule};
use crate::sst::FamilyProperties;

struct Tree {
    version: Version,
    options: EngineOptions,
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

fn file(level: u8, text: &str) -> SstRef {
    let (text, visible) = text.split_once('@').unwrap_or((text, ","));
    let (id, rest) = text.split_once('[').unwrap();
    let (rows, bytes) = rest.split_once(']').unwrap();
    let (first, last) = rows.split_once('-').unwrap();
    let id = id.parse().unwrap();
    SstRef {
        id,
        level,
        visible: range(visible),
        bytes: bytes.parse().unwrap(),
        first_row: Bytes::copy_from_slice(first.as_bytes()),
        last_row: Bytes::copy_from_slice(last.as_bytes()),
        min_seq: id,
        max_seq: id,
        entries: 1,
    }
}

fn tree(words: &[&str], levels: &[&str]) -> Tree {
    let mut edit = VersionEdit::default();
    for line in levels {
        let (level, files) = line.split_once(':').unwrap();
        let level = level.strip_prefix('L').unwrap().parse().unwrap();
        edit.add.extend(files.split_whitespace().map(|text| file(level, text)));
    }
    let options = EngineOptions {
        base_level_bytes: number(words, "base", 100),
        level_ratio: number(words, "ratio", 10),
        l0_compaction_files: number(words, "l0", 4) as usize,
        ..EngineOptions::default()
    };
    Tree { version: Version::empty(RowRange::all()).apply(&edit).unwrap(), options }
}

fn show(pick: &Pick) -> String {
    let mut out = format!("{:?} into L{}", pick.reason, pick.output_level);
    if pick.bottommost {
        out.push_str(", bottommost");
    }
    if pick.is_move() {
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

/// Family 1 counts versions; family 2 is not in the schema.
fn schema() -> TabletSchema {
    let family = FamilyOptions { gc: Some(GcRule::MaxVersions(1)), aggregate: None };
    TabletSchema { families: [(FamilyId(1), family)].into() }
}

impl Tree {
    fn pick(&self, words: &[&str]) -> String {
        let mut busy = Busy { files: ids(words, "busy"), outputs: Vec::new() };
        if let Some(text) = argument(words, "writing") {
            let (level, rows) = text.split_once(':').unwrap();
            busy.outputs.push((level.strip_prefix('L').unwrap().parse().unwrap(), range(rows)));
        }
        let pick = match words[0] {
            "size" => match pick_by_size(&self.version, &self.options, &busy) {
                Some((score, pick)) => return format!("score {score:.2}: {}", show(&pick)),
                None => None,
            },
            "full" => pick_full(&self.version, &busy),
            "collect" => self.pick_to_collect(words, &busy),
            other => panic!("pick {other}?"),
        };
        pick.map_or_else(|| "nothing".to_owned(), |pick| show(&pick))
    }

    fn pick_to_collect(&self, words: &[&str], busy: &Busy) -> Option<Pick> {
        let (garbage, versions) = (ids(words, "garbage"), ids(words, "versions"));
        let properties = |id, question: &dyn Fn(&SstProperties) -> bool| {
            let mut properties = SstProperties::default();
            let family = FamilyProperties {
                cells: 1,
                column_versions_max: 1,
                ..FamilyProperties::default()
            };
            if versions.contains(&id) {
                properties.families.insert(FamilyId(1), family);
            }
            if garbage.contains(&id) {
                properties.families.insert(FamilyId(2), family);
            }
            question(&properties)
        };
        let schema = schema();
        let inputs = CollectInputs {
            schema: &schema,
            now_micros: 0,
            idle: words.contains(&"idle"),
            tablet_bytes: 0,
            futile: &ids(words, "futile"),
            properties: &properties,
        };
        pick_to_collect(&self.version, &self.options, busy, &inputs)
    }
}

#[test]
fn picks() {
    let mut current = tree(&[], &[]);
    run_cases("picks.txt", |command, input| {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[0] {
            "tree" => {
                current = tree(&words[1..], input);
                let targets = targets(&current.version, &current.options);
                let mut out = format!("base L{}:", targets.base_level);
                for level in targets.base_level..=LAST_LEVEL {
                    write!(out, " L{level} {}", targets.bytes[usize::from(level)]).unwrap();
                }
                out
            }
            "pick" => current.pick(&words[1..]),
            other => panic!("command {other}?"),
        }
    });
}

//! Whether a merge ever puts what is older before what is newer: random flushes, picks and cuts, played through with
//! the sequences of every row.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::compaction::ages;
use crate::compaction::beneath::files_beneath;
use crate::compaction::job::{cut, cut_out};
use crate::compaction::reads::pick_for_reads;
use crate::compaction::shape::Contents;
use crate::manifest::VersionEdit;

/// Histories: as many as take a few seconds.
const CASES: u32 = 256;

/// Rows of the model.
const ROWS: u8 = 8;

/// The sequences of each row of a file, ascending.
type Records = BTreeMap<u8, Vec<u64>>;

#[derive(Debug, Clone)]
enum Step {
    /// Rows in the order in which they are written, and where the flush is cut: bits by row.
    Flush(Vec<u8>, u16),
    /// Begins a compaction; files that are left alone for now, by bits of their place in level 0.
    Begin { which: Which, alone: u16 },
    /// A running compaction is done with the rows before this one, and cuts what it makes of them.
    Part(u8, u8, u16),
    /// Ends a running compaction, and cuts what it makes.
    End(u8, u16),
    /// Drops these rows, and all compactions that run.
    Drop(u8, u8),
}

#[derive(Debug, Clone)]
enum Which {
    /// What is due by shape.
    Due,
    /// What reads have paid for, where a memtable was flushed for it.
    ForReads,
    /// What a file of level 0 is the seed of, by its place there.
    Seed(u8),
    /// A file between level 0 and the last one goes down, by its place among them, or is rewritten.
    Between(u8, bool),
    /// Runs of a tiered tablet that lie next to each other, whatever they cost: the first, and how many.
    Runs(u8, u8),
}

/// Where files are cut: in the middle, where all flushes may be cut, or before one or two rows.
fn cuts() -> impl Strategy<Value = u16> {
    let any = prop::collection::vec(0..u32::from(ROWS), 0..3)
        .prop_map(|rows| rows.into_iter().fold(0, |cuts, row| cuts | 1 << row));
    prop_oneof![Just(1 << (ROWS / 2)), any]
}

/// What a flush writes: rows of either half or of both, in any order.
fn rows() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(0..ROWS), Just(0..ROWS / 2), Just(ROWS / 2..ROWS)]
        .prop_flat_map(|rows| prop::collection::vec(rows, 2..10))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flush = (rows(), cuts());
    let which = prop_oneof![
        2 => Just(Which::Due),
        1 => Just(Which::ForReads),
        1 => any::<u8>().prop_map(Which::Seed),
        2 => any::<(u8, bool)>().prop_map(|(at, goes_down)| Which::Between(at, goes_down)),
        6 => (any::<u8>(), 2u8..4).prop_map(|(first, count)| Which::Runs(first, count)),
    ];
    let alone = prop_oneof![3 => Just(0), 1 => any::<u16>().prop_map(|bits| bits & 0x1111)];
    let step = prop_oneof![
        2 => flush.prop_map(|(rows, cuts)| Step::Flush(rows, cuts)),
        1 => (which, alone).prop_map(|(which, alone)| Step::Begin { which, alone }),
        1 => (any::<u8>(), 1..ROWS, cuts())
            .prop_map(|(which, row, cuts)| Step::Part(which, row, cuts)),
        1 => (any::<u8>(), cuts()).prop_map(|(which, cuts)| Step::End(which, cuts)),
        1 => (1..ROWS - 1, 1..3_u8).prop_map(|(first, count)| Step::Drop(first, count)),
    ];
    prop::collection::vec(step, 20..100)
}

/// A compaction that is done with the rows before one.
struct Running {
    pick: Pick,
    done: u8,
}

impl Running {
    /// What of the inputs is left.
    fn left(&self) -> Vec<SstRef> {
        let done = rows_before(self.done);
        self.pick.inputs.iter().flat_map(|file| cut(file, &done)).collect()
    }

    fn busy_rows(&self) -> RowRange {
        self.pick.span().intersect(&RowRange::new(vec![self.done], Bytes::new()))
    }
}

fn rows_before(row: u8) -> RowRange {
    RowRange::new(Bytes::new(), vec![row])
}

struct Model {
    options: EngineOptions,
    version: Version,
    contents: HashMap<FileId, Records>,
    /// What there is to be shown.
    written: Records,
    running: Vec<Running>,
    next_id: FileId,
    next_seq: u64,
}

impl Model {
    fn new(style: CompactionStyle) -> Self {
        let options = EngineOptions {
            compaction: style,
            // Level 0 goes down now and then.
            base_level_bytes: 2000,
            memtable_bytes: 1000,
            l0_compaction_files: 3,
            l0_stop_files: 6,
            ..EngineOptions::default()
        };
        let version = Version::empty(RowRange::all());
        let (contents, written, running) = (HashMap::new(), Records::new(), Vec::new());
        Self { options, version, contents, written, running, next_id: 1, next_seq: 1 }
    }

    /// Files with these records, cut before rows as the bits say.
    fn files(&mut self, records: Records, level: u8, cuts: u16) -> Vec<SstRef> {
        let mut parts: Vec<Records> = Vec::new();
        let mut passed = 0;
        for (row, seqs) in records {
            let before = u32::from(cuts) & ((2 << row) - 1);
            if parts.is_empty() || before != passed {
                parts.push(Records::new());
            }
            passed = before;
            parts.last_mut().unwrap().insert(row, seqs);
        }
        let refs = parts.into_iter().map(|part| {
            self.next_id += 1;
            let seqs: Vec<u64> = part.values().flatten().copied().collect();
            let file = SstRef {
                id: self.next_id,
                level,
                visible: RowRange::all(),
                bytes: 10 * seqs.len() as u64,
                first_row: Bytes::from(vec![*part.keys().next().unwrap()]),
                last_row: Bytes::from(vec![*part.keys().next_back().unwrap()]),
                min_seq: *seqs.iter().min().unwrap(),
                max_seq: *seqs.iter().max().unwrap(),
                entries: seqs.len() as u64,
            };
            self.contents.insert(file.id, part);
            file
        });
        refs.collect()
    }

    /// Adds files in the place of what the references for which `of` holds have of some rows.
    fn install(&mut self, add: Vec<SstRef>, rows: &RowRange, of: impl Fn(&SstRef) -> bool) {
        let mut edit = VersionEdit { add, ..VersionEdit::default() };
        cut_out(&mut edit, &self.version, rows, of, |file| {
            if file.overlaps(rows) { cut(file, rows) } else { vec![file.clone()] }
        });
        self.version = self.version.apply(&edit).unwrap();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Flush(rows, cuts) => {
                let mut records = Records::new();
                for row in rows {
                    records.entry(*row).or_default().push(self.next_seq);
                    self.written.entry(*row).or_default().push(self.next_seq);
                    self.next_seq += 1;
                }
                let add = self.files(records, 0, *cuts);
                self.install(add, &RowRange::all(), |_| false);
            }
            Step::Begin { which, alone } => self.begin(which, *alone),
            Step::Part(which, row, cuts) => {
                let Some(mut running) = self.take_running(*which) else { return };
                // Into level 0 all comes at once.
                if running.done < *row && running.pick.output_level > 0 {
                    self.done(&mut running, *row, *cuts);
                }
                self.running.push(running);
            }
            Step::End(which, cuts) => {
                let Some(mut running) = self.take_running(*which) else { return };
                self.done(&mut running, ROWS, *cuts);
            }
            Step::Drop(first, count) => {
                self.running.clear();
                self.written.retain(|row, _| !(*first..first + count).contains(row));
                let rows = RowRange::new(vec![*first], vec![first + count]);
                self.install(Vec::new(), &rows, |_| true);
            }
        }
    }

    fn take_running(&mut self, which: u8) -> Option<Running> {
        let count = self.running.len();
        (count > 0).then(|| self.running.remove(usize::from(which) % count))
    }

    /// Merges the rows of a compaction before this one.
    fn done(&mut self, running: &mut Running, row: u8, cuts: u16) {
        let before = running.left();
        let mut merged = Records::new();
        for (at, seqs) in before.iter().flat_map(|file| self.shown(file)) {
            if at < row {
                merged.entry(at).or_default().extend(seqs);
            }
        }
        for seqs in merged.values_mut() {
            seqs.sort_unstable();
        }
        running.done = row;
        let add = self.files(merged, running.pick.output_level, cuts);
        let inputs = running.pick.references();
        self.install(add, &rows_before(row), |file| inputs.have(file));
    }

    /// What a reference shows of its file.
    fn shown(&self, file: &SstRef) -> Vec<(u8, Vec<u64>)> {
        let records = self.contents[&file.id].iter();
        let visible = records.filter(|(row, _)| file.visible.contains(&[**row]));
        visible.map(|(row, seqs)| (*row, seqs.clone())).collect()
    }

    fn shape(&self) -> Shape {
        let style = self.options.compaction;
        Shape::new(&self.version, &self.options, style, &|_| Contents::default())
    }

    fn begin(&mut self, which: &Which, alone: u16) {
        let l0 = level_files(&self.version, 0);
        let alone = l0.iter().enumerate().filter(|(at, _)| *at < 16 && alone >> at & 1 == 1);
        let inputs = self.running.iter().flat_map(|running| &running.pick.inputs);
        let outputs = self.running.iter();
        let busy = Busy {
            files: inputs.map(|file| file.id).chain(alone.map(|(_, file)| file.id)).collect(),
            outputs: outputs
                .map(|running| (running.pick.output_level, running.busy_rows()))
                .collect(),
            ..Busy::default()
        };
        let style = self.options.compaction;
        let shape = self.shape();
        let due = || pick_by_shape(&self.version, &shape, &self.options, &busy);
        let pick = match which {
            Which::Due => due(),
            Which::ForReads => pick_for_reads(&self.version, &shape, u64::MAX, true, &busy),
            Which::Seed(at) => l0
                .get(usize::from(*at) % l0.len().max(1))
                .and_then(|seed| pick_file(&self.version, &shape, Reason::Collect, seed, 0, &busy)),
            Which::Between(at, goes_down) => {
                let between =
                    self.version.ssts().filter(|file| (1..LAST_LEVEL).contains(&file.level));
                let between: Vec<_> = between.collect();
                between.get(usize::from(*at) % between.len().max(1)).and_then(|file| {
                    let level = file.level + u8::from(*goes_down);
                    pick_file(&self.version, &shape, Reason::Collect, file, level, &busy)
                })
            }
            Which::Runs(..) if style == CompactionStyle::Leveled => due(),
            Which::Runs(first, count) => {
                let runs = runs(&LevelZero::new(&self.version, &shape));
                let first = usize::from(*first) % runs.len().max(1);
                let window = first..(first + usize::from(*count)).min(runs.len());
                merge_runs(runs.get(window).unwrap_or_default(), &busy)
            }
        };
        if let Some(pick) = pick {
            self.check_pick(&pick);
            self.running.push(Running { pick, done: 0 });
        }
    }

    /// A pick knows of everything that is older, be it among its inputs or beneath them.
    fn check_pick(&self, pick: &Pick) {
        let inputs = pick.inputs.iter().map(AsRef::as_ref);
        let known: Vec<_> = inputs.chain(files_beneath(&self.version, pick)).collect();
        let outside = self.version.ssts().filter(|file| !known.contains(&&***file));
        let inputs: Vec<_> = pick.inputs.iter().flat_map(|file| self.shown(file)).collect();
        for (row, seqs) in outside.flat_map(|file| self.shown(file)) {
            let newest = inputs.iter().filter(|(at, _)| *at == row).filter_map(|(_, s)| s.last());
            assert!(newest.max().is_none_or(|newest| *newest < seqs[0]), "row {row} in {pick:?}");
        }
    }

    /// Of each row there is all that was written, and what is looked at first is newer than all that is looked at later.
    fn check_order(&self) {
        let mut shown = Records::new();
        for (row, seqs) in self.version.ssts().flat_map(|file| self.shown(file)) {
            shown.entry(row).or_default().extend(seqs);
        }
        for seqs in shown.values_mut() {
            seqs.sort_unstable();
        }
        assert_eq!(shown, self.written, "{:#?}", self.version);
        for row in 0..ROWS {
            let mut older_than = u64::MAX;
            for file in self.version.ssts_for_row(&[row]) {
                let Some(seqs) = self.contents[&file.id].get(&row) else { continue };
                assert!(*seqs.last().unwrap() < older_than, "row {row}: {:#?}", self.version);
                older_than = seqs[0];
            }
        }
        let doubt = ages::doubt(level_files(&self.version, 0));
        assert_eq!(doubt, None, "files that share rows and whose sequences interleave");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn what_is_newer_lies_before_what_is_older_after_any_merges(
        steps in steps(),
        tiered: bool,
        base_level_bytes in prop::sample::select(vec![20_u64, 200, 2000]),
    ) {
        let style = if tiered { CompactionStyle::Tiered } else { CompactionStyle::Leveled };
        let mut model = Model::new(style);
        // A base level above the last one, which moves as level 0 grows, needs several levels of next to nothing.
        (model.options.base_level_bytes, model.options.level_ratio) = (base_level_bytes, 3);
        for step in &steps {
            model.step(step);
            model.check_order();
        }
    }

    #[test]
    fn a_tiered_tablet_whose_level_zero_is_deep_is_always_merged(
        flushes in prop::collection::vec((rows(), cuts()), 1..60),
        cuts in cuts(),
    ) {
        let mut model = Model::new(CompactionStyle::Tiered);
        model.options.base_level_bytes = u64::MAX / 4;
        for (rows, at) in flushes {
            model.step(&Step::Flush(rows, at));
            while sublevels::arrange(level_files(&model.version, 0)).len() >= crate::options::TIERED_RUNS_MAX {
                let before = ages_deep(&model);
                model.step(&Step::Begin { which: Which::Due, alone: 0 });
                prop_assert!(!model.running.is_empty());
                model.step(&Step::End(0, cuts));
                prop_assert!(ages_deep(&model) < before);
            }
        }
    }
}

#[test]
fn a_piece_of_a_flush_is_not_merged_without_the_others() {
    let merge = |first, count, cuts| {
        let which = Which::Runs(first, count);
        [Step::Begin { which, alone: 0 }, Step::End(0, cuts)]
    };
    let flush = |rows: &[u8]| Step::Flush(rows.to_vec(), 1 << 4);
    let mut steps = vec![flush(&[0, 4, 7, 3]), flush(&[0, 4, 3]), flush(&[4]), flush(&[4])];
    // Of the second flush the piece [0..3] with what is newer, and the piece [4] with what is older; and each result cut
    // where the greatest sequences of the two change places.
    steps.extend(merge(2, 2, 0));
    steps.extend(merge(0, 2, 1 << 1));
    let mut model = Model::new(CompactionStyle::Tiered);
    for step in &steps {
        model.step(step);
        model.check_order();
    }
}

/// Places to look in, by the runs.
fn ages_deep(model: &Model) -> usize {
    let shape = model.shape();
    runs(&LevelZero::new(&model.version, &shape)).iter().map(|run| run.depth).sum()
}

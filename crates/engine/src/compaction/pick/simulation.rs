//! Loads of random rows, played through the picks without a byte of data: what they read, write and cost. Files
//! are ranges with bytes spread evenly over them, so a merge is a sum; time is the bytes that the threads move.

use bytes::Bytes;

use super::*;
use crate::compaction::cuts::CutRule;
use crate::compaction::shape::Contents;
use crate::manifest::VersionEdit;

const MIB: u64 = 1 << 20;

/// Files' worth of a compaction that is divided among threads, roughly.
const DIVIDED_FILES: u64 = 4;

/// Rows between 0 and 1.
const SCALE: f64 = 1e15;

/// Rows are numbers of this many bytes, big-endian.
fn row(at: f64) -> Bytes {
    Bytes::copy_from_slice(&((at * SCALE) as u64).to_be_bytes())
}

fn place(row: &[u8]) -> f64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(row) {
        *to = *from;
    }
    u64::from_be_bytes(bytes) as f64 / SCALE
}

/// A file's rows as an interval, and its bytes.
fn interval(file: &SstRef) -> (f64, f64, f64) {
    (place(&file.first_row), place(&file.last_row), file.bytes as f64)
}

struct Load {
    options: EngineOptions,
    version: Version,
    next_id: u64,
    /// Bytes written by flushes and by compactions.
    flushed: u64,
    written: u64,
    running: Vec<(Pick, f64)>,
    sublevels_max: usize,
}

/// What a load cost.
#[derive(Debug)]
struct Cost {
    /// Bytes written over bytes loaded.
    write_amplification: f64,
    sublevels_max: usize,
}

impl Load {
    fn new(options: EngineOptions) -> Self {
        Self {
            options,
            version: Version::empty(RowRange::all()),
            next_id: 1,
            flushed: 0,
            written: 0,
            running: Vec::new(),
            sublevels_max: 0,
        }
    }

    fn shape(&self) -> Shape {
        Shape::new(&self.version, &self.options, self.options.compaction, &|_| Contents::default())
    }

    fn file(&mut self, level: u8, start: f64, end: f64, bytes: u64, seq: u64) -> SstRef {
        self.next_id += 1;
        let rows = (row(start), row(end.max(start)));
        let (min_seq, max_seq) = (seq, seq);
        SstRef { min_seq, max_seq, ..SstRef::of_test(self.next_id, level, rows, bytes) }
    }

    /// What evenly spread `inputs` become, cut as a job cuts them.
    fn merged(&mut self, inputs: &[(f64, f64, f64)], level: u8, seq: u64) -> Vec<SstRef> {
        let mut points: Vec<f64> = inputs.iter().flat_map(|i| [i.0, i.1]).collect();
        let rule = CutRule::new(&self.version, &self.options, self.options.compaction, level);
        points.extend(rule.boundaries().map(place));
        points.sort_by(f64::total_cmp);
        points.dedup();
        let mut cutter = rule.start();
        let mut out = Vec::new();
        let (mut begun, mut bytes): (Option<f64>, f64) = (None, 0.0);
        let mut last = 0.0;
        for pair in points.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            let density: f64 = inputs
                .iter()
                .filter(|i| i.0 <= start && end <= i.1)
                .map(|i| i.2 / (i.1 - i.0).max(1e-12))
                .sum();
            let mut at = start;
            while density > 0.0 && at < end {
                if cutter.cuts_before(&crate::cell::row_prefix(&row(at)), bytes as u64)
                    && let Some(from) = begun.take()
                {
                    let file = self.file(level, from, last, bytes as u64, seq);
                    out.push(file);
                    bytes = 0.0;
                }
                begun.get_or_insert(at);
                // A sixteenth of a file at a time.
                let step = (self.options.target_file_bytes as f64 / 16.0 / density).max(1e-12);
                let to = (at + step).min(end);
                bytes += density * (to - at);
                at = to;
                last = to - 1e-14;
            }
        }
        if let Some(from) = begun {
            let file = self.file(level, from, last, bytes as u64, seq);
            out.push(file);
        }
        out
    }

    fn flush(&mut self, bytes: u64) {
        self.flushed += bytes;
        let seq = self.next_id;
        let add = self.merged(&[(0.0, 1.0, bytes as f64)], 0, seq);
        let edit = VersionEdit { add, ..VersionEdit::default() };
        self.version = self.version.apply(&edit).unwrap();
        self.sublevels_max = self.sublevels_max.max(self.shape().sublevels.len());
    }

    fn busy(&self) -> Busy {
        Busy {
            files: self.running.iter().flat_map(|(p, _)| &p.inputs).map(|f| f.id).collect(),
            outputs: self.running.iter().map(|(p, _)| (p.output_level, p.span())).collect(),
            ..Busy::default()
        }
    }

    /// As threads do: one that is free helps with what runs, where that can be divided, unless level 0 is due.
    fn claim_beside(&mut self) -> bool {
        let divides = |(pick, _): &(Pick, f64)| {
            pick.input_bytes() >= DIVIDED_FILES * self.options.target_file_bytes
        };
        let shape = self.shape();
        let pick = if !self.running.iter().any(divides) {
            pick_by_shape(&self.version, &shape, &self.options, &self.busy())
        } else if shape.score() >= 1.0 {
            pick_level_zero(&self.version, &shape, &self.options, &self.busy())
        } else {
            None
        };
        let Some(pick) = pick else { return false };
        let work = if pick.is_move(&self.version) { 0.0 } else { pick.input_bytes() as f64 };
        self.running.push((pick, work));
        true
    }

    fn install(&mut self, pick: &Pick) {
        let add = if pick.is_move(&self.version) {
            pick.inputs
                .iter()
                .map(|f| SstRef { level: pick.output_level, ..f.as_ref().clone() })
                .collect()
        } else {
            let inputs: Vec<_> = pick.inputs.iter().map(|f| interval(f)).collect();
            let seq = pick.inputs.iter().map(|f| f.max_seq).max().unwrap();
            self.written += pick.input_bytes();
            self.merged(&inputs, pick.output_level, seq)
        };
        let remove = pick.inputs.iter().map(|f| (f.level, f.id)).collect();
        let edit = VersionEdit { add, remove, ..VersionEdit::default() };
        self.version = self.version.apply(&edit).unwrap();
    }

    /// Moves `bytes` by all that runs; what ends is installed and what is due begins.
    fn work(&mut self, mut bytes: f64) -> f64 {
        let threads = self.options.compaction_threads;
        loop {
            while self.running.len() < threads && self.claim_beside() {}
            let Some(least) = self.running.iter().map(|(_, left)| *left).min_by(f64::total_cmp)
            else {
                return bytes;
            };
            let share = (bytes / self.running.len() as f64).min(least);
            bytes -= share * self.running.len() as f64;
            for (_, left) in &mut self.running {
                *left -= share;
            }
            let (done, running) =
                std::mem::take(&mut self.running).into_iter().partition(|(_, left)| *left < 1.0);
            self.running = running;
            for (pick, _) in &done {
                self.install(pick);
            }
            if bytes < 1.0 {
                return 0.0;
            }
        }
    }

    /// Whether every write is refused for level 0.
    fn takes_no_more(&self) -> bool {
        let shape = self.shape();
        shape.sublevels.len() >= self.options.l0_stop_files
            || shape.pressure_of_bytes().refused_share() >= 1.0
    }

    /// Loads `bytes` of random rows and settles. `speed`: bytes that compaction moves while a byte is loaded.
    fn run(mut self, bytes: u64, speed: u64) -> Cost {
        let flush = self.options.memtable_bytes;
        while self.flushed < bytes {
            while self.takes_no_more() {
                self.work(self.options.target_file_bytes as f64 / 4.0);
            }
            self.flush(flush);
            // While a memtable fills and is flushed, compaction gets on a little.
            self.work(flush as f64 * speed as f64);
        }
        while self.work(1e12) < 1e12 && !self.running.is_empty() {}
        Cost {
            write_amplification: (self.flushed + self.written) as f64 / self.flushed as f64,
            sublevels_max: self.sublevels_max,
        }
    }
}

/// A twentieth of everything: 1 GiB under the default ratios is as a load of 20 GiB.
fn twentieth() -> EngineOptions {
    EngineOptions {
        memtable_bytes: 64 * MIB / 20,
        base_level_bytes: 256 * MIB / 20,
        target_file_bytes: 64 * MIB / 20,
        ..EngineOptions::default()
    }
}

#[test]
fn a_tiered_tablet_is_written_less_often_and_keeps_few_runs() {
    let options = twentieth();
    let tiered = EngineOptions { compaction: CompactionStyle::Tiered, ..options.clone() };
    // A writer that is the fastest has a leveled one put off as much.
    for (speed, part) in [(1, 1.1), (5, 1.0), (20, 1.0)] {
        let leveled = Load::new(options.clone()).run(1 << 30, speed);
        let tiered = Load::new(tiered.clone()).run(1 << 30, speed);
        let most = leveled.write_amplification * part;
        assert!(tiered.write_amplification < most, "{leveled:?} {tiered:?}");
        assert!(tiered.sublevels_max <= options.l0_stop_files, "{tiered:?}");
    }
}

#[test]
fn a_load_of_random_rows_is_written_a_bounded_number_of_times() {
    let options = twentieth();
    // As fast as compaction lets it: level 0 is as deep as it may be, so most goes down at once.
    let eager = Load::new(options.clone()).run(1 << 30, 1);
    assert!(eager.write_amplification < 5.2, "{eager:?}");
    // So slowly that level 0 is compacted whenever it is due.
    let slow = Load::new(options.clone()).run(1 << 30, 20);
    assert!(slow.write_amplification < 11.5, "{slow:?}");
    assert!(slow.sublevels_max <= options.l0_compaction_files + 2, "{slow:?}");
}

#[test]
fn a_small_load_of_random_rows_is_hardly_written_to_a_level_on_the_way() {
    // As a load of 1 GiB.
    let options = twentieth();
    for speed in [1, 5, 20] {
        let cost = Load::new(options.clone()).run((1 << 30) / 20, speed);
        assert!(cost.write_amplification < 3.6, "{speed}: {cost:?}");
    }
}

#[test]
fn small_scattered_flushes_over_a_large_base_level_are_merged_with_each_other_until_they_are_worth_it()
 {
    const BASE: u64 = 200 * MIB;
    const ROUNDS: u64 = 3000;
    for bytes in [100, 16 << 10] {
        let options = EngineOptions::default();
        let sublevels_max = options.l0_compaction_files;
        let mut load = Load::new(options);
        load.flush(BASE);
        let full = pick_full(&load.version, &Busy::default()).unwrap();
        load.install(&full);
        (load.flushed, load.written, load.sublevels_max) = (0, 0, 0);
        for round in 0..ROUNDS {
            load.flush(bytes);
            load.work(1e12);
            assert!(load.running.is_empty() && load.shape().score() < 1.0, "{bytes}: {round}");
        }
        // What goes down is a sixteenth of what is written with it, and was merged a few times before.
        let most = load.flushed * 32;
        assert!(load.written <= most, "{bytes}: {} for {}", load.written, load.flushed);
        assert!(load.sublevels_max <= sublevels_max, "{bytes}: {}", load.sublevels_max);
    }
}

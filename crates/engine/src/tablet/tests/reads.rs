//! Merges that reads have paid for.

use super::*;

/// Looks that pay for any merge of these tests.
const ENOUGH: usize = 200_000;

impl Rig {
    fn write_to_memory(&self) {
        for row in ["a", "b"] {
            block_on(self.tablet.apply(batch(row, &["a", "b"]))).unwrap();
        }
    }

    fn read_all(&self, rows: &[&str]) {
        for row in rows {
            assert_eq!(self.cells(row), 2, "{row}");
        }
    }

    /// Files by level, those that have any.
    fn levels(&self) -> Vec<(usize, usize)> {
        let files = self.tablet.stats().level_files;
        files.into_iter().enumerate().filter(|(_, files)| *files > 0).collect()
    }

    fn merges_for_reads(&self) -> u64 {
        self.engine.metrics().compactions_for_reads.load(Ordering::Relaxed)
    }
}

/// A table with a file in the last level, one in level 0 and a memtable, all with rows `a` and `b`.
fn spread() -> Rig {
    let rig = rig_with(EngineOptions::default());
    rig.write(&["a", "b"]);
    rig.engine.compact_fully().unwrap();
    rig.write(&["a", "b"]);
    rig.write_to_memory();
    rig
}

#[test]
fn what_reads_look_for_in_several_places_is_merged_once_they_have_paid_for_it() {
    let rig = spread();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.levels(), [(0, 1), (6, 1)], "writers need nothing");
    rig.tablet.looks.add(ENOUGH);
    rig.engine.run_background().unwrap();
    assert_eq!(rig.levels(), [(6, 1)]);
    assert_eq!(rig.tablet.active_bytes(), 0, "the memtable as well");
    assert_eq!(rig.merges_for_reads(), 1);
    rig.read_all(&["a", "b"]);
    assert_eq!(rig.tablet.looks.count(), 0, "begins anew");
}

#[test]
fn reads_count_the_places_that_they_look_into_beyond_one() {
    let rig = spread();
    let reads = 64;
    for _ in 0..reads {
        rig.read_all(&["a"]);
    }
    assert_eq!(rig.tablet.looks.count(), 2 * reads, "level 0 and the memtable");
    rig.engine.compact_fully().unwrap();
    for _ in 0..reads {
        rig.read_all(&["a"]);
    }
    assert_eq!(rig.tablet.looks.count(), 0, "one place");
    rig.write_to_memory();
    for _ in 0..reads {
        rig.read_all(&["a"]);
    }
    assert_eq!(rig.tablet.looks.count(), reads, "the memtable");
}

#[test]
fn a_compaction_of_level_zero_for_writers_takes_from_reads_what_they_have_paid() {
    let rig = spread();
    rig.tablet.looks.add(ENOUGH);
    rig.engine.compact_fully().unwrap();
    rig.write_to_memory();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.merges_for_reads(), 0);
    assert!(rig.tablet.active_bytes() > 0, "not flushed for them");
}

#[test]
fn a_tiered_table_is_not_merged_for_reads() {
    let rig = spread();
    rig.tablet.set_compaction(CompactionStyle::Tiered);
    rig.tablet.looks.add(ENOUGH);
    rig.engine.run_background().unwrap();
    assert_eq!((rig.levels(), rig.merges_for_reads()), (vec![(0, 1), (6, 1)], 0));
    assert!(rig.tablet.active_bytes() > 0, "not flushed for them");
}

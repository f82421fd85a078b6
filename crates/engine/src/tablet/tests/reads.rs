//! Merges that reads have paid for.

use super::*;

/// Looks that pay for any merge of these tests.
const ENOUGH: u64 = 200_000;

/// Reads that are enough for dice to come out even.
const READS: u64 = 16_384;

impl Rig {
    fn write_to_memory(&self) {
        for row in ["a", "b"] {
            block_on(self.tablet.apply(batch(row, &["a", "b"]))).unwrap();
        }
    }

    /// Looks of so many reads of a row, to within a fifth.
    fn assert_looks(&self, expected_of_each: u64) {
        self.tablet.forget_looks(0);
        for _ in 0..READS {
            assert_eq!(self.cells("a"), 2);
        }
        let (looks, expected) = (self.tablet.looks(), expected_of_each * READS);
        assert!(looks.abs_diff(expected) <= expected / 5, "{looks} looks, not {expected}");
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
fn spread_on(clock: Arc<dyn Clock>) -> Rig {
    let options = EngineOptions { memtable_bytes: 64 << 10, ..EngineOptions::default() };
    let rig = rig_on(options, clock);
    rig.write(&["a", "b"]);
    rig.engine.compact_fully().unwrap();
    rig.write(&["a", "b"]);
    rig.write_to_memory();
    rig
}

fn spread() -> Rig {
    spread_on(Arc::new(ManualClock::new(START_MICROS)))
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
    assert_eq!((rig.merges_for_reads(), rig.tablet.looks()), (1, 0));
    assert_eq!((rig.cells("a"), rig.cells("b")), (2, 2));
}

#[test]
fn reads_count_the_places_that_a_merge_would_spare_them() {
    let rig = spread();
    rig.assert_looks(2);
    rig.engine.compact_fully().unwrap();
    rig.assert_looks(0);
    rig.write_to_memory();
    rig.assert_looks(1);
    rig.write(&["a"]);
    rig.move_to(5, false);
    // Two places, but none of them is merged with level 0.
    rig.assert_looks(0);
}

#[test]
fn looks_that_load_blocks_count_for_more() {
    let options = EngineOptions { block_cache_bytes: 64 << 10, ..EngineOptions::default() };
    let rig = rig_with(options);
    let row = |number: u64| Bytes::from(format!("{number:04}"));
    let write = || {
        for number in 0..256 {
            let put = Mutation::Put {
                family: FamilyId(1),
                qualifier: Bytes::from_static(b"q"),
                timestamp: 1000,
                value: Bytes::from((0..4000).map(|at| (at * number) as u8).collect::<Vec<_>>()),
            };
            let batch = RowBatch { row: row(number), mutations: vec![put] };
            block_on(rig.tablet.apply(batch)).unwrap();
        }
        block_on(rig.tablet.flush()).unwrap();
    };
    write();
    rig.engine.compact_fully().unwrap();
    write();
    let projection = Projection::all();
    let rounds = 16;
    for number in (0..256).cycle().take(256 * rounds) {
        let row = row(number);
        let read = rig.tablet.read_row(&row, &projection, ReadView::Durable);
        assert!(block_on(read).unwrap().is_some());
    }
    let (looks, expected) = (rig.tablet.looks(), 256 * rounds as u64 * 8);
    assert!(looks.abs_diff(expected) <= expected / 4, "{looks} looks, not {expected}");
}

#[test]
fn tablets_that_take_turns_count_their_own_looks() {
    let looks = [super::looks::Looks::default(), super::looks::Looks::default()];
    for _ in 0..READS {
        looks[0].add(1);
        looks[1].add(3);
    }
    for (looks, expected) in looks.iter().zip([READS, 3 * READS]) {
        assert!(looks.count().abs_diff(expected) <= expected / 5, "{looks:?}, not {expected}");
    }
}

#[test]
fn any_compaction_of_level_zero_takes_from_reads_what_they_have_paid() {
    let rig = spread();
    rig.tablet.looks.add(ENOUGH);
    rig.engine.compact_fully().unwrap();
    rig.write_to_memory();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.merges_for_reads(), 0);
    assert!(rig.tablet.active_bytes() > 0, "not flushed for them");
}

#[test]
fn what_another_compaction_took_along_keeps_no_later_memtable_from_being_merged_for_reads() {
    let rig = spread();
    rig.tablet.looks.add(ENOUGH);
    assert!(rig.tablet.claim_for_reads().is_none(), "the memtable is flushed first");
    rig.engine.compact_fully().unwrap();
    rig.write_to_memory();
    rig.tablet.looks.add(ENOUGH);
    rig.engine.run_background().unwrap();
    assert_eq!((rig.merges_for_reads(), rig.tablet.active_bytes()), (1, 0));
    assert_eq!(rig.levels(), [(6, 1)]);
}

#[test]
fn what_reads_have_paid_for_is_merged_once_what_is_in_the_way_is_over() {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let rig = spread_on(clock.clone());
    let base_level = || {
        let inputs: Vec<_> = rig.tablet.version().level(6).to_vec();
        let reason = pick::Reason::Collect;
        let pick = pick::Pick { reason, inputs, output_level: 6, bottommost: true };
        rig.tablet.claim(rig.tablet.picks(), pick)
    };
    let running = base_level();
    rig.tablet.looks.add(ENOUGH);
    assert!(rig.tablet.claim_for_reads().is_none());
    assert!(rig.tablet.active_bytes() > 0, "no memtable is flushed for a merge that cannot be");
    drop(running);
    clock.advance_micros(1_000_000);
    assert!(rig.tablet.claim_for_reads().is_none(), "now it is");
    assert_eq!(rig.tablet.active_bytes(), 0);
    rig.tablet.flush_waiting().unwrap();
    let running = base_level();
    assert!(rig.tablet.claim_for_reads().is_none());
    drop(running);
    clock.advance_micros(1_000_000);
    rig.tablet.claim_for_reads().unwrap().run().unwrap();
    assert_eq!(rig.levels(), [(6, 1)]);
}

#[test]
fn merges_for_reads_leave_time_between_them_however_many_reads_there_are() {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let rig = spread_on(clock.clone());
    for (advance_micros, expected) in [(0, 1), (2_000_000, 1), (2_000_000, 2)] {
        clock.advance_micros(advance_micros);
        rig.write_to_memory();
        rig.tablet.looks.add(ENOUGH);
        rig.engine.run_background().unwrap();
        assert_eq!(rig.merges_for_reads(), expected);
    }
}

#[test]
fn no_memtable_is_flushed_for_reads_while_level_zero_is_merged() {
    let rig = spread();
    let inputs: Vec<_> = rig.tablet.version().ssts().cloned().collect();
    let reason = pick::Reason::L0;
    let pick = pick::Pick { reason, inputs, output_level: 6, bottommost: true };
    let running = rig.tablet.claim(rig.tablet.picks(), pick);
    rig.tablet.looks.add(ENOUGH);
    assert!(rig.tablet.claim_for_reads().is_none());
    assert!(rig.tablet.active_bytes() > 0);
    running.run().unwrap();
    assert_eq!(rig.tablet.looks(), 0);
}

#[test]
fn a_merge_for_reads_that_fails_keeps_no_compaction_for_writers_from_its_files() {
    let rig = spread();
    rig.tablet.looks.add(ENOUGH);
    assert!(rig.tablet.claim_for_reads().is_none(), "the memtable is flushed first");
    rig.tablet.flush_waiting().unwrap();
    let claim = rig.tablet.claim_for_reads().unwrap();
    let path = rig.tablet.core.layout.sst(rig.tablet.version().level(6)[0].id);
    let mut bytes = rig.files.contents(&path).unwrap();
    bytes[3] ^= 0x40;
    rig.files.put_contents(&path, bytes);
    assert_eq!(claim.run().unwrap_err().kind(), ErrorKind::Corruption);
    assert!(!rig.tablet.level_zero_is_stuck(&rig.tablet.view.load()));
    rig.tablet.looks.add(ENOUGH);
    assert!(rig.tablet.claim_for_reads().is_none(), "it is not tried again at once");
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

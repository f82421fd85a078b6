//! What readers of changes cost while they wait or are behind, and what they are told when the wall clock was wrong.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{Mutation, RowBatch, RowRange};
use tepui_engine::changes::{CHANGE_TAIL_BYTES_MAX, Change};
use tepui_engine::db::{Engine, EngineOptions, SyncMode};
use tepui_engine::io::{
    CrashMode, FaultFiles, FaultOp, Files as _, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::read::Projection;

use crate::changes::{DAY, Kept, apply, batch, fill, options};
use crate::harness::{START_MICROS, env, plain_schema, put, scan};

/// A portion of a reader.
const PORTION_BYTES: usize = 256 << 10;

fn clock_at(days: i64) -> Arc<ManualClock> {
    Arc::new(ManualClock::new(START_MICROS + days * DAY.as_micros() as i64))
}

#[test]
fn no_reader_misses_in_silence_what_went_while_the_clock_was_ahead() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    // The second keeps its changes for longer, and has none in these files.
    kept.other.keep_changes(Some(7 * DAY));
    let changes = fill(&kept, 60);
    assert!(kept.engine.change_figures().files > 3);
    kept.engine.close().unwrap();
    drop(kept);

    let kept = Kept::open_at(Arc::new(files.clone()), options(), clock_at(3)).unwrap();
    kept.other.keep_changes(Some(7 * DAY));
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 0);
    drop(kept);

    let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    for files in [files, crashed] {
        let kept = Kept::open(Arc::new(files), options()).unwrap();
        kept.other.keep_changes(Some(7 * DAY));
        for position in [begun, changes[40].last_seq] {
            assert_eq!(kept.read(position, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
        }
        let mut other = kept.other.changes_after(begun);
        assert_eq!(other.read_disk(1 << 20).unwrap(), [], "it has lost nothing");
        kept.other.keep_changes(None);
        kept.tablet.keep_changes(None);
        kept.engine.run_background().unwrap();
    }
}

#[test]
fn under_a_clock_in_doubt_no_change_is_too_old_for_a_while() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let position = fill(&kept, 200)[0].last_seq;
    let before = kept.engine.change_figures();
    kept.engine.close().unwrap();
    drop(kept);
    let hour = Duration::from_hours(1);
    for bytes_max in [u64::MAX, before.file_bytes / 2] {
        let disk = files.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
        let options = EngineOptions { change_log_bytes_max: Some(bytes_max), ..options() };
        let clock = clock_at(60);
        let env = env(Arc::new(disk), Arc::clone(&clock), 1);
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        for tablet in engine.tablets() {
            tablet.set_schema(Arc::new(plain_schema()));
            tablet.keep_changes(Some(DAY));
        }
        engine.doubt_clock(hour);
        engine.start().unwrap();
        engine.run_background().unwrap();
        let figures = engine.change_figures();
        assert!(
            figures.files > 0 && figures.file_bytes <= bytes_max,
            "they are bounded all the same: {figures:?}"
        );
        assert_eq!(figures.dropped_bytes > 0, bytes_max < u64::MAX);
        // Whoever comes now is told of what there is, and not to begin anew.
        let read = engine.tablets()[0].changes_after(position).read_disk(1 << 20);
        assert_eq!(read.is_ok(), bytes_max == u64::MAX, "{read:?}");
        clock.advance_micros(hour.as_micros() as u64);
        engine.run_background().unwrap();
        assert_eq!(engine.change_figures().files, 0);
    }
}

#[test]
fn whoever_was_let_in_at_the_end_of_the_retention_period_may_read_on() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 20);
    kept.clock.advance_micros(DAY.as_micros() as u64 + 300 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), changes);
}

#[test]
fn whoever_has_read_all_of_a_quiet_tablet_loses_nothing_by_what_others_wrote_behind_it() {
    let disk = MemoryFiles::new();
    let kept = Kept::open(Arc::new(disk.clone()), options()).unwrap();
    let begun = kept.other.keep_changes(Some(DAY));
    let last = apply(&kept.other, batch(1, 10)).unwrap().last_seq;
    let changes = fill(&kept, 60);
    kept.engine.close().unwrap();
    drop(kept);
    let options = EngineOptions { change_log_bytes_max: Some(1), ..options() };
    let kept = Kept::open(Arc::new(disk), options).unwrap();
    kept.other.keep_changes(Some(DAY));
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 0, "there is no room for them");
    assert_eq!(kept.read(changes[0].last_seq, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
    let other = |position| kept.other.changes_after(position).read_disk(1 << 20);
    assert_eq!(other(last).unwrap(), []);
    assert_eq!(other(begun).unwrap_err().kind(), ErrorKind::Expired);
}

#[test]
fn a_change_file_that_was_taken_away_is_damage_and_is_named() {
    let disk = MemoryFiles::new();
    let kept = Kept::open(Arc::new(disk.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 60);
    let dir = Path::new("/data/changes");
    let names = disk.list(dir).unwrap().into_iter().map(|entry| entry.name);
    let mut names: Vec<_> = names.filter(|name| name.strip_suffix(".chg").is_some()).collect();
    names.sort();
    let lost = names.remove(1);
    disk.remove(&dir.join(&lost)).unwrap();
    let mut reader = kept.tablet.changes_after(begun);
    let before = reader.read_disk(usize::MAX).unwrap();
    assert!(!before.is_empty() && before[..] == changes[..before.len()]);
    let error = reader.read_disk(usize::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(&lost), "{error}");
}

#[test]
fn a_portion_is_bounded_by_what_its_changes_take_in_memory() {
    let rows = 30_000_u64;
    let options = EngineOptions { log_segment_bytes: 1 << 20, ..options() };
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    for n in 0..rows {
        let row = Bytes::from(format!("row-{n:012}"));
        apply(&kept.tablet, RowBatch { row, mutations: vec![Mutation::DeleteRow] }).unwrap();
    }
    let each = size_of::<Change>() + size_of::<Mutation>();
    let mut reader = kept.tablet.changes_after(begun);
    let in_memory = reader.read(PORTION_BYTES).unwrap().unwrap();
    let in_log = kept.tablet.changes_after(begun).read_disk(PORTION_BYTES).unwrap();
    block_on(kept.tablet.flush()).unwrap();
    kept.engine.run_background().unwrap();
    assert!(kept.engine.change_figures().files > 0);
    let in_file = kept.tablet.changes_after(begun).read_disk(PORTION_BYTES).unwrap();
    for (portion, place) in [(in_memory, "memory"), (in_log, "log"), (in_file, "file")] {
        assert!(portion.len() > 100, "{place}: {}", portion.len());
        assert!(portion.len() <= PORTION_BYTES / each + 1, "{place}: {}", portion.len());
    }
}

/// Many files with changes of the second tablet, and one of the first behind them; the operations on them, and the position before.
fn many_files() -> (Kept, FaultFiles, u64) {
    let disk = MemoryFiles::new();
    let kept = Kept::open(Arc::new(disk.clone()), options()).unwrap();
    kept.other.keep_changes(Some(DAY));
    let begun = kept.tablet.keep_changes(Some(DAY));
    for n in 0..800 {
        apply(&kept.other, batch(n, 200)).unwrap();
    }
    apply(&kept.tablet, batch(1, 10)).unwrap();
    for tablet in [&kept.tablet, &kept.other] {
        block_on(tablet.flush()).unwrap();
    }
    kept.engine.run_background().unwrap();
    kept.engine.close().unwrap();
    drop(kept);
    let faults = FaultFiles::new(Arc::new(disk));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    kept.other.keep_changes(Some(DAY));
    assert!(kept.engine.change_figures().files > 80, "{:?}", kept.engine.change_figures());
    (kept, faults, begun)
}

#[test]
fn the_first_reader_after_a_start_looks_into_a_few_files_at_a_time() {
    let (kept, faults, begun) = many_files();
    let mut reader = kept.tablet.changes_after(begun);
    let (mut reads, mut found) = (0, Vec::new());
    while found.is_empty() {
        let before = faults.count(FaultOp::Open);
        found = reader.read_disk(PORTION_BYTES).unwrap();
        assert!(faults.count(FaultOp::Open) - before <= 40);
        if found.is_empty() {
            reader.ready().now_or_never().expect("there is more to be read").unwrap();
        }
        reads += 1;
    }
    assert!(reads > 2 && found.len() == 1 && found[0].batch == batch(1, 10));
}

#[test]
fn a_reader_that_finds_little_in_each_file_leaves_its_turn_to_others() {
    let (kept, faults, begun) = many_files();
    // Of the second pass, everybody knows whose changes are in the files.
    for opens_max in [96, 64] {
        let mut reader = kept.other.changes_after(begun);
        let (mut turns, mut found) = (0, 0);
        while found < 800 {
            let before = faults.count(FaultOp::Open);
            found += reader.read_disk(1 << 20).unwrap().len();
            let opens = faults.count(FaultOp::Open) - before;
            assert!(opens <= opens_max, "{opens} of {opens_max}");
            turns += 1;
        }
        assert!(found == 800 && turns > 1, "{turns} turns, {found}");
    }
}

#[test]
fn a_reader_keeps_no_file_open_between_two_portions() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let options = EngineOptions { log_segment_bytes: 1 << 20, ..options() };
    let kept = Kept::open(Arc::new(faults.clone()), options).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let rows = 2 * CHANGE_TAIL_BYTES_MAX / 8_000;
    let changes: Vec<_> =
        (0..rows).map(|n| apply(&kept.tablet, batch(n, 8_000)).unwrap()).collect();
    block_on(kept.tablet.flush()).unwrap();
    kept.engine.run_background().unwrap();
    let mut reader = kept.tablet.changes_after(begun);
    let mut found = Vec::new();
    for _ in 0..3 {
        let before = faults.count(FaultOp::Open);
        let portion = reader.read_disk(20_000).unwrap();
        assert!(faults.count(FaultOp::Open) > before, "it opens what it reads, each time");
        found.extend(portion);
    }
    assert!(found.len() > 3 && found[..] == changes[..found.len()]);
}

#[test]
fn a_stream_begins_behind_all_that_is_acknowledged_and_before_all_that_comes() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    kept.tablet.keep_changes(Some(DAY));
    for back_micros in [0, 3_600_000_000] {
        let acknowledged = apply(&kept.tablet, batch(1, 10)).unwrap();
        kept.clock.advance_micros(600_000_000);
        let begun = block_on(kept.tablet.fence_changes()).unwrap();
        assert!(begun > acknowledged.last_seq);
        let now = START_MICROS + 600_000_000 - back_micros;
        kept.clock.set_wall_micros(now);
        let change = apply(&kept.tablet, batch(2, 10)).unwrap();
        assert_eq!(kept.read(begun, 1 << 20).unwrap(), [change]);
    }
}

#[test]
fn a_reader_whose_changes_are_far_apart_in_the_log_leaves_its_turn_to_others() {
    let disk = MemoryFiles::new();
    let options = EngineOptions { log_segment_bytes: 64 << 20, ..options() };
    let kept = Kept::open(Arc::new(disk.clone()), options.clone()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let first = apply(&kept.tablet, batch(1, 10)).unwrap();
    for n in 0..50 {
        apply(&kept.other, batch(n, 1 << 20)).unwrap();
        block_on(kept.other.flush()).unwrap();
    }
    let last = apply(&kept.tablet, batch(2, 10)).unwrap();
    // As after SIGKILL: it is in the log alone.
    drop(kept);
    let faults = FaultFiles::new(Arc::new(disk));
    let kept = Kept::open(Arc::new(faults.clone()), options).unwrap();
    let mut reader = kept.tablet.changes_after(begun);
    let (mut turns, mut found) = (1, Vec::new());
    loop {
        let before = faults.count(FaultOp::Read);
        found.extend(reader.read_disk(PORTION_BYTES).unwrap());
        let reads = faults.count(FaultOp::Read) - before;
        assert!(reads <= 40, "two for each of 16 MiB, about: {reads}");
        if found.len() == 2 {
            break;
        }
        reader.ready().now_or_never().expect("there is more to be read").unwrap();
        turns += 1;
    }
    assert_eq!((found, turns), (vec![first, last], 4));
}

#[test]
fn history_whose_time_is_over_goes_without_a_sync_for_each_file() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    fill(&kept, 800);
    assert!(kept.engine.change_figures().files > 64, "{:?}", kept.engine.change_figures());
    kept.clock.advance_micros(2 * DAY.as_micros() as u64);
    let before = faults.count(FaultOp::SyncDir);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 0);
    let syncs = faults.count(FaultOp::SyncDir) - before;
    assert!(syncs <= 16, "{syncs}");
    assert_eq!(kept.read(begun, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
}

/// Two files with changes of the second tablet, which keeps them for a week, and between them many with changes of the first alone, which
/// keeps them for a day: the changes of each.
fn sparse(kept: &Kept) -> [Vec<Change>; 2] {
    kept.other.keep_changes(Some(7 * DAY));
    let first = apply(&kept.other, batch(1, 10)).unwrap();
    let between = fill(kept, 800);
    let last = apply(&kept.other, batch(2, 10)).unwrap();
    block_on(kept.other.flush()).unwrap();
    fill(kept, 20);
    assert!(kept.engine.change_figures().files > 66, "{:?}", kept.engine.change_figures());
    [between, vec![first, last]]
}

#[test]
fn files_whose_time_is_over_go_from_between_those_that_others_still_read() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let [between, others] = sparse(&kept);
    let mut reader = kept.tablet.changes_after(begun);
    let read = reader.read_disk(10_000).unwrap();
    assert!(!read.is_empty() && read == between[..read.len()]);
    kept.clock.advance_micros(2 * DAY.as_micros() as u64);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 2);
    let mut other = kept.other.changes_after(begun);
    assert_eq!(other.read_disk(1 << 20).unwrap(), others);
    assert_eq!(reader.read_disk(1 << 20).unwrap_err().kind(), ErrorKind::Expired);

    // Nor does a longer period make a reader miss them in silence.
    kept.tablet.keep_changes(Some(7 * DAY));
    for position in [begun, between[0].last_seq, between[400].last_seq] {
        assert_eq!(kept.read(position, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
    }
    let late = fill(&kept, 20);
    let from = kept.tablet.changes_after(late[0].last_seq).read_disk(1 << 20).unwrap();
    assert_eq!(from, late[1..]);
}

#[test]
fn what_nobody_may_read_any_more_goes_before_the_limit_takes_what_somebody_may() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let [_, others] = sparse(&kept);
    let bytes = kept.engine.change_figures().file_bytes;
    kept.engine.close().unwrap();
    drop(kept);
    // Nobody has looked into any file yet.
    let options = EngineOptions { change_log_bytes_max: Some(bytes / 2), ..options() };
    let kept = Kept::open_at(Arc::new(files), options, clock_at(2)).unwrap();
    kept.other.keep_changes(Some(7 * DAY));
    kept.engine.run_background().unwrap();
    let figures = kept.engine.change_figures();
    assert!(figures.files >= 2 && figures.file_bytes < bytes / 10, "{figures:?}");
    assert_eq!(figures.dropped_bytes, 0);
    let read = kept.other.changes_after(begun).read_disk(1 << 20).unwrap();
    assert_eq!(read, others);
}

#[test]
fn no_position_that_a_stream_was_given_comes_again_after_the_clock_was_ahead() {
    let files = MemoryFiles::new();
    let open = |days| Kept::open_at(Arc::new(files.clone()), options(), clock_at(days)).unwrap();
    // Its tablets are older than the clock's mistake.
    drop(open(0));
    let fence = block_on(open(3).tablet.fence_changes()).unwrap();
    for _ in 0..2 {
        // Nothing is written, and whatever is not needed goes.
        open(3).engine.run_background().unwrap();
    }
    let kept = open(0);
    let change = apply(&kept.tablet, batch(1, 10)).unwrap();
    assert_eq!(kept.read(fence, 1 << 20).unwrap(), [change]);
    drop(kept);

    // Of this one the catalog alone knows.
    let since = open(6).tablet.keep_changes(Some(DAY));
    let kept = open(0);
    kept.engine.begin_after(since);
    let change = apply(&kept.tablet, batch(2, 10)).unwrap();
    assert_eq!(kept.read(since, 1 << 20).unwrap(), [change]);
}

#[test]
fn whenever_the_log_is_synced_a_power_cut_takes_the_end_of_the_history_and_nothing_before() {
    for sync in [SyncMode::Always, SyncMode::IntervalMs(60_000), SyncMode::Never] {
        let options = EngineOptions { sync, ..options() };
        let files = MemoryFiles::new();
        let kept = Kept::open(Arc::new(files.clone()), options.clone()).unwrap();
        let begun = kept.tablet.keep_changes(Some(DAY));
        let written =
            || RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put(1, "q", 1000, "v")] };
        apply(&kept.other, written()).unwrap();
        let change = apply(&kept.tablet, written()).unwrap();
        block_on(kept.tablet.flush()).unwrap();
        let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
        let kept = Kept::open(Arc::new(crashed), options).unwrap();
        assert_eq!(kept.read(begun, 1 << 20).unwrap(), [change], "{sync:?}");
        for tablet in [&kept.tablet, &kept.other] {
            let rows = scan(tablet, RowRange::all(), Projection::all(), false, None).unwrap();
            assert_eq!(rows.len(), 1, "{sync:?}");
        }
    }
}

use super::*;
use crate::io::{CrashMode, Fault, FaultOp, SeededRng};
use crate::log::record::RECORD_HEADER_BYTES;
use crate::log::testing::{Watch, World, append, dir};
use crate::log::{CommitLog, LogObserver, LogOptions};
use std::sync::Arc;

fn file(id: u64) -> PathBuf {
    dir().join(segment_name(id))
}

/// Three segments of three batches each.
fn world() -> World {
    let world = World::new();
    let log = world.open(LogOptions::default()).unwrap().log;
    log.start(Arc::new(Watch::default()) as Arc<dyn LogObserver>).unwrap();
    for n in 1..=9 {
        log.append(append(1, n)).unwrap();
        if n % 3 == 0 {
            log.rotate().unwrap();
        }
    }
    log.close().unwrap();
    world
}

fn copy(world: &World) -> World {
    World::on(world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1)))
}

fn repaired(world: &World) -> Result<Vec<SegmentRepair>> {
    let mut repairs = Vec::new();
    repair(&world.files, dir(), &mut repairs).map(|()| repairs)
}

#[test]
fn a_sound_log_is_left_as_it_is() {
    let world = world();
    let before = world.memory.list(dir()).unwrap();
    assert_eq!(lost(&world.files, dir()).unwrap(), Lost::Nothing);
    let repairs = repaired(&world).unwrap();
    assert!(repairs.iter().all(|r| r.damaged.is_empty() && r.set_aside.is_none()));
    assert_eq!(repairs.iter().map(|r| r.batches_kept).sum::<u64>(), 9);
    assert_eq!(world.memory.list(dir()).unwrap(), before);
}

#[test]
fn a_damaged_byte_anywhere_costs_one_batch_at_most_and_the_log_opens() {
    let pristine = world();
    let bytes = pristine.memory.contents(&file(2)).unwrap();
    for at in (0..bytes.len()).step_by(3) {
        let world = copy(&pristine);
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        world.memory.put_contents(&file(2), damaged.clone());
        assert!(world.open(LogOptions::default()).is_err());
        let repairs = repaired(&world).unwrap();
        let lost = &repairs[1];
        assert_eq!(lost.damaged.len(), 1);
        assert!(lost.damaged[0].contains(&(at as u64)));
        let aside = lost.set_aside.as_ref().unwrap();
        assert_eq!(world.memory.contents(aside).unwrap(), damaged);
        let seqs = world.open(LogOptions::default()).unwrap().seqs();
        assert!(seqs.is_sorted() && seqs.len() >= 8, "byte {at}: {seqs:?}");
        assert_eq!(seqs.len() as u64, repairs.iter().map(|r| r.batches_kept).sum::<u64>());
    }
}

#[test]
fn what_a_repair_has_kept_of_the_last_segment_is_no_torn_tail_where_it_is_damaged_later() {
    let world = world();
    let segments = list_segments(&world.files, dir()).unwrap();
    for (id, _) in &segments[3..] {
        world.memory.remove(&file(*id)).unwrap();
    }
    present::rewrite(&world.files, dir()).unwrap();
    let mut bytes = world.memory.contents(&file(3)).unwrap();
    bytes[120] ^= 1;
    world.memory.put_contents(&file(3), bytes);
    let repairs = repaired(&world).unwrap();
    assert!(repairs[2].set_aside.is_some() && repairs[2].batches_kept == 2, "{repairs:?}");
    let whole = world.memory.contents(&file(3)).unwrap();
    let marker = whole.len() - RECORD_HEADER_BYTES as usize - encode_marker().len();
    for at in 0..marker {
        let world = copy(&world);
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        world.memory.put_contents(&file(3), damaged);
        let error = world.open(LogOptions::default()).err().expect("it is damaged");
        assert_eq!(error.kind(), ErrorKind::Corruption, "byte {at}: {error}");
    }
    assert_eq!(world.open(LogOptions::default()).unwrap().records.len(), 8);
}

#[test]
fn a_segment_that_lost_its_end_is_accepted_after_a_repair_that_says_how_much() {
    let pristine = world();
    let bytes = pristine.memory.contents(&file(1)).unwrap();
    for cut in (0..bytes.len()).step_by(5) {
        let world = copy(&pristine);
        world.memory.put_contents(&file(1), bytes[..cut].to_vec());
        assert!(world.open(LogOptions::default()).is_err());
        assert_eq!(lost(&world.files, dir()).unwrap(), Lost::UpTo(3), "cut at {cut}");
        let repairs = repaired(&world).unwrap();
        assert!(repairs[0].missing_bytes > 0);
        let seqs = world.open(LogOptions::default()).unwrap().seqs();
        assert!(seqs.ends_with(&[4, 5, 6, 7, 8, 9]), "cut at {cut}: {seqs:?}");
    }
}

#[test]
fn an_interrupted_repair_is_noticed_and_can_be_run_again() {
    let pristine = world();
    let mut bytes = pristine.memory.contents(&file(2)).unwrap();
    bytes[120] ^= 1;
    pristine.memory.put_contents(&file(2), bytes);
    let mut interrupted = 0;
    for nth in 1..80 {
        let world = copy(&pristine);
        world.files.inject(Fault::new(FaultOp::Any).nth(nth).sticky());
        let outcome = repaired(&world);
        world.files.heal();
        world.memory.crash(CrashMode::Torn, &SeededRng::new(nth));
        if outcome.is_err() {
            interrupted += 1;
            // Either the log does not open, or it is repaired already: never with a segment missing.
            if let Ok(opened) = world.open(LogOptions::default()) {
                assert_eq!(opened.records.len(), 8, "fault {nth}");
            }
            repaired(&world).unwrap();
        }
        let seqs = world.open(LogOptions::default()).unwrap().seqs();
        assert_eq!(seqs.len(), 8, "fault {nth}: {seqs:?}");
    }
    assert!(interrupted > 10);
}

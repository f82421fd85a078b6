//! A log that waits: for an open file, for memory, for space, or for its device.

use super::*;

#[test]
fn a_segment_that_finds_no_open_file_holds_the_queue_until_there_is_one() {
    // The zeros that are laid out behind the last group of a segment are cut off as it is sealed.
    for (op, lay_out_bytes) in
        [(FaultOp::Create, 0), (FaultOp::SyncDir, 0), (FaultOp::Truncate, 100)]
    {
        let world = World::new();
        let options = LogOptions { lay_out_bytes, ..options(SyncMode::Always, 200) };
        let opened = world.open(options).unwrap();
        let watch = start(&opened.log);
        opened.log.append(append(7, 1)).unwrap();
        watch.wait(1).unwrap();
        world.files.inject(Fault::new(op).kind(ErrorKind::Exhausted).sticky());
        let before = opened.log.figures().segment_retries;
        for n in 2..=20 {
            opened.log.append(append(7, n)).unwrap();
        }
        until("three tries", || opened.log.figures().segment_retries >= before + 3);
        assert!(watch.published() < 20, "{op:?}");
        world.files.heal();
        watch.wait(20).unwrap();
        assert_eq!(opened.log.held(), None);
        opened.log.close().unwrap();
        assert_eq!(world.open(always()).unwrap().seqs(), (1..=20).collect::<Vec<_>>(), "{op:?}");
    }
}

#[test]
fn a_full_disk_holds_what_is_queued_until_there_is_room() {
    // Room for nothing; for a part of the next opening; for that and no batch; for some segments.
    for left in [0, 30, 120, 500] {
        let world = World::new();
        world.files.set_quota_bytes(Some(1 << 20));
        let opened = world.open(options(SyncMode::Always, 200)).unwrap();
        let watch = start(&opened.log);
        opened.log.append(append(7, 1)).unwrap();
        watch.wait(1).unwrap();
        world.files.set_quota_bytes(Some(left));
        assert!(!opened.log.lacks_room());
        let owes = opened.log.append_all(&mut (2..=20).map(|n| append(7, n)), false).unwrap();
        if owes != Owes::Nothing {
            opened.log.write_queued(false);
        }
        // At once, and not after a while.
        until("the log is held", || opened.log.held().is_some());
        let told = opened.log.held().unwrap();
        assert!(told.starts_with("the disk is full, and writes wait for room: "), "{told}");
        assert!(opened.log.lacks_room() && watch.published() < 20, "{left}");
        // What has found room is not kept waiting by the rest of its group.
        assert!(watch.published() > u64::from(left == 500), "{}", watch.published());
        if left == 120 {
            // What the next segment could not get all of is left to others.
            let mut other = world.files.create(&dir().join("other")).unwrap();
            other.append(&[7; 20]).unwrap();
        }
        let retries = opened.log.figures().segment_retries;
        until("two tries", || opened.log.figures().segment_retries >= retries + 2);
        world.files.set_quota_bytes(None);
        watch.wait(20).unwrap();
        until("there is room", || !opened.log.lacks_room());
        assert_eq!(opened.log.held(), None);
        opened.log.close().unwrap();
        assert_eq!(world.open(always()).unwrap().seqs(), (1..=20).collect::<Vec<_>>(), "{left}");
    }
}

#[test]
fn a_segment_whose_first_bytes_find_no_room_is_begun_anew() {
    for op in [FaultOp::Create, FaultOp::Append, FaultOp::Sync] {
        let world = World::new();
        let opened = world.open(options(SyncMode::Always, 200)).unwrap();
        let watch = start(&opened.log);
        world.files.inject(Fault::new(op).on_path("2.log").kind(ErrorKind::NoSpace));
        for n in 1..=20 {
            opened.log.append(append(7, n)).unwrap();
        }
        watch.wait(20).unwrap();
        assert_eq!(opened.log.figures().segment_retries, 1, "{op:?}");
        opened.log.close().unwrap();
        assert_eq!(world.open(always()).unwrap().seqs(), (1..=20).collect::<Vec<_>>(), "{op:?}");
    }
}

#[test]
fn a_directory_whose_sync_finds_no_room_ends_the_log() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Always, 200)).unwrap();
    let watch = start(&opened.log);
    world.files.inject(Fault::new(FaultOp::SyncDir).kind(ErrorKind::NoSpace));
    for n in 1..=20 {
        // It may have failed by now.
        drop(opened.log.append(append(7, n)));
    }
    assert_eq!(watch.wait(20).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(opened.log.append(append(7, 21)).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(!opened.log.lacks_room());
}

#[test]
fn a_segment_without_room_for_all_of_it_uses_what_there_is_and_syncs_before_it_waits() {
    const VALUE_BYTES: usize = 300_000;
    let world = World::new();
    world.files.set_quota_bytes(Some(3 << 20));
    let opened = world.open(options(SyncMode::Never, 8 << 20)).unwrap();
    let watch = start(&opened.log);
    let large = |n| {
        let mut batch = encoded_large(n, VALUE_BYTES);
        batch.set_first_seq(n);
        Append { batch, mutations: 1, last_seq: n, permit: None }
    };
    let mut n = 0;
    while !opened.log.lacks_room() {
        n += 1;
        opened.log.append(large(n)).unwrap();
        until("the batch is published, or has no room", || {
            watch.published() == n || opened.log.lacks_room()
        });
    }
    assert!(n > 8, "{n} batches of a third of a megabyte found room in three");
    // Whoever needs what is published to be durable, as a flush does, is not kept.
    opened.log.sync(n - 1).unwrap();
    let crashed = world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    let found = World::on(crashed).open(always()).unwrap().seqs();
    assert!(found.len() as u64 >= n - 1, "{} of {n}", found.len());
    world.files.set_quota_bytes(None);
    watch.wait(n).unwrap();
    opened.log.close().unwrap();
    assert_eq!(world.open(always()).unwrap().seqs(), (1..=n).collect::<Vec<_>>());
}

#[test]
fn a_log_that_waits_for_room_does_not_keep_a_server_from_closing_and_leaves_no_half() {
    let world = World::new();
    world.files.set_quota_bytes(Some(1 << 20));
    let opened = world.open(options(SyncMode::Always, 200)).unwrap();
    let watch = start(&opened.log);
    world.files.set_quota_bytes(Some(0));
    for n in 1..=20 {
        opened.log.append(append(7, n)).unwrap();
    }
    until("the log lacks room", || opened.log.lacks_room());
    opened.log.hurry();
    assert_eq!(watch.wait(20).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(opened.log.close().unwrap_err().kind(), ErrorKind::ReadOnly);
    // What found room is written, and may be found; of what comes behind it nothing is.
    let published = watch.published();
    drop(opened);
    world.files.heal();
    let found = world.open(always()).unwrap();
    assert_eq!(found.summary.torn, None);
    let seqs = found.seqs();
    assert!(seqs.len() as u64 >= published);
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_segment_that_finds_no_memory_to_be_completed_ends_the_log() {
    // Of batches that are queued together, the first go into the segment, which is written and synced for the next.
    for op in [FaultOp::Append, FaultOp::Sync] {
        let world = World::new();
        let opened = world.open(options(SyncMode::Always, 400)).unwrap();
        let watch = start(&opened.log);
        opened.log.append(append(7, 1)).unwrap();
        watch.wait(1).unwrap();
        world.files.inject(Fault::new(op).kind(ErrorKind::Exhausted));
        let retries = opened.log.figures().segment_retries;
        let owes = opened.log.append_all(&mut (2..=20).map(|n| append(7, n)), false).unwrap();
        if owes != Owes::Nothing {
            opened.log.write_queued(false);
        }
        let error = watch.wait(20).unwrap_err();
        assert!(error.message().contains("injected fault"), "{op:?}: {error}");
        assert_eq!(opened.log.figures().segment_retries, retries, "{op:?} is not tried again");
        assert_eq!(opened.log.held(), None);
        // Whoever comes now is refused for good, and not told to try again soon.
        assert_eq!(opened.log.append(append(7, 21)).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(watch.published(), 1);
        drop(opened);
        world.memory.crash(CrashMode::Strict, &SeededRng::new(1));
        assert_eq!(world.open(always()).unwrap().seqs()[0], 1, "what was published is there");
    }
}

#[test]
fn a_log_that_is_held_says_so_and_does_not_keep_a_server_from_closing() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Always, 200)).unwrap();
    let watch = start(&opened.log);
    opened.log.append(append(7, 1)).unwrap();
    watch.wait(1).unwrap();
    world.files.inject(Fault::new(FaultOp::Create).kind(ErrorKind::Exhausted).sticky());
    for n in 2..=20 {
        opened.log.append(append(7, n)).unwrap();
    }
    until("the log is held", || opened.log.held().is_some());
    opened.log.hurry();
    assert!(watch.wait(20).is_err());
    assert!(opened.log.close().is_err());
    let published = watch.published();
    drop(opened);
    world.files.heal();
    let found = world.open(always()).unwrap().seqs();
    assert!(found.len() as u64 >= published, "what was published is there");
    assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_log_whose_device_stands_still_says_so_until_it_goes_on() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    let gate = Arc::new(SyncGate::default());
    let _opens = gate.close(&world.files);
    opened.log.append(append(7, 1)).unwrap();
    gate.wait_arrived(1);
    world.clock.advance_micros(9_000_000);
    assert_eq!(opened.log.held(), None, "disks do that now and then");
    world.clock.advance_micros(2_500_000);
    let reason = opened.log.held().unwrap();
    assert!(reason.contains("11 s"), "{reason}");
    gate.open();
    watch.wait(1).unwrap();
    until("the log is held no more", || opened.log.held().is_none());
}

#[test]
fn a_sync_asked_for_during_another_is_done_with_it_though_no_segment_can_follow() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Never, 1 << 20)).unwrap();
    let (log, watch) = (&opened.log, start(&opened.log));
    log.append(append(7, 1)).unwrap();
    watch.wait(1).unwrap();
    let gate = Arc::new(SyncGate::default());
    std::thread::scope(|scope| {
        let guard = gate.close(&world.files);
        let (retries, syncs) = (log.figures().segment_retries, log.figures().syncs);
        let rotation = scope.spawn(|| log.rotate());
        gate.wait_arrived(1);
        let sync = scope.spawn(|| log.sync(1));
        until("a sync is asked for", || lock(&log.shared.queue).sync_asked > 0);
        world.files.inject(Fault::new(FaultOp::Create).kind(ErrorKind::Exhausted).sticky());
        drop(guard);
        until("another try", || log.figures().segment_retries > retries);
        let is_told = lock(&log.shared.queue).sync_asked == 0;
        let syncs = log.figures().syncs - syncs;
        assert!(!rotation.is_finished());
        if !is_told {
            world.files.heal();
        }
        sync.join().unwrap().unwrap();
        world.files.heal();
        rotation.join().unwrap().unwrap();
        assert!(is_told, "it waits for the segment");
        assert_eq!(syncs, 1);
    });
    let syncs = log.figures().syncs;
    log.sync(1).unwrap();
    assert_eq!(log.figures().syncs, syncs);
}

//! Backups that a policy asks for.

use tepui_engine::error::ErrorKind;

use super::*;
use crate::limits::OPERATIONS_MAX;

#[test]
fn a_policy_makes_a_backup_a_day_and_lets_it_expire() {
    let place = place();
    place.backups.sweep();
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(&place), 0);
    place.set_policy(Some(3));
    let mut counts = Vec::new();
    for _ in 0..5 {
        place.backups.sweep();
        place.backups.sweep();
        counts.push(made(&place));
        place.pass(DAY);
    }
    assert_eq!(counts, [1, 2, 3, 3, 3]);
}

#[test]
fn a_policy_that_is_disabled_makes_no_backups_and_is_no_reason_for_an_alert() {
    let place = place();
    let policy = |disabled| {
        let policy = AutomatedBackupPolicy { retention_period: length(7), ..Default::default() };
        Some(AutomatedBackupPolicy { disabled, ..policy })
    };
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    place.set_whole_policy(policy(true));
    place.pass(3 * DAY);
    place.swept();
    assert_eq!((made(&place), place.backups.figures().automated_age_micros), (0, 0));
    place.set_whole_policy(policy(false));
    place.swept();
    assert_eq!(made(&place), 1);
    place.set_whole_policy(policy(true));
    place.pass(2 * DAY);
    place.swept();
    assert_eq!((made(&place), place.backups.figures().automated_age_micros), (1, 0));
}

#[test]
fn automated_backups_are_hot_for_as_long_as_their_policy_says() {
    let place = place();
    place.set_whole_policy(Some(AutomatedBackupPolicy {
        retention_period: length(3),
        keep_hot_duration: length(1),
        ..Default::default()
    }));
    place.swept();
    let clusters = listing("projects/p/instances/i/clusters/-");
    let (made, _) = place.backups.list(&clusters).unwrap();
    assert_eq!(made[0].backup_type, i32::from(BackupType::Hot));
    assert_eq!(made[0].hot_to_standard_time, Some(times::timestamp(place.now() + DAY)));
    place.set_policy(None);
    place.pass(DAY);
    place.swept();
    let (cooled, _) = place.backups.list(&clusters).unwrap();
    assert_eq!(cooled[0].backup_type, i32::from(BackupType::Standard));
}

#[test]
fn the_age_is_that_of_an_automated_backup_as_soon_as_it_is_made() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.pass(9 * DAY);
    place.set_policy(Some(3));
    // It is made after the end of the sweep that begins it.
    let (end, swept) = std::sync::mpsc::channel::<()>();
    let swept = std::sync::Mutex::new(swept);
    let hook = move |path: &Path| {
        if path.to_string_lossy().contains("/backups/") {
            // An error once it is over.
            let _over = swept.lock().unwrap().recv();
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    place.backups.sweep();
    let figures = place.backups.figures();
    assert_eq!((figures.ready, figures.creating), (0, 1));
    assert_eq!(figures.automated_age_micros, 9 * DAY as u64, "the table has none yet");
    drop(end);
    place.idle();
    let figures = place.backups.figures();
    assert_eq!((figures.ready, figures.creating), (1, 0));
    assert_eq!(figures.automated_age_micros, 0);
}

#[test]
fn an_automated_backup_during_which_a_family_is_dropped_is_made_at_the_next_sweep() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.set_policy(Some(3));
    drop_family_at_flush(&place, &faults);
    place.backups.sweep();
    place.idle();
    faults.before_sync(None);
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(&place), 0);
    assert!(place.engine.backups().is_empty());
    place.pass(60_000_000);
    place.swept();
    assert_eq!(made(&place), 1);
    let failures = place.backups.figures().failures;
    assert!(failures.iter().all(|(_, count)| *count == 0), "a client dropped it: {failures:?}");
}

#[test]
fn a_clock_that_was_ahead_once_does_not_end_automated_backups() {
    let place = place();
    place.set_policy(Some(3));
    let right = place.now();
    place.pass(1_000 * DAY);
    place.swept();
    // Set right; the sequences of the engine go on from where they were.
    let place = Place { clock: Arc::new(ManualClock::new(right)), ..place };
    let place = place.restart();
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(&place), 1);
    for want in [2, 2] {
        place.swept();
        assert_eq!(made(&place), want);
    }
    place.pass(DAY);
    place.swept();
    assert_eq!(made(&place), 3);
    // Whoever watches is told where none is made any more.
    place.pass(5 * DAY);
    place.backups.count();
    assert_eq!(place.backups.figures().automated_age_micros, 5 * DAY as u64);
}

#[test]
fn a_clock_that_jumps_ahead_for_less_than_an_hour_costs_no_backup_and_makes_none() {
    let place = place();
    place.set_policy(Some(3));
    place.swept();
    place.make(BACKUP);
    let before = place.names(&listing("projects/p/instances/i/clusters/-")).0;
    let right = place.now();
    place.clock.set_wall_micros(right + 36 * 365 * DAY);
    place.pass(HOUR / 2);
    place.swept();
    assert_eq!(place.names(&listing("projects/p/instances/i/clusters/-")).0, before);
    // Set right. The hour goes on, and then what is due is done.
    place.clock.set_wall_micros(right + HOUR);
    place.pass(HOUR);
    place.swept();
    assert_eq!(place.names(&listing("projects/p/instances/i/clusters/-")).0, before);
    place.pass(10 * HOUR);
    place.swept();
    assert!(
        !place.names(&listing("projects/p/instances/i/clusters/-")).0.contains(&"b".to_owned())
    );
}

#[test]
fn a_clock_that_stays_ahead_is_believed_after_an_hour() {
    let place = place();
    place.make(BACKUP);
    place.clock.set_wall_micros(place.now() + 20 * DAY);
    place.backups.sweep();
    place.backups.get(BACKUP).unwrap();
    place.pass(HOUR);
    place.backups.sweep();
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
}

#[test]
fn automated_backups_wait_in_silence_for_others_and_fail_aloud_for_want_of_room() {
    let place = place();
    place.set_policy(Some(3));
    let automated = || place.backups.figures().failures[1];
    let jobs = &place.backups.jobs;
    jobs.store(crate::limits::BACKUP_JOBS_MAX, std::sync::atomic::Ordering::Release);
    place.backups.sweep();
    assert_eq!(automated(), ("automated", 0));
    jobs.store(0, std::sync::atomic::Ordering::Release);
    // All but fills the list of operations, none of which has ended.
    let empty = crate::operations::any("google.protobuf.Empty", &());
    let kept: Vec<_> = (0..crate::limits::OPERATIONS_MAX)
        .map_while(|_| place.operations.start("x", empty.clone()).ok())
        .collect();
    place.backups.sweep();
    assert_eq!(automated(), ("automated", 1));
    for handle in kept {
        handle.finish(Ok(empty.clone())).unwrap();
    }
    assert!(place.names(&listing("projects/p/instances/i/clusters/-")).0.is_empty());
}

#[test]
fn a_server_that_is_read_only_counts_one_failure_at_each_look_however_many_tables_are_due() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    for id in ["t", "second", "third"] {
        let name = format!("projects/p/instances/i/tables/{id}");
        if name != TABLE {
            place.tables.create(&name, NewTable::default()).unwrap();
        }
        let policy = AutomatedBackupPolicy { retention_period: length(7), ..Default::default() };
        place.set_policy_of(&name, Some(policy));
    }
    faults.inject(Fault::new(FaultOp::Append).on_path("/log/").sticky());
    place.try_set("row", "second").unwrap_err();
    for looks in [1, 2] {
        place.backups.sweep();
        assert_eq!(place.backups.figures().failures[1], ("automated", looks));
    }
}

#[test]
fn a_table_whose_automated_backup_fails_is_tried_less_and_less_often_until_one_is_made() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.set_policy(Some(7));
    let minutes = |minutes: usize| -> Vec<usize> {
        let failures = || place.backups.figures().failures[1].1;
        let tried = (0..minutes).filter(|_| {
            let before = failures();
            place.backups.sweep();
            place.idle();
            place.pass(HOUR / 60);
            failures() > before
        });
        tried.collect()
    };
    let no_room = || {
        let full = Fault::new(FaultOp::Append).on_path("BACKUP-").kind(ErrorKind::NoSpace);
        faults.inject(full.sticky());
    };
    no_room();
    assert_eq!(minutes(250), [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    faults.heal();
    assert_eq!(minutes(60), [0; 0]);
    let made = || place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(), 1);

    // From the beginning, for the next one, and for a policy that was set anew.
    no_room();
    place.pass(DAY);
    assert_eq!(minutes(5), [0, 1, 3]);
    place.set_policy(None);
    place.swept();
    place.set_policy(Some(7));
    assert_eq!(minutes(5), [0, 1, 3]);
}

#[test]
fn a_table_of_which_a_file_does_not_open_is_not_flushed_for_its_policy_again_and_again() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    pollster::block_on(place.tablet(TABLE).flush()).unwrap();
    let ssts = || disk.list(Path::new("/data/sst")).unwrap().len();
    faults.inject(Fault::new(FaultOp::Open).on_path(".sst").kind(ErrorKind::Io));
    let place = place.restart();
    let before = ssts();
    place.set_policy(Some(7));
    for minute in 0..3 {
        place.set("row", &format!("of minute {minute}"));
        place.backups.sweep();
        place.idle();
        place.pass(HOUR / 60);
    }
    assert_eq!((place.backups.figures().failures[1].1, ssts()), (2, before));
}

#[test]
fn an_automated_backup_that_a_client_deletes_is_not_made_again_before_the_next_is_due() {
    let place = place();
    place.set_policy(Some(3));
    place.swept();
    let all = listing("projects/p/instances/i/clusters/-");
    let made = || place.backups.list(&all).unwrap().0;
    let first = made();
    assert_eq!(first.len(), 1);
    place.backups.delete(&first[0].name).unwrap();
    for _ in 0..3 {
        place.pass(DAY / 4);
        place.swept();
        assert!(made().is_empty());
    }
    place.pass(DAY / 4);
    place.swept();
    assert_eq!(made().len(), 1);
}

#[test]
fn automated_backups_leave_room_for_the_operations_of_clients() {
    let place = place();
    // As many as there may be but one, each of which its client asks for.
    for _ in 1..OPERATIONS_MAX {
        let handle = place.operations.start(TABLE, prost_types::Any::default()).unwrap();
        handle.finish(Ok(prost_types::Any::default())).unwrap();
    }
    place.set_policy(Some(3));
    place.backups.sweep();
    place.idle();
    let (made, _) = place.backups.list(&listing("projects/p/instances/i/clusters/-")).unwrap();
    assert_eq!(made.len(), 1);
    let restored = place.backups.restore(OTHER, &made[0].name).unwrap();
    response(&place.wait(&restored)).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
}

//! Segments that nobody needs.

use super::*;
use crate::io::LocalFiles;
use crate::log::testing::encoded_large;

#[test]
fn a_segment_that_cannot_be_removed_stays_listed() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    start(&opened.log);
    opened.log.append(append(5, 1)).unwrap();
    opened.log.rotate().unwrap();
    let before = opened.log.segments();
    world.files.inject(Fault::new(FaultOp::Remove));
    assert!(opened.log.remove_segment(before[0].id).is_err());
    assert_eq!(opened.log.segments(), before);
}

#[test]
fn the_space_of_a_large_segment_is_given_back_once_its_name_cannot_come_back_or_it_is_wanted() {
    enum Then {
        NewerSegments,
        AWhile,
        FullDisk,
    }
    for then in [Then::NewerSegments, Then::AWhile, Then::FullDisk] {
        let temp = tempfile::tempdir().unwrap();
        let world = World::new();
        let env = Env { files: Arc::new(LocalFiles::default()), ..world.env() };
        let nothing = &mut |_, _, _| Ok(());
        let opened = LocalLog::open(&env, temp.path(), always(), nothing, &mut |_| {});
        let log = Arc::new(opened.unwrap().0);
        let watch = start(&log);
        let write = |n: u64, bytes: usize| {
            let mut batch = encoded_large(n, bytes);
            batch.set_first_seq(n);
            log.append(Append { batch, mutations: 1, last_seq: n, permit: None }).unwrap();
            watch.wait(n).unwrap();
            log.rotate().unwrap();
        };
        write(1, 5 << 20);
        write(2, 5);
        let segments = log.segments();
        log.remove_segment(segments[1].id).unwrap();
        assert_eq!(log.give_back(), None, "a small one has nothing to be given back");
        log.remove_segment(segments[0].id).unwrap();
        assert!(!temp.path().join(segment_name(segments[0].id)).exists());
        let len = lock(&log.gone)[0].removed.watch();
        let left = log.give_back();
        assert_eq!(left, Some(Duration::from_micros(GONE_MICROS)));
        write(3, 5);
        assert_eq!(log.give_back(), left, "that segment may have been begun before");
        assert!(len() > 5 << 20);
        match then {
            Then::NewerSegments => write(4, 5),
            Then::AWhile => world.clock.advance_micros(GONE_MICROS),
            Then::FullDisk => log.shared.lacks_room.store(true, Ordering::SeqCst),
        }
        assert_eq!(log.give_back(), None);
        // What goes whole is not cut.
        assert_eq!(len() == 0, matches!(then, Then::NewerSegments));
    }
}

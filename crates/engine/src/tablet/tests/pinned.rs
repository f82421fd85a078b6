//! Which levels have their indexes and filters pinned, as levels come and go.

use super::*;
use crate::compaction::shape::LAST_LEVEL;
use crate::db::CompressionPolicy;
use crate::manifest::{SstRef, VersionEdit};
use crate::store::Outputs;

/// Bytes from which on there is a level between level 0 and the last, and two levels from twice as many.
const BASE_LEVEL_BYTES: u64 = 6 << 10;

fn options() -> EngineOptions {
    EngineOptions {
        base_level_bytes: BASE_LEVEL_BYTES,
        level_ratio: 2,
        l0_compaction_files: 8,
        pinned_levels: 2,
        compression: CompressionPolicy::None,
        ..EngineOptions::default()
    }
}

impl Rig {
    /// Writes rows that take so many bytes or a little more, flushes them, and moves the file down. Gives its number.
    fn write_at(&self, level: u8, prefix: char, bytes: u64) -> FileId {
        let value = Bytes::from(vec![b'v'; 100]);
        for n in 0..bytes / 100 {
            let put = Mutation::Put {
                family: FamilyId(1),
                qualifier: Bytes::from_static(b"q"),
                timestamp: 1000,
                value: value.clone(),
            };
            let row = Bytes::from(format!("{prefix}{n:05}"));
            block_on(self.tablet.apply(RowBatch { row, mutations: vec![put] })).unwrap();
        }
        block_on(self.tablet.flush()).unwrap();
        let file = self.tablet.version().level(0)[0].as_ref().clone();
        let id = file.id;
        if level > 0 {
            let mut manifest = self.tablet.lock_manifest();
            let edit = VersionEdit {
                remove: vec![(0, id)],
                add: vec![SstRef { level, ..file }],
                ..VersionEdit::default()
            };
            self.tablet.install(&mut manifest, edit, Outputs::default(), 0).unwrap();
        }
        id
    }
}

/// The levels that have pinned files, all of whose files are.
fn pinned_levels(tablet: &Tablet) -> Vec<u8> {
    let view = tablet.hold();
    let pinned = |sst: &SstRef| view.file(sst.id).unwrap().reader().unwrap().is_pinned();
    let mut levels = Vec::new();
    for level in 0..=LAST_LEVEL {
        let files = view.version.level(usize::from(level));
        let count = files.iter().filter(|sst| pinned(sst)).count();
        assert!(count == 0 || count == files.len(), "level {level}: {count} of {}", files.len());
        if count > 0 {
            levels.push(level);
        }
    }
    levels
}

#[test]
fn level_0_and_the_base_level_are_pinned_as_the_base_level_moves_and_after_a_restart() {
    let rig = rig_with(options());
    let stats = || rig.engine.cache().stats().pinned_bytes;
    rig.write_at(6, 'a', BASE_LEVEL_BYTES * 5 / 4);
    assert_eq!(pinned_levels(&rig.tablet), [0; 0], "the last level alone");
    let middle = rig.write_at(5, 'b', 1000);
    rig.write_at(0, 'c', 1000);
    assert_eq!(rig.tablet.hold().shape.at_rest.base_level, 5);
    assert_eq!(pinned_levels(&rig.tablet), [0, 5]);
    let three_levels = stats();
    assert_eq!(three_levels, rig.engine.index_memory().pinned_bytes);

    // The last level grows: another level comes before level 5, whose partitions come and go from now on.
    rig.write_at(6, 'd', BASE_LEVEL_BYTES * 5 / 4);
    assert_eq!(rig.tablet.hold().shape.at_rest.base_level, 4);
    assert_eq!(pinned_levels(&rig.tablet), [0]);
    assert!(stats() < three_levels);
    rig.write_at(4, 'e', 1000);
    assert_eq!(pinned_levels(&rig.tablet), [0, 4]);

    // It shrinks: level 5 is the base level again. Level 4 is to be empty.
    block_on(rig.tablet.drop_rows(RowRange::new("d", "f"))).unwrap();
    assert_eq!(rig.tablet.hold().shape.at_rest.base_level, 5);
    assert_eq!(pinned_levels(&rig.tablet), [0, 5]);
    assert_eq!(rig.cells("b00001"), 1);
    let memory = rig.tablet.hold().file(middle).unwrap().reader().unwrap().index_memory();
    assert_eq!(memory.pinned_bytes, memory.partition_bytes, "what a read brought stays");
    assert!(memory.pinned_bytes > 0);

    let Rig { files, engine, tablet } = rig;
    engine.close().unwrap();
    let id = tablet.id();
    drop((tablet, engine));
    let env = Env {
        files,
        io: Arc::new(InlineIo),
        clock: Arc::new(ManualClock::new(START_MICROS)),
        rng: Arc::new(SeededRng::new(2)),
        spawner: Arc::new(ThreadSpawner),
    };
    let options = EngineOptions { background: false, ..options() };
    let engine = Engine::open(env, Path::new("/data"), options).unwrap();
    let tablet = engine.tablet(id).unwrap();
    assert_eq!(pinned_levels(&tablet), [0, 5]);
    assert_eq!(engine.cache().stats().pinned_bytes, three_levels, "read at the start");

    let families = [(FamilyId(1), FamilyOptions::default())].into();
    tablet.set_schema(Arc::new(TabletSchema { families }));
    engine.compact_fully().unwrap();
    assert_eq!(pinned_levels(&tablet), [0; 0]);
    assert_eq!(engine.cache().stats().pinned_bytes, 0);
}

/// Files of level 0, and how many of them are pinned.
fn level_0(tablet: &Tablet) -> (usize, usize) {
    let view = tablet.hold();
    let files = view.version.level(0);
    let pinned = |sst: &&Arc<SstRef>| view.file(sst.id).unwrap().reader().unwrap().is_pinned();
    (files.len(), files.iter().filter(pinned).count())
}

#[test]
fn what_is_pinned_keeps_to_its_half_of_the_cache_and_follows_when_there_is_room() {
    const CACHE_BYTES: u64 = 16 << 10;
    let rig = rig_with(EngineOptions { block_cache_bytes: CACHE_BYTES, ..options() });
    rig.write_at(6, 'a', BASE_LEVEL_BYTES * 5 / 4);
    rig.write_at(5, 'b', 1000);
    let one_is_not_pinned = |(files, pinned)| files > pinned;
    while !one_is_not_pinned(level_0(&rig.tablet)) {
        assert!(level_0(&rig.tablet).0 < 100, "the half is never full");
        rig.write_at(0, 'c', 500);
    }
    assert!(level_0(&rig.tablet).1 > 0);
    assert!(rig.engine.cache().stats().pinned_bytes <= CACHE_BYTES / 2);

    // The oldest file goes. What found no room is kept from the next edit on.
    let oldest = rig.tablet.version().level(0).last().unwrap().id;
    for remove in [vec![(0, oldest)], Vec::new()] {
        let edit = VersionEdit { remove, ..VersionEdit::default() };
        let mut manifest = rig.tablet.lock_manifest();
        rig.tablet.install(&mut manifest, edit, Outputs::default(), 0).unwrap();
    }
    assert!(!one_is_not_pinned(level_0(&rig.tablet)));
    assert!(rig.engine.cache().stats().pinned_bytes <= CACHE_BYTES / 2);
}

//! What a newer version wrote is no damage: a start refuses it, a check tells it from damage, a repair leaves it alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use tepui_engine::ErrorKind;
use tepui_engine::cell::RowBatch;
use tepui_engine::changes::file::MAGIC as CHANGES_MAGIC;
use tepui_engine::db::Engine;
use tepui_engine::io::Files;
use tepui_engine::log::record::RecordWriter;
use tepui_engine::log::segment::{MAGIC, segment_name};
use tepui_engine::manifest::journal::Journal;
use tepui_engine::offline::{self, CatalogReader, RepairOptions};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::harness::{plain_schema, put, tiny_options};
use crate::offline::{
    Place, check, contents, dir, environment, files_in, flip, largest_value_file, place,
    place_with_backup, read_catalog,
};

/// The footer's checksum, as docs/formats-sst.md has it.
fn footer_checksum(covered: &[u8], file: u64, offset: u64) -> u64 {
    fn mix64(mut x: u64) -> u64 {
        x ^= x >> 30;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^= x >> 27;
        x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    let seed = mix64(file.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ mix64(!offset));
    xxh3_64_with_seed(covered, seed)
}

/// Gives an SST or a value file, whose footer has `footer_len` bytes, the footer of a later version.
fn of_later_version(place: &Place, path: &Path, footer_len: usize) {
    with_version(place, path, footer_len, |version| version[0] = 77);
}

/// Changes the version in such a footer, and the word behind it, which is zero.
fn with_version(place: &Place, path: &Path, footer_len: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = place.files.contents(path).unwrap();
    let (at, end) = (bytes.len() - footer_len, bytes.len());
    change(&mut bytes[end - 24..end - 16]);
    let file = u64::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let checksum = footer_checksum(&bytes[at..end - 16], file, at as u64);
    bytes[end - 16..end - 8].copy_from_slice(&checksum.to_le_bytes());
    place.files.put_contents(path, bytes);
}

/// A start is refused, a check tells of `path`, and a repair changes nothing, dry or not.
fn assert_left_alone(place: &Place, path: &Path, what: &str) {
    let path = path.to_str().unwrap();
    let report = check(&place.files);
    let newer = report.newer_version().unwrap_or_else(|| panic!("{what}: {:?}", report.damage));
    assert!(newer.to_string().contains(path), "{what}: {newer}");
    assert!(newer.to_string().contains("a newer version"), "{what}: {newer}");

    assert_repair_refused(place, what);

    let before = contents(&place.files);
    let error = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
    assert!(error.message().contains(path), "{what}: {error}");
    let after = contents(&place.files);
    // The log may have a segment more, and lists it.
    let segments = dir().join("log").join("SEGMENTS");
    for (path, bytes) in before.iter().filter(|(path, _)| **path != segments) {
        assert!(after.get(path) == Some(bytes), "{what}: {} was changed", path.display());
    }
}

/// A repair changes nothing, dry or not.
fn assert_repair_refused(place: &Place, what: &str) {
    let before = contents(&place.files);
    for dry_run in [true, false] {
        let catalog: CatalogReader<'_> = &read_catalog;
        let environment = environment(&place.files);
        let options = RepairOptions { dry_run, ..Default::default() };
        let error = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {})
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
        assert!(error.message().contains("nothing was changed"), "{what}: {error}");
        assert!(contents(&place.files) == before, "{what}: a repair changed something");
    }
}

#[test]
fn an_sst_of_a_later_version_is_left_alone() {
    let place = place();
    let path = files_in(&place.files, "sst").remove(0);
    of_later_version(&place, &path, 96);
    assert_left_alone(&place, &path, "an SST");
    // Whatever else is damaged.
    flip(&place.files, &files_in(&place.files, "sst")[1], 10);
    assert_left_alone(&place, &path, "an SST beside a damaged one");
}

#[test]
fn a_footer_with_something_where_this_version_has_zeros_is_left_alone() {
    let place = place();
    let values = largest_value_file(&place);
    let sst = files_in(&place.files, "sst").remove(0);
    for (path, footer_len) in [(sst, 96), (values, 48)] {
        let whole = place.files.contents(&path).unwrap();
        with_version(&place, &path, footer_len, |version| version[6] = 1);
        assert_left_alone(&place, &path, path.to_str().unwrap());
        place.files.put_contents(&path, whole);
    }
}

#[test]
fn files_of_a_later_version_that_only_a_backup_keeps_are_left_alone() {
    for (sub, footer_len) in [("sst", 96), ("values", 48)] {
        let (place, _) = place_with_backup();
        let files = files_in(&place.files, sub);
        let path = files.last().unwrap();
        of_later_version(&place, path, footer_len);
        assert_left_alone(&place, path, sub);
    }
}

#[test]
fn a_change_file_of_a_later_version_is_left_alone() {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(plain_schema()));
        tablet.keep_changes(Some(Duration::from_hours(24)));
    }
    engine.start().unwrap();
    let row = Bytes::from(place.rows.keys().next().unwrap().clone());
    let value = "a quarter of a segment. ".repeat(170);
    let change = || RowBatch { row: row.clone(), mutations: vec![put(1, "q", 1000, &value)] };
    let tablet = engine.tablet(place.tablets[0]).unwrap();
    while engine.change_figures().files < 3 {
        block_on(tablet.apply(change())).unwrap();
        // Each segment goes once no tablet needs it.
        for tablet in engine.tablets() {
            block_on(tablet.flush()).unwrap();
        }
        engine.run_background().unwrap();
    }
    engine.close().unwrap();
    drop((tablet, engine));
    let files = files_in(&place.files, "changes");
    let path = files.iter().rfind(|path| path.extension().is_some_and(|end| end == "chg")).unwrap();
    let mut bytes = place.files.contents(path).unwrap();
    bytes[8] = 77;
    let check = xxh3_64(&bytes[..24]);
    bytes[24..32].copy_from_slice(&check.to_le_bytes());
    place.files.put_contents(path, bytes);
    assert_left_alone(&place, path, "a change file");
}

/// A change file of two blocks: one of a batch with row "row", and this one.
fn change_file_with(place: &Place, block: &[u8]) -> PathBuf {
    let id = 0xFFFF;
    let path = dir().join("changes").join(format!("{id:016x}-{0:016x}-{0:016x}.chg", u64::MAX));
    let files: &dyn Files = place.files.as_ref();
    let mut writer = RecordWriter::create(files, &path, CHANGES_MAGIC, id).unwrap();
    let mut index = vec![2, 2];
    let known = block_of(&batch(5));
    for payload in [&known, block] {
        let offset = writer.append(payload).unwrap();
        let bytes = (writer.len() - offset) as u8;
        index.extend_from_slice(&7_u64.to_le_bytes());
        index.extend_from_slice(&u64::MAX.to_le_bytes());
        index.extend_from_slice(&[0, offset as u8, bytes]);
    }
    let offset = writer.append(&index).unwrap();
    let bytes = writer.len() - offset;
    let end = [[3].as_slice(), &offset.to_le_bytes(), &bytes.to_le_bytes()].concat();
    writer.append(&end).unwrap();
    writer.sync().unwrap();
    path
}

/// A block, not compressed, of one batch.
fn block_of(batch: &[u8]) -> Vec<u8> {
    [&[1, 0, batch.len() as u8 + 1, batch.len() as u8], batch].concat()
}

#[test]
fn a_block_of_a_later_version_in_a_change_file_is_left_alone_also_behind_damage() {
    let known = place();
    change_file_with(&known, &block_of(&batch(5)));
    assert!(check(&known.files).is_whole(), "{:?}", check(&known.files).damage);
    // A kind of record, a compression, a kind of batch and one of mutation.
    let batch_of_kind = [&[9], &batch(5)[1..]].concat();
    let blocks = [vec![9, 1], vec![1, 9], block_of(&batch_of_kind), block_of(&batch(9))];
    for block in blocks {
        let what = format!("{block:?}");
        let place = place();
        let path = change_file_with(&place, &block);
        let whole = place.files.contents(&path).unwrap();
        let row = whole.windows(3).position(|window| window == b"row").unwrap();
        // As it is, behind a damaged block, and where the end is damaged, so that nothing leads to it.
        for damaged in [None, Some(row), Some(whole.len() - 1)] {
            place.files.put_contents(&path, whole.clone());
            if let Some(at) = damaged {
                flip(&place.files, &path, at);
            }
            let found = check(&place.files);
            let newer: Vec<_> = found.damage.iter().filter(|f| f.is_of_newer_version()).collect();
            assert_eq!(newer.len(), 1, "{what}: {:?}", found.damage);
            assert_eq!(newer[0].file, path, "{what}");
            assert_eq!(found.damage.len() > 1, damaged.is_some(), "{what}: {:?}", found.damage);
            assert_repair_refused(&place, &what);
        }
    }
}

#[test]
fn a_list_with_something_of_a_later_version_behind_it_is_left_alone() {
    let (place, _) = place_with_backup();
    let path = files_in(&place.files, "backups").remove(0);
    let files: &dyn Files = place.files.as_ref();
    let magic = place.files.contents(&path).unwrap()[..8].try_into().unwrap();
    let old = Journal::read(files, &path, magic, None).unwrap();
    place.files.remove(&path).unwrap();
    let longer = [&old.records[0].payload[..], &[0]].concat();
    Journal::create(files, &path, magic, old.id, &longer).unwrap();
    assert_left_alone(&place, &path, "a backup");

    let segments = [&1_u64.to_le_bytes()[..], b"more"].concat();
    for (path, magic, list) in [
        ("log/SEGMENTS", *b"TEPUISGS", segments.as_slice()),
        ("changes/LIST.chg.new", *b"TEPUICHL", &[0, 0, 0]),
    ] {
        let place = crate::offline::place();
        let path = dir().join(path);
        if place.files.exists(&path).unwrap() {
            place.files.remove(&path).unwrap();
        }
        let mut writer = RecordWriter::create(place.files.as_ref(), &path, magic, 1).unwrap();
        writer.append(list).unwrap();
        writer.sync().unwrap();
        assert_left_alone(&place, &path, path.to_str().unwrap());
    }
}

#[test]
fn a_value_file_of_a_later_version_is_left_alone() {
    let place = place();
    let path = largest_value_file(&place);
    of_later_version(&place, &path, 48);
    place.files.put_contents(&path.with_file_name("0000000000000001.val"), b"unnamed".to_vec());
    assert_left_alone(&place, &path, "a value file");
}

/// One more segment: an opening, a deletion of a row, and a record of a kind that is not known, or with such a mutation.
fn segment_with(place: &Place, record: &[u8]) -> PathBuf {
    let id = 0xFFFF;
    let path = dir().join("log").join(segment_name(id));
    let files: Arc<dyn Files> = Arc::clone(&place.files) as Arc<dyn Files>;
    let mut writer = RecordWriter::create(files.as_ref(), &path, MAGIC, id).unwrap();
    writer.append(&[[3].as_slice(), &[0; 16]].concat()).unwrap();
    writer.append(&batch(5)).unwrap();
    writer.sync().unwrap();
    writer.append(record).unwrap();
    writer.sync().unwrap();
    path
}

/// A batch of one mutation, which needs no more than its kind.
fn batch(kind: u8) -> Vec<u8> {
    [[1].as_slice(), &7_u64.to_le_bytes(), &u64::MAX.to_le_bytes(), &[3], b"row", &[1, kind]]
        .concat()
}

#[test]
fn a_record_of_a_later_version_in_the_log_is_left_alone_also_behind_damage() {
    for record in [vec![9, 1, 2, 3], batch(9)] {
        let place = place();
        let path = segment_with(&place, &record);
        assert_left_alone(&place, &path, "a record");
        let bytes = place.files.contents(&path).unwrap();
        let row = bytes.windows(3).position(|window| window == b"row").unwrap();
        flip(&place.files, &path, row);
        let found = check(&place.files).damage;
        assert!(found.iter().any(|finding| !finding.is_of_newer_version()), "{found:?}");
        let before = contents(&place.files);
        let error = offline::repair(
            &environment(&place.files),
            dir(),
            None,
            RepairOptions::default(),
            &mut |_, _| {},
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(contents(&place.files) == before, "a repair changed something");
    }
}

#[test]
fn a_record_of_a_later_version_in_the_catalog_or_a_manifest_is_left_alone_also_behind_damage() {
    for (sub, record) in [("meta", [9, 1, 2, 3]), ("tablets", [99, 1, 2, 3])] {
        let place = place();
        let path = files_in(&place.files, sub).remove(0);
        let files: &dyn Files = place.files.as_ref();
        let magic = place.files.contents(&path).unwrap()[..8].try_into().unwrap();
        let old = Journal::read(files, &path, magic, None).unwrap();
        let payloads: Vec<Bytes> = old.records.into_iter().map(|record| record.payload).collect();
        assert!(payloads.len() > 2, "{sub}");
        place.files.remove(&path).unwrap();
        let mut new = Journal::create(files, &path, magic, old.id, &payloads[0]).unwrap();
        let first = new.bytes() as usize;
        for payload in &payloads[1..] {
            new.append_sync(payload).unwrap();
        }
        new.append_sync(&record).unwrap();
        // A change behind it that this version knows.
        new.append_sync(&payloads[1]).unwrap();
        drop(new);
        assert_left_alone(&place, &path, sub);
        // The first change.
        flip(&place.files, &path, first + 30);
        let found = check(&place.files);
        assert!(found.damage.iter().any(|f| !f.is_of_newer_version()), "{sub}: {:?}", found.damage);
        let newer: Vec<_> = found.damage.iter().filter(|f| f.is_of_newer_version()).collect();
        assert_eq!(newer.len(), 1, "{sub}: {newer:?}");
        assert!(newer[0].to_string().contains(path.to_str().unwrap()), "{sub}: {}", newer[0]);
        assert_repair_refused(&place, sub);
    }
}

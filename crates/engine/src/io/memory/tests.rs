//! What a crash leaves of files in memory, and what it forgets.

use super::*;
use crate::io::SeededRng;

fn write(files: &MemoryFiles, path: &str, synced: &[u8], unsynced: &[u8]) {
    let mut file = files.create(Path::new(path)).unwrap();
    file.append(synced).unwrap();
    file.sync().unwrap();
    file.append(unsynced).unwrap();
}

fn strict(files: &MemoryFiles) {
    files.crash(CrashMode::Strict, &SeededRng::new(1));
}

fn exists(files: &MemoryFiles, path: &str) -> bool {
    files.exists(Path::new(path)).unwrap()
}

#[test]
fn a_strict_crash_keeps_synced_bytes_under_synced_names_only() {
    let files = MemoryFiles::new();
    files.create_dir_all(Path::new("d")).unwrap();
    files.sync_dir(Path::new("")).unwrap();
    write(&files, "d/named", b"kept", b"lost");
    files.sync_dir(Path::new("d")).unwrap();
    write(&files, "d/unnamed", b"synced in vain", b"");
    strict(&files);
    assert_eq!(files.contents(Path::new("d/named")).unwrap(), b"kept");
    assert!(!exists(&files, "d/unnamed"));
}

#[test]
fn a_directory_whose_name_was_not_synced_takes_its_files_along() {
    let files = MemoryFiles::new();
    files.create_dir_all(Path::new("d/e")).unwrap();
    write(&files, "d/e/f", b"x", b"");
    files.sync_dir(Path::new("d/e")).unwrap();
    files.sync_dir(Path::new("")).unwrap();
    strict(&files);
    assert!(exists(&files, "d") && !exists(&files, "d/e") && !exists(&files, "d/e/f"));
}

#[test]
fn removals_and_renames_come_back_unless_their_directory_was_synced() {
    let files = MemoryFiles::new();
    write(&files, "a", b"a", b"");
    write(&files, "b", b"b", b"");
    write(&files, "c", b"c", b"");
    files.sync_dir(Path::new("")).unwrap();
    let before = files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    for (files, synced) in [(before.clone(), false), (files, true)] {
        files.remove(Path::new("c")).unwrap();
        files.rename(Path::new("a"), Path::new("b")).unwrap();
        assert_eq!(files.contents(Path::new("b")).unwrap(), b"a");
        if synced {
            files.sync_dir(Path::new("")).unwrap();
        }
        strict(&files);
        assert_eq!(exists(&files, "a"), !synced);
        assert_eq!(exists(&files, "c"), !synced);
        let b: &[u8] = if synced { b"a" } else { b"b" };
        assert_eq!(files.contents(Path::new("b")).unwrap(), b);
    }
}

#[test]
fn a_torn_crash_keeps_synced_bytes_whole_and_renames_atomic_and_ordered() {
    let (mut cut, mut zeros, mut whole) = (0, 0, 0);
    for seed in 0..400 {
        let files = MemoryFiles::new();
        let tail = vec![7_u8; 3 * PAGE_BYTES];
        write(&files, "f", b"synced", &tail);
        files.sync_dir(Path::new("")).unwrap();
        write(&files, "first", b"1", b"");
        write(&files, "tmp", b"2", b"");
        files.rename(Path::new("tmp"), Path::new("second")).unwrap();
        files.crash(CrashMode::Torn, &SeededRng::new(seed));

        let f = files.contents(Path::new("f")).unwrap();
        assert!(f.starts_with(b"synced") && f.len() <= 6 + tail.len());
        cut += usize::from(f.len() < 6 + tail.len());
        zeros += usize::from(f[6..].contains(&0));
        whole += usize::from(f[6..] == tail[..]);
        assert!(!(exists(&files, "tmp") && exists(&files, "second")));
        if exists(&files, "tmp") || exists(&files, "second") {
            assert!(exists(&files, "first"), "changes of one directory stay in order");
        }
    }
    assert!(cut > 0 && zeros > 0 && whole > 0, "every fate happens: {cut} {zeros} {whole}");
}

#[test]
fn handles_and_locks_do_not_outlive_a_crash() {
    let files = MemoryFiles::new();
    let mut writer = files.create(Path::new("f")).unwrap();
    writer.append(b"x").unwrap();
    writer.sync().unwrap();
    files.sync_dir(Path::new("")).unwrap();
    let reader = files.open(Path::new("f")).unwrap();
    let held = files.lock(Path::new("LOCK")).unwrap();
    assert_eq!(files.lock(Path::new("LOCK")).unwrap_err().kind(), ErrorKind::Locked);
    strict(&files);
    assert_eq!(writer.append(b"y").unwrap_err().kind(), ErrorKind::Io);
    assert!(writer.sync().is_err() && reader.read_at(0, 1).is_err() && reader.len().is_err());
    let again = files.lock(Path::new("LOCK")).unwrap();
    drop(held);
    assert!(files.lock(Path::new("LOCK")).is_err(), "an old guard frees no new lock");
    drop(again);
    files.lock(Path::new("LOCK")).unwrap();
    assert_eq!(files.contents(Path::new("f")).unwrap(), b"x");
}

#[test]
fn an_open_file_stays_readable_after_its_name_is_removed() {
    let files = MemoryFiles::new();
    write(&files, "f", b"abc", b"");
    let reader = files.open(Path::new("f")).unwrap();
    files.remove(Path::new("f")).unwrap();
    assert_eq!(reader.read_at(1, 2).unwrap(), "bc");
    assert_eq!(reader.try_read_at(0, 1).unwrap().unwrap(), "a");
    assert_eq!(reader.read_at(2, 2).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(reader.read_at(u64::MAX, 2).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn wrong_names_are_errors_as_on_a_real_file_system() {
    let files = MemoryFiles::new();
    let kind = |r: Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(files.create(Path::new("no/f")).map(|_| ())), ErrorKind::NotFound);
    write(&files, "f", b"", b"");
    assert_eq!(kind(files.create(Path::new("f")).map(|_| ())), ErrorKind::AlreadyExists);
    assert!(files.create_dir_all(Path::new("f/g")).is_err());
    assert!(files.list(Path::new("f")).is_err());
    files.create_dir_all(Path::new("d/e")).unwrap();
    assert!(files.remove_dir(Path::new("d")).is_err());
    assert!(files.open(Path::new("d")).is_err());
    assert_eq!(kind(files.remove(Path::new("gone"))), ErrorKind::NotFound);
    let names: Vec<_> =
        files.list(Path::new("")).unwrap().into_iter().map(|e| (e.name, e.is_dir)).collect();
    assert_eq!(names, [("d".to_owned(), true), ("f".to_owned(), false)]);
}

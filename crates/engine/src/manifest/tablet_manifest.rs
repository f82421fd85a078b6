//! A tablet's manifest: its versions on disk, as a snapshot and edits in a [rotating
//! journal](super::rotation).
//!
//! ```text
//! MANIFEST-<16 hex>:  snapshot edit | edit | edit | ...      each a record of the journal
//! ```
//!
//! Guarantees: [`TabletManifest::append`] returns the new version only when the edit is durable. After a
//! crash the version is the last one that was returned, or the one that was being written. An edit that
//! does not fit the version is refused before anything is written.
//!
//! Each snapshot says whose it is: a manifest in the directory of another tablet is `Corruption`, and neither is changed.
//!
//! A *failed* append is one whose outcome is not known, but for those that are refused before anything counts: files that its edit adds or removes must stay
//! until the tablet is opened again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edit::VersionEdit;
use super::journal::{Journal, Record};
use super::rotation::{Effect, Found, RotatingJournal, Series};
use super::version::Version;
use crate::cell::RowRange;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::tablet::TabletId;

/// Bytes of edits at which a manifest is rewritten as a snapshot, if they exceed the snapshot too. An edit
/// takes a few hundred bytes, so this is thousands of flushes and compactions. At the next start each takes a look at the
/// ids of all SSTs: milliseconds for a small tablet, tenths of a second for one of a terabyte.
pub const MANIFEST_ROTATE_BYTES: u64 = 1 << 20;

pub(crate) const SERIES: Series = Series {
    name: "MANIFEST-",
    magic: *b"TEPUIMAN",
    rotate_bytes: MANIFEST_ROTATE_BYTES,
    // Where space is short an edit is refused and made again later; there may be thousands of manifests.
    reserve_bytes: 0,
};

/// The manifest of one tablet, open for edits.
#[derive(Debug)]
pub struct TabletManifest {
    /// `None` once the tablet was dropped.
    journal: Option<RotatingJournal>,
    tablet: TabletId,
    version: Arc<Version>,
}

impl TabletManifest {
    /// Creates the manifest of a new tablet in its directory `dir`, durably. The directory is created too; its name is durable once its parent is
    /// synced. `AlreadyExists` where there is one.
    pub fn create(
        files: Arc<dyn Files>,
        dir: &Path,
        tablet: TabletId,
        range: RowRange,
        initial: &VersionEdit,
    ) -> Result<Self> {
        Self::create_in(files, dir, tablet, range, initial, SERIES)
    }

    fn create_in(
        files: Arc<dyn Files>,
        dir: &Path,
        tablet: TabletId,
        range: RowRange,
        initial: &VersionEdit,
        series: Series,
    ) -> Result<Self> {
        if range.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a tablet's range is not empty"));
        }
        let version = Version::empty(range).apply(initial)?;
        files.create_dir_all(dir)?;
        let snapshot = encode_snapshot(&version, tablet);
        let journal = RotatingJournal::create(files, dir, series, &snapshot)?;
        Ok(Self { journal: Some(journal), tablet, version: Arc::new(version) })
    }

    /// Opens the manifest of a tablet in its directory `dir`, and the version that it describes. `NotFound` where there is none:
    /// the creation or the removal of the tablet was cut short, or the file is lost.
    pub fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        tablet: TabletId,
    ) -> Result<(Self, Arc<Version>)> {
        Self::open_in(files, dir, tablet, SERIES)
    }

    fn open_in(
        files: Arc<dyn Files>,
        dir: &Path,
        tablet: TabletId,
        series: Series,
    ) -> Result<(Self, Arc<Version>)> {
        let read = |path: &Path, records| replay(path, records, tablet);
        let (journal, found) = RotatingJournal::open(files, dir, series, read)?;
        let version = match found {
            Found::State(version) => Arc::new(version),
            Found::Nothing => {
                let message = format!("{}: holds no manifest", dir.display());
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            Found::Damaged(path) => {
                let what = "the snapshot does not verify, and there is no other manifest; run \
                            `tepui repair` on the data directory, also after the file was restored: a start \
                            removes what an older one does not name, and a repair sets it aside";
                return Err(Error::corruption(path.display(), 0, what));
            }
        };
        let manifest = Self { journal: Some(journal), tablet, version: Arc::clone(&version) };
        Ok((manifest, version))
    }

    /// The version now.
    pub fn version(&self) -> Arc<Version> {
        Arc::clone(&self.version)
    }

    /// Makes an edit durable and returns the version after it. `InvalidArgument` where the edit does not fit, `Exhausted` or
    /// `NoSpace`, not [in doubt](crate::Error::is_in_doubt), where a file that it takes cannot be begun now or the disk has no room for it: nothing was written.
    /// `NotFound` after [`Self::end`]. After any other failure every later append fails with `ReadOnly` (see the file's head).
    pub fn append(&mut self, edit: &VersionEdit) -> Result<Arc<Version>> {
        if *edit == VersionEdit::default() {
            return Ok(self.version());
        }
        let Some(journal) = &mut self.journal else {
            return Err(Error::new(ErrorKind::NotFound, "the tablet was dropped"));
        };
        let next = Arc::new(self.version.apply(edit)?);
        let snapshot = || encode_snapshot(&next, self.tablet);
        journal.append(&encoded(edit), Effect::Takes, snapshot)?;
        self.version = Arc::clone(&next);
        Ok(next)
    }

    /// Takes no more edits, since the tablet is dropped: lets go of its file, so that the directory can be removed also where a file
    /// that is open keeps its name, and of the version. Returns the one that is left, which has nothing.
    pub fn end(&mut self) -> Arc<Version> {
        self.journal = None;
        self.version = Arc::new(Version::empty(self.version.range().clone()));
        self.version()
    }
}

fn encoded(edit: &VersionEdit) -> Vec<u8> {
    let mut out = Vec::new();
    edit.encode(&mut out);
    out
}

/// The first record of a manifest file.
pub(crate) fn encode_snapshot(version: &Version, tablet: TabletId) -> Vec<u8> {
    encoded(&VersionEdit { tablet: Some(tablet), ..version.snapshot() })
}

fn decode(path: &Path, record: Record) -> Result<(u64, VersionEdit)> {
    let offset = record.offset;
    let edit = VersionEdit::decode(record.payload).map_err(|error| match error.kind() {
        // Of a newer version: not damage.
        ErrorKind::InvalidArgument => error.context(path.display()),
        _ => Error::corruption(path.display(), offset, error.message()),
    })?;
    Ok((offset, edit))
}

/// The version that the records of the manifest at `path`, in the directory of `tablet`, make.
pub(crate) fn replay(path: &Path, records: Vec<Record>, tablet: TabletId) -> Result<Version> {
    let mut version: Option<Version> = None;
    for record in records {
        let (offset, edit) = decode(path, record)?;
        if let Some(other) = edit.tablet.filter(|other| *other != tablet) {
            let what = format!(
                "it is the manifest of tablet {:016x}, in the directory of tablet {:016x}; put back that of this one",
                other.0, tablet.0
            );
            return Err(Error::corruption(path.display(), offset, what));
        }
        let mut next = match (version, &edit.range) {
            (Some(version), _) => version,
            (None, Some(range)) => Version::empty(range.clone()),
            (None, None) => {
                let what = "the first record is not a snapshot: it has no range";
                return Err(Error::corruption(path.display(), offset, what));
            }
        };
        // Every edit fitted when it was written.
        next.change(&edit).map_err(|e| {
            Error::corruption(path.display(), offset, format!("edit does not fit: {e}"))
        })?;
        version = Some(next);
    }
    version.ok_or_else(|| Error::corruption(path.display(), 0, "holds no record"))
}

/// A manifest file as it is, for inspection; see [`dump`].
#[derive(Debug)]
pub struct ManifestDump {
    path: PathBuf,
    records: std::vec::IntoIter<Record>,
    /// The number of the file.
    pub id: u64,
    /// Bytes up to the end of the last record that verifies; a file that is longer has a torn tail.
    pub valid_len: u64,
    /// Whether bytes follow that do not verify.
    pub torn: bool,
}

impl Iterator for ManifestDump {
    type Item = Result<(u64, VersionEdit)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.records.next().map(|record| decode(&self.path, record))
    }
}

/// The edits of a manifest file with their offsets. Changes nothing.
pub fn dump(files: &dyn Files, path: &Path) -> Result<ManifestDump> {
    let contents = Journal::read(files, path, SERIES.magic, None)?;
    Ok(ManifestDump {
        path: path.to_owned(),
        records: contents.records.into_iter(),
        id: contents.id,
        valid_len: contents.valid_len,
        torn: contents.tail != super::journal::Tail::Clean,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::edit::{Excised, SstRef};
    use super::super::testing::{CRASHES, Crash, TestFiles};
    use super::super::version::tests::sst;
    use super::*;
    use crate::log::record::RECORD_HEADER_BYTES;

    fn dir() -> &'static Path {
        Path::new("t/1")
    }

    const TABLET: TabletId = TabletId(1);

    fn shared(files: &TestFiles) -> Arc<dyn Files> {
        Arc::new(files.clone())
    }

    fn open(files: &TestFiles) -> Result<(TabletManifest, Arc<Version>)> {
        TabletManifest::open(shared(files), dir(), TABLET)
    }

    /// A manifest that rotates after a few edits.
    fn open_small(files: &TestFiles) -> Result<(TabletManifest, Arc<Version>)> {
        TabletManifest::open_in(
            shared(files),
            dir(),
            TABLET,
            Series { rotate_bytes: 150, ..SERIES },
        )
    }

    fn create(files: &TestFiles) -> TabletManifest {
        let edit = VersionEdit { last_seq: Some(1), ..Default::default() };
        TabletManifest::create(shared(files), dir(), TABLET, RowRange::all(), &edit).unwrap()
    }

    /// Edits that fit one after the other: flushes, moves down, drops.
    fn edits(n: u64) -> Vec<VersionEdit> {
        (1..=n)
            .map(|i| match i % 4 {
                0 => VersionEdit {
                    remove: vec![(0, i - 1)],
                    add: vec![sst(i - 1, 1, &format!("{i:04}"), &format!("{i:04}~"))],
                    ..Default::default()
                },
                2 => VersionEdit {
                    add_excised: vec![Excised { range: RowRange::prefix(b"x"), seq: i }],
                    ..Default::default()
                },
                _ => VersionEdit {
                    add: vec![sst(i, 0, "a", "z")],
                    flushed_seq: Some(i),
                    ..Default::default()
                },
            })
            .collect()
    }

    fn only_file(files: &TestFiles) -> PathBuf {
        let names = files.names();
        assert_eq!(names.len(), 1, "{names:?}");
        dir().join(&names[0])
    }

    #[test]
    fn every_prefix_of_edits_is_there_after_reopening() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        for edit in edits(40) {
            let version = manifest.append(&edit).unwrap();
            assert_eq!(version, manifest.version());
            for crash in CRASHES {
                assert_eq!(open(&files.crash(crash)).unwrap().1, version);
            }
        }
        // And through the edits of a manifest that is opened anew for each.
        let files = TestFiles::default();
        let mut version = create(&files).version();
        for edit in edits(40) {
            let (mut manifest, found) = open_small(&files).unwrap();
            assert_eq!(found, version);
            version = manifest.append(&edit).unwrap();
        }
    }

    #[test]
    fn a_manifest_that_has_ended_has_nothing_and_takes_no_edits() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        for edit in edits(4) {
            manifest.append(&edit).unwrap();
        }
        let operations = files.operations();
        assert_eq!(manifest.end(), Arc::new(Version::empty(RowRange::all())));
        let error = manifest.append(&edits(1)[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(files.operations(), operations, "its directory may be gone");
    }

    #[test]
    fn a_manifest_cut_at_any_byte_gives_the_version_before_or_after() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        let path = only_file(&files);
        let mut versions = vec![(files.contents(&path).len(), manifest.version())];
        for edit in edits(6) {
            let version = manifest.append(&edit).unwrap();
            versions.push((files.contents(&path).len(), version));
        }
        // A version is there with its record; the marker behind that may be cut.
        for (end, _) in &mut versions {
            *end -= RECORD_HEADER_BYTES as usize;
        }
        let image = files.contents(&path);
        for len in 0..=image.len() {
            let cut = TestFiles::default();
            cut.put(&path, &image[..len]);
            let want = versions.iter().rev().find(|(end, _)| *end <= len);
            match (open(&cut), want) {
                (Ok((_, version)), Some((end, want))) => {
                    assert_eq!(&version, want, "cut to {len}");
                    // A whole marker stays, as in a file that was not cut.
                    let marked = end + RECORD_HEADER_BYTES as usize;
                    let left = if len >= marked { marked } else { *end };
                    assert_eq!(cut.contents(&path).len(), left, "the torn tail is cut");
                }
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::Corruption, "{len}"),
                (opened, want) => panic!("cut to {len}: {opened:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_corruption_or_in_the_last_marker_and_never_another_version() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        let path = only_file(&files);
        for edit in edits(5) {
            manifest.append(&edit).unwrap();
        }
        let image = files.contents(&path);
        let marker_at = image.len() - RECORD_HEADER_BYTES as usize;
        for at in 0..image.len() {
            let mut flipped = image.clone();
            flipped[at] ^= 1 << (at % 8);
            let disk = TestFiles::default();
            disk.put(&path, &flipped);
            match open(&disk) {
                Ok((_, version)) => {
                    assert!(at >= marker_at, "byte {at}");
                    assert_eq!(version, manifest.version());
                    assert_eq!(disk.contents(&path), image[..marker_at], "the marker is cut");
                }
                Err(error) => {
                    assert!(at < marker_at && error.kind() == ErrorKind::Corruption, "{error}");
                    assert!(error.message().contains("MANIFEST-0000000000000001"), "{error}");
                    assert_eq!(disk.contents(&path), flipped, "evidence is left alone");
                }
            }
        }
    }

    #[test]
    fn a_lone_damaged_snapshot_is_corruption() {
        let files = TestFiles::default();
        create(&files);
        let path = only_file(&files);
        let marked = files.contents(&path);
        let marker_at = marked.len() - RECORD_HEADER_BYTES as usize;
        // With its marker, and after a crash that lost that.
        for image in [&marked[..], &marked[..marker_at]] {
            let mut image = image.to_vec();
            image[marker_at - 1] ^= 1;
            files.put(&path, &image);
            assert_eq!(open(&files).unwrap_err().kind(), ErrorKind::Corruption);
            assert_eq!(files.contents(&path), image, "evidence is left alone");
        }
    }

    #[test]
    fn an_outgrown_manifest_is_rewritten_and_the_old_file_goes() {
        let files = TestFiles::default();
        create(&files);
        let (mut manifest, _) = open_small(&files).unwrap();
        for edit in edits(60) {
            manifest.append(&edit).unwrap();
        }
        let path = only_file(&files);
        let number = SERIES.parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
        assert!(number > 3, "rotated once only: {number}");
        assert!(number < 50, "rotated with every edit: {number}");
        assert_eq!(open(&files).unwrap().1, manifest.version());
    }

    #[test]
    fn a_fault_at_any_operation_leaves_the_version_before_or_after() {
        // Twelve edits over a small limit: appends, rotations and removals all meet the fault.
        for fail_after in 0.. {
            let files = TestFiles::default();
            create(&files);
            files.fail_after(fail_after);
            let before = open(&files.crash(Crash::Keeps)).unwrap().1;
            let mut allowed = vec![before];
            let mut failed = false;
            if let Ok((mut manifest, _)) = open_small(&files) {
                for edit in edits(12) {
                    let next = manifest.version().apply(&edit).unwrap();
                    match manifest.append(&edit) {
                        Ok(version) => allowed = vec![version],
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Io);
                            failed = true;
                            allowed.push(Arc::new(next));
                            let fits = VersionEdit { last_seq: Some(999), ..Default::default() };
                            let later = manifest.append(&fits).unwrap_err();
                            assert_eq!(later.kind(), ErrorKind::ReadOnly);
                            break;
                        }
                    }
                }
            } else {
                failed = true;
            }
            for crash in CRASHES {
                let disk = files.crash(crash);
                let (mut manifest, version) = open(&disk).unwrap();
                assert!(allowed.contains(&version), "fault after {fail_after}, {crash:?}");
                // What was found is durable, whatever happens next.
                assert_eq!(open(&disk.crash(Crash::Forgets)).unwrap().1, version);
                let edit = VersionEdit { last_seq: Some(999), ..Default::default() };
                let version = manifest.append(&edit).unwrap();
                assert_eq!(open(&disk.crash(Crash::Forgets)).unwrap().1, version);
                only_file(&disk);
            }
            if !failed {
                assert!(fail_after > 30, "the faults met too few operations");
                break;
            }
        }
    }

    #[test]
    fn a_manifest_of_another_tablet_is_refused_and_the_own_one_stays() {
        let files = TestFiles::default();
        create(&files);
        let own = only_file(&files);
        // The other one's, which counts as the newer of the two.
        let (there, other) = (TestFiles::default(), TabletId(2));
        let edit = VersionEdit::default();
        let created = TabletManifest::create(shared(&there), dir(), other, RowRange::all(), &edit);
        let opened = created.and_then(|_| TabletManifest::open(shared(&there), dir(), other));
        opened.unwrap().0.append(&edits(1).remove(0)).unwrap();
        let misplaced = only_file(&there);
        assert!(misplaced > own);
        files.put(&misplaced, &there.contents(&misplaced));

        let refused = open(&files).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption);
        let text = refused.to_string();
        assert!(text.contains(misplaced.to_str().unwrap()), "{text}");
        assert!(text.contains("tablet 0000000000000002"), "{text}");
        assert_eq!(files.names().len(), 2);
        files.remove(&misplaced).unwrap();
        assert_eq!(open(&files).unwrap().1.range(), &RowRange::all());
        assert_eq!(only_file(&files), own);
    }

    #[test]
    fn a_manifest_that_does_not_say_whose_it_is_is_opened_and_says_it_with_the_next_change() {
        let files = TestFiles::default();
        let path = SERIES.path(dir(), 1);
        let snapshot = encoded(&Version::empty(RowRange::all()).snapshot());
        Journal::create(&files, &path, SERIES.magic, 1, &snapshot).unwrap();
        let (mut manifest, _) = open(&files).unwrap();
        manifest.append(&edits(1).remove(0)).unwrap();
        let refused = TabletManifest::open(shared(&files), dir(), TabletId(2)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption);
        open(&files).unwrap();
    }

    #[test]
    fn a_crash_while_a_tablet_is_created_leaves_it_or_nothing() {
        for fail_after in 0.. {
            let files = TestFiles::default();
            files.fail_after(fail_after);
            let edit = VersionEdit::default();
            let created =
                TabletManifest::create(shared(&files), dir(), TABLET, RowRange::all(), &edit);
            for crash in CRASHES {
                let disk = files.crash(crash);
                match open(&disk) {
                    Ok((_, version)) => assert_eq!(*version, Version::empty(RowRange::all())),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NotFound);
                        assert!(created.is_err());
                        // The same directory can be used again.
                        create(&disk);
                        open(&disk).unwrap();
                    }
                }
            }
            if created.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn edits_that_do_not_fit_are_not_written() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        let image = files.contents(&only_file(&files));
        let bad = VersionEdit { remove: vec![(0, 7)], ..Default::default() };
        assert_eq!(manifest.append(&bad).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(manifest.append(&VersionEdit::default()).unwrap(), manifest.version());
        assert_eq!(files.contents(&only_file(&files)), image);
        manifest.append(&edits(1)[0]).expect("a refused edit does not poison");
    }

    #[test]
    fn thousands_of_edits_of_a_tablet_of_a_terabyte_are_replayed_as_they_were_made() {
        // Where each edit takes a look at all that each SST has, this takes minutes.
        const SSTS: u64 = 16_000;
        const EDITS: u64 = 1_500;
        let low = |n: u64| sst(n, 6, &format!("{n:06}"), &format!("{n:06}~"));
        let flush = |n: u64| sst(SSTS + n, 0, "a", "z");
        let snapshot = VersionEdit {
            range: Some(RowRange::all()),
            add: (1..=SSTS).map(low).collect(),
            ..VersionEdit::default()
        };
        // A flush, and a compaction of it with a file of the last level.
        let edits = (1..=EDITS).flat_map(|n| {
            let compacted = SstRef { id: 2 * SSTS + n, ..low(7 * n) };
            [
                VersionEdit { add: vec![flush(n)], flushed_seq: Some(n), ..Default::default() },
                VersionEdit {
                    remove: vec![(0, SSTS + n), (6, 7 * n)],
                    add: vec![compacted],
                    ..Default::default()
                },
            ]
        });
        let records = |edits: &[VersionEdit]| {
            let record = |(at, edit): (usize, &VersionEdit)| Record {
                offset: at as u64,
                payload: encoded(edit).into(),
                durable: 0,
            };
            edits.iter().enumerate().map(record).collect::<Vec<_>>()
        };
        let mut edits: Vec<VersionEdit> = [snapshot].into_iter().chain(edits).collect();
        let version = replay(dir(), records(&edits), TABLET).unwrap();
        assert_eq!(version.sst_count(), SSTS);
        assert_eq!(version.ssts().filter(|sst| sst.id > 2 * SSTS).count() as u64, EDITS);
        // An edit in the midst that does not fit is named, though one after it removes what it adds.
        let wrong = VersionEdit { add: vec![sst(9, 5, "a", "z")], ..Default::default() };
        let right = VersionEdit { remove: vec![(5, 9)], ..Default::default() };
        edits.splice(99..99, [wrong, right]);
        let error = replay(dir(), records(&edits), TABLET).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains("live twice"), "{error}");
        assert!(error.to_string().contains("99"), "{error}");
    }

    #[test]
    fn a_second_creation_is_refused() {
        let files = TestFiles::default();
        create(&files);
        let again = TabletManifest::create(
            shared(&files),
            dir(),
            TABLET,
            RowRange::all(),
            &Default::default(),
        );
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_record_of_a_newer_version_is_named_and_left_alone() {
        let files = TestFiles::default();
        create(&files);
        let path = dir().join("MANIFEST-0000000000000002");
        Journal::create(&files, &path, SERIES.magic, 2, &[99, 0]).unwrap();
        let error = open(&files).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("written by a newer version"), "{error}");
        assert!(error.message().contains("MANIFEST-0000000000000002"), "{error}");
    }

    #[test]
    fn a_dump_shows_every_edit_and_changes_nothing() {
        let files = TestFiles::default();
        let mut manifest = create(&files);
        let edits = edits(5);
        for edit in &edits {
            manifest.append(edit).unwrap();
        }
        let path = only_file(&files);
        let mut image = files.contents(&path);
        image.extend_from_slice(&[1, 2, 3]);
        files.put(&path, &image);
        let operations = files.operations();
        let dump = dump(&files, &path).unwrap();
        assert!(dump.torn && dump.id == 1 && dump.valid_len == image.len() as u64 - 3);
        let shown: Vec<(u64, VersionEdit)> = dump.map(Result::unwrap).collect();
        assert_eq!(shown[0].0, 32);
        assert_eq!(shown[0].1.range, Some(RowRange::all()));
        assert!(shown[1..].iter().map(|(_, edit)| edit).eq(&edits));
        assert_eq!(files.operations(), operations);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn random_records_behind_valid_checksums_never_panic(
            payloads in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..60), 1..4),
        ) {
            let files = TestFiles::default();
            let path = dir().join("MANIFEST-0000000000000001");
            let mut journal =
                Journal::create(&files, &path, SERIES.magic, 1, &payloads[0]).unwrap();
            for payload in &payloads[1..] {
                journal.append_sync(payload).unwrap();
            }
            let _ = open(&files);
        }
    }
}

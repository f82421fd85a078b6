//! Repairing SSTs: the records of every readable block go into a new SST of the same tablet and level, and an
//! edit of the manifest puts it in the place of the damaged one, before the next is read: what a run has done that
//! does not come to its end, the next need not do.
//!
//! ```text
//! new SST, synced ──► copy of the manifest in lost/ ──► edit: remove old, add new ──► move the old one to lost/
//! ```
//!
//! An old SST that an interruption leaves behind is one that nothing names: the next repair moves it. A new one that an error
//! leaves without a name is removed again.
//!
//! A record whose value cannot be had from its value file is lost; but its key tells that the cell was written then, so a
//! tombstone takes its place, which hides what was there before. The value file is copied to `lost/` and stays, for its other
//! values. One whose footer alone is damaged gets a new one.
//!
//! An SST that does not open (its footer, properties or top-level index are damaged) is lost as a whole. One
//! whose filter alone is damaged loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::check::differences;
use super::journals::series_files;
use super::repair::{COPY_BYTES, Holder, LostRows, Repair, Tablets, is_damage};
use super::repair_backups::Backups;
use super::values::{ValueReaders, list_unfinished_values, list_values, unfinished_value};
use super::{CACHE_BYTES, list_tablets};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::cell::{KeyView, Kind, RowRange, Timestamp};
use crate::compaction::job::sst_options;
use crate::compaction::shape::LAST_LEVEL;
use crate::error::{Error, Result};
use crate::manifest::{MANIFEST_SERIES, SstRef, TabletManifest, Version, VersionEdit};
use crate::options::EngineOptions;
use crate::sst::{FileId, Lost, Piece, SstProperties, SstReader, SstWriter};
use crate::tablet::TabletId;
use crate::values::{ValueReader, blank_footer};

/// What becomes of the SSTs, and what of them is shown.
#[derive(Default)]
pub(super) struct Fates {
    /// Of those that were looked at.
    of: BTreeMap<FileId, Fate>,
    /// Of all of them: several may share one, and each show other rows of it.
    shown: BTreeMap<FileId, Vec<Shown>>,
    /// Those that lie above the last level, wherever one names them.
    above_last: BTreeSet<FileId>,
}

/// Rows of an SST that are shown, and by whom; the first, where several show the same.
struct Shown {
    rows: RowRange,
    by: Holder,
}

impl Fates {
    fn new(tablets: &Tablets, backups: &Backups) -> Self {
        let mut fates = Self::default();
        for (id, version) in tablets {
            if let Some(version) = version {
                fates.show(version, Holder::Tablet(*id));
            }
        }
        for (id, list) in backups {
            for version in &list.tablets {
                fates.show(version, Holder::Backup(*id));
            }
        }
        fates
    }

    fn show(&mut self, version: &Version, by: Holder) {
        for sst in version.ssts() {
            let rows = sst.visible.intersect(version.range());
            if sst.level != LAST_LEVEL {
                self.above_last.insert(sst.id);
            }
            let shown = self.shown.entry(sst.id).or_default();
            if !rows.is_empty() && shown.iter().all(|other| other.rows != rows) {
                shown.push(Shown { rows, by });
            }
        }
    }
}

/// Who shows a row of a lost piece, and between which rows of it those are that anybody shows. `None` where nobody does.
fn missed(lost: &Lost, shown: &[Shown]) -> Option<(Holder, Bytes, Bytes)> {
    if lost.from_row > lost.to_row {
        // Separators do not ascend: any row may have been in it.
        return shown.first().map(|first| (first.by, lost.from_row.clone(), lost.to_row.clone()));
    }
    let mut pieces = shown.iter().filter_map(|Shown { rows, by }| {
        let from = (&lost.from_row).max(&rows.start);
        let to = if rows.end.is_empty() { &lost.to_row } else { (&lost.to_row).min(&rows.end) };
        (from <= to && (rows.end.is_empty() || *from < rows.end)).then_some((*by, from, to))
    });
    let (by, mut from, mut to) = pieces.next()?;
    for (_, other_from, other_to) in pieces {
        (from, to) = (from.min(other_from), to.max(other_to));
    }
    Some((by, from.clone(), to.clone()))
}

/// What becomes of an SST.
#[derive(Clone)]
pub(super) enum Fate {
    /// It stays.
    Whole,
    /// It stays; these are its true figures.
    Misdescribed(Described),
    /// It goes; this comes in its place, if anything.
    Replaced(Option<Described>),
}

/// What a manifest says of a file.
#[derive(Clone)]
pub(super) struct Described {
    id: FileId,
    bytes: u64,
    properties: SstProperties,
}

impl Described {
    /// A reference to the file in the place of `old`.
    fn in_place_of(&self, old: &SstRef) -> SstRef {
        let mut new = SstRef {
            id: self.id,
            level: old.level,
            visible: old.visible.clone(),
            bytes: self.bytes,
            first_row: self.properties.first_row.clone(),
            last_row: self.properties.last_row.clone(),
            min_seq: self.properties.seq_min,
            max_seq: self.properties.seq_max,
            entries: self.properties.entries,
        };
        // Each piece of a cut file has its own, by which writes are refused and compactions picked. What was hidden may all be lost.
        if new.is_cut() {
            new.bytes = old.bytes.min(self.bytes);
        }
        new
    }
}

/// A tablet whose SSTs are put right.
#[derive(Default)]
struct Mending {
    /// Open from the first edit on.
    manifest: Option<TabletManifest>,
    /// What is yet to be appended to it.
    edit: VersionEdit,
    taken_out: usize,
    put_in: usize,
}

/// The references to each file of each level: what takes a file out of a level takes all of them.
fn by_file(version: &Version) -> BTreeMap<(u8, FileId), Vec<&SstRef>> {
    let mut files: BTreeMap<(u8, FileId), Vec<&SstRef>> = BTreeMap::new();
    for sst in version.ssts() {
        files.entry((sst.level, sst.id)).or_default().push(sst);
    }
    files
}

/// What came out of reading all that can be read.
struct Rewritten {
    new: Option<Described>,
    /// The records in it that are as they were.
    kept: u64,
    lost: Vec<Lost>,
    /// Values, by the file that they were in.
    lost_values: BTreeMap<FileId, Vec<Lost>>,
}

impl Repair<'_> {
    /// Repairs the SSTs of all tablets and backups.
    pub(super) fn ssts(&mut self, tablets: &Tablets, backups: &Backups) -> Result<()> {
        let mut fates = Fates::new(tablets, backups);
        self.ssts_of_all(tablets, backups, &mut fates).inspect_err(|_| self.remove_unnamed())?;
        // Only now: another tablet, or a backup, may have named the same file.
        for (id, fate) in fates.of {
            let path = self.layout.sst(id);
            if matches!(fate, Fate::Replaced(_)) && self.env.files.exists(&path)? {
                self.move_aside(&path)?;
            }
        }
        Ok(())
    }

    fn ssts_of_all(
        &mut self,
        tablets: &Tablets,
        backups: &Backups,
        fates: &mut Fates,
    ) -> Result<()> {
        for (id, version) in tablets {
            let Some(version) = version else { continue };
            let mut mending = Mending::default();
            let mended = self.mend(*id, version, &mut mending, fates);
            let Mending { taken_out, put_in, .. } = mending;
            if taken_out > 0 {
                let dir = self.layout.tablet(*id);
                let dir = dir.display();
                self.did(format_args!("{dir}: {taken_out} SSTs taken out, {put_in} put in"));
            }
            mended?;
        }
        self.ssts_of_backups(backups, fates)
    }

    fn mend(
        &mut self,
        tablet: TabletId,
        version: &Version,
        mending: &mut Mending,
        fates: &mut Fates,
    ) -> Result<()> {
        for references in by_file(version).values() {
            self.mend_file(references, version.range(), fates, &mut mending.edit)?;
            // The next run finds it done, and needs no room for it, if this one ends before its end.
            if !mending.edit.add.is_empty() {
                self.append(tablet, mending)?;
            }
        }
        self.append(tablet, mending)
    }

    /// What is to be changed of a version for its SSTs to be whole.
    pub(super) fn edit_of(&mut self, version: &Version, fates: &mut Fates) -> Result<VersionEdit> {
        let mut edit = VersionEdit::default();
        for references in by_file(version).values() {
            self.mend_file(references, version.range(), fates, &mut edit)?;
        }
        Ok(edit)
    }

    /// Adds to `edit` what is to be changed for an SST to be whole, of a version with these references to it in a level.
    fn mend_file(
        &mut self,
        references: &[&SstRef],
        range: &RowRange,
        fates: &mut Fates,
        edit: &mut VersionEdit,
    ) -> Result<()> {
        let Some(sst) = references.first() else { return Ok(()) };
        let fate = match fates.of.get(&sst.id) {
            Some(fate) => fate.clone(),
            None => {
                let shown = fates.shown.get(&sst.id).map_or(&[][..], Vec::as_slice);
                let is_lowest = !fates.above_last.contains(&sst.id);
                let fate = self.fate(sst, is_lowest, shown)?;
                fates.of.insert(sst.id, fate.clone());
                fate
            }
        };
        let new = match fate {
            Fate::Whole => return Ok(()),
            Fate::Misdescribed(new) => Some(new),
            Fate::Replaced(new) => new,
        };
        edit.remove.push((sst.level, sst.id));
        let new = new.iter().flat_map(|new| references.iter().map(|old| new.in_place_of(old)));
        edit.add.extend(new.filter(|new| new.overlaps(range)));
        Ok(())
    }

    /// Makes the edit of a tablet durable.
    fn append(&mut self, tablet: TabletId, mending: &mut Mending) -> Result<()> {
        let edit = std::mem::take(&mut mending.edit);
        if edit == VersionEdit::default() {
            return Ok(());
        }
        let manifest = match &mut mending.manifest {
            Some(manifest) => manifest,
            none => {
                let dir = self.layout.tablet(tablet);
                // The first edit goes into a new file, and takes the old one away.
                for (_, path) in series_files(self.env.files.as_ref(), &dir, MANIFEST_SERIES)? {
                    self.copy_aside(&path)?;
                }
                none.insert(TabletManifest::open(self.files(), &dir, tablet)?.0)
            }
        };
        let appended = manifest.append(&edit);
        if appended.as_ref().err().is_none_or(Error::is_in_doubt) {
            self.name(edit.add.iter().map(|sst| sst.id));
        }
        appended?;
        mending.taken_out += edit.remove.len();
        mending.put_in += edit.add.len();
        Ok(())
    }

    /// A manifest or a list names these SSTs now, or it is not known that none does.
    pub(super) fn name(&mut self, ssts: impl IntoIterator<Item = FileId>) {
        for id in ssts {
            self.unnamed.remove(&id);
        }
    }

    /// Removes the SSTs that this run wrote and nothing names: the next run would write them again beside these.
    fn remove_unnamed(&mut self) {
        for id in std::mem::take(&mut self.unnamed) {
            // One that stays is set aside by the run that comes to its end.
            let _ = self.env.files.remove(&self.layout.sst(id));
        }
    }

    fn fate(&mut self, sst: &SstRef, is_lowest: bool, shown: &[Shown]) -> Result<Fate> {
        let files = self.files();
        let path = self.layout.sst(sst.id);
        let whole_file = || Lost {
            offset: 0,
            bytes: sst.bytes,
            records: sst.entries,
            from_row: sst.first_row.clone(),
            to_row: sst.last_row.clone(),
            error: Error::corruption(path.display(), 0, "the file is lost"),
        };
        if !files.exists(&path)? {
            self.lose(&path, &[whole_file()], shown);
            return Ok(Fate::Replaced(None));
        }
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(CACHE_BYTES));
        let reader = match SstReader::open(files.as_ref(), &path, sst.id, cache) {
            Ok(reader) => reader,
            Err(error) if !is_damage(&error) => return Err(error),
            Err(_) => {
                self.lose(&path, &[whole_file()], shown);
                return Ok(Fate::Replaced(None));
            }
        };
        let layout = self.layout;
        let mut values = ValueReaders::new(files.as_ref(), layout);
        let values_whole = match values.lost_to(&reader) {
            Ok(lost) => lost.is_empty(),
            Err(error) if !is_damage(&error) => return Err(error),
            Err(_) => false,
        };
        let verified = match reader.verify(&mut |_| {}) {
            Err(error) if !is_damage(&error) => return Err(error),
            verified => verified.is_ok(),
        };
        if verified && values_whole {
            if differences(sst, &reader).is_empty() {
                return Ok(Fate::Whole);
            }
            let properties = reader.properties().clone();
            let described = Described { id: sst.id, bytes: reader.bytes(), properties };
            self.did(format_args!("{}: described anew in its manifest", path.display()));
            return Ok(Fate::Misdescribed(described));
        }
        let Rewritten { new, kept, lost, lost_values } =
            self.rewrite(&reader, (sst.level, is_lowest), &mut values)?;
        for value_path in lost_values.keys().map(|id| layout.value(*id)) {
            // One copy is enough for all SSTs that name it; it is not changed.
            let known = self.report.set_aside.iter().any(|(from, _)| *from == value_path);
            if !known && files.exists(&value_path)? {
                self.copy_aside(&value_path)?;
            }
        }
        self.lose(&path, &lost, shown);
        for (id, lost) in lost_values {
            self.lose(&layout.value(id), &lost, shown);
        }
        self.did(format_args!("{}: {kept} records kept in a new SST", path.display()));
        Ok(Fate::Replaced(new))
    }

    /// Notes what is lost of the rows that are shown: what was dropped, or went into other files, is missed by nobody.
    fn lose(&mut self, path: &Path, lost: &[Lost], shown: &[Shown]) {
        // With a filter partition no row is lost.
        let rows = lost.iter().filter(|lost| lost.records > 0).filter_map(|lost| {
            let (holder, from_row, to_row) = missed(lost, shown)?;
            let bytes = lost.offset..lost.offset + lost.bytes;
            let (file, records) = (path.to_path_buf(), lost.records);
            Some(LostRows { holder, file, bytes, from_row, to_row, records })
        });
        self.report.lost_rows.extend(rows);
    }

    /// Writes every readable record of `reader` into a new SST: of this level, and whether it is the last wherever the file is named.
    fn rewrite(
        &mut self,
        reader: &SstReader,
        level: (u8, bool),
        values: &mut ValueReaders<'_>,
    ) -> Result<Rewritten> {
        let id = self.next_id;
        self.next_id += 1;
        let path = self.layout.sst(id);
        let rewritten = self.rewrite_as(id, &path, reader, level, values).inspect_err(|_| {
            // On a full disk each try would leave more of it.
            let _ = self.files().remove(&path);
        })?;
        self.unnamed.extend(rewritten.new.as_ref().map(|new| new.id));
        Ok(rewritten)
    }

    fn rewrite_as(
        &self,
        id: u64,
        path: &Path,
        reader: &SstReader,
        (level, is_lowest): (u8, bool),
        values: &mut ValueReaders<'_>,
    ) -> Result<Rewritten> {
        let files = self.files();
        let options = sst_options(&EngineOptions::default(), level);
        let created = reader.properties().created_micros;
        let mut writer = SstWriter::new(files.create(path)?, path, id, options, created);
        let mut lost = Vec::new();
        let mut lost_values: BTreeMap<FileId, Vec<Lost>> = BTreeMap::new();
        // The file of the value that the last record lacked.
        let mut in_a_row = None;
        let (mut kept, mut buried): (u64, u64) = (0, 0);
        // Nothing lies beneath the last level: there a burial is for what comes next, if that is of the same cell.
        let mut held: Option<Burial> = None;
        reader.walk(true, &mut |piece| match piece {
            Piece::Record(_, entry) => {
                if let Some(burial) = held.take()
                    && burial.hides(entry.key)
                {
                    buried += 1;
                    burial.write(&mut writer)?;
                }
                if let Some((file, value)) = values.lost(&entry) {
                    if !is_damage(&value.error) {
                        return Err(value.error);
                    }
                    let of_file = lost_values.entry(file).or_default();
                    // A file that is gone is one loss, and not a million.
                    let joins = in_a_row == Some(file) || !values.opens(file);
                    match of_file.last_mut().filter(|_| joins) {
                        Some(last) => last.join(value),
                        None => of_file.push(value),
                    }
                    in_a_row = Some(file);
                    let burial = Burial::of(entry.key);
                    if is_lowest {
                        held = Some(burial);
                        return Ok(());
                    }
                    buried += 1;
                    return burial.write(&mut writer);
                }
                in_a_row = None;
                kept += 1;
                writer.add(entry.key, entry.value)
            }
            Piece::Lost(piece) if !is_damage(&piece.error) => Err(piece.error),
            Piece::Lost(piece) => {
                lost.push(piece);
                Ok(())
            }
            Piece::Partition(_) | Piece::Block(_) | Piece::Filter(..) => Ok(()),
        })?;
        if kept + buried == 0 {
            drop(writer);
            files.remove(path)?;
            return Ok(Rewritten { new: None, kept, lost, lost_values });
        }
        let summary = writer.finish()?;
        files.sync_dir(&self.layout.ssts())?;
        let new = Described { id, bytes: summary.bytes, properties: summary.properties };
        Ok(Rewritten { new: Some(new), kept, lost, lost_values })
    }

    /// Value files: one with a damaged footer gets a new one, and one that no SST names is set aside before
    /// a start removes it.
    pub(super) fn value_files(&mut self) -> Result<()> {
        let files = self.files();
        let mut ssts: BTreeSet<FileId> = self.ssts_in_backups()?.into_iter().collect();
        for tablet in list_tablets(files.as_ref(), self.layout)? {
            let version = self.version(tablet)?;
            ssts.extend(version.iter().flat_map(Version::ssts).map(|sst| sst.id));
        }
        let mut named = BTreeSet::new();
        for id in ssts {
            let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(CACHE_BYTES));
            let path = self.layout.sst(id);
            let reader = SstReader::open(files.as_ref(), &path, id, cache)?;
            named.extend(reader.properties().value_files.keys().copied());
        }
        for id in list_values(files.as_ref(), self.layout)?.into_keys() {
            let path = self.layout.value(id);
            if !named.contains(&id) {
                self.move_aside(&path)?;
                self.did(format_args!("{}: no SST names it", path.display()));
                continue;
            }
            let reader = ValueReader::open(files.as_ref(), &path, id)?;
            match reader.verify_footer() {
                Ok(()) => {}
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) => self.new_footer(&path, id, &reader)?,
            }
        }
        Ok(())
    }

    /// Removes value files that an interrupted repair had begun to write anew. What they were to replace is there still.
    pub(super) fn remove_unfinished_values(&mut self) -> Result<()> {
        let files = self.files();
        for path in list_unfinished_values(files.as_ref(), self.layout)? {
            files.remove(&path)?;
            self.did(format_args!("{}: removed; an interrupted repair left it", path.display()));
        }
        Ok(())
    }

    /// Writes all bytes of a value file that can be a frame again, and a footer behind them.
    fn new_footer(&mut self, path: &Path, id: FileId, reader: &ValueReader) -> Result<()> {
        if !self.report.set_aside.iter().any(|(from, _)| from == path) {
            self.copy_aside(path)?;
        }
        let files = self.files();
        let new_path = unfinished_value(self.layout, id);
        let mut new = files.create(&new_path)?;
        let mut at = 0;
        while at < reader.bytes() {
            let piece = (reader.bytes() - at).min(COPY_BYTES as u64) as usize;
            new.append(&reader.file().read_at(at, piece)?)?;
            at += piece as u64;
        }
        new.append(&blank_footer(id, at))?;
        new.sync()?;
        files.rename(&new_path, path)?;
        files.sync_dir(&self.layout.values())?;
        self.did(format_args!("{}: given a new footer", path.display()));
        Ok(())
    }
}

/// What takes the place of a cell whose value is lost: a tombstone over its timestamp, with its sequence, which hides what the cell had
/// hidden and nothing newer. No other record has that key, as each mutation has a sequence of its
/// own; and no operand of an aggregate is hidden that counts, as values of aggregates are never elsewhere.
struct Burial {
    key: Vec<u8>,
    row_len: usize,
    /// The first timestamp that is hidden.
    start: Timestamp,
}

impl Burial {
    fn of(key: KeyView<'_>) -> Self {
        let mut bytes = key.bytes().to_vec();
        if let Some(kind) = bytes.last_mut() {
            *kind = Kind::CellTombstone as u8;
        }
        // One more than there can be a cell of: what begins with its own timestamp is taken for a burial by garbage collection, of
        // a cell that no rule keeps, beneath which others that it counted may go.
        Self { key: bytes, row_len: key.row_len(), start: key.timestamp().saturating_sub(1) }
    }

    /// Whether a record behind it is of the same cell.
    fn hides(&self, key: KeyView<'_>) -> bool {
        self.key.starts_with(key.cell_prefix())
    }

    fn write(&self, writer: &mut SstWriter) -> Result<()> {
        let key = KeyView::from_parts(&self.key, self.row_len)?;
        writer.add(key, &self.start.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::BackupId;
    use crate::cell::{FamilyId, Mutation, row_prefix};
    use crate::io::{Files as _, MemoryFiles};

    #[test]
    fn what_takes_the_place_of_a_lost_value_counts_as_a_deletion_by_a_client() {
        let (files, path) = (MemoryFiles::new(), Path::new("/1.sst"));
        let mut key = row_prefix(b"row");
        let row_len = key.len();
        let (family, qualifier, value) = (FamilyId(1), Bytes::new(), Bytes::new());
        let put = Mutation::Put { family, qualifier, timestamp: 1_000, value };
        put.encode_after_row(7, &mut key);
        let options = sst_options(&EngineOptions::default(), 0);
        let mut writer = SstWriter::new(files.create(path).unwrap(), path, 1, options, 0);
        Burial::of(KeyView::from_parts(&key, row_len).unwrap()).write(&mut writer).unwrap();
        let properties = writer.finish().unwrap().properties;
        assert_eq!((properties.cell_tombstones, properties.deletion_seq_min), (1, 7));
    }

    #[test]
    fn of_a_lost_piece_the_rows_are_named_that_somebody_shows_and_who() {
        let lost = |from: &'static str, to: &'static str| Lost {
            offset: 0,
            bytes: 1,
            records: 1,
            from_row: from.into(),
            to_row: to.into(),
            error: crate::Error::corruption("file", 0, "damaged"),
        };
        let (tablet, backup) = (Holder::Tablet(TabletId(1)), Holder::Backup(BackupId(2)));
        let shown = |by, start: &'static str, end: &'static str| Shown {
            rows: RowRange::new(start, end),
            by,
        };
        for (shown, want) in [
            (vec![], None),
            (vec![shown(tablet, "", "")], Some((tablet, "d", "k"))),
            (vec![shown(tablet, "", "d"), shown(backup, "kk", "")], None),
            (vec![shown(tablet, "", "da")], Some((tablet, "d", "da"))),
            (vec![shown(tablet, "k", "")], Some((tablet, "k", "k"))),
            (vec![shown(tablet, "x", ""), shown(backup, "", "")], Some((backup, "d", "k"))),
            (
                vec![shown(backup, "h", "i"), shown(tablet, "e", "f"), shown(tablet, "x", "z")],
                Some((backup, "e", "i")),
            ),
        ] {
            let rows = missed(&lost("d", "k"), &shown);
            let want = want.map(|(by, from, to)| (by, Bytes::from(from), Bytes::from(to)));
            assert_eq!(rows, want);
        }
        // A block whose separators do not ascend.
        let rows = missed(&lost("k", "d"), &[shown(tablet, "", "b")]);
        assert_eq!(rows, Some((tablet, "k".into(), "d".into())));
        assert_eq!(missed(&lost("k", "d"), &[]), None);
    }
}

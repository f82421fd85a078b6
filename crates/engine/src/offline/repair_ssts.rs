//! Repairing SSTs: the records of every readable block go into a new SST of the same tablet and level, and one
//! edit of the manifest puts it in the place of the damaged one.
//!
//! ```text
//! copy to lost/ ──► new SST, synced ──► edit: remove old, add new ──► remove the original
//! ```
//!
//! An SST that does not open (its footer, properties or top-level index are damaged) is lost as a whole. One
//! whose filter alone is damaged loses nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::CACHE_BYTES;
use super::check::differences;
use super::repair::{LostRows, Repair, Tablets};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::compaction::job::sst_options;
use crate::error::{ErrorKind, Result};
use crate::manifest::{SstRef, TabletManifest, Version, VersionEdit};
use crate::options::EngineOptions;
use crate::sst::{FileId, Lost, Piece, SstProperties, SstReader, SstWriter};
use crate::tablet::TabletId;

/// What becomes of an SST.
#[derive(Clone)]
enum Fate {
    /// It stays.
    Whole,
    /// It stays; these are its true figures.
    Misdescribed(Described),
    /// It goes; this comes in its place, if anything.
    Replaced(Option<Described>),
}

/// What a manifest says of a file.
#[derive(Clone)]
struct Described {
    id: FileId,
    bytes: u64,
    properties: SstProperties,
}

impl Described {
    /// A reference to the file in the place of `old`.
    fn in_place_of(&self, old: &SstRef) -> SstRef {
        SstRef {
            id: self.id,
            level: old.level,
            visible: old.visible.clone(),
            bytes: self.bytes,
            first_row: self.properties.first_row.clone(),
            last_row: self.properties.last_row.clone(),
            min_seq: self.properties.seq_min,
            max_seq: self.properties.seq_max,
            entries: self.properties.entries,
        }
    }
}

/// What came out of reading all that can be read.
struct Rewritten {
    new: Option<Described>,
    lost: Vec<Lost>,
}

impl Repair<'_> {
    /// Repairs the SSTs of all tablets.
    pub(super) fn ssts(&mut self, tablets: &Tablets) -> Result<()> {
        let mut fates: BTreeMap<FileId, Fate> = BTreeMap::new();
        for (id, version) in tablets {
            if let Some(version) = version {
                self.ssts_of(*id, version, &mut fates)?;
            }
        }
        // Only now: another tablet may have named the same file.
        for (id, fate) in fates {
            let path = self.layout.sst(id);
            if matches!(fate, Fate::Replaced(_)) && self.env.files.exists(&path)? {
                self.remove_copied(&path)?;
            }
        }
        Ok(())
    }

    fn ssts_of(
        &mut self,
        tablet: TabletId,
        version: &Version,
        fates: &mut BTreeMap<FileId, Fate>,
    ) -> Result<()> {
        let mut edit = VersionEdit::default();
        for sst in version.ssts() {
            let fate = match fates.get(&sst.id) {
                Some(fate) => fate.clone(),
                None => {
                    let fate = self.fate(tablet, sst)?;
                    fates.insert(sst.id, fate.clone());
                    fate
                }
            };
            let new = match fate {
                Fate::Whole => continue,
                Fate::Misdescribed(new) => Some(new),
                Fate::Replaced(new) => new,
            };
            // A removal takes every reference to the file in the level.
            if !edit.remove.contains(&(sst.level, sst.id)) {
                edit.remove.push((sst.level, sst.id));
            }
            let new = new.map(|new| new.in_place_of(sst));
            edit.add.extend(new.filter(|new| new.overlaps(version.range())));
        }
        if edit != VersionEdit::default() {
            let dir = self.layout.tablet(tablet);
            let (mut manifest, _) = TabletManifest::open(self.files(), &dir)?;
            manifest.append(&edit)?;
            self.did(format_args!(
                "{}: {} SSTs taken out, {} put in",
                dir.display(),
                edit.remove.len(),
                edit.add.len()
            ));
        }
        Ok(())
    }

    fn fate(&mut self, tablet: TabletId, sst: &SstRef) -> Result<Fate> {
        let files = self.files();
        let path = self.layout.sst(sst.id);
        let whole_file = || Lost {
            offset: 0,
            bytes: sst.bytes,
            records: sst.entries,
            from_row: sst.first_row.clone(),
            to_row: sst.last_row.clone(),
            error: crate::Error::corruption(path.display(), 0, "the file is lost"),
        };
        if !files.exists(&path)? {
            self.lose(tablet, &path, &[whole_file()]);
            return Ok(Fate::Replaced(None));
        }
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(CACHE_BYTES));
        let reader = match SstReader::open(files.as_ref(), &path, sst.id, cache) {
            Ok(reader) => reader,
            Err(error) if error.kind() == ErrorKind::InvalidArgument => return Err(error),
            Err(_) => {
                self.copy_aside(&path)?;
                self.lose(tablet, &path, &[whole_file()]);
                return Ok(Fate::Replaced(None));
            }
        };
        if reader.verify(&mut |_| {}).is_ok() {
            if differences(sst, &reader).is_empty() {
                return Ok(Fate::Whole);
            }
            let properties = reader.properties().clone();
            let described = Described { id: sst.id, bytes: reader.bytes(), properties };
            self.did(format_args!("{}: described anew in its manifest", path.display()));
            return Ok(Fate::Misdescribed(described));
        }
        self.copy_aside(&path)?;
        let Rewritten { new, lost } = self.rewrite(&reader, sst.level)?;
        self.lose(tablet, &path, &lost);
        let kept = new.as_ref().map_or(0, |new| new.properties.entries);
        self.did(format_args!("{}: {kept} records kept in a new SST", path.display()));
        Ok(Fate::Replaced(new))
    }

    fn lose(&mut self, tablet: TabletId, path: &Path, lost: &[Lost]) {
        // With a filter partition no row is lost.
        let rows = lost.iter().filter(|lost| lost.records > 0).map(|lost| LostRows {
            tablet,
            file: path.to_path_buf(),
            bytes: lost.offset..lost.offset + lost.bytes,
            from_row: lost.from_row.clone(),
            to_row: lost.to_row.clone(),
            records: lost.records,
        });
        self.report.lost_rows.extend(rows);
    }

    /// Writes every readable record of `reader` into a new SST.
    fn rewrite(&mut self, reader: &SstReader, level: u8) -> Result<Rewritten> {
        let files = self.files();
        let id = self.next_id;
        self.next_id += 1;
        let path = self.layout.sst(id);
        let options = sst_options(&EngineOptions::default(), level);
        let created = reader.properties().created_micros;
        let mut writer = SstWriter::new(files.create(&path)?, &path, id, options, created);
        let mut lost = Vec::new();
        let mut records: u64 = 0;
        reader.walk(true, &mut |piece| match piece {
            Piece::Record(_, entry) => {
                records += 1;
                writer.add(entry.key, entry.value)
            }
            Piece::Lost(piece) => {
                lost.push(piece);
                Ok(())
            }
            Piece::Partition(_) | Piece::Block(_) | Piece::Filter(..) => Ok(()),
        })?;
        if records == 0 {
            drop(writer);
            files.remove(&path)?;
            return Ok(Rewritten { new: None, lost });
        }
        let summary = writer.finish()?;
        files.sync_dir(&self.layout.ssts())?;
        let new = Described { id, bytes: summary.bytes, properties: summary.properties };
        Ok(Rewritten { new: Some(new), lost })
    }
}

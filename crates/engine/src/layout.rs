//! Where things are in a data directory.
//!
//! ```text
//! DIR/LOCK                               held by the process that serves or repairs the directory
//! DIR/IDENTITY                           format of the directory as a whole, one record
//! DIR/meta/META-<n>                      the meta store: the catalog
//! DIR/log/<n>.log                        segments of the commit log
//! DIR/changes/<n>-<first>-<last>.chg     what change streams need of segments that are gone
//! DIR/tablets/<tablet>/MANIFEST-<n>      one manifest per tablet; the first is made as MANIFEST-<n>.new
//! DIR/sst/<file>.sst                     SSTs of all tablets; names are unique for ever
//! DIR/values/<file>.val                  value files of all tablets, numbered like SSTs
//! DIR/backups/BACKUP-<n>                 one file per backup, written once
//! DIR/lost/                              what `tepui repair` set aside
//! DIR/REPAIR                             empty; while a repair is under way, and after one that did not come to its end
//! ```
//! Numbers are 16 hex digits, so that name order is number order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::backup::BackupId;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::log::segment::parse_segment_name;
use crate::sst::FileId;
use crate::tablet::TabletId;

/// Before the number in the name of a backup.
pub(crate) const BACKUP_PREFIX: &str = "BACKUP-";

/// Paths within one data directory.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout of `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.root.join("LOCK")
    }

    /// The file that says which format the directory has.
    pub fn identity(&self) -> PathBuf {
        self.root.join("IDENTITY")
    }

    /// What is there while a repair is under way.
    pub fn repair(&self) -> PathBuf {
        self.root.join("REPAIR")
    }

    /// That a repair did not come to its end, if it did not: by then nothing may name files that it had yet to set aside.
    pub(crate) fn unfinished_repair(&self, files: &dyn Files) -> Result<Option<Error>> {
        let path = self.repair();
        let what = "a repair of this directory was interrupted: run `tepui repair` to its end. (Without this file a server starts with \
                    what is there, and removes what the repair had yet to set aside)";
        Ok(files.exists(&path)?.then(|| Error::corruption(path.display(), 0, what)))
    }

    /// The meta store's directory.
    pub fn meta(&self) -> PathBuf {
        self.root.join("meta")
    }

    /// The commit log's directory.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The directory of change files.
    pub fn changes(&self) -> PathBuf {
        self.root.join("changes")
    }

    /// The directory of all tablets' directories.
    pub fn tablets(&self) -> PathBuf {
        self.root.join("tablets")
    }

    /// A tablet's directory.
    pub fn tablet(&self, id: TabletId) -> PathBuf {
        self.tablets().join(format!("{:016x}", id.0))
    }

    /// The directory of SSTs.
    pub fn ssts(&self) -> PathBuf {
        self.root.join("sst")
    }

    /// An SST.
    pub fn sst(&self, id: FileId) -> PathBuf {
        self.ssts().join(format!("{id:016x}.sst"))
    }

    /// The SSTs that are there.
    pub(crate) fn ssts_there(&self, files: &dyn Files) -> Result<BTreeSet<FileId>> {
        numbers(files, &self.ssts(), ".sst")
    }

    /// The value files that are there.
    pub(crate) fn values_there(&self, files: &dyn Files) -> Result<BTreeSet<FileId>> {
        numbers(files, &self.values(), ".val")
    }

    /// The directory of value files.
    pub fn values(&self) -> PathBuf {
        self.root.join("values")
    }

    /// A value file.
    pub fn value(&self, id: FileId) -> PathBuf {
        self.values().join(format!("{id:016x}.val"))
    }

    /// The directory of backups.
    pub fn backups(&self) -> PathBuf {
        self.root.join("backups")
    }

    /// A backup.
    pub fn backup(&self, id: BackupId) -> PathBuf {
        self.backups().join(format!("{BACKUP_PREFIX}{:016x}", id.0))
    }

    /// Something that is made only once there is a catalog: a tablet, an SST, a value file, a backup or a segment of the
    /// log. `None` in a directory whose first start was not finished.
    pub(crate) fn first_data(&self, files: &dyn Files) -> Result<Option<PathBuf>> {
        Ok(self.data_beside_log(files)?.or(self.first_segment(files)?))
    }

    /// The same without the log.
    fn data_beside_log(&self, files: &dyn Files) -> Result<Option<PathBuf>> {
        type Made = fn(&str) -> bool;
        let parts: [(PathBuf, Made); 4] = [
            (self.tablets(), |name| parse_number(name, "", "").is_some()),
            (self.ssts(), |name| parse_number(name, "", ".sst").is_some()),
            (self.values(), |name| parse_number(name, "", ".val").is_some()),
            (self.backups(), |name| parse_number(name, BACKUP_PREFIX, "").is_some()),
        ];
        for (dir, is_made) in parts {
            if let Some(path) = first_of(files, &dir, is_made)? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// A segment of the log, if there is one.
    pub(crate) fn first_segment(&self, files: &dyn Files) -> Result<Option<PathBuf>> {
        first_of(files, &self.log(), |name| parse_segment_name(name).is_some())
    }

    /// That the log is gone, if it is: data beside it is made only once there is a segment, a segment goes only when the next is
    /// durable, and the last stays when a server ends. What was written since the last flushes is lost with it.
    pub(crate) fn lost_log(&self, files: &dyn Files) -> Result<Option<Error>> {
        if self.first_segment(files)?.is_some() {
            return Ok(None);
        }
        let lost = |data: PathBuf| {
            let message = format!(
                "{}: the log is missing, but there is {}: what was written since the last flushes was in it. Nothing was removed: \
                 restore the directory, or run `tepui repair` on it to go on without these writes",
                self.log().display(),
                data.display()
            );
            Error::new(ErrorKind::Corruption, message)
        };
        Ok(self.data_beside_log(files)?.map(lost))
    }

    /// Where repair puts what it could not keep.
    pub fn lost(&self) -> PathBuf {
        self.root.join("lost")
    }
}

/// The first file of a directory that is there, by its name.
fn first_of(files: &dyn Files, dir: &Path, is_it: fn(&str) -> bool) -> Result<Option<PathBuf>> {
    if !files.exists(dir)? {
        return Ok(None);
    }
    let found = files.list(dir)?.into_iter().find(|entry| is_it(&entry.name));
    Ok(found.map(|entry| dir.join(entry.name)))
}

/// The numbers of the files of a directory that end so, in their order.
fn numbers(files: &dyn Files, dir: &Path, suffix: &str) -> Result<BTreeSet<u64>> {
    let entries = files.list(dir)?;
    Ok(entries.iter().filter_map(|entry| parse_number(&entry.name, "", suffix)).collect())
}

/// The number of a file named `<prefix><16 hex digits><suffix>`.
pub fn parse_number(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    // Neither signs nor capitals: a number has one name.
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 16 || !digits.bytes().all(is_digit) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_through_names() {
        let layout = Layout::new(Path::new("/d"));
        let path = layout.sst(0xAB);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(name, "00000000000000ab.sst");
        assert_eq!(parse_number(name, "", ".sst"), Some(0xAB));
        assert_eq!(parse_number("ab.sst", "", ".sst"), None);
        assert_eq!(parse_number("00000000000000ab.tmp", "", ".sst"), None);
        for stranger in ["00000000000000AB.sst", "+0000000000000ab.sst", "é00000000000000.sst"] {
            assert_eq!(parse_number(stranger, "", ".sst"), None, "{stranger}");
        }
    }
}

//! Giving the space of a large file back in pieces.
//!
//! A file system that tells its device at once which blocks are free (`discard`) does so for a whole file when it is removed, and the
//! device serves nobody until it is done: 50 ms for a file of 60 MiB where this was measured, in which no write was synced and no row
//! read. So a large file is cut first, from its end:
//!
//! ```text
//! open ─► remove the name ─► sync the directory ─► nobody else has it? ─► cut, cut, ... ─► close
//!         Files::remove_large  (the caller)        └ somebody has: its space comes back when the last one closes it
//! ```
//!
//! Guarantees: a file is cut only while no name leads to it and nobody else has it open, neither here nor in another process. Where the
//! caller syncs the directory before, the name does not come back after a crash, and no restart meets a file that was cut. What goes
//! wrong after the name is gone changes nothing: the system gives the space back by itself.
//!
//! Where a journal collects what is to be trimmed, it may still be one piece for the device.

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the file seam")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Bytes that are given back at a time: a millisecond of the device above. Fewer, and a file of the largest size would be thousands of
/// system calls.
const PIECE_BYTES: u64 = 1 << 20;

/// Bytes of a file that is worth more than one piece: below, it takes no longer than a write of the log.
const LARGE_BYTES: u64 = 4 << 20;

/// A file whose name is gone. A large one still has its space: it comes back when this is dropped, or, piece by piece, before.
#[derive(Debug, Default)]
#[must_use = "the directory is to be synced, and then its space given back"]
pub struct Removed(Option<File>);

impl Removed {
    /// The length of the file, also once this is gone.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> impl Fn() -> u64 + use<> {
        let file = self.0.as_ref().expect("a large file").try_clone().unwrap();
        move || file.metadata().unwrap().len()
    }

    /// Whether it has space that can be given back in pieces.
    pub fn is_large(&self) -> bool {
        self.0.is_some()
    }

    /// Gives its space back, so that others have the device meanwhile. Called once the directory is synced.
    pub fn give_back(self) {
        if let Some(file) = &self.0 {
            // Where it cannot be cut, it goes as a whole.
            let _ = cut(file);
        }
    }
}

/// `fcntl`'s command for the signal of a lease; Linux has the same number on all machines.
#[cfg(target_os = "linux")]
const F_SETSIG: libc::c_int = 10;

/// Removes the name of a file.
pub(super) fn remove(path: &Path) -> io::Result<Removed> {
    let is_large = fs::metadata(path).is_ok_and(|meta| meta.len() > LARGE_BYTES);
    let file = if is_large { OpenOptions::new().write(true).open(path).ok() } else { None };
    fs::remove_file(path)?;
    Ok(Removed(file))
}

/// Cuts a file to nothing, if it is nobody's.
fn cut(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.nlink() > 0 || !has_one_opener(file) {
        return Ok(());
    }
    lengths(meta.len()).try_for_each(|len| file.set_len(len))
}

/// What is left of a file of `len` bytes after each cut.
fn lengths(len: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(len), |len| Some(len.saturating_sub(PIECE_BYTES)))
        .skip(1)
        .take(usize::try_from(len.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX))
}

/// Whether a file, which is open for writing here, is open nowhere else: only then does the system lease it. The lease is given back at
/// once: a file without a name is opened by hardly anybody any more (through `/proc`, or by who found the name just before). Who does in
/// that moment has a signal sent that is ignored, in place of one that ends the process.
#[cfg(target_os = "linux")]
fn has_one_opener(file: &File) -> bool {
    use std::os::fd::AsRawFd as _;

    let set = |what: libc::c_int, value: libc::c_int| {
        // SAFETY: the descriptor is open, and this changes nothing but its lease and the signal that tells of one.
        unsafe { libc::fcntl(file.as_raw_fd(), what, value) == 0 }
    };
    set(F_SETSIG, libc::SIGURG)
        && set(libc::F_SETLEASE, libc::F_WRLCK)
        && set(libc::F_SETLEASE, libc::F_UNLCK)
}

/// Nobody says.
#[cfg(not(target_os = "linux"))]
fn has_one_opener(_file: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn file_of(dir: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
        let path = dir.path().join("large");
        fs::write(&path, vec![7; usize::try_from(bytes).unwrap()]).unwrap();
        path
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_nobody_has_is_cut_to_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_of(&dir, LARGE_BYTES + 5);
        let removed = remove(&path).unwrap();
        assert!(removed.is_large() && !path.exists());
        let len = removed.watch();
        assert_eq!(len(), LARGE_BYTES + 5);
        removed.give_back();
        assert_eq!(len(), 0);
    }

    #[test]
    fn a_file_is_cut_a_piece_at_a_time_from_its_end() {
        let left = |len| lengths(len).collect::<Vec<_>>();
        assert!(left(0).is_empty());
        assert_eq!(left(5), [0]);
        assert_eq!(left(2 * PIECE_BYTES), [PIECE_BYTES, 0]);
        assert_eq!(left(2 * PIECE_BYTES + 1), [PIECE_BYTES + 1, 1, 0]);
    }

    #[test]
    fn who_reads_a_file_that_is_removed_reads_all_of_it() {
        for bytes in [5, LARGE_BYTES, LARGE_BYTES + 1] {
            let dir = tempfile::tempdir().unwrap();
            let path = file_of(&dir, bytes);
            let reader = File::open(&path).unwrap();
            remove(&path).unwrap().give_back();
            assert!(!path.exists());
            let mut last = [0; 1];
            reader.read_exact_at(&mut last, bytes - 1).unwrap();
            assert_eq!((last, reader.metadata().unwrap().len()), ([7], bytes));
        }
    }

    #[test]
    fn a_file_with_another_name_stays_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_of(&dir, 2 * LARGE_BYTES);
        let other = dir.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        remove(&path).unwrap().give_back();
        assert!(!path.exists());
        assert_eq!(fs::metadata(&other).unwrap().len(), 2 * LARGE_BYTES);
    }

    #[test]
    fn what_cannot_be_removed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = remove(&dir.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        fs::create_dir(dir.path().join("dir")).unwrap();
        assert!(remove(&dir.path().join("dir")).is_err());
    }
}

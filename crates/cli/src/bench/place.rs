//! Where the data of a benchmark is: a directory that somebody named, or one that goes with the benchmark.

use std::path::{Path, PathBuf};

use tepui_bench::{Error, Result};

/// A directory: kept, or gone with this value.
pub struct Place {
    dir: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Place {
    /// The directory that was named, or a temporary one under the current one.
    pub fn of(named: Option<&Path>) -> Result<Self> {
        if let Some(dir) = named {
            return Ok(Self { dir: dir.to_owned(), _temporary: None });
        }
        // Not the system's directory for temporary files: that is often in memory, and a disk is measured.
        let temporary = tempfile::Builder::new()
            .prefix("tepui-bench-")
            .tempdir_in(".")
            .map_err(|error| Error::failed(format!("a directory for the data: {error}")))?;
        Ok(Self { dir: temporary.path().to_owned(), _temporary: Some(temporary) })
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

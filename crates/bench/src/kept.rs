//! Data that is kept from one run to the next: a note beside it says what it holds.
//!
//! `DIR/<name>.json` is written before the load without `complete` and again after it with, so that what an
//! interrupted load left is loaded anew and what is somebody else's is never touched. So it is around writes that are
//! measured: what those leave has another shape until it has settled. Where the program that writes the data is itself what
//! is measured, what another build of it wrote is loaded anew too.

use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::error::{Error, Result};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    dataset: Dataset,
    /// What else of the store's settings is in its files, as text.
    format: String,
    /// The build that wrote it, where that matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    build: Option<String>,
    complete: bool,
}

/// The place of one store's data in a directory.
#[derive(Debug)]
pub struct Kept {
    note: PathBuf,
    data: PathBuf,
    dataset: Dataset,
    format: String,
    build: Option<String>,
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The data set, loaded and settled.
    Complete,
    /// Nothing: to be loaded.
    Empty,
}

fn io(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("{what} {}: {error}", path.display()))
}

impl Kept {
    /// The place of store `name` in `dir`, for a data set written in a format.
    pub fn new(dir: &Path, name: &str, dataset: &Dataset, format: &str) -> Self {
        Self {
            note: dir.join(format!("{name}.json")),
            data: dir.join(name),
            dataset: *dataset,
            format: format.to_owned(),
            build: None,
        }
    }

    /// The same, for data of one build alone: that of another is loaded anew.
    #[must_use]
    pub fn of_build(mut self, build: &str) -> Self {
        self.build = Some(build.to_owned());
        self
    }

    /// The directory of the store's files.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Looks at what is there and makes room for what is not. An error where the place holds another data set,
    /// or something that no benchmark wrote.
    #[expect(
        clippy::disallowed_methods,
        reason = "the directory is the benchmark's, outside of any engine"
    )]
    pub fn prepare(&self) -> Result<State> {
        if let Some(dir) = self.note.parent() {
            std::fs::create_dir_all(dir).map_err(|e| io("create", dir, &e))?;
        }
        let expected = self.contents(true);
        match std::fs::read_to_string(&self.note) {
            Ok(text) => {
                let found: Note = serde_json::from_str(&text)
                    .map_err(|error| Error::failed(format!("{}: {error}", self.note.display())))?;
                if found == expected {
                    return Ok(State::Complete);
                }
                // Another build may have another format.
                let another_build = expected.build.is_some() && found.build != expected.build;
                let same_format = another_build || found.format == expected.format;
                if found.complete && !(found.dataset == expected.dataset && same_format) {
                    return Err(Error::occupied(format!(
                        "{} holds other data ({}); name another directory, or remove this one",
                        self.data.display(),
                        text.split_whitespace().collect::<Vec<_>>().join(" ")
                    )));
                }
                // Left by a load, or by writes, that did not come to their end, or by another build.
                self.remove()?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if self.data.exists() {
                    return Err(Error::occupied(format!(
                        "{} exists and no benchmark wrote it: name another directory",
                        self.data.display()
                    )));
                }
            }
            Err(error) => return Err(io("read", &self.note, &error)),
        }
        self.write(&self.contents(false))?;
        Ok(State::Empty)
    }

    /// Makes room for rows that are measured as a load leaves them, and that never are complete. An error where the place
    /// holds complete ones: they took a load, and somebody kept them.
    pub fn prepare_anew(&self) -> Result<()> {
        match self.prepare()? {
            State::Empty => Ok(()),
            State::Complete => Err(Error::occupied(format!(
                "{} holds rows that have settled; name another directory, or remove this one",
                self.data.display()
            ))),
        }
    }

    /// Notes that writes begin, after which it is not settled until it is [complete](Kept::complete) again.
    pub fn changing(&self) -> Result<()> {
        self.write(&self.contents(false))
    }

    /// Notes that the data set is loaded and settled.
    pub fn complete(&self) -> Result<()> {
        self.write(&self.contents(true))
    }

    /// Removes the data and the note.
    #[expect(
        clippy::disallowed_methods,
        reason = "the directory is the benchmark's, outside of any engine"
    )]
    pub fn remove(&self) -> Result<()> {
        if self.data.exists() {
            std::fs::remove_dir_all(&self.data).map_err(|e| io("remove", &self.data, &e))?;
        }
        match std::fs::remove_file(&self.note) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io("remove", &self.note, &error))
            }
            _ => Ok(()),
        }
    }

    fn contents(&self, complete: bool) -> Note {
        let (format, build) = (self.format.clone(), self.build.clone());
        Note { dataset: self.dataset, format, build, complete }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the directory is the benchmark's, outside of any engine"
    )]
    fn write(&self, note: &Note) -> Result<()> {
        let text = serde_json::to_string_pretty(note)
            .map_err(|error| Error::failed(format!("JSON: {error}")))?;
        std::fs::write(&self.note, text).map_err(|e| io("write", &self.note, &e))
    }
}

/// What tells the build of this program from others: a hash of its file.
#[expect(clippy::disallowed_methods, reason = "the program's own file, outside of any engine")]
pub fn this_build() -> Result<String> {
    let path = std::env::current_exe().map_err(|e| io("find", Path::new("own path"), &e))?;
    let program = std::fs::read(&path).map_err(|e| io("read", &path, &e))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&program);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test that makes files")]

    use super::*;
    use crate::error::ErrorKind;

    fn dataset(seed: u64) -> Dataset {
        Dataset { rows: 10, key_bytes: 50, columns: 1, value_bytes: 10, seed }
    }

    #[test]
    fn a_complete_load_is_found_again_and_a_torn_one_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(dir.path(), "s", &dataset(1), "f");
        assert_eq!(kept.prepare().unwrap(), State::Empty);
        std::fs::create_dir(kept.data()).unwrap();
        std::fs::write(kept.data().join("half"), "x").unwrap();
        assert_eq!(kept.prepare().unwrap(), State::Empty);
        assert!(!kept.data().exists(), "what the torn load left is gone");
        std::fs::create_dir(kept.data()).unwrap();
        kept.complete().unwrap();
        assert_eq!(kept.prepare().unwrap(), State::Complete);
        kept.changing().unwrap();
        kept.complete().unwrap();
        assert_eq!(kept.prepare().unwrap(), State::Complete);
        kept.changing().unwrap();
        assert_eq!(kept.prepare().unwrap(), State::Empty, "writes were interrupted");
        kept.complete().unwrap();
        kept.remove().unwrap();
        assert_eq!(kept.prepare().unwrap(), State::Empty);
    }

    #[test]
    fn what_another_build_wrote_is_loaded_anew_and_other_rows_are_still_refused() {
        let dir = tempfile::tempdir().unwrap();
        let of = |build: &str, seed| {
            Kept::new(dir.path(), "s", &dataset(seed), &format!("f{build}")).of_build(build)
        };
        // Notes of programs that knew of no builds count as those of another.
        let earlier = Kept::new(dir.path(), "s", &dataset(1), "f");
        earlier.prepare().unwrap();
        std::fs::create_dir(earlier.data()).unwrap();
        earlier.complete().unwrap();
        for build in ["a", "b"] {
            let kept = of(build, 1);
            assert_eq!(kept.prepare().unwrap(), State::Empty);
            assert!(!kept.data().exists());
            std::fs::create_dir(kept.data()).unwrap();
            kept.complete().unwrap();
            assert_eq!(kept.prepare().unwrap(), State::Complete);
        }
        assert_eq!(of("c", 2).prepare().unwrap_err().kind(), ErrorKind::Occupied);
        assert_eq!(this_build().unwrap(), this_build().unwrap());
    }

    #[test]
    fn other_data_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(dir.path(), "s", &dataset(1), "f");
        kept.prepare().unwrap();
        std::fs::create_dir(kept.data()).unwrap();
        kept.complete().unwrap();
        for (seed, format) in [(2, "f"), (1, "g")] {
            let other = Kept::new(dir.path(), "s", &dataset(seed), format);
            let refused = other.prepare().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Occupied);
            assert!(refused.to_string().contains("holds other data"));
        }
        std::fs::create_dir(dir.path().join("t")).unwrap();
        let stranger = Kept::new(dir.path(), "t", &dataset(1), "f");
        assert!(stranger.prepare().unwrap_err().to_string().contains("no benchmark wrote it"));
        assert!(kept.data().exists() && stranger.data().exists());
    }
}

//! The files that a report is written to, besides what is shown of it.

use std::fmt::Display;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// Refuses a file that cannot be written: hours later would be late to learn that. One that is there stays as it is, and none is left
/// where there was none.
#[expect(clippy::disallowed_methods, reason = "a report for a person, not the engine's data")]
#[expect(clippy::disallowed_types, reason = "a report for a person, not the engine's data")]
pub fn check_writable(file: &Path) -> Result<()> {
    let cannot =
        |why: &dyn Display| Error::failed(format!("cannot write {}: {why}", file.display()));
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if file.is_dir() || !parent.is_dir() {
        return Err(cannot(&"no such directory"));
    }
    // Who reads a pipe would take the end of this look at it for the report's.
    let is_there = file.exists();
    if is_there && !file.is_file() {
        return Ok(());
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| cannot(&error))?;
    if is_there {
        return Ok(());
    }
    // Not a link that led to it.
    let removed = file.canonicalize().and_then(std::fs::remove_file);
    removed.map_err(|error| cannot(&error))
}

/// Writes a file of a report.
#[expect(clippy::disallowed_methods, reason = "a report for a person, not the engine's data")]
pub fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text)
        .map_err(|error| Error::failed(format!("cannot write {}: {error}", file.display())))
}

/// The files that a program of bars writes its report to.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    json: Option<&'a Path>,
    markdown: Option<&'a Path>,
}

impl<'a> Files<'a> {
    /// Those that were asked for. An error where one of them cannot be written.
    pub fn new(json: Option<&'a Path>, markdown: Option<&'a Path>) -> Result<Self> {
        json.into_iter().chain(markdown).try_for_each(check_writable)?;
        Ok(Self { json, markdown })
    }

    /// Writes them; where one cannot be written the other one is all the same.
    pub fn write(&self, report: &impl Serialize, markdown: &str) -> Result<()> {
        let json = self.json.map_or(Ok(()), |file| {
            let text = serde_json::to_string_pretty(report)
                .map_err(|error| Error::failed(format!("the report as JSON: {error}")))?;
            write(file, &text)
        });
        let markdown = self.markdown.map_or(Ok(()), |file| write(file, markdown));
        json.and(markdown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test that makes files")]

    use super::*;

    #[test]
    fn a_file_in_a_directory_that_is_not_there_is_refused_before_anything_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("r.json"), dir.path().join("none/r.json"));
        assert!(Files::new(Some(&good), None).is_ok());
        for (json, markdown) in
            [(Some(&*bad), None), (Some(&*good), Some(&*bad)), (None, Some(dir.path()))]
        {
            let error = Files::new(json, markdown).unwrap_err().to_string();
            assert!(error.starts_with("cannot write"), "{error}");
        }
        assert!(!good.exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_and_one_that_can_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("there"), "earlier").unwrap();
        check_writable(&at("there")).unwrap();
        assert_eq!(std::fs::read_to_string(at("there")).unwrap(), "earlier");
        // Not even who may write everything can write these.
        std::os::unix::fs::symlink(at("none/elsewhere"), at("link")).unwrap();
        for name in ["x".repeat(300), "link".to_owned()] {
            let error = check_writable(&at(&name)).unwrap_err().to_string();
            assert!(error.starts_with("cannot write"), "{error}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_becomes_of_one_file_is_nothing_to_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let (json, markdown) = (place.join("r.json"), dir.path().join("r.md"));
        let files = Files::new(Some(&json), Some(&markdown)).unwrap();
        std::fs::remove_dir(&place).unwrap();
        let error = files.write(&[1], "| a |\n").unwrap_err().to_string();
        assert!(error.contains("r.json"), "{error}");
        assert_eq!(std::fs::read_to_string(&markdown).unwrap(), "| a |\n");
    }
}

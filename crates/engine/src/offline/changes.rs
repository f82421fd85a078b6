//! Change files, checked and repaired: every block verifies, is decoded, and is what the index and the name say.

use std::fmt;

use super::repair::Repair;
use super::{CheckReport, Finding};
use crate::changes::file::{self, ChangeFile, OpenChangeFile};
use crate::changes::horizon_name;
use crate::error::{Error, Result};
use crate::io::Files;
use crate::layout::Layout;

/// Checks the change files of a directory; `progress` gets the bytes done.
pub(super) fn check(
    files: &dyn Files,
    layout: &Layout,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let dir = layout.changes();
    let (found, unfinished) = file::list(files, &dir)?;
    for path in unfinished {
        report.notes.push(Finding::damage(
            &path,
            "was never completed, or was written again; a start removes it",
        ));
    }
    let mut done = 0;
    for file in found {
        report.change_files += 1;
        if let Err(error) = verify(files, layout, &file) {
            report.damage.push(Finding::new(&dir.join(file.name()), error));
        }
        done += file.bytes;
        progress(done);
    }
    Ok(())
}

fn verify(files: &dyn Files, layout: &Layout, file: &ChangeFile) -> Result<()> {
    let path = layout.changes().join(file.name());
    let opened = OpenChangeFile::open(files, &path, file.segment)?;
    let wrong = |offset, what: &dyn fmt::Display| Error::corruption(path.display(), offset, what);
    let mut seqs = (u64::MAX, 0);
    for block in opened.blocks() {
        let mut last = None;
        for change in opened.changes(block)? {
            if last.is_some_and(|last| change.first_seq <= last) {
                return Err(wrong(block.offset, &"sequences do not ascend"));
            }
            last = Some(change.last_seq);
        }
        seqs = (seqs.0.min(block.first_seq), seqs.1.max(block.last_seq));
    }
    if seqs == (file.first_seq, file.last_seq) {
        return Ok(());
    }
    Err(wrong(0, &"the sequences in it are not those of its name"))
}

impl Repair<'_> {
    /// Sets damaged change files aside. What they held is still in the tables; only streams of changes miss it, and are told.
    pub(super) fn changes(&mut self) -> Result<()> {
        let (files, dir) = (self.files(), self.layout.changes());
        for file in file::list(files.as_ref(), &dir)?.0 {
            if verify(files.as_ref(), self.layout, &file).is_ok() {
                continue;
            }
            let path = dir.join(file.name());
            // First: a stream that reads over the gap must not take it for silence.
            let horizon = dir.join(horizon_name(file.last_seq));
            if !files.exists(&horizon)? {
                files.create(&horizon)?.sync()?;
                files.sync_dir(&dir)?;
            }
            self.move_aside(&path)?;
            self.report.lost.push(format!(
                "{}: changes that streams may still have wanted; those that were to read them are told to begin anew",
                path.display()
            ));
        }
        Ok(())
    }
}

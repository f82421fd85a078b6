//! Change files, checked and repaired: every block verifies, is decoded, and is what the index and the name say.

use std::fmt;
use std::path::Path;

use super::repair::{Repair, is_damage};
use super::{CheckReport, Finding};
use crate::cell::Seq;
use crate::changes::file::{self, ChangeFile, OpenChangeFile};
use crate::changes::present::Missing;
use crate::changes::{horizon_name, position_before, present};
use crate::error::{Error, Result};
use crate::io::Files;
use crate::layout::Layout;
use crate::log::{self, repair::Lost};

/// The time that one number of the clock stands for, in microseconds.
const MILLI_MICROS: i64 = 1_000;

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
    match present::missing(files, &dir) {
        Ok(missing) => {
            let found = missing.iter().map(|missing| Finding::new(&missing.path, missing.error()));
            report.damage.extend(found);
        }
        Err(error) => report.damage.push(Finding::new(&dir.join(present::NAME), error)),
    }
    let mut done = 0;
    for file in found {
        report.change_files += 1;
        if let Err(error) = verify(files, layout, &file) {
            let path = dir.join(file.name());
            let newer = is_damage(&error).then(|| file::newer_record(files, &path, file.segment));
            report.damage.push(Finding::new(&path, error));
            report.damage.extend(newer.flatten().map(|error| Finding::new(&path, error)));
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
    /// Sets damaged change files aside, and goes on without those that are missing. What they held is still in the tables; only streams of
    /// changes miss it, and are told.
    pub(super) fn changes(&mut self) -> Result<()> {
        let (files, dir) = (self.files(), self.layout.changes());
        self.missing_changes()?;
        for file in file::list(files.as_ref(), &dir)?.0 {
            let path = dir.join(file.name());
            match verify(files.as_ref(), self.layout, &file) {
                Ok(()) => continue,
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) => {}
            }
            // Of what is behind the damage nothing else counts: it is not kept.
            if let Some(newer) = file::newer_record(files.as_ref(), &path, file.segment) {
                return Err(newer);
            }
            // First: a stream that reads over the gap must not take it for silence.
            self.raise_horizon(file.last_seq)?;
            self.move_aside(&path)?;
            self.report.lost.push(format!(
                "{}: changes that streams may still have wanted; those that were to read them are told to begin anew",
                path.display()
            ));
        }
        Ok(())
    }

    /// The list of what there is to be: what is missing is told to streams, and one that cannot be read is set aside; the next start
    /// writes another.
    fn missing_changes(&mut self) -> Result<()> {
        let (files, dir) = (self.files(), self.layout.changes());
        let missing = match present::missing(files.as_ref(), &dir) {
            Ok(missing) => missing,
            Err(error) if !is_damage(&error) => return Err(error),
            Err(_) => {
                let list = dir.join(present::NAME);
                self.move_aside(&list)?;
                self.report.lost.push(format!(
                    "{}: which change files there were: where one is missing, streams that were to read it are not told",
                    list.display()
                ));
                return Ok(());
            }
        };
        for Missing { path, seq, had_changes } in missing {
            if had_changes {
                self.raise_horizon(seq)?;
                self.report.lost.push(format!(
                    "{}: the file is missing: changes that streams may still have wanted; those that were to read them are told to \
                     begin anew",
                    path.display()
                ));
            } else {
                // It is empty: its name is all that it said.
                self.make_horizon(&path)?;
                self.did(format_args!("{}: made again", path.display()));
            }
        }
        Ok(())
    }

    /// What is lost from the log is lost to streams of changes, too: they are told, before the repair of the log
    /// closes the gap.
    pub(super) fn tell_streams_of_the_log(&mut self) -> Result<()> {
        let last = match log::repair::lost(self.env.files.as_ref(), &self.layout.log())? {
            Lost::Nothing => return Ok(()),
            Lost::UpTo(seq) => seq,
            // Nothing in the log tells how far the numbers went; but they were handed out by the clock.
            Lost::After(seq) => {
                let now = self.env.clock.now_micros().saturating_add(MILLI_MICROS);
                seq.max(position_before(now)).max(self.next_id)
            }
        };
        self.raise_horizon(last)?;
        self.did(format_args!(
            "{}: streams of changes that were to read what the log lost are told to begin anew",
            self.layout.changes().display()
        ));
        Ok(())
    }

    /// An empty log in the place of one that is gone; it goes on behind the segments of change files, as a start does, and behind those
    /// that were there: no number is used again.
    pub(super) fn begin_log(&mut self) -> Result<()> {
        let (files, dir) = (self.files(), self.layout.log());
        let (kept, _) = file::list(files.as_ref(), &self.layout.changes())?;
        let kept = kept.iter().map(|file| file.segment);
        let listed = log::present::missing_as_told(files.as_ref(), &dir)?;
        let newest = listed.into_iter().map(|(id, _)| id).chain(kept).max().unwrap_or(0);
        log::repair::begin(files.as_ref(), &dir, newest.saturating_add(1))?;
        let dir = dir.display();
        self.did(format_args!("{dir}: begun anew, with an empty segment"));
        self.report.lost.push(format!("{dir}: what was written since the last flushes"));
        Ok(())
    }

    /// Durably says that changes up to `seq` are not here any more. Of several that say so, the furthest counts.
    fn raise_horizon(&self, seq: Seq) -> Result<()> {
        self.make_horizon(&self.layout.changes().join(horizon_name(seq)))
    }

    fn make_horizon(&self, path: &Path) -> Result<()> {
        let files = self.env.files.as_ref();
        if !files.exists(path)? {
            files.create(path)?.sync()?;
        }
        files.sync_dir(&self.layout.changes())
    }
}

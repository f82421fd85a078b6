//! Checking the log by the rules of its replay: every record verifies and can be decoded, each segment
//! begins with one opening that agrees with the segment before it, and sequences ascend.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::check::segments;
use super::{CheckReport, Finding, list_files};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::log::present;
use crate::log::record::{Salvage, Tail};
use crate::log::segment::{MAGIC, SegmentReader, SegmentRecord, segment_name, was_never_begun};
use crate::log::{self, LogRecord, decode_record};

/// What a finished segment is known by: its number and its bytes.
type Before = Option<(u64, u64)>;

struct Check<'a> {
    files: &'a dyn Files,
    dir: &'a Path,
    report: &'a mut CheckReport,
    /// Segments that had an opening, durably.
    listed: BTreeSet<u64>,
    /// The last sequence of the log so far.
    last_seq: u64,
}

/// Checks the log in `dir`; `progress` gets the bytes done.
pub(super) fn check(
    files: &dyn Files,
    dir: &Path,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    for (name, _) in list_files(files, dir)? {
        let path = dir.join(&name);
        if name.ends_with(".repair") {
            report.damage.push(Finding::damage(&path, "a repair was interrupted: run it again"));
        } else if log::repair::original_of(&name).is_some() {
            let what = "is what a segment was before a repair that was interrupted; the next moves it to lost/";
            report.notes.push(Finding::damage(&path, what));
        }
    }
    let segments = segments(files, dir)?;
    match present::missing(files, dir) {
        Ok(missing) => {
            let found = missing.into_iter().map(|(_, path)| {
                let error = present::is_missing(&path);
                Finding::new(&path, error)
            });
            report.damage.extend(found);
        }
        // Where there is no log at all, that is told.
        Err(_) if segments.is_empty() => {}
        Err(error) => report.damage.push(Finding::new(&dir.join(present::NAME), error)),
    }
    let listed = present::listed(files, dir).ok().flatten().unwrap_or_default();
    let last = segments.last().map(|(id, _)| *id);
    let mut check = Check { files, dir, report, listed, last_seq: 0 };
    let mut before = None;
    let mut done = 0;
    for (id, bytes) in segments {
        let is_last = Some(id) == last;
        check.report.log_segments += 1;
        before = match check.segment(id, is_last, before, &mut |at| progress(done + at)) {
            Ok(before) => before,
            Err(error) => {
                check.damaged(id, error);
                None
            }
        };
        done += bytes;
        progress(done);
    }
    Ok(())
}

impl Check<'_> {
    fn note(&mut self, path: &Path, what: impl fmt::Display) {
        self.report.notes.push(Finding::damage(path, what));
    }

    fn segment(
        &mut self,
        id: u64,
        is_last: bool,
        before: Before,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Before> {
        let tail = if is_last { Tail::MayBeTorn } else { Tail::Sealed };
        let mut reader = SegmentReader::open(self.files, self.dir, id, tail)?;
        let mut opened = false;
        while let Some(record) = reader.next_record()? {
            self.record(reader.path(), &record, &mut opened, before)?;
            progress(reader.position());
        }
        let path = reader.path().to_path_buf();
        // `next_record` returned `None`, so the reader knows the end.
        let Some(end) = reader.end() else { return Ok(None) };
        if end.torn_bytes > 0 {
            let (bytes, at) = (end.torn_bytes, end.valid_len);
            self.note(
                &path,
                format_args!(
                    "offset {at}: ends with {bytes} bytes of a write that was cut short and not \
                     acknowledged; a start cuts them off"
                ),
            );
        }
        let was_begun = self.listed.contains(&id) || !was_never_begun(reader.file_len());
        if !opened && (!is_last || was_begun) {
            let what = "the segment has no opening, which was durable before the rest";
            return Err(Error::corruption(path.display(), end.valid_len, what));
        }
        Ok(Some((id, end.valid_len)))
    }

    fn record(
        &mut self,
        path: &Path,
        record: &SegmentRecord,
        opened: &mut bool,
        before: Before,
    ) -> Result<()> {
        let wrong = |what: &str| Error::corruption(path.display(), record.offset, what);
        match &record.record {
            LogRecord::Opening { previous, previous_bytes } if !*opened => {
                *opened = true;
                if let Some((id, bytes)) = before
                    && id == *previous
                    && bytes != *previous_bytes
                {
                    let path = self.dir.join(segment_name(id));
                    let what = format!(
                        "the file ends here, but had {previous_bytes} bytes when it was sealed"
                    );
                    let error = Error::corruption(path.display(), bytes, what);
                    self.report.damage.push(Finding::new(&path, error));
                }
                Ok(())
            }
            LogRecord::Batch { first_seq, batch, .. } if *opened => {
                self.report.log_batches += 1;
                if *first_seq <= self.last_seq {
                    let error = wrong("sequences do not ascend");
                    self.report.damage.push(Finding::new(path, error));
                }
                let count = (batch.mutations.len() as u64).max(1);
                self.last_seq = self.last_seq.max(first_seq.saturating_add(count - 1));
                Ok(())
            }
            LogRecord::Marker if *opened => Ok(()),
            _ => Err(wrong("a segment has one opening, and it comes first")),
        }
    }

    /// Tells of the damage that ended the reading of a segment, and of all that lies behind it.
    fn damaged(&mut self, id: u64, error: Error) {
        let path = self.dir.join(segment_name(id));
        let found = error.message().to_owned();
        let newer_told = error.kind() == ErrorKind::InvalidArgument;
        self.report.damage.push(Finding::new(&path, error));
        let (unreadable, newer) = self.unreadable(&path, id).unwrap_or_default();
        let newer = newer.filter(|_| !newer_told);
        self.report.damage.extend(newer.map(|error| Finding::new(&path, error)));
        for range in unreadable {
            let what = format!("{} bytes cannot be read", range.end - range.start);
            let error = Error::corruption(path.display(), range.start, what);
            // The first damage was told above, at the same offset.
            let place = format!("offset {}:", range.start);
            if !found.contains(&place) {
                self.report.damage.push(Finding::new(&path, error));
            }
        }
    }

    /// The ranges of a segment that cannot be read, and the first record that a newer version wrote: it may lie behind damage.
    fn unreadable(&self, path: &Path, id: u64) -> Result<(Vec<Range<u64>>, Option<Error>)> {
        let mut salvage = Salvage::open(self.files.open_left(path)?, MAGIC, id)?;
        let mut newer = None;
        while let Some(record) = salvage.next_record()? {
            let decoded = decode_record(record.payload);
            let error = decoded.err().filter(|error| error.kind() == ErrorKind::InvalidArgument);
            let place = || format!("{}: offset {}", path.display(), record.offset);
            newer = newer.or_else(|| error.map(|error| error.context(place())));
        }
        Ok((salvage.damaged().to_vec(), newer))
    }
}

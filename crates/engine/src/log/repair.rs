//! Repairs a damaged log: keeps every batch that verifies, sets the damaged files aside, and says what
//! was lost.
//!
//! A segment is read with [`Salvage`]; where anything in it is damaged, it is written anew from what
//! verifies, under a temporary name, synced, and put in the place of the old one, which stays beside it as
//! `<name>.damaged`. The openings of later segments are made to agree with the new lengths. A repair
//! that is interrupted leaves a log that can be repaired again. Run it while no server uses the
//! directory.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::batch::{LogRecord, decode_record, encode_marker, encode_opening};
use super::present;
use super::record::{Record, RecordWriter, Salvage};
use super::segment::{
    MAGIC, Predecessor, create_segment, list_segments, parse_segment_name, segment_name,
};
use crate::cell::Seq;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirEntry, Files};

/// Ends the name of a segment that is being written anew.
const REPAIR_SUFFIX: &str = ".repair";

/// What became of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRepair {
    /// Its file.
    pub file: PathBuf,
    /// Batches in it that verify.
    pub batches_kept: u64,
    /// Byte ranges of the old file that belong to no readable record: damage, or a tail torn by a crash.
    pub damaged: Vec<Range<u64>>,
    /// Bytes that are missing at the end of the old file, as far as its successor tells.
    pub missing_bytes: u64,
    /// Where the old file is now, if it was replaced.
    pub set_aside: Option<PathBuf>,
}

/// Repairs the log of a directory; `repairs` gets an entry for every segment, oldest first. After an error it has those of the segments that
/// may have been replaced by then: nobody finds again what they lost. Blocks. `InvalidArgument` where a newer version wrote a record.
pub fn repair(files: &dyn Files, dir: &Path, repairs: &mut Vec<SegmentRepair>) -> Result<()> {
    finish_interrupted(files, dir)?;
    let mut previous: Option<(Predecessor, u64)> = None;
    for (id, _) in list_segments(files, dir)? {
        let path = dir.join(segment_name(id));
        let scan = scan(files, &path, id)?;
        if let (Some((before, old_bytes)), Some(opening)) = (previous, scan.opening)
            && before.id == opening.id
            && let Some(last) = repairs.last_mut()
        {
            last.missing_bytes = opening.bytes.saturating_sub(old_bytes);
        }
        let opening = match (previous, scan.opening) {
            (Some((before, _)), _) => before,
            (None, Some(opening)) => opening,
            (None, None) => Predecessor { id: 0, bytes: 0 },
        };
        // An opening that names a segment which is gone says nothing that could be wrong.
        let agrees = scan.opening.is_some_and(|o| o.id != opening.id || o.bytes == opening.bytes);
        let mut bytes = scan.bytes;
        let is_rewritten = !scan.damaged.is_empty() || !agrees;
        repairs.push(SegmentRepair {
            file: path,
            batches_kept: scan.batches,
            damaged: scan.damaged,
            missing_bytes: 0,
            set_aside: None,
        });
        if is_rewritten {
            let (aside, fresh_bytes) = rewrite(files, dir, id, opening)?;
            bytes = fresh_bytes;
            if let Some(last) = repairs.last_mut() {
                last.set_aside = Some(aside);
            }
        }
        previous = Some((Predecessor { id, bytes }, scan.bytes));
    }
    Ok(())
}

/// Makes an empty segment, durably, in a log without any. Blocks.
pub fn begin(files: &dyn Files, dir: &Path, id: u64) -> Result<()> {
    create_segment(files, dir, id, None, 0)?;
    present::rewrite(files, dir)
}

/// What may be lost from a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Nothing.
    Nothing,
    /// Batches of sequences up to this one.
    UpTo(Seq),
    /// Batches behind the last that can be read, which ends with this sequence.
    After(Seq),
}

/// Which batches are lost where the log is damaged or gone, as far as those that can be read tell. Blocks.
pub fn lost(files: &dyn Files, dir: &Path) -> Result<Lost> {
    let segments = list_segments(files, dir)?;
    let mut lost = if segments.is_empty() { Lost::After(0) } else { Lost::Nothing };
    let mut missing = present::missing_as_told(files, dir)?.into_iter().peekable();
    let mut last_seq = 0;
    let mut before: Option<Predecessor> = None;
    for (id, _) in segments {
        if missing.next_if(|(missing, _)| *missing < id).is_some() {
            while missing.next_if(|(missing, _)| *missing < id).is_some() {}
            lost = Lost::After(last_seq);
        }
        let path = dir.join(segment_name(id));
        let mut salvage = Salvage::open(files.open_left(&path)?, MAGIC, id)?;
        let (mut bytes, mut damaged_to) = (0, None);
        loop {
            let record = salvage.next_record()?;
            let to = salvage.damaged().last().map(|range| range.end);
            if to != damaged_to {
                (lost, damaged_to) = (Lost::After(last_seq), to);
            }
            let Some(record) = record else { break };
            bytes = salvage.position();
            match readable(&path, &record)? {
                None => lost = Lost::After(last_seq),
                Some(LogRecord::Opening { previous, previous_bytes }) => {
                    if before.is_some_and(|b| b.id == previous && b.bytes < previous_bytes) {
                        lost = Lost::After(last_seq);
                    }
                }
                Some(LogRecord::Batch { first_seq, batch, .. }) => {
                    if matches!(lost, Lost::After(_)) {
                        lost = Lost::UpTo(first_seq.saturating_sub(1));
                    }
                    let count = (batch.mutations.len() as u64).max(1);
                    last_seq = last_seq.max(first_seq.saturating_add(count - 1));
                }
                Some(LogRecord::Marker) => {}
            }
        }
        before = Some(Predecessor { id, bytes });
    }
    if missing.peek().is_some() {
        lost = Lost::After(last_seq);
    }
    Ok(lost)
}

/// The last row of each tablet in what can be read of the log, by the number of the tablet. Blocks.
pub fn last_rows(files: &dyn Files, dir: &Path) -> Result<HashMap<u64, Bytes>> {
    finish_interrupted(files, dir)?;
    let mut last: HashMap<u64, Bytes> = HashMap::new();
    for (id, _) in list_segments(files, dir)? {
        let path = dir.join(segment_name(id));
        let mut salvage = Salvage::open(files.open_left(&path)?, MAGIC, id)?;
        while let Some(record) = salvage.next_record()? {
            if let Some(LogRecord::Batch { tablet, batch, .. }) = readable(&path, &record)? {
                let known = last.entry(tablet).or_default();
                if batch.row > *known {
                    // A copy: what was read may keep megabytes.
                    *known = Bytes::copy_from_slice(&batch.row);
                }
            }
        }
    }
    Ok(last)
}

/// The segment that a repair left half replaced, if there is one. A log in this state must not be
/// opened: a segment may be missing from it.
pub(super) fn interrupted(files: &dyn Files, dir: &Path) -> Result<Option<u64>> {
    let name = |entry: &DirEntry| entry.name.strip_suffix(REPAIR_SUFFIX).map(str::to_owned);
    let names = files.list(dir)?;
    Ok(names.iter().filter_map(name).find_map(|name| parse_segment_name(&name)))
}

/// The new file was complete before the old one gave up its name; so where the name is free, the new
/// file takes it, and where it is not, the repair starts over.
fn finish_interrupted(files: &dyn Files, dir: &Path) -> Result<()> {
    while let Some(id) = interrupted(files, dir)? {
        let path = dir.join(segment_name(id));
        let fresh = dir.join(format!("{}{REPAIR_SUFFIX}", segment_name(id)));
        if files.exists(&path)? {
            files.remove(&fresh)?;
        } else {
            files.rename(&fresh, &path)?;
        }
        files.sync_dir(dir)?;
    }
    Ok(())
}

struct Scan {
    opening: Option<Predecessor>,
    batches: u64,
    damaged: Vec<Range<u64>>,
    /// Bytes up to the end of the last readable record.
    bytes: u64,
}

fn scan(files: &dyn Files, path: &Path, id: u64) -> Result<Scan> {
    let mut salvage = Salvage::open(files.open_left(path)?, MAGIC, id)?;
    let mut scan = Scan { opening: None, batches: 0, damaged: Vec::new(), bytes: 0 };
    let mut unknown = Vec::new();
    while let Some(record) = salvage.next_record()? {
        let end = salvage.position();
        scan.bytes = end;
        match readable(path, &record)? {
            Some(LogRecord::Batch { .. }) => scan.batches += 1,
            Some(LogRecord::Opening { previous, previous_bytes }) => {
                scan.opening = Some(Predecessor { id: previous, bytes: previous_bytes });
            }
            Some(LogRecord::Marker) => {}
            None => unknown.push(record.offset..end),
        }
    }
    scan.damaged = salvage.damaged().to_vec();
    scan.damaged.extend(unknown);
    scan.damaged.sort_unstable_by_key(|range| range.start);
    Ok(scan)
}

/// A record that verifies and still cannot be decoded is as lost as one that does not. One that a newer version wrote is
/// not lost, and `InvalidArgument`.
fn readable(path: &Path, record: &Record) -> Result<Option<LogRecord>> {
    match decode_record(record.payload.clone()) {
        Ok(record) => Ok(Some(record)),
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
            let place = format!("{}: offset {}", path.display(), record.offset);
            Err(error.context(place))
        }
        Err(_) => Ok(None),
    }
}

/// Writes segment `id` anew; returns where the old file is and the new length.
fn rewrite(files: &dyn Files, dir: &Path, id: u64, opening: Predecessor) -> Result<(PathBuf, u64)> {
    let path = dir.join(segment_name(id));
    let fresh = dir.join(format!("{}{REPAIR_SUFFIX}", segment_name(id)));
    let write = || {
        let mut salvage = Salvage::open(files.open_left(&path)?, MAGIC, id)?;
        let mut writer = RecordWriter::create(files, &fresh, MAGIC, id)?;
        writer.append(&encode_opening(opening.id, opening.bytes))?;
        while let Some(record) = salvage.next_record()? {
            if matches!(readable(&path, &record)?, Some(LogRecord::Batch { .. })) {
                writer.append(&record.payload)?;
            }
        }
        writer.sync()?;
        // Of the last segment nothing else tells that all of it was durable.
        writer.append(&encode_marker())?;
        writer.sync()?;
        files.sync_dir(dir)?;
        Ok((free_name(files, dir, id)?, writer.len()))
    };
    let (aside, bytes) = write().inspect_err(|_: &Error| {
        // On a full disk its room is wanted. Where it cannot be removed, the next repair does.
        let _ = files.remove(&fresh);
    })?;
    files.rename(&path, &aside)?;
    files.rename(&fresh, &path)?;
    files.sync_dir(dir)?;
    Ok((aside, bytes))
}

/// Names tried for a file that is set aside. More repairs of one segment than this are not a repair.
const ASIDE_NAMES_MAX: u32 = 1000;

/// Stands between the name of a segment that was replaced and a number, if that is taken.
const ASIDE_INFIX: &str = ".damaged";

/// The segment whose original a file of the log is, by its name, where a repair has left it.
pub(crate) fn original_of(name: &str) -> Option<&str> {
    let (segment, _) = name.split_once(ASIDE_INFIX)?;
    parse_segment_name(segment).map(|_| segment)
}

fn free_name(files: &dyn Files, dir: &Path, id: u64) -> Result<PathBuf> {
    for n in 0..ASIDE_NAMES_MAX {
        let suffix = if n == 0 { String::new() } else { format!(".{n}") };
        let path = dir.join(format!("{}{ASIDE_INFIX}{suffix}", segment_name(id)));
        if !files.exists(&path)? {
            return Ok(path);
        }
    }
    let text = format!("{}: too many damaged files are set aside here", dir.display());
    Err(Error::new(ErrorKind::AlreadyExists, text))
}

#[cfg(test)]
mod tests;

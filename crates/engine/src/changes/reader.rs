//! Reading the changes of one tablet, in the order of their commits.
//!
//! ```text
//! position ──► the tail, where it reaches back as far
//!         └──► else the first of: change files, segments of the log   (by segment, and so by sequence)
//! ```
//!
//! Guarantees: every change of the tablet after the position is returned once, in order, whole, and not before it is
//! visible; or an error says why not. A change that was moved from a segment into a file, and a file that was removed,
//! while it was being looked for, is looked for again.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::{Either, select};

use super::file::{ChangeFile, OpenChangeFile};
use super::tail::Next;
use super::{Change, GRACE_MICROS, commit_micros};
use crate::cell::Seq;
use crate::error::{Error, ErrorKind, Result};
use crate::log::record::Tail;
use crate::log::segment::SegmentReader;
use crate::log::{SegmentInfo, batch_head, decode_batch};
use crate::tablet::Tablet;

/// How often a source is looked for again that went while it was opened. Sources go one at a time, minutes apart.
const ATTEMPTS_MAX: u32 = 4;

/// Change files that one [read from the disk](ChangeReader::read_disk) opens to learn whose changes are in them, at most. After a
/// restart nobody has looked into any, and a week may have thousands: a few dozen take milliseconds, and others have their turn then.
const FILES_LOOKED_INTO_MAX: usize = 32;

/// Change files that one [read from the disk](ChangeReader::read_disk) opens for their changes, at most. Beside a tablet that is written
/// much, each has little of one that is not: this is some ten milliseconds, and others have their turn then.
const FILES_READ_MAX: usize = 64;

/// Bytes of the log that one [read from the disk](ChangeReader::read_disk) goes through, about. Where other tablets are written
/// much more, there may be gigabytes between two changes of one: this is some ten milliseconds, and others have their turn then.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// A place in the history of one tablet. It keeps no file open from one portion to the next: of readers whose clients have
/// stalled there may be thousands.
#[derive(Debug, Clone)]
pub struct ChangeReader {
    tablet: Arc<Tablet>,
    position: Seq,
    /// Where to go on in a segment of the log.
    segment: Option<(u64, u64)>,
}

/// Where the next changes are.
enum Source {
    File(Arc<ChangeFile>),
    Segment(Arc<SegmentInfo>),
    /// Nobody knows yet: in files that are still to be looked into.
    Unknown,
}

/// Changes that were read.
struct Gathered {
    changes: Vec<Change>,
    bytes: usize,
    bytes_max: usize,
}

/// What is left of a turn at the disk.
struct Turn {
    /// Change files that may be opened to learn whose changes are in them.
    looks: usize,
    /// Change files that may be read.
    files: usize,
    /// Bytes of the log that may be gone through.
    log_bytes: u64,
}

impl Gathered {
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max && !self.changes.is_empty()
    }

    fn push(&mut self, change: Change) {
        self.bytes += change.bytes();
        self.changes.push(change);
    }
}

impl ChangeReader {
    pub(super) fn new(tablet: Arc<Tablet>, position: Seq) -> Self {
        Self { tablet, position, segment: None }
    }

    /// Everything up to here was read.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// The tablet that is read.
    pub fn tablet(&self) -> &Arc<Tablet> {
        &self.tablet
    }

    /// What is visible and in memory of what follows: up to about `bytes_max` bytes, one change at least where there is
    /// one. `None` where it lies on disk: [`Self::read_disk`] has it.
    pub fn read(&mut self, bytes_max: usize) -> Result<Option<Vec<Change>>> {
        self.check()?;
        let core = self.tablet.core();
        let through = core.pipeline.recorded();
        let tail = &core.changes.tail;
        let Some(read) = tail.read(self.tablet.id().0, self.position, through, bytes_max) else {
            return Ok(None);
        };
        let (changes, position) = read?;
        self.position = position;
        self.segment = None;
        Ok(Some(changes))
    }

    /// What is visible of what follows, wherever it lies: up to about `bytes_max` bytes, one change at least where there
    /// is one; or nothing, where it has looked long enough for now and [`Self::ready`] says at once that there is more. An error
    /// comes by itself: what was read before it is returned first, and the next call meets it. Blocks.
    pub fn read_disk(&mut self, bytes_max: usize) -> Result<Vec<Change>> {
        let through = self.tablet.core().pipeline.recorded();
        let mut read = Gathered { changes: Vec::new(), bytes: 0, bytes_max };
        let mut turn =
            Turn { looks: FILES_LOOKED_INTO_MAX, files: FILES_READ_MAX, log_bytes: LOG_BYTES_MAX };
        let mut attempts = 0;
        while !read.is_full() && self.position < through {
            match self.read_on(through, &mut read, &mut turn) {
                Ok(true) => attempts = 0,
                Ok(false) => break,
                // It was given back meanwhile; what was in it is elsewhere, or too old.
                Err(error) if error.kind() == ErrorKind::NotFound && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    self.segment = None;
                }
                Err(error) if read.changes.is_empty() => {
                    self.check()?;
                    // A file that is listed, and not there however often it is looked for, was lost.
                    return Err(error.of_needed_file());
                }
                Err(_) => break,
            }
        }
        Ok(read.changes)
    }

    /// Reads on in the first place that may have changes; where there is none, everything `through` was read. Whether the
    /// turn goes on.
    fn read_on(&mut self, through: Seq, read: &mut Gathered, turn: &mut Turn) -> Result<bool> {
        let source = self.source(turn)?;
        // Only now: a file goes after the horizon was raised beyond it, so one that was not found is told of here.
        self.check()?;
        match &source {
            None => self.position = through,
            Some(Source::File(file)) => {
                turn.files = turn.files.saturating_sub(1);
                self.read_file(file, through, read)?;
            }
            Some(Source::Segment(segment)) => self.read_segment(segment, through, read, turn)?,
            Some(Source::Unknown) => return Ok(false),
        }
        Ok(turn.log_bytes > 0 && turn.files > 0)
    }

    /// Resolves when there is something to read, or an error to be told.
    pub async fn ready(&self) -> Result<()> {
        loop {
            let mut changed = pin!(self.tablet.changed().notified());
            let mut ended = pin!(self.tablet.changes_ended().notified());
            changed.as_mut().enable();
            ended.as_mut().enable();
            self.check()?;
            let core = self.tablet.core();
            let seq = match core.changes.tail.next(self.tablet.id().0, self.position) {
                // Before it there may be something on disk, if it is visible; what is not was not read there either.
                Next::After(_) => self.position + 1,
                Next::At(seq) => seq,
                Next::Nothing => {
                    changed.await;
                    continue;
                }
            };
            match select(pin!(core.pipeline.wait_recorded(seq)), ended).await {
                Either::Left((recorded, _)) => return recorded,
                Either::Right(_) => {}
            }
        }
    }

    /// Whether what follows the position is kept.
    fn check(&self) -> Result<()> {
        self.tablet.check_kept()?;
        let core = self.tablet.core();
        let kept = self.tablet.changes_kept_micros().load(Ordering::Acquire);
        // By the time by which files go.
        let age = core.expiry_micros().saturating_sub(commit_micros(self.position));
        // Whoever was let in at the end of the period is: what follows is here for as long.
        let too_old = u64::try_from(age).unwrap_or(0) > kept.saturating_add(GRACE_MICROS);
        if kept == 0 {
            Err(Error::new(ErrorKind::Expired, "the changes of this tablet are not kept"))
        } else if too_old || self.position < core.changes.horizons.of(self.tablet.id().0) {
            Err(Error::new(
                ErrorKind::Expired,
                "the changes after this position are not kept any more; begin again at a later time",
            ))
        } else {
            Ok(())
        }
    }

    /// The first place that may have changes after the position.
    fn source(&self, turn: &mut Turn) -> Result<Option<Source>> {
        let core = self.tablet.core();
        let id = self.tablet.id().0;
        // Segments first: one that becomes a file meanwhile is found twice, and not missed.
        let segments = core.pipeline.log().segments();
        let (file, segment) = loop {
            let (first, segment) = {
                let files = core.changes.files();
                let from = files.partition_point(|file| file.last_seq <= self.position);
                let behind = files.get(from..).unwrap_or_default();
                let may_have = |file: &&Arc<ChangeFile>| {
                    file.known_tablets().is_none_or(|tablets| tablets.binary_search(&id).is_ok())
                };
                let has_file = |segment: u64| {
                    behind.binary_search_by_key(&segment, |file| file.segment).is_ok()
                };
                let segment = segments.iter().find(|segment| {
                    segment.tablets.get(&id).is_some_and(|last| *last > self.position)
                        && !has_file(segment.id)
                });
                (behind.iter().find(may_have).map(Arc::clone), segment.map(Arc::clone))
            };
            match first {
                Some(file) if file.known_tablets().is_none() => {
                    let Some(left) = turn.looks.checked_sub(1) else {
                        return Ok(Some(Source::Unknown));
                    };
                    turn.looks = left;
                    let changes = &core.changes;
                    file.tablets(core.env.files.as_ref(), &changes.dir, &changes.lists)?;
                }
                file => break (file, segment),
            }
        };
        Ok(match (file, segment) {
            (Some(file), Some(segment)) if segment.id < file.segment => {
                Some(Source::Segment(segment))
            }
            (Some(file), _) => Some(Source::File(file)),
            (None, segment) => segment.map(Source::Segment),
        })
    }

    fn read_file(&mut self, file: &ChangeFile, through: Seq, read: &mut Gathered) -> Result<()> {
        let (core, id) = (self.tablet.core(), self.tablet.id().0);
        let path = core.changes.dir.join(file.name());
        let opened = OpenChangeFile::open(core.env.files.as_ref(), &path, file.segment)?;
        let of_tablet = opened.blocks().iter().filter(|block| block.tablet == id);
        let from = self.position;
        for block in of_tablet.filter(|block| block.last_seq > from) {
            for change in opened.changes(block)? {
                if change.last_seq > through {
                    self.position = through;
                    return Ok(());
                }
                if read.is_full() {
                    return Ok(());
                }
                if change.last_seq > self.position {
                    self.position = change.last_seq;
                    read.push(change);
                }
            }
        }
        self.position = self.position.max(file.last_seq);
        Ok(())
    }

    fn read_segment(
        &mut self,
        segment: &SegmentInfo,
        through: Seq,
        read: &mut Gathered,
        turn: &mut Turn,
    ) -> Result<()> {
        let core = self.tablet.core();
        let id = self.tablet.id().0;
        // A segment that is being written is read as far as it was known to be written.
        let tail = if segment.sealed { Tail::Sealed } else { Tail::MayBeTorn };
        let files = core.env.files.as_ref();
        // What is laid out behind that is cut off when the segment ends, maybe while it is read.
        let (dir, end) = (core.layout.log(), segment.bytes);
        let mut reader = SegmentReader::open_to(files, &dir, segment.id, tail, end)?;
        let left_at = self.segment.filter(|(id, _)| *id == segment.id).map(|(_, offset)| offset);
        if let Some(offset) = left_at.or_else(|| segment.offset_after(self.position)) {
            reader.seek(offset);
        }
        while reader.position() < segment.bytes {
            let at = reader.position();
            if read.is_full() || turn.log_bytes == 0 {
                self.segment = Some((segment.id, at));
                return Ok(());
            }
            let Some(record) = reader.next_stored()? else {
                let path = reader.path().display();
                return Err(Error::corruption(path, at, "a record of the log cannot be read"));
            };
            turn.log_bytes = turn.log_bytes.saturating_sub(reader.position() - at);
            let Some(head) = batch_head(&record.payload) else { continue };
            if head.last_seq > through {
                self.position = through;
                self.segment = Some((segment.id, at));
                return Ok(());
            }
            if head.tablet == id && head.last_seq > self.position {
                let (_, first_seq, source, batch) = decode_batch(record.payload)?;
                self.position = head.last_seq;
                read.push(Change::new(first_seq, source, batch));
            }
        }
        let last = segment.tablets.get(&id).copied().unwrap_or(0);
        self.position = self.position.max(last);
        self.segment = None;
        Ok(())
    }
}

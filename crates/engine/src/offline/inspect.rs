//! What is in a file: an SST, a segment of the log, a change file, a tablet's manifest, the meta store.
//!
//! Everything is told as a sequence of [`Line`]s, in the order of the file, each of which prints itself for people
//! and serialises for programs. Nothing is changed, no lock is taken, and a file may be in use: of one that is
//! being written, what is there is shown. Damage is a line too, and does not end the reading where
//! something behind it can be read. A file's own word is taken for its number, so a copy under another
//! name can be looked at.

mod text;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::CACHE_BYTES;
use crate::backup::{BACKUP_MAGIC, BackupList};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::cell::{KeyView, Kind, Mutation};
use crate::changes::file::{MAGIC as CHANGES_MAGIC, OpenChangeFile};
use crate::changes::present::{self as changes_present, Listed};
use crate::changes::{Change, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::layout::BACKUP_PREFIX;
use crate::log::present;
use crate::log::record::{
    FILE_HEADER_BYTES, FileHeader, Magic, RECORD_HEADER_BYTES, Record, RecordReader, Salvage, Tail,
};
use crate::log::segment::MAGIC as LOG_MAGIC;
use crate::log::{LogRecord, decode_record};
use crate::manifest::{MANIFEST_SERIES, META_SERIES, MetaRecord, SstRef, Version, VersionEdit};
use crate::sst::{
    BlockInfo, FilterFigures, PartitionInfo, Piece, SstPlaces, SstProperties, SstReader,
};
use crate::values::{ValuePointer, ValueReader};

/// Bytes of a value that are shown: enough to know it by.
const VALUE_SHOWN_BYTES: usize = 48;

/// Bytes from the end of an SST to the file's number in its footer, and bytes of that number.
const SST_ID_FROM_END: u64 = 32;
const SST_ID_BYTES: usize = 8;

/// One thing that is in a file.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// The head of an SST.
    Sst(Box<SstHead>),
    /// An index partition of an SST; its blocks follow.
    Partition(PartitionInfo),
    /// A data block of an SST; its records follow where they were asked for.
    Block(BlockInfo),
    /// A record of an SST.
    Record(RecordLine),
    /// A filter partition of an SST.
    Filter {
        /// Its first byte.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// A value file.
    ValueFile {
        /// Its number, as in its name.
        id: String,
        /// Its bytes.
        bytes: u64,
        /// Values in it, garbage included; 0 where that is not known.
        values: u64,
        /// Their bytes, before compression; 0 where that is not known.
        value_bytes: u64,
    },
    /// The head of a log segment, manifest or meta store.
    File {
        /// What it is.
        kind: &'static str,
        /// Its number.
        id: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// The first record of a log segment.
    Opening {
        /// Where the record starts.
        offset: u64,
        /// The segment before; 0 for none.
        previous: u64,
        /// The bytes that it had.
        previous_bytes: u64,
    },
    /// A list of the log's segments.
    Segments {
        /// Where the record starts.
        offset: u64,
        /// Their numbers, as in the names of their files.
        segments: Vec<String>,
    },
    /// A list of change files, and of files that say up to where there are none any more.
    Changes {
        /// Where the record starts.
        offset: u64,
        /// Their names.
        names: Vec<String>,
    },
    /// A record that says only how much of the file was synced.
    Marker {
        /// Where the record starts.
        offset: u64,
        /// Bytes that were known to be synced.
        durable: u64,
    },
    /// The mutations of one row, in the log.
    Batch {
        /// Where the record starts.
        offset: u64,
        /// Bytes that were known to be synced.
        durable: u64,
        /// The tablet.
        tablet: String,
        /// The sequence of the first mutation.
        first_seq: u64,
        /// The sequence of the last mutation.
        last_seq: u64,
        /// The row, escaped.
        row: String,
        /// Garbage collection asked for it, and no client. Left out where it is not so.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        garbage: bool,
        /// The mutations, in order.
        mutations: Vec<MutationLine>,
    },
    /// A version edit of a manifest.
    Edit {
        /// Where the record starts.
        offset: u64,
        /// The edit.
        edit: VersionEdit,
    },
    /// The version that all edits make.
    Version(VersionLine),
    /// The list of a backup.
    Backup {
        /// Where the record starts.
        offset: u64,
        /// The tablets' versions, in the order of their rows.
        tablets: Vec<VersionLine>,
        /// The value files that their SSTs name, and the bytes that they name in each.
        value_files: Vec<(String, u64)>,
    },
    /// A record of the meta store.
    Meta {
        /// Where the record starts.
        offset: u64,
        /// The record.
        record: MetaRecord,
    },
    /// Something that cannot be read.
    Damage {
        /// Where it starts.
        offset: u64,
        /// Its bytes; 0 where they cannot be told.
        bytes: u64,
        /// What is wrong.
        error: String,
    },
    /// The end of a log segment, manifest or meta store.
    End {
        /// Bytes up to the end of the last record.
        valid_bytes: u64,
        /// Bytes behind it that are a write that was cut short, or under way; zeros laid out ahead do not
        /// count.
        torn_bytes: u64,
    },
}

/// The head of an SST.
#[derive(Debug, Serialize)]
pub struct SstHead {
    /// Its number, as in its name.
    pub id: String,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of memory that it takes while it is open.
    pub resident_bytes: u64,
    /// Where its single parts lie.
    pub places: SstPlaces,
    /// Records of all kinds.
    pub entries: u64,
    /// Rows.
    pub rows: u64,
    /// Records that are no tombstones.
    pub cells: u64,
    /// Tombstones: of rows, families, columns, cells.
    pub tombstones: [u64; 4],
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Data blocks.
    pub data_blocks: u64,
    /// Zeros between blocks.
    pub padding_bytes: u64,
    /// Bytes of index partitions and the top-level index.
    pub index_bytes: u64,
    /// The filter.
    pub filter: FilterFigures,
    /// Least and greatest sequence.
    pub seqs: [u64; 2],
    /// First and last row, escaped.
    pub row_range: [String; 2],
    /// When it was made: microseconds since 1970.
    pub created_micros: i64,
    /// By family.
    pub families: Vec<FamilyLine>,
    /// The value files that its pointers lead to, and the bytes that they name in each.
    pub value_files: Vec<(String, u64)>,
}

/// What an SST holds of a family.
#[derive(Debug, Serialize)]
pub struct FamilyLine {
    /// Its number.
    pub id: u32,
    /// Records of all kinds.
    pub entries: u64,
    /// Records that are no tombstones.
    pub cells: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Least and greatest timestamp of a cell, in microseconds.
    pub timestamps: [i64; 2],
    /// The most cells in one column.
    pub column_versions_max: u64,
}

/// A record of an SST.
#[derive(Debug, Serialize)]
pub struct RecordLine {
    /// The offset of its block.
    pub block: u64,
    /// The row, escaped.
    pub row: String,
    /// The family's number; 0 for a row tombstone.
    pub family: u32,
    /// The qualifier, escaped; `None` for row and family tombstones.
    pub qualifier: Option<String>,
    /// Microseconds since 1970; `None` for a tombstone of all timestamps.
    pub timestamp: Option<i64>,
    /// The sequence.
    pub seq: u64,
    /// The kind.
    pub kind: String,
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The beginning of the value, escaped.
    pub value: String,
}

/// A mutation of a batch.
#[derive(Debug, Serialize)]
pub struct MutationLine {
    /// What it does.
    pub kind: &'static str,
    /// The family's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// The qualifier, escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qualifier: Option<String>,
    /// A timestamp, or the first of a range and the first behind it, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timestamps: Vec<i64>,
    /// Bytes of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<usize>,
    /// The beginning of the value, escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A version.
#[derive(Debug, Serialize)]
pub struct VersionLine {
    /// The tablet's rows, escaped.
    pub range: [String; 2],
    /// Log records up to this sequence need no replay.
    pub flushed_seq: u64,
    /// The greatest sequence that was used.
    pub last_seq: u64,
    /// Bytes of all SSTs.
    pub bytes: u64,
    /// SSTs by level.
    pub levels: Vec<Vec<SstRef>>,
    /// Ranges of rows that were dropped, escaped, and the last sequence that is dropped.
    pub dropped: Vec<(String, String, u64)>,
}

/// Takes lines. Its error ends the reading.
pub type OnLine<'a> = &'a mut dyn FnMut(Line) -> Result<()>;

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn shown(value: &[u8]) -> String {
    let more = if value.len() > VALUE_SHOWN_BYTES { "..." } else { "" };
    format!("{}{more}", text(value.get(..VALUE_SHOWN_BYTES).unwrap_or(value)))
}

/// An SST, with its records if `records`. Returns whether all of it verifies.
pub fn sst(files: &dyn Files, path: &Path, records: bool, on: OnLine<'_>) -> Result<bool> {
    let reader = open_sst(files, path)?;
    on(Line::Sst(Box::new(head(&reader))))?;
    let mut damaged = false;
    reader.walk(records, &mut |piece| {
        on(match piece {
            Piece::Partition(info) => Line::Partition(info),
            Piece::Block(info) => Line::Block(info),
            Piece::Record(block, entry) => record_line(block, entry.key, entry.value),
            Piece::Filter(offset, bytes) => Line::Filter { offset, bytes },
            Piece::Lost(lost) => {
                damaged = true;
                let error = lost.error.message().to_owned();
                Line::Damage { offset: lost.offset, bytes: lost.bytes, error }
            }
        })
    })?;
    // The walk says what is damaged; that all fits together is verified besides.
    if !damaged && let Err(error) = reader.verify(&mut |_| {}) {
        damaged = true;
        on(Line::Damage { offset: 0, bytes: 0, error: error.message().to_owned() })?;
    }
    Ok(!damaged)
}

/// Opens an SST under the number in its footer or, where that is damaged, in its name.
fn open_sst(files: &dyn Files, path: &Path) -> Result<Arc<SstReader>> {
    let file = files.open(path)?;
    let stored = file
        .len()?
        .checked_sub(SST_ID_FROM_END)
        .and_then(|at| file.read_at(at, SST_ID_BYTES).ok())
        .and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?)));
    let named = number_in_name(path);
    let open = |id| {
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(CACHE_BYTES));
        SstReader::open(files, path, id, cache)
    };
    match (stored, named) {
        (Some(stored), Some(named)) if stored != named => {
            open(stored).or_else(|error| open(named).map_err(|_| error))
        }
        (id, named) => open(id.or(named).unwrap_or(0)),
    }
}

/// The first 16 hexadecimal digits of a file's name.
fn number_in_name(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.split(['-', '.'])
        .find(|part| part.len() == 16)
        .and_then(|d| u64::from_str_radix(d, 16).ok())
}

fn head(reader: &SstReader) -> SstHead {
    let properties: &SstProperties = reader.properties();
    let families = properties.families.iter().map(|(id, family)| FamilyLine {
        id: id.0,
        entries: family.entries,
        cells: family.cells,
        tombstones: family.tombstones,
        timestamps: [family.timestamp_min, family.timestamp_max],
        column_versions_max: family.column_versions_max,
    });
    SstHead {
        id: format!("{:016x}", reader.id()),
        bytes: reader.bytes(),
        resident_bytes: reader.resident_bytes(),
        places: reader.places(),
        entries: properties.entries,
        rows: properties.rows,
        cells: properties.cells,
        tombstones: [
            properties.row_tombstones,
            properties.family_tombstones,
            properties.column_tombstones,
            properties.cell_tombstones,
        ],
        key_bytes: properties.key_bytes,
        value_bytes: properties.value_bytes,
        data_blocks: properties.data_blocks,
        padding_bytes: properties.padding_bytes,
        index_bytes: properties.index_bytes,
        filter: properties.filter,
        seqs: [properties.seq_min, properties.seq_max],
        row_range: [text(&properties.first_row), text(&properties.last_row)],
        created_micros: properties.created_micros,
        families: families.collect(),
        value_files: properties
            .value_files
            .iter()
            .map(|(id, bytes)| (format!("{id:016x}"), *bytes))
            .collect(),
    }
}

fn record_line(block: u64, key: KeyView<'_>, value: &[u8]) -> Line {
    let timestamp = key.timestamp();
    let pointer = (key.kind() == Kind::ValueElsewhere).then(|| ValuePointer::decode(value));
    Line::Record(RecordLine {
        block,
        row: text(&key.row()),
        family: key.family().0,
        qualifier: key.has_qualifier().then(|| text(&key.qualifier())),
        timestamp: (timestamp != crate::cell::TIMESTAMP_MAX).then_some(timestamp),
        seq: key.seq(),
        kind: format!("{:?}", key.kind()),
        value_bytes: value.len(),
        value: match pointer {
            Some(Ok(ValuePointer { file, offset, stored_len, value_len })) => {
                format!("{value_len} bytes in {stored_len} at {offset} of value file {file:016x}")
            }
            _ => shown(value),
        },
    })
}

/// A value file. Returns whether its footer verifies; its values are found from SSTs alone.
pub fn value_file(files: &dyn Files, path: &Path, on: OnLine<'_>) -> Result<bool> {
    let reader = ValueReader::open(files, path, number_in_name(path).unwrap_or(0))?;
    on(Line::ValueFile {
        id: format!("{:016x}", reader.id()),
        bytes: reader.bytes(),
        values: reader.values(),
        value_bytes: reader.value_bytes(),
    })?;
    let Err(error) = reader.verify_footer() else { return Ok(true) };
    let error = error.message().to_owned();
    on(Line::Damage { offset: reader.frame_bytes(), bytes: 0, error })?;
    Ok(false)
}

/// A segment of the log, a change file, or a list of either, whichever it is. Returns whether all of it verifies; a torn tail of a
/// segment is no damage.
pub fn log(files: &dyn Files, path: &Path, on: OnLine<'_>) -> Result<bool> {
    let file = files.open(path)?;
    let magic = file.read_at(0, file.len()?.min(8) as usize)?;
    if magic.as_ref() == CHANGES_MAGIC {
        return changes(files, path, file.len()?, on);
    }
    if magic.as_ref() == present::MAGIC {
        return records(files, path, present::MAGIC, "list of segments", on, &mut list_line)?
            .tell(on);
    }
    if magic.as_ref() == changes_present::MAGIC {
        let magic = changes_present::MAGIC;
        return records(files, path, magic, "list of change files", on, &mut changes_line)?
            .tell(on);
    }
    let ending = records(files, path, LOG_MAGIC, "log segment", on, &mut log_line)?;
    ending.tell(on)
}

/// The batches of a change file, by block.
fn changes(files: &dyn Files, path: &Path, bytes: u64, on: OnLine<'_>) -> Result<bool> {
    let id = number_in_name(path).unwrap_or(0);
    on(Line::File { kind: "change file", id, bytes })?;
    let damage = |offset, bytes, error: &Error| Line::Damage {
        offset,
        bytes,
        error: error.message().to_owned(),
    };
    let opened = match OpenChangeFile::open(files, path, id) {
        Ok(opened) => opened,
        Err(error) => {
            on(damage(0, bytes, &error))?;
            return Ok(false);
        }
    };
    let mut whole = true;
    for block in opened.blocks() {
        match opened.changes(block) {
            Ok(changes) => {
                for change in changes {
                    on(batch_line(block.offset, bytes, block.tablet, &change))?;
                }
            }
            Err(error) => {
                whole = false;
                on(damage(block.offset, block.bytes, &error))?;
            }
        }
    }
    Ok(whole)
}

fn batch_line(offset: u64, durable: u64, tablet: u64, change: &Change) -> Line {
    let Change { first_seq, last_seq, source, batch } = change;
    Line::Batch {
        offset,
        durable,
        tablet: format!("{tablet:016x}"),
        first_seq: *first_seq,
        last_seq: *last_seq,
        row: text(&batch.row),
        garbage: *source == Source::GarbageCollection,
        mutations: batch.mutations.iter().map(mutation_line).collect(),
    }
}

fn list_line(record: &Record) -> Line {
    let (offset, durable) = (record.offset, record.durable);
    match present::decode(&record.payload) {
        _ if record.payload.is_empty() => Line::Marker { offset, durable },
        Ok(ids) => {
            Line::Segments { offset, segments: ids.iter().map(|id| format!("{id:016x}")).collect() }
        }
        Err(error) => unreadable(record, &error.into()),
    }
}

fn changes_line(record: &Record) -> Line {
    match Listed::decode(record.payload.clone()) {
        Ok(listed) => Line::Changes { offset: record.offset, names: listed.names() },
        Err(what) => unreadable(record, &what.into()),
    }
}

fn log_line(record: &Record) -> Line {
    let (offset, durable) = (record.offset, record.durable);
    match decode_record(record.payload.clone()) {
        Ok(LogRecord::Marker) => Line::Marker { offset, durable },
        Ok(LogRecord::Opening { previous, previous_bytes }) => {
            Line::Opening { offset, previous, previous_bytes }
        }
        Ok(LogRecord::Batch { tablet, first_seq, source, batch }) => {
            batch_line(offset, durable, tablet, &Change::new(first_seq, source, batch))
        }
        Err(error) => unreadable(record, &error),
    }
}

fn mutation_line(mutation: &Mutation) -> MutationLine {
    let none = MutationLine {
        kind: "delete_row",
        family: None,
        qualifier: None,
        timestamps: Vec::new(),
        value_bytes: None,
        value: None,
    };
    match mutation {
        Mutation::Put { family, qualifier, timestamp, value: bytes }
        | Mutation::Merge { family, qualifier, timestamp, operand: bytes } => MutationLine {
            kind: if matches!(mutation, Mutation::Put { .. }) { "put" } else { "merge" },
            family: Some(family.0),
            qualifier: Some(text(qualifier)),
            timestamps: vec![*timestamp],
            value_bytes: Some(bytes.len()),
            value: Some(shown(bytes)),
        },
        Mutation::DeleteCells { family, qualifier, timestamps } => MutationLine {
            kind: "delete_cells",
            family: Some(family.0),
            qualifier: Some(text(qualifier)),
            timestamps: vec![timestamps.start, timestamps.end],
            ..none
        },
        Mutation::DeleteFamily { family } => {
            MutationLine { kind: "delete_family", family: Some(family.0), ..none }
        }
        Mutation::DeleteRow => none,
    }
}

/// A tablet's manifest, a file of the meta store or a backup, whichever it is. Returns whether all of it verifies; a torn
/// tail is no damage.
pub fn manifest(files: &dyn Files, path: &Path, on: OnLine<'_>) -> Result<bool> {
    let file = files.open(path)?;
    let magic = file.read_at(0, file.len()?.min(8) as usize)?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is = |series: crate::manifest::Series| magic.as_ref() == series.magic;
    if is(META_SERIES) || (!is(MANIFEST_SERIES) && name.starts_with(META_SERIES.name)) {
        let ending = records(files, path, META_SERIES.magic, "meta store", on, &mut meta_line)?;
        return ending.tell(on);
    }
    let is_backup = magic.as_ref() == BACKUP_MAGIC;
    if is_backup || (!is(MANIFEST_SERIES) && name.starts_with(BACKUP_PREFIX)) {
        let ending = records(files, path, BACKUP_MAGIC, "backup", on, &mut backup_line)?;
        return ending.tell(on);
    }
    if !is(MANIFEST_SERIES) && !name.starts_with(MANIFEST_SERIES.name) {
        let text = format!("{}: neither a manifest nor a meta store nor a backup", path.display());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let mut version: Option<Version> = None;
    let mut misfit = None;
    let mut line = |record: &Record| {
        if record.payload.is_empty() {
            return marker(record);
        }
        let edit = match VersionEdit::decode(record.payload.clone()) {
            Ok(edit) => edit,
            Err(error) => return unreadable(record, &error),
        };
        let base = version.clone().or_else(|| edit.range.clone().map(Version::empty));
        match base.map(|base| base.apply(&edit)) {
            Some(Ok(next)) => version = Some(next),
            Some(Err(error)) if misfit.is_none() => misfit = Some((record.offset, error)),
            _ => {}
        }
        Line::Edit { offset: record.offset, edit }
    };
    let mut ending = records(files, path, MANIFEST_SERIES.magic, "manifest", on, &mut line)?;
    if let Some((offset, error)) = misfit {
        let error = format!("the edit does not fit those before it: {error}");
        ending.whole = false;
        on(Line::Damage { offset, bytes: 0, error })?;
    }
    if let Some(version) = version {
        on(Line::Version(version_line(&version)))?;
    }
    ending.tell(on)
}

fn backup_line(record: &Record) -> Line {
    if record.payload.is_empty() {
        return marker(record);
    }
    match BackupList::decode(record.payload.clone()) {
        Ok(list) => Line::Backup {
            offset: record.offset,
            tablets: list.tablets.iter().map(version_line).collect(),
            value_files: list.values.iter().map(|(id, n)| (format!("{id:016x}"), *n)).collect(),
        },
        Err(error) => unreadable(record, &error),
    }
}

fn meta_line(record: &Record) -> Line {
    if record.payload.is_empty() {
        return marker(record);
    }
    match MetaRecord::decode(record.payload.clone()) {
        Ok(meta) => Line::Meta { offset: record.offset, record: meta },
        Err(error) => unreadable(record, &error),
    }
}

fn marker(record: &Record) -> Line {
    Line::Marker { offset: record.offset, durable: record.durable }
}

fn unreadable(record: &Record, error: &Error) -> Line {
    let bytes = RECORD_HEADER_BYTES + record.payload.len() as u64;
    Line::Damage { offset: record.offset, bytes, error: error.message().to_owned() }
}

fn version_line(version: &Version) -> VersionLine {
    let sst = |sst: &Arc<SstRef>| sst.as_ref().clone();
    VersionLine {
        range: [text(&version.range().start), text(&version.range().end)],
        flushed_seq: version.flushed_seq(),
        last_seq: version.last_seq(),
        bytes: version.total_bytes(),
        levels: version.levels().iter().map(|level| level.iter().map(sst).collect()).collect(),
        dropped: version
            .excised()
            .iter()
            .map(|e| (text(&e.range.start), text(&e.range.end), e.seq))
            .collect(),
    }
}

/// How a record file ended.
struct Ending {
    whole: bool,
    lines: Vec<Line>,
}

impl Ending {
    fn tell(self, on: OnLine<'_>) -> Result<bool> {
        for line in self.lines {
            on(line)?;
        }
        Ok(self.whole)
    }
}

/// Shows the records of a record file that verify, whatever lies between. What lies between is told at the end
/// (a range is known to be damaged, and not a write under way, only then).
fn records(
    files: &dyn Files,
    path: &Path,
    magic: Magic,
    kind: &'static str,
    on: OnLine<'_>,
    line: &mut dyn FnMut(&Record) -> Line,
) -> Result<Ending> {
    let file = files.open(path)?;
    let bytes = file.len()?;
    let header = file.read_at(0, bytes.min(FILE_HEADER_BYTES) as usize)?;
    let id = match FileHeader::decode(&header) {
        Some(header) if header.magic != magic => {
            let found = header.magic.escape_ascii();
            let text = format!("{}: not a {kind}: it starts with {found}", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Some(header) => header.file_id,
        None => number_in_name(path).ok_or_else(|| {
            let what = "the file header does not verify, and the name has no number";
            Error::corruption(path.display(), 0, what)
        })?,
    };
    on(Line::File { kind, id, bytes })?;
    let mut whole = true;
    let mut salvage = Salvage::open(Arc::clone(&file), magic, id)?;
    while let Some(record) = salvage.next_record()? {
        let line = line(&record);
        whole &= !matches!(line, Line::Damage { .. });
        on(line)?;
    }
    // Whether what does not verify is damage or a torn tail is for the reader to say.
    let mut lines = Vec::new();
    match ending(file, magic, id) {
        Ok((valid_bytes, torn_bytes)) => lines.push(Line::End { valid_bytes, torn_bytes }),
        Err(error) => {
            whole = false;
            lines.extend(salvage.damaged().iter().map(|range| damage(range, &error)));
            if lines.is_empty() {
                let error = error.message().to_owned();
                lines.push(Line::Damage { offset: bytes, bytes: 0, error });
            }
        }
    }
    Ok(Ending { whole, lines })
}

fn damage(range: &Range<u64>, error: &Error) -> Line {
    let error = if error.message().contains(&format!("offset {}:", range.start)) {
        error.message().to_owned()
    } else {
        "does not verify".to_owned()
    };
    Line::Damage { offset: range.start, bytes: range.end - range.start, error }
}

fn ending(file: Arc<dyn crate::io::RandomFile>, magic: Magic, id: u64) -> Result<(u64, u64)> {
    let mut reader = RecordReader::open(file, magic, id, Tail::MayBeTorn)?;
    while reader.next_record()?.is_some() {}
    // The reader has returned `None`, so it knows.
    Ok(reader.end().map_or((reader.position(), 0), |end| (end.valid_len, end.torn_bytes)))
}

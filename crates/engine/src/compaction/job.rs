//! Running a compaction: records in, new SSTs out. A job reads and writes files and knows nothing of
//! the tablet; installing its result is an edit of the manifest. It could run on another machine.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::RowRange;
use crate::compaction::cuts::CutRule;
use crate::compaction::filter_policy::filter_for;
use crate::compaction::gc::Dues;
use crate::compaction::pace::STEP_BYTES;
use crate::compaction::separate::{Separator, ValueInputs, ValueOutput};
use crate::compaction::{CompactionSpec, CompactionStats, CompactionStream};
use crate::cursor::Cursor;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Env;
use crate::layout::Layout;
use crate::log::Hlc;
use crate::manifest::{SstRef, Version, VersionEdit};
use crate::options::{CompressionPolicy, EngineOptions, FilterPolicy};
use crate::sst::{Compression, FileId, SstOptions, SstSummary, SstWriter};
use crate::store::SstStore;

/// zstd's level on the last level of the tree: 1 compresses within a few percent of 3 at twice the
/// speed on 16 KiB blocks with a dictionary.
const ZSTD_LEVEL: i32 = 1;

/// What a job needs besides its input.
pub(crate) struct JobContext<'a> {
    pub(crate) env: &'a Env,
    pub(crate) layout: &'a Layout,
    /// Removes what comes to nothing.
    pub(crate) store: &'a SstStore,
    pub(crate) options: &'a EngineOptions,
    /// Gives file numbers.
    pub(crate) hlc: &'a Hlc,
    /// The value files that its input names.
    pub(crate) values: &'a ValueInputs,
    /// Asked between rows, and every so many bytes of a large one or records that do not live on; a job that must stop leaves nothing behind.
    pub(crate) stop: &'a dyn Fn() -> bool,
    /// Told, between records, of every so many bytes that were written; may take its time to answer, and have the job let go first of what
    /// it read ahead of values.
    pub(crate) pace: &'a dyn Fn(u64, &mut dyn FnMut()),
}

/// What a job made.
#[derive(Debug, Default)]
pub(crate) struct JobOutput {
    pub(crate) files: Vec<SstRef>,
    /// When cells of these may go.
    pub(crate) dues: Vec<(FileId, Dues)>,
    pub(crate) stats: CompactionStats,
    pub(crate) values: ValueOutput,
}

impl JobOutput {
    /// Adds what the next part of the same job made.
    pub(crate) fn add(&mut self, part: Self) {
        self.files.extend(part.files);
        self.dues.extend(part.dues);
        self.stats.add(&part.stats);
        self.values.add(part.values);
    }
}

/// The SST options for a level.
pub(crate) fn sst_options(options: &EngineOptions, output_level: u8) -> SstOptions {
    let compression = match options.compression {
        CompressionPolicy::None => Compression::None,
        CompressionPolicy::Lz4 => Compression::Lz4,
        CompressionPolicy::Tiered if output_level == super::shape::LAST_LEVEL => {
            Compression::ZstdDict(ZSTD_LEVEL)
        }
        CompressionPolicy::Tiered => Compression::Lz4,
    };
    let mut sst = SstOptions { compression, ..options.sst };
    if options.filters == FilterPolicy::ByLevel
        && let Some(filter) = filter_for(options, output_level)
    {
        (sst.filter_kind, sst.filter_bits_per_key) = (filter.kind, filter.bits_per_key);
    }
    sst
}

/// Merges `cursors` by `spec` into SSTs for `output_level`, cut at rows by `cuts`. On failure the files that were
/// begun are removed, or later where that cannot be. What it made is synced, but for the names in their directories.
pub(crate) fn run(
    context: &JobContext<'_>,
    cursors: Vec<Box<dyn Cursor>>,
    spec: CompactionSpec,
    output_level: u8,
    cuts: &CutRule,
) -> Result<JobOutput> {
    let mut written = Vec::new();
    let result = merge(context, cursors, spec, output_level, cuts, &mut written);
    if result.is_err() {
        for path in written {
            context.store.remove_unfinished(path);
        }
    }
    result
}

/// The error of a job that was told to stop.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the engine is shutting down")
}

/// Removes what a job has written that comes to nothing.
pub(crate) fn discard(context: &JobContext<'_>, output: &JobOutput) {
    let ssts = output.files.iter().map(|file| context.layout.sst(file.id));
    let values = output.values.files.iter().map(|id| context.layout.value(*id));
    for path in ssts.chain(values) {
        context.store.remove_unfinished(path);
    }
}

fn merge(
    context: &JobContext<'_>,
    cursors: Vec<Box<dyn Cursor>>,
    spec: CompactionSpec,
    output_level: u8,
    cuts: &CutRule,
    written: &mut Vec<PathBuf>,
) -> Result<JobOutput> {
    let options = sst_options(context.options, output_level);
    let created_micros = context.env.clock.now_micros();
    let schema = Arc::clone(&spec.schema);
    let mut stream = CompactionStream::new(cursors, spec, &[]);
    let mut separator = Separator::new(context);
    let mut writer: Option<SstWriter> = None;
    let mut row: Vec<u8> = Vec::new();
    let mut files: Vec<SstRef> = Vec::new();
    let mut dues: Vec<(FileId, Dues)> = Vec::new();
    let mut file_dues = Dues::default();
    let mut cutter = cuts.start();
    let (mut finished_bytes, mut paced_bytes) = (0, 0);
    // Of records, and with those of value files where it was last asked.
    let (mut passed_bytes, mut asked_at) = (0, 0);
    while let Some(entry) = stream.next_while(&|| !(context.stop)())? {
        let is_next_row = entry.key.row_prefix() != row.as_slice();
        if is_next_row || passed_bytes + separator.written_bytes() >= asked_at + STEP_BYTES {
            if (context.stop)() {
                return Err(stopped());
            }
            asked_at = passed_bytes + separator.written_bytes();
            let open_bytes = writer.as_ref().map_or(0, SstWriter::estimated_bytes);
            let written_bytes = finished_bytes + open_bytes + separator.written_bytes();
            if written_bytes >= paced_bytes + STEP_BYTES {
                (context.pace)(written_bytes - paced_bytes, &mut || separator.let_go());
                paced_bytes = written_bytes;
            }
            if is_next_row {
                row.clear();
                row.extend_from_slice(entry.key.row_prefix());
            }
            if is_next_row
                && cutter.cuts_before(&row, open_bytes)
                && let Some(done) = writer.take()
            {
                let file = describe(done.finish()?, output_level);
                finished_bytes += file.bytes;
                // Estimates are not exact, and what was paced must not be more than what was written.
                paced_bytes = paced_bytes.min(finished_bytes + separator.written_bytes());
                dues.push((file.id, std::mem::take(&mut file_dues)));
                files.push(file);
            }
        }
        let target = match writer.as_mut() {
            Some(writer) => writer,
            None => {
                let id = context.hlc.reserve(1);
                let path = context.layout.sst(id);
                let file = context.env.files.create_immutable(&path)?;
                written.push(path.clone());
                writer.insert(SstWriter::new(file, &path, id, options, created_micros))
            }
        };
        let entry = separator.pass(entry, &schema)?;
        passed_bytes += (entry.key.bytes().len() + entry.value.len()) as u64;
        target.add(entry.key, entry.value)?;
        if let Some((family, due_micros)) = stream.due() {
            file_dues.note(family, due_micros);
        }
    }
    if let Some(writer) = writer {
        let file = describe(writer.finish()?, output_level);
        dues.push((file.id, file_dues));
        files.push(file);
    }
    // Last, as nothing can fail after it that would leave value files behind.
    let values = separator.finish()?;
    Ok(JobOutput { files, dues, stats: stream.stats(), values })
}

fn describe(summary: SstSummary, level: u8) -> SstRef {
    let properties = summary.properties;
    SstRef {
        id: summary.id,
        level,
        visible: RowRange::all(),
        bytes: summary.bytes,
        first_row: properties.first_row,
        last_row: properties.last_row,
        min_seq: properties.seq_min,
        max_seq: properties.seq_max,
        entries: properties.entries,
    }
}

/// `refs` cut so that the rows of `dropped` are in none of them: what is left of each, in zero, one or
/// two references.
pub(crate) fn cut(file: &SstRef, dropped: &RowRange) -> Vec<SstRef> {
    let span = file.span();
    let mut left = Vec::new();
    let before = span.intersect(&RowRange::new(Bytes::new(), dropped.start.clone()));
    // A range that starts at the first row has nothing before it; its empty start is not "no end".
    if !dropped.start.is_empty() && !before.is_empty() {
        left.push(before);
    }
    if !dropped.end.is_empty() {
        let after = span.intersect(&RowRange::new(dropped.end.clone(), Bytes::new()));
        if !after.is_empty() {
            left.push(after);
        }
    }
    left.into_iter().map(|visible| SstRef { visible, ..file.clone() }).collect()
}

/// Has an edit take rows out of the references for which `of` holds: what they show beside these rows, as `cut` tells, is in place of them.
/// Tells how many bytes they show less.
pub(crate) fn cut_out(
    edit: &mut VersionEdit,
    version: &Version,
    rows: &RowRange,
    of: impl Fn(&SstRef) -> bool,
    cut: impl Fn(&SstRef) -> Vec<SstRef>,
) -> u64 {
    let mut removed: HashSet<(u8, FileId)> = HashSet::new();
    for file in version.ssts().filter(|file| of(file) && file.overlaps(rows)) {
        if removed.insert((file.level, file.id)) {
            edit.remove.push((file.level, file.id));
        }
    }
    let mut bytes = 0;
    // Edits name files, not references: others of these files are added again as they are.
    for file in version.ssts().filter(|file| removed.contains(&(file.level, file.id))) {
        if of(file) {
            let left = cut(file);
            bytes += file.bytes.saturating_sub(left.iter().map(|left| left.bytes).sum());
            edit.add.extend(left);
        } else {
            edit.add.push(file.as_ref().clone());
        }
    }
    bytes
}

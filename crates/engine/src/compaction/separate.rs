//! Which values lie outside of SSTs. The records of a flush or compaction pass through a [`Separator`] on their way
//! into SSTs:
//!
//! ```text
//! value of the limit or more  ──────────────────► value file of the job ─► pointer into the SST
//! pointer into a file that is to be emptied ─► its value: the same, or into the SST where it is small
//! anything else, pointers too ──────────────────────────────────────────► into the SST as it is
//! ```
//!
//! The job's value files are finished and synced before its SSTs count, since an edit of the manifest follows the
//! whole part of a job. Families with an aggregate keep their values: they are small, and operands combine with them.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;

use crate::cell::{FamilyId, KeyView, Kind};
use crate::compaction::job::JobContext;
use crate::cursor::Entry;
use crate::error::Result;
use crate::io::Env;
use crate::layout::Layout;
use crate::log::Hlc;
use crate::options::CompressionPolicy;
use crate::schema::TabletSchema;
use crate::sst::{Compression, FileId};
use crate::store::SstStore;
use crate::values::{NamedValues, ValueFileWriter, ValuePointer, ValueWindows};

/// The value files that a job reads through.
#[derive(Debug)]
pub(crate) struct ValueInputs {
    /// Named by the job, so that they outlive its inputs.
    pub(crate) files: NamedValues,
    /// Those whose values it moves, each with the bytes that its inputs name there.
    pub(crate) to_move: HashMap<FileId, u64>,
}

/// What a job did to value files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ValueOutput {
    /// Those that it wrote.
    pub(crate) files: Vec<FileId>,
    /// Bytes of these.
    pub(crate) written: u64,
    /// Bytes of the values that it moved, as they lay.
    pub(crate) moved: u64,
}

impl ValueOutput {
    /// Adds what another part of the same job did.
    pub(crate) fn add(&mut self, part: Self) {
        self.files.extend(part.files);
        self.written += part.written;
        self.moved += part.moved;
    }
}

/// Separates the values of one job, or of one part of it.
pub(crate) struct Separator<'a> {
    env: &'a Env,
    layout: &'a Layout,
    store: &'a SstStore,
    hlc: &'a Hlc,
    inputs: &'a ValueInputs,
    /// Values of as many bytes lie elsewhere; `None` for no value.
    limit: Option<usize>,
    compression: Compression,
    file_bytes: u64,
    writer: Option<ValueFileWriter>,
    /// What it has created.
    paths: Vec<PathBuf>,
    windows: ValueWindows,
    output: ValueOutput,
    /// The family looked at last, and whether its values may lie elsewhere.
    family: Option<(FamilyId, bool)>,
    /// The record under way.
    key: Vec<u8>,
    value: Bytes,
}

impl<'a> Separator<'a> {
    pub(crate) fn new(job: &JobContext<'a>) -> Self {
        let JobContext { env, layout, store, options, hlc, values: inputs, .. } = *job;
        let limit = usize::try_from(options.separate_values_bytes).unwrap_or(usize::MAX);
        Self {
            env,
            layout,
            store,
            hlc,
            inputs,
            limit: (limit > 0).then_some(limit),
            // A value is compressed once, on its way out of memory, and stays as it is.
            compression: match options.compression {
                CompressionPolicy::None => Compression::None,
                CompressionPolicy::Lz4 | CompressionPolicy::Tiered => Compression::Lz4,
            },
            file_bytes: options.target_file_bytes,
            writer: None,
            paths: Vec::new(),
            windows: ValueWindows::new(inputs.to_move.len()),
            output: ValueOutput::default(),
            family: None,
            key: Vec::new(),
            value: Bytes::new(),
        }
    }

    /// The record as it goes into the SST.
    pub(crate) fn pass<'s>(
        &'s mut self,
        entry: Entry<'s>,
        schema: &TabletSchema,
    ) -> Result<Entry<'s>> {
        let kind = entry.key.kind();
        match kind {
            Kind::Value if self.is_large(entry.value.len(), entry.key.family(), schema) => {
                self.put_elsewhere(entry.value)?;
                self.rekey(entry.key, Kind::ValueElsewhere)
            }
            Kind::ValueElsewhere => {
                let Some(value) = self.take_out(entry.value)? else { return Ok(entry) };
                if self.is_large(value.len(), entry.key.family(), schema) {
                    self.put_elsewhere(&value)?;
                    self.rekey(entry.key, Kind::ValueElsewhere)
                } else {
                    self.value = value;
                    self.rekey(entry.key, Kind::Value)
                }
            }
            _ => Ok(entry),
        }
    }

    fn is_large(&mut self, len: usize, family: FamilyId, schema: &TabletSchema) -> bool {
        if self.limit.is_none_or(|limit| len < limit) {
            return false;
        }
        match self.family {
            Some((known, may)) if known == family => may,
            _ => {
                let may = schema.family(family).is_some_and(|f| f.aggregate.is_none());
                self.family = Some((family, may));
                may
            }
        }
    }

    /// The record under way, with the key of this one under another kind.
    fn rekey(&mut self, key: KeyView<'_>, kind: Kind) -> Result<Entry<'_>> {
        self.key.clear();
        self.key.extend_from_slice(key.bytes());
        if let Some(last) = self.key.last_mut() {
            *last = kind as u8;
        }
        let key = KeyView::from_parts(&self.key, key.row_len())?;
        Ok(Entry { key, value: &self.value })
    }

    /// Writes a value; its pointer becomes the value of the record under way.
    fn put_elsewhere(&mut self, value: &[u8]) -> Result<()> {
        if let Some(full) = self.writer.take_if(|w| w.bytes() >= self.file_bytes) {
            self.finish_file(full)?;
        }
        let writer = match self.writer.as_mut() {
            Some(writer) => writer,
            None => {
                let id = self.hlc.reserve(1);
                let path = self.layout.value(id);
                let file = self.env.files.create_immutable(&path)?;
                self.paths.push(path);
                self.writer.insert(ValueFileWriter::new(file, id, self.compression))
            }
        };
        let mut pointer = Vec::with_capacity(24);
        writer.add(value)?.encode(&mut pointer);
        self.value = Bytes::from(pointer);
        Ok(())
    }

    /// The value that a pointer leads to, if it is to be moved. One that cannot be read stays where it is, for reads to
    /// report: a compaction that failed for it would stop the tablet.
    fn take_out(&mut self, pointer: &[u8]) -> Result<Option<Bytes>> {
        let Ok(pointer) = ValuePointer::decode(pointer) else { return Ok(None) };
        if !self.inputs.to_move.contains_key(&pointer.file) {
            return Ok(None);
        }
        let Some(file) = self.inputs.files.get(pointer.file) else { return Ok(None) };
        match file.reader().and_then(|reader| self.windows.read(reader, &pointer)) {
            Ok(value) => {
                self.output.moved += u64::from(pointer.stored_len);
                Ok(Some(value))
            }
            Err(error) => {
                file.sticks(&error);
                Ok(None)
            }
        }
    }

    fn finish_file(&mut self, writer: ValueFileWriter) -> Result<()> {
        let summary = writer.finish()?;
        self.output.written += summary.bytes;
        self.output.files.push(summary.id);
        Ok(())
    }

    /// Gives back what it read ahead of values.
    pub(crate) fn let_go(&mut self) {
        self.windows.let_go();
    }

    /// Bytes of value files so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.output.written + self.writer.as_ref().map_or(0, ValueFileWriter::bytes)
    }

    /// Ends and syncs the value files, but for their names.
    pub(crate) fn finish(&mut self) -> Result<ValueOutput> {
        if let Some(writer) = self.writer.take() {
            self.finish_file(writer)?;
        }
        self.paths.clear();
        Ok(std::mem::take(&mut self.output))
    }
}

impl Drop for Separator<'_> {
    /// Removes the files of a job that did not get to its end.
    fn drop(&mut self) {
        drop(self.writer.take());
        for path in self.paths.drain(..) {
            self.store.remove_unfinished(path);
        }
    }
}

impl ValueInputs {
    /// Those of a flush: none.
    pub(crate) fn none() -> Self {
        Self { files: NamedValues::none(), to_move: HashMap::new() }
    }

    /// Bytes of values that it moves.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.to_move.values().sum()
    }
}

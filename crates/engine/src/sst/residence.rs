//! How much of an SST's index and filter is in memory: keeping all of it there, and figures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::block::{BLOCK_OVERHEAD_BYTES, BlockKind};
use super::footer::Handle;
use super::reader::SstReader;
use super::tail::Tail;
use crate::cache::{DataSlots, PartitionId, SLOT_BYTES};
use crate::error::Result;

/// Bytes that are read at once at most when a whole index and filter are loaded: beyond 1 MiB a device gains
/// nothing.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// Bytes between two partitions that are read and thrown away rather than skipped: a page costs less than
/// another read.
const GAP_BYTES_MAX: u64 = 4 << 10;

/// Memory for the index and filter of SSTs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexMemory {
    /// The SSTs' data blocks on disk: what the other figures are measured against.
    pub data_bytes: u64,
    /// In memory as long as the SST is open: top-level index, filter index, dictionary, slots of partitions.
    pub resident_bytes: u64,
    /// Index and filter partitions in memory now.
    pub partition_bytes: u64,
    /// Of these: pinned.
    pub pinned_bytes: u64,
    /// What all partitions would take if they were in memory, with the places of the data blocks that they name. Of
    /// those that are not, their size on disk stands for it, which compression makes smaller.
    pub partition_bytes_all: u64,
    /// Partitions in all.
    pub partitions: u64,
}

impl IndexMemory {
    /// Adds another's figures.
    pub fn add(&mut self, other: &Self) {
        self.data_bytes += other.data_bytes;
        self.resident_bytes += other.resident_bytes;
        self.partition_bytes += other.partition_bytes;
        self.pinned_bytes += other.pinned_bytes;
        self.partition_bytes_all += other.partition_bytes_all;
        self.partitions += other.partitions;
    }

    /// Bytes that stay in memory whatever is read.
    pub fn fixed_bytes(&self) -> u64 {
        self.resident_bytes + self.pinned_bytes
    }
}

/// Bytes that a partition will be charged with once it is loaded, but for the slots of the data blocks that it names.
fn unloaded_bytes(id: PartitionId, handle: Handle) -> u64 {
    let slots = if id.kind() == BlockKind::Index { DataSlots::bytes_of(0) } else { 0 };
    u64::from(handle.len) + BLOCK_OVERHEAD_BYTES + slots as u64
}

/// Bytes of slots for so many data blocks.
fn slot_bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(SLOT_BYTES as u64)
}

/// Partitions one after the other in the file.
struct Run {
    offset: u64,
    end: u64,
    members: Vec<(PartitionId, Handle)>,
}

impl SstReader {
    /// The partitions and where they are.
    fn partitions(&self) -> Result<Vec<(PartitionId, Handle)>> {
        let filters = self.filters();
        let mut all = Vec::with_capacity(self.top().len() + filters.map_or(0, |f| f.len()));
        for at in 0..self.top().len() {
            all.push((PartitionId::Index(at), self.at_top(self.top_entry(at))?.handle));
        }
        for at in 0..filters.map_or(0, |f| f.len()) {
            let entry = filters.map(|f| f.entry(at, self.blocks_end())).transpose();
            if let Some(entry) = self.at_filters(entry)? {
                all.push((PartitionId::Filter(at), entry.handle));
            }
        }
        Ok(all)
    }

    /// Keeps what of its index and filter is in memory, and what reads bring there, until [`SstReader::unpin`]; false where
    /// the cache's budget does not allow it. Does no I/O.
    pub(crate) fn promise(&self) -> Result<bool> {
        let mut bytes = self.reserved_bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            let all = self.partitions()?;
            let unloaded: u64 = all.iter().map(|(id, handle)| unloaded_bytes(*id, *handle)).sum();
            bytes = unloaded.saturating_add(slot_bytes(self.properties().data_blocks));
            // The same whoever comes first.
            self.reserved_bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(self.cache().partitions().pin(&self.directory, bytes))
    }

    /// Loads the whole index and filter and keeps them until [`SstReader::unpin`]; false where the cache's
    /// budget does not allow it. Blocks for a read of about 2 % of the file, in pieces of a megabyte. What
    /// cannot be read is left to the reads that need it.
    pub(crate) fn pin(&self) -> Result<bool> {
        self.pin_with(&Tail::none(self.file().as_ref()))
    }

    /// The same; why it cannot be is told in the log.
    pub(crate) fn pin_or_tell(&self) {
        self.pin_from(&Tail::none(self.file().as_ref()));
    }

    /// The same by what was read already.
    pub(super) fn pin_from(&self, tail: &Tail<'_>) {
        if let Err(error) = self.pin_with(tail) {
            tracing::warn!(%error, "an index and filter cannot be kept in memory");
        }
    }

    fn pin_with(&self, tail: &Tail<'_>) -> Result<bool> {
        if self.is_pinned() {
            return Ok(true);
        }
        if !self.promise()? {
            return Ok(false);
        }
        let mut wanted = self.partitions()?;
        wanted.retain(|(id, _)| self.directory.peek(*id).is_none());
        wanted.sort_by_key(|(_, handle)| handle.offset);
        for run in runs(wanted) {
            let read = tail.read_at(run.offset, (run.end - run.offset) as usize);
            for (id, handle) in &run.members {
                let kept = read.clone().and_then(|bytes| self.keep(&run, *id, *handle, &bytes));
                if let Err(error) = kept {
                    tracing::warn!(%error, "a part of an index or filter cannot be kept in memory");
                }
            }
        }
        Ok(true)
    }

    /// Puts a partition into the directory, from what was read for its run.
    fn keep(&self, run: &Run, id: PartitionId, handle: Handle, bytes: &Bytes) -> Result<()> {
        let start = (handle.offset - run.offset) as usize;
        let end = start + handle.len as usize;
        if end > bytes.len() {
            return Err(self.damaged(handle.offset, "a read came back short"));
        }
        let block = self.decode_block(handle, id.kind(), &bytes.slice(start..end), true)?;
        self.cache().partitions().insert(&self.directory, id, &Arc::new(block));
        Ok(())
    }

    /// Lets its partitions come and go like others.
    pub(crate) fn unpin(&self) {
        self.cache().partitions().unpin(&self.directory);
    }

    /// Whether its index and filter stay in memory.
    pub fn is_pinned(&self) -> bool {
        self.directory.is_pinned()
    }

    /// Memory for its index and filter. Looks at every partition, of which a terabyte has millions.
    pub fn index_memory(&self) -> IndexMemory {
        let partitions = self.partitions().unwrap_or_default();
        let in_memory = self.directory.partition_bytes();
        let mut unnamed = self.properties().data_blocks;
        let all = partitions.iter().map(|(id, handle)| match self.directory.peek(*id) {
            Some(block) => {
                let named = block.index().map_or(0, |index| index.len());
                unnamed = unnamed.saturating_sub(named as u64);
                block.memory_bytes()
            }
            None => unloaded_bytes(*id, *handle),
        });
        let all: u64 = all.sum();
        IndexMemory {
            data_bytes: self.data_bytes(),
            resident_bytes: self.resident_bytes(),
            partition_bytes: in_memory,
            pinned_bytes: if self.is_pinned() { in_memory } else { 0 },
            partition_bytes_all: all.saturating_add(slot_bytes(unnamed)),
            partitions: partitions.len() as u64,
        }
    }
}

/// Joins partitions, in file order, into reads.
fn runs(partitions: Vec<(PartitionId, Handle)>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (id, handle) in partitions {
        let near = runs.last_mut().filter(|run| {
            handle.offset >= run.end
                && handle.offset - run.end <= GAP_BYTES_MAX
                && handle.end() - run.offset <= RUN_BYTES_MAX
        });
        match near {
            Some(run) => {
                run.end = handle.end();
                run.members.push((id, handle));
            }
            None => runs.push(Run {
                offset: handle.offset,
                end: handle.end(),
                members: vec![(id, handle)],
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests;

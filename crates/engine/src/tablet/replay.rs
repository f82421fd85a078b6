//! What the log gives back to a tablet after a stop: memtables, filled before the tablet opens.

use std::sync::Arc;

use crate::cell::{RowBatch, Seq};
use crate::error::Result;
use crate::memtable::{Memtable, MemtableMemory};

use super::write::insert;

/// The memtables of one tablet while the log is replayed. The log is bounded, so they are.
#[derive(Debug)]
pub(crate) struct Replay {
    flushed_seq: Seq,
    memtable_bytes: u64,
    seed: u64,
    memory: MemtableMemory,
    full: Vec<Arc<Memtable>>,
    active: Arc<Memtable>,
    key: Vec<u8>,
}

impl Replay {
    /// Records up to `flushed_seq` are in SSTs and are skipped; `seed` shapes the memtables' towers; they are counted in `memory`.
    pub(crate) fn new(
        flushed_seq: Seq,
        memtable_bytes: u64,
        seed: u64,
        memory: MemtableMemory,
    ) -> Self {
        let active = Memtable::counted(seed, memory.clone());
        Self {
            flushed_seq,
            memtable_bytes,
            seed,
            memory,
            full: Vec::new(),
            active,
            key: Vec::new(),
        }
    }

    /// Takes one record of the log; records come in the order of their sequences.
    pub(crate) fn add(&mut self, first_seq: Seq, batch: &RowBatch) -> Result<()> {
        if first_seq <= self.flushed_seq {
            return Ok(());
        }
        // Nobody waits for the memtable.
        let copied = &mut std::iter::empty();
        insert(&mut self.active.writer(), first_seq, (batch, &[]), copied, &mut self.key)?;
        if self.active.allocated_bytes() >= self.memtable_bytes {
            self.seed = self.seed.wrapping_add(1);
            let next = Memtable::counted(self.seed, self.memory.clone());
            self.full.push(std::mem::replace(&mut self.active, next));
        }
        Ok(())
    }

    /// The memtable that takes writes, and those that wait for a flush, oldest first.
    pub(crate) fn finish(self) -> (Arc<Memtable>, Vec<Arc<Memtable>>) {
        (self.active, self.full)
    }
}

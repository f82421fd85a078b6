//! Blocks that a cursor was supplied with and holds, until it has passed them.

use std::sync::Arc;

use super::block::Block;
use super::cursor::Held;
use super::footer::Handle;
use crate::cache::Ahead;

/// Bytes by which they may change before that is told: short scans tell nothing, and long ones every few blocks.
const TOLD_BYTES: u64 = 256 << 10;

/// The blocks, which count among [those of all cursors](Ahead).
#[derive(Debug)]
pub(super) struct Supplied {
    blocks: Vec<Held>,
    /// Their memory, and as much of it as was told.
    bytes: u64,
    told: u64,
    all: Arc<Ahead>,
}

impl Supplied {
    pub(super) fn new(all: &Arc<Ahead>) -> Self {
        Self { blocks: Vec::new(), bytes: 0, told: 0, all: Arc::clone(all) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block with this handle.
    pub(super) fn get(&self, handle: Handle) -> Option<&Arc<Block>> {
        self.blocks.iter().find(|held| held.handle == handle).map(|held| &held.block)
    }

    pub(super) fn push(&mut self, held: Held) {
        self.bytes += held.block.memory_bytes();
        self.blocks.push(held);
        self.tell();
    }

    /// Keeps those of which `keeps` says so.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(Handle) -> bool) {
        let bytes = &mut self.bytes;
        self.blocks.retain(|held| {
            let keeps = keeps(held.handle);
            if !keeps {
                *bytes -= held.block.memory_bytes();
            }
            keeps
        });
        self.tell();
    }

    /// Whether all cursors together have more than they may.
    pub(super) fn are_too_many(&self) -> bool {
        self.all.is_over()
    }

    fn tell(&mut self) {
        if self.bytes.abs_diff(self.told) >= TOLD_BYTES || self.bytes == 0 && self.told > 0 {
            self.all.change(self.told, self.bytes);
            self.told = self.bytes;
        }
    }

    /// Bytes of them in the file.
    #[cfg(test)]
    pub(super) fn stored_bytes(&self) -> u64 {
        self.blocks.iter().map(|held| u64::from(held.handle.len)).sum()
    }
}

impl Drop for Supplied {
    fn drop(&mut self) {
        if self.told > 0 {
            self.all.change(self.told, 0);
        }
    }
}

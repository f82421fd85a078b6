//! Cursors: the one shape in which memtables, SSTs and merges of them show their records.
//!
//! A cursor does no I/O of its own. An operation that needs a block which is not in memory returns
//! [`Step::Blocked`]; the caller asks the cursor [what it wants](Cursor::wanted), loads that by whatever
//! means it has (an async read that is submitted for all cursors at once, or a blocking read in a
//! compaction), [supplies](Cursor::supply) it and [resumes](Cursor::resume). So one implementation of
//! merging serves both, and a read whose blocks are all cached never awaits and never leaves its thread.
//!
//! ```text
//! seek / next / seek_row_before ──► Ready ──► entry()
//!          ▲                └────► Blocked ──► wanted() ─ load ─► supply() ─► resume() ──► Ready | Blocked ...
//! ```
//!
//! Where a row ends, a cursor may know that without knowing what comes behind it: the next block or the next file, which may be
//! damaged, or of no use to a scan that goes back. It is blocked there too and says that it [has left the
//! row](Cursor::has_left_row). It wants nothing before it is resumed, and another operation may come instead.

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::KeyView;
use crate::error::Result;
use crate::memtable::Totals;
use crate::sst::{Block, BlockRequest, RowSink};

/// What became of a cursor operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// It is done: [`Cursor::entry`] is the record it landed on, or `None` past the end.
    Ready,
    /// It waits for blocks.
    Blocked,
}

/// A record under a cursor.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its key.
    pub key: KeyView<'a>,
    /// Its value (meaning by kind, see [`crate::cell::Kind`]).
    pub value: &'a [u8],
}

/// An ordered run of records. Keys are encoded cell keys; see the module for the protocol.
pub trait Cursor: Send {
    /// Moves to the first record whose key is not less than `target`.
    fn seek(&mut self, target: &[u8]) -> Result<Step>;

    /// Moves to the next record. The cursor must be on one.
    fn next(&mut self) -> Result<Step>;

    /// Moves to the first record of the last row whose prefix is less than `bound` (an encoded row
    /// prefix); an empty `bound` means the last row of all. For reverse scans.
    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step>;

    /// Hands over whole rows, from the one under the cursor on, while each lies in one block in memory, or in a memtable, sorts
    /// before `before` (a row prefix; empty for no bound), and the sink takes it. Ends on the first record
    /// of the first row that was not handed over, or on the way there. The cursor must be on the first
    /// record of a row. A cursor that has no such rows hands over none.
    fn take_rows(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        let _ = (before, sink);
        Ok(Step::Ready)
    }

    /// Shows the row under the cursor to the sink and stays where it is; whether that took it. The cursor must be on the first
    /// record of a row. A row that it shows is one that [`Cursor::take_rows`] hands over to a sink that takes it.
    fn show_row(&self, sink: &mut dyn RowSink) -> Result<bool> {
        let _ = sink;
        Ok(false)
    }

    /// The same as [`Cursor::take_rows`] backward, after a `seek_row_before`: the row under the cursor, and those before it that
    /// sort after `after` (empty for no bound). The cursor does not move: the next
    /// `seek_row_before` is to name the last row that was handed over.
    fn take_rows_back(&mut self, after: &[u8], sink: &mut dyn RowSink) -> Result<()> {
        let _ = (after, sink);
        Ok(())
    }

    /// The record under the cursor; `None` past the end, before the first seek, or while blocked.
    fn entry(&self) -> Option<Entry<'_>>;

    /// The value under the cursor without a copy where the cursor can: the cell's memory is shared.
    fn value_bytes(&self) -> Bytes {
        self.entry().map_or_else(Bytes::new, |e| Bytes::copy_from_slice(e.value))
    }

    /// The qualifier under the cursor, unescaped; shared where the cursor can.
    fn qualifier_bytes(&self) -> Bytes {
        self.entry().map_or_else(Bytes::new, |e| Bytes::from(e.key.qualifier().into_owned()))
    }

    /// The totals of the memtable that the record under the cursor is in, if it is in one.
    fn totals(&self) -> Option<&Arc<Totals>> {
        None
    }

    /// While blocked by a `next`, or by a `seek` to a key of the row that the cursor was on: whether whatever it comes to lies behind
    /// that row.
    fn has_left_row(&self) -> bool {
        false
    }

    /// While blocked: appends the blocks that the cursor waits for.
    fn wanted(&self, out: &mut Vec<BlockRequest>);

    /// Gives the cursor a block that it asked for. A block that it did not ask for is ignored, so a
    /// caller may offer each loaded block to every cursor.
    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>);

    /// Goes on with the blocked operation after its blocks were supplied.
    fn resume(&mut self) -> Result<Step>;
}

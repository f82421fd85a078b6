//! The merge: many cursors shown as one, in key order.
//!
//! What it guarantees:
//!
//! * Records come in ascending key order whatever the children's order; a record that several children
//!   hold (a log replayed over an SST that has it already) comes once.
//! * Every child that an operation must move is moved before the merge says [`Step::Blocked`], so one
//!   round of [`wanted`](Cursor::wanted) names all blocks that the operation needs now and they are
//!   loaded at once.
//! * A seek forward moves only the children that are behind the target.
//! * Between [`MergeCursor::enter_row`] and [`MergeCursor::leave_row`] no child is waited for, and none fails, over what lies behind the
//!   row: one that [has left it](Cursor::has_left_row) stays there.
//!
//! # The heap
//!
//! Children that are on a record stand in a binary min-heap, compared by encoded key. Beside the root,
//! the heap remembers its runner-up for as long as the root is known to be strictly smaller. While
//! one child supplies a run of records, and always with two children, a step costs one comparison:
//!
//! ```text
//!        root ── step ──► still below the runner-up? ── yes ──► done (one comparison)
//!       /    \                                     └─── no ───► sift down, forget the runner-up
//!   runner    .
//! ```
//!
//! # Going back
//!
//! [`MergeCursor::last_row_before`] serves reverse scans: it asks every child for its last row before the
//! bound and shows the greatest of those rows, and only it. A child whose own candidate is a smaller row
//! has nothing in the row shown; it stays *parked* on its candidate. As the scan goes back row by row,
//! the parked child is asked again only after its candidate was shown:
//!
//! ```text
//! bound  child A   child B        shown
//!  --    d         b (parked)     d
//!  d     c         b (parked)     c         A moved, B did not
//!  c     b         b              b         A moved, B joins
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::memtable::Totals;
use crate::read::single::PassOne;
use crate::sst::{Block, BlockRequest, RowSink};

/// Children with the same row that take no memory to remember: more have it hardly ever.
const CHILDREN_INLINE: usize = 8;

/// Numbers of children with the same row.
pub(crate) type OfRow = SmallVec<[usize; CHILDREN_INLINE]>;

/// What is to be done once no child is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    /// Show the children as they stand.
    Heap,
    /// Every child stands on its last row before the bound: choose the greatest. With `single` show
    /// that row alone; otherwise go on to the rows after it.
    ChooseRow { single: bool },
}

/// Where a child stands after [`MergeCursor::last_row_before`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Park {
    /// On or past the row shown: it must be moved to find an earlier row.
    Joined,
    /// On the first record of an earlier row than the one shown.
    Below,
    /// It has no earlier row.
    Exhausted,
}

/// Many cursors as one. See the module for what it guarantees.
pub struct MergeCursor {
    children: Vec<Box<dyn Cursor>>,
    /// Numbers of the children that are on a record to show; least key first.
    heap: Vec<usize>,
    /// The slot of the second least key (0: there is none); `None` where it is unknown or may equal the
    /// root.
    runner: Option<usize>,
    /// Children that wait for blocks.
    blocked: Vec<usize>,
    /// Only the row under the merge is looked at, until `leave_row`.
    in_row: bool,
    /// Children that stopped behind that row, or behind the one row shown.
    left_row: Vec<usize>,
    pending: Pending,
    /// The prefix of the one row shown, after `last_row_before`.
    only_row: Option<Vec<u8>>,
    /// Per child; meaningful while `only_row` is set.
    parked: Vec<Park>,
    /// A row prefix under construction, kept for its memory.
    limit: Vec<u8>,
}

impl fmt::Debug for MergeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergeCursor")
            .field("children", &self.children.len())
            .field("heap", &self.heap)
            .field("blocked", &self.blocked)
            .finish()
    }
}

impl MergeCursor {
    /// A merge of `children`, before its first seek.
    pub fn new(children: Vec<Box<dyn Cursor>>) -> Self {
        let count = children.len();
        Self {
            children,
            heap: Vec::with_capacity(count),
            runner: None,
            blocked: Vec::new(),
            in_row: false,
            left_row: Vec::new(),
            pending: Pending::Heap,
            only_row: None,
            parked: vec![Park::Joined; count],
            limit: Vec::new(),
        }
    }

    /// Moves to the first record of the last row whose prefix is less than `bound` (an empty bound means
    /// the last row of all) and shows that row alone: after its last record [`Cursor::entry`] is `None`.
    /// Seeks forward stay within the row too. Cheapest when `bound` is the prefix of the row that the
    /// last call found, as a reverse scan asks.
    pub fn last_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        let goes_on = self.blocked.is_empty() && self.only_row.as_deref() == Some(bound);
        let result = self.try_row_before(bound, goes_on, true);
        self.settle(result)
    }

    /// The row under the merge is looked at, and nothing behind it: moves are to go to its records or to what comes next. Where that is
    /// nothing, or is of another row, it is not known yet what comes next.
    pub(crate) fn enter_row(&mut self) {
        self.in_row = true;
    }

    /// Ends that, on the first record behind the row or, where the row was not looked at to its end, where the merge stands.
    pub(crate) fn leave_row(&mut self) -> Result<Step> {
        self.in_row = false;
        if self.left_row.is_empty() {
            return Ok(Step::Ready);
        }
        self.runner = None;
        self.pending = Pending::Heap;
        self.blocked.append(&mut self.left_row);
        let result = self.try_resume();
        self.settle(result)
    }

    /// Hands over whole rows from the one shown on, while they come from one child alone and sort before
    /// `before` (a row prefix; empty for no bound); see [`Cursor::take_rows`]. The merge must be on the
    /// first record of a row.
    pub(crate) fn take_single(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        if self.current().is_none() || self.only_row.is_some() {
            return Ok(Step::Ready);
        }
        let runner = self.find_runner();
        let mut limit = std::mem::take(&mut self.limit);
        limit.clear();
        limit.extend_from_slice(before);
        if runner != 0
            && let Some(row) = self.child(self.at(runner)).entry().map(|e| e.key.row_prefix())
        {
            if self.key(0).starts_with(row) {
                self.limit = limit;
                return Ok(Step::Ready);
            }
            if before.is_empty() || row < before {
                limit.clear();
                limit.extend_from_slice(row);
            }
        }
        let root = self.at(0);
        let step = self.child_mut(root).take_rows(&limit, sink);
        self.limit = limit;
        let result = step.map(|step| {
            self.runner = None;
            self.replace(0, step);
            self.end_move()
        });
        self.settle(result)
    }

    /// Shows the row under the merge to the sink by each child that has something of it, and says which are to
    /// [pass it](MergeCursor::pass_row) then; `None` where one was not taken, or there is but one. The merge must be on the first record of a row.
    pub(crate) fn show_joined(&self, sink: &mut dyn RowSink) -> Result<Option<OfRow>> {
        let mut of_row = match self.current().and_then(Cursor::entry) {
            Some(entry) if self.only_row.is_none() => self.children_on(entry.key.row_prefix()),
            _ => return Ok(None),
        };
        if of_row.len() < 2 {
            return Ok(None);
        }
        // Children are sorted by age, and those beneath can tell sooner that they show nothing, before the memtables have made
        // copies.
        of_row.sort_unstable();
        for number in of_row.iter().rev().copied() {
            if !self.child(number).show_row(sink)? {
                return Ok(None);
            }
        }
        Ok(Some(of_row))
    }

    /// Children whose record is of a row.
    fn children_on(&self, row_prefix: &[u8]) -> OfRow {
        let is_on = |number: &usize| {
            self.child(*number).entry().is_some_and(|entry| entry.key.row_prefix() == row_prefix)
        };
        self.heap.iter().copied().filter(is_on).collect()
    }

    /// Moves children on from their row, which each of them has shown.
    pub(crate) fn pass_row(&mut self, of_row: &OfRow) -> Result<Step> {
        let result = self.try_pass_row(of_row);
        self.settle(result)
    }

    fn try_pass_row(&mut self, of_row: &[usize]) -> Result<Step> {
        for number in of_row.iter().copied() {
            let mut pass = PassOne::default();
            let step = self.child_mut(number).take_rows(&[], &mut pass)?;
            debug_assert!(pass.has_passed(), "what shows a row hands it over");
            if step == Step::Blocked {
                self.blocked.push(number);
            }
        }
        self.rebuild();
        Ok(self.end_move())
    }

    /// The same as [`MergeCursor::take_single`] backward, after [`MergeCursor::last_row_before`]: the row shown, and those before it. Go on with
    /// [`MergeCursor::passed_back`], `last_row_before` and the last row that was handed over.
    pub(crate) fn take_single_back(&mut self, sink: &mut dyn RowSink) -> Result<()> {
        let (1, true) = (self.heap.len(), self.blocked.is_empty()) else { return Ok(()) };
        let root = self.at(0);
        let others = self.children.iter().zip(&self.parked).enumerate();
        let below = others
            .filter(|(number, (_, park))| *number != root && **park == Park::Below)
            .filter_map(|(_, (child, _))| child.entry().map(|e| e.key.row_prefix()))
            .max()
            .unwrap_or_default();
        let limit = below.to_vec();
        self.child_mut(root).take_rows_back(&limit, sink)
    }

    /// After rows down to the one with this prefix were taken: the next `last_row_before` goes on from there.
    pub(crate) fn passed_back(&mut self, row_prefix: &[u8]) {
        self.only_row = Some(row_prefix.to_vec());
        self.heap.clear();
        self.runner = None;
    }

    /// On an error no position is left that could be mistaken for a result.
    fn settle(&mut self, result: Result<Step>) -> Result<Step> {
        if result.is_err() {
            self.heap.clear();
            self.blocked.clear();
            self.left_row.clear();
            self.in_row = false;
            self.runner = None;
            self.only_row = None;
            self.pending = Pending::Heap;
        }
        result
    }

    fn child(&self, number: usize) -> &dyn Cursor {
        self.children.get(number).expect("heap and lists hold numbers of children").as_ref()
    }

    fn child_mut(&mut self, number: usize) -> &mut Box<dyn Cursor> {
        self.children.get_mut(number).expect("heap and lists hold numbers of children")
    }

    fn at(&self, slot: usize) -> usize {
        *self.heap.get(slot).expect("slots are checked against the heap's length")
    }

    fn key(&self, slot: usize) -> &[u8] {
        self.child(self.at(slot)).entry().map_or(&[], |e| e.key.bytes())
    }

    /// Orders the children in two slots: by key, then by number so that the order is total.
    fn order(&self, a: usize, b: usize) -> Ordering {
        self.key(a).cmp(self.key(b)).then_with(|| self.at(a).cmp(&self.at(b)))
    }

    /// Whether the child is on a record that the merge may show.
    fn shown(&self, number: usize) -> bool {
        match (self.child(number).entry(), &self.only_row) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(entry), Some(row)) => entry.key.row_prefix() == row.as_slice(),
        }
    }

    fn sift_down(&mut self, mut slot: usize) {
        loop {
            let left = 2 * slot + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let least = if right < self.heap.len() && self.order(right, left).is_lt() {
                right
            } else {
                left
            };
            if self.order(slot, least).is_lt() {
                return;
            }
            self.heap.swap(slot, least);
            slot = least;
        }
    }

    fn sift_up(&mut self, mut slot: usize) {
        while slot > 0 {
            let parent = (slot - 1) / 2;
            if self.order(parent, slot).is_lt() {
                return;
            }
            self.heap.swap(slot, parent);
            slot = parent;
        }
    }

    /// Takes the root or one of its children out. What comes in its place may be too great for it, but
    /// not too small: above it is the root at most.
    fn remove(&mut self, slot: usize) {
        debug_assert!(slot <= 2, "the root or one of its children");
        self.heap.swap_remove(slot);
        self.sift_down(slot);
    }

    /// Builds the heap from where the children stand.
    fn rebuild(&mut self) {
        self.runner = None;
        self.heap.clear();
        for number in 0..self.children.len() {
            if self.shown(number) {
                self.heap.push(number);
                self.sift_up(self.heap.len() - 1);
            }
        }
    }

    /// The slot of the second least key, 0 where there is none.
    fn find_runner(&self) -> usize {
        match self.heap.len() {
            0 | 1 => 0,
            2 => 1,
            _ if self.order(2, 1).is_lt() => 2,
            _ => 1,
        }
    }

    /// Puts the child of a slot, which was moved forward, where it belongs now.
    fn replace(&mut self, slot: usize, step: Step) {
        let number = self.at(slot);
        if step == Step::Blocked {
            self.remove(slot);
            self.wait_for(number);
        } else if self.shown(number) {
            self.sift_down(slot);
        } else {
            self.remove(slot);
        }
    }

    /// Waits for a child that is blocked, unless all it can come to lies behind the only row that is looked at.
    fn wait_for(&mut self, number: usize) {
        let is_row_enough = self.in_row || self.only_row.is_some();
        if is_row_enough && self.child(number).has_left_row() {
            self.left_row.push(number);
        } else {
            self.blocked.push(number);
        }
    }

    fn try_next(&mut self) -> Result<Step> {
        if self.heap.is_empty() {
            return Ok(Step::Ready);
        }
        let runner = match self.runner.take() {
            Some(runner) => runner,
            None => loop {
                let runner = self.find_runner();
                if runner == 0 || self.key(runner) != self.key(0) {
                    break runner;
                }
                let number = self.at(runner);
                let step = self.child_mut(number).next()?;
                self.replace(runner, step);
            },
        };
        let root = self.at(0);
        let step = self.child_mut(root).next()?;
        if step == Step::Ready && self.shown(root) {
            if runner == 0 || self.key(0) < self.key(runner) {
                self.runner = Some(runner);
            } else {
                self.sift_down(0);
            }
        } else {
            self.replace(0, step);
        }
        Ok(self.end_move())
    }

    /// After children were moved with everything else in place.
    fn end_move(&mut self) -> Step {
        if self.blocked.is_empty() {
            Step::Ready
        } else {
            self.pending = Pending::Heap;
            self.runner = None;
            Step::Blocked
        }
    }

    fn try_seek(&mut self, target: &[u8]) -> Result<Step> {
        let forward = self.blocked.is_empty() && !self.heap.is_empty() && self.key(0) <= target;
        if forward {
            self.runner = None;
            while !self.heap.is_empty() && self.key(0) < target {
                let root = self.at(0);
                let step = self.child_mut(root).seek(target)?;
                self.replace(0, step);
            }
            return Ok(self.end_move());
        }
        self.heap.clear();
        self.blocked.clear();
        self.left_row.clear();
        self.in_row = false;
        self.only_row = None;
        self.pending = Pending::Heap;
        for (number, child) in self.children.iter_mut().enumerate() {
            if child.seek(target)? == Step::Blocked {
                self.blocked.push(number);
            }
        }
        self.unblocked()
    }

    /// `goes_on`: the children stand as the last `last_row_before` left them, and `bound` is its row.
    fn try_row_before(&mut self, bound: &[u8], goes_on: bool, single: bool) -> Result<Step> {
        self.heap.clear();
        self.blocked.clear();
        self.left_row.clear();
        self.in_row = false;
        self.runner = None;
        self.pending = Pending::ChooseRow { single };
        if !goes_on {
            self.only_row = None;
            self.parked.fill(Park::Joined);
        }
        for (number, (child, park)) in self.children.iter_mut().zip(&self.parked).enumerate() {
            if *park == Park::Joined && child.seek_row_before(bound)? == Step::Blocked {
                self.blocked.push(number);
            }
        }
        self.unblocked()
    }

    /// Goes on with what is pending if no child is blocked.
    fn unblocked(&mut self) -> Result<Step> {
        if !self.blocked.is_empty() {
            return Ok(Step::Blocked);
        }
        match self.pending {
            Pending::Heap => {
                self.rebuild();
                Ok(Step::Ready)
            }
            Pending::ChooseRow { single } => self.choose_row(single),
        }
    }

    fn choose_row(&mut self, single: bool) -> Result<Step> {
        let candidates = self.children.iter().zip(&self.parked);
        let greatest = candidates
            .filter(|(_, park)| **park != Park::Exhausted)
            .filter_map(|(child, _)| child.entry().map(|e| e.key.row_prefix()))
            .max()
            .map(<[u8]>::to_vec);
        let Some(row) = greatest else {
            // No child has an earlier row: the merge is before its beginning, on nothing.
            self.only_row = None;
            self.heap.clear();
            return Ok(Step::Ready);
        };
        self.pending = Pending::Heap;
        for (number, (child, park)) in self.children.iter_mut().zip(&mut self.parked).enumerate() {
            *park = match child.entry() {
                _ if *park == Park::Exhausted => Park::Exhausted,
                None => Park::Exhausted,
                Some(entry) if entry.key.row_prefix() < row.as_slice() => Park::Below,
                Some(_) => Park::Joined,
            };
            if !single && *park != Park::Joined && child.seek(&row)? == Step::Blocked {
                self.blocked.push(number);
            }
        }
        self.only_row = single.then_some(row);
        self.unblocked()
    }

    fn try_resume(&mut self) -> Result<Step> {
        let waiting = std::mem::take(&mut self.blocked);
        for number in waiting {
            if self.child_mut(number).resume()? == Step::Blocked {
                self.wait_for(number);
            }
        }
        self.unblocked()
    }

    fn current(&self) -> Option<&dyn Cursor> {
        if !self.blocked.is_empty() {
            return None;
        }
        self.heap.first().map(|number| self.child(*number))
    }
}

impl Cursor for MergeCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        let result = self.try_seek(target);
        self.settle(result)
    }

    fn next(&mut self) -> Result<Step> {
        let result = self.try_next();
        self.settle(result)
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        let result = self.try_row_before(bound, false, false);
        self.settle(result)
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.current()?.entry()
    }

    fn value_bytes(&self) -> Bytes {
        self.current().map_or_else(Bytes::new, Cursor::value_bytes)
    }

    fn qualifier_bytes(&self) -> Bytes {
        self.current().map_or_else(Bytes::new, Cursor::qualifier_bytes)
    }

    fn totals(&self) -> Option<&Arc<Totals>> {
        self.current()?.totals()
    }

    fn wanted(&self, out: &mut Vec<BlockRequest>) {
        for number in &self.blocked {
            self.child(*number).wanted(out);
        }
    }

    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>) {
        for number in &self.blocked {
            if let Some(child) = self.children.get_mut(*number) {
                child.supply(request, block);
            }
        }
    }

    fn resume(&mut self) -> Result<Step> {
        let result = self.try_resume();
        self.settle(result)
    }
}

#[cfg(test)]
mod tests;

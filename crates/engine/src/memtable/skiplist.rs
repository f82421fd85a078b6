//! A skiplist of encoded cell keys in an arena: one inserter, any number of readers without locks.
//!
//! ```text
//!            lower addresses                                     higher addresses
//! node:      | next[h-1] | ... | next[1] | next[0] | Header | key bytes | value bytes |
//!                                                  ^
//!                                                  a node's address
//! Header:    older pointer | value_len usize | key_len u32 | row_len u32
//!
//! level 2    head ----------------------------> d ----------------------> null
//! level 1    head ----------> b --------------> d ----------> f --------> null
//! level 0    head ----> a --> b ------> c ----> d ----> e --> f ----> g-> null
//! ```
//!
//! The tower grows downwards from the header, so that the key is at a fixed distance from the node's
//! address, mostly in the same cache line, and a node does not need to know its own height.
//!
//! A column that is written often has hundreds of records, newest first, of which a read wants the first. So a node
//! knows one far behind it in its column, the last where each record is newer than those before it, as is the rule.
//! From there on it is one step to the next column. Records that came in another order make it more steps, or a search.
//!
//! ```text
//! a@4 ──── older ─────────────► a@1          b@3 ─ older ─► b@2
//!  └─► a@3 ─────► a@2 ──────►───┴─► b@3 ─────┴───────────►──┴─► null
//! ```
//!
//! # Why readers need no lock
//!
//! * A node is written completely (tower, header, key, value) before its address is stored into any
//!   `next` pointer, with `Release`. Readers load those pointers with `Acquire`. So who sees a node sees
//!   all of it.
//! * After that nothing of the node changes but its own `next` pointers, which are atomic. `older` names a node that was
//!   published before.
//! * Nodes are linked from level 0 upwards and never unlinked. A reader that finds a node on a high
//!   level before the levels below were linked cannot exist; one that misses a node on a high level
//!   still finds it on level 0.
//! * Of a row that a [hint](super::hints) names, the hint is its first node, or was when the reader began: it is put there once the
//!   node is linked, before the insertion is over.
//! * Memory is freed only with the arena. Whoever holds a node's address ([`ListCursor`],
//!   [`SharedValue`], [`Inserter`]) holds the [`SkipList`], which holds the arena, or borrows it ([`RowPlace`]).
//!
//! That there is one writer is a matter of types: [`SkipList::create`] returns the only [`Inserter`],
//! which cannot be cloned and inserts by `&mut self`.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::arena::{ALIGN, Arena, Bump, Chunk, MemtableMemory};
use super::hints::Hints;
use crate::cell::{KeyView, RowRange, SUFFIX_LEN};
use crate::error::Result;
use crate::random::splitmix64;
use crate::touch::{LINE_BYTES, fetch_at};

/// Levels at most. With one node in [`BRANCHING`] reaching the next level, 12 levels keep searches
/// logarithmic up to 4^12, 16 million records: more than fit in any sensible memtable.
pub(super) const HEIGHT_MAX: usize = 12;

/// One in this many nodes of a level is on the next one too (a power of two). 2 would need fewer
/// comparisons per level but twice the levels and pointers; 4 is Pugh's recommendation
/// ("Skip Lists: A Probabilistic Alternative to Balanced Trees", 1990).
const BRANCHING: u64 = 4;

/// What a node's address points at. The key follows it, then the value; the tower precedes it.
#[repr(C)]
struct Header {
    /// A record of the same column that sorts behind this one, as far behind as was known when it came; null for none.
    older: NodePtr,
    value_len: usize,
    key_len: u32,
    row_len: u32,
}

/// Lines of a record that are fetched ahead, at most: a kilobyte. The processor goes on by itself in a longer one.
const AHEAD_LINES: usize = 16;

/// Records that are stepped over, from the furthest one known on, before what comes behind them is searched for.
const STEPS_MAX: usize = 8;

/// Searches at once in [`SkipList::fetch_paths`]: as many as a core has requests to memory under way, about. Twice as many
/// gain nothing more.
const DESCENTS: usize = 8;

const HEADER_BYTES: usize = size_of::<Header>();
const LINK_BYTES: usize = size_of::<Link>();
const _: () = assert!(HEADER_BYTES.is_multiple_of(ALIGN) && LINK_BYTES.is_multiple_of(ALIGN));
const _: () = assert!(align_of::<Header>() <= ALIGN && align_of::<Link>() <= ALIGN);

type Link = AtomicPtr<Header>;
/// A node's address, with the provenance of its whole chunk. Null: no node.
type NodePtr = *mut Header;

/// The link of `node` on `level`.
///
/// # Safety
/// `node` is a node of a living arena and its height exceeds `level`.
unsafe fn link<'a>(node: NodePtr, level: usize) -> &'a Link {
    // SAFETY: the tower of `height > level` links ends where the header starts, all in the node's own
    // allocation, and every link was initialised before the node's address was published.
    unsafe { &*node.cast::<Link>().sub(level + 1) }
}

/// The node after `node` on `level`; null at the end.
///
/// # Safety
/// As for [`link`].
unsafe fn next(node: NodePtr, level: usize) -> NodePtr {
    // SAFETY: the caller's promise. Acquire pairs with the Release in `Inserter::insert`.
    unsafe { link(node, level) }.load(Ordering::Acquire)
}

/// The key of `node`.
///
/// # Safety
/// `node` is a published node (or the head) of an arena that lives for all of `'a`.
unsafe fn key<'a>(node: NodePtr) -> &'a [u8] {
    // SAFETY: `key_len` initialised bytes follow the header in the node's allocation and never change
    // once it is published.
    unsafe {
        let start = node.cast::<u8>().add(HEADER_BYTES);
        std::slice::from_raw_parts(start, (*node).key_len as usize)
    }
}

/// Begins to fetch a node: its tower's lower end, its header, and most of its key. Null does no harm.
#[inline]
fn fetch_node(node: NodePtr) {
    fetch_at(node.cast::<u8>().wrapping_sub(1));
    fetch_at(node.cast());
}

/// The value of `node`.
///
/// # Safety
/// As for [`key`].
unsafe fn value<'a>(node: NodePtr) -> &'a [u8] {
    // SAFETY: `value_len` initialised bytes follow the key in the node's allocation and never change
    // once it is published.
    unsafe {
        let start = node.cast::<u8>().add(HEADER_BYTES + (*node).key_len as usize);
        std::slice::from_raw_parts(start, (*node).value_len)
    }
}

/// The record of `node`.
///
/// # Safety
/// As for [`key`], and `node` is not the head.
unsafe fn record<'a>(node: NodePtr) -> Record<'a> {
    // SAFETY: the caller's promise.
    let (key, value, row_len) = unsafe { (key(node), value(node), (*node).row_len) };
    let key = KeyView::from_parts(key, row_len as usize)
        .expect("the lengths are those of the KeyView that was inserted");
    Record { key, value }
}

/// Whether `node` is a record of the column with this prefix.
///
/// # Safety
/// As for [`key`].
unsafe fn is_of_column(node: NodePtr, column_prefix: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    let key = unsafe { key(node) };
    // A key is its column's prefix and a suffix of one length.
    key.len() == column_prefix.len() + SUFFIX_LEN && key.starts_with(column_prefix)
}

/// The furthest record that is known of the column with this prefix, from `following` on; null where that is none of its.
///
/// # Safety
/// `following` is null or as for [`key`].
unsafe fn furthest(following: NodePtr, column_prefix: &[u8]) -> NodePtr {
    // SAFETY: the caller's promise; null is not looked into.
    if following.is_null() || !unsafe { is_of_column(following, column_prefix) } {
        return ptr::null_mut();
    }
    // SAFETY: as above. What it points at is of the same column, and so a node of the same list.
    let older = unsafe { (*following).older };
    if older.is_null() { following } else { older }
}

/// Bytes of `node` from its header on.
///
/// # Safety
/// As for [`key`].
unsafe fn node_bytes(node: NodePtr) -> usize {
    // SAFETY: the header is initialised and never changes once the node is published.
    let Header { value_len, key_len, .. } = unsafe { &*node };
    HEADER_BYTES + *key_len as usize + value_len
}

/// The list as readers see it.
#[derive(Debug)]
pub(super) struct SkipList {
    arena: Arc<Arena>,
    /// A node of full height without key and value; never compared.
    head: NodePtr,
    /// Levels in use. Only a hint of where to start: a stale value costs a reader some steps.
    height: AtomicUsize,
    /// Nodes that begin rows.
    hints: Hints<Header>,
}

// SAFETY: the list is memory owned by the arena, reached through atomics by the rules at the top of
// this file; nothing is bound to a thread.
unsafe impl Send for SkipList {}
// SAFETY: `&SkipList` offers searches only, which follow those rules; all writes go through the one
// `Inserter`.
unsafe impl Sync for SkipList {}

impl SkipList {
    /// An empty list and its only writer. `seed` decides the heights; its memory is counted in `memory`.
    pub(super) fn create(seed: u64, memory: MemtableMemory) -> (Arc<Self>, Inserter) {
        let arena = Arc::new(Arena::counted(memory));
        let mut bump = Bump::new(Arc::clone(&arena));
        let head = new_node(&mut bump, HEIGHT_MAX, NewRecord::default());
        let (height, hints) = (AtomicUsize::new(1), Hints::default());
        let list = Arc::new(Self { arena, head, height, hints });
        let inserter =
            Inserter { list: Arc::clone(&list), bump, random: seed, before: [head; HEIGHT_MAX] };
        (list, inserter)
    }

    /// Bytes of memory that the list holds.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.arena.reserved_bytes()
    }

    /// Of these, bytes of hints.
    #[cfg(test)]
    pub(super) fn hints_bytes(&self) -> u64 {
        self.hints.bytes()
    }

    /// Whether it is remembered where the row with this prefix begins, or where another one does that cannot be told from it.
    #[cfg(test)]
    pub(super) fn remembers(&self, row_prefix: &[u8]) -> bool {
        !self.hints.get(row_prefix).is_null()
    }

    /// The first node whose key is not less than `target`, or null. Writes the last node before it on
    /// every level in use into `before`, where given.
    fn find(&self, target: &[u8], before: Option<&mut [NodePtr; HEIGHT_MAX]>) -> NodePtr {
        let height = self.height.load(Ordering::Relaxed);
        // SAFETY: the head has full height and is before all keys.
        unsafe { Self::descend(self.head, height, ptr::null_mut(), target, before) }
    }

    /// The same as [`Self::find`], for which `before` is that of an earlier search: one that goes on from there goes up only as
    /// far as it must, and down again. So it costs the logarithm of how many nodes lie between, and those are the ones
    /// that were met last.
    fn find_from(&self, target: &[u8], before: &mut [NodePtr; HEIGHT_MAX]) -> NodePtr {
        let [last, ..] = *before;
        // SAFETY: `last` is a node of the list.
        if last == self.head || unsafe { key(last) } >= target {
            return self.find(target, Some(before));
        }
        // No node of `before` lies behind `last`, so all are less than the target.
        let height = self.height.load(Ordering::Relaxed);
        let (mut from, mut levels, mut not_less) = (last, 0, ptr::null_mut());
        for (level, node) in before.iter().copied().enumerate().take(height) {
            // SAFETY: what stands in `before` for a level is a node of that level, or the head.
            let next = unsafe { next(node, level) };
            // SAFETY: not null and loaded from a link, so a published node.
            if next.is_null() || unsafe { key(next) } >= target {
                not_less = next;
                break;
            }
            (from, levels) = (node, level + 1);
        }
        // SAFETY: `from` is of level `levels - 1`, or there is no level to go down; and less than the target.
        unsafe { Self::descend(from, levels, not_less, target, Some(before)) }
    }

    /// Searches from `node` on its way down from below `levels`; where there is none, `not_less` is the answer.
    ///
    /// # Safety
    /// `node` is the head, or a node whose key is less than `target`, of a list that is alive; its height is `levels` at
    /// least. `not_less` is null or the first node on level `levels` whose key is not less.
    unsafe fn descend(
        mut node: NodePtr,
        levels: usize,
        mut not_less: NodePtr,
        target: &[u8],
        mut before: Option<&mut [NodePtr; HEIGHT_MAX]>,
    ) -> NodePtr {
        for level in (0..levels).rev() {
            loop {
                // SAFETY: `node` is what was given or was reached by a link of `level` or above, so its
                // height exceeds `level`; the arena lives as long as the list.
                let next = unsafe { next(node, level) };
                // A node that the level above has shown to be too far needs no second comparison.
                if next.is_null() || next == not_less {
                    break;
                }
                if let Some(below) = level.checked_sub(1) {
                    // Where the search goes from here if `next` is too far: on its way while `next` is.
                    // SAFETY: as above, of a lower level.
                    fetch_node(unsafe { self::next(node, below) });
                }
                // SAFETY: `next` was loaded from a link, so it is a published node.
                if unsafe { key(next) } >= target {
                    not_less = next;
                    break;
                }
                node = next;
            }
            if let Some(slot) = before.as_deref_mut().and_then(|b| b.get_mut(level)) {
                *slot = node;
            }
        }
        // On level 0 the loop ended at the answer: at a node that it compared, at the one that a higher
        // level had shown to be the first, or at the end. Whoever sees a node on a high level sees it on
        // level 0 too, so the end is met only where no level met a node that is not less.
        not_less
    }

    /// The records of the row with this prefix, from the first on; `None` where there is none.
    pub(super) fn row(self: &Arc<Self>, row_prefix: &[u8]) -> Option<RowPlace<'_>> {
        // SAFETY: not null and loaded from a link or a hint, so a published node; the list is alive.
        let is_there =
            |node: NodePtr| !node.is_null() && unsafe { key(node) }.starts_with(row_prefix);
        let mut node = self.hints.get(row_prefix);
        if !is_there(node) {
            node = self.find(row_prefix, None);
        }
        is_there(node).then_some(RowPlace { list: self, node, row_len: row_prefix.len() })
    }

    /// Walks to where each of `targets` is or would be, several of them at a time, so that their waits for memory
    /// overlap: a search for one of them finds its way in the processor's cache soon after.
    pub(super) fn fetch_paths<'t>(&self, mut targets: impl Iterator<Item = &'t [u8]>) {
        let mut begin = || targets.next().map(|target| Descent::new(self, target));
        let mut under_way: Vec<_> = std::iter::from_fn(&mut begin).take(DESCENTS).collect();
        while !under_way.is_empty() {
            let mut at = 0;
            while let Some(descent) = under_way.get_mut(at) {
                if descent.step() {
                    at += 1;
                } else if let Some(next) = begin() {
                    *descent = next;
                    at += 1;
                } else {
                    under_way.swap_remove(at);
                }
            }
        }
    }

    /// The last node whose key is less than `bound` (of all, where `bound` is empty), or null.
    fn find_before(&self, bound: &[u8]) -> NodePtr {
        let mut node = self.head;
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            loop {
                // SAFETY: as in `find`.
                let next = unsafe { next(node, level) };
                // SAFETY: not null and loaded from a link, so a published node.
                if next.is_null() || (!bound.is_empty() && unsafe { key(next) } >= bound) {
                    break;
                }
                node = next;
            }
        }
        if node == self.head { ptr::null_mut() } else { node }
    }
}

/// A record of a row, in a list that is borrowed: for who walks over the row on the spot.
#[derive(Debug)]
pub(super) struct RowPlace<'a> {
    list: &'a Arc<SkipList>,
    /// Never null.
    node: NodePtr,
    row_len: usize,
}

impl<'a> RowPlace<'a> {
    /// The record.
    pub(super) fn record(&self) -> Record<'a> {
        // SAFETY: a published node of `list`, which is borrowed for all of `'a`.
        unsafe { record(self.node) }
    }

    /// The value of the record as memory that outlives the borrow.
    pub(super) fn shared_value(&self) -> SharedValue {
        SharedValue { value: ptr::from_ref(self.record().value), _list: Arc::clone(self.list) }
    }

    /// Moves to the row's next record; `false` where there is none.
    pub(super) fn advance(&mut self) -> bool {
        // SAFETY: a published node of `list`, and every node is on level 0.
        let node = unsafe { next(self.node, 0) };
        self.move_to(node)
    }

    /// Moves behind the records whose keys begin with the first `prefix_len` bytes of this one's, at least the row's;
    /// `false` where the row has no more.
    pub(super) fn advance_past(&mut self, prefix_len: usize) -> bool {
        let node = self.behind(prefix_len);
        self.move_to(node)
    }

    /// The first node behind those; null for none.
    fn behind(&self, prefix_len: usize) -> NodePtr {
        // SAFETY: a published node of `list`, which is borrowed for all of `'a`.
        let prefix = unsafe { key(self.node) }.get(..prefix_len).unwrap_or_default();
        // SAFETY: for a node that is not null, as above.
        let is_passed = |node: NodePtr| !node.is_null() && unsafe { key(node) }.starts_with(prefix);
        // SAFETY: as above.
        let older = unsafe { (*self.node).older };
        let mut node = if is_passed(older) { older } else { self.node };
        for _ in 0..STEPS_MAX {
            // SAFETY: as above, and every node is on level 0.
            node = unsafe { next(node, 0) };
            if !is_passed(node) {
                return node;
            }
        }
        self.list.find(&RowRange::prefix(prefix).end, None)
    }

    fn move_to(&mut self, node: NodePtr) -> bool {
        // SAFETY: a published node of `list`, as all that links lead to.
        let row = unsafe { key(self.node) }.get(..self.row_len);
        // SAFETY: not null, and as above.
        let is_same = !node.is_null() && unsafe { key(node) }.get(..self.row_len) == row;
        if is_same {
            self.node = node;
        }
        is_same
    }
}

/// A search that pauses wherever it would wait for memory: [`SkipList::find`] in steps.
struct Descent<'a> {
    /// Keeps the nodes alive.
    _list: &'a SkipList,
    target: &'a [u8],
    /// The last node known to be before the target.
    node: NodePtr,
    /// Where `node` is left from.
    level: usize,
    not_less: NodePtr,
    /// The node to compare next, which is on its way; null before the first step.
    ahead: NodePtr,
}

impl<'a> Descent<'a> {
    fn new(list: &'a SkipList, target: &'a [u8]) -> Self {
        let level = list.height.load(Ordering::Relaxed).saturating_sub(1);
        let nothing = ptr::null_mut();
        Self { _list: list, target, node: list.head, level, not_less: nothing, ahead: nothing }
    }

    /// Compares one node and begins to fetch the next one; `false` where there is none.
    fn step(&mut self) -> bool {
        if !self.ahead.is_null() {
            // SAFETY: loaded from a link, so a published node; the list is alive.
            if unsafe { key(self.ahead) } >= self.target {
                self.not_less = self.ahead;
            } else {
                self.node = self.ahead;
            }
        }
        loop {
            // SAFETY: `node` is the head or was reached by a link of `level` or above, so its height exceeds `level`.
            let ahead = unsafe { next(self.node, self.level) };
            if !ahead.is_null() && ahead != self.not_less {
                fetch_node(ahead);
                self.ahead = ahead;
                return true;
            }
            let Some(below) = self.level.checked_sub(1) else { return false };
            self.level = below;
        }
    }
}

/// What a node is made of.
struct NewRecord<'a> {
    key: &'a [u8],
    row_len: u32,
    value: NewValue<'a>,
    older: NodePtr,
}

/// A value that is to be inserted.
pub(super) enum NewValue<'a> {
    /// It is copied then.
    Bytes(&'a [u8]),
    /// It was copied before.
    Placed(Placed),
}

impl Default for NewRecord<'_> {
    fn default() -> Self {
        Self { key: &[], row_len: 0, value: NewValue::Bytes(&[]), older: ptr::null_mut() }
    }
}

/// The memory of a node in which the value is where it belongs, and nothing else: for insertions that must be short. It has room for a
/// key of one length and for the highest tower.
///
/// ```text
/// | room for HEIGHT_MAX links | Header | key | value bytes |
///   the node begins further behind, if its tower is lower
/// ```
#[derive(Debug)]
pub(super) struct Placed {
    chunk: Chunk,
    key_len: usize,
    value_len: usize,
}

impl Placed {
    const TOWER_BYTES: usize = HEIGHT_MAX * LINK_BYTES;

    /// Copies a value for a key of `key_len` bytes.
    pub(super) fn new(key_len: usize, value: &[u8]) -> Self {
        let value_at = Self::TOWER_BYTES + HEADER_BYTES + key_len;
        let chunk = Chunk::new(value_at + value.len());
        // SAFETY: the chunk is fresh and that long, and `value` is other memory.
        unsafe {
            let to = chunk.start().add(value_at);
            ptr::copy_nonoverlapping(value.as_ptr(), to.as_ptr(), value.len());
        }
        Self { chunk, key_len, value_len: value.len() }
    }
}

/// A node whose links are null, in memory of the arena: fresh memory, or that in which its value is.
fn new_node(bump: &mut Bump, height: usize, record: NewRecord<'_>) -> NodePtr {
    assert!(height <= HEIGHT_MAX, "a tower of {height} links");
    let NewRecord { key, row_len, value, older } = record;
    let key_len = u32::try_from(key.len()).expect("limits keep keys far below 4 GiB");
    let tower = height * LINK_BYTES;
    let (start, value_len) = match value {
        NewValue::Bytes(value) => {
            let value_at = tower + HEADER_BYTES + key.len();
            let start = bump.alloc(value_at + value.len());
            // SAFETY: the allocation is fresh and that long, and `value` is other memory.
            unsafe {
                let to = start.add(value_at);
                ptr::copy_nonoverlapping(value.as_ptr(), to.as_ptr(), value.len());
            }
            (start, value.len())
        }
        NewValue::Placed(Placed { chunk, key_len, value_len }) => {
            assert_eq!(key.len(), key_len, "the value was placed behind a key of another length");
            // SAFETY: the chunk has room for a tower of HEIGHT_MAX, and so where it begins for a lower one; it is aligned, as are links.
            (unsafe { bump.own(chunk).add(Placed::TOWER_BYTES - tower) }, value_len)
        }
    };
    // SAFETY: the memory is nobody else's, aligned to ALIGN, and holds the value behind the three parts written here, which are disjoint
    // and in the order of the drawing at the top. `key` is other memory.
    unsafe {
        for i in 0..height {
            start.cast::<Link>().add(i).write(AtomicPtr::new(ptr::null_mut()));
        }
        let node = start.add(tower).cast::<Header>();
        node.write(Header { older, value_len, key_len, row_len });
        let bytes: NonNull<u8> = node.cast::<u8>().add(HEADER_BYTES);
        ptr::copy_nonoverlapping(key.as_ptr(), bytes.as_ptr(), key.len());
        node.as_ptr()
    }
}

/// The one writer of a list.
#[derive(Debug)]
pub(super) struct Inserter {
    list: Arc<SkipList>,
    bump: Bump,
    /// State of the generator of heights.
    random: u64,
    /// Per level, the last node at or before the newest insertion: an insertion right behind the one
    /// before it (the next cell of a row, an ascending load) starts here and compares once.
    before: [NodePtr; HEIGHT_MAX],
}

// SAFETY: the pointers are nodes of `list`, which is `Send` and kept alive here; nothing is bound to a
// thread.
unsafe impl Send for Inserter {}

impl Inserter {
    /// Inserts a record; a key that is there already stays as it is, and the answer is `false`.
    pub(super) fn insert(&mut self, new_key: KeyView<'_>, new_value: NewValue<'_>) -> bool {
        let target = new_key.bytes();
        let following = if self.follows_directly(target) {
            // SAFETY: `before[0]` is the head or a node of the list, all of which are on level 0.
            unsafe { next(self.before_at(0), 0) }
        } else if self.is_in_row_of_last(new_key.row_prefix()) {
            // A wide row that is overwritten: a few nodes further on.
            self.list.find_from(target, &mut self.before)
        } else {
            self.list.find(target, Some(&mut self.before))
        };
        // SAFETY: not null and loaded from a link, so a published node; the list is alive.
        if !following.is_null() && unsafe { key(following) } == target {
            return false;
        }

        let height = self.random_height();
        let used = self.list.height.load(Ordering::Relaxed);
        if height > used {
            // Levels that were not in use hold nothing but the head.
            for slot in self.before.iter_mut().skip(used) {
                *slot = self.list.head;
            }
            self.list.height.store(height, Ordering::Relaxed);
        }
        let row_len = u32::try_from(new_key.row_len()).expect("no longer than the key");
        // SAFETY: null, or loaded from a link, so a published node; the list is alive.
        let older = unsafe { furthest(following, new_key.column_prefix()) };
        let record = NewRecord { key: target, row_len, value: new_value, older };
        let node = new_node(&mut self.bump, height, record);
        let last = self.before_at(0);
        for (level, slot) in self.before.iter_mut().enumerate().take(height) {
            // SAFETY: `*slot` is the last node before `target` on `level`, or the head, so its height
            // exceeds `level`; `node` has `height > level` links. This is the only writer, so what is
            // loaded cannot change before the store. The Release publishes the whole node.
            unsafe {
                let behind = link(*slot, level).load(Ordering::Relaxed);
                link(node, level).store(behind, Ordering::Relaxed);
                link(*slot, level).store(node, Ordering::Release);
            }
            *slot = node;
        }
        let row_prefix = new_key.row_prefix();
        // SAFETY: the head, or a node of the list.
        let is_first = last == self.list.head || !unsafe { key(last) }.starts_with(row_prefix);
        if is_first {
            self.list.hints.put(row_prefix, node);
            let bytes = self.list.hints.grow(self.list.reserved_bytes());
            if bytes > 0 {
                // Seldom: all memtables count in one place.
                self.list.arena.count(bytes);
            }
        }
        true
    }

    fn before_at(&self, level: usize) -> NodePtr {
        self.before.get(level).copied().unwrap_or(self.list.head)
    }

    /// Whether `target` belongs directly behind the newest insertion. Then that is so on every level:
    /// what follows `before[l]` on level `l` is no earlier than what follows it on level 0.
    fn follows_directly(&self, target: &[u8]) -> bool {
        let last = self.before_at(0);
        if last == self.list.head {
            return false;
        }
        // SAFETY: `last` is a node of the list and on level 0; what its link holds is a published node.
        unsafe {
            let behind = next(last, 0);
            key(last) < target && (behind.is_null() || key(behind) >= target)
        }
    }

    fn is_in_row_of_last(&self, row_prefix: &[u8]) -> bool {
        let last = self.before_at(0);
        // SAFETY: a node of the list, all of which are published.
        last != self.list.head && unsafe { key(last) }.starts_with(row_prefix)
    }

    /// From 1 to [`HEIGHT_MAX`], each one [`BRANCHING`] times rarer than the one below.
    fn random_height(&mut self) -> usize {
        let bits = splitmix64(&mut self.random);
        let zeros = (bits.trailing_zeros() / BRANCHING.trailing_zeros()) as usize;
        (zeros + 1).min(HEIGHT_MAX)
    }
}

/// A place in a list, which it keeps alive. It may stand on a record or on none.
#[derive(Debug, Clone)]
pub(super) struct ListCursor {
    list: Arc<SkipList>,
    /// A node of `list`, or null.
    node: NodePtr,
    /// Per level, the last node before what was sought last, or the head: from there on to what is sought next.
    before: [NodePtr; HEIGHT_MAX],
}

// SAFETY: `node` and `before` point into memory that `list` keeps alive, and `SkipList` is `Send` and `Sync`.
unsafe impl Send for ListCursor {}
// SAFETY: as for `Send`; `&ListCursor` only reads published nodes.
unsafe impl Sync for ListCursor {}

/// A record under a [`ListCursor`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    /// The encoded cell key.
    pub(super) key: KeyView<'a>,
    /// The value.
    pub(super) value: &'a [u8],
}

impl ListCursor {
    /// A cursor on no record.
    pub(super) fn new(list: Arc<SkipList>) -> Self {
        let before = [list.head; HEIGHT_MAX];
        Self { list, node: ptr::null_mut(), before }
    }

    /// Moves to the first record whose key is not less than `target`; to none where there is none.
    pub(super) fn seek(&mut self, target: &[u8]) {
        self.node = self.list.find_from(target, &mut self.before);
    }

    /// Moves to the last record whose key is less than `bound`, or to the last of all where `bound` is
    /// empty; to none where there is none.
    pub(super) fn seek_before(&mut self, bound: &[u8]) {
        self.node = self.list.find_before(bound);
    }

    /// Moves to the next record; a cursor on none stays there.
    pub(super) fn advance(&mut self) {
        if !self.node.is_null() {
            // SAFETY: `node` is a published node of `list`, and every node is on level 0.
            self.node = unsafe { next(self.node, 0) };
        }
    }

    /// The row of the record, from there on.
    pub(super) fn row(&self) -> Option<RowPlace<'_>> {
        let row_len = self.record()?.key.row_len();
        Some(RowPlace { list: &self.list, node: self.node, row_len })
    }

    /// Has `walk` walk over the row of the record and moves to the next row, unless it gives no place in it; whether it moved.
    pub(super) fn pass_row(
        &mut self,
        walk: impl for<'a> FnOnce(RowPlace<'a>) -> Result<Option<RowPlace<'a>>>,
    ) -> Result<bool> {
        let Some(row) = self.row() else { return Ok(false) };
        let row_len = row.row_len;
        // A place that outlives nothing but this borrow is one in this list.
        let Some(last) = walk(row)? else { return Ok(false) };
        self.node = last.behind(row_len);
        Ok(true)
    }

    /// Begins to fetch the record behind the one under the cursor, which lies anywhere in memory: for whoever
    /// goes on to it and has something to do until then.
    pub(super) fn fetch_next(&self) {
        if self.node.is_null() {
            return;
        }
        // SAFETY: `node` is a published node of `list`, and every node is on level 0.
        let (ahead, bytes) = unsafe { (next(self.node, 0), node_bytes(self.node)) };
        // Records that lie next to each other are about as long.
        for line in 0..(bytes / LINE_BYTES + 1).min(AHEAD_LINES) {
            fetch_at(ahead.cast::<u8>().wrapping_add(line * LINE_BYTES));
        }
    }

    /// Moves to no record.
    pub(super) fn clear(&mut self) {
        self.node = ptr::null_mut();
    }

    /// The record, valid while the cursor is not moved.
    pub(super) fn record(&self) -> Option<Record<'_>> {
        // SAFETY: where not null, `node` is a published node of `list`, which lives as long as `self`.
        (!self.node.is_null()).then(|| unsafe { record(self.node) })
    }

    /// The value of the record as memory that outlives the cursor; `None` on no record.
    pub(super) fn shared_value(&self) -> Option<SharedValue> {
        let value = ptr::from_ref(self.record()?.value);
        Some(SharedValue { value, _list: Arc::clone(&self.list) })
    }
}

/// A value that keeps its list alive.
#[derive(Debug)]
pub(super) struct SharedValue {
    value: *const [u8],
    _list: Arc<SkipList>,
}

// SAFETY: the value is memory that nobody writes and that `_list`, itself `Send`, keeps alive.
unsafe impl Send for SharedValue {}

impl AsRef<[u8]> for SharedValue {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `value` is the value of a published node of `_list`, so it never changes, and it
        // lives as long as `self`.
        unsafe { &*self.value }
    }
}

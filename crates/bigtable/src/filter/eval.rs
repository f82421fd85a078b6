//! Evaluating a filter on one row.
//!
//! A filter maps a list of cells to a list of cells. Lists stay in the engine's order (family id,
//! qualifier, timestamp descending) at every step, so "the first", "the newest" and "one column" are
//! neighbours. A chain works on one list in place; an interleave gives each branch a copy (values are
//! shared memory) and sorts the pooled results stably; a sink moves its cells to a list of its own, which
//! joins the output at the very end.
//!
//! All of it happens in one go on a thread that others wait for, and a filter of 20 KB can ask for anything. So cells are
//! counted in three ways, each with its limit: what a step makes, what is held at once, and what all steps go through. To the last
//! belong the bytes that are compared, at [`BYTES_A_STEP`] for a cell, and the work of automata.

use std::cmp::Reverse;
use std::fmt;

use bytes::Bytes;
use tepui_engine::cell::FamilyId;
use tepui_engine::io::Rng;
use tepui_engine::limits::ROW_READ_BYTES_MAX;

use super::node::Node;
use super::{FamilyNames, Filter, RowCell};
use crate::error::{Error, Result, ShownBytes};
use crate::regex::{BYTES_A_STEP, Regex};

/// Cells that the copies of one row may come to within a filter. Interleaves in a chain multiply: a few
/// hundred bytes of filter could ask for more cells than there is memory. Two million hold a row of the
/// largest size whose cells have a hundred bytes each.
const CELLS_MAX: usize = 2 << 20;

/// Cells of all lists of one row that are held at once. A branch that works on the largest row needs three such lists:
/// what the other branches are to have, its copy, and what came out of those before it. At a hundred bytes each they take
/// 600 MiB. Only nested interleaves and conditions that narrow nothing hold more, a list for each level.
const CELLS_HELD_MAX: usize = 3 * CELLS_MAX;

/// Cells that all steps together go through for one row: 64 steps over a row of the largest size, or 128 over one of a
/// million cells. It takes seconds, during which nothing else runs on the thread; a filter has room for thousands of steps.
const CELLS_GONE_THROUGH_MAX: u64 = 64 * CELLS_MAX as u64;

/// Steps over each cell up to which a filter has few.
const FEW_STEPS: u64 = 8;

/// Bytes of a value that are compared with a mask in the time of one step: they are, byte by byte.
const MASK_BYTES_A_STEP: usize = 32;

pub(super) struct Evaluation<'a, C: RowCell> {
    key: &'a [u8],
    /// What the cells lie in.
    memory: &'a C::Memory,
    families: &'a dyn FamilyNames,
    rng: &'a dyn Rng,
    /// What sinks took.
    sunk: Vec<C>,
    /// How many lists that is.
    sunk_lists: usize,
    /// Cells that wait while a copy of them, or of others, is worked on.
    waiting: usize,
    /// Whether the bytes of qualifiers are counted. In few steps they are not compared for longer than it took to read them, and to look
    /// at each would take longer than most such filters.
    weighs: bool,
    /// Of [`STEPS`]; where none is left, it was more than may be.
    steps_left: u64,
}

/// Cells that may be gone through at first.
pub(super) const STEPS: u64 = CELLS_GONE_THROUGH_MAX + 1;

impl<'a, C: RowCell> Evaluation<'a, C> {
    pub(super) fn new(
        key: &'a [u8],
        memory: &'a C::Memory,
        families: &'a dyn FamilyNames,
        rng: &'a dyn Rng,
        steps_left: u64,
    ) -> Self {
        let (sunk, sunk_lists) = (Vec::new(), 0);
        Self { key, memory, families, rng, sunk, sunk_lists, waiting: 0, weighs: false, steps_left }
    }

    /// The output of a filter for a row of these cells, and how many cells the steps went through.
    pub(super) fn run(mut self, filter: &Filter, mut cells: Vec<C>) -> Result<(Vec<C>, u64)> {
        self.weighs = filter.work.cells > FEW_STEPS;
        self.apply(&filter.root, &mut cells)?;
        if !self.sunk.is_empty() {
            cells.append(&mut self.sunk);
            self.sort(&mut cells, self.sunk_lists + 1)?;
        }
        // Without copies, the row is no larger than the engine lets a read be.
        if filter.duplicates {
            let bytes: u64 = cells.iter().map(C::bytes).sum();
            if bytes > ROW_READ_BYTES_MAX {
                return Err(self
                    .too_large(format_args!("makes more than {ROW_READ_BYTES_MAX} bytes of it")));
            }
        }
        Ok((cells, STEPS - self.steps_left))
    }

    /// Recursion is bounded by the depth that compilation allows.
    fn apply(&mut self, node: &Node, cells: &mut Vec<C>) -> Result<()> {
        let memory = self.memory;
        self.go_through(match node {
            // Their parts are counted, and the copies that they make; or what the pattern takes for each value.
            Node::Chain(_)
            | Node::Interleave { .. }
            | Node::Condition { .. }
            | Node::ValueRegex(_) => 0,
            Node::QualifierRegex(_) | Node::ColumnRange { .. } | Node::ColumnLimit(_) => {
                self.columns(cells)
            }
            Node::ValueRange(range) if range.bound_len() >= BYTES_A_STEP => {
                compared(cells, |cell| cell.value_len().min(range.bound_len()))
            }
            Node::ValueBitmask(mask) if mask.len() >= MASK_BYTES_A_STEP => {
                let len = BYTES_A_STEP / MASK_BYTES_A_STEP * mask.len();
                compared(cells, |cell| if cell.value_len() == mask.len() { len } else { 0 })
            }
            _ => cells.len() as u64,
        })?;
        let (families, steps_left) = (self.families, &mut self.steps_left);
        // What is cut short for want of steps ends in an error below.
        let mut is_match =
            |regex: &Regex, text: &[u8]| regex.is_match_within(text, steps_left).unwrap_or(false);
        match node {
            Node::Chain(steps) => {
                for step in steps {
                    self.apply(step, cells)?;
                    if cells.is_empty() {
                        break;
                    }
                }
            }
            Node::Interleave { branches, .. } => self.interleave(branches, cells)?,
            Node::Condition { predicate, on_true, on_false } => {
                self.waiting += cells.len();
                let mut found = self.copy(cells)?;
                self.apply(predicate, &mut found)?;
                self.waiting -= cells.len();
                let is_found = !found.is_empty();
                drop(found);
                match if is_found { on_true } else { on_false } {
                    Some(branch) => self.apply(branch, cells)?,
                    None => cells.clear(),
                }
            }
            Node::Sink => {
                self.check_count(self.sunk.len() + cells.len())?;
                self.sunk.append(cells);
                self.sunk_lists += 1;
            }
            Node::PassAll => {}
            Node::BlockAll => cells.clear(),
            Node::RowKeyRegex(regex) => {
                if !is_match(regex, self.key) {
                    cells.clear();
                }
            }
            Node::RowSample(probability) => {
                if unit(self.rng.next_u64()) >= *probability {
                    cells.clear();
                }
            }
            Node::FamilyRegex(regex) => {
                retain_families(cells, families, |name| is_match(regex, name.as_bytes()));
            }
            Node::QualifierRegex(regex) => {
                retain_columns(cells, memory, |qualifier| is_match(regex, qualifier));
            }
            Node::ColumnRange { family, qualifiers } => {
                retain_families(cells, families, |name| name == family);
                retain_columns(cells, memory, |qualifier| qualifiers.contains(qualifier));
            }
            Node::Timestamps(range) => cells.retain(|cell| range.contains(cell.timestamp())),
            Node::ValueRegex(regex) => cells.retain(|cell| is_match(regex, cell.value(memory))),
            Node::ValueRange(range) => cells.retain(|cell| range.contains(cell.value(memory))),
            Node::ValueBitmask(mask) => cells.retain(|cell| has_bits(cell.value(memory), mask)),
            Node::RowOffset(count) => {
                cells.drain(..(*count).min(cells.len()));
            }
            Node::RowLimit(count) => cells.truncate(*count),
            Node::ColumnLimit(count) => limit_columns(cells, memory, *count),
            Node::StripValue => {
                for cell in cells {
                    cell.strip_value();
                }
            }
            Node::Label(label) => {
                for cell in cells {
                    cell.label(label);
                }
            }
        }
        self.go_through(0)
    }

    fn interleave(&mut self, branches: &[Node], cells: &mut Vec<C>) -> Result<()> {
        let input = std::mem::take(cells);
        let (key, steps_left) = (self.key, &mut self.steps_left);
        let reached = branches.iter().filter(|branch| {
            let reach = branch.reach(key, steps_left);
            reach.flow || reach.sink
        });
        let reached: Vec<&Node> = reached.collect();
        let Some((last, others)) = reached.split_last() else { return Ok(()) };
        let mut outputs = 0;
        self.waiting += input.len();
        for branch in others {
            let output = self.copy(&input)?;
            outputs += self.pool(branch, output, cells)?;
        }
        self.waiting -= input.len();
        outputs += self.pool(last, input, cells)?;
        self.waiting -= cells.len();
        if outputs > 1 { self.sort(cells, outputs) } else { Ok(()) }
    }

    /// Sorts the cells of so many lists, each of which is sorted: pairs of them first, then pairs of those.
    fn sort(&mut self, cells: &mut [C], lists: usize) -> Result<()> {
        let passes = 1 + lists.ilog2();
        self.go_through(self.columns(cells) * u64::from(passes))?;
        sort(cells, self.memory);
        Ok(())
    }

    /// Steps of comparing the qualifier of each cell.
    fn columns(&self, cells: &[C]) -> u64 {
        if self.weighs {
            compared(cells, |cell| cell.qualifier(self.memory).len())
        } else {
            cells.len() as u64
        }
    }

    /// Adds to `pooled`, which waits meanwhile, what a branch makes of its cells. Returns 1 where that is any, else 0.
    fn pool(&mut self, branch: &Node, mut output: Vec<C>, pooled: &mut Vec<C>) -> Result<usize> {
        self.apply(branch, &mut output)?;
        self.check_count(pooled.len() + output.len())?;
        self.waiting += output.len();
        let any = !output.is_empty();
        pooled.append(&mut output);
        Ok(usize::from(any))
    }

    /// A copy of cells that wait.
    fn copy(&mut self, cells: &[C]) -> Result<Vec<C>> {
        if self.waiting + self.sunk.len() + cells.len() > CELLS_HELD_MAX {
            let what = format_args!("holds more than {CELLS_HELD_MAX} cells of it at once");
            return Err(self.too_large(what));
        }
        self.go_through(cells.len() as u64)?;
        Ok(cells.to_vec())
    }

    fn go_through(&mut self, cells: u64) -> Result<()> {
        self.steps_left = self.steps_left.saturating_sub(cells);
        if self.steps_left == 0 {
            return Err(self.too_large(format_args!(
                "goes through more than {CELLS_GONE_THROUGH_MAX} cells of it, step by step"
            )));
        }
        Ok(())
    }

    fn check_count(&self, count: usize) -> Result<()> {
        if count > CELLS_MAX {
            return Err(self.too_large(format_args!("makes more than {CELLS_MAX} cells of it")));
        }
        Ok(())
    }

    fn too_large(&self, what: fmt::Arguments<'_>) -> Error {
        let row = ShownBytes(self.key);
        let what = format!("Error while reading row '{row}' : the filter {what}");
        Error::large_row(Bytes::copy_from_slice(self.key), what)
    }
}

/// Steps of going through cells in each of which so many bytes are compared.
fn compared<C>(cells: &[C], bytes: impl Fn(&C) -> usize) -> u64 {
    cells.iter().map(|cell| 1 + (bytes(cell) / BYTES_A_STEP) as u64).sum()
}

/// Keeps the cells of families whose name `keep` accepts. A family without a name was dropped.
fn retain_families<C: RowCell>(
    cells: &mut Vec<C>,
    families: &dyn FamilyNames,
    mut keep: impl FnMut(&str) -> bool,
) {
    let mut last: Option<(FamilyId, bool)> = None;
    cells.retain(|cell| match last {
        Some((family, kept)) if family == cell.family() => kept,
        _ => {
            let kept = families.family_name(cell.family()).is_some_and(&mut keep);
            last = Some((cell.family(), kept));
            kept
        }
    });
}

/// A number in `[0, 1)`: the 53 bits that a double holds exactly.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

fn has_bits(value: &[u8], mask: &[u8]) -> bool {
    value.len() == mask.len() && value.iter().zip(mask).all(|(v, m)| v & m == *m)
}

fn sort<C: RowCell>(cells: &mut [C], memory: &C::Memory) {
    cells.sort_by(|a, b| {
        (a.family(), a.qualifier(memory), Reverse(a.timestamp())).cmp(&(
            b.family(),
            b.qualifier(memory),
            Reverse(b.timestamp()),
        ))
    });
}

/// Keeps the cells of columns that `keep` accepts, asking it once for each run of one column.
fn retain_columns<C: RowCell>(
    cells: &mut Vec<C>,
    memory: &C::Memory,
    mut keep: impl FnMut(&[u8]) -> bool,
) {
    let mut kept = None;
    let mut last = Vec::new();
    cells.retain(|cell| {
        let qualifier = cell.qualifier(memory);
        match kept {
            Some(kept) if last == qualifier => kept,
            _ => {
                last.clear();
                last.extend_from_slice(qualifier);
                *kept.insert(keep(qualifier))
            }
        }
    });
}

/// Keeps the first `count` cells of each column, at least one.
fn limit_columns<C: RowCell>(cells: &mut Vec<C>, memory: &C::Memory, count: usize) {
    let mut seen = 1;
    cells.dedup_by(|cell, kept| {
        seen = if kept.is_of_column_of(cell, memory) { seen + 1 } else { 1 };
        seen > count
    });
}

//! Evaluating a filter on one row.
//!
//! A filter maps a list of cells to a list of cells. Lists stay in the engine's order (family id,
//! qualifier, timestamp descending) at every step, so "the first", "the newest" and "one column" are
//! neighbours. A chain works on one list in place; an interleave gives each branch a copy (values are
//! shared memory) and sorts the pooled results stably; a sink moves its cells to a list of its own, which
//! joins the output at the very end.
//!
//! All of it happens in one go on a thread that others wait for, and a filter of 20 KB can ask for anything. So cells are
//! counted in three ways, each with its limit: what a step makes, what is held at once, and what all steps go through.

use std::cmp::Reverse;
use std::fmt;

use bytes::Bytes;
use tepui_engine::cell::FamilyId;
use tepui_engine::io::Rng;
use tepui_engine::limits::ROW_READ_BYTES_MAX;

use super::node::Node;
use super::{FamilyNames, RowCell};
use crate::error::{Error, Result, ShownBytes};

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

/// Bytes of a value or qualifier that compare with a pattern in the time of one cell's step, roughly.
const BYTES_A_CELL: usize = 128;

pub(super) struct Evaluation<'a, C: RowCell> {
    key: &'a [u8],
    /// What the cells lie in.
    memory: &'a C::Memory,
    families: &'a dyn FamilyNames,
    rng: &'a dyn Rng,
    /// What sinks took.
    sunk: Vec<C>,
    /// Cells that wait while a copy of them, or of others, is worked on.
    waiting: usize,
    gone_through: u64,
}

impl<'a, C: RowCell> Evaluation<'a, C> {
    pub(super) fn new(
        key: &'a [u8],
        memory: &'a C::Memory,
        families: &'a dyn FamilyNames,
        rng: &'a dyn Rng,
    ) -> Self {
        Self { key, memory, families, rng, sunk: Vec::new(), waiting: 0, gone_through: 0 }
    }

    /// The output for a row of these cells, and how many cells the steps went through. `duplicates` says whether the filter
    /// can copy cells.
    pub(super) fn run(
        mut self,
        node: &Node,
        mut cells: Vec<C>,
        duplicates: bool,
    ) -> Result<(Vec<C>, u64)> {
        self.apply(node, &mut cells)?;
        if !self.sunk.is_empty() {
            cells.append(&mut self.sunk);
            sort(&mut cells, self.memory);
        }
        // Without copies, the row is no larger than the engine lets a read be.
        if duplicates {
            let bytes: u64 = cells.iter().map(C::bytes).sum();
            if bytes > ROW_READ_BYTES_MAX {
                return Err(self
                    .too_large(format_args!("makes more than {ROW_READ_BYTES_MAX} bytes of it")));
            }
        }
        Ok((cells, self.gone_through))
    }

    /// Recursion is bounded by the depth that compilation allows.
    fn apply(&mut self, node: &Node, cells: &mut Vec<C>) -> Result<()> {
        let memory = self.memory;
        self.go_through(match node {
            // Their parts are counted, and the copies that they make.
            Node::Chain(_) | Node::Interleave(_) | Node::Condition { .. } => 0,
            Node::ValueRegex(_) => {
                cells.iter().map(|cell| 1 + cell.value_len() / BYTES_A_CELL).sum()
            }
            Node::QualifierRegex(_) => {
                let len = |cell: &C| cell.qualifier(memory).len();
                cells.iter().map(|cell| 1 + len(cell) / BYTES_A_CELL).sum()
            }
            _ => cells.len(),
        })?;
        match node {
            Node::Chain(steps) => {
                for step in steps {
                    self.apply(step, cells)?;
                    if cells.is_empty() {
                        break;
                    }
                }
            }
            Node::Interleave(branches) => self.interleave(branches, cells)?,
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
            }
            Node::PassAll => {}
            Node::BlockAll => cells.clear(),
            Node::RowKeyRegex(regex) => {
                if !regex.is_match(self.key) {
                    cells.clear();
                }
            }
            Node::RowSample(probability) => {
                if unit(self.rng.next_u64()) >= *probability {
                    cells.clear();
                }
            }
            Node::FamilyRegex(regex) => {
                self.retain_families(cells, |name| regex.is_match(name.as_bytes()));
            }
            Node::QualifierRegex(regex) => {
                retain_columns(cells, memory, |qualifier| regex.is_match(qualifier));
            }
            Node::ColumnRange { family, qualifiers } => {
                self.retain_families(cells, |name| name == family);
                retain_columns(cells, memory, |qualifier| qualifiers.contains(qualifier));
            }
            Node::Timestamps(range) => cells.retain(|cell| range.contains(cell.timestamp())),
            Node::ValueRegex(regex) => cells.retain(|cell| regex.is_match(cell.value(memory))),
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
        Ok(())
    }

    fn interleave(&mut self, branches: &[Node], cells: &mut Vec<C>) -> Result<()> {
        let input = std::mem::take(cells);
        let reached = branches.iter().filter(|branch| {
            let reach = branch.reach(self.key);
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
        if outputs > 1 {
            self.go_through(cells.len())?;
            sort(cells, self.memory);
        }
        Ok(())
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
        self.go_through(cells.len())?;
        Ok(cells.to_vec())
    }

    fn go_through(&mut self, cells: usize) -> Result<()> {
        self.gone_through += cells as u64;
        if self.gone_through > CELLS_GONE_THROUGH_MAX {
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

    /// Keeps the cells of families whose name `keep` accepts. A family without a name was dropped.
    fn retain_families(&self, cells: &mut Vec<C>, keep: impl Fn(&str) -> bool) {
        let mut last: Option<(FamilyId, bool)> = None;
        cells.retain(|cell| match last {
            Some((family, kept)) if family == cell.family() => kept,
            _ => {
                let kept = self.families.family_name(cell.family()).is_some_and(&keep);
                last = Some((cell.family(), kept));
                kept
            }
        });
    }
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
    keep: impl Fn(&[u8]) -> bool,
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

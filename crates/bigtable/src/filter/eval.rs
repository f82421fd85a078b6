//! Evaluating a filter on one row.
//!
//! A filter maps a list of cells to a list of cells. Lists stay in the engine's order (family id,
//! qualifier, timestamp descending) at every step, so "the first", "the newest" and "one column" are
//! neighbours. A chain works on one list in place; an interleave gives each branch a copy (values are
//! shared memory) and sorts the pooled results stably; a sink moves its cells to a list of its own, which
//! joins the output at the very end.

use std::cmp::Reverse;

use bytes::Bytes;
use tepui_engine::cell::FamilyId;
use tepui_engine::io::Rng;
use tepui_engine::limits::ROW_READ_BYTES_MAX;

use super::node::Node;
use super::{FamilyNames, FilteredCell};
use crate::error::{Error, Result};

/// Cells that the copies of one row may come to within a filter. Interleaves in a chain multiply: a few
/// hundred bytes of filter could ask for more cells than there is memory. Two million hold a row of the
/// largest size whose cells have a hundred bytes each.
const CELLS_MAX: usize = 2 << 20;

/// Bytes of a row's key that an error shows, at most: it has all of them beside its text.
const ROW_SHOWN_BYTES_MAX: usize = 128;

pub(super) struct Evaluation<'a> {
    key: &'a [u8],
    families: &'a dyn FamilyNames,
    rng: &'a dyn Rng,
    /// What sinks took.
    sunk: Vec<FilteredCell>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(key: &'a [u8], families: &'a dyn FamilyNames, rng: &'a dyn Rng) -> Self {
        Self { key, families, rng, sunk: Vec::new() }
    }

    /// The output for a row of these cells. `duplicates` says whether the filter can copy cells.
    pub(super) fn run(
        mut self,
        node: &Node,
        mut cells: Vec<FilteredCell>,
        duplicates: bool,
    ) -> Result<Vec<FilteredCell>> {
        self.apply(node, &mut cells)?;
        if !self.sunk.is_empty() {
            cells.append(&mut self.sunk);
            sort(&mut cells);
        }
        // Without copies, the row is no larger than the engine lets a read be.
        if duplicates {
            let bytes: u64 = cells.iter().map(FilteredCell::bytes).sum();
            if bytes > ROW_READ_BYTES_MAX {
                return Err(self.too_large(&format!("{ROW_READ_BYTES_MAX} bytes")));
            }
        }
        Ok(cells)
    }

    /// Recursion is bounded by the depth that compilation allows.
    fn apply(&mut self, node: &Node, cells: &mut Vec<FilteredCell>) -> Result<()> {
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
                let mut found = cells.clone();
                self.apply(predicate, &mut found)?;
                match if found.is_empty() { on_false } else { on_true } {
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
                retain_columns(cells, |_, qualifier| regex.is_match(qualifier));
            }
            Node::ColumnRange { family, qualifiers } => {
                self.retain_families(cells, |name| name == family);
                retain_columns(cells, |_, qualifier| qualifiers.contains(qualifier));
            }
            Node::Timestamps(range) => cells.retain(|cell| range.contains(cell.timestamp)),
            Node::ValueRegex(regex) => cells.retain(|cell| regex.is_match(&cell.value)),
            Node::ValueRange(range) => cells.retain(|cell| range.contains(&cell.value)),
            Node::ValueBitmask(mask) => cells.retain(|cell| has_bits(&cell.value, mask)),
            Node::RowOffset(count) => {
                cells.drain(..(*count).min(cells.len()));
            }
            Node::RowLimit(count) => cells.truncate(*count),
            Node::ColumnLimit(count) => limit_columns(cells, *count),
            Node::StripValue => {
                for cell in cells {
                    cell.value = Bytes::new();
                }
            }
            Node::Label(label) => {
                for cell in cells {
                    cell.labels.push(label.clone());
                }
            }
        }
        Ok(())
    }

    fn interleave(&mut self, branches: &[Node], cells: &mut Vec<FilteredCell>) -> Result<()> {
        let mut input = Some(std::mem::take(cells));
        let last = branches.len().saturating_sub(1);
        let mut outputs = 0;
        for (i, branch) in branches.iter().enumerate() {
            let reach = branch.reach(self.key);
            if !(reach.flow || reach.sink) {
                continue;
            }
            let copy = if i == last { input.take() } else { input.clone() };
            let mut output = copy.unwrap_or_default();
            self.apply(branch, &mut output)?;
            if output.is_empty() {
                continue;
            }
            self.check_count(cells.len() + output.len())?;
            cells.append(&mut output);
            outputs += 1;
        }
        if outputs > 1 {
            sort(cells);
        }
        Ok(())
    }

    fn check_count(&self, count: usize) -> Result<()> {
        if count > CELLS_MAX {
            return Err(self.too_large(&format!("{CELLS_MAX} cells")));
        }
        Ok(())
    }

    fn too_large(&self, limit: &str) -> Error {
        let shown = self.key.get(..ROW_SHOWN_BYTES_MAX).unwrap_or(self.key).escape_ascii();
        let what =
            format!("Error while reading row '{shown}' : the filter makes more than {limit} of it");
        Error::large_row(Bytes::copy_from_slice(self.key), what)
    }

    /// Keeps the cells of families whose name `keep` accepts. A family without a name was dropped.
    fn retain_families(&self, cells: &mut Vec<FilteredCell>, keep: impl Fn(&str) -> bool) {
        let mut last: Option<(FamilyId, bool)> = None;
        cells.retain(|cell| match last {
            Some((family, kept)) if family == cell.family => kept,
            _ => {
                let kept = self.families.family_name(cell.family).is_some_and(&keep);
                last = Some((cell.family, kept));
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

fn sort(cells: &mut [FilteredCell]) {
    cells.sort_by(|a, b| {
        (a.family, &a.qualifier, Reverse(a.timestamp)).cmp(&(
            b.family,
            &b.qualifier,
            Reverse(b.timestamp),
        ))
    });
}

/// Keeps the cells of columns that `keep` accepts, asking it once for each run of one column.
fn retain_columns(cells: &mut Vec<FilteredCell>, keep: impl Fn(FamilyId, &[u8]) -> bool) {
    let mut last: Option<(FamilyId, Bytes, bool)> = None;
    cells.retain(|cell| match &last {
        Some((family, qualifier, kept))
            if *family == cell.family && *qualifier == cell.qualifier =>
        {
            *kept
        }
        _ => {
            let kept = keep(cell.family, &cell.qualifier);
            last = Some((cell.family, cell.qualifier.clone(), kept));
            kept
        }
    });
}

/// Keeps the first `count` cells of each column.
fn limit_columns(cells: &mut Vec<FilteredCell>, count: usize) {
    let mut column: Option<(FamilyId, Bytes)> = None;
    let mut seen = 0;
    cells.retain(|cell| {
        let same = column.as_ref().is_some_and(|(family, qualifier)| {
            *family == cell.family && *qualifier == cell.qualifier
        });
        if same {
            seen += 1;
        } else {
            column = Some((cell.family, cell.qualifier.clone()));
            seen = 1;
        }
        seen <= count
    });
}

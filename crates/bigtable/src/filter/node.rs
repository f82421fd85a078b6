//! A compiled filter: the tree that is evaluated, projected and asked about row keys.

use bytes::Bytes;
use tepui_engine::cell::TimestampRange;

use super::range::ByteRange;
use crate::limits::FAMILY_NAME_CHARS_MAX;
use crate::regex::{BYTES_A_STEP, Regex};

/// A filter that is known to be valid. A chain holds no chain directly: sequences within sequences are
/// one sequence.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Chain(Vec<Node>),
    Interleave {
        branches: Vec<Node>,
        /// Whether a sink is somewhere within.
        sinks: bool,
    },
    Condition {
        predicate: Box<Node>,
        on_true: Option<Box<Node>>,
        on_false: Option<Box<Node>>,
    },
    Sink,
    PassAll,
    BlockAll,
    RowKeyRegex(Regex),
    /// The probability that a row passes, between 0 and 1.
    RowSample(f64),
    FamilyRegex(Regex),
    QualifierRegex(Regex),
    ColumnRange {
        family: String,
        qualifiers: ByteRange,
    },
    Timestamps(TimestampRange),
    ValueRegex(Regex),
    ValueRange(ByteRange),
    ValueBitmask(Bytes),
    RowOffset(usize),
    RowLimit(usize),
    ColumnLimit(usize),
    StripValue,
    Label(String),
}

impl Node {
    /// The node as a sequence.
    pub(super) fn steps(&self) -> &[Node] {
        match self {
            Self::Chain(nodes) => nodes,
            node => std::slice::from_ref(node),
        }
    }

    /// The nodes directly within this one.
    fn children(&self) -> Vec<&Node> {
        match self {
            Self::Chain(nodes) | Self::Interleave { branches: nodes, .. } => nodes.iter().collect(),
            Self::Condition { predicate, on_true, on_false } => [Some(predicate)]
                .into_iter()
                .chain([on_true.as_ref(), on_false.as_ref()])
                .flatten()
                .map(|node| &**node)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a label is applied somewhere within.
    pub(super) fn labels(&self) -> bool {
        matches!(self, Self::Label(_)) || self.children().into_iter().any(Self::labels)
    }

    /// Whether a sink is somewhere within.
    pub(super) fn sinks(&self) -> bool {
        match self {
            Self::Sink => true,
            Self::Interleave { sinks, .. } => *sinks,
            node => node.children().into_iter().any(Self::sinks),
        }
    }

    /// Whether a cell can come out more than once.
    pub(super) fn duplicates(&self) -> bool {
        matches!(self, Self::Interleave { .. } | Self::Sink)
            || self.children().into_iter().any(Self::duplicates)
    }

    /// Whether something depends on what a value is, but for whether it is passed on.
    pub(super) fn compares_values(&self) -> bool {
        matches!(self, Self::ValueRegex(_) | Self::ValueRange(_) | Self::ValueBitmask(_))
            || self.children().into_iter().any(Self::compares_values)
    }

    /// Whether the row's key matters.
    pub(super) fn asks_key(&self) -> bool {
        matches!(self, Self::RowKeyRegex(_)) || self.children().into_iter().any(Self::asks_key)
    }

    /// See [`super::Filter::asks_beyond`].
    pub(super) fn asks_beyond(&self, families: &[&str], steps_left: &mut u64) -> bool {
        match self {
            Self::FamilyRegex(regex) => {
                let mut is_match = |name: &&str| {
                    regex.is_match_within(name.as_bytes(), steps_left).unwrap_or(false)
                };
                !regex.matches_all() && !families.iter().any(&mut is_match)
            }
            Self::ColumnRange { family, .. } => !families.contains(&family.as_str()),
            node => {
                node.children().into_iter().any(|child| child.asks_beyond(families, steps_left))
            }
        }
    }

    /// What can come out of the row with this key, by its key alone. What that takes is taken off the steps that are left; without any,
    /// all that is left to look at lets everything pass.
    pub(super) fn reach(&self, key: &[u8], steps_left: &mut u64) -> Reach {
        match self {
            Self::BlockAll => Reach { flow: false, sink: false },
            Self::RowKeyRegex(regex) => {
                let flow = regex.is_match_within(key, steps_left).unwrap_or(true);
                Reach { flow, sink: false }
            }
            Self::Sink => Reach { flow: false, sink: true },
            Self::Chain(steps) => {
                let mut all = Reach { flow: true, sink: false };
                for step in steps {
                    let reach = step.reach(key, steps_left);
                    all = Reach { flow: reach.flow, sink: all.sink || reach.sink };
                    if !all.flow {
                        break;
                    }
                }
                all
            }
            Self::Interleave { branches, sinks } => {
                let mut any = Reach { flow: false, sink: false };
                for branch in branches {
                    let reach = branch.reach(key, steps_left);
                    any = Reach { flow: any.flow || reach.flow, sink: any.sink || reach.sink };
                    if any.flow && (any.sink || !sinks) {
                        break;
                    }
                }
                any
            }
            Self::Condition { predicate, on_true, on_false } => {
                // Conditions hold no sinks.
                let mut can = |node: &Node| node.reach(key, steps_left).flow;
                let flow = on_false.as_deref().is_some_and(&mut can)
                    || on_true.as_deref().is_some_and(|on_true| can(predicate) && can(on_true));
                Reach { flow, sink: false }
            }
            _ => Reach { flow: true, sink: false },
        }
    }
}

/// What a filter may take for a row, as far as that can be told before it is known what it drops and what its automata have to build.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Steps for each cell.
    pub(super) cells: u64,
    /// Steps for each [`BYTES_A_STEP`] bytes of them.
    bytes: u64,
    /// Steps for each [`BYTES_A_STEP`] bytes of the row's key, which a step looks at once, however many cells come to it.
    key: u64,
    /// Cells that come out for each.
    out: u64,
}

impl Work {
    /// Of a step that goes through the cells, and compares bytes of them so many times.
    fn of_step(bytes: u64) -> Self {
        Self { cells: 1, bytes, key: 0, out: 1 }
    }

    /// With that of another that takes the same cells.
    fn beside(self, other: Self) -> Self {
        Self {
            cells: self.cells.saturating_add(other.cells),
            bytes: self.bytes.saturating_add(other.bytes),
            key: self.key.saturating_add(other.key),
            out: self.out.saturating_add(other.out),
        }
    }

    /// With that of another that takes what comes out.
    fn then(self, next: Self) -> Self {
        let times = |count: u64| count.saturating_mul(self.out);
        let then = Self {
            cells: times(next.cells),
            bytes: times(next.bytes),
            key: next.key,
            out: times(next.out),
        };
        then.beside(Self { out: 0, ..self })
    }

    /// Steps for a row of so many cells, with a key and cells of so many bytes.
    pub(super) fn steps(self, cells: usize, key_bytes: usize, bytes: usize) -> u64 {
        let compared = |steps: u64, bytes: usize| steps.saturating_mul(bytes as u64);
        let by_bytes = compared(self.bytes, bytes).saturating_add(compared(self.key, key_bytes));
        let by_cells = self.cells.saturating_mul(cells as u64);
        by_cells.saturating_add(by_bytes / BYTES_A_STEP as u64)
    }
}

impl Node {
    /// What it takes.
    pub(super) fn work(&self) -> Work {
        let none = Work { cells: 0, bytes: 0, key: 0, out: 0 };
        match self {
            Self::Chain(steps) => {
                let first = Work { out: 1, ..none };
                steps.iter().fold(first, |work, step| work.then(step.work()))
            }
            Self::Interleave { branches, .. } => {
                // Each has a copy, and what comes out is sorted.
                let pooled = branches.iter().map(Self::work).fold(none, Work::beside);
                let copies = branches.len() as u64;
                let passes = u64::from(branches.len().max(1).ilog2()) + 1;
                let sorted = pooled.out.saturating_mul(passes);
                let cells = copies.saturating_add(sorted);
                pooled.beside(Work { cells, bytes: sorted, ..none })
            }
            Self::Condition { predicate, on_true, on_false } => {
                let of = |branch: &Option<Box<Node>>| branch.as_ref().map_or(none, |n| n.work());
                let (a, b) = (of(on_true), of(on_false));
                let worse = Work {
                    cells: a.cells.max(b.cells),
                    bytes: a.bytes.max(b.bytes),
                    key: a.key.max(b.key),
                    out: a.out.max(b.out),
                };
                let found = Work { out: 0, ..predicate.work() };
                found.beside(worse).beside(Work { cells: 1, ..none })
            }
            // What is in it is sorted at the end.
            Self::Sink => Work { cells: 2, bytes: 1, ..none },
            Self::FamilyRegex(regex) => {
                let by_name = FAMILY_NAME_CHARS_MAX as u64 * regex.weight() / BYTES_A_STEP as u64;
                Work { cells: 1 + by_name, ..Work::of_step(0) }
            }
            Self::RowKeyRegex(regex) => Work { key: regex.weight(), ..Work::of_step(0) },
            // Of which bytes are qualifiers' nobody knows.
            Self::QualifierRegex(regex) | Self::ValueRegex(regex) => Work::of_step(regex.weight()),
            Self::ColumnRange { .. }
            | Self::ColumnLimit(_)
            | Self::ValueRange(_)
            | Self::ValueBitmask(_) => Work::of_step(1),
            Self::PassAll
            | Self::BlockAll
            | Self::RowSample(_)
            | Self::Timestamps(_)
            | Self::RowOffset(_)
            | Self::RowLimit(_)
            | Self::StripValue
            | Self::Label(_) => Work::of_step(0),
        }
    }
}

/// Where cells of a row can come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    /// At the end of the filter.
    pub(super) flow: bool,
    /// In a sink.
    pub(super) sink: bool,
}

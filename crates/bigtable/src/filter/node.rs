//! A compiled filter: the tree that is evaluated, projected and asked about row keys.

use bytes::Bytes;
use tepui_engine::cell::TimestampRange;

use super::range::ByteRange;
use crate::regex::Regex;

/// A filter that is known to be valid. A chain holds no chain directly: sequences within sequences are
/// one sequence.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Chain(Vec<Node>),
    Interleave(Vec<Node>),
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
            Self::Chain(nodes) | Self::Interleave(nodes) => nodes.iter().collect(),
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
        matches!(self, Self::Sink) || self.children().into_iter().any(Self::sinks)
    }

    /// Whether a cell can come out more than once.
    pub(super) fn duplicates(&self) -> bool {
        matches!(self, Self::Interleave(_) | Self::Sink)
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
    pub(super) fn asks_beyond(&self, families: &[&str]) -> bool {
        match self {
            Self::FamilyRegex(regex) => {
                !regex.matches_all() && !families.iter().any(|name| regex.is_match(name.as_bytes()))
            }
            Self::ColumnRange { family, .. } => !families.contains(&family.as_str()),
            node => node.children().into_iter().any(|child| child.asks_beyond(families)),
        }
    }

    /// What can come out of the row with this key, by its key alone.
    pub(super) fn reach(&self, key: &[u8]) -> Reach {
        match self {
            Self::BlockAll => Reach { flow: false, sink: false },
            Self::RowKeyRegex(regex) => Reach { flow: regex.is_match(key), sink: false },
            Self::Sink => Reach { flow: false, sink: true },
            Self::Chain(steps) => {
                let mut all = Reach { flow: true, sink: false };
                for step in steps {
                    let reach = step.reach(key);
                    all = Reach { flow: reach.flow, sink: all.sink || reach.sink };
                    if !all.flow {
                        break;
                    }
                }
                all
            }
            Self::Interleave(branches) => {
                let mut any = Reach { flow: false, sink: false };
                for branch in branches {
                    let reach = branch.reach(key);
                    any = Reach { flow: any.flow || reach.flow, sink: any.sink || reach.sink };
                    if any.flow && any.sink {
                        break;
                    }
                }
                any
            }
            Self::Condition { predicate, on_true, on_false } => {
                // Conditions hold no sinks.
                let can = |node: &Option<Box<Node>>| {
                    node.as_ref().is_some_and(|node| node.reach(key).flow)
                };
                let flow = can(on_false) || (predicate.reach(key).flow && can(on_true));
                Reach { flow, sink: false }
            }
            _ => Reach { flow: true, sink: false },
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

//! What a tablet must know of its table to compact it: families, garbage-collection rules, aggregates.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::cell::FamilyId;

/// Which cells of a family may be collected. Rules act in compaction, never at read time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GcRule {
    /// All but the newest `n` cells of a column may go.
    MaxVersions(u32),
    /// Cells older than this many microseconds may go.
    MaxAge(i64),
    /// A cell may go when any of the rules lets it.
    Union(Vec<GcRule>),
    /// A cell may go when all of the rules let it. An empty intersection lets nothing go.
    Intersection(Vec<GcRule>),
}

impl GcRule {
    /// Whether a cell may go that has `newer` newer cells in its column and this timestamp, at time
    /// `now` (both microseconds).
    pub fn collects(&self, newer: u32, timestamp: i64, now: i64) -> bool {
        match self {
            Self::MaxVersions(n) => newer >= *n,
            Self::MaxAge(age) => timestamp < now.saturating_sub(*age),
            Self::Union(rules) => rules.iter().any(|r| r.collects(newer, timestamp, now)),
            Self::Intersection(rules) => {
                !rules.is_empty() && rules.iter().all(|r| r.collects(newer, timestamp, now))
            }
        }
    }

    /// Whether the rule counts versions anywhere.
    pub fn counts_versions(&self) -> bool {
        match self {
            Self::MaxVersions(_) => true,
            Self::MaxAge(_) => false,
            Self::Union(rules) | Self::Intersection(rules) => {
                rules.iter().any(Self::counts_versions)
            }
        }
    }
}

/// How the operands of an aggregate family combine. Operands and states have the same form.
///
/// Whatever the order and the grouping in which operands are combined, the state must have the same bytes: reads and
/// compactions combine whatever runs of operands they meet.
#[derive(Debug, Clone, Copy)]
pub enum Aggregate {
    /// Wrapping sum of i64, big-endian, 8 bytes.
    Sum,
    /// Minimum of the same.
    Min,
    /// Maximum of the same.
    Max,
    /// States that the engine does not understand, for example sketches.
    Opaque(&'static dyn Combine),
}

/// Combines states that are opaque to the engine.
pub trait Combine: fmt::Debug + Send + Sync {
    /// What tells it from others.
    fn name(&self) -> &'static str;
    /// The state that is one operand; `None` where that is malformed.
    fn begin(&self, operand: &[u8]) -> Option<Box<dyn Combined>>;
}

/// A state under way.
pub trait Combined: fmt::Debug + Send + Sync {
    /// Adds an operand; returns false and changes nothing where that is malformed.
    fn add(&mut self, operand: &[u8]) -> bool;
    /// Its bytes.
    fn encode(&self) -> Bytes;
}

impl PartialEq for Aggregate {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Opaque(a), Self::Opaque(b)) => a.name() == b.name(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl Eq for Aggregate {}

/// One family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FamilyOptions {
    /// `None`: keep everything.
    pub gc: Option<GcRule>,
    /// `None`: an ordinary family.
    pub aggregate: Option<Aggregate>,
}

/// The families of a table. Cells of families that are not here are invisible and dropped by compaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TabletSchema {
    /// By id.
    pub families: BTreeMap<FamilyId, FamilyOptions>,
}

impl TabletSchema {
    /// The family, if the table has it.
    pub fn family(&self, id: FamilyId) -> Option<&FamilyOptions> {
        self.families.get(&id)
    }
}

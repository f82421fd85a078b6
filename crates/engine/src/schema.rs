//! What a tablet must know of its table to compact it: families, garbage-collection rules, aggregates.

use std::collections::BTreeMap;

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

/// How the operands of an aggregate family combine. Operands and states are i64 BE, 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// Wrapping 64-bit sum.
    Sum,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
}

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

//! What a tablet must know of its table to compact it: families, garbage-collection rules, aggregates.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::cell::FamilyId;

/// Which cells of a family may be collected. Rules act in compaction, or, where changes are kept, in a
/// [collector](crate::tablet); never at read time.
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
        self.collects_from(newer, timestamp).is_some_and(|from| from <= now)
    }

    /// From when on such a cell may go; `None` where time alone does not make it so.
    pub fn collects_from(&self, newer: u32, timestamp: i64) -> Option<i64> {
        match self {
            Self::MaxVersions(n) => (newer >= *n).then_some(i64::MIN),
            Self::MaxAge(age) => Some(timestamp.saturating_add(*age).saturating_add(1)),
            Self::Union(rules) => {
                rules.iter().filter_map(|r| r.collects_from(newer, timestamp)).min()
            }
            // Of no rules there is no last one.
            Self::Intersection(rules) => rules
                .iter()
                .map(|r| r.collects_from(newer, timestamp))
                .reduce(|a, b| Some(a?.max(b?)))?,
        }
    }

    /// When, after this time (microseconds), such a cell may go the next time for an age that the rule names, be it that there are fewer newer ones than
    /// `newer`: each of the moments from which on it may go, with that many of them down to none, is one of these.
    pub fn may_go_after(&self, newer: u32, timestamp: i64, after: i64) -> Option<i64> {
        let first = self.collects_from(newer, timestamp)?.max(after.checked_add(1)?);
        let last = self.collects_from(0, timestamp).unwrap_or(i64::MAX);
        self.comes_of_age(timestamp, first).filter(|at| *at <= last)
    }

    /// When a cell comes first, from then on, to an age that the rule names.
    fn comes_of_age(&self, timestamp: i64, from: i64) -> Option<i64> {
        match self {
            Self::MaxVersions(_) => None,
            Self::MaxAge(_) => self.collects_from(0, timestamp).filter(|at| *at >= from),
            Self::Union(rules) | Self::Intersection(rules) => {
                rules.iter().filter_map(|r| r.comes_of_age(timestamp, from)).min()
            }
        }
    }

    /// The least age at which the rule lets a cell go that has all the newer versions it asks for, in microseconds; `None` where it
    /// names no age.
    pub fn least_age(&self) -> Option<i64> {
        match self {
            Self::MaxVersions(_) => None,
            Self::MaxAge(age) => Some(*age),
            Self::Union(rules) => rules.iter().filter_map(Self::least_age).min(),
            Self::Intersection(rules) => rules.iter().filter_map(Self::least_age).max(),
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
    /// When that was changed last, in microseconds since 1970; 0 where it never was.
    pub gc_since_micros: i64,
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

    /// The rule of one of the table's families; none of those that are the server's own.
    pub fn user_rule(&self, id: FamilyId) -> Option<&GcRule> {
        self.family(id).filter(|_| !id.is_own()).and_then(|family| family.gc.as_ref())
    }

    /// Whether the rules of families that the `other` schema has, too, are the same there.
    pub fn has_rules_of(&self, other: &Self) -> bool {
        self.families.iter().all(|(id, family)| {
            let other = other.family(*id);
            other.is_none_or(|other| {
                (&other.gc, other.gc_since_micros) == (&family.gc, family.gc_since_micros)
            })
        })
    }

    /// Whether one of the table's families has a rule.
    pub fn has_user_rules(&self) -> bool {
        self.families.keys().any(|id| self.user_rule(*id).is_some())
    }

    /// The same without the rules of the table's families. The server's own keep theirs.
    #[must_use]
    pub fn without_user_rules(&self) -> Self {
        let mut families = self.families.clone();
        for family in families.iter_mut().filter(|(id, _)| !id.is_own()).map(|(_, family)| family) {
            family.gc = None;
        }
        Self { families }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rule says, told once more.
    fn says(rule: &GcRule, newer: u32, timestamp: i64, now: i64) -> bool {
        let says = |rule: &GcRule| says(rule, newer, timestamp, now);
        match rule {
            GcRule::MaxVersions(n) => newer >= *n,
            GcRule::MaxAge(age) => now - timestamp > *age,
            GcRule::Union(rules) => rules.iter().any(says),
            GcRule::Intersection(rules) => !rules.is_empty() && rules.iter().all(says),
        }
    }

    #[test]
    fn a_rule_says_from_when_on_it_lets_a_cell_go() {
        use GcRule::{Intersection, MaxAge, MaxVersions, Union};
        let both = || vec![MaxVersions(2), MaxAge(50)];
        let rules = [
            MaxVersions(1),
            MaxAge(30),
            Union(both()),
            Intersection(both()),
            Union(Vec::new()),
            Intersection(Vec::new()),
            Union(vec![Intersection(both()), MaxAge(90)]),
            Intersection(vec![Union(both()), MaxAge(20)]),
        ];
        for rule in &rules {
            for newer in 0..4 {
                for now in 0..200 {
                    let expected = says(rule, newer, 40, now);
                    assert_eq!(rule.collects(newer, 40, now), expected, "{rule:?} {newer} {now}");
                }
            }
        }
        assert!(!MaxAge(i64::MAX).collects(9, 40, 1_000));
    }

    #[test]
    fn a_rule_says_when_a_cell_may_go_next_whatever_becomes_of_newer_ones() {
        use GcRule::{Intersection, MaxAge, MaxVersions, Union};
        let second = || Intersection(vec![MaxVersions(1), MaxAge(50)]);
        let rules = [
            MaxVersions(1),
            MaxAge(30),
            Union(vec![MaxVersions(2), MaxAge(50)]),
            second(),
            Union(vec![Intersection(vec![MaxVersions(3), MaxAge(10)]), second(), MaxAge(90)]),
        ];
        for rule in &rules {
            for newer in 0..5 {
                for after in 0..200 {
                    let moments = (0..=newer).filter_map(|newer| rule.collects_from(newer, 40));
                    let expected = moments.filter(|at| *at > after).min();
                    let next = rule.may_go_after(newer, 40, after);
                    assert_eq!(next, expected, "{rule:?} {newer} {after}");
                }
            }
        }
        assert_eq!(MaxAge(30).may_go_after(0, 40, i64::MAX), None);
    }

    #[test]
    fn only_the_server_s_own_families_keep_their_rules() {
        let own = crate::cell::FAMILY_OWN_MIN;
        let family =
            || FamilyOptions { gc: Some(GcRule::MaxAge(1)), aggregate: None, gc_since_micros: 0 };
        let schema = TabletSchema { families: [(FamilyId(1), family()), (own, family())].into() };
        assert!(schema.has_user_rules());
        let left = schema.without_user_rules();
        assert!(!left.has_user_rules() && left.families.len() == 2);
        assert_eq!(left.families[&own], family());
        assert_eq!((schema.user_rule(own), left.user_rule(FamilyId(1))), (None, None));
    }
}

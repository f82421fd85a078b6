//! Garbage-collection rules of column families: the admin API's messages to and from what the engine
//! compacts by.
//!
//! ```text
//! GcRule { max_num_versions: 3 }        <──►  MaxVersions(3)
//! GcRule { max_age: 3600s }             <──►  MaxAge(3_600_000_000 µs)
//! GcRule { union: [..] }                <──►  Union([..])
//! GcRule { intersection: [..] }         <──►  Intersection([..])
//! GcRule {} or no rule                   ──►  None: keep everything
//! ```

use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use prost::Message;
use tepui_engine::schema::GcRule;

use admin::gc_rule::{Intersection, Rule, Union};

use crate::error::{Error, Result};
use crate::limits::DURATION_SECONDS_MAX;

/// Bytes of a family's encoded rule: Bigtable's documented limit.
pub const GC_RULE_BYTES_MAX: usize = 500;

/// Levels of rules within rules. The limit on bytes allows more; a rule of two levels says everything
/// that people mean, and the engine asks the rule about every cell.
pub const GC_RULE_DEPTH_MAX: usize = 20;

/// The shortest age, in microseconds: Bigtable's documented limit of one millisecond.
pub const MAX_AGE_MIN_MICROS: i64 = 1000;

const MICROS_PER_SECOND: i64 = 1_000_000;
const NANOS_PER_MICRO: i64 = 1000;
const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// The engine's rule for a family's `gc_rule`; `None` keeps everything. Ages are truncated to whole
/// microseconds.
///
/// Fails with INVALID_ARGUMENT for a count that is not positive, an age under a millisecond, an element
/// of a union or intersection without a rule, and more than [`GC_RULE_BYTES_MAX`] bytes or
/// [`GC_RULE_DEPTH_MAX`] levels.
pub fn gc_rule_from_proto(rule: Option<&admin::GcRule>) -> Result<Option<GcRule>> {
    let Some(rule) = rule else { return Ok(None) };
    if depth_exceeds(rule, GC_RULE_DEPTH_MAX) {
        let what = format!("rules nest deeper than {GC_RULE_DEPTH_MAX} levels");
        return Err(Error::field("gc_rule", what));
    }
    if rule.encoded_len() > GC_RULE_BYTES_MAX {
        let what = format!("must serialize to at most {GC_RULE_BYTES_MAX} bytes");
        return Err(Error::field("gc_rule", what));
    }
    rule.rule.as_ref().map(from_rule).transpose()
}

/// Refuses a rule that a client sets with an age that is longer than a duration of protobuf may be: clients could not print it as JSON. One that was stored
/// before is read as it is.
///
/// Fails with INVALID_ARGUMENT.
pub fn check_new_rule(rule: &admin::GcRule) -> Result<()> {
    let is_too_long = |rule: &admin::GcRule, _| match &rule.rule {
        Some(Rule::MaxAge(age)) => age.seconds > DURATION_SECONDS_MAX,
        _ => false,
    };
    if has(rule, is_too_long) {
        let what = format!("argument must be at most {DURATION_SECONDS_MAX} seconds");
        return Err(Error::field("max_age", what));
    }
    Ok(())
}

fn depth_exceeds(rule: &admin::GcRule, levels_max: usize) -> bool {
    has(rule, |_, level| level > levels_max)
}

/// Whether a rule, or one in it, is wanted; it is told the level, from 1. Looks without recursion: nothing bounds a message that was never decoded.
fn has(rule: &admin::GcRule, is_wanted: impl Fn(&admin::GcRule, usize) -> bool) -> bool {
    let mut pending = vec![(rule, 1)];
    while let Some((rule, level)) = pending.pop() {
        if is_wanted(rule, level) {
            return true;
        }
        if let Some(Rule::Union(Union { rules }) | Rule::Intersection(Intersection { rules })) =
            &rule.rule
        {
            pending.extend(rules.iter().map(|rule| (rule, level + 1)));
        }
    }
    false
}

fn from_rule(rule: &Rule) -> Result<GcRule> {
    Ok(match rule {
        Rule::MaxNumVersions(count) => {
            let count = u32::try_from(*count)
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(|| Error::field("max_num_versions", "argument must be > 0"))?;
            GcRule::MaxVersions(count)
        }
        Rule::MaxAge(age) => GcRule::MaxAge(age_micros(age)?),
        Rule::Union(Union { rules }) => GcRule::Union(from_rules("union", rules)?),
        Rule::Intersection(Intersection { rules }) => {
            GcRule::Intersection(from_rules("intersection", rules)?)
        }
    })
}

fn from_rules(field: &str, rules: &[admin::GcRule]) -> Result<Vec<GcRule>> {
    let unset = || Error::field(field, "every element of rules must have a rule");
    rules.iter().map(|rule| from_rule(rule.rule.as_ref().ok_or_else(unset)?)).collect()
}

fn age_micros(age: &prost_types::Duration) -> Result<i64> {
    let bad = |what: &str| Error::field("max_age", what);
    if !(-NANOS_PER_SECOND < age.nanos && age.nanos < NANOS_PER_SECOND) {
        return Err(bad("nanos must be less than a second"));
    }
    if (age.seconds > 0 && age.nanos < 0) || (age.seconds < 0 && age.nanos > 0) {
        return Err(bad("seconds and nanos must have the same sign"));
    }
    let micros = age
        .seconds
        .checked_mul(MICROS_PER_SECOND)
        .and_then(|micros| micros.checked_add(i64::from(age.nanos) / NANOS_PER_MICRO))
        .ok_or_else(|| bad("argument is too long"))?;
    if micros < MAX_AGE_MIN_MICROS {
        return Err(bad("argument must be at least one millisecond"));
    }
    Ok(micros)
}

/// The message for the engine's rule.
pub fn gc_rule_to_proto(rule: &GcRule) -> admin::GcRule {
    let all = |rules: &[GcRule]| rules.iter().map(gc_rule_to_proto).collect();
    let rule = match rule {
        // No stored rule counts higher than the message can say; a rule made elsewhere is capped.
        GcRule::MaxVersions(count) => {
            Rule::MaxNumVersions(i32::try_from(*count).unwrap_or(i32::MAX))
        }
        GcRule::MaxAge(micros) => Rule::MaxAge(prost_types::Duration {
            seconds: micros / MICROS_PER_SECOND,
            nanos: (micros % MICROS_PER_SECOND * NANOS_PER_MICRO) as i32,
        }),
        GcRule::Union(rules) => Rule::Union(Union { rules: all(rules) }),
        GcRule::Intersection(rules) => Rule::Intersection(Intersection { rules: all(rules) }),
    };
    admin::GcRule { rule: Some(rule) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn versions(count: i32) -> admin::GcRule {
        admin::GcRule { rule: Some(Rule::MaxNumVersions(count)) }
    }

    fn age(seconds: i64, nanos: i32) -> admin::GcRule {
        admin::GcRule { rule: Some(Rule::MaxAge(prost_types::Duration { seconds, nanos })) }
    }

    fn union(rules: Vec<admin::GcRule>) -> admin::GcRule {
        admin::GcRule { rule: Some(Rule::Union(Union { rules })) }
    }

    fn intersection(rules: Vec<admin::GcRule>) -> admin::GcRule {
        admin::GcRule { rule: Some(Rule::Intersection(Intersection { rules })) }
    }

    fn refusal(rule: &admin::GcRule) -> String {
        let error = gc_rule_from_proto(Some(rule)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn rules_become_the_engines() {
        assert_eq!(gc_rule_from_proto(None).unwrap(), None);
        assert_eq!(gc_rule_from_proto(Some(&admin::GcRule { rule: None })).unwrap(), None);
        for (rule, want) in [
            (versions(1), GcRule::MaxVersions(1)),
            (versions(i32::MAX), GcRule::MaxVersions(i32::MAX as u32)),
            (age(0, 1_000_000), GcRule::MaxAge(1000)),
            (age(1, 1_999), GcRule::MaxAge(1_000_001)),
            (age(9_000_000_000_000, 0), GcRule::MaxAge(9_000_000_000_000_000_000)),
            (
                union(vec![versions(2), intersection(vec![age(3600, 0), versions(9)])]),
                GcRule::Union(vec![
                    GcRule::MaxVersions(2),
                    GcRule::Intersection(vec![
                        GcRule::MaxAge(3_600_000_000),
                        GcRule::MaxVersions(9),
                    ]),
                ]),
            ),
            (intersection(vec![]), GcRule::Intersection(vec![])),
        ] {
            assert_eq!(gc_rule_from_proto(Some(&rule)).unwrap(), Some(want));
        }
    }

    #[test]
    fn rules_that_bigtable_documents_as_invalid_are_refused() {
        for (rule, want) in [
            (versions(0), "Error in field 'max_num_versions' : argument must be > 0"),
            (versions(-1), "Error in field 'max_num_versions' : argument must be > 0"),
            (age(0, 0), "Error in field 'max_age' : argument must be at least one millisecond"),
            (
                age(0, 999_999),
                "Error in field 'max_age' : argument must be at least one millisecond",
            ),
            (age(-5, 0), "Error in field 'max_age' : argument must be at least one millisecond"),
            (age(1, -1), "Error in field 'max_age' : seconds and nanos must have the same sign"),
            (
                age(1, NANOS_PER_SECOND),
                "Error in field 'max_age' : nanos must be less than a second",
            ),
            (age(1, i32::MIN), "Error in field 'max_age' : nanos must be less than a second"),
            (age(i64::MAX, 0), "Error in field 'max_age' : argument is too long"),
            (
                union(vec![admin::GcRule { rule: None }]),
                "Error in field 'union' : every element of rules must have a rule",
            ),
            (
                union(vec![versions(1), intersection(vec![versions(0)])]),
                "Error in field 'max_num_versions' : argument must be > 0",
            ),
        ] {
            assert_eq!(refusal(&rule), want);
        }
    }

    #[test]
    fn ages_that_no_duration_has_are_not_set_but_read_where_they_are_stored() {
        check_new_rule(&versions(1)).unwrap();
        check_new_rule(&age(315_576_000_000, 999_999_999)).unwrap();
        let too_long = age(315_576_000_001, 0);
        let nested = union(vec![versions(1), intersection(vec![too_long.clone()])]);
        for rule in [too_long, nested] {
            let error = check_new_rule(&rule).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            let want = "Error in field 'max_age' : argument must be at most 315576000000 seconds";
            assert_eq!(error.message(), want);
            assert!(gc_rule_from_proto(Some(&rule)).is_ok());
        }
    }

    #[test]
    fn rules_have_at_most_500_bytes() {
        // Each element takes 4 bytes; the two levels around them 3 each.
        assert!(gc_rule_from_proto(Some(&union(vec![versions(1); 124]))).is_ok());
        assert_eq!(
            refusal(&union(vec![versions(1); 125])),
            "Error in field 'gc_rule' : must serialize to at most 500 bytes"
        );
    }

    #[test]
    fn rules_nest_at_most_20_levels() {
        let nested = |levels| (1..levels).fold(versions(1), |rule, _| union(vec![rule]));
        assert!(gc_rule_from_proto(Some(&nested(20))).is_ok());
        let want = "Error in field 'gc_rule' : rules nest deeper than 20 levels";
        assert_eq!(refusal(&nested(21)), want);
    }

    fn rules() -> impl Strategy<Value = GcRule> {
        let leaf = prop_oneof![
            (1..=i32::MAX as u32).prop_map(GcRule::MaxVersions),
            (MAX_AGE_MIN_MICROS..=i64::MAX).prop_map(GcRule::MaxAge),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            let list = prop::collection::vec(inner, 0..3);
            prop_oneof![list.clone().prop_map(GcRule::Union), list.prop_map(GcRule::Intersection),]
        })
    }

    proptest! {
        #[test]
        fn rules_survive_the_round_trip(rule in rules()) {
            let proto = gc_rule_to_proto(&rule);
            prop_assert_eq!(gc_rule_from_proto(Some(&proto)).unwrap(), Some(rule));
        }
    }
}

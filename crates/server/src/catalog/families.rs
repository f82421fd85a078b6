//! Column families: from the API's messages to what the engine is given, and the changes that
//! `ModifyColumnFamilies` makes, all or nothing, in order.

use std::collections::HashSet;

use tepui_bigtable::error::{Code, Error, Result};
use tepui_bigtable::schema::{FamilySchema, TableSchema};
use tepui_bigtable::value_type::AggregateType;
use tepui_bigtable::{gc, limits, value_type};
use tepui_engine::cell::FamilyId;

use super::record::{FamilyRecord, TableRecord};
use super::settings;
use crate::api::admin;
use crate::api::admin::modify_column_families_request::Modification;
use crate::api::admin::modify_column_families_request::modification::Mod;
use crate::limits::{FAMILIES_MAX, MODIFICATIONS_MAX};

/// The schema that a record describes.
pub fn schema(record: &TableRecord) -> Result<TableSchema> {
    let mut schema =
        TableSchema { next_family_id: record.next_family_id, ..TableSchema::default() };
    for family in &record.families {
        schema.families.insert(family.name.clone(), family_schema(family)?);
    }
    Ok(schema)
}

fn family_schema(family: &FamilyRecord) -> Result<FamilySchema> {
    let empty = admin::ColumnFamily::default();
    let config = family.config.as_ref().unwrap_or(&empty);
    let mut schema = FamilySchema::new(FamilyId(family.id));
    schema.gc = gc::gc_rule_from_proto(config.gc_rule.as_ref())?;
    schema.gc_since_micros = family.gc_since_micros;
    schema.created_at = family.created_at;
    schema.aggregate = value_type::aggregate_of_checked(config.value_type.as_ref())?;
    Ok(schema)
}

/// Notes when the rules were changed that are others than before: after all that was written until `newest_micros`.
pub fn note_changed_rules(before: &TableRecord, after: &mut TableRecord, newest_micros: i64) {
    fn rule(family: &FamilyRecord) -> Option<&admin::GcRule> {
        family.config.as_ref().and_then(|config| config.gc_rule.as_ref())
    }
    for family in &mut after.families {
        let old = before.families.iter().find(|old| old.id == family.id);
        if old.is_some_and(|old| rule(old) != rule(family)) {
            // Times of writes are whole milliseconds.
            family.gc_since_micros = newest_micros.saturating_add(1_000);
        }
    }
}

/// Families without what is noted of them for a change stream that is no more, or another table's.
pub fn without_positions(mut families: Vec<FamilyRecord>) -> Vec<FamilyRecord> {
    for family in &mut families {
        family.created_at = 0;
    }
    families
}

/// Notes of families that are new, and of those that are dropped, that they are so after this position: a change stream shows the deletion
/// of a row for the families that there were then.
pub fn note_positions(before: &TableRecord, after: &mut TableRecord, position: u64) {
    let is_new = |family: &FamilyRecord| family.id >= before.next_family_id;
    for family in after.families.iter_mut().filter(|family| is_new(family)) {
        family.created_at = position;
    }
    let former: HashSet<u32> = before.former_families.iter().map(|family| family.id).collect();
    for family in after.former_families.iter_mut().filter(|family| !former.contains(&family.id)) {
        if is_new(family) {
            family.created_at = position;
        }
        family.dropped_at = position;
    }
}

/// Adds a family; `ALREADY_EXISTS` where there is one of the name.
pub fn create(record: &mut TableRecord, name: &str, config: admin::ColumnFamily) -> Result<()> {
    check_new_name(name)?;
    settings::check_family_name(record, name)?;
    if record.family(name).is_some() {
        return Err(Error::new(
            Code::AlreadyExists,
            format!("column family {name:?} already exists in {}", record.name),
        ));
    }
    if record.families.len() >= FAMILIES_MAX {
        return Err(Error::invalid_argument(format!(
            "too many column families: limit {FAMILIES_MAX} per table"
        )));
    }
    let id = record.next_family_id;
    let config = normalized(config);
    check_new_rule(name, &config)?;
    let config = Some(config);
    // There is nothing in it that its rule could be younger than.
    let family = FamilyRecord { name: name.to_owned(), id, config, ..FamilyRecord::default() };
    let value_type = family.config.as_ref().and_then(|config| config.value_type.as_ref());
    value_type::check(value_type).map_err(|error| of_family(name, &error))?;
    check_family(&family)?;
    record.families.push(family);
    // The last numbers are those of the server's own families.
    let next = id.checked_add(1).filter(|next| !FamilyId(*next).is_own());
    record.next_family_id = next.ok_or_else(|| {
        Error::failed_precondition("the table's family numbers are used up; create a new table")
    })?;
    Ok(())
}

/// Applies modifications in order to a copy of the record. Any error leaves the table as it was.
pub fn modify(record: &TableRecord, modifications: &[Modification]) -> Result<TableRecord> {
    if modifications.is_empty() {
        return Err(Error::invalid_argument("No column family modifications provided"));
    }
    if modifications.len() > MODIFICATIONS_MAX {
        return Err(Error::invalid_argument(format!(
            "too many modifications: limit {MODIFICATIONS_MAX} per request"
        )));
    }
    let mut changed = record.clone();
    for (i, modification) in modifications.iter().enumerate() {
        let name = modification.id.as_str();
        match &modification.r#mod {
            Some(Mod::Create(config)) => create(&mut changed, name, config.clone())?,
            Some(Mod::Update(config)) => {
                let paths = modification.update_mask.as_ref().map_or(&[][..], |mask| &mask.paths);
                update(&mut changed, name, config, paths)?;
            }
            Some(Mod::Drop(true)) => drop_family(&mut changed, name)?,
            Some(Mod::Drop(false)) => {
                return Err(Error::invalid_argument(format!(
                    "modifications[{i}].drop must be true where it is set"
                )));
            }
            None => {
                return Err(Error::invalid_argument(format!(
                    "modifications[{i}] must set one of create, update and drop"
                )));
            }
        }
    }
    settings::check_size(&changed, Some(record))?;
    Ok(changed)
}

fn drop_family(record: &mut TableRecord, name: &str) -> Result<()> {
    if record.deletion_protection {
        return Err(Error::failed_precondition(format!(
            "column family {name:?} cannot be dropped: table {:?} is protected from deletion",
            record.name
        )));
    }
    let at = record.families.iter().position(|f| f.name == name);
    let mut dropped = record.families.remove(at.ok_or_else(|| missing(record, name))?);
    if record.change_stream_config.is_some() {
        dropped.config = None;
        record.former_families.push(dropped);
        let too_many = record.former_families.len().saturating_sub(FAMILIES_MAX);
        record.former_families.drain(..too_many);
    }
    Ok(())
}

/// Changes what the mask names; an empty mask means the garbage-collection rule alone, as documented. An error may leave the
/// record half changed.
fn update(
    record: &mut TableRecord,
    name: &str,
    config: &admin::ColumnFamily,
    paths: &[String],
) -> Result<()> {
    let error = missing(record, name);
    let family = record.families.iter_mut().find(|f| f.name == name).ok_or(error)?;
    let (mut sets_rule, mut sets_type) = (paths.is_empty(), false);
    for path in paths {
        match path.as_str() {
            "gc_rule" => sets_rule = true,
            "value_type" => sets_type = true,
            other => {
                return Err(Error::invalid_argument(format!(
                    "update_mask of column family {name:?} names {other:?}: \
                     only gc_rule and value_type can be updated"
                )));
            }
        }
    }
    let config = normalized(config.clone());
    // What stays is not copied: a request may change a family as often as there may be modifications.
    let wanted = family.config.get_or_insert_default();
    if sets_rule {
        check_new_rule(name, &config)?;
        wanted.gc_rule = config.gc_rule;
    }
    if sets_type {
        check_value_type_change(wanted.value_type.as_ref(), config.value_type.as_ref())?;
        wanted.value_type = config.value_type;
    }
    check_family(family)
}

/// Cells of an aggregate family are stored as operands, others as they are; neither reads as the other.
/// What the API fills in by itself may be sent back.
fn check_value_type_change(from: Option<&admin::Type>, to: Option<&admin::Type>) -> Result<()> {
    let shown = |aggregate: Option<AggregateType>, of| {
        aggregate.map(|aggregate| aggregate.to_proto(value_type::input_of(of)))
    };
    if shown(value_type::aggregate_of_checked(from)?, from) == shown(value_type::check(to)?, to) {
        return Ok(());
    }
    Err(Error::invalid_argument("Immutable fields 'value_type.aggregate_type' cannot be updated"))
}

/// A rule that says nothing is no rule, and what is deprecated in a type is replaced.
fn normalized(mut config: admin::ColumnFamily) -> admin::ColumnFamily {
    config.gc_rule = config.gc_rule.filter(|rule| rule.rule.is_some());
    config.value_type.iter_mut().for_each(value_type::modernize);
    config
}

/// Checks what is asked of the rule that a client sets, and not of one that is stored.
fn check_new_rule(name: &str, config: &admin::ColumnFamily) -> Result<()> {
    let checked = config.gc_rule.as_ref().map_or(Ok(()), gc::check_new_rule);
    checked.map_err(|error| of_family(name, &error))
}

/// Whether the engine can be given this family; the error names it.
fn check_family(family: &FamilyRecord) -> Result<()> {
    family_schema(family).map(|_| ()).map_err(|error| of_family(&family.name, &error))
}

fn of_family(name: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("column family {name:?}: {}", error.message()))
}

fn check_new_name(name: &str) -> Result<()> {
    limits::check_family_name(name)?;
    if name.starts_with(['-', '.']) {
        return Err(Error::invalid_argument(format!(
            "Invalid column family name {name:?}: it must start with one of [_a-zA-Z0-9]"
        )));
    }
    Ok(())
}

fn missing(record: &TableRecord, name: &str) -> Error {
    Error::not_found(format!("column family {name:?} not found in {}", record.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(n: i32) -> admin::ColumnFamily {
        let rule = admin::gc_rule::Rule::MaxNumVersions(n);
        let gc_rule = Some(admin::GcRule { rule: Some(rule) });
        admin::ColumnFamily { gc_rule, ..Default::default() }
    }

    #[test]
    fn a_rule_is_as_old_as_its_last_change() {
        let before = table();
        let after = |changes: &[Modification]| {
            let mut after = modify(&before, changes).unwrap();
            note_changed_rules(&before, &mut after, 5_000);
            after.families.iter().map(|family| family.gc_since_micros).collect::<Vec<_>>()
        };
        let others = before.families.len();
        let changed = after(&[modification("a", Mod::Update(versions(7)))]);
        assert_eq!(changed.iter().filter(|since| **since == 6_000).count(), 1);
        assert_eq!(changed.iter().filter(|since| **since == 0).count(), others - 1);
        // What is new has nothing that is older than its rule.
        let added = after(&[modification("new", Mod::Create(versions(7)))]);
        assert_eq!(added, vec![0; others + 1]);
        let rule = before.family("a").and_then(|family| family.config.clone()).unwrap();
        assert_eq!(after(&[modification("a", Mod::Update(rule))]), vec![0; others]);
    }

    fn typed(kind: admin::r#type::Kind) -> admin::ColumnFamily {
        let value_type = Some(admin::Type { kind: Some(kind) });
        admin::ColumnFamily { value_type, ..Default::default() }
    }

    fn string_type() -> admin::r#type::Kind {
        admin::r#type::Kind::StringType(admin::r#type::String::default())
    }

    fn sum_type() -> admin::r#type::Kind {
        use admin::r#type::aggregate::{Aggregator, Sum};
        let int64 = admin::Type {
            kind: Some(admin::r#type::Kind::Int64Type(admin::r#type::Int64::default())),
        };
        admin::r#type::Kind::AggregateType(Box::new(admin::r#type::Aggregate {
            input_type: Some(Box::new(int64)),
            aggregator: Some(Aggregator::Sum(Sum {})),
            ..Default::default()
        }))
    }

    /// A type that versions before this one took.
    fn arrays() -> admin::r#type::Kind {
        let array = |element: admin::r#type::Kind| {
            let element_type = Some(Box::new(admin::Type { kind: Some(element) }));
            admin::r#type::Kind::ArrayType(Box::new(admin::r#type::Array { element_type }))
        };
        array(array(string_type()))
    }

    #[test]
    fn a_stored_type_that_is_refused_now_stays_and_can_be_left() {
        let mut record = TableRecord { next_family_id: 2, ..TableRecord::default() };
        let error = create(&mut record, "new", typed(arrays())).unwrap_err();
        assert!(error.message().starts_with("column family \"new\": "), "{error}");
        let (name, config) = ("f".to_owned(), Some(typed(arrays())));
        record.families.push(FamilyRecord { name, id: 1, config, ..FamilyRecord::default() });
        assert_eq!(schema(&record).unwrap().families.len(), 1);
        let record = modify(&record, &[modification("f", Mod::Update(versions(3)))]).unwrap();
        let to = |kind| [masked("f", typed(kind), &["value_type"])];
        assert!(modify(&record, &to(arrays())).is_err());
        modify(&record, &to(string_type())).unwrap();
    }

    #[test]
    fn a_stored_age_that_is_refused_now_stays_and_can_be_left() {
        let aged = |seconds: i64| {
            let age = prost_types::Duration { seconds, nanos: 0 };
            let rule = Some(admin::gc_rule::Rule::MaxAge(age));
            admin::ColumnFamily { gc_rule: Some(admin::GcRule { rule }), ..Default::default() }
        };
        let long = aged(315_576_000_001);
        let mut record = TableRecord { next_family_id: 2, ..TableRecord::default() };
        let error = create(&mut record, "new", long.clone()).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().starts_with("column family \"new\": "), "{error}");
        assert!(error.message().contains("max_age"), "{error}");
        let (name, config) = ("f".to_owned(), Some(long.clone()));
        record.families.push(FamilyRecord { name, id: 1, config, ..FamilyRecord::default() });
        assert!(schema(&record).unwrap().families.values().all(|family| family.gc.is_some()));
        assert!(modify(&record, &[modification("f", Mod::Update(long.clone()))]).is_err());
        let typed = masked("f", typed(string_type()), &["value_type"]);
        let record = modify(&record, &[typed]).unwrap();
        assert_eq!(record.family("f").unwrap().config.as_ref().unwrap().gc_rule, long.gc_rule);
        modify(&record, &[modification("f", Mod::Update(aged(315_576_000_000)))]).unwrap();
    }

    fn modification(id: &str, m: Mod) -> Modification {
        Modification { id: id.to_owned(), update_mask: None, r#mod: Some(m) }
    }

    fn masked(id: &str, config: admin::ColumnFamily, paths: &[&str]) -> Modification {
        let paths = paths.iter().map(|p| (*p).to_owned()).collect();
        Modification {
            id: id.to_owned(),
            update_mask: Some(prost_types::FieldMask { paths }),
            r#mod: Some(Mod::Update(config)),
        }
    }

    fn table() -> TableRecord {
        let empty = TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            next_family_id: 1,
            ..TableRecord::default()
        };
        modify(
            &empty,
            &[
                modification("a", Mod::Create(versions(1))),
                modification("b", Mod::Create(admin::ColumnFamily::default())),
            ],
        )
        .unwrap()
    }

    #[test]
    fn a_dropped_and_created_family_gets_a_new_number() {
        let drop_and_create =
            [modification("a", Mod::Drop(true)), modification("a", Mod::Create(versions(2)))];
        let changed = modify(&table(), &drop_and_create).unwrap();
        assert_eq!(changed.family("a").unwrap().id, 3);
        assert_eq!(changed.family("b").unwrap().id, 2);
        assert_eq!(schema(&changed).unwrap().next_family_id, 4);
    }

    #[test]
    fn one_bad_modification_refuses_them_all() {
        let before = table();
        let cases = [
            (modification("a", Mod::Create(versions(1))), Code::AlreadyExists),
            (modification("x", Mod::Drop(true)), Code::NotFound),
            (modification("x", Mod::Update(versions(1))), Code::NotFound),
            (modification("a", Mod::Drop(false)), Code::InvalidArgument),
            (modification("a:b", Mod::Create(versions(1))), Code::InvalidArgument),
            (modification("-a", Mod::Create(versions(1))), Code::InvalidArgument),
            (modification("", Mod::Create(versions(1))), Code::InvalidArgument),
            (modification("c", Mod::Create(versions(0))), Code::InvalidArgument),
            (masked("a", versions(1), &["name"]), Code::InvalidArgument),
            (Modification { id: "a".to_owned(), ..Default::default() }, Code::InvalidArgument),
        ];
        for (bad, code) in cases {
            let good = modification("new", Mod::Create(versions(1)));
            let error = modify(&before, &[good, bad.clone()]).unwrap_err();
            assert_eq!(error.kind(), code, "{bad:?}");
        }
        assert_eq!(modify(&before, &[]).unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn an_update_without_a_mask_changes_the_rule_alone() {
        let text = modify(&table(), &[masked("a", typed(string_type()), &["value_type"])]).unwrap();
        let changed = modify(&text, &[modification("a", Mod::Update(versions(5)))]).unwrap();
        let config = changed.family("a").unwrap().config.clone().unwrap();
        assert_eq!(config.gc_rule, versions(5).gc_rule);
        assert_eq!(config.value_type, typed(string_type()).value_type);
        let cleared = [modification("a", Mod::Update(admin::ColumnFamily::default()))];
        let changed = modify(&changed, &cleared).unwrap();
        assert_eq!(changed.family("a").unwrap().config.as_ref().unwrap().gc_rule, None);
    }

    #[test]
    fn an_update_changes_only_what_its_mask_names() {
        let both = admin::ColumnFamily { gc_rule: versions(9).gc_rule, ..typed(string_type()) };
        let changed = modify(&table(), &[masked("a", both, &["value_type"])]).unwrap();
        let config = changed.family("a").unwrap().config.clone().unwrap();
        assert_eq!(config.gc_rule, versions(1).gc_rule);
        assert_eq!(config.value_type, typed(string_type()).value_type);
    }

    #[test]
    fn what_an_update_leaves_of_a_family_is_not_copied_for_it() {
        use admin::r#type::{Kind, Struct, r#struct::Field};
        let field = Field {
            field_name: "x".repeat(1 << 10),
            r#type: Some(admin::Type { kind: Some(string_type()) }),
        };
        let of_one = typed(Kind::StructType(Struct { fields: vec![field], ..Struct::default() }));
        let mut record = modify(&table(), &[modification("x", Mod::Create(of_one))]).unwrap();
        let at = |record: &TableRecord| {
            let config = record.family("x").unwrap().config.as_ref().unwrap();
            match config.value_type.as_ref().unwrap().kind.as_ref().unwrap() {
                Kind::StructType(of) => of.fields[0].field_name.as_ptr(),
                other => panic!("{other:?}"),
            }
        };
        let before = at(&record);
        update(&mut record, "x", &versions(5), &[]).unwrap();
        assert_eq!(at(&record), before);
        let often = vec!["gc_rule".to_owned(); 100_000];
        update(&mut record, "x", &versions(6), &often).unwrap();
        assert_eq!(at(&record), before);
        let config = record.family("x").unwrap().config.as_ref().unwrap();
        assert_eq!(config.gc_rule, versions(6).gc_rule);
    }

    #[test]
    fn aggregate_types_are_fixed_at_creation() {
        let sum = typed(sum_type());
        let with_sum = modify(&table(), &[modification("s", Mod::Create(sum.clone()))]).unwrap();
        assert!(schema(&with_sum).unwrap().families["s"].aggregate.is_some());
        for bad in [
            masked("s", typed(string_type()), &["value_type"]),
            masked("s", admin::ColumnFamily::default(), &["value_type"]),
            masked("b", sum.clone(), &["value_type"]),
        ] {
            let error = modify(&with_sum, &[bad]).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains("value_type.aggregate_type"));
        }
        modify(&with_sum, &[masked("s", sum, &["value_type"])]).unwrap();
    }

    #[test]
    fn the_encoding_of_what_an_aggregate_takes_is_fixed_at_creation() {
        use admin::r#type::aggregate::{Aggregator, HyperLogLogPlusPlusUniqueCount};
        use admin::r#type::int64::encoding::{BigEndianBytes, Encoding, OrderedCodeBytes};
        use admin::r#type::{Aggregate, Int64, Kind, int64};
        let unique = |encoding: Option<Encoding>| {
            let encoding = encoding.map(|encoding| int64::Encoding { encoding: Some(encoding) });
            let of = admin::Type { kind: Some(Kind::Int64Type(Int64 { encoding })) };
            let count = HyperLogLogPlusPlusUniqueCount::default();
            typed(Kind::AggregateType(Box::new(Aggregate {
                input_type: Some(Box::new(of)),
                aggregator: Some(Aggregator::HllppUniqueCount(count)),
                ..Default::default()
            })))
        };
        let big_endian = || unique(Some(Encoding::BigEndianBytes(BigEndianBytes::default())));
        // What is deprecated, and sent by older clients, says nothing.
        #[expect(deprecated, reason = "it is what older clients send")]
        let older = BigEndianBytes { bytes_type: Some(admin::r#type::Bytes::default()) };
        let older = unique(Some(Encoding::BigEndianBytes(older)));
        let ordered = unique(Some(Encoding::OrderedCodeBytes(OrderedCodeBytes::default())));
        let created = modify(&table(), &[modification("u", Mod::Create(big_endian()))]).unwrap();
        let update = |to| modify(&created, &[masked("u", to, &["value_type"])]);
        assert_eq!(update(ordered).unwrap_err().kind(), Code::InvalidArgument);
        for same in [big_endian(), unique(None), older] {
            update(same).unwrap();
        }
    }

    #[test]
    fn a_table_whose_types_are_too_large_to_be_shown_is_refused_and_shrinks() {
        use admin::r#type::{Kind, Struct, r#struct::Field};
        let of_kib = |kib: usize| {
            let field = Field {
                field_name: "x".repeat(1 << 10),
                r#type: Some(admin::Type { kind: Some(string_type()) }),
            };
            typed(Kind::StructType(Struct { fields: vec![field; kib], ..Struct::default() }))
        };
        let half = modify(&table(), &[modification("x", Mod::Create(of_kib(500)))]).unwrap();
        let more = [modification("y", Mod::Create(of_kib(600)))];
        let error = modify(&half, &more).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains("limit 1048576"), "{error}");
        let mut large = half;
        create(&mut large, "y", of_kib(600)).unwrap();
        modify(&large, &[modification("a", Mod::Drop(true))]).expect("it gets smaller");
    }

    #[test]
    fn a_table_of_more_parts_than_it_may_have_is_refused_and_shrinks() {
        use admin::r#type::{Kind, Struct, r#struct::Field};
        let of_fields = |count: usize| {
            let field = |i: usize| Field {
                field_name: format!("{i}"),
                r#type: Some(admin::Type { kind: Some(string_type()) }),
            };
            let fields = (0..count).map(field).collect();
            typed(Kind::StructType(Struct { fields, ..Struct::default() }))
        };
        // Four for each field: itself, its name, its type and the kind of that.
        let few = modify(&table(), &[modification("x", Mod::Create(of_fields(9_000)))]).unwrap();
        let more = [modification("y", Mod::Create(of_fields(9_000)))];
        let error = modify(&few, &more).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains("limit 65536"), "{error}");
        let mut many = few;
        create(&mut many, "y", of_fields(9_000)).unwrap();
        modify(&many, &[modification("a", Mod::Update(versions(7)))]).expect("it gets no larger");
        modify(&many, &[modification("x", Mod::Drop(true))]).expect("it gets smaller");
        let error = modify(&many, &[modification("b", Mod::Update(versions(7)))]).unwrap_err();
        assert!(error.message().contains("limit 65536"), "{error}");
    }

    #[test]
    fn numbers_of_families_end_before_those_of_the_servers_own() {
        let last = tepui_engine::cell::FAMILY_OWN_MIN.0 - 2;
        let record = TableRecord { next_family_id: last, ..table() };
        let create = |name: &str| modification(name, Mod::Create(versions(1)));
        let full = modify(&record, &[create("last")]).unwrap();
        assert_eq!(full.family("last").map(|family| family.id), Some(last));
        let error = modify(&full, &[create("more")]).unwrap_err();
        assert_eq!(error.kind(), Code::FailedPrecondition);
        assert!(error.message().contains("numbers are used up"), "{error}");
    }

    #[test]
    fn protection_blocks_dropping_and_nothing_else() {
        let protected = TableRecord { deletion_protection: true, ..table() };
        let error = modify(&protected, &[modification("a", Mod::Drop(true))]).unwrap_err();
        assert_eq!(error.kind(), Code::FailedPrecondition);
        modify(&protected, &[modification("c", Mod::Create(versions(1)))]).unwrap();
    }
}

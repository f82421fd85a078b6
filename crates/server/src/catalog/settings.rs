//! What a table is set to besides its families: deletion protection, change stream, automated backups, tiered storage, the
//! schema of its row keys. What `CreateTable` and `UpdateTable` ask for is checked here and kept in the record, or refused.

use std::collections::BTreeSet;

use prost::Message as _;
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::parts::{self, Shape};
use tepui_bigtable::value_type;

use super::record::TableRecord;
use crate::api::admin;
use crate::api::admin::table::TimestampGranularity;
use crate::api::admin::tiered_storage_rule::Rule;
use crate::api::admin::r#type::Kind;
use crate::api::spelled_out::{AutomatedBackupPolicy, Table};
use crate::backups::{check_policy_named, times};
use crate::limits::{TABLE_BYTES_MAX, TABLE_FIELDS_MAX};

const DAY_SECONDS: i64 = 24 * 3_600;

/// Days that a change stream may be kept: Bigtable's documented limits.
const STREAM_DAYS: std::ops::RangeInclusive<i64> = 1..=7;

/// Days that automated backups may be kept: Bigtable's documented limits.
const BACKUP_DAYS: std::ops::RangeInclusive<i64> = 3..=90;

/// Days that automated backups may be hot: Bigtable's documented limits.
const HOT_DAYS: std::ops::RangeInclusive<i64> = 1..=10;

/// `Table.TimestampGranularity.MICROS`, which is younger than the message types.
const GRANULARITY_MICROS: i32 = 2;

/// Days from which cells may go to the tier of infrequent access, at least: Bigtable's documented limit.
const INFREQUENT_DAYS_MIN: i64 = 30;

/// Names that a query has for other things than fields of the row key.
const RESERVED_FIELDS: [&str; 2] = ["_key", "_timestamp"];

const UPDATABLE: &str = "deletion_protection, change_stream_config, automated_backup_policy, tiered_storage_config, \
                         row_key_schema";

/// Sets a new table's record to what the table asks for; its families must be there already.
pub fn set_new(record: &mut TableRecord, asked: &Table) -> Result<()> {
    record.automated_backup_policy.clone_from(&asked.automated_backup_policy);
    let asked = &asked.rest;
    match TimestampGranularity::try_from(asked.granularity) {
        Ok(TimestampGranularity::Unspecified | TimestampGranularity::Millis) => {}
        Err(_) if asked.granularity == GRANULARITY_MICROS => {
            return Err(Error::unimplemented(
                "tables of microsecond granularity are not supported: use MILLIS",
            ));
        }
        Err(_) => {
            return Err(Error::invalid_argument(format!(
                "granularity must be MILLIS, but is {}",
                asked.granularity
            )));
        }
    }
    record.deletion_protection = asked.deletion_protection;
    record.change_stream_config = asked.change_stream_config;
    record.tiered_storage_config = asked.tiered_storage_config;
    record.row_key_schema = schema(asked);
    check(record, None)?;
    check_policy_named(record)?;
    check_size(record, None)
}

/// What an `UpdateTable` asks for.
#[derive(Debug)]
pub struct Update<'a> {
    asked: &'a Table,
    /// That of the table that is asked for, with what is deprecated in it replaced.
    schema: Option<admin::r#type::Struct>,
    paths: Vec<&'a str>,
    ignore_warnings: bool,
}

impl<'a> Update<'a> {
    /// What the mask names. Refused where it cannot be updated, or is larger by itself than the record of the table may
    /// become: before other changes are kept from going on.
    pub fn of(
        record: &TableRecord,
        asked: &'a Table,
        mask: Option<&'a prost_types::FieldMask>,
        ignore_warnings: bool,
    ) -> Result<Self> {
        let paths = crate::instances::mask_paths(mask)?;
        let update = Self { asked, schema: schema(&asked.rest), paths, ignore_warnings };
        let mut alone = TableRecord { name: record.name.clone(), ..TableRecord::default() };
        update.set(&mut alone)?;
        check_size(&alone, Some(record))?;
        Ok(update)
    }

    /// The record with what the mask names changed. Any error leaves the table as it was.
    pub fn apply(&self, record: &TableRecord) -> Result<TableRecord> {
        let mut changed = record.clone();
        self.set(&mut changed)?;
        check_schema_change(record, changed.row_key_schema.as_ref(), self.ignore_warnings)?;
        check(&mut changed, Some(record))?;
        if record.backup_policy().is_none() {
            check_policy_named(&changed)?;
        }
        check_size(&changed, Some(record))?;
        Ok(changed)
    }

    fn set(&self, record: &mut TableRecord) -> Result<()> {
        let Table { rest: asked, automated_backup_policy: policy, .. } = self.asked;
        for path in &self.paths {
            let (field, part) = path.split_once('.').unwrap_or((path, ""));
            match (field, part) {
                ("deletion_protection", "") => {
                    record.deletion_protection = asked.deletion_protection;
                }
                ("change_stream_config", "") => {
                    record.change_stream_config = asked.change_stream_config;
                }
                // A part that is not set is no wish to be without the whole: that it must be set is checked later.
                ("change_stream_config", "retention_period") => {
                    record.change_stream_config =
                        Some(asked.change_stream_config.unwrap_or_default());
                }
                ("automated_backup_policy", part) => {
                    update_policy(record, policy.as_ref(), part)
                        .ok_or_else(|| crate::instances::not_updatable(path, UPDATABLE))?;
                }
                ("tiered_storage_config", "") => {
                    record.tiered_storage_config = asked.tiered_storage_config;
                }
                ("tiered_storage_config", "infrequent_access") => {
                    record.tiered_storage_config =
                        Some(asked.tiered_storage_config.unwrap_or_default());
                }
                ("row_key_schema", "") => record.row_key_schema.clone_from(&self.schema),
                ("column_families", _) => {
                    return Err(Error::unimplemented(
                        "UpdateTable does not change column_families; use ModifyColumnFamilies",
                    ));
                }
                _ => return Err(crate::instances::not_updatable(path, UPDATABLE)),
            }
        }
        Ok(())
    }
}

/// Refuses a record that grows, from what it was `before`, beyond [`TABLE_BYTES_MAX`] of its encoding or [`TABLE_FIELDS_MAX`] in it.
pub fn check_size(record: &TableRecord, before: Option<&TableRecord>) -> Result<()> {
    let is_larger = |size: usize, max: usize, of: &dyn Fn(&TableRecord) -> usize| {
        size > max && before.is_none_or(|before| size > of(before))
    };
    let refuse = |size: usize, what: &str, max: usize| {
        Err(Error::invalid_argument(format!(
            "the families and settings of table {:?} would have {size} {what}; limit {max}",
            record.name
        )))
    };
    let bytes = record.encoded_len();
    if is_larger(bytes, TABLE_BYTES_MAX, &TableRecord::encoded_len) {
        return refuse(bytes, "bytes", TABLE_BYTES_MAX);
    }
    // Each has two bytes at least.
    if bytes <= 2 * TABLE_FIELDS_MAX {
        return Ok(());
    }
    let fields = |record: &TableRecord| parts::count(&record.encode_to_vec(), &Shape::All);
    let count = fields(record);
    if is_larger(count, TABLE_FIELDS_MAX, &fields) {
        let what = "fields, those of their types and rules included";
        return refuse(count, what, TABLE_FIELDS_MAX);
    }
    Ok(())
}

/// Whether a table may be deleted as it is set.
pub fn check_deletable(record: &TableRecord) -> Result<()> {
    let name = &record.name;
    if record.deletion_protection {
        let what = format!("table {name:?} is protected from deletion");
        return Err(Error::failed_precondition(what));
    }
    if record.change_stream_config.is_some() {
        return Err(Error::failed_precondition(format!(
            "table {name:?} has a change stream: disable it before the table is deleted"
        )));
    }
    Ok(())
}

/// Whether the row key's schema lets a family have this name.
pub fn check_family_name(record: &TableRecord, name: &str) -> Result<()> {
    let fields = record.row_key_schema.iter().flat_map(|schema| &schema.fields);
    match fields.into_iter().find(|field| field.field_name == name) {
        None => Ok(()),
        Some(_) => Err(Error::invalid_argument(format!(
            "column family {name:?}: row_key_schema has a field of this name"
        ))),
    }
}

/// The schema of row keys, with what is deprecated in it replaced.
fn schema(table: &admin::Table) -> Option<admin::r#type::Struct> {
    let mut schema = table.row_key_schema.clone();
    schema.iter_mut().for_each(value_type::modernize_fields);
    schema
}

/// Changes the policy, or a part of it; `None` for a part that there is not. An empty one takes it away: so Google's Java client
/// turns automated backups off.
fn update_policy(
    record: &mut TableRecord,
    asked: Option<&AutomatedBackupPolicy>,
    part: &str,
) -> Option<()> {
    let empty = AutomatedBackupPolicy::default();
    let asked = asked.unwrap_or(&empty);
    if part.is_empty() {
        record.automated_backup_policy = (*asked != empty).then(|| asked.clone());
        return Some(());
    }
    let policy = record.automated_backup_policy.get_or_insert_default();
    match part {
        "retention_period" => policy.retention_period = asked.retention_period,
        "frequency" => policy.frequency = asked.frequency,
        "locations" => policy.locations.clone_from(&asked.locations),
        "keep_hot_duration" => policy.keep_hot_duration = asked.keep_hot_duration,
        "disabled" => policy.disabled = asked.disabled,
        _ => return None,
    }
    Some(())
}

/// Checks the settings of a record that are others than `before`, and fills in what is left open. What is stored already may be of a time when more
/// was taken, and is to keep nobody from changing something else.
fn check(record: &mut TableRecord, before: Option<&TableRecord>) -> Result<()> {
    let is_as_before = |same: fn(&TableRecord, &TableRecord) -> bool| {
        before.is_some_and(|before| same(record, before))
    };
    let has_stream = is_as_before(|a, b| a.change_stream_config == b.change_stream_config);
    let has_policy = is_as_before(|a, b| a.automated_backup_policy == b.automated_backup_policy);
    let has_tiers = is_as_before(|a, b| a.tiered_storage_config == b.tiered_storage_config);
    let has_schema = is_as_before(|a, b| a.row_key_schema == b.row_key_schema);
    if let Some(config) = record.change_stream_config.as_mut().filter(|_| !has_stream) {
        let field = "change_stream_config.retention_period";
        let period = config.retention_period.as_mut();
        let period =
            period.ok_or_else(|| Error::invalid_argument(format!("{field} must be set")))?;
        times::check_duration(field, period)?;
        period.nanos -= period.nanos % 1_000;
        check_days(field, period, &STREAM_DAYS)?;
    }
    if let Some(policy) = record.automated_backup_policy.as_mut().filter(|_| !has_policy) {
        check_policy(policy)?;
    }
    if let Some(config) = record.tiered_storage_config.as_ref().filter(|_| !has_tiers) {
        let field = "tiered_storage_config.infrequent_access.include_if_older_than";
        let rule = config.infrequent_access.as_ref().and_then(|rule| rule.rule.as_ref());
        let Some(Rule::IncludeIfOlderThan(age)) = rule else {
            return Err(Error::invalid_argument(format!("{field} must be set")));
        };
        times::check_duration(field, age)?;
        if age.seconds < INFREQUENT_DAYS_MIN * DAY_SECONDS {
            let what = format!("{field} must be at least {INFREQUENT_DAYS_MIN} days");
            return Err(Error::invalid_argument(what));
        }
    }
    match &record.row_key_schema {
        Some(schema) if !has_schema => check_schema(record, schema),
        Some(_) | None => Ok(()),
    }
}

fn check_policy(policy: &mut AutomatedBackupPolicy) -> Result<()> {
    let field = "automated_backup_policy.retention_period";
    match &policy.retention_period {
        Some(period) => check_days(field, period, &BACKUP_DAYS)?,
        None if policy.disabled => {}
        None => return Err(Error::invalid_argument(format!("{field} must be set"))),
    }
    let daily = prost_types::Duration { seconds: DAY_SECONDS, nanos: 0 };
    if *policy.frequency.get_or_insert(daily) != daily {
        return Err(Error::invalid_argument(
            "automated_backup_policy.frequency must be 24 hours, or left out",
        ));
    }
    if !policy.locations.is_empty() {
        return Err(Error::unimplemented(
            "automated_backup_policy.locations: there is one location, this server's; leave them out",
        ));
    }
    if let Some(hot) = &policy.keep_hot_duration {
        let field = "automated_backup_policy.keep_hot_duration";
        check_days(field, hot, &HOT_DAYS)?;
        let is_longer =
            |kept: &prost_types::Duration| (hot.seconds, hot.nanos) > (kept.seconds, kept.nanos);
        if policy.retention_period.as_ref().is_some_and(is_longer) {
            let what = format!("{field} must not be longer than retention_period");
            return Err(Error::invalid_argument(what));
        }
    }
    Ok(())
}

fn check_days(
    field: &str,
    period: &prost_types::Duration,
    days: &std::ops::RangeInclusive<i64>,
) -> Result<()> {
    let (min, max) = (days.start() * DAY_SECONDS, days.end() * DAY_SECONDS);
    times::check_duration(field, period)?;
    let is_over = period.seconds == max && period.nanos > 0;
    if (min..=max).contains(&period.seconds) && !is_over {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{field} must be {} to {} days, got {} seconds",
        days.start(),
        days.end(),
        period.seconds
    )))
}

/// A schema is set once, and taken away only by who says that it may break readers.
fn check_schema_change(
    record: &TableRecord,
    asked: Option<&admin::r#type::Struct>,
    ignore_warnings: bool,
) -> Result<()> {
    match (&record.row_key_schema, asked) {
        (Some(there), Some(asked)) if there != asked => Err(Error::invalid_argument(
            "row_key_schema: a schema cannot be changed; remove it, then set the new one",
        )),
        (Some(_), None) if !ignore_warnings => Err(Error::invalid_argument(
            "row_key_schema: queries that use its fields will fail without it; set ignore_warnings to go on",
        )),
        _ => Ok(()),
    }
}

fn check_schema(record: &TableRecord, schema: &admin::r#type::Struct) -> Result<()> {
    let bad = |what: String| Error::invalid_argument(format!("row_key_schema: {what}"));
    if schema.fields.is_empty() {
        return Err(bad("it must have fields".to_owned()));
    }
    if schema.encoding.is_none() {
        return Err(bad("encoding must be set".to_owned()));
    }
    let as_type = admin::Type { kind: Some(Kind::StructType(schema.clone())) };
    value_type::check(Some(&as_type)).map_err(|error| error.context("row_key_schema"))?;
    let mut names = BTreeSet::new();
    for (i, field) in schema.fields.iter().enumerate() {
        let name = field.field_name.as_str();
        if name.is_empty() {
            return Err(bad(format!("fields[{i}].field_name must be set")));
        }
        if !names.insert(name) {
            return Err(bad(format!("two fields have the name {name:?}")));
        }
        if RESERVED_FIELDS.contains(&name) || record.family(name).is_some() {
            return Err(bad(format!(
                "fields[{i}].field_name {name:?} is that of a column family, or reserved"
            )));
        }
        let has_encoding = match field.r#type.as_ref().and_then(|of| of.kind.as_ref()) {
            Some(Kind::BytesType(bytes)) => bytes.encoding.is_some(),
            Some(Kind::StringType(string)) => string.encoding.is_some(),
            Some(Kind::Int64Type(int64)) => int64.encoding.is_some(),
            Some(Kind::TimestampType(timestamp)) => timestamp.encoding.is_some(),
            _ => {
                return Err(bad(format!(
                    "fields[{i}].type must be one of Bytes, String, Int64 and Timestamp"
                )));
            }
        };
        if !has_encoding {
            return Err(bad(format!("fields[{i}].type must have an encoding")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tepui_bigtable::error::Code;

    use super::*;
    use crate::api::admin::r#type::{self as t, r#struct};
    use crate::catalog::record::FamilyRecord;
    use crate::limits::RESOURCE_NAME_CHARS_MAX;

    fn duration(days: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds: days * DAY_SECONDS, nanos: 0 })
    }

    fn stream(days: i64) -> Table {
        let change_stream_config =
            Some(admin::ChangeStreamConfig { retention_period: duration(days) });
        admin::Table { change_stream_config, ..Default::default() }.into()
    }

    fn backups(retention: i64, frequency: Option<i64>) -> Table {
        with_policy(AutomatedBackupPolicy {
            retention_period: duration(retention),
            frequency: frequency.and_then(duration),
            ..Default::default()
        })
    }

    fn with_policy(policy: AutomatedBackupPolicy) -> Table {
        Table { automated_backup_policy: Some(policy), ..Table::default() }
    }

    fn hot(days: Option<prost_types::Duration>) -> Table {
        with_policy(AutomatedBackupPolicy {
            retention_period: duration(5),
            keep_hot_duration: days,
            ..Default::default()
        })
    }

    fn tiered(days: i64) -> Table {
        let rule = duration(days).map(Rule::IncludeIfOlderThan);
        let infrequent_access = Some(admin::TieredStorageRule { rule });
        let tiered_storage_config = Some(admin::TieredStorageConfig { infrequent_access });
        admin::Table { tiered_storage_config, ..Default::default() }.into()
    }

    fn int64() -> Kind {
        let big = t::int64::encoding::Encoding::BigEndianBytes(
            t::int64::encoding::BigEndianBytes::default(),
        );
        Kind::Int64Type(t::Int64 { encoding: Some(t::int64::Encoding { encoding: Some(big) }) })
    }

    fn schema_of(fields: &[(&str, Kind)], encoding: Option<r#struct::encoding::Encoding>) -> Table {
        let field = |(name, kind): &(&str, Kind)| r#struct::Field {
            field_name: (*name).to_owned(),
            r#type: Some(admin::Type { kind: Some(kind.clone()) }),
        };
        let schema = t::Struct {
            fields: fields.iter().map(field).collect(),
            encoding: encoding.map(|encoding| r#struct::Encoding { encoding: Some(encoding) }),
        };
        admin::Table { row_key_schema: Some(schema), ..Default::default() }.into()
    }

    fn ordered() -> Option<r#struct::encoding::Encoding> {
        Some(r#struct::encoding::Encoding::OrderedCodeBytes(
            r#struct::encoding::OrderedCodeBytes {},
        ))
    }

    fn schema(names: &[&str]) -> Table {
        let fields: Vec<_> = names.iter().map(|name| (*name, int64())).collect();
        schema_of(&fields, ordered())
    }

    fn record() -> TableRecord {
        let family =
            FamilyRecord { name: "cf".to_owned(), id: 1, config: None, ..FamilyRecord::default() };
        TableRecord { families: vec![family], ..TableRecord::default() }
    }

    fn mask(paths: &[&str]) -> prost_types::FieldMask {
        prost_types::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() }
    }

    fn update(
        record: &TableRecord,
        asked: &Table,
        mask: Option<&prost_types::FieldMask>,
        ignore_warnings: bool,
    ) -> Result<TableRecord> {
        Update::of(record, asked, mask, ignore_warnings)?.apply(record)
    }

    #[test]
    fn what_is_too_large_by_itself_is_refused_before_others_are_kept_from_going_on() {
        let located = |bytes: usize| {
            with_policy(AutomatedBackupPolicy {
                locations: vec!["x".repeat(bytes)],
                ..Default::default()
            })
        };
        let refused = |bytes: usize, path: &str, before: &TableRecord| {
            let (asked, mask) = (located(bytes), mask(&[path]));
            Update::of(before, &asked, Some(&mask), false).err().map(|error| error.kind())
        };
        let too_large = Some(Code::InvalidArgument);
        for path in ["automated_backup_policy", "automated_backup_policy.locations"] {
            assert_eq!(refused(TABLE_BYTES_MAX / 2, path, &record()), None);
            assert_eq!(refused(TABLE_BYTES_MAX, path, &record()), too_large);
        }
        let disabled = "automated_backup_policy.disabled";
        assert_eq!(refused(TABLE_BYTES_MAX, disabled, &record()), None, "it names nothing large");
        let mut large = record();
        large.families[0].name = "x".repeat(2 * TABLE_BYTES_MAX);
        assert_eq!(refused(TABLE_BYTES_MAX, "automated_backup_policy", &large), None);
    }

    #[test]
    fn a_new_table_is_set_to_all_that_it_asks_for() {
        let mut set = record();
        let rest = admin::Table {
            granularity: 1,
            deletion_protection: true,
            change_stream_config: stream(7).rest.change_stream_config,
            tiered_storage_config: tiered(30).rest.tiered_storage_config,
            ..schema(&["a", "b"]).rest
        };
        let asked = Table { rest, ..backups(90, None) };
        set_new(&mut set, &asked).unwrap();
        let asked = asked.rest;
        assert!(set.deletion_protection);
        assert_eq!(set.change_stream_config, asked.change_stream_config);
        assert_eq!(set.tiered_storage_config, asked.tiered_storage_config);
        assert_eq!(set.row_key_schema, asked.row_key_schema);
        let policy = set.automated_backup_policy.clone().unwrap();
        assert_eq!((policy.retention_period, policy.frequency), (duration(90), duration(1)));
        assert!(check_family_name(&set, "a").is_err());
        check_family_name(&set, "c").unwrap();
    }

    #[test]
    fn settings_outside_of_their_limits_are_refused_by_name() {
        let micros = admin::Table { granularity: 2, ..Default::default() }.into();
        let nanos = admin::Table { granularity: 3, ..Default::default() }.into();
        let empty_stream = admin::ChangeStreamConfig { retention_period: None };
        let empty_stream =
            admin::Table { change_stream_config: Some(empty_stream), ..Default::default() }.into();
        let located = with_policy(AutomatedBackupPolicy {
            retention_period: duration(3),
            locations: vec!["projects/p/locations/z".to_owned()],
            ..Default::default()
        });
        let short = duration(1).map(|day| prost_types::Duration { nanos: -1, ..day });
        let disabled_daily = with_policy(AutomatedBackupPolicy {
            frequency: duration(2),
            disabled: true,
            ..Default::default()
        });
        let bare = Kind::Int64Type(t::Int64::default());
        let no_tier = admin::Table {
            tiered_storage_config: Some(admin::TieredStorageConfig::default()),
            ..Default::default()
        };
        let no_tier = no_tier.into();
        let bad = Code::InvalidArgument;
        for (what, asked, code) in [
            ("granularity", micros, Code::Unimplemented),
            ("granularity", nanos, bad),
            ("change_stream_config.retention_period", stream(0), bad),
            ("change_stream_config.retention_period", stream(8), bad),
            ("change_stream_config.retention_period", empty_stream, bad),
            (
                "automated_backup_policy.retention_period",
                with_policy(AutomatedBackupPolicy::default()),
                bad,
            ),
            ("automated_backup_policy.retention_period", backups(2, None), bad),
            ("automated_backup_policy.retention_period", backups(91, None), bad),
            ("automated_backup_policy.frequency", backups(3, Some(2)), bad),
            ("automated_backup_policy.frequency", disabled_daily, bad),
            ("automated_backup_policy.locations", located, Code::Unimplemented),
            ("automated_backup_policy.keep_hot_duration", hot(short), bad),
            ("automated_backup_policy.keep_hot_duration", hot(duration(0)), bad),
            ("automated_backup_policy.keep_hot_duration", hot(duration(11)), bad),
            ("must not be longer than retention_period", hot(duration(6)), bad),
            ("tiered_storage_config", tiered(29), bad),
            ("tiered_storage_config", no_tier, bad),
            ("must have fields", schema(&[]), bad),
            ("field_name must be set", schema(&[""]), bad),
            ("two fields", schema(&["a", "a"]), bad),
            ("reserved", schema(&["_key"]), bad),
            ("column family", schema(&["cf"]), bad),
            ("encoding must be set", schema_of(&[("a", int64())], None), bad),
            ("must have an encoding", schema_of(&[("a", bare)], ordered()), bad),
            ("fields[0].type", schema_of(&[("a", Kind::BoolType(t::Bool {}))], ordered()), bad),
        ] {
            let error = set_new(&mut record(), &asked).unwrap_err();
            assert_eq!(error.kind(), code, "{what}: {error}");
            assert!(error.message().contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_by_name_before_it_is_rounded() {
        let days =
            |days: i64, nanos: i32| prost_types::Duration { seconds: days * DAY_SECONDS, nanos };
        let retention_period = |length| {
            let change_stream_config =
                Some(admin::ChangeStreamConfig { retention_period: Some(length) });
            admin::Table { change_stream_config, ..Default::default() }.into()
        };
        let backups = |length| {
            with_policy(AutomatedBackupPolicy {
                retention_period: Some(length),
                ..Default::default()
            })
        };
        let tier = |length| {
            let rule = Some(Rule::IncludeIfOlderThan(length));
            let infrequent_access = Some(admin::TieredStorageRule { rule });
            let tiered_storage_config = Some(admin::TieredStorageConfig { infrequent_access });
            admin::Table { tiered_storage_config, ..Default::default() }.into()
        };
        let hot = |length| hot(Some(length));
        type Asked<'a> = &'a dyn Fn(prost_types::Duration) -> Table;
        let fields: [(&str, Asked<'_>, i64); 4] = [
            ("change_stream_config.retention_period", &retention_period, 6),
            ("automated_backup_policy.retention_period", &backups, 30),
            ("automated_backup_policy.keep_hot_duration", &hot, 2),
            ("tiered_storage_config.infrequent_access.include_if_older_than", &tier, 40),
        ];
        for (field, asked, good) in fields {
            set_new(&mut record(), &asked(days(good, 999_999_999))).unwrap();
            let too_long = prost_types::Duration { seconds: 315_576_000_001, nanos: 0 };
            for length in
                [days(good, -1), days(good, 1_000_000_000), days(good, i32::MAX), too_long]
            {
                let error = set_new(&mut record(), &asked(length)).unwrap_err();
                assert_eq!(error.kind(), Code::InvalidArgument, "{field}: {length:?}: {error}");
                assert!(error.message().starts_with(field), "{length:?}: {error}");
            }
        }
        let longest = prost_types::Duration { seconds: 315_576_000_000, nanos: 999_999_999 };
        set_new(&mut record(), &tier(longest)).unwrap();
    }

    #[test]
    fn an_update_changes_what_its_mask_names_and_no_more() {
        let mut there = record();
        set_new(&mut there, &backups(5, None)).unwrap();
        let rest = admin::Table { deletion_protection: true, ..Default::default() };
        let asked = Table { rest, ..backups(9, None) };
        let part = update(
            &there,
            &asked,
            Some(&mask(&["automated_backup_policy.retention_period"])),
            false,
        );
        let part = part.unwrap();
        assert!(!part.deletion_protection);
        let policy = part.automated_backup_policy.clone().unwrap();
        assert_eq!((policy.retention_period, policy.frequency), (duration(9), duration(1)));
        // Not set, or, as Google's Java client has it, set to nothing.
        for asked in [Table::default(), with_policy(AutomatedBackupPolicy::default())] {
            let off = update(&part, &asked, Some(&mask(&["automated_backup_policy"])), false);
            assert_eq!(off.unwrap().automated_backup_policy, None);
        }
        let streaming = update(
            &there,
            &stream(2),
            Some(&mask(&["change_stream_config.retention_period"])),
            false,
        );
        let streaming = streaming.unwrap();
        assert!(check_deletable(&streaming).is_err());
        check_deletable(&there).unwrap();
        let bad = Code::InvalidArgument;
        for (paths, code) in [
            (&[][..], bad),
            (&["*"], bad),
            (&["granularity"], bad),
            (&["nonsense"], bad),
            (&["deletion_protection.x"], bad),
            (&["row_key_schema.fields"], bad),
            (&["automated_backup_policy.nonsense"], bad),
            (&["change_stream_config.retention_period"], bad),
            (&["tiered_storage_config.infrequent_access"], bad),
            (&["deletion_protection", "column_families"], Code::Unimplemented),
        ] {
            let error = update(&there, &asked, Some(&mask(paths)), false).unwrap_err();
            assert_eq!(error.kind(), code, "{paths:?}: {error}");
        }
        assert_eq!(update(&there, &asked, None, false).unwrap_err().kind(), bad);
    }

    #[test]
    fn a_policy_is_disabled_and_enabled_again_as_a_whole_or_by_its_part() {
        let disabled = AutomatedBackupPolicy { disabled: true, ..Default::default() };
        let whole = mask(&["automated_backup_policy"]);
        let part = mask(&["automated_backup_policy.disabled"]);
        let mut there = record();
        set_new(&mut there, &hot(duration(5))).unwrap();
        assert_eq!(there.backup_policy().unwrap().keep_hot_duration, duration(5));
        for (record, mask) in [(record(), &whole), (record(), &part), (there, &part)] {
            let off = update(&record, &with_policy(disabled.clone()), Some(mask), false).unwrap();
            assert_eq!(off.backup_policy(), None);
            assert!(off.automated_backup_policy.as_ref().unwrap().disabled);
            let on =
                update(&off, &with_policy(AutomatedBackupPolicy::default()), Some(&part), false);
            match record.automated_backup_policy {
                Some(before) => assert_eq!(on.unwrap().backup_policy(), Some(&before)),
                // Who enables it has to say for how long backups are kept.
                None => assert_eq!(on.unwrap_err().kind(), Code::InvalidArgument),
            }
        }
    }

    #[test]
    fn automated_backups_that_can_have_no_name_are_refused_and_nothing_else_is() {
        let instance =
            format!("projects/{}/instances/i", "p".repeat(RESOURCE_NAME_CHARS_MAX - 100));
        let long = || TableRecord { name: format!("{instance}/tables/t"), ..record() };
        let error = set_new(&mut long(), &backups(5, None)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        let told = error.message();
        assert!(told.contains("automated_backup_policy") && told.contains("1024"), "{told}");
        let disabled = AutomatedBackupPolicy { disabled: true, ..Default::default() };
        let mut there = long();
        set_new(&mut there, &with_policy(disabled)).unwrap();
        let whole = mask(&["automated_backup_policy"]);
        assert!(update(&there, &backups(5, None), Some(&whole), false).is_err());
        // One that has a policy from before can be changed otherwise, and be left without.
        there.automated_backup_policy = backups(5, Some(1)).automated_backup_policy;
        update(&there, &stream(2), Some(&mask(&["change_stream_config"])), false).unwrap();
        update(&there, &Table::default(), Some(&whole), false).unwrap();
    }

    #[test]
    fn a_row_key_schema_is_set_once_and_removed_on_purpose() {
        let path = mask(&["row_key_schema"]);
        let set = update(&record(), &schema(&["a"]), Some(&path), false).unwrap();
        assert_eq!(update(&set, &schema(&["a"]), Some(&path), false).unwrap(), set);
        for (asked, ignore_warnings) in [(schema(&["b"]), true), (Table::default(), false)] {
            let error = update(&set, &asked, Some(&path), ignore_warnings).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
        }
        let removed = update(&set, &Table::default(), Some(&path), true).unwrap();
        assert_eq!(removed.row_key_schema, None);
    }

    #[test]
    fn what_is_stored_and_would_be_refused_now_keeps_nobody_from_changing_something_else() {
        let too_long = Some(prost_types::Duration { seconds: i64::MAX, nanos: -1 });
        let rule = too_long.map(Rule::IncludeIfOlderThan);
        let infrequent_access = Some(admin::TieredStorageRule { rule });
        let stored = TableRecord {
            name: "projects/p/instances/i/tables/t".into(),
            deletion_protection: true,
            tiered_storage_config: Some(admin::TieredStorageConfig { infrequent_access }),
            change_stream_config: Some(admin::ChangeStreamConfig { retention_period: too_long }),
            ..TableRecord::default()
        };
        let update = |asked: &Table, path: &str| {
            let mask = prost_types::FieldMask { paths: vec![path.to_owned()] };
            Update::of(&stored, asked, Some(&mask), false)?.apply(&stored)
        };
        let unprotected = update(&Table::default(), "deletion_protection").unwrap();
        assert!(!unprotected.deletion_protection);
        assert_eq!(unprotected.tiered_storage_config, stored.tiered_storage_config);
        assert_eq!(update(&stream(2), "change_stream_config").unwrap().change_stream_config, {
            Some(admin::ChangeStreamConfig { retention_period: duration(2) })
        });
        let refused = update(&tiered(29), "tiered_storage_config").unwrap_err();
        assert_eq!(refused.kind(), Code::InvalidArgument);
    }
}

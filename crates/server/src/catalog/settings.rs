//! What a table is set to besides its families: deletion protection, change stream, automated backups, tiered storage, the
//! schema of its row keys. What `CreateTable` and `UpdateTable` ask for is checked here and kept in the record, or refused.

use std::collections::BTreeSet;

use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::value_type;

use super::record::TableRecord;
use crate::api::admin;
use crate::api::admin::table::{
    AutomatedBackupConfig, AutomatedBackupPolicy, TimestampGranularity,
};
use crate::api::admin::tiered_storage_rule::Rule;
use crate::api::admin::r#type::Kind;

const DAY_SECONDS: i64 = 24 * 3_600;

/// Days that a change stream may be kept: Bigtable's documented limits.
const STREAM_DAYS: std::ops::RangeInclusive<i64> = 1..=7;

/// Days that automated backups may be kept: Bigtable's documented limits.
const BACKUP_DAYS: std::ops::RangeInclusive<i64> = 3..=90;

/// Days from which cells may go to the tier of infrequent access, at least: Bigtable's documented limit.
const INFREQUENT_DAYS_MIN: i64 = 30;

/// Names that a query has for other things than fields of the row key.
const RESERVED_FIELDS: [&str; 2] = ["_key", "_timestamp"];

const UPDATABLE: &str = "deletion_protection, change_stream_config, automated_backup_policy, tiered_storage_config, \
                         row_key_schema";

/// Sets a new table's record to what the table asks for; its families must be there already.
pub fn set_new(record: &mut TableRecord, asked: &admin::Table) -> Result<()> {
    let millis = [TimestampGranularity::Unspecified, TimestampGranularity::Millis];
    if !millis.iter().any(|granularity| i32::from(*granularity) == asked.granularity) {
        return Err(Error::invalid_argument("granularity must be MILLIS"));
    }
    record.deletion_protection = asked.deletion_protection;
    record.change_stream_config = asked.change_stream_config;
    record.automated_backup_policy = policy(asked);
    record.tiered_storage_config = asked.tiered_storage_config;
    record.row_key_schema = schema(asked);
    check(record)
}

/// The record with what the mask names changed. Any error leaves the table as it was.
pub fn update(
    record: &TableRecord,
    asked: &admin::Table,
    mask: Option<&prost_types::FieldMask>,
    ignore_warnings: bool,
) -> Result<TableRecord> {
    let mut changed = record.clone();
    for path in crate::instances::mask_paths(mask)? {
        let (field, part) = path.split_once('.').unwrap_or((path, ""));
        match (field, part) {
            ("deletion_protection", "") => changed.deletion_protection = asked.deletion_protection,
            ("change_stream_config", "") => {
                changed.change_stream_config = asked.change_stream_config;
            }
            // A part that is not set is no wish to be without the whole: that it must be set is checked below.
            ("change_stream_config", "retention_period") => {
                changed.change_stream_config = Some(asked.change_stream_config.unwrap_or_default());
            }
            ("automated_backup_policy", part) => {
                update_policy(&mut changed, policy(asked), part)
                    .ok_or_else(|| crate::instances::not_updatable(path, UPDATABLE))?;
            }
            ("tiered_storage_config", "") => {
                changed.tiered_storage_config = asked.tiered_storage_config;
            }
            ("tiered_storage_config", "infrequent_access") => {
                changed.tiered_storage_config =
                    Some(asked.tiered_storage_config.unwrap_or_default());
            }
            ("row_key_schema", "") => {
                let asked = schema(asked);
                check_schema_change(record, asked.as_ref(), ignore_warnings)?;
                changed.row_key_schema = asked;
            }
            ("column_families", _) => {
                return Err(Error::unimplemented(
                    "UpdateTable does not change column_families; use ModifyColumnFamilies",
                ));
            }
            _ => return Err(crate::instances::not_updatable(path, UPDATABLE)),
        }
    }
    check(&mut changed)?;
    Ok(changed)
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

fn policy(table: &admin::Table) -> Option<AutomatedBackupPolicy> {
    table
        .automated_backup_config
        .as_ref()
        .map(|AutomatedBackupConfig::AutomatedBackupPolicy(p)| p.clone())
}

/// The schema of row keys, with what is deprecated in it replaced.
fn schema(table: &admin::Table) -> Option<admin::r#type::Struct> {
    let mut schema = table.row_key_schema.clone();
    schema.iter_mut().for_each(value_type::modernize_fields);
    schema
}

/// Changes the policy, or a part of it; `None` for a part that there is not.
fn update_policy(
    record: &mut TableRecord,
    asked: Option<AutomatedBackupPolicy>,
    part: &str,
) -> Option<()> {
    if part.is_empty() {
        record.automated_backup_policy = asked;
        return Some(());
    }
    let asked = asked.unwrap_or_default();
    let policy = record.automated_backup_policy.get_or_insert_default();
    match part {
        "retention_period" => policy.retention_period = asked.retention_period,
        "frequency" => policy.frequency = asked.frequency,
        "locations" => policy.locations = asked.locations,
        _ => return None,
    }
    Some(())
}

/// Checks all settings of a record, and fills in what is left open.
fn check(record: &mut TableRecord) -> Result<()> {
    if let Some(config) = &mut record.change_stream_config {
        let field = "change_stream_config.retention_period";
        let period = config.retention_period.as_mut();
        let period =
            period.ok_or_else(|| Error::invalid_argument(format!("{field} must be set")))?;
        period.nanos -= period.nanos % 1_000;
        check_days(field, period, &STREAM_DAYS)?;
    }
    if let Some(policy) = &mut record.automated_backup_policy {
        let field = "automated_backup_policy.retention_period";
        let period = policy.retention_period.as_ref();
        let period =
            period.ok_or_else(|| Error::invalid_argument(format!("{field} must be set")))?;
        check_days(field, period, &BACKUP_DAYS)?;
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
    }
    if let Some(config) = &record.tiered_storage_config {
        let field = "tiered_storage_config.infrequent_access.include_if_older_than";
        let rule = config.infrequent_access.as_ref().and_then(|rule| rule.rule.as_ref());
        let Some(Rule::IncludeIfOlderThan(age)) = rule else {
            return Err(Error::invalid_argument(format!("{field} must be set")));
        };
        if age.seconds < INFREQUENT_DAYS_MIN * DAY_SECONDS {
            let what = format!("{field} must be at least {INFREQUENT_DAYS_MIN} days");
            return Err(Error::invalid_argument(what));
        }
    }
    match &record.row_key_schema {
        Some(schema) => check_schema(record, schema),
        None => Ok(()),
    }
}

fn check_days(
    field: &str,
    period: &prost_types::Duration,
    days: &std::ops::RangeInclusive<i64>,
) -> Result<()> {
    let (min, max) = (days.start() * DAY_SECONDS, days.end() * DAY_SECONDS);
    let is_over = period.seconds == max && period.nanos > 0;
    if (min..=max).contains(&period.seconds) && !is_over && period.nanos >= 0 {
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

    fn duration(days: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds: days * DAY_SECONDS, nanos: 0 })
    }

    fn stream(days: i64) -> admin::Table {
        let change_stream_config =
            Some(admin::ChangeStreamConfig { retention_period: duration(days) });
        admin::Table { change_stream_config, ..Default::default() }
    }

    fn backups(retention: i64, frequency: Option<i64>) -> admin::Table {
        let policy = AutomatedBackupPolicy {
            retention_period: duration(retention),
            frequency: frequency.and_then(duration),
            locations: vec![],
        };
        let config = Some(AutomatedBackupConfig::AutomatedBackupPolicy(policy));
        admin::Table { automated_backup_config: config, ..Default::default() }
    }

    fn tiered(days: i64) -> admin::Table {
        let rule = duration(days).map(Rule::IncludeIfOlderThan);
        let infrequent_access = Some(admin::TieredStorageRule { rule });
        let tiered_storage_config = Some(admin::TieredStorageConfig { infrequent_access });
        admin::Table { tiered_storage_config, ..Default::default() }
    }

    fn int64() -> Kind {
        let big = t::int64::encoding::Encoding::BigEndianBytes(
            t::int64::encoding::BigEndianBytes::default(),
        );
        Kind::Int64Type(t::Int64 { encoding: Some(t::int64::Encoding { encoding: Some(big) }) })
    }

    fn schema_of(
        fields: &[(&str, Kind)],
        encoding: Option<r#struct::encoding::Encoding>,
    ) -> admin::Table {
        let field = |(name, kind): &(&str, Kind)| r#struct::Field {
            field_name: (*name).to_owned(),
            r#type: Some(admin::Type { kind: Some(kind.clone()) }),
        };
        let schema = t::Struct {
            fields: fields.iter().map(field).collect(),
            encoding: encoding.map(|encoding| r#struct::Encoding { encoding: Some(encoding) }),
        };
        admin::Table { row_key_schema: Some(schema), ..Default::default() }
    }

    fn ordered() -> Option<r#struct::encoding::Encoding> {
        Some(r#struct::encoding::Encoding::OrderedCodeBytes(
            r#struct::encoding::OrderedCodeBytes {},
        ))
    }

    fn schema(names: &[&str]) -> admin::Table {
        let fields: Vec<_> = names.iter().map(|name| (*name, int64())).collect();
        schema_of(&fields, ordered())
    }

    fn record() -> TableRecord {
        let family = FamilyRecord { name: "cf".to_owned(), id: 1, config: None };
        TableRecord { families: vec![family], ..TableRecord::default() }
    }

    fn mask(paths: &[&str]) -> prost_types::FieldMask {
        prost_types::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() }
    }

    #[test]
    fn a_new_table_is_set_to_all_that_it_asks_for() {
        let mut set = record();
        let asked = admin::Table {
            granularity: 1,
            deletion_protection: true,
            change_stream_config: stream(7).change_stream_config,
            automated_backup_config: backups(90, None).automated_backup_config,
            tiered_storage_config: tiered(30).tiered_storage_config,
            ..schema(&["a", "b"])
        };
        set_new(&mut set, &asked).unwrap();
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
        let micros = admin::Table { granularity: 2, ..Default::default() };
        let empty_stream = admin::ChangeStreamConfig { retention_period: None };
        let empty_stream =
            admin::Table { change_stream_config: Some(empty_stream), ..Default::default() };
        let mut located = backups(3, None);
        let Some(AutomatedBackupConfig::AutomatedBackupPolicy(policy)) =
            located.automated_backup_config.as_mut()
        else {
            panic!()
        };
        policy.locations.push("projects/p/locations/z".to_owned());
        let bare = Kind::Int64Type(t::Int64::default());
        let no_tier = admin::Table {
            tiered_storage_config: Some(admin::TieredStorageConfig::default()),
            ..Default::default()
        };
        let bad = Code::InvalidArgument;
        for (what, asked, code) in [
            ("granularity", micros, bad),
            ("change_stream_config.retention_period", stream(0), bad),
            ("change_stream_config.retention_period", stream(8), bad),
            ("change_stream_config.retention_period", empty_stream, bad),
            ("automated_backup_policy.retention_period", backups(2, None), bad),
            ("automated_backup_policy.retention_period", backups(91, None), bad),
            ("automated_backup_policy.frequency", backups(3, Some(2)), bad),
            ("automated_backup_policy.locations", located, Code::Unimplemented),
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
    fn an_update_changes_what_its_mask_names_and_no_more() {
        let mut there = record();
        set_new(&mut there, &backups(5, None)).unwrap();
        let asked = admin::Table { deletion_protection: true, ..backups(9, None) };
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
        let off = update(
            &part,
            &admin::Table::default(),
            Some(&mask(&["automated_backup_policy"])),
            false,
        );
        assert_eq!(off.unwrap().automated_backup_policy, None);
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
            (&["automated_backup_policy.disabled"], bad),
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
    fn a_row_key_schema_is_set_once_and_removed_on_purpose() {
        let path = mask(&["row_key_schema"]);
        let set = update(&record(), &schema(&["a"]), Some(&path), false).unwrap();
        assert_eq!(update(&set, &schema(&["a"]), Some(&path), false).unwrap(), set);
        for (asked, ignore_warnings) in [(schema(&["b"]), true), (admin::Table::default(), false)] {
            let error = update(&set, &asked, Some(&path), ignore_warnings).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
        }
        let removed = update(&set, &admin::Table::default(), Some(&path), true).unwrap();
        assert_eq!(removed.row_key_schema, None);
    }
}

//! A table as the admin API shows it: which fields each view has.

use std::collections::HashMap;

use tepui_bigtable::value_type;

use crate::api::admin;
use crate::api::admin::table::cluster_state::ReplicationState;
use crate::api::admin::table::{ClusterState, TimestampGranularity, View};
use crate::api::spelled_out;
use crate::catalog::record::TableRecord;

/// The one cluster that every table is in.
const CLUSTER_ID: &str = "tepui";

/// The parts of the record that the view shows. Encryption states are not shown: there is nothing to
/// say of keys that do not exist.
pub(crate) fn table(record: &TableRecord, view: View) -> spelled_out::Table {
    message(record, view).into()
}

fn message(record: &TableRecord, view: View) -> admin::Table {
    let mut table = admin::Table { name: record.name.clone(), ..Default::default() };
    if matches!(view, View::Unspecified | View::SchemaView | View::Full) {
        let families = record.families.iter();
        table.column_families = families
            .map(|f| (f.name.clone(), family(f.config.clone().unwrap_or_default())))
            .collect();
        table.granularity = TimestampGranularity::Millis.into();
        table.deletion_protection = record.deletion_protection;
        table.restore_info.clone_from(&record.restore_info);
    }
    if matches!(view, View::ReplicationView | View::EncryptionView | View::Full) {
        let state = ClusterState {
            replication_state: ReplicationState::Ready.into(),
            ..ClusterState::default()
        };
        table.cluster_states = HashMap::from([(CLUSTER_ID.to_owned(), state)]);
    }
    table
}

/// The family as it was set, with what the API fills in for aggregates: the input's encoding and the
/// type of the state.
fn family(mut config: admin::ColumnFamily) -> admin::ColumnFamily {
    if let Ok(Some(aggregate)) = value_type::check(config.value_type.as_ref()) {
        config.value_type = Some(aggregate.to_proto());
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::record::FamilyRecord;

    #[test]
    fn each_view_shows_its_fields_and_no_others() {
        let family = FamilyRecord { name: "cf".to_owned(), id: 1, config: None };
        let record = TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            families: vec![family],
            deletion_protection: true,
            ..TableRecord::default()
        };
        let schema = [View::Unspecified, View::SchemaView, View::Full];
        let clusters = [View::ReplicationView, View::EncryptionView, View::Full];
        let all = [
            View::Unspecified,
            View::NameOnly,
            View::SchemaView,
            View::ReplicationView,
            View::EncryptionView,
            View::Full,
        ];
        for view in all {
            let shown = message(&record, view);
            assert_eq!(shown.name, record.name);
            assert_eq!(shown.column_families.contains_key("cf"), schema.contains(&view));
            assert_eq!(shown.deletion_protection, schema.contains(&view));
            assert_eq!(shown.granularity == 1, schema.contains(&view));
            assert_eq!(shown.cluster_states.contains_key(CLUSTER_ID), clusters.contains(&view));
        }
    }
}

//! A table as the admin API shows it: which fields each view has.

use tepui_bigtable::value_type;

use crate::api::admin;
use crate::api::admin::encryption_info::EncryptionType;
use crate::api::admin::table::cluster_state::ReplicationState;
use crate::api::admin::table::{ClusterState, TimestampGranularity, View};
use crate::api::spelled_out;
use crate::catalog::record::TableRecord;

/// The parts of the record that the view shows. `clusters` gives the ids of the clusters that the table is in.
pub(crate) fn table(
    record: &TableRecord,
    view: View,
    clusters: impl FnOnce() -> Vec<String>,
) -> spelled_out::Table {
    let mut policy = None;
    let mut table = admin::Table { name: record.name.clone(), ..Default::default() };
    if matches!(view, View::Unspecified | View::SchemaView | View::Full) {
        let families = record.families.iter();
        table.column_families = families
            .map(|f| (f.name.clone(), family(f.config.clone().unwrap_or_default())))
            .collect();
        table.granularity = TimestampGranularity::Millis.into();
        table.deletion_protection = record.deletion_protection;
        table.restore_info.clone_from(&record.restore_info);
        table.change_stream_config = record.change_stream_config;
        policy.clone_from(&record.automated_backup_policy);
        table.tiered_storage_config = record.tiered_storage_config;
        table.row_key_schema.clone_from(&record.row_key_schema);
    }
    if matches!(view, View::ReplicationView | View::EncryptionView | View::Full) {
        let state = cluster_state(view);
        table.cluster_states = clusters().into_iter().map(|id| (id, state.clone())).collect();
    }
    spelled_out::Table { automated_backup_policy: policy, ..table.into() }
}

/// The state of a table in any of its clusters, which are all this server: ready, and under no key of a customer, which is
/// what the API's word "Google's default encryption" says.
fn cluster_state(view: View) -> ClusterState {
    let mut state = ClusterState::default();
    if view != View::EncryptionView {
        state.replication_state = ReplicationState::Ready.into();
    }
    if view != View::ReplicationView {
        state.encryption_info = vec![admin::EncryptionInfo {
            encryption_type: EncryptionType::GoogleDefaultEncryption.into(),
            encryption_status: Some(Default::default()),
            kms_key_version: String::new(),
        }];
    }
    state
}

/// The family as it was set, with what the API fills in for aggregates: the type of the state, and the input's encoding where it was left open.
fn family(mut config: admin::ColumnFamily) -> admin::ColumnFamily {
    if let Ok(Some(aggregate)) = value_type::check(config.value_type.as_ref()) {
        let input = value_type::input_of(config.value_type.as_ref());
        config.value_type = Some(aggregate.to_proto(input));
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::record::FamilyRecord;

    #[test]
    fn each_view_shows_its_fields_and_no_others() {
        let family =
            FamilyRecord { name: "cf".to_owned(), id: 1, config: None, ..FamilyRecord::default() };
        let record = TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            families: vec![family],
            deletion_protection: true,
            change_stream_config: Some(admin::ChangeStreamConfig::default()),
            automated_backup_policy: Some(spelled_out::AutomatedBackupPolicy::default()),
            tiered_storage_config: Some(admin::TieredStorageConfig::default()),
            row_key_schema: Some(admin::r#type::Struct::default()),
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
            let shown = table(&record, view, || vec!["c".to_owned()]);
            assert_eq!(shown.families.contains_key("cf"), schema.contains(&view));
            assert_eq!(shown.automated_backup_policy.is_some(), schema.contains(&view));
            let shown = shown.rest;
            assert_eq!(shown.name, record.name);
            assert_eq!(shown.deletion_protection, schema.contains(&view));
            assert_eq!(shown.granularity == 1, schema.contains(&view));
            assert_eq!(shown.change_stream_config.is_some(), schema.contains(&view));
            assert_eq!(shown.tiered_storage_config.is_some(), schema.contains(&view));
            assert_eq!(shown.row_key_schema.is_some(), schema.contains(&view));
            assert_eq!(shown.cluster_states.contains_key("c"), clusters.contains(&view));
            if let Some(state) = shown.cluster_states.get("c") {
                assert_eq!(state.replication_state == 0, view == View::EncryptionView);
                assert_eq!(state.encryption_info.is_empty(), view == View::ReplicationView);
            }
        }
    }
}

//! What the catalog keeps of a backup.

use tepui_engine::backup::BackupId;

use crate::api::admin;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::Resource;

/// A backup: what clients see of it, and what a restore needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BackupRecord {
    /// The backup as it is shown.
    #[prost(message, optional, tag = "1")]
    pub shown: Option<admin::Backup>,
    /// The table's record when the backup was asked for: its families, with their numbers.
    #[prost(message, optional, tag = "2")]
    pub table: Option<TableRecord>,
    /// The number of the engine's backup; absent while it is being made.
    #[prost(fixed64, optional, tag = "3")]
    pub engine_id: Option<u64>,
    /// A random number that tells this backup from earlier and later ones of the same name.
    #[prost(fixed64, tag = "4")]
    pub incarnation: u64,
    /// Whether a table's policy asked for it.
    #[prost(bool, tag = "5")]
    pub automated: bool,
}

impl Resource for BackupRecord {
    const KIND: &'static str = "backup";
    const NOUN: &'static str = "backup";
    const HOLDS: bool = true;
}

impl BackupRecord {
    /// The engine's backup, once it is made.
    pub fn made_id(&self) -> Option<BackupId> {
        self.engine_id.map(BackupId)
    }

    /// The backup as it is shown.
    pub fn shown(&self) -> admin::Backup {
        self.shown.clone().unwrap_or_default()
    }

    /// What tables and operations say of it.
    pub fn info(&self) -> admin::BackupInfo {
        let shown = self.shown();
        admin::BackupInfo {
            backup: shown.name,
            start_time: shown.start_time,
            end_time: shown.end_time,
            source_table: shown.source_table,
            source_backup: shown.source_backup,
        }
    }
}

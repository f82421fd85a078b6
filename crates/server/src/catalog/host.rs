//! What the catalog asks of the engine, as a seam, so that the catalog's own rules are tested without one.

use std::sync::Arc;

use tepui_bigtable::error::{Code, Error, Result};
use tepui_bigtable::schema::TableSchema;
use tepui_bigtable::table::Table;
use tepui_engine::backup::BackupId;
use tepui_engine::cell::RowRange;
use tepui_engine::db::Engine;
use tepui_engine::io::Rng;
use tepui_engine::tablet::{Tablet, TabletId};

/// Tablets and tables over them.
pub trait Host: Send + Sync + 'static {
    /// A table that serves requests.
    type Table: Send + Sync + 'static;

    /// Creates an empty tablet, durably.
    fn create_tablet(&self, range: RowRange) -> Result<TabletId>;
    /// Creates tablets that hold what a backup does, durably.
    fn restore_backup(&self, id: BackupId) -> Result<Vec<TabletId>>;
    /// Removes a tablet and its data.
    fn drop_tablet(&self, id: TabletId) -> Result<()>;
    /// Puts a table over existing tablets, and gives them its schema.
    fn open_table(
        &self,
        name: &str,
        tablets: &[TabletId],
        schema: Arc<TableSchema>,
    ) -> Result<Arc<Self::Table>>;
    /// Changes the schema of a table that is being served.
    fn set_schema(&self, table: &Self::Table, schema: Arc<TableSchema>);
}

/// The engine as a host.
#[derive(Debug)]
pub struct EngineHost {
    engine: Arc<Engine>,
    rng: Arc<dyn Rng>,
}

impl EngineHost {
    /// Tables over this engine's tablets.
    pub fn new(engine: Arc<Engine>, rng: Arc<dyn Rng>) -> Self {
        Self { engine, rng }
    }
}

impl Host for EngineHost {
    type Table = Table;

    fn create_tablet(&self, range: RowRange) -> Result<TabletId> {
        Ok(self.engine.create_tablet(range)?.id())
    }

    fn restore_backup(&self, id: BackupId) -> Result<Vec<TabletId>> {
        Ok(self.engine.restore_backup(id)?.iter().map(|tablet| tablet.id()).collect())
    }

    fn drop_tablet(&self, id: TabletId) -> Result<()> {
        Ok(self.engine.drop_tablet(id)?)
    }

    fn open_table(
        &self,
        name: &str,
        tablets: &[TabletId],
        schema: Arc<TableSchema>,
    ) -> Result<Arc<Table>> {
        let find = |id: &TabletId| {
            self.engine.tablet(*id).ok_or_else(|| {
                Error::new(Code::DataLoss, format!("table {name}: tablet {} is missing", id.0))
            })
        };
        let tablets = tablets.iter().map(find).collect::<Result<Vec<Arc<Tablet>>>>()?;
        let (clock, rng) = (self.engine.clock(), Arc::clone(&self.rng));
        Ok(Arc::new(Table::new(name, tablets, schema, clock, rng)?))
    }

    fn set_schema(&self, table: &Table, schema: Arc<TableSchema>) {
        table.set_schema(schema);
    }
}

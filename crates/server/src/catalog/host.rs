//! What the catalog asks of the engine, as a seam, so that the catalog's own rules are tested without one.

use std::sync::Arc;
use std::time::Duration;

use tepui_bigtable::error::{Code, Error, Result};
use tepui_bigtable::schema::TableSchema;
use tepui_bigtable::table::Table;
use tepui_engine::backup::Backup;
use tepui_engine::cell::RowRange;
use tepui_engine::db::Engine;
use tepui_engine::io::Rng;
use tepui_engine::tablet::{Tablet, TabletId};

use super::styles::CompactionStyles;

/// Tablets and tables over them.
pub trait Host: Send + Sync + 'static {
    /// A table that serves requests.
    type Table: Send + Sync + 'static;

    /// Creates empty tablets, durably: all of them, or, after an error, none.
    fn create_tablets(&self, ranges: Vec<RowRange>) -> Result<Vec<TabletId>>;
    /// Creates tablets that hold what a backup does, durably: all of them, or, after an error, none.
    fn restore_backup(&self, backup: &Backup) -> Result<Vec<TabletId>>;
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
    /// Keeps the changes of a table for this long, or not any longer; the position after which they are kept.
    fn keep_changes(&self, table: &Self::Table, retention: Option<Duration>) -> u64;
    /// The time by which changes of a table expire, where there is one: a doubted clock may be ahead of it.
    fn expiry_micros(&self, table: &Self::Table) -> Option<i64>;
    /// Has all that is written from now on come after this position.
    fn begin_after(&self, position: u64);
    /// The position of the newest write: all that is written from now on comes after it.
    fn position(&self) -> u64;
    /// When the newest write was made, by the clock as it was then: microseconds since 1970.
    fn newest_micros(&self) -> i64;
}

/// The engine as a host.
#[derive(Debug)]
pub struct EngineHost {
    engine: Arc<Engine>,
    rng: Arc<dyn Rng>,
    styles: CompactionStyles,
}

impl EngineHost {
    /// Tables over this engine's tablets, compacted by these styles.
    pub fn new(engine: Arc<Engine>, rng: Arc<dyn Rng>, styles: CompactionStyles) -> Self {
        Self { engine, rng, styles }
    }
}

impl Host for EngineHost {
    type Table = Table;

    fn create_tablets(&self, ranges: Vec<RowRange>) -> Result<Vec<TabletId>> {
        Ok(self.engine.create_tablets(ranges)?.iter().map(|tablet| tablet.id()).collect())
    }

    fn restore_backup(&self, backup: &Backup) -> Result<Vec<TabletId>> {
        Ok(self.engine.restore_from(backup)?.iter().map(|tablet| tablet.id()).collect())
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
        let style = self.styles.of(name);
        for tablet in &tablets {
            tablet.set_compaction(style);
        }
        let (clock, rng) = (self.engine.clock(), Arc::clone(&self.rng));
        Ok(Arc::new(Table::new(name, tablets, schema, clock, rng)?))
    }

    fn set_schema(&self, table: &Table, schema: Arc<TableSchema>) {
        table.set_schema(schema);
    }

    fn keep_changes(&self, table: &Table, retention: Option<Duration>) -> u64 {
        let tablets = table.tablets();
        tablets.map(|(_, tablet)| tablet.keep_changes(retention)).max().unwrap_or(0)
    }

    fn expiry_micros(&self, table: &Table) -> Option<i64> {
        table.expiry_micros()
    }

    fn begin_after(&self, position: u64) {
        self.engine.begin_after(position);
    }

    fn position(&self) -> u64 {
        self.engine.newest_seq()
    }

    fn newest_micros(&self) -> i64 {
        self.engine.newest_micros()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tepui_engine::db::{CompactionStyle, EngineOptions};
    use tepui_engine::io::{Env, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};

    use super::*;

    #[test]
    fn tables_are_compacted_as_the_configuration_of_this_start_says() {
        let env = Env {
            files: Arc::new(MemoryFiles::new()),
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(1_700_000_000_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let mut id = None;
        for (names, style) in [
            ("*/tables/events", CompactionStyle::Tiered),
            ("", CompactionStyle::Leveled),
            ("*/tables/e*", CompactionStyle::Tiered),
        ] {
            let engine = Engine::open(env.clone(), Path::new("/data"), options.clone()).unwrap();
            let styles = CompactionStyles::tiered(names).unwrap();
            let host = EngineHost::new(Arc::clone(&engine), Arc::clone(&env.rng), styles);
            let id =
                *id.get_or_insert_with(|| host.create_tablets(vec![RowRange::all()]).unwrap()[0]);
            let name = "projects/p/instances/i/tables/events";
            let table = host.open_table(name, &[id], Arc::default()).unwrap();
            assert!(table.tablets().all(|(_, tablet)| tablet.compaction() == style), "{names:?}");
            engine.close().unwrap();
        }
    }
}

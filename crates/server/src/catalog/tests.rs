//! The catalog over a meta store in memory and a host that only counts tablets.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tepui_bigtable::schema::TableSchema;

use super::memory_meta::MemoryMeta;
use super::*;
use crate::api::admin;
use crate::operations::{Finished, Operations};

mod stored;

const NAME: &str = "projects/p/instances/i/tables/t";
const DAY_MICROS: i64 = 24 * 3_600 * 1_000_000;

#[derive(Debug)]
struct FakeTable {
    schema: Mutex<Arc<TableSchema>>,
    kept: Mutex<Vec<Option<Duration>>>,
}

#[derive(Default)]
struct FakeHost {
    next: AtomicU64,
    tablets: Mutex<BTreeMap<TabletId, RowRange>>,
    tablets_max: Option<usize>,
    begun_after: AtomicU64,
    position: AtomicU64,
    newest_micros: AtomicI64,
    expiry_micros: Mutex<Option<i64>>,
    before_drop: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Host for Arc<FakeHost> {
    type Table = FakeTable;

    fn create_tablets(&self, ranges: Vec<RowRange>) -> Result<Vec<TabletId>> {
        let mut tablets = self.tablets.lock().unwrap();
        if self.tablets_max.is_some_and(|max| tablets.len() + ranges.len() > max) {
            return Err(Error::new(Code::ResourceExhausted, "no space left"));
        }
        let mut create = |range| {
            let id = TabletId(self.next.fetch_add(1, Ordering::Relaxed));
            tablets.insert(id, range);
            id
        };
        Ok(ranges.into_iter().map(&mut create).collect())
    }

    /// Two tablets, whatever the backup.
    fn restore_backup(&self, _backup: &Backup) -> Result<Vec<TabletId>> {
        let ranges = [RowRange::new("", "m"), RowRange::new("m", "")];
        self.create_tablets(ranges.into())
    }

    fn drop_tablet(&self, id: TabletId) -> Result<()> {
        if let Some(hook) = &*self.before_drop.lock().unwrap() {
            hook();
        }
        let removed = self.tablets.lock().unwrap().remove(&id);
        removed.map(|_| ()).ok_or_else(|| Error::not_found("no such tablet"))
    }

    fn open_table(
        &self,
        _name: &str,
        tablets: &[TabletId],
        schema: Arc<TableSchema>,
    ) -> Result<Arc<FakeTable>> {
        let known = self.tablets.lock().unwrap();
        assert!(tablets.iter().all(|id| known.contains_key(id)));
        Ok(Arc::new(FakeTable { schema: Mutex::new(schema), kept: Mutex::default() }))
    }

    fn keep_changes(&self, table: &FakeTable, retention: Option<Duration>) -> u64 {
        table.kept.lock().unwrap().push(retention);
        77
    }

    fn expiry_micros(&self, _table: &FakeTable) -> Option<i64> {
        *self.expiry_micros.lock().unwrap()
    }

    fn begin_after(&self, position: u64) {
        self.begun_after.fetch_max(position, Ordering::Relaxed);
    }

    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    fn newest_micros(&self) -> i64 {
        self.newest_micros.load(Ordering::Relaxed)
    }

    fn set_schema(&self, table: &FakeTable, schema: Arc<TableSchema>) {
        *table.schema.lock().unwrap() = schema;
    }
}

#[derive(Debug, Default)]
struct TestTime(AtomicI64);

impl Clock for TestTime {
    fn now_micros(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
    fn monotonic_micros(&self) -> u64 {
        self.now_micros() as u64
    }
}

#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Rng for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A world that outlives catalogs: dropping one and opening another is a restart.
#[derive(Default)]
struct World {
    host: Arc<FakeHost>,
    meta: Arc<MemoryMeta>,
    clock: Arc<TestTime>,
    rng: Arc<Counting>,
}

impl World {
    fn open(&self) -> Catalog<Arc<FakeHost>> {
        let (host, meta) = (Arc::clone(&self.host), Arc::clone(&self.meta));
        let (clock, rng) = (Arc::clone(&self.clock), Arc::clone(&self.rng));
        Catalog::open(host, meta, clock, rng).unwrap()
    }

    fn pass(&self, micros: i64) {
        self.clock.0.fetch_add(micros, Ordering::Relaxed);
    }

    fn now(&self) -> i64 {
        self.clock.0.load(Ordering::Relaxed)
    }

    fn tablet_count(&self) -> usize {
        self.host.tablets.lock().unwrap().len()
    }

    fn commit(&self, changes: Vec<MetaChange>) -> Result<u64> {
        Ok(self.meta.commit(&changes)?)
    }
}

fn undelete(catalog: &Catalog<Arc<FakeHost>>, name: &str) -> Result<Arc<Entry<FakeTable>>> {
    catalog.undelete(name, |_, entry| catalog.alone(entry)).map(|(entry, ())| entry)
}

fn with_family(name: &str) -> NewTable {
    let column_families = [(name.to_owned(), admin::ColumnFamily::default())].into();
    let asked = admin::Table { column_families, ..admin::Table::default() };
    NewTable { asked: asked.into(), ..NewTable::default() }
}

fn protected() -> NewTable {
    let mut new = with_family("a");
    new.asked.rest.deletion_protection = true;
    new
}

fn create_family(name: &str) -> impl FnOnce(&TableRecord) -> Result<TableRecord> {
    let name = name.to_owned();
    move |record| {
        let mut record = record.clone();
        families::create(&mut record, &name, admin::ColumnFamily::default())?;
        Ok(record)
    }
}

#[test]
fn splits_in_any_order_become_tablets_that_hold_every_row_once() {
    let world = World::default();
    let catalog = world.open();
    let splits = vec![Bytes::from("m"), Bytes::from("f"), Bytes::from("m")];
    catalog.create(NAME, NewTable { splits, ..NewTable::default() }).unwrap();
    let ranges: Vec<_> = world.host.tablets.lock().unwrap().values().cloned().collect();
    let expected = [("", "f"), ("f", "m"), ("m", "")].map(|(s, e)| RowRange::new(s, e));
    assert_eq!(ranges, expected);
}

#[test]
fn what_a_client_says_of_an_aggregates_state_is_not_kept_however_deep() {
    use crate::api::admin::r#type::{Aggregate, Array, Int64, Kind, aggregate};
    let of = |kind| admin::Type { kind: Some(kind) };
    let int64 = || Box::new(of(Kind::Int64Type(Int64::default())));
    // As deep as a request may be, for which no other message that has the table has room.
    let deep = (0..95).fold(int64(), |element, _| {
        Box::new(of(Kind::ArrayType(Box::new(Array { element_type: Some(element) }))))
    });
    let sum = |state_type| {
        of(Kind::AggregateType(Box::new(Aggregate {
            input_type: Some(int64()),
            state_type,
            aggregator: Some(aggregate::Aggregator::Sum(aggregate::Sum {})),
        })))
    };
    let family = |value_type| admin::ColumnFamily {
        value_type: Some(value_type),
        ..admin::ColumnFamily::default()
    };
    let column_families = [("a".to_owned(), family(sum(Some(deep))))].into();
    let asked = admin::Table { column_families, ..admin::Table::default() };
    let catalog = World::default().open();
    let table = catalog.create(NAME, NewTable { asked: asked.into(), splits: Vec::new() }).unwrap();
    let kept = table.record.families[0].config.as_ref().unwrap();
    assert_eq!(kept.value_type, Some(sum(None)));
}

#[test]
fn a_table_does_not_keep_the_requests_that_made_and_changed_it() {
    use crate::api::admin::r#type::{Kind, String as Text, Struct, string, r#struct};
    let world = World::default();
    let catalog = world.open();
    let request = Bytes::from(vec![b'x'; 1 << 20]);
    let schema = |delimiter: Bytes| {
        let delimited = r#struct::encoding::DelimitedBytes { delimiter };
        let encoding = r#struct::encoding::Encoding::DelimitedBytes(delimited);
        let encoding = Some(r#struct::Encoding { encoding: Some(encoding) });
        let text = string::encoding::Encoding::Utf8Bytes(string::encoding::Utf8Bytes::default());
        let text = Text { encoding: Some(string::Encoding { encoding: Some(text) }) };
        let of_field = Some(admin::Type { kind: Some(Kind::StringType(text)) });
        let field = r#struct::Field { field_name: "f".to_owned(), r#type: of_field };
        Some(Struct { fields: vec![field], encoding })
    };
    let new = |delimiter, splits| {
        let mut new = NewTable { splits, ..with_family("a") };
        new.asked.rest.row_key_schema = schema(delimiter);
        new
    };
    catalog.create(NAME, new(request.slice(..1), vec![request.slice(..3)])).unwrap();
    assert!(request.is_unique(), "nothing else has it");
    let set = |r: &TableRecord| {
        Ok(TableRecord { row_key_schema: schema(request.slice(..2)), ..r.clone() })
    };
    let changed = catalog.update(NAME, set).unwrap();
    assert_eq!(changed.record.row_key_schema, schema(Bytes::from("xx")));
    assert!(request.is_unique(), "nothing else has it");
}

#[test]
fn bad_splits_are_refused_before_a_tablet_is_made() {
    let world = World::default();
    let catalog = world.open();
    let too_many = (0..=INITIAL_SPLITS_MAX).map(|i| Bytes::from(i.to_string())).collect();
    for splits in [vec![Bytes::new()], vec![Bytes::from(vec![b'x'; 4_097])], too_many] {
        let error = catalog.create(NAME, NewTable { splits, ..NewTable::default() }).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains("initial_splits"), "{error}");
    }
    assert_eq!(world.tablet_count(), 0);
}

#[test]
fn tables_families_and_protection_survive_a_restart() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, protected()).unwrap();
    let changed = catalog.update(NAME, create_family("b")).unwrap();
    assert_eq!(changed.table.schema.lock().unwrap().families["b"].id.0, 2);

    let reopened = world.open();
    let entry = reopened.get(NAME).unwrap();
    assert_eq!(entry.record, changed.record);
    assert_eq!(entry.table.schema.lock().unwrap().families.len(), 2);
    assert_eq!(reopened.tablet_ids().len(), world.tablet_count());
}

#[test]
fn a_second_table_of_the_name_is_refused() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, with_family("a")).unwrap();
    let error = catalog.create(NAME, with_family("b")).unwrap_err();
    assert_eq!(error.kind(), Code::AlreadyExists);
    assert_eq!(world.tablet_count(), 1);
}

#[test]
fn a_creation_that_fails_leaves_neither_table_nor_tablets() {
    let host = FakeHost { tablets_max: Some(2), ..FakeHost::default() };
    let world = World { host: Arc::new(host), ..World::default() };
    let catalog = world.open();
    let splits = vec![Bytes::from("f"), Bytes::from("m")];
    catalog.create(NAME, NewTable { splits, ..NewTable::default() }).unwrap_err();
    assert_eq!(world.tablet_count(), 0);
    for catalog in [catalog, world.open()] {
        assert_eq!(catalog.get(NAME).unwrap_err().kind(), Code::NotFound);
    }
}

#[test]
fn a_creation_of_which_the_disk_does_not_say_whether_it_is_durable_keeps_its_tablets() {
    for is_durable in [true, false] {
        let world = World::default();
        let meta = Arc::clone(&world.meta);
        let fault = if is_durable { &meta.answers_are_lost } else { &meta.fails };
        let catalog = world.open();
        fault.store(true, Ordering::Relaxed);
        catalog.create(NAME, with_family("a")).unwrap_err();
        assert_eq!(catalog.get(NAME).unwrap_err().kind(), Code::NotFound);
        fault.store(false, Ordering::Relaxed);
        // The next start: a table that is there has its tablets, and others are removed by `retain_tablets`.
        let reopened = world.open();
        assert_eq!(reopened.get(NAME).is_ok(), is_durable);
        assert_eq!(reopened.tablet_ids().len(), usize::from(is_durable));
        assert_eq!(world.tablet_count(), 1);
    }
}

#[test]
fn a_full_catalog_says_so_leaves_no_tablets_and_lets_tables_go() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, NewTable::default()).unwrap();
    let tablets = world.host.tablets.lock().unwrap().len();
    world.meta.is_full.store(true, Ordering::Relaxed);
    let other = format!("{NAME}2");
    let error = catalog.create(&other, NewTable::default()).err().unwrap();
    assert_eq!(error.kind(), Code::ResourceExhausted, "{error}");
    assert!(error.retry_after().is_some());
    assert_eq!(world.host.tablets.lock().unwrap().len(), tablets);
    catalog.delete(NAME).unwrap();
}

#[test]
fn a_protected_table_can_be_deleted_from_a_full_catalog() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, protected()).unwrap();
    let resources = resources::Resources::open(world.meta.clone()).unwrap();
    let operations = Operations::open(Arc::new(resources), world.clock.clone());
    world.meta.is_full.store(true, Ordering::Relaxed);
    let beside = operations.beside();
    let unprotect =
        |record: &TableRecord| Ok(TableRecord { deletion_protection: false, ..record.clone() });
    let updated = catalog.update_with(NAME, unprotect, |_, entry| {
        beside.commit(entry, Finished::new(NAME, ("a.Metadata", &()), ("a.Response", &())))
    });
    let (entry, operation) = updated.unwrap();
    assert!(!entry.record.deletion_protection && operation.done);
    assert!(operations.get(&operation.name).is_err(), "there is no room for it");
    catalog.delete(NAME).unwrap();
    assert!(world.open().get(NAME).is_err());
}

#[test]
fn a_change_that_fails_leaves_the_table_as_it_was() {
    let world = World::default();
    let catalog = world.open();
    let before = catalog.create(NAME, with_family("a")).unwrap();
    world.meta.fails.store(true, Ordering::Relaxed);
    catalog.update(NAME, create_family("b")).unwrap_err();
    catalog.delete(NAME).unwrap_err();
    let after = catalog.get(NAME).unwrap();
    assert_eq!(after.record, before.record);
    assert_eq!(after.table.schema.lock().unwrap().families.len(), 1);
}

#[test]
fn a_deleted_table_is_gone_until_it_is_undeleted_even_over_a_restart() {
    let world = World::default();
    let catalog = world.open();
    let before = catalog.create(NAME, with_family("a")).unwrap();
    catalog.delete(NAME).unwrap();
    for catalog in [&catalog, &world.open()] {
        assert_eq!(catalog.table(NAME).unwrap_err().kind(), Code::NotFound);
        assert_eq!(catalog.delete(NAME).unwrap_err().kind(), Code::NotFound);
        assert!(catalog.list("projects/p/instances/i", None, 10).is_empty());
        assert_eq!(catalog.tablet_ids().len(), 1);
    }
    let reopened = world.open();
    assert_eq!(undelete(&reopened, NAME).unwrap().record, before.record);
    assert_eq!(undelete(&reopened, NAME).unwrap_err().kind(), Code::AlreadyExists);
    assert_eq!(world.open().get(NAME).unwrap().record, before.record);
}

#[test]
fn a_protected_table_is_not_deleted() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, protected()).unwrap();
    assert_eq!(catalog.delete(NAME).unwrap_err().kind(), Code::FailedPrecondition);
    let unprotect = |r: &TableRecord| Ok(TableRecord { deletion_protection: false, ..r.clone() });
    catalog.update(NAME, unprotect).unwrap();
    catalog.delete(NAME).unwrap();
}

#[test]
fn the_changes_of_a_table_are_kept_from_before_its_record_says_so_until_after() {
    let day = |days: i64| admin::ChangeStreamConfig {
        retention_period: Some(prost_types::Duration { seconds: days * 86_400, nanos: 0 }),
    };
    let world = World::default();
    let catalog = world.open();
    let mut new = with_family("cg");
    new.asked.rest.change_stream_config = Some(day(1));
    let entry = catalog.create(NAME, new).unwrap();
    assert_eq!(entry.record.change_stream_since, 77);
    let kept = |entry: &Entry<FakeTable>| std::mem::take(&mut *entry.table.kept.lock().unwrap());
    let days = |days: u64| Some(Duration::from_hours(24 * days));
    assert_eq!(kept(&entry).last(), Some(&days(1)));
    let set = |config| {
        let change =
            |r: &TableRecord| Ok(TableRecord { change_stream_config: config, ..r.clone() });
        catalog.update(NAME, change).unwrap()
    };
    assert_eq!(kept(&set(Some(day(2)))), [days(2)]);
    let drop = admin::modify_column_families_request::Modification {
        id: "cg".to_owned(),
        r#mod: Some(admin::modify_column_families_request::modification::Mod::Drop(true)),
        ..Default::default()
    };
    world.host.position.store(80, Ordering::Relaxed);
    let created = catalog.update(NAME, create_family("ch")).unwrap();
    world.host.position.store(90, Ordering::Relaxed);
    let dropped = catalog.update(NAME, |r| families::modify(r, std::slice::from_ref(&drop)));
    let dropped = dropped.unwrap();
    assert_eq!(kept(&dropped), []);
    let former = &dropped.record.former_families[0];
    assert_eq!((former.name.as_str(), former.created_at, former.dropped_at), ("cg", 0, 90));
    let created_at = |entry: &Entry<FakeTable>| entry.record.family("ch").unwrap().created_at;
    assert_eq!((created_at(&created), created_at(&dropped)), (80, 80));
    let next = world.open();
    assert_eq!(world.host.begun_after.load(Ordering::Relaxed), 90, "writes come after it");
    assert_eq!(next.get(NAME).unwrap().table.schema.lock().unwrap().families["ch"].created_at, 80);
    assert_eq!(kept(&set(None)), [None]);
    let again = set(Some(day(7)));
    assert_eq!(kept(&again).first(), Some(&days(7)));
    assert!(again.record.former_families.is_empty());
    world.host.begun_after.store(0, Ordering::Relaxed);
    let _next = world.open();
    assert!(world.host.begun_after.load(Ordering::Relaxed) >= 77, "writes come after it");
}

#[test]
fn a_longer_retention_does_not_promise_changes_that_a_shorter_one_let_go() {
    const DAY: i64 = 86_400;
    let world = World::default();
    let now = 100 * DAY * 1_000_000;
    world.clock.0.store(now, Ordering::Relaxed);
    let catalog = world.open();
    let set = |days: i64| {
        let retention_period = Some(prost_types::Duration { seconds: days * DAY, nanos: 0 });
        let config = Some(admin::ChangeStreamConfig { retention_period });
        let change =
            |r: &TableRecord| Ok(TableRecord { change_stream_config: config, ..r.clone() });
        catalog.update(NAME, change).unwrap().record.change_stream_since
    };
    catalog.create(NAME, with_family("a")).unwrap();
    assert_eq!((set(7), set(1)), (77, 77), "what is kept is known by its age");
    // Streams that are let in at the end of the period have some time to come on.
    let day_ago = position_before(now - DAY * 1_000_000 - GRACE_MICROS as i64);
    // A clock that has jumped ahead is doubted.
    world.clock.0.store(4 * now, Ordering::Relaxed);
    *world.host.expiry_micros.lock().unwrap() = Some(now);
    assert_eq!(set(7), day_ago);
    assert_eq!(set(7), day_ago);
    assert_eq!(world.open().get(NAME).unwrap().record.change_stream_since, day_ago);
}

#[test]
fn a_table_with_a_change_stream_is_not_deleted() {
    let world = World::default();
    let catalog = world.open();
    let mut new = with_family("a");
    let retention_period = Some(prost_types::Duration { seconds: 86_400, nanos: 0 });
    new.asked.rest.change_stream_config = Some(admin::ChangeStreamConfig { retention_period });
    catalog.create(NAME, new).unwrap();
    assert_eq!(catalog.delete(NAME).unwrap_err().kind(), Code::FailedPrecondition);
    let disable = |r: &TableRecord| Ok(TableRecord { change_stream_config: None, ..r.clone() });
    catalog.update(NAME, disable).unwrap();
    catalog.delete(NAME).unwrap();
}

#[test]
fn an_instances_tables_go_together_or_stay_together() {
    let world = World::default();
    let catalog = world.open();
    let other = "projects/p/instances/i2/tables/t";
    let second = "projects/p/instances/i/tables/u";
    for name in [NAME, other, second] {
        catalog.create(name, NewTable::default()).unwrap();
    }
    catalog.delete(second).unwrap();
    let guarded = "projects/p/instances/i/tables/v";
    catalog.create(guarded, protected()).unwrap();
    let delete = |instance| catalog.delete_instance(instance, |all| world.commit(all).map(drop));
    let error = delete("projects/p/instances/i").unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    assert!(error.message().contains(guarded), "{error}");
    catalog.get(NAME).unwrap();
    let unprotect = |r: &TableRecord| Ok(TableRecord { deletion_protection: false, ..r.clone() });
    catalog.update(guarded, unprotect).unwrap();
    world.meta.fails.store(true, Ordering::Relaxed);
    delete("projects/p/instances/i").unwrap_err();
    world.meta.fails.store(false, Ordering::Relaxed);
    assert_eq!(world.tablet_count(), 4);
    catalog.get(NAME).unwrap();
    delete("projects/p/instances/i").unwrap();
    for catalog in [catalog, world.open()] {
        assert_eq!(undelete(&catalog, second).unwrap_err().kind(), Code::NotFound);
        assert_eq!(catalog.tablet_ids().len(), 1);
        catalog.get(other).unwrap();
    }
    assert_eq!(world.tablet_count(), 1);
}

#[test]
fn others_change_tables_while_the_tablets_of_removed_ones_go() {
    let world = World::default();
    let catalog = Arc::new(world.open());
    let (changing, held) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let (of_catalog, of_caller, count) =
        (Arc::clone(&catalog), Arc::clone(&changing), Arc::clone(&held));
    let hook = move || {
        if of_catalog.changing.try_lock().is_err() || of_caller.try_lock().is_err() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    *world.host.before_drop.lock().unwrap() = Some(Box::new(hook));
    let create =
        || catalog.create_where(NAME, NewTable::default(), || Ok(changing.lock().unwrap()));
    create().unwrap();
    create().unwrap_err();
    catalog.delete(NAME).unwrap();
    // In the place of the deleted one; swept; with its instance.
    create().unwrap();
    world.meta.is_full.store(true, Ordering::Relaxed);
    let other = format!("{NAME}2");
    catalog.create_where(&other, NewTable::default(), || Ok(changing.lock().unwrap())).unwrap_err();
    world.meta.is_full.store(false, Ordering::Relaxed);
    catalog.delete(NAME).unwrap();
    world.pass(7 * DAY_MICROS);
    assert_eq!(catalog.sweep(world.now()), 1);
    create().unwrap();
    catalog.delete_instance("projects/p/instances/i", |all| world.commit(all).map(drop)).unwrap();
    assert_eq!((world.tablet_count(), held.load(Ordering::Relaxed)), (0, 0));
    // The hook holds the catalog.
    *world.host.before_drop.lock().unwrap() = None;
}

#[test]
fn a_new_table_replaces_the_deleted_one_of_its_name_for_good() {
    let world = World::default();
    let catalog = world.open();
    let first = catalog.create(NAME, with_family("a")).unwrap();
    catalog.delete(NAME).unwrap();
    let second = catalog.create(NAME, with_family("b")).unwrap();
    assert_ne!(first.record.incarnation, second.record.incarnation);
    assert_eq!(world.tablet_count(), 1);
    catalog.delete(NAME).unwrap();
    let undeleted = undelete(&catalog, NAME).unwrap();
    assert!(undeleted.record.family("b").is_some());
}

#[test]
fn deleted_tables_are_swept_after_seven_days_and_not_before() {
    let world = World::default();
    let catalog = world.open();
    catalog.create(NAME, with_family("a")).unwrap();
    catalog.delete(NAME).unwrap();
    world.pass(7 * DAY_MICROS - 1);
    assert_eq!(catalog.sweep(world.now()), 0);
    world.pass(1);
    assert_eq!(catalog.sweep(world.now()), 1);
    assert_eq!(undelete(&catalog, NAME).unwrap_err().kind(), Code::NotFound);
    assert_eq!(world.tablet_count(), 0);
    assert!(world.open().tablet_ids().is_empty());
}

#[test]
fn a_table_is_undeleted_while_a_sweep_removes_others() {
    let world = World::default();
    let catalog = Arc::new(world.open());
    let second = "projects/p/instances/i/tables/u";
    for name in [NAME, second] {
        catalog.create(name, NewTable::default()).unwrap();
        catalog.delete(name).unwrap();
    }
    world.pass(7 * DAY_MICROS);
    let of_catalog = Arc::clone(&catalog);
    let hook = move || drop(undelete(&of_catalog, second).unwrap());
    *world.host.before_drop.lock().unwrap() = Some(Box::new(hook));
    assert_eq!(catalog.sweep(world.now()), 1);
    // The hook holds the catalog.
    *world.host.before_drop.lock().unwrap() = None;
    for catalog in [&*catalog, &world.open()] {
        assert_eq!(catalog.get(NAME).unwrap_err().kind(), Code::NotFound);
        assert_eq!(catalog.sweep(world.now()), 0);
        catalog.get(second).unwrap();
    }
    assert_eq!(world.tablet_count(), 1);
}

#[test]
fn a_deleted_table_that_is_still_there_is_undeleted_though_the_clock_has_jumped_ahead() {
    let world = World::default();
    let catalog = world.open();
    let before = catalog.create(NAME, with_family("a")).unwrap();
    catalog.delete(NAME).unwrap();
    // The clock is in doubt, so nobody sweeps.
    world.pass(36 * 365 * DAY_MICROS);
    assert_eq!(undelete(&catalog, NAME).unwrap().record, before.record);
}

#[test]
fn a_table_that_is_deleted_while_the_clock_is_behind_stays_for_seven_days_by_the_right_one() {
    let world = World::default();
    let right = 100 * DAY_MICROS;
    world.host.newest_micros.store(right, Ordering::Relaxed);
    let catalog = world.open();
    catalog.create(NAME, with_family("a")).unwrap();
    catalog.delete(NAME).unwrap();
    world.pass(right);
    assert_eq!(catalog.sweep(world.now()), 0);
    world.pass(7 * DAY_MICROS);
    assert_eq!(catalog.sweep(world.now()), 1);
}

#[test]
fn listing_goes_by_instance_in_name_order_and_continues_after_a_name() {
    let world = World::default();
    let catalog = world.open();
    for name in [
        "projects/p/instances/i/tables/c",
        "projects/p/instances/i/tables/a",
        "projects/p/instances/i/tables/b",
        "projects/p/instances/i2/tables/d",
        "projects/p/instances/h/tables/e",
    ] {
        catalog.create(name, NewTable::default()).unwrap();
    }
    let list = |after: Option<&str>, limit| -> Vec<String> {
        let entries = catalog.list("projects/p/instances/i", after, limit);
        entries.iter().map(|e| e.record.name.rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(list(None, 10), ["a", "b", "c"]);
    assert_eq!(list(None, 2), ["a", "b"]);
    assert_eq!(list(Some("projects/p/instances/i/tables/b"), 2), ["c"]);
    assert_eq!(list(Some("projects/p/instances/i/tables/aa"), 1), ["b"]);
    assert_eq!(list(Some(""), 1), ["a"]);
}

#[test]
fn a_missing_table_is_not_found_and_a_malformed_name_is_invalid() {
    let catalog = World::default().open();
    let error = catalog.table(NAME).unwrap_err();
    assert_eq!(error.kind(), Code::NotFound);
    assert_eq!(error.message(), format!("table \"{NAME}\" not found"));
    assert_eq!(catalog.table("t").unwrap_err().kind(), Code::InvalidArgument);
}

#[test]
fn family_numbers_are_unique_over_a_tables_life() {
    let world = World::default();
    let mut seen = BTreeSet::new();
    world.open().create(NAME, with_family("a")).unwrap();
    seen.insert(1);
    for _ in 0..3 {
        let catalog = world.open();
        let drop_a =
            |record: &TableRecord| Ok(TableRecord { families: Vec::new(), ..record.clone() });
        catalog.update(NAME, drop_a).unwrap();
        let entry = catalog.update(NAME, create_family("a")).unwrap();
        assert!(seen.insert(entry.record.family("a").unwrap().id));
    }
}

#[test]
fn tools_tell_an_entry_of_a_newer_server_from_a_damaged_one() {
    let record = TableRecord { name: NAME.to_owned(), ..TableRecord::default() };
    let good = record.encode_versioned();
    let key = format!("tables/{NAME}");
    assert!(entry_of(&key, &good).unwrap().is_some());
    let newer = [&[2], &good[1..]].concat();
    for (key, value, kind) in [
        (key.as_str(), &newer, ErrorKind::InvalidArgument),
        ("resources/backup/b", &newer, ErrorKind::InvalidArgument),
        ("resources/teapot/t", &good, ErrorKind::InvalidArgument),
        ("teapots/t", &good, ErrorKind::InvalidArgument),
        (key.as_str(), &good[..9].to_vec(), ErrorKind::Corruption),
        ("resources/backup", &good, ErrorKind::Corruption),
    ] {
        let error = entry_of(key, value).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(key), "{error}");
    }
}

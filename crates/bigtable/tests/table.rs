//! A table over a real engine in memory: what requests do to rows, and what reads make of them.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "in a test's helpers a panic is the failure that they are there to find"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2::authorized_view::{
    FamilySubsets, SubsetView,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message;
use tepui_bigtable::authorized_view::AuthorizedView;
use tepui_bigtable::bulk::Bulk;
use tepui_bigtable::filter::WithFilter;
use tepui_bigtable::frame::{Framed as _, HEADER_BYTES};
use tepui_bigtable::origin::WithOrigins;
use tepui_bigtable::response::ReadRowsMessage;
use tepui_bigtable::schema::{FamilySchema, TableSchema};
use tepui_bigtable::table::Table;
use tepui_bigtable::value_type::{AggregateType, Input};
use tepui_bigtable::{Code, chunk};
use tepui_engine::aside;
use tepui_engine::cell::{Mutation, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{
    Env, Fault, FaultFiles, FaultOp, Files, InlineIo, IoEngine, JoinHandle, ManualClock,
    MemoryFiles, Rng, SeededRng, Spawner, ThreadSpawner,
};
use tepui_engine::pressure::Priority;
use tepui_engine::read::Projection;
use tepui_engine::schema::Aggregate;
use tepui_engine::tablet::{ReadView, TabletId};
use v2::mutation::Mutation as Change;

use crate::support::chunk_decoder::{DecodedRow, Decoder};
use crate::support::device::Device;

mod support;
#[path = "../../engine/tests/support/until.rs"]
mod until;

use until::until;

const NOW: i64 = 1_700_000_000_123_456;
const NOW_MS: i64 = 1_700_000_000_123_000;

/// A table of families `f` and `g` and the aggregates `sum`, `min`, `max` and `users`, in an engine in memory.
struct Fixture {
    env: Env,
    clock: ManualClock,
    engine: Arc<Engine>,
    table: Table,
    /// Of an engine whose log has failed.
    fails_to_close: bool,
}

impl Fixture {
    /// Split at these rows.
    fn new(splits: &[&str]) -> Self {
        Self::over(Arc::new(MemoryFiles::new()), Arc::new(InlineIo), splits)
    }

    fn over(files: Arc<dyn Files>, io: Arc<dyn IoEngine>, splits: &[&str]) -> Self {
        let clock = ManualClock::new(NOW);
        let env = Env {
            files,
            io,
            clock: Arc::new(clock.clone()),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let engine = open(&env, EngineOptions::default());
        let mut bounds = vec![""];
        bounds.extend(splits);
        bounds.push("");
        let tablets = bounds
            .windows(2)
            .map(|b| {
                let range = RowRange::new(b[0].to_owned(), b[1].to_owned());
                engine.create_tablet(range).unwrap()
            })
            .collect();
        let table = table(&env, tablets, schema());
        engine.start().unwrap();
        Self { env, clock, engine, table, fails_to_close: false }
    }

    /// Closes the engine and opens it again on the same files.
    fn reopen(&mut self) {
        self.reopen_with(EngineOptions::default());
    }

    fn reopen_with(&mut self, options: EngineOptions) {
        let ids: Vec<TabletId> = self.table.tablets().map(|(_, t)| t.id()).collect();
        let schema = self.table.schema();
        self.engine.close().unwrap();
        self.engine = open(&self.env, options);
        let tablets = ids.into_iter().map(|id| self.engine.tablet(id).unwrap()).collect();
        self.table = table(&self.env, tablets, schema);
        self.engine.start().unwrap();
    }

    async fn flush(&self) {
        for (_, tablet) in self.table.tablets() {
            tablet.flush().await.unwrap();
        }
    }

    async fn mutate(&self, row: &str, changes: Vec<Change>) {
        let request = v2::MutateRowRequest {
            row_key: row.to_owned().into(),
            mutations: mutations(changes),
            ..Default::default()
        };
        self.table.mutate_row(&request, None).await.unwrap();
    }

    async fn read(&self, request: v2::ReadRowsRequest) -> Vec<DecodedRow> {
        let mut decoder = Decoder::new(request.reversed);
        let mut rows = self.table.read_rows(request).unwrap();
        while let Some(message) = rows.next().await {
            let message = message.unwrap();
            assert!(message.len() <= chunk::MESSAGE_BYTES_MAX);
            decoder.push(message.into_frame()).unwrap();
        }
        decoder.finish().unwrap()
    }

    /// Every cell as `row family:qualifier@timestamp=value`.
    async fn dump(&self) -> Vec<String> {
        texts(&self.read(v2::ReadRowsRequest::default()).await)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let closed = self.engine.close();
        // A second panic would hide the first.
        if !std::thread::panicking() && !self.fails_to_close {
            closed.unwrap();
        }
    }
}

fn open(env: &Env, options: EngineOptions) -> Arc<Engine> {
    Engine::open(env.clone(), Path::new("/data"), options).unwrap()
}

fn table(
    env: &Env,
    tablets: Vec<Arc<tepui_engine::tablet::Tablet>>,
    schema: Arc<TableSchema>,
) -> Table {
    Table::new("t", tablets, schema, Arc::clone(&env.clock), Arc::clone(&env.rng)).unwrap()
}

fn schema() -> Arc<TableSchema> {
    let mut schema = TableSchema::new();
    for (name, aggregate) in [
        ("f", None),
        ("g", None),
        ("sum", Some(AggregateType::of_numbers(Aggregate::Sum))),
        ("min", Some(AggregateType::of_numbers(Aggregate::Min))),
        ("max", Some(AggregateType::of_numbers(Aggregate::Max))),
        ("users", Some(AggregateType::unique_count(Input::String))),
    ] {
        let id = schema.allocate_family_id();
        schema.families.insert(name.into(), FamilySchema { aggregate, ..FamilySchema::new(id) });
    }
    Arc::new(schema)
}

fn mutations(changes: Vec<Change>) -> Vec<v2::Mutation> {
    changes.into_iter().map(|change| v2::Mutation { mutation: Some(change) }).collect()
}

fn set(family: &str, qualifier: &str, timestamp_micros: i64, value: impl Into<Bytes>) -> Change {
    Change::SetCell(v2::mutation::SetCell {
        family_name: family.into(),
        column_qualifier: qualifier.to_owned().into(),
        timestamp_micros,
        value: value.into(),
    })
}

fn delete_cells(family: &str, qualifier: &str, start: i64, end: i64) -> Change {
    Change::DeleteFromColumn(v2::mutation::DeleteFromColumn {
        family_name: family.into(),
        column_qualifier: qualifier.to_owned().into(),
        time_range: Some(v2::TimestampRange {
            start_timestamp_micros: start,
            end_timestamp_micros: end,
        }),
    })
}

fn delete_family(family: &str) -> Change {
    Change::DeleteFromFamily(v2::mutation::DeleteFromFamily { family_name: family.into() })
}

fn delete_row() -> Change {
    Change::DeleteFromRow(v2::mutation::DeleteFromRow {})
}

fn typed(kind: v2::value::Kind) -> Option<v2::Value> {
    Some(v2::Value { r#type: None, kind: Some(kind) })
}

fn add(family: &str, input: i64) -> Change {
    Change::AddToCell(v2::mutation::AddToCell {
        family_name: family.into(),
        column_qualifier: typed(v2::value::Kind::RawValue("q".into())),
        timestamp: typed(v2::value::Kind::RawTimestampMicros(1_000)),
        input: typed(v2::value::Kind::IntValue(input)),
    })
}

fn merge(family: &str, state: i64) -> Change {
    let state = Bytes::copy_from_slice(&state.to_be_bytes());
    Change::MergeToCell(v2::mutation::MergeToCell {
        family_name: family.into(),
        column_qualifier: typed(v2::value::Kind::RawValue("q".into())),
        timestamp: typed(v2::value::Kind::RawTimestampMicros(1_000)),
        input: typed(v2::value::Kind::RawValue(state)),
    })
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn texts(rows: &[DecodedRow]) -> Vec<String> {
    rows.iter()
        .flat_map(|row| {
            row.cells.iter().map(|c| {
                let (q, v) = (text(&c.qualifier), text(&c.value));
                format!("{} {}:{q}@{}={v}", text(&row.key), c.family, c.timestamp)
            })
        })
        .collect()
}

fn keys(rows: &[DecodedRow]) -> Vec<String> {
    rows.iter().map(|row| text(&row.key)).collect()
}

fn row_set(row_keys: &[&str], ranges: &[(&str, &str)]) -> Option<v2::RowSet> {
    let row_keys = row_keys.iter().map(|k| Bytes::from((*k).to_owned())).collect();
    let row_ranges = ranges
        .iter()
        .map(|(start, end)| v2::RowRange {
            start_key: Some(v2::row_range::StartKey::StartKeyClosed((*start).to_owned().into())),
            end_key: Some(v2::row_range::EndKey::EndKeyOpen((*end).to_owned().into())),
        })
        .collect();
    Some(v2::RowSet { row_keys, row_ranges })
}

fn family_filter(regex: &str) -> Option<v2::RowFilter> {
    Some(v2::RowFilter {
        filter: Some(v2::row_filter::Filter::FamilyNameRegexFilter(regex.into())),
    })
}

#[tokio::test]
async fn writes_are_read_back_with_versions_newest_first() {
    let fixture = Fixture::new(&[]);
    fixture
        .mutate(
            "r",
            vec![set("f", "b", 1_000, "old"), set("f", "b", 2_000, "new"), set("g", "", 0, "")],
        )
        .await;
    fixture.mutate("r", vec![set("f", "a", -1, "now")]).await;
    let expected = [
        format!("r f:a@{NOW_MS}=now"),
        "r f:b@2000=new".into(),
        "r f:b@1000=old".into(),
        "r g:@0=".into(),
    ];
    assert_eq!(fixture.dump().await, expected);
    fixture.flush().await;
    assert_eq!(fixture.dump().await, expected);
}

#[tokio::test]
async fn mutations_of_a_request_are_applied_in_order() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("r", vec![set("f", "q", 0, "before"), set("g", "q", 0, "before")]).await;
    fixture
        .mutate(
            "r",
            vec![delete_row(), set("f", "q", 0, "a"), set("f", "q", 0, "b"), set("f", "p", 0, "c")],
        )
        .await;
    assert_eq!(fixture.dump().await, ["r f:p@0=c", "r f:q@0=b"]);
    fixture.mutate("r", vec![set("g", "q", 0, "x"), delete_family("g")]).await;
    assert_eq!(fixture.dump().await, ["r f:p@0=c", "r f:q@0=b"]);
    fixture.mutate("r", vec![set("f", "q", 1_000, "1"), set("f", "q", 2_000, "2")]).await;
    fixture.mutate("r", vec![delete_cells("f", "q", 1_000, 2_000)]).await;
    assert_eq!(fixture.dump().await, ["r f:p@0=c", "r f:q@2000=2", "r f:q@0=b"]);
    fixture.mutate("r", vec![delete_cells("f", "q", 0, 0), delete_cells("f", "p", 1_000, 0)]).await;
    assert_eq!(fixture.dump().await, ["r f:p@0=c"]);
}

#[tokio::test]
async fn aggregates_combine_what_was_added_and_merged() {
    let fixture = Fixture::new(&[]);
    for family in ["sum", "min", "max"] {
        fixture.mutate("r", vec![add(family, 5), merge(family, -3)]).await;
        fixture.flush().await;
        fixture.mutate("r", vec![add(family, 1)]).await;
    }
    let rows = fixture.read(v2::ReadRowsRequest::default()).await;
    let values: BTreeMap<_, _> = rows[0]
        .cells
        .iter()
        .map(|c| (c.family.as_str(), i64::from_be_bytes(c.value.clone().try_into().unwrap())))
        .collect();
    assert_eq!(values, BTreeMap::from([("sum", 3), ("min", -3), ("max", 5)]));
}

/// The whole of a cell of an aggregate family, as an import writes it.
fn replaced(family: &str, state: &Bytes) -> Vec<Change> {
    let Change::MergeToCell(cell) = merge(family, 0) else { panic!("a merge") };
    let input = typed(v2::value::Kind::RawValue(state.clone()));
    let merge = Change::MergeToCell(v2::mutation::MergeToCell { input, ..cell });
    vec![delete_cells(family, "q", 1_000, 2_000), merge]
}

#[tokio::test]
async fn an_aggregate_cell_that_is_deleted_and_merged_is_the_state_however_often() {
    let mut fixture = Fixture::new(&[]);
    let state_of = async |fixture: &Fixture, row: &str| {
        let rows = row_set(&[row], &[]);
        let rows = fixture.read(v2::ReadRowsRequest { rows, ..Default::default() }).await;
        let [cell] = &rows[0].cells[..] else { panic!("{:?}", rows[0].cells) };
        Bytes::from(cell.value.clone())
    };
    for family in ["sum", "min", "max", "users"] {
        let added = |number: i64| match family {
            "users" => add_user(&format!("user-{number}")),
            _ => add(family, number),
        };
        let (from, to) = (format!("from-{family}"), format!("to-{family}"));
        fixture.mutate(&from, vec![added(5), added(-3)]).await;
        let state = state_of(&fixture, &from).await;
        // Of another value, in memory and in a file.
        fixture.mutate(&to, vec![added(9), added(-9)]).await;
        fixture.flush().await;
        fixture.mutate(&to, vec![added(7)]).await;
        for _ in 0..2 {
            fixture.mutate(&to, replaced(family, &state)).await;
            assert_eq!(state_of(&fixture, &to).await, state, "{family}");
        }
        // Twice in one request is once, too.
        let twice = [replaced(family, &state), replaced(family, &state)].concat();
        fixture.mutate(&to, twice).await;
        assert_eq!(state_of(&fixture, &to).await, state, "{family}");
        fixture.reopen();
        fixture.flush().await;
        fixture.mutate(&to, replaced(family, &state)).await;
        assert_eq!(state_of(&fixture, &to).await, state, "{family}");
    }
}

fn add_user(user: &str) -> Change {
    Change::AddToCell(v2::mutation::AddToCell {
        family_name: "users".into(),
        column_qualifier: typed(v2::value::Kind::RawValue("q".into())),
        timestamp: typed(v2::value::Kind::RawTimestampMicros(1_000)),
        input: typed(v2::value::Kind::StringValue(user.to_owned())),
    })
}

#[tokio::test]
async fn distinct_counts_have_the_bytes_of_zetasketch_wherever_their_parts_lie() {
    let mut fixture = Fixture::new(&[]);
    let sketch_of = async |fixture: &Fixture, row: &str| {
        let rows = row_set(&[row], &[]);
        let rows = fixture.read(v2::ReadRowsRequest { rows, ..Default::default() }).await;
        Bytes::from(rows[0].cells[0].value.clone())
    };
    fixture.mutate("r", vec![add_user("user-2")]).await;
    fixture.flush().await;
    fixture.mutate("r", vec![add_user("user-0")]).await;
    fixture.flush().await;
    // One comes as a state, as another program or another row made it.
    fixture.mutate("other", vec![add_user("user-1")]).await;
    let state = sketch_of(&fixture, "other").await;
    let Change::AddToCell(cell) = add_user("") else { panic!("an addition") };
    let merge = Change::MergeToCell(v2::mutation::MergeToCell {
        family_name: cell.family_name,
        column_qualifier: cell.column_qualifier,
        timestamp: cell.timestamp,
        input: typed(v2::value::Kind::RawValue(state)),
    });
    fixture.mutate("r", vec![merge]).await;
    let golden = [
        0x08, 0x70, 0x10, 0x03, 0x18, 0x02, 0x20, 0x0b, 0x82, 0x07, 0x11, 0x10, 0x03, 0x18, 0x0f,
        0x20, 0x14, 0x32, 0x09, 0xad, 0xe0, 0x0b, 0xf0, 0xbd, 0x0b, 0xdd, 0x8b, 0x09,
    ];
    assert_eq!(sketch_of(&fixture, "r").await, &golden[..]);
    fixture.reopen();
    assert_eq!(sketch_of(&fixture, "r").await, &golden[..]);
    // After a deletion it begins anew.
    let delete = Change::DeleteFromRow(v2::mutation::DeleteFromRow {});
    fixture.mutate("r", vec![delete, add_user("user-1")]).await;
    assert_eq!(sketch_of(&fixture, "r").await, sketch_of(&fixture, "other").await);
}

#[tokio::test]
async fn an_addition_with_a_token_counts_once_over_retries_and_restarts() {
    let mut fixture = Fixture::new(&[]);
    let token = |token: &'static str| {
        Some(v2::Idempotency { token: Bytes::from_static(token.as_bytes()), start_time: None })
    };
    let add_once = |idempotency| v2::MutateRowRequest {
        row_key: "r".into(),
        mutations: mutations(vec![add("sum", 1)]),
        idempotency,
        ..Default::default()
    };
    let bulk = |idempotency: Option<v2::Idempotency>| {
        let entry = v2::mutate_rows_request::Entry {
            row_key: "r".into(),
            mutations: mutations(vec![add("sum", 1)]),
            idempotency,
        };
        v2::MutateRowsRequest { entries: vec![entry.clone(), entry], ..Default::default() }
    };
    let one = |count: i64| [format!("r sum:q@1000={}", text(&count.to_be_bytes()))];
    for _ in 0..3 {
        fixture.table.mutate_row(&add_once(token("token-one")), None).await.unwrap();
        assert_eq!(fixture.dump().await, one(1));
    }
    // In a bulk too, where the same token comes twice, and after a restart and a flush.
    assert_eq!(
        fixture.table.mutate_rows(bulk(token("token-two")), Priority::High, None).await.unwrap(),
        []
    );
    assert_eq!(fixture.dump().await, one(2));
    fixture.reopen();
    fixture.flush().await;
    fixture.table.mutate_row(&add_once(token("token-one")), None).await.unwrap();
    assert_eq!(
        fixture.table.mutate_rows(bulk(token("token-two")), Priority::High, None).await.unwrap(),
        []
    );
    assert_eq!(fixture.dump().await, one(2));
    assert_eq!(fixture.table.mutate_rows(bulk(None), Priority::High, None).await.unwrap(), []);
    assert_eq!(fixture.dump().await, one(4));
    let failed =
        fixture.table.mutate_rows(bulk(token("short")), Priority::High, None).await.unwrap();
    assert_eq!(
        failed.iter().map(|(i, e)| (*i, e.kind())).collect::<Vec<_>>(),
        [(0, Code::InvalidArgument), (1, Code::InvalidArgument)]
    );
    // After the window the token means nothing any more.
    fixture.clock.advance_micros(15 * 60 * 1_000_000 + 1_000_000);
    fixture.table.mutate_row(&add_once(token("token-one")), None).await.unwrap();
    assert_eq!(fixture.dump().await, one(5));
    // The server's clock is set right between two attempts, by more than a token is kept.
    let minute_micros = 60_000_000;
    let start = fixture.env.clock.now_micros() / 1_000_000 + 30 * 60;
    let begun = |seconds| {
        let start_time = Some(prost_types::Timestamp { seconds, nanos: 0 });
        token("token-six").map(|token| v2::Idempotency { start_time, ..token })
    };
    fixture.table.mutate_row(&add_once(begun(start)), None).await.unwrap();
    fixture.clock.advance_micros(31 * minute_micros);
    fixture.flush().await;
    fixture.engine.compact_fully().unwrap();
    fixture.table.mutate_row(&add_once(begun(start)), None).await.unwrap();
    assert_eq!(fixture.dump().await, one(6));
    fixture.clock.advance_micros(15 * minute_micros);
    let late = fixture.table.mutate_row(&add_once(begun(start)), None).await.unwrap_err();
    assert_eq!(late.kind(), Code::FailedPrecondition);
    // Another mutation that comes with the token after the window is not of it, though the token is there still.
    fixture.table.mutate_row(&add_once(begun(start + 17 * 60)), None).await.unwrap();
    assert_eq!(fixture.dump().await, one(7));
    // A row of which only tokens are left is no row.
    fixture.mutate("r", vec![delete_cells("sum", "q", 0, 0)]).await;
    assert!(fixture.read(v2::ReadRowsRequest::default()).await.is_empty());
    fixture.flush().await;
    assert!(fixture.read(v2::ReadRowsRequest::default()).await.is_empty());
}

#[tokio::test]
async fn a_retry_that_is_taken_within_the_window_and_waits_beyond_it_counts_once() {
    let fixture = Fixture::new(&[]);
    let start_time = Some(prost_types::Timestamp { seconds: NOW / 1_000_000, nanos: 0 });
    let token = v2::Idempotency { token: Bytes::from_static(b"token-one"), start_time };
    let add_once = || v2::MutateRowRequest {
        row_key: "r".into(),
        mutations: mutations(vec![add("sum", 1)]),
        idempotency: Some(token.clone()),
        ..Default::default()
    };
    fixture.table.mutate_row(add_once(), None).await.unwrap();
    fixture.flush().await;
    fixture.clock.advance_micros(15 * 60 * 1_000_000 - 1_000_000);
    let (_, tablet) = fixture.table.tablets().next().unwrap();
    let lock = tablet.lock_row(b"r").await;
    let mut retry = std::pin::pin!(fixture.table.mutate_row(add_once(), None));
    assert!(futures::poll!(&mut retry).is_pending());
    fixture.clock.advance_micros(4 * 60 * 1_000_000);
    fixture.engine.compact_fully().unwrap();
    drop(lock);
    retry.await.unwrap();
    assert_eq!(fixture.dump().await, [format!("r sum:q@1000={}", text(&1_i64.to_be_bytes()))]);
}

/// The first attempt is in memory when the log fails. A second one was let in before and waits for the row, a third comes
/// later: both find what the first has left, of which nobody knows whether a restart finds it too.
#[tokio::test]
async fn after_the_log_has_failed_no_attempt_is_told_that_an_earlier_one_was_done() {
    let idempotency =
        Some(v2::Idempotency { token: Bytes::from_static(b"only once"), start_time: None });
    let counted = mutations(vec![add("sum", 1)]);
    for way in ["MutateRow", "MutateRows", "CheckAndMutateRow", "ReadModifyWriteRow"] {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let mut fixture = Fixture::over(Arc::new(files.clone()), Arc::new(InlineIo), &[]);
        fixture.fails_to_close = true;
        let table = &fixture.table;
        let attempt = |way: &'static str| {
            let (idempotency, mutations) = (idempotency.clone(), counted.clone());
            async move {
                let row_key = Bytes::from_static(b"r");
                match way {
                    "MutateRow" => {
                        let request = v2::MutateRowRequest {
                            row_key,
                            mutations,
                            idempotency,
                            ..Default::default()
                        };
                        table.mutate_row(&request, None).await
                    }
                    "MutateRows" => {
                        let entry =
                            v2::mutate_rows_request::Entry { row_key, mutations, idempotency };
                        let request =
                            v2::MutateRowsRequest { entries: vec![entry], ..Default::default() };
                        let mut failed = table.mutate_rows(request, Priority::High, None).await?;
                        failed.pop().map_or(Ok(()), |(_, error)| Err(error))
                    }
                    // Takes a lock, unless it has it.
                    "CheckAndMutateRow" => {
                        let request = check("r", None, vec![], vec![set("f", "q", 0, "mine")]);
                        table.check_and_mutate_row(&request).await.map(|_| ())
                    }
                    // Refuses what is no number, which the first attempt of another has left.
                    _ => {
                        let request = rmw("r", vec![("f", "q", increment(1))]);
                        table.read_modify_write_row(&request, None).await.map(|_| ())
                    }
                }
            }
            .boxed_local()
        };
        // The sync of the first attempt waits, and then fails.
        let (go, stands_still) = mpsc::channel::<()>();
        let stands_still = Mutex::new(stands_still);
        files.before_sync(Some(Arc::new(move |path: &Path| {
            if path.extension().is_some_and(|extension| extension == "log") {
                let _ = stands_still.lock().unwrap().recv();
            }
        })));
        files.inject(Fault::new(FaultOp::Sync).on_path(".log"));
        let first_way = if way == "ReadModifyWriteRow" { "CheckAndMutateRow" } else { way };
        let mut first = attempt(first_way);
        assert!((&mut first).now_or_never().is_none(), "{way} waits for the disk");
        let (_, tablet) = table.tablets().next().unwrap();
        let lock = tablet.lock_row(b"r").await;
        let mut second = attempt(way);
        assert!((&mut second).now_or_never().is_none(), "{way} waits for the row");
        drop(go);
        let failed = first.await.unwrap_err();
        assert!(failed.is_in_doubt(), "{way}: {failed:?}");
        drop(lock);
        let second = second.await.unwrap_err();
        assert_eq!(second.kind(), Code::Unavailable, "{way}: {second:?}");
        let has_token = way.starts_with("MutateRow");
        assert_eq!(second.is_in_doubt(), has_token, "{way}: {second:?}");
        let third = attempt(way).await.unwrap_err();
        assert_eq!(third.kind(), Code::Unavailable, "{way}: {third:?}");
        assert!(!third.is_in_doubt(), "{way} has not begun: {third:?}");
        assert_eq!(fixture.dump().await, [""; 0], "{way}");
    }
}

#[tokio::test]
async fn reads_cross_tablets_in_both_directions() {
    let fixture = Fixture::new(&["d", "h"]);
    for row in ["a", "c", "d", "e", "h", "z"] {
        fixture.mutate(row, vec![set("f", "q", 0, "v")]).await;
    }
    let cases: [(Option<v2::RowSet>, &[&str]); 6] = [
        (None, &["a", "c", "d", "e", "h", "z"]),
        (row_set(&["z", "b", "a", "z"], &[]), &["a", "z"]),
        (row_set(&["a"], &[("c", "e")]), &["a", "c", "d"]),
        (row_set(&["e", "d"], &[("c", "e"), ("d", "h")]), &["c", "d", "e"]),
        (row_set(&[], &[("h", "")]), &["h", "z"]),
        (row_set(&[], &[("x", "y")]), &[]),
    ];
    for (rows, expected) in cases {
        for reversed in [false, true] {
            for rows_limit in 0..4_i64 {
                let mut expected: Vec<_> = expected.iter().map(|k| (*k).to_owned()).collect();
                if reversed {
                    expected.reverse();
                }
                if rows_limit > 0 {
                    expected.truncate(rows_limit as usize);
                }
                let request = v2::ReadRowsRequest {
                    rows: rows.clone(),
                    reversed,
                    rows_limit,
                    ..Default::default()
                };
                assert_eq!(keys(&fixture.read(request.clone()).await), expected, "{request:?}");
            }
        }
    }
}

#[tokio::test]
async fn many_single_rows_come_in_order_with_the_missing_ones_left_out() {
    let fixture = Fixture::new(&["row-0200"]);
    for i in (0..400).step_by(3) {
        fixture.mutate(&format!("row-{i:04}"), vec![set("f", "q", 0, "v")]).await;
    }
    let all: Vec<String> = (0..400).rev().map(|i| format!("row-{i:04}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let request = v2::ReadRowsRequest { rows: row_set(&all, &[]), ..Default::default() };
    let expected: Vec<_> = (0..400).step_by(3).map(|i| format!("row-{i:04}")).collect();
    assert_eq!(keys(&fixture.read(request.clone()).await), expected);
    let request = v2::ReadRowsRequest { rows_limit: 5, ..request };
    assert_eq!(keys(&fixture.read(request).await), expected[..5]);
}

#[tokio::test]
async fn rows_that_a_filter_leaves_empty_do_not_count_against_the_limit() {
    let fixture = Fixture::new(&["m"]);
    for (row, family) in [("a", "g"), ("b", "f"), ("n", "g"), ("o", "f"), ("p", "f")] {
        fixture.mutate(row, vec![set(family, "q", 0, "v")]).await;
    }
    let request =
        v2::ReadRowsRequest { filter: family_filter("f"), rows_limit: 2, ..Default::default() };
    assert_eq!(keys(&fixture.read(request).await), ["b", "o"]);
}

#[tokio::test]
async fn large_values_arrive_whole_in_messages_of_bounded_size() {
    let fixture = Fixture::new(&[]);
    let large: Vec<u8> = (0..9_000_000_u32).map(|i| (i % 251) as u8).collect();
    fixture.mutate("r", vec![set("f", "a", 0, large.clone()), set("f", "b", 0, "small")]).await;
    fixture.flush().await;
    let rows = fixture.read(v2::ReadRowsRequest::default()).await;
    assert!(rows[0].cells[0].value == large);
    assert_eq!(rows[0].cells[1].value, b"small");
}

/// Carries out what it is given at once, and counts it.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl aside::Helper for Counting {
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        assert!(tablet.is_some());
        self.0.fetch_add(1, Ordering::Relaxed);
        work();
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn messages_of_one_large_row_are_put_together_by_the_threads_helper_and_others_are_not() {
    let fixture = Fixture::new(&[]);
    let helper = Arc::new(Counting::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn aside::Helper>);
    for (row, bytes) in [("a", 100 << 10), ("b", 900 << 10), ("c", 2 << 20)] {
        fixture.mutate(row, vec![set("f", "a", 0, vec![7; bytes])]).await;
        let rows = fixture.read(v2::ReadRowsRequest::default()).await;
        assert!(rows.last().unwrap().cells[0].value == vec![7; bytes]);
        // From memory, where nothing is unpacked.
        assert_eq!(helper.0.load(Ordering::Relaxed), usize::from(bytes > 1 << 20), "{bytes}");
    }
}

/// Cells enough for their row to be wide, and not large.
fn wide(cells: usize) -> Vec<Change> {
    (0..cells).map(|i| set("f", &format!("{i:05}"), 0, "v")).collect()
}

#[tokio::test]
async fn rows_of_many_cells_are_made_into_messages_by_the_threads_helper_and_others_are_not() {
    let fixture = Fixture::new(&[]);
    for (row, cells) in [("a", 1000), ("b", 5000), ("c", 1)] {
        fixture.mutate(row, wide(cells)).await;
    }
    let unaided = fixture.dump().await;
    let helper = Arc::new(Counting::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn aside::Helper>);
    assert!(fixture.dump().await == unaided);
    assert_eq!(helper.0.load(Ordering::Relaxed), 1);
    let limited = v2::ReadRowsRequest { rows_limit: 2, ..v2::ReadRowsRequest::default() };
    assert_eq!(keys(&fixture.read(limited).await), ["a", "b"], "it counts against the limit");
}

#[tokio::test]
async fn large_rows_are_filtered_by_the_threads_helper() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("a", vec![set("f", "a", 0, vec![b'v'; 10 << 10])]).await;
    fixture.mutate("b", vec![set("f", "a", 0, vec![b'v'; 300 << 10])]).await;
    let helper = Arc::new(Counting::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn aside::Helper>);
    let all = fixture.read(v2::ReadRowsRequest::default()).await;
    assert_eq!((all.len(), helper.0.load(Ordering::Relaxed)), (2, 0), "without a filter");
    let filter = v2::row_filter::Filter::ValueRegexFilter("v*w?".into());
    let filter = Some(v2::RowFilter { filter: Some(filter) });
    let request = v2::ReadRowsRequest { filter, ..v2::ReadRowsRequest::default() };
    assert!(fixture.read(request).await == all);
    assert_eq!(helper.0.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn rows_that_their_filter_may_take_long_for_are_filtered_by_the_threads_helper() {
    let filter = |filter| v2::RowFilter { filter: Some(filter) };
    let value = |regex: &'static [u8]| {
        filter(v2::row_filter::Filter::ValueRegexFilter(Bytes::from_static(regex)))
    };
    let copies = |count| {
        let filters = vec![filter(v2::row_filter::Filter::PassAllFilter(true)); count];
        filter(v2::row_filter::Filter::Interleave(v2::row_filter::Interleave { filters }))
    };
    let chain = |filters| filter(v2::row_filter::Filter::Chain(v2::row_filter::Chain { filters }));
    let newest = || filter(v2::row_filter::Filter::CellsPerColumnLimitFilter(1));
    let fixture = Fixture::new(&[]);
    fixture.mutate("r", wide(20)).await;
    fixture.mutate("s", vec![set("f", "a", 0, incompressible("s", 2_000))]).await;
    let helper = Arc::new(Counting::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn aside::Helper>);
    let asked_aside = || helper.0.swap(0, Ordering::Relaxed);
    for (filter, row, aside) in [
        (copies(30), "r", 0),
        (chain(vec![copies(30), copies(30)]), "r", 1),
        (chain(vec![newest(), family_filter("f|g").unwrap(), value(br"\C*foo\C*")]), "r", 0),
        (value(br"\C*foo\C*"), "s", 0),
        (value(br"\C*[\x00-\x7F]\C{900}x"), "s", 1),
    ] {
        let (rows, filter) = (row_set(&[row], &[]), Some(filter));
        fixture
            .read(v2::ReadRowsRequest { rows, filter: filter.clone(), ..Default::default() })
            .await;
        assert_eq!(asked_aside(), aside, "{row}: {filter:?}");
        // Likewise as a predicate.
        let request = check(row, filter, vec![], vec![set("g", "other", 0, "x")]);
        fixture.table.check_and_mutate_row(&request).await.unwrap();
        assert_eq!(asked_aside(), aside, "{request:?}");
    }
}

/// Drops what it is given.
#[derive(Debug)]
struct Ended;

impl aside::Helper for Ended {
    fn carry_out(&self, _: Option<TabletId>, _: Box<dyn FnOnce() + Send>) {}

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_read_that_lost_a_message_ends_with_its_error() {
    a_read_that_lost_what_its_helper_had_ends(|| vec![set("f", "a", 0, vec![7; 7 << 20])]).await;
}

#[tokio::test]
async fn a_read_that_lost_a_wide_row_ends_with_its_error() {
    a_read_that_lost_what_its_helper_had_ends(|| wide(5000)).await;
}

async fn a_read_that_lost_what_its_helper_had_ends(row_of: fn() -> Vec<Change>) {
    let fixture = Fixture::new(&[]);
    for row in ["a", "b"] {
        fixture.mutate(row, row_of()).await;
    }
    let _lent = aside::lend(Arc::new(Ended));
    let request = WithFilter::<v2::ReadRowsRequest>::default();
    let mut read =
        fixture.table.read_rows_encoded(&request, chunk::LargeRows::Split, None).unwrap();
    let error = read.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Code::Unavailable, "{error}");
    assert!(read.next().await.is_none(), "what comes behind it would be taken for all");
    assert!(read.has_ended());
}

#[tokio::test]
async fn bulk_writes_report_each_entry_that_failed() {
    let fixture = Fixture::new(&["m"]);
    let entry = |row: &str, changes| v2::mutate_rows_request::Entry {
        row_key: row.to_owned().into(),
        mutations: mutations(changes),
        idempotency: None,
    };
    let request = v2::MutateRowsRequest {
        entries: vec![
            entry("a", vec![set("f", "q", 0, "1")]),
            entry("z", vec![set("nope", "q", 0, "1")]),
            entry("z", vec![set("f", "q", 0, "1")]),
            entry("a", vec![set("f", "q", 0, "2")]),
            entry("z", vec![set("f", "q", 1, "1")]),
        ],
        ..Default::default()
    };
    let failed = fixture.table.mutate_rows(request, Priority::High, None).await.unwrap();
    let failed: Vec<_> = failed.into_iter().map(|(index, error)| (index, error.kind())).collect();
    assert_eq!(failed, [(1, Code::NotFound), (4, Code::InvalidArgument)]);
    assert_eq!(fixture.dump().await, ["a f:q@0=2", "z f:q@0=1"]);
}

#[tokio::test]
async fn a_row_of_a_bulk_that_is_too_much_for_the_memory_is_refused_alone() {
    let fixture = Fixture::new(&[]);
    let key = "k".repeat(4 << 10);
    let request = v2::MutateRowsRequest {
        entries: vec![
            mutations_of_entry("a", vec![set("f", "q", 0, "1")]),
            mutations_of_entry(&key, vec![set("f", "q", 0, "1"); 70_000]),
            mutations_of_entry("z", vec![set("f", "q", 0, "1")]),
        ],
        ..Default::default()
    };
    let failed = fixture.table.mutate_rows(request, Priority::High, None).await.unwrap();
    let failed: Vec<_> = failed.into_iter().map(|(index, error)| (index, error.kind())).collect();
    assert_eq!(failed, [(1, Code::InvalidArgument)]);
    assert_eq!(fixture.dump().await, ["a f:q@0=1", "z f:q@0=1"]);
}

#[tokio::test]
async fn entries_of_one_row_are_applied_in_their_order_however_many_they_are() {
    let fixture = Fixture::new(&["m"]);
    let entries = (0..5_000).map(|n| {
        let row = if n % 2 == 0 { "a" } else { "z" };
        let last = format!("{:04}", n - n % 2);
        // Each deletes what the one before it wrote.
        mutations_of_entry(row, vec![delete_family("f"), set("f", &last, 0, last.clone())])
    });
    let request = v2::MutateRowsRequest { entries: entries.collect(), ..Default::default() };
    let failed = fixture.table.mutate_rows(request, Priority::High, None).await.unwrap();
    assert_eq!(failed, []);
    assert_eq!(fixture.dump().await, ["a f:4998@0=4998", "z f:4998@0=4998"]);
}

#[tokio::test]
async fn of_many_entries_of_one_row_those_fail_that_cannot_be_written() {
    let fixture = Fixture::new(&[]);
    let key = "k".repeat(4 << 10);
    let one = |n: usize| mutations_of_entry(&key, vec![set("f", &n.to_string(), 0, "v")]);
    let mut entries: Vec<_> = (0..1_000).map(one).collect();
    entries[500] = mutations_of_entry(&key, vec![set("f", "q", 0, "1"); 70_000]);
    let request = v2::MutateRowsRequest { entries, ..Default::default() };
    let failed = fixture.table.mutate_rows(request, Priority::High, None).await.unwrap();
    let failed: Vec<_> = failed.into_iter().map(|(index, error)| (index, error.kind())).collect();
    assert_eq!(failed, [(500, Code::InvalidArgument)]);
    let rows = fixture.read(v2::ReadRowsRequest::default()).await;
    assert_eq!(rows[0].cells.len(), 999);
}

/// Chance as a test wants it.
#[derive(Debug, Default)]
struct Chance(AtomicU64);

impl Chance {
    const BAD: u64 = 0;
    const GOOD: u64 = u64::MAX;
}

impl Rng for Chance {
    fn next_u64(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A bulk of so many rows of a kibibyte for each of these beginnings of keys, in turns.
fn bulk_of(starts: &[&str], rows: usize) -> v2::MutateRowsRequest {
    let entries = (0..rows).flat_map(|n| {
        starts.iter().map(move |start| v2::mutate_rows_request::Entry {
            row_key: format!("{start}{n:06}").into(),
            mutations: mutations(vec![set("f", "q", 0, vec![b'v'; 1 << 10])]),
            idempotency: None,
        })
    });
    v2::MutateRowsRequest { entries: entries.collect(), ..Default::default() }
}

#[tokio::test]
async fn a_bulk_is_let_in_or_refused_once_and_what_its_tablet_has_no_room_for_is_unavailable() {
    const MEMTABLE: usize = 1 << 20;
    let mut env = Fixture::new(&[]).env.clone();
    let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
    (env.files, env.rng) = (Arc::new(files.clone()), Arc::new(SeededRng::new(1)));
    let options = EngineOptions {
        memtable_bytes: MEMTABLE as u64,
        memtables_waiting_max: 3,
        ..Default::default()
    };
    let engine = open(&env, options);
    let halves = [RowRange::new("", "m"), RowRange::new("m", "")];
    let tablets: Vec<_> = halves.map(|range| engine.create_tablet(range).unwrap()).into();
    let chance = Arc::new(Chance::default());
    let rng = Arc::clone(&chance) as Arc<dyn Rng>;
    let table = Table::new("t", tablets.clone(), schema(), Arc::clone(&env.clock), rng).unwrap();
    engine.start().unwrap();
    // No flush comes to its end.
    let (go, stands_still) = mpsc::channel::<()>();
    let stands_still = Mutex::new(stands_still);
    files.before_sync(Some(Arc::new(move |path: &Path| {
        if path.extension().is_some_and(|extension| extension == "sst") {
            let _ = stands_still.lock().unwrap().recv();
        }
    })));
    for row in ["a", "b", "c"] {
        let value = vec![b'v'; MEMTABLE];
        let request = v2::MutateRowRequest {
            row_key: row.into(),
            mutations: mutations(vec![set("f", "q", 0, value)]),
            ..Default::default()
        };
        table.mutate_row(&request, None).await.unwrap();
    }
    let share = tablets[0].pressure().refused_share();
    assert!(0.6 < share && share < 0.9, "{share}");

    let bulk = async |chances, request| {
        chance.0.store(chances, Ordering::Relaxed);
        table.mutate_rows(request, Priority::High, None).await
    };
    let says_when = |error: &tepui_bigtable::error::Error| {
        error.retry_after().is_some_and(|after| after > Duration::ZERO)
    };
    // Refused as a whole, and nothing of it is written.
    let refused = bulk(Chance::BAD, bulk_of(&["d"], 200)).await.unwrap_err();
    assert_eq!(refused.kind(), Code::ResourceExhausted);
    assert!(says_when(&refused));
    // Of two tablets, one takes its part.
    let failed = bulk(Chance::BAD, bulk_of(&["d", "z"], 200)).await.unwrap();
    let indexes: Vec<_> = failed.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, (0..400).step_by(2).collect::<Vec<_>>());
    assert!(failed.iter().all(|(_, e)| e.kind() == Code::Unavailable && says_when(e)));
    // Let in, every row of it is written, where every other write would be refused.
    assert_eq!(bulk(Chance::GOOD, bulk_of(&["e"], 200)).await.unwrap(), []);
    // But not beyond the limit.
    let rows = (4 * MEMTABLE) >> 10;
    let failed = bulk(Chance::GOOD, bulk_of(&["f"], rows)).await.unwrap();
    assert!((rows / 2..rows).contains(&failed.len()), "{}", failed.len());
    assert!(failed.iter().all(|(_, e)| e.kind() == Code::Unavailable && says_when(e)));
    // Of many entries of one row, none behind one that failed is written: it would be older once that is tried again.
    let entries = (0..2 * rows).map(|n| {
        let value = [format!("{n:04}").into_bytes(), vec![b'v'; 1 << 10]].concat();
        mutations_of_entry("z", vec![set("f", "q", 0, value)])
    });
    let request = v2::MutateRowsRequest { entries: entries.collect(), ..Default::default() };
    let failed = bulk(Chance::GOOD, request).await.unwrap();
    let first = failed[0].0;
    assert!(failed.iter().map(|(index, _)| *index).eq(first..2 * rows), "from {first}");
    assert!(failed.iter().all(|(_, e)| e.kind() == Code::Unavailable && says_when(e)));
    let row = tablets[1].read_row(b"z", &Projection::all(), ReadView::Durable).await.unwrap();
    let last = format!("{:04}", first - 1);
    assert_eq!(&row.unwrap().cells[0].value[..4], last.as_bytes());
    let refused = bulk(Chance::GOOD, bulk_of(&["g"], 1)).await.unwrap_err();
    assert_eq!(refused.kind(), Code::ResourceExhausted);
    // What is refused is not decoded before: the mutation of this entry is not as long as it says.
    let damaged = Bulk::decode(&[0x12, 5, 0x0a, 1, b'g', 0x12, 9][..]).unwrap();
    let refused = table.mutate_rows_encoded(damaged, Priority::High, None).await.unwrap_err();
    assert_eq!(refused.kind(), Code::ResourceExhausted);
    // What can never be written is said to be so.
    let failed = bulk(Chance::GOOD, bulk_of(&[&"x".repeat(5_000)], 1)).await.unwrap();
    let kinds: Vec<_> = failed.iter().map(|(index, error)| (*index, error.kind())).collect();
    assert_eq!(kinds, [(0, Code::InvalidArgument)]);
    drop(go);
    engine.close().unwrap();
}

#[tokio::test]
async fn a_table_of_many_tablets_is_not_asked_for_its_pressure_with_each_bulk() {
    let fixture = Fixture::new(&["m"]);
    let level = || fixture.table.pressure().unwrap().level;
    let idle = level();
    fixture.mutate("z", vec![set("f", "q", 0, vec![b'v'; 8 << 20])]).await;
    fixture.clock.advance_micros(99_999);
    assert!(level() <= idle);
    fixture.clock.advance_micros(1);
    assert!(level() > idle);
}

/// Hands on what it is given.
#[derive(Debug)]
struct Handing(tokio::sync::mpsc::UnboundedSender<Work>);

type Work = Box<dyn FnOnce() + Send>;

impl aside::Helper for Handing {
    fn carry_out(&self, _: Option<TabletId>, work: Work) {
        self.0.send(work).unwrap();
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Chance that keeps whoever asks for it until it is told to go on.
#[derive(Debug)]
struct Waited {
    asked: mpsc::Sender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Rng for Waited {
    fn next_u64(&self) -> u64 {
        self.asked.send(()).unwrap();
        self.goes_on.lock().unwrap().recv().unwrap();
        0
    }
}

#[tokio::test]
async fn the_room_of_a_row_that_is_looked_at_is_not_for_others_though_its_client_is_gone() {
    let env = Fixture::new(&[]).env.clone();
    let options = EngineOptions {
        memtable_bytes: 4 << 20,
        memtables_total_bytes: 16 << 20,
        ..Default::default()
    };
    let engine = open(&env, options);
    let tablets = vec![engine.create_tablet(RowRange::all()).unwrap()];
    let ((asked, is_asked), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
    let rng = Arc::new(Waited { asked, goes_on: Mutex::new(goes_on) });
    let table = Table::new("t", tablets, schema(), Arc::clone(&env.clock), rng).unwrap();
    for row in ["a", "b"] {
        let value = vec![b'v'; 300 << 10];
        let request = v2::MutateRowRequest {
            row_key: row.into(),
            mutations: mutations(vec![set("f", "q", 0, value)]),
            ..Default::default()
        };
        table.mutate_row(&request, None).await.unwrap();
    }
    let (give, mut given) = tokio::sync::mpsc::unbounded_channel();
    let _lent = aside::lend(Arc::new(Handing(give)));
    let filter = |filter| v2::RowFilter { filter: Some(filter) };
    let filters = vec![
        filter(v2::row_filter::Filter::ValueRegexFilter("v*w?".into())),
        filter(v2::row_filter::Filter::RowSampleFilter(0.5)),
    ];
    let by_chance = filter(v2::row_filter::Filter::Chain(v2::row_filter::Chain { filters }));
    let request = |row| check(row, Some(by_chance.clone()), vec![set("f", "q", 0, "x")], vec![]);

    let first = request("a");
    let thread = {
        let mut first = pin!(table.check_and_mutate_row(&first));
        let work = tokio::select! {
            ended = &mut first => panic!("{ended:?}"),
            work = given.recv() => work.unwrap(),
        };
        let thread = ThreadSpawner.spawn("helper", work).unwrap();
        is_asked.recv().unwrap();
        thread
    };
    // It is looked at, and nobody waits for what comes of it.
    let second = request("b");
    let mut second = pin!(table.check_and_mutate_row(&second));
    for _ in 0..100 {
        assert!(futures::poll!(&mut second).is_pending());
        assert!(given.try_recv().is_err(), "there is no room for a second row");
        tokio::task::yield_now().await;
    }
    go_on.send(()).unwrap();
    let work = tokio::select! {
        ended = &mut second => panic!("{ended:?}"),
        work = given.recv() => work.unwrap(),
    };
    go_on.send(()).unwrap();
    work();
    assert!(second.await.unwrap().predicate_matched);
    thread.join();
    engine.close().unwrap();
}

fn check(
    row: &str,
    filter: Option<v2::RowFilter>,
    if_true: Vec<Change>,
    if_false: Vec<Change>,
) -> v2::CheckAndMutateRowRequest {
    v2::CheckAndMutateRowRequest {
        row_key: row.to_owned().into(),
        predicate_filter: filter,
        true_mutations: mutations(if_true),
        false_mutations: mutations(if_false),
        ..Default::default()
    }
}

#[tokio::test]
async fn check_and_mutate_takes_the_branch_of_its_predicate() {
    let fixture = Fixture::new(&[]);
    let run = async |request| {
        fixture.table.check_and_mutate_row(&request).await.map(|r| r.predicate_matched)
    };
    let absent = || check("r", None, vec![], vec![set("f", "q", 0, "created")]);
    assert_eq!(run(absent()).await, Ok(false));
    assert_eq!(run(absent()).await, Ok(true), "the row exists, and nothing is written");
    assert_eq!(fixture.dump().await, ["r f:q@0=created"]);
    let on_g = || check("r", family_filter("g"), vec![delete_row()], vec![set("g", "q", 0, "x")]);
    assert_eq!(run(on_g()).await, Ok(false));
    assert_eq!(run(on_g()).await, Ok(true));
    assert_eq!(fixture.dump().await, [""; 0]);
    for (bad, code) in [
        (check("r", None, vec![], vec![]), Code::InvalidArgument),
        (check("", None, vec![delete_row()], vec![]), Code::InvalidArgument),
        (check("r", None, vec![delete_family("nope")], vec![delete_row()]), Code::NotFound),
        (check("r", None, vec![delete_row(); 100_001], vec![]), Code::InvalidArgument),
    ] {
        assert_eq!(run(bad).await.unwrap_err().kind(), code);
    }
}

#[tokio::test]
async fn a_predicate_fetches_values_only_where_it_compares_them() {
    let device = Device::default();
    let fixture = Fixture::over(Arc::new(device.clone()), Arc::new(device.clone()), &[]);
    let value_bytes = 1 << 20;
    fixture.mutate("r", vec![set("f", "q", 0, incompressible("v", value_bytes))]).await;
    fixture.flush().await;
    let value = |regex: &'static [u8]| {
        let filter = v2::row_filter::Filter::ValueRegexFilter(Bytes::from_static(regex));
        Some(v2::RowFilter { filter: Some(filter) })
    };
    for (predicate, matched, fetches) in [
        (None, true, false),
        (family_filter("f"), true, false),
        (family_filter("g"), false, false),
        (value(br"\C+"), true, true),
        (value(b"w+"), false, true),
    ] {
        device.reset();
        let request = check("r", predicate.clone(), vec![], vec![set("g", "other", 0, "x")]);
        let request = v2::CheckAndMutateRowRequest {
            true_mutations: mutations(vec![delete_family("g")]),
            ..request
        };
        let done = fixture.table.check_and_mutate_row(&request).await.unwrap();
        assert_eq!(done.predicate_matched, matched, "{predicate:?}");
        let fetched = device.most_bytes() >= value_bytes;
        assert_eq!(fetched, fetches, "{predicate:?}: {} bytes", device.most_bytes());
    }
}

#[tokio::test]
async fn a_predicate_that_one_cell_meets_reads_little_of_a_wide_row() {
    use v2::row_filter::Filter;
    let device = Device::default();
    let fixture = Fixture::over(Arc::new(device.clone()), Arc::new(device.clone()), &[]);
    let cell = |i: usize| {
        let value = incompressible(&i.to_string(), 64);
        set("f", &format!("{i:05}"), 1_000, value)
    };
    fixture.mutate("r", (0..20_000).map(cell).collect()).await;
    fixture.flush().await;
    let filter = |filter| Some(v2::RowFilter { filter: Some(filter) });
    let range = v2::ColumnRange { family_name: "f".into(), ..v2::ColumnRange::default() };
    let since = v2::TimestampRange { start_timestamp_micros: 1_000, end_timestamp_micros: 0 };
    for (predicate, reads_all) in [
        (None, false),
        (filter(Filter::PassAllFilter(true)), false),
        (family_filter("f"), false),
        (filter(Filter::ColumnRangeFilter(range)), false),
        (filter(Filter::TimestampRangeFilter(since)), false),
        (filter(Filter::CellsPerColumnLimitFilter(1)), false),
        // The last, since it leaves all of the row in the cache.
        (filter(Filter::ValueRegexFilter(br"\C+".as_slice().into())), true),
    ] {
        device.reset();
        let request = check("r", predicate.clone(), vec![], vec![delete_row()]);
        let done = fixture.table.check_and_mutate_row(&request).await.unwrap();
        assert!(done.predicate_matched, "{predicate:?}");
        let bytes = device.all_bytes();
        let expected = if reads_all { 1 << 20..4 << 20 } else { 0..256 << 10 };
        assert!(expected.contains(&bytes), "{predicate:?}: {bytes} bytes");
    }
}

#[tokio::test]
async fn of_many_who_create_a_row_if_it_is_absent_one_does() {
    let fixture = Fixture::new(&[]);
    let requests: Vec<_> = (0..64)
        .map(|i| check("r", None, vec![], vec![set("f", "q", 0, format!("winner-{i}"))]))
        .collect();
    let runs = requests.iter().map(|r| fixture.table.check_and_mutate_row(r));
    let results = futures::future::join_all(runs).await;
    let created = results.into_iter().filter(|r| !r.as_ref().unwrap().predicate_matched).count();
    assert_eq!(created, 1);
    assert_eq!(fixture.dump().await.len(), 1);
}

fn rmw(
    row: &str,
    rules: Vec<(&str, &str, v2::read_modify_write_rule::Rule)>,
) -> v2::ReadModifyWriteRowRequest {
    let rules = rules
        .into_iter()
        .map(|(family, qualifier, rule)| v2::ReadModifyWriteRule {
            family_name: family.into(),
            column_qualifier: qualifier.to_owned().into(),
            rule: Some(rule),
        })
        .collect();
    v2::ReadModifyWriteRowRequest { row_key: row.to_owned().into(), rules, ..Default::default() }
}

fn increment(amount: i64) -> v2::read_modify_write_rule::Rule {
    v2::read_modify_write_rule::Rule::IncrementAmount(amount)
}

fn append(suffix: &str) -> v2::read_modify_write_rule::Rule {
    v2::read_modify_write_rule::Rule::AppendValue(suffix.to_owned().into())
}

#[tokio::test]
async fn read_modify_write_answers_with_what_it_wrote() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("r", vec![set("f", "s", 1_000, "a"), set("f", "s", 0, "older")]).await;
    let request =
        rmw("r", vec![("g", "n", increment(7)), ("f", "s", append("b")), ("f", "s", append("c"))]);
    let row = fixture.table.read_modify_write_row(&request, None).await.unwrap().row.unwrap();
    let shown: Vec<_> = row
        .families
        .iter()
        .flat_map(|f| f.columns.iter().map(move |c| (f.name.as_str(), c)))
        .map(|(f, c)| (f, text(&c.qualifier), c.cells[0].timestamp_micros, text(&c.cells[0].value)))
        .collect();
    assert_eq!(
        shown,
        [
            ("f", "s".into(), NOW_MS, "abc".into()),
            ("g", "n".into(), NOW_MS, "\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07".into())
        ]
    );
    assert_eq!(
        fixture.dump().await,
        [
            format!("r f:s@{NOW_MS}=abc"),
            "r f:s@1000=a".into(),
            "r f:s@0=older".into(),
            format!("r g:n@{NOW_MS}=\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07"),
        ]
    );
    let bad = rmw("r", vec![("g", "n", increment(1)), ("f", "s", increment(1))]);
    let error = fixture.table.read_modify_write_row(&bad, None).await.unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    assert_eq!(fixture.dump().await.len(), 4, "nothing of a failed request is written");
}

#[tokio::test]
async fn how_much_a_read_modify_write_found_shows_before_it_copies_it_and_the_row_is_locked_until_then()
 {
    let fixture = Fixture::new(&[]);
    let value = "v".repeat(2 << 20);
    fixture.mutate("r", vec![set("f", "s", 1_000, value.clone()), set("f", "t", 1_000, "t")]).await;
    let request = rmw("r", vec![("f", "s", append("!")), ("f", "s", append("?"))]);
    let small = rmw("r", vec![("f", "t", append("!"))]);
    let found = fixture.table.read_to_change(&small, None).await.unwrap();
    assert!((1..1_000).contains(&found.bytes()));
    let mut large = Box::pin(fixture.table.read_to_change(&request, None));
    assert!((&mut large).now_or_never().is_none(), "its row is locked");
    drop(found);
    let found = large.await.unwrap();
    assert!((2 << 20..3 << 20).contains(&found.bytes()), "{}", found.bytes());
    let row = found.change().await.unwrap().row.unwrap();
    assert!(row.families[0].columns[0].cells[0].value == value + "!?");
    assert_eq!(fixture.dump().await.len(), 3, "what was dropped has changed nothing");
}

#[tokio::test]
async fn concurrent_increments_all_count() {
    let fixture = Fixture::new(&[]);
    let request = rmw("r", vec![("f", "n", increment(1))]);
    let runs = (0..200).map(|_| fixture.table.read_modify_write_row(&request, None));
    let results = futures::future::join_all(runs).await;
    let seen: BTreeSet<i64> = results
        .into_iter()
        .map(|r| {
            let row = r.unwrap().row.unwrap();
            let value = &row.families[0].columns[0].cells[0].value;
            i64::from_be_bytes(value.as_ref().try_into().unwrap())
        })
        .collect();
    assert_eq!(seen, (1..=200).collect());
}

#[tokio::test]
async fn a_clock_that_goes_back_does_not_hide_increments() {
    let fixture = Fixture::new(&[]);
    let request = rmw("r", vec![("f", "n", increment(1))]);
    fixture.table.read_modify_write_row(&request, None).await.unwrap();
    fixture.clock.set_wall_micros(NOW - 60_000_000);
    let row = fixture.table.read_modify_write_row(&request, None).await.unwrap().row.unwrap();
    let cell = &row.families[0].columns[0].cells[0];
    assert_eq!((cell.timestamp_micros, cell.value.as_ref()), (NOW_MS, &2_i64.to_be_bytes()[..]));
    assert_eq!(fixture.dump().await.len(), 1);
}

#[tokio::test]
async fn what_waited_for_a_row_is_newer_than_what_was_written_meanwhile() {
    let claim = || vec![set("f", "owner", -1, "claimed")];
    for way in ["MutateRow", "MutateRows", "CheckAndMutateRow"] {
        let fixture = Fixture::new(&[]);
        fixture.mutate("r", vec![set("f", "owner", 0, "")]).await;
        let (_, tablet) = fixture.table.tablets().next().unwrap();
        let lock = tablet.lock_row(b"r").await;
        let table = &fixture.table;
        let mut waiting = match way {
            "MutateRow" => fixture.mutate("r", claim()).boxed_local(),
            "MutateRows" => async {
                let first = mutations_of_entry("r", vec![set("f", "owner", -1, "overwritten")]);
                let entries = vec![first, mutations_of_entry("r", claim())];
                let request = v2::MutateRowsRequest { entries, ..Default::default() };
                assert_eq!(table.mutate_rows(request, Priority::High, None).await, Ok(vec![]));
            }
            .boxed_local(),
            _ => async {
                let request = check("r", family_filter("f"), claim(), vec![]);
                assert!(table.check_and_mutate_row(&request).await.unwrap().predicate_matched);
            }
            .boxed_local(),
        };
        assert!((&mut waiting).now_or_never().is_none(), "{way} waits for the row");
        fixture.clock.advance_micros(5_000);
        drop(lock);
        // It comes last and has the row first.
        let meanwhile = rmw("r", vec![("f", "owner", append("released"))]);
        table.read_modify_write_row(&meanwhile, None).await.unwrap();
        fixture.clock.advance_micros(5_000);
        waiting.await;
        let expected = [
            format!("r f:owner@{}=claimed", NOW_MS + 10_000),
            format!("r f:owner@{}=released", NOW_MS + 5_000),
            "r f:owner@0=".into(),
        ];
        assert_eq!(fixture.dump().await, expected, "{way}");
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_a_little_does_not_hide_what_is_written_next() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("r", vec![set("f", "q", -1, "before")]).await;
    fixture.clock.set_wall_micros(NOW - 30_000_000);
    fixture.mutate("r", vec![set("f", "q", -1, "after")]).await;
    assert_eq!(fixture.dump().await, [format!("r f:q@{NOW_MS}=after")]);
}

#[tokio::test]
async fn a_clock_that_goes_back_a_little_does_not_hide_what_takes_the_place_of_a_counter() {
    let fixture = Fixture::new(&[]);
    let request = rmw("r", vec![("f", "n", append("1"))]);
    fixture.table.read_modify_write_row(&request, None).await.unwrap();
    fixture.clock.set_wall_micros(NOW - 500_000);
    fixture.mutate("r", vec![set("f", "n", -1, "")]).await;
    fixture.table.read_modify_write_row(&request, None).await.unwrap();
    assert_eq!(fixture.dump().await, [format!("r f:n@{NOW_MS}=1")]);
}

#[tokio::test]
async fn dropping_a_range_of_rows_leaves_the_others() {
    let fixture = Fixture::new(&["b", "bm"]);
    for row in ["a", "b", "ba", "bz", "c"] {
        fixture.mutate(row, vec![set("f", "q", 0, "v")]).await;
    }
    fixture.table.drop_row_range(Some(b"b")).await.unwrap();
    assert_eq!(fixture.dump().await, ["a f:q@0=v", "c f:q@0=v"]);
    fixture.mutate("ba", vec![set("f", "q", 0, "again")]).await;
    assert_eq!(fixture.dump().await, ["a f:q@0=v", "ba f:q@0=again", "c f:q@0=v"]);
    let error = fixture.table.drop_row_range(Some(b"")).await.unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    fixture.table.drop_row_range(None).await.unwrap();
    assert_eq!(fixture.dump().await, [""; 0]);
}

#[tokio::test]
async fn rows_that_are_dropped_while_their_history_begins_are_deleted_one_by_one() {
    let fixture = Fixture::new(&[]);
    for row in ["a", "b"] {
        fixture.mutate(row, vec![set("f", "q", 0, "v")]).await;
    }
    let tablet = Arc::clone(fixture.table.tablets().next().unwrap().1);
    let lock = tablet.lock_row(b"a").await;
    let mut dropping = std::pin::pin!(fixture.table.drop_row_range(None));
    assert!(dropping.as_mut().now_or_never().is_none(), "a row is locked");
    let begun = tablet.keep_changes(Some(std::time::Duration::from_hours(24)));
    drop(lock);
    dropping.await.unwrap();
    assert_eq!(fixture.dump().await, [""; 0]);
    let changes = tablet.changes_after(begun).read(1 << 20).unwrap().unwrap();
    let mut deleted: Vec<_> = changes.into_iter().map(|change| change.batch).collect();
    deleted.sort_by(|a, b| a.row.cmp(&b.row));
    let delete =
        |row: &'static str| RowBatch { row: row.into(), mutations: vec![Mutation::DeleteRow] };
    assert_eq!(deleted, ["a", "b"].map(delete));
}

/// Starts the log's thread and no other: what the background has to do is done when a test says so.
#[derive(Debug)]
struct LogOnly;

impl Spawner for LogOnly {
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> tepui_engine::Result<Box<dyn JoinHandle>> {
        if name == "tepui-log" { ThreadSpawner.spawn(name, work) } else { Ok(Box::new(Self)) }
    }
}

impl JoinHandle for LogOnly {
    fn join(self: Box<Self>) {}
}

#[tokio::test]
async fn rows_that_fill_the_memory_for_writes_are_dropped_once_they_are_flushed() {
    let mut fixture = Fixture::new(&[]);
    fixture.env.spawner = Arc::new(LogOnly);
    fixture.reopen_with(EngineOptions {
        memtable_bytes: 1 << 20,
        memtables_total_bytes: 4 << 20,
        memtables_waiting_max: 8,
        ..EngineOptions::default()
    });
    let tablet = Arc::clone(fixture.table.tablets().next().unwrap().1);
    tablet.keep_changes(Some(Duration::from_hours(24)));
    let family = fixture.table.schema().families["f"].id;
    let mut rows = 0;
    while fixture.engine.pressure().refused_share() < 0.5 {
        let row = Bytes::from(format!("row-{rows:04}"));
        let (qualifier, value) = (Bytes::new(), Bytes::from_static(&[b'v'; 4 << 10]));
        let put = Mutation::Put { family, qualifier, timestamp: 0, value };
        let lock = tablet.lock_row(&row).await;
        tablet.apply_locked(lock, RowBatch { row, mutations: vec![put] }).await.unwrap();
        rows += 1;
    }
    assert!(rows > 256, "not all of them are deleted at once");
    let mut dropping = std::pin::pin!(fixture.table.drop_row_range(None));
    assert!(dropping.as_mut().now_or_never().is_none(), "there is no room for deletions");
    fixture.engine.run_background().unwrap();
    let pressure = fixture.engine.pressure();
    assert!(pressure.refused_share() <= 0.0, "it holds what it waits for: {pressure:?}");
    dropping.await.unwrap();
    assert_eq!(fixture.dump().await, [""; 0]);
}

#[tokio::test]
async fn rows_that_are_appended_while_others_are_dropped_one_by_one_stay() {
    let fixture = Fixture::new(&[]);
    let tablet = Arc::clone(fixture.table.tablets().next().unwrap().1);
    tablet.keep_changes(Some(Duration::from_hours(24)));
    for row in 0..600 {
        fixture.mutate(&format!("row-{row:04}"), vec![set("f", "q", 0, "v")]).await;
    }
    let lock = tablet.lock_row(b"row-0000").await;
    let mut dropping = std::pin::pin!(fixture.table.drop_row_range(Some(b"row-")));
    assert!(dropping.as_mut().now_or_never().is_none(), "a row is locked");
    fixture.mutate("row-0600", vec![set("f", "q", 0, "new")]).await;
    drop(lock);
    dropping.await.unwrap();
    assert_eq!(fixture.dump().await, ["row-0600 f:q@0=new"]);
}

#[tokio::test]
async fn a_drop_row_by_row_gives_its_thread_to_others_where_rows_are_long_gone() {
    let fixture = Fixture::new(&[]);
    let tablet = Arc::clone(fixture.table.tablets().next().unwrap().1);
    tablet.keep_changes(Some(Duration::from_hours(24)));
    let delete = |row: u32| RowBatch {
        row: format!("row-{row:06}").into(),
        mutations: vec![Mutation::DeleteRow],
    };
    let rows: Vec<u32> = (0..20_000).collect();
    for rows in rows.chunks(100) {
        tablet.apply_rows(rows.iter().copied().map(delete).collect()).await.unwrap();
    }
    let mut dropping = std::pin::pin!(fixture.table.drop_row_range(None));
    assert!(dropping.as_mut().now_or_never().is_none(), "it looks at 20,000 rows in one go");
    dropping.await.unwrap();
}

#[tokio::test]
async fn samples_name_tablet_bounds_and_end_with_the_table() {
    let fixture = Fixture::new(&["d", "h"]);
    for row in ["a", "e", "z"] {
        fixture.mutate(row, vec![set("f", "q", 0, vec![b'v'; 10_000])]).await;
    }
    let samples = fixture.table.sample_row_keys(None, None).unwrap();
    let keys: Vec<_> = samples.iter().map(|s| text(&s.row_key)).collect();
    assert_eq!(keys, ["d", "h", ""]);
    assert!(samples.windows(2).all(|p| p[0].offset_bytes <= p[1].offset_bytes));
    assert!(samples[2].offset_bytes > 0);
}

#[tokio::test]
async fn samples_of_a_range_read_nothing_of_other_tablets() {
    let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let mut fixture = Fixture::over(Arc::new(files.clone()), Arc::new(InlineIo), &["d", "h"]);
    for row in ["a", "e", "z"] {
        fixture.mutate(row, vec![set("f", "q", 0, vec![b'v'; 10_000])]).await;
    }
    // Nothing of the files stays in memory.
    fixture.reopen_with(EngineOptions { block_cache_bytes: 0, ..Default::default() });
    let range = v2::RowRange {
        start_key: Some(v2::row_range::StartKey::StartKeyClosed("d".into())),
        end_key: Some(v2::row_range::EndKey::EndKeyOpen("f".into())),
    };
    let read = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&read);
    files.before_read(Some(Arc::new(move |_: &Path| {
        counted.fetch_add(1, Ordering::Relaxed);
    })));
    let part = fixture.table.sample_row_keys(None, Some(&range)).unwrap();
    let read_of_one = read.swap(0, Ordering::Relaxed);
    let all = fixture.table.sample_row_keys(None, None).unwrap();
    assert_eq!((read_of_one, read.swap(0, Ordering::Relaxed)), (1, 3));
    assert_eq!(part.iter().map(|s| text(&s.row_key)).collect::<Vec<_>>(), ["f"]);
    // Without the bytes of the tablet before it.
    assert!(part[0].offset_bytes > 0);
    assert_eq!(part[0].offset_bytes, all[1].offset_bytes - all[0].offset_bytes);
    fixture.table.sample_row_keys(Some(&view()), None).unwrap();
    assert_eq!(read.swap(0, Ordering::Relaxed), 1, "the rows of the view are in the last tablet");
}

#[tokio::test]
async fn a_family_that_is_created_again_is_empty() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("r", vec![set("f", "q", 0, "old"), set("g", "q", 0, "kept")]).await;
    let mut schema = TableSchema::clone(&fixture.table.schema());
    schema.families.remove("f");
    fixture.table.set_schema(Arc::new(schema.clone()));
    assert_eq!(fixture.dump().await, ["r g:q@0=kept"]);
    let id = schema.allocate_family_id();
    schema.families.insert("f".into(), FamilySchema::new(id));
    fixture.table.set_schema(Arc::new(schema));
    fixture.mutate("s", vec![set("f", "q", 0, "new")]).await;
    assert_eq!(fixture.dump().await, ["r g:q@0=kept", "s f:q@0=new"]);
}

#[tokio::test]
async fn everything_acknowledged_is_there_after_reopening() {
    let mut fixture = Fixture::new(&["m"]);
    fixture.mutate("a", vec![set("f", "q", 0, "v"), add("sum", 4)]).await;
    fixture.mutate("z", vec![set("f", "q", 0, "v")]).await;
    fixture.flush().await;
    fixture.mutate("z", vec![set("f", "q", 0, "w")]).await;
    fixture.table.drop_row_range(Some(b"a")).await.unwrap();
    fixture.reopen();
    assert_eq!(fixture.dump().await, ["z f:q@0=w"]);
}

#[tokio::test]
async fn bad_reads_are_refused() {
    let fixture = Fixture::new(&[]);
    for bad in [
        v2::ReadRowsRequest { rows_limit: -1, ..Default::default() },
        v2::ReadRowsRequest { rows: row_set(&[""], &[]), ..Default::default() },
        v2::ReadRowsRequest { rows: row_set(&[], &[("b", "a")]), ..Default::default() },
    ] {
        let error = fixture.table.read_rows(bad).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn figures_of_a_read_come_last_where_they_are_asked_for() {
    let fixture = Fixture::new(&["m"]);
    for row in ["a", "n", "o"] {
        fixture.mutate(row, vec![set("f", "p", 0, "v"), set("f", "q", 0, "v")]).await;
    }
    for (rows, seen, cells) in [(None, 3, 6), (row_set(&["a", "x", "y"], &[]), 1, 2)] {
        let full = v2::read_rows_request::RequestStatsView::RequestStatsFull.into();
        let request = v2::ReadRowsRequest { rows, request_stats_view: full, ..Default::default() };
        let mut decoder = Decoder::new(false);
        let mut read = fixture.table.read_rows(request).unwrap();
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
        }
        let stats = decoder.stats.unwrap();
        assert_eq!((stats.rows_returned_count, stats.cells_returned_count), (seen, cells));
        assert_eq!((stats.rows_seen_count, stats.cells_seen_count), (seen, cells));
    }
}

#[tokio::test]
async fn a_row_too_large_to_be_read_fails_no_read_that_wants_nothing_of_what_makes_it_large() {
    use v2::row_filter::Filter;
    let fixture = Fixture::new(&["m"]);
    for row in ["a-small", "x-large", "z-small"] {
        fixture.mutate(row, vec![set("g", "q", 0, "v")]).await;
    }
    let value = Bytes::from(vec![b'v'; 90 << 20]);
    for qualifier in ["p", "q", "r"] {
        fixture.mutate("x-large", vec![set("f", qualifier, 0, value.clone())]).await;
    }
    let mut whole = fixture.table.read_rows(v2::ReadRowsRequest::default()).unwrap();
    let failure = loop {
        match whole.next().await.expect("a row is too large") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(failure.kind(), Code::FailedPrecondition);

    let by_key = filtered(Filter::RowKeyRegexFilter(".*-small".into()));
    let back = v2::ReadRowsRequest { reversed: true, ..by_key.clone() };
    assert_eq!(keys(&fixture.read(by_key).await), ["a-small", "z-small"]);
    assert_eq!(keys(&fixture.read(back).await), ["z-small", "a-small"]);

    // Figures count all cells of a row, where it can be read with all of them.
    let all = ["a-small", "x-large", "z-small"];
    for (rows, found) in
        [(None, &all[..]), (row_set(&all, &[]), &all), (row_set(&all[1..2], &[]), &all[1..2])]
    {
        let counted = v2::ReadRowsRequest {
            rows,
            filter: family_filter("g"),
            request_stats_view: v2::read_rows_request::RequestStatsView::RequestStatsFull.into(),
            ..Default::default()
        };
        assert_eq!(keys(&fixture.read(counted).await), found);
    }
}

#[tokio::test]
async fn figures_count_what_the_filter_refused() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("a", vec![set("f", "q", 0, "v")]).await;
    fixture.mutate("b", vec![set("f", "p", 0, "v"), set("f", "q", 0, "v")]).await;
    fixture.mutate("c", vec![set("f", "p", 0, "v")]).await;
    let filter = v2::row_filter::Filter::ColumnQualifierRegexFilter("q".into());
    let request = v2::ReadRowsRequest {
        filter: Some(v2::RowFilter { filter: Some(filter) }),
        request_stats_view: v2::read_rows_request::RequestStatsView::RequestStatsFull.into(),
        ..Default::default()
    };
    let mut decoder = Decoder::new(false);
    let mut read = fixture.table.read_rows(request).unwrap();
    while let Some(message) = read.next().await {
        decoder.push(message.unwrap().into_frame()).unwrap();
    }
    let expected = v2::ReadIterationStats {
        rows_seen_count: 3,
        rows_returned_count: 2,
        cells_seen_count: 4,
        cells_returned_count: 2,
    };
    assert_eq!(decoder.stats, Some(expected));
}

#[tokio::test]
async fn filters_that_are_kept_as_they_arrived_decide_the_same() {
    let fixture = Fixture::new(&["m"]);
    for row in ["ba", "bz", "c", "n"] {
        fixture.mutate(row, vec![set("f", "q", 0, "v")]).await;
    }
    let regex = |pattern: &'static str| v2::RowFilter {
        filter: Some(v2::row_filter::Filter::RowKeyRegexFilter(pattern.into())),
    };
    let encoded = |pattern| Some(Bytes::from(regex(pattern).encode_to_vec()));
    for rows in [None, row_set(&["ba", "bz", "c"], &[]), row_set(&["bz"], &[("a", "bb")])] {
        let request = v2::ReadRowsRequest { rows, ..Default::default() };
        let plain = v2::ReadRowsRequest { filter: Some(regex("b.*")), ..request.clone() };
        assert_eq!(keys(&fixture.read(plain).await), ["ba", "bz"]);
        let mut decoder = Decoder::new(false);
        let request = WithFilter { request, filter: encoded("b.*") };
        let mut read =
            fixture.table.read_rows_encoded(&request, chunk::LargeRows::Split, None).unwrap();
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
        }
        assert_eq!(keys(&decoder.finish().unwrap()), ["ba", "bz"]);
    }
    for (pattern, matched) in [("b.*", true), ("c", false)] {
        let request = check("ba", None, vec![set("f", "q", 0, "w")], vec![]);
        let request = WithFilter { request: WithOrigins(request), filter: encoded(pattern) };
        let response =
            fixture.table.check_and_mutate_row_encoded(request.clone(), None).await.unwrap();
        assert_eq!(response.predicate_matched, matched);
    }
}

#[tokio::test]
async fn a_read_that_is_suspended_between_messages_goes_on_where_it_was() {
    let fixture = Fixture::new(&["row-0500", "row-1000"]);
    let value = "v".repeat(2_000);
    for n in 0..1_500 {
        fixture.mutate(&format!("row-{n:04}"), vec![set("f", "q", 1_000, value.clone())]).await;
    }
    fixture.flush().await;
    let points: Vec<String> = (0..1_500).step_by(7).map(|n| format!("row-{n:04}")).collect();
    let points: Vec<&str> = points.iter().map(String::as_str).collect();
    for (rows, reversed) in
        [(None, false), (None, true), (row_set(&points, &[]), false), (row_set(&points, &[]), true)]
    {
        let request = v2::ReadRowsRequest { rows, reversed, ..Default::default() };
        let whole = texts(&fixture.read(request.clone()).await);
        let mut read = fixture.table.read_rows(request).unwrap();
        let mut decoder = Decoder::new(reversed);
        let mut messages = 0;
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
            read.suspend();
            messages += 1;
        }
        assert!(messages > 3);
        assert!(read.has_ended());
        assert_eq!(texts(&decoder.finish().unwrap()), whole);
    }
}

#[tokio::test]
async fn a_read_that_is_suspended_keeps_no_memtable() {
    let small: Vec<_> = (0..200).map(|n| (format!("row-{n:03}"), 1, 5 << 10)).collect();
    let keys: Vec<&str> = small.iter().map(|(row, ..)| row.as_str()).collect();
    let scan = v2::ReadRowsRequest::default();
    let reversed = v2::ReadRowsRequest { reversed: true, ..scan.clone() };
    let points = v2::ReadRowsRequest { rows: row_set(&keys, &[]), ..scan.clone() };
    // Messages of it are ready behind the first one.
    let large = vec![("large".to_owned(), 60, 100 << 10)];
    for (request, rows) in
        [(&scan, &small), (&reversed, &small), (&points, &small), (&scan, &large)]
    {
        let fixture = Fixture::new(&[]);
        for (row, cells, bytes) in rows {
            let value = "v".repeat(*bytes);
            let cells = (0..*cells).map(|n| set("f", &format!("q{n:02}"), 0, value.clone()));
            fixture.mutate(row, cells.collect()).await;
        }
        let whole = texts(&fixture.read(request.clone()).await);
        let mut read = fixture.table.read_rows(request.clone()).unwrap();
        let mut decoder = Decoder::new(request.reversed);
        decoder.push(read.next().await.unwrap().unwrap().into_frame()).unwrap();
        assert!(read.ready_bytes() > 0, "a value is left over");
        read.suspend();
        fixture.flush().await;
        // What flushed lets go of its view of the memtable too.
        let pressure = || fixture.engine.pressure().level;
        until("no memtable is left in memory", || pressure() < 0.001);
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
        }
        assert_eq!(texts(&decoder.finish().unwrap()), whole);
    }
}

/// Bytes of no pattern that could be compressed.
fn incompressible(seed: &str, len: usize) -> Vec<u8> {
    let mut state = seed.bytes().fold(1_u64, |state, byte| state * 31 + u64::from(byte));
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Rows with a value of so many bytes on a device, and a request for them by their keys.
async fn rows_on_a_device(
    rows: usize,
    value_bytes: usize,
) -> (Device, Fixture, v2::ReadRowsRequest) {
    let device = Device::default();
    let fixture = Fixture::over(Arc::new(device.clone()), Arc::new(device.clone()), &[]);
    let keys: Vec<String> = (0..rows).map(|n| format!("row-{n:02}")).collect();
    for key in &keys {
        fixture.mutate(key, vec![set("f", "q", 0, incompressible(key, value_bytes))]).await;
    }
    fixture.flush().await;
    device.reset();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let request = v2::ReadRowsRequest { rows: row_set(&keys, &[]), ..Default::default() };
    (device, fixture, request)
}

/// Reads sixteen rows of a value of so many bytes, by their keys; what the device saw of it.
async fn read_sixteen(value_bytes: usize) -> Device {
    let (device, fixture, request) = rows_on_a_device(16, value_bytes).await;
    assert_eq!(fixture.read(request).await.len(), 16);
    device
}

#[tokio::test]
async fn of_single_rows_few_are_read_at_once_until_their_size_is_known() {
    let value_bytes = 3 << 20;
    let device = read_sixteen(value_bytes).await;
    let most = device.most_bytes();
    assert!((3 * value_bytes..6 * value_bytes).contains(&most), "{most} bytes at once");
}

#[tokio::test]
async fn sixteen_small_rows_wait_for_the_device_a_few_times() {
    let device = read_sixteen(10_000).await;
    let rounds = device.rounds();
    // Blocks, the first four values, the other twelve.
    assert!(rounds <= 4, "{rounds} rounds");
    assert!(device.most_bytes() >= 12 * 10_000, "{} bytes at once", device.most_bytes());
}

#[tokio::test]
async fn rows_that_lie_read_ahead_are_counted_and_no_more_than_there_is_room_for() {
    const VALUE: usize = 600_000;
    let (_device, fixture, request) = rows_on_a_device(24, VALUE).await;
    let whole = texts(&fixture.read(request.clone()).await);
    for (limit, kept) in [(usize::MAX, true), (4 * VALUE, true), (4 * VALUE, false), (1, true)] {
        let mut read = fixture.table.read_rows(request.clone()).unwrap();
        assert_eq!(read.ahead_bytes(), 0);
        read.read_ahead_at_most(limit);
        let mut decoder = Decoder::new(false);
        let mut ahead = Vec::new();
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
            ahead.push(read.ahead_bytes());
            if !kept {
                read.drop_ahead();
                assert_eq!(read.ahead_bytes(), 0);
            }
        }
        assert_eq!(texts(&decoder.finish().unwrap()), whole);
        // The first rows were begun when nobody knew how large they are.
        assert!((VALUE..4 * (VALUE + 100)).contains(&ahead[0]), "{ahead:?}");
        let most = *ahead[3..].iter().max().unwrap();
        let expected = match (limit, kept) {
            (usize::MAX, _) => 12 * VALUE..16 * (VALUE + 100),
            // Half as far after the first time, which is one row ahead at most, and then none.
            (_, false) | (1, _) => 0..1,
            _ => 2 * VALUE..4 * VALUE,
        };
        assert!(expected.contains(&most), "{limit}: {ahead:?}");
        assert_eq!(ahead.last(), Some(&0));
    }
}

#[tokio::test]
async fn behind_a_large_row_small_ones_are_read_ahead_again() {
    let (device, fixture, mut request) = rows_on_a_device(96, 10_000).await;
    fixture.mutate("row-00", vec![set("f", "q", 0, incompressible("large", 2_000_000))]).await;
    fixture.flush().await;
    device.reset();
    let keys: Vec<String> = (0..96).map(|n| format!("row-{n:02}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    request.rows = row_set(&keys, &[]);
    let mut read = fixture.table.read_rows(request).unwrap();
    read.read_ahead_at_most(400_000);
    let mut rows = 0;
    while let Some(message) = read.next().await {
        rows += decoded(&message.unwrap()).chunks.iter().filter(|c| !c.row_key.is_empty()).count();
    }
    assert_eq!(rows, 96);
    // Some forty one by one, and the others sixteen at a time.
    assert!(device.rounds() < 80, "{} rounds", device.rounds());
}

/// How often a future gives its thread away before it is done.
async fn pauses<T>(future: impl Future<Output = T>) -> (usize, T) {
    let mut future = std::pin::pin!(future);
    let mut pauses = 0;
    let done = std::future::poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        pauses += usize::from(polled.is_pending());
        polled
    });
    let done = done.await;
    (pauses, done)
}

#[tokio::test]
async fn a_long_read_gives_its_thread_to_others_and_a_short_one_does_not() {
    let fixture = Fixture::new(&[]);
    for n in 0..2_000 {
        fixture.mutate(&format!("row-{n:04}"), vec![set("f", "q", 1_000, "v".repeat(100))]).await;
    }
    let none = v2::row_filter::Filter::ValueRegexFilter("other".into());
    let none = Some(v2::RowFilter { filter: Some(none) });
    let request = v2::ReadRowsRequest { filter: none, ..Default::default() };
    let mut read = fixture.table.read_rows(request).unwrap();
    // Nothing is sent for 2,000 rows: without turns they would be looked at in one go.
    let (long, message) = pauses(read.next()).await;
    assert!(long >= 4, "{long} pauses");
    assert!(message.is_none_or(|m| decoded(&m.unwrap()).chunks.is_empty()));
    let request = v2::ReadRowsRequest { rows: row_set(&["row-0007"], &[]), ..Default::default() };
    let mut read = fixture.table.read_rows(request).unwrap();
    let (short, message) = pauses(read.next()).await;
    assert_eq!((short, decoded(&message.unwrap().unwrap()).chunks.len()), (0, 1));
}

#[tokio::test]
async fn a_read_of_many_empty_ranges_gives_its_thread_to_others_and_says_how_far_it_is() {
    let fixture = Fixture::new(&["k10000b"]);
    fixture.mutate("k00000x", vec![set("f", "q", 1_000, "v")]).await;
    let ranges: Vec<_> = (0..25_000).map(|n| (format!("k{n:05}a"), format!("k{n:05}m"))).collect();
    let ranges: Vec<_> = ranges.iter().map(|(start, end)| (&**start, &**end)).collect();
    // In the range that follows, a row that is sent.
    let rows = row_set(&[], &[&ranges[..], &[("k00000x", "k00000z")]].concat());
    for (reversed, scanned) in [(false, ["k09997a", "k19996a"]), (true, ["k15000a", "k05001a"])] {
        let request = v2::ReadRowsRequest { rows: rows.clone(), reversed, ..Default::default() };
        let mut read = fixture.table.read_rows(request).unwrap();
        let mut decoder = Decoder::new(reversed);
        let (mut said, mut all_pauses) = (Vec::new(), 0);
        while let (pauses, Some(message)) = pauses(read.next()).await {
            all_pauses += pauses;
            let message = message.unwrap();
            decoder.push(message.clone().into_frame()).unwrap();
            said.push(decoded(&message).last_scanned_row_key);
        }
        said.retain(|key| !key.is_empty());
        assert_eq!(said, scanned);
        // One for some dozen of them: each looks for its start in all places that the tablet has.
        assert!(all_pauses >= 1_000, "{all_pauses} pauses");
        assert_eq!(keys(&decoder.finish().unwrap()), ["k00000x"]);
    }
}

#[tokio::test]
async fn a_read_whose_filter_works_long_on_each_row_gives_its_thread_to_others() {
    let fixture = Fixture::new(&[]);
    for n in 0..20 {
        fixture.mutate(&format!("row-{n}"), vec![set("f", "q", 1_000, "v")]).await;
    }
    let filter = |filter| v2::RowFilter { filter: Some(filter) };
    let pass = filter(v2::row_filter::Filter::PassAllFilter(true));
    let twice = v2::row_filter::Interleave { filters: vec![pass.clone(), pass] };
    let twice = filter(v2::row_filter::Filter::Interleave(twice));
    let none = filter(v2::row_filter::Filter::ValueRegexFilter("other".into()));
    let chain = [vec![twice; 10], vec![none]].concat();
    let chain = filter(v2::row_filter::Filter::Chain(v2::row_filter::Chain { filters: chain }));
    let request = v2::ReadRowsRequest { filter: Some(chain), ..Default::default() };
    let mut read = fixture.table.read_rows(request).unwrap();
    let (pauses, message) = pauses(read.next()).await;
    assert!(message.is_none() && pauses >= 20, "{pauses} pauses");
}

fn decoded(message: &ReadRowsMessage) -> v2::ReadRowsResponse {
    v2::ReadRowsResponse::decode(message.clone().into_frame().slice(HEADER_BYTES..)).unwrap()
}

/// Rows that start with `r1`; all of `f`, and of `g` the column `q` and those that start with `p`.
fn view() -> AuthorizedView {
    let columns = |qualifiers: &[&str], prefixes: &[&str]| FamilySubsets {
        qualifiers: qualifiers.iter().map(|q| Bytes::from((*q).to_owned())).collect(),
        qualifier_prefixes: prefixes.iter().map(|p| Bytes::from((*p).to_owned())).collect(),
    };
    let families = [("f", columns(&[], &[""])), ("g", columns(&["q"], &["p"]))];
    let subset = SubsetView {
        row_prefixes: vec![Bytes::from("r1")],
        family_subsets: families.map(|(name, columns)| (name.to_owned(), columns)).into(),
    };
    AuthorizedView::compile(&subset).unwrap()
}

impl Fixture {
    /// Rows in view and out of it, with columns in view and out of it.
    async fn for_view() -> Self {
        let fixture = Self::new(&["r11", "r2"]);
        for row in ["q", "r10", "r11", "r12", "r2"] {
            let cells = vec![
                set("f", "a", 0, "1"),
                set("g", "a", 0, "2"),
                set("g", "p1", 0, "3"),
                set("g", "q", 0, "4"),
                add("sum", 5),
            ];
            fixture.mutate(row, cells).await;
        }
        fixture
    }

    async fn read_through(
        &self,
        view: &AuthorizedView,
        request: v2::ReadRowsRequest,
    ) -> Result<Vec<String>, tepui_bigtable::Error> {
        let request =
            WithFilter::<v2::ReadRowsRequest>::decode(request.encode_to_vec().as_slice()).unwrap();
        let mut decoder = Decoder::new(request.request.reversed);
        let whole = chunk::LargeRows::Split;
        let mut rows = self.table.read_rows_encoded(&request, whole, Some(view))?;
        while let Some(message) = rows.next().await {
            decoder.push(message?.into_frame()).unwrap();
        }
        Ok(texts(&decoder.finish().unwrap()))
    }
}

fn filtered(filter: v2::row_filter::Filter) -> v2::ReadRowsRequest {
    let filter = Some(v2::RowFilter { filter: Some(filter) });
    v2::ReadRowsRequest { filter, ..Default::default() }
}

#[tokio::test]
async fn a_read_through_a_view_finds_what_the_view_has() {
    use v2::row_filter::Filter;
    let fixture = Fixture::for_view().await;
    let of_row =
        |row: &str| [("f:a", 1), ("g:p1", 3), ("g:q", 4)].map(|(c, v)| format!("{row} {c}@0={v}"));
    let everything = [of_row("r10"), of_row("r11"), of_row("r12")].concat();
    for flushed in [false, true] {
        if flushed {
            fixture.flush().await;
        }
        let view = view();
        let read = |request| fixture.read_through(&view, request);
        assert_eq!(read(v2::ReadRowsRequest::default()).await.unwrap(), everything);
        let rows = row_set(&["q", "r11", "r2"], &[("r12", "z")]);
        let some = read(v2::ReadRowsRequest { rows, ..Default::default() }).await.unwrap();
        assert_eq!(some, [of_row("r11"), of_row("r12")].concat());
        let none = v2::ReadRowsRequest { rows: row_set(&["q"], &[]), ..Default::default() };
        assert_eq!(read(none).await.unwrap(), [""; 0]);

        // The second cell of a row is the second that the view has.
        let second = v2::row_filter::Chain {
            filters: [Filter::CellsPerRowOffsetFilter(1), Filter::CellsPerRowLimitFilter(1)]
                .map(|filter| v2::RowFilter { filter: Some(filter) })
                .into(),
        };
        let found = read(filtered(Filter::Chain(second))).await.unwrap();
        assert_eq!(found, ["r10 g:p1@0=3", "r11 g:p1@0=3", "r12 g:p1@0=3"]);
        let found = read(filtered(Filter::ColumnQualifierRegexFilter("a".into()))).await.unwrap();
        assert_eq!(found, ["r10 f:a@0=1", "r11 f:a@0=1", "r12 f:a@0=1"]);
        let found = read(filtered(Filter::FamilyNameRegexFilter("g|sum".into()))).await.unwrap();
        assert_eq!(found.len(), 6);
        let everywhere = read(filtered(Filter::FamilyNameRegexFilter(".*".into()))).await.unwrap();
        assert_eq!(everywhere, everything);
    }
}

/// A view of so many row prefixes, and of so many qualifiers of `f`, of two bytes each.
fn large_view(prefixes: u16, qualifiers: u16) -> AuthorizedView {
    // Of each two neighbours, so that no two ranges touch.
    let keys = |count: u16| (0..count).map(|i| Bytes::from((2 * i + 1).to_be_bytes().to_vec()));
    let columns = match qualifiers {
        0 => FamilySubsets { qualifiers: vec![], qualifier_prefixes: vec![Bytes::new()] },
        count => FamilySubsets { qualifiers: keys(count).collect(), qualifier_prefixes: vec![] },
    };
    let row_prefixes = if prefixes == 0 { vec![Bytes::new()] } else { keys(prefixes).collect() };
    let family_subsets = [("f".to_owned(), columns)].into();
    AuthorizedView::compile(&SubsetView { row_prefixes, family_subsets }).unwrap()
}

#[tokio::test]
async fn what_a_view_makes_of_a_read_is_told_with_its_filter() {
    use v2::row_filter::Filter;
    let fixture = Fixture::for_view().await;
    let bytes = |view: Option<&AuthorizedView>, request: v2::ReadRowsRequest| {
        let request = request.encode_to_vec();
        let request = WithFilter::<v2::ReadRowsRequest>::decode(request.as_slice()).unwrap();
        let whole = chunk::LargeRows::Split;
        fixture.table.read_rows_encoded(&request, whole, view).unwrap().filter_bytes()
    };
    let all = v2::ReadRowsRequest::default;
    assert!(bytes(None, all()) < 1_000);
    assert!(bytes(Some(&view()), all()) < 2_000);

    // A range of qualifiers is two keys and what they are to it.
    let of_range = size_of::<tepui_engine::read::QualifierRange>();
    let columns = large_view(0, 16_000);
    let read = bytes(Some(&columns), all());
    assert!(read < 2_000, "the view's columns are shared by all that read through it: {read}");
    // With half of them it asks the engine for other columns than the view has.
    let half = Filter::ColumnRangeFilter(v2::ColumnRange {
        family_name: "f".to_owned(),
        start_qualifier: None,
        end_qualifier: Some(v2::column_range::EndQualifier::EndQualifierOpen(
            16_000_u16.to_be_bytes().to_vec().into(),
        )),
    });
    let halved = bytes(Some(&columns), filtered(half));
    assert!(halved >= read + 8_000 * of_range, "{halved} and {read}");
    let kept = bytes(Some(&columns), filtered(Filter::ValueRegexFilter("x".into())));
    assert!(kept < read + 8_000 * of_range, "the columns are those of the view: {kept}");

    // So is a range of rows, and a piece of a tablet is one with its tablet.
    let of_range = size_of::<RowRange>();
    let rows = large_view(16_000, 0);
    let read = bytes(Some(&rows), all());
    assert!((16_000 * of_range..5 * 16_000 * of_range).contains(&read), "{read}");
    let one = v2::ReadRowsRequest { rows: row_set(&["r11"], &[]), ..Default::default() };
    assert!(bytes(Some(&rows), one) < 2_000, "a read of one row has one piece");
}

#[tokio::test]
async fn a_filter_that_asks_for_families_outside_of_the_view_is_refused() {
    use v2::row_filter::Filter;
    let fixture = Fixture::for_view().await;
    let range = |family: &str| {
        Filter::ColumnRangeFilter(v2::ColumnRange {
            family_name: family.to_owned(),
            ..Default::default()
        })
    };
    let pair = v2::row_filter::Interleave {
        filters: [range("f"), range("sum")].map(|f| v2::RowFilter { filter: Some(f) }).into(),
    };
    for filter in [
        Filter::FamilyNameRegexFilter("sum".into()),
        Filter::FamilyNameRegexFilter("missing".into()),
        range("sum"),
        Filter::Interleave(pair),
    ] {
        let error = fixture.read_through(&view(), filtered(filter)).await.unwrap_err();
        assert_eq!(error.kind(), Code::PermissionDenied);
        assert!(error.message().contains("outside the Authorized View"), "{error}");
    }
}

#[tokio::test]
async fn a_view_without_rows_or_families_shows_nothing() {
    let fixture = Fixture::for_view().await;
    let empty = AuthorizedView::compile(&SubsetView::default()).unwrap();
    assert!(fixture.read_through(&empty, v2::ReadRowsRequest::default()).await.unwrap().is_empty());
    let rows = SubsetView { row_prefixes: vec![Bytes::new()], ..SubsetView::default() };
    let rows = AuthorizedView::compile(&rows).unwrap();
    assert!(fixture.read_through(&rows, v2::ReadRowsRequest::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_write_outside_of_the_view_changes_nothing() {
    let fixture = Fixture::for_view().await;
    let before = fixture.dump().await;
    let (table, view) = (&fixture.table, view());
    let cases = [
        ("r2", vec![set("f", "a", 0, "x")]),
        ("r11", vec![set("f", "a", 0, "x"), set("g", "a", 0, "x")]),
        ("r11", vec![set("missing", "a", 0, "x")]),
        ("r11", vec![add("sum", 1)]),
        ("r11", vec![delete_row()]),
        ("r11", vec![delete_family("g")]),
    ];
    for (row, changes) in cases {
        let mutations = mutations(changes);
        let row_key = Bytes::from(row);
        let request = v2::MutateRowRequest {
            row_key: row_key.clone(),
            mutations: mutations.clone(),
            ..Default::default()
        };
        let error = table.mutate_row(&request, Some(&view)).await.unwrap_err();
        assert_eq!(error.kind(), Code::PermissionDenied, "{request:?}");
        for (true_mutations, false_mutations) in
            [(mutations.clone(), vec![]), (vec![], mutations.clone())]
        {
            let request = v2::CheckAndMutateRowRequest {
                row_key: row_key.clone(),
                true_mutations,
                false_mutations,
                ..Default::default()
            };
            let request = WithFilter { request: WithOrigins(request), filter: None };
            let done = table.check_and_mutate_row_encoded(request.clone(), Some(&view)).await;
            assert_eq!(done.unwrap_err().kind(), Code::PermissionDenied, "{request:?}");
        }
        let good = mutations_of_entry("r11", vec![set("f", "new", 0, "y")]);
        let bad = v2::mutate_rows_request::Entry { row_key, mutations, idempotency: None };
        let request = v2::MutateRowsRequest { entries: vec![good, bad], ..Default::default() };
        let failed = table.mutate_rows(request, Priority::High, Some(&view)).await.unwrap();
        let failed: Vec<_> = failed.iter().map(|(at, error)| (*at, error.kind())).collect();
        assert_eq!(failed, [(1, Code::PermissionDenied)]);
    }
    for (row, family, qualifier) in [("r2", "f", "a"), ("r11", "g", "a"), ("r11", "missing", "a")] {
        let rule = v2::ReadModifyWriteRule {
            family_name: family.to_owned(),
            column_qualifier: qualifier.into(),
            rule: Some(v2::read_modify_write_rule::Rule::AppendValue("x".into())),
        };
        let request = v2::ReadModifyWriteRowRequest {
            row_key: row.into(),
            rules: vec![rule],
            ..Default::default()
        };
        let error = table.read_modify_write_row(&request, Some(&view)).await.unwrap_err();
        assert_eq!(error.kind(), Code::PermissionDenied);
    }
    let after: Vec<_> = fixture.dump().await.into_iter().filter(|c| !c.contains("f:new")).collect();
    assert_eq!(after, before);
}

fn mutations_of_entry(row: &str, changes: Vec<Change>) -> v2::mutate_rows_request::Entry {
    let mutations = mutations(changes);
    v2::mutate_rows_request::Entry {
        row_key: Bytes::from(row.to_owned()),
        mutations,
        idempotency: None,
    }
}

#[tokio::test]
async fn a_write_within_the_view_is_carried_out() {
    let fixture = Fixture::new(&[]);
    let (table, view) = (&fixture.table, view());
    let request = v2::MutateRowRequest {
        row_key: "r1".into(),
        mutations: mutations(vec![
            set("f", "x", 0, "1"),
            set("g", "p", 0, "2"),
            set("g", "q", 0, "3"),
            delete_family("f"),
            delete_cells("g", "p", 0, 0),
        ]),
        ..Default::default()
    };
    table.mutate_row(&request, Some(&view)).await.unwrap();
    assert_eq!(fixture.dump().await, ["r1 g:q@0=3"]);
}

#[tokio::test]
async fn a_predicate_sees_what_the_view_has() {
    let fixture = Fixture::new(&[]);
    fixture.mutate("r1", vec![set("g", "hidden", 0, "1")]).await;
    let (table, view) = (&fixture.table, view());
    let request = |qualifier: Option<&str>| {
        let filter = qualifier.map(|qualifier| {
            let pattern = Bytes::from(qualifier.to_owned());
            let filter = v2::row_filter::Filter::ColumnQualifierRegexFilter(pattern);
            Bytes::from(v2::RowFilter { filter: Some(filter) }.encode_to_vec())
        });
        let request = v2::CheckAndMutateRowRequest {
            row_key: "r1".into(),
            false_mutations: mutations(vec![set("f", "was_false", 0, "x")]),
            ..Default::default()
        };
        WithFilter { request: WithOrigins(request), filter }
    };
    for qualifier in [Some("hidden"), None] {
        let request = request(qualifier);
        let done = table.check_and_mutate_row_encoded(request.clone(), Some(&view)).await.unwrap();
        assert!(!done.predicate_matched, "{qualifier:?}");
        fixture.mutate("r1", vec![delete_family("f")]).await;
        let done = table.check_and_mutate_row_encoded(request.clone(), None).await.unwrap();
        assert!(done.predicate_matched, "{qualifier:?}");
    }
}

#[tokio::test]
async fn samples_through_a_view_end_with_its_rows() {
    let fixture = Fixture::for_view().await;
    let samples = fixture.table.sample_row_keys(Some(&view()), None).unwrap();
    let keys: Vec<_> = samples.iter().map(|s| text(&s.row_key)).collect();
    assert_eq!(keys, ["r11", "r2"]);
}

#[tokio::test]
async fn figures_of_a_read_through_a_view_count_what_the_view_has() {
    use v2::read_rows_request::RequestStatsView;
    use v2::row_filter::Filter;
    let fixture = Fixture::for_view().await;
    let view = view();
    // Of 5 rows of 5 cells the view has 3 of 3; of a read that no cell passes nothing is looked at.
    for (filter, seen, returned) in [
        (Filter::PassAllFilter(true), (3, 9), (3, 9)),
        (Filter::ValueRegexFilter("[14]".into()), (3, 9), (3, 6)),
        (Filter::ValueRegexFilter("[25]".into()), (3, 9), (0, 0)),
        (Filter::BlockAllFilter(true), (0, 0), (0, 0)),
    ] {
        let request = v2::ReadRowsRequest {
            request_stats_view: RequestStatsView::RequestStatsFull.into(),
            ..filtered(filter.clone())
        };
        let request =
            WithFilter::<v2::ReadRowsRequest>::decode(request.encode_to_vec().as_slice()).unwrap();
        let whole = chunk::LargeRows::Split;
        let mut read = fixture.table.read_rows_encoded(&request, whole, Some(&view)).unwrap();
        let mut decoder = Decoder::new(false);
        while let Some(message) = read.next().await {
            decoder.push(message.unwrap().into_frame()).unwrap();
        }
        let expected = v2::ReadIterationStats {
            rows_seen_count: seen.0,
            rows_returned_count: returned.0,
            cells_seen_count: seen.1,
            cells_returned_count: returned.1,
        };
        assert_eq!(decoder.stats, Some(expected), "{filter:?}");
    }
}

//! Imports and exports against a server that refuses, breaks off and recovers: what is asked again, what is set
//! aside, and that nothing is lost or done out of order.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "a test that owns its files")]

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_rpc::google::rpc;
use indicatif::ProgressBar;
use prost::Message as _;
use tepui_transfer::client::{Stop, Target};
use tepui_transfer::error::{ErrorKind, Result};
use tepui_transfer::export::{self, Export, Selection};
use tepui_transfer::files::Lock;
use tepui_transfer::format::{Format, ReadOptions, csv};
use tepui_transfer::import::{Import, Summary, import};
use tepui_transfer::journal::Earlier;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

#[path = "refusals/damage.rs"]
mod damage;

/// What the server does with the next request that writes; when none is left, it writes.
enum Write {
    /// Refuses it whole.
    Fail(Status),
    /// Answers so for the rows with these keys, and writes the others.
    Rows(Vec<(&'static str, rpc::Status)>),
    /// Writes the first rows, answers for them, and breaks off.
    BreakAfter(usize),
    /// Asks the import to stop, and writes.
    Stop(Stop),
    /// Makes the table anew, which has this token then, and writes.
    MakeAnew(&'static str),
}

#[derive(Default)]
struct State {
    plan: VecDeque<Write>,
    /// The keys of each request that came.
    requests: Vec<Vec<String>>,
    /// Row, timestamp, in the order of the writes.
    written: Vec<(String, i64)>,
    /// Whether its family adds up.
    is_sum: bool,
    /// Row, what is deleted of it, and what is merged then.
    merged: Vec<(String, v2::TimestampRange, Option<v2::Value>)>,
    /// Rows after which a read breaks off, one for each of the first reads.
    breaks: VecDeque<usize>,
    /// With what; none for a server that is busy.
    break_with: Option<Status>,
    reads: u32,
    /// The reads from this one on find the first row with another column.
    other_from: Option<u32>,
    /// The table was deleted since, as far as its token is asked for.
    is_gone: bool,
    /// This read finds the table made anew, which has this token then.
    anew_at: Option<(u32, &'static str)>,
    /// The reads from this one on are refused for good.
    refused_from: Option<u32>,
    /// A row that is not read, and what is said instead of it.
    unreadable: Option<(&'static str, Status)>,
    /// Keys that divide the table, with the bytes before each.
    samples: Vec<(&'static str, i64)>,
    /// What becomes of the next requests that look at the table.
    looks: VecDeque<Status>,
    /// What becomes of the next requests for a family; those after them are done.
    families: VecDeque<Status>,
    made: Vec<String>,
    /// What tells the table from a later one of its name; none where that is not served.
    token: Option<&'static str>,
    /// Requests that write are answered once so many have come, and one more or none within a second.
    answers_from: Option<usize>,
    more: Arc<Notify>,
    /// Those that wait for that, and the most that ever did, or came then.
    waiting: usize,
    waiting_most: usize,
    answering: Arc<Notify>,
}

/// The data API of the fake.
#[derive(Clone)]
struct Data(Arc<Mutex<State>>);

/// Its admin API: one table with one family, which takes more.
#[derive(Clone)]
struct Admin(Arc<Mutex<State>>);

fn status(code: Code, message: &str) -> rpc::Status {
    rpc::Status { code: code as i32, message: message.to_owned(), details: Vec::new() }
}

fn sum_type() -> admin::Type {
    use admin::r#type::{Aggregate, Kind, aggregate};
    let aggregator = Some(aggregate::Aggregator::Sum(aggregate::Sum {}));
    let aggregate = Aggregate { aggregator, ..Default::default() };
    admin::Type { kind: Some(Kind::AggregateType(Box::new(aggregate))) }
}

/// A refusal that asks to wait.
fn busy(wait: Duration) -> rpc::Status {
    let retry_delay = Some(prost_types::Duration {
        seconds: wait.as_secs() as i64,
        nanos: wait.subsec_nanos() as i32,
    });
    let value = rpc::RetryInfo { retry_delay }.encode_to_vec();
    let type_url = "type.googleapis.com/google.rpc.RetryInfo".to_owned();
    let details = vec![prost_types::Any { type_url, value }];
    rpc::Status { details, ..status(Code::ResourceExhausted, "busy") }
}

fn of_call(status: &rpc::Status) -> Status {
    let details = status.encode_to_vec().into();
    Status::with_details(Code::from(status.code), status.message.clone(), details)
}

/// A file of two rows.
const LINES: &str = ",f\n,a\nr0,v\nr1,v\n";

/// A row as a line of CSV.
fn line(row: usize) -> String {
    format!("r{row},v\n")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

impl tonic::server::ServerStreamingService<v2::MutateRowsRequest> for Data {
    type Response = v2::MutateRowsResponse;
    type ResponseStream = Answers<Self::Response>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<v2::MutateRowsRequest>) -> Self::Future {
        let mut state = self.0.lock().unwrap();
        let entries = request.into_inner().entries;
        state.requests.push(entries.iter().map(|entry| text(&entry.row_key)).collect());
        let (mut answered, mut refused) = (entries.len(), Vec::new());
        match state.plan.pop_front() {
            Some(Write::Fail(status)) => return Box::pin(async { Err(status) }),
            Some(Write::Rows(rows)) => refused = rows,
            Some(Write::BreakAfter(count)) => answered = count,
            Some(Write::Stop(stop)) => stop.stop(),
            Some(Write::MakeAnew(token)) => state.token = Some(token),
            None => {}
        }
        let broken = answered < entries.len();
        let mut answers = Vec::new();
        for (index, entry) in entries.into_iter().enumerate().take(answered) {
            let key = text(&entry.row_key);
            let status = refused.iter().find(|(row, _)| *row == key);
            let status = status.map(|(_, status)| status.clone()).unwrap_or_default();
            if status.code == 0 {
                let mut deleted = None;
                for mutation in entry.mutations {
                    use v2::mutation::Mutation;
                    match mutation.mutation.unwrap() {
                        Mutation::SetCell(set) => {
                            assert!(!state.is_sum, "refused in an aggregate family");
                            state.written.push((key.clone(), set.timestamp_micros));
                        }
                        Mutation::DeleteFromColumn(delete) => deleted = delete.time_range,
                        Mutation::MergeToCell(merge) => {
                            let deleted = deleted.take().unwrap();
                            state.merged.push((key.clone(), deleted, merge.input));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            answers.push(v2::mutate_rows_response::Entry {
                index: index as i64,
                status: Some(status),
            });
        }
        let message = v2::MutateRowsResponse { entries: answers, ..Default::default() };
        let mut messages = vec![Ok(message)];
        if broken {
            messages.push(Err(Status::unavailable("going down")));
        }
        let answer = Response::new(stream::iter(messages).boxed());
        let Some(from) = state.answers_from else { return Box::pin(async { Ok(answer) }) };
        state.waiting += 1;
        state.waiting_most = state.waiting_most.max(state.waiting);
        let answering = state.answering.clone();
        let more = state.more.clone();
        let count = state.requests.len();
        drop(state);
        let state = self.0.clone();
        Box::pin(async move {
            match count.cmp(&from) {
                Ordering::Less => answering.notified().await,
                Ordering::Equal => drop(timeout(Duration::from_secs(1), more.notified()).await),
                Ordering::Greater => more.notify_one(),
            }
            // Each lets the next one go.
            answering.notify_one();
            state.lock().unwrap().waiting -= 1;
            Ok(answer)
        })
    }
}

impl tonic::server::ServerStreamingService<v2::ReadRowsRequest> for Data {
    type Response = v2::ReadRowsResponse;
    type ResponseStream = Answers<Self::Response>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    /// Rows `r0` to `r9`, those in the range that the request names.
    fn call(&mut self, request: Request<v2::ReadRowsRequest>) -> Self::Future {
        use v2::read_rows_response::{CellChunk, cell_chunk::RowStatus};
        let mut state = self.0.lock().unwrap();
        use v2::row_range::{EndKey, StartKey};
        state.reads += 1;
        if let Some((_, token)) = state.anew_at.filter(|(read, _)| *read == state.reads) {
            state.token = Some(token);
        }
        if state.refused_from.is_some_and(|from| state.reads >= from) {
            return Box::pin(async { Err(Status::permission_denied("not you")) });
        }
        let range = request.into_inner().rows.and_then(|rows| rows.row_ranges.into_iter().next());
        let range = range.unwrap_or_default();
        let is_asked = |key: &String| {
            let key = key.as_bytes();
            (match &range.start_key {
                Some(StartKey::StartKeyOpen(start)) => key > start.as_ref(),
                Some(StartKey::StartKeyClosed(start)) => key >= start.as_ref(),
                None => true,
            }) && match &range.end_key {
                Some(EndKey::EndKeyOpen(end)) => key < end.as_ref(),
                _ => true,
            }
        };
        let mut keys: Vec<_> = (0..10).map(|row| format!("r{row}")).filter(is_asked).collect();
        let is_unreadable = |(row, _): &(&str, Status)| keys.iter().any(|key| key == row);
        let unreadable = state.unreadable.clone().filter(is_unreadable);
        if let Some((row, _)) = &unreadable {
            keys.retain(|key| key.as_str() < *row);
        }
        let has_other = state.other_from.is_some_and(|from| state.reads >= from);
        let chunk = |key: String| CellChunk {
            family_name: Some("f".to_owned()),
            qualifier: Some(if has_other && key == "r0" {
                b"other".to_vec()
            } else {
                b"q".to_vec()
            }),
            row_key: key.into_bytes().into(),
            timestamp_micros: 1000,
            value: "v".into(),
            row_status: Some(RowStatus::CommitRow(true)),
            ..CellChunk::default()
        };
        let mut messages: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let chunks = vec![chunk(key)];
                Ok(v2::ReadRowsResponse { chunks, ..Default::default() })
            })
            .collect();
        messages.extend(unreadable.map(|(_, status)| Err(status)));
        if let Some(rows) = state.breaks.pop_front() {
            messages.truncate(rows);
            // Half a row, which must not show.
            let mut half = chunk("r99".to_owned());
            half.row_status = None;
            messages.push(Ok(v2::ReadRowsResponse { chunks: vec![half], ..Default::default() }));
            let busy = || of_call(&busy(Duration::from_millis(1)));
            messages.push(Err(state.break_with.clone().unwrap_or_else(busy)));
        }
        Box::pin(async { Ok(Response::new(stream::iter(messages).boxed())) })
    }
}

impl tonic::server::ServerStreamingService<v2::SampleRowKeysRequest> for Data {
    type Response = v2::SampleRowKeysResponse;
    type ResponseStream = Answers<Self::Response>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<v2::SampleRowKeysRequest>) -> Self::Future {
        let mut state = self.0.lock().unwrap();
        if let Some(refused) = state.looks.pop_front() {
            return Box::pin(async { Err(refused) });
        }
        let samples = state.samples.clone();
        let samples = samples.into_iter().map(|(key, offset_bytes)| {
            let row_key = key.into();
            Ok(v2::SampleRowKeysResponse { row_key, offset_bytes })
        });
        Box::pin(async { Ok(Response::new(stream::iter(samples).boxed())) })
    }
}

impl tonic::server::UnaryService<admin::GetTableRequest> for Admin {
    type Response = admin::Table;
    type Future = BoxFuture<'static, Result<Response<admin::Table>, Status>>;

    fn call(&mut self, request: Request<admin::GetTableRequest>) -> Self::Future {
        let mut state = self.0.lock().unwrap();
        if let Some(refused) = state.looks.pop_front() {
            return Box::pin(async { Err(refused) });
        }
        let value_type = state.is_sum.then(sum_type);
        let families = [("f".to_owned(), admin::ColumnFamily { value_type, ..Default::default() })];
        let name = request.into_inner().name;
        let table = admin::Table { name, column_families: families.into(), ..Default::default() };
        Box::pin(async { Ok(Response::new(table)) })
    }
}

impl tonic::server::UnaryService<admin::ModifyColumnFamiliesRequest> for Admin {
    type Response = admin::Table;
    type Future = BoxFuture<'static, Result<Response<admin::Table>, Status>>;

    fn call(&mut self, request: Request<admin::ModifyColumnFamiliesRequest>) -> Self::Future {
        let mut state = self.0.lock().unwrap();
        let refused = state.families.pop_front();
        if refused.is_none() {
            let made = request.into_inner().modifications.into_iter().map(|made| made.id);
            state.made.extend(made);
        }
        Box::pin(async { refused.map_or(Ok(Response::new(admin::Table::default())), Err) })
    }
}

impl tonic::server::UnaryService<admin::GenerateConsistencyTokenRequest> for Admin {
    type Response = admin::GenerateConsistencyTokenResponse;
    type Future = BoxFuture<'static, Result<Response<Self::Response>, Status>>;

    fn call(&mut self, _: Request<admin::GenerateConsistencyTokenRequest>) -> Self::Future {
        let token = self.0.lock().unwrap().token;
        Box::pin(async move {
            let token = token.ok_or_else(|| Status::unimplemented("no tokens"))?;
            let consistency_token = token.to_owned();
            Ok(Response::new(admin::GenerateConsistencyTokenResponse { consistency_token }))
        })
    }
}

impl tonic::server::UnaryService<admin::CheckConsistencyRequest> for Admin {
    type Response = admin::CheckConsistencyResponse;
    type Future = BoxFuture<'static, Result<Response<Self::Response>, Status>>;

    fn call(&mut self, request: Request<admin::CheckConsistencyRequest>) -> Self::Future {
        let state = self.0.lock().unwrap();
        let (token, is_gone) = (state.token, state.is_gone);
        drop(state);
        Box::pin(async move {
            if is_gone {
                return Err(Status::not_found("no such table"));
            }
            if token != Some(request.into_inner().consistency_token.as_str()) {
                return Err(Status::invalid_argument("of another table"));
            }
            Ok(Response::new(admin::CheckConsistencyResponse { consistent: true }))
        })
    }
}

macro_rules! served {
    ($service:ty, $name:literal, |$self:ident, $grpc:ident, $request:ident| $($rpc:literal($input:ty) -> $output:ty => $call:expr),+) => {
        impl tonic::server::NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, $request: http::Request<Body>) -> Self::Future {
                let $self = self.clone();
                Box::pin(async move {
                    let rpc = $request.uri().path().rsplit('/').next().unwrap().to_owned();
                    Ok(match rpc.as_str() {
                        $($rpc => {
                            let mut $grpc = tonic::server::Grpc::new(ProstCodec::<$output, $input>::default());
                            $call.await
                        })+
                        _ => Status::unimplemented(rpc).into_http(),
                    })
                })
            }
        }
    };
}

served!(Data, "google.bigtable.v2.Bigtable", |this, grpc, request|
    "MutateRows"(v2::MutateRowsRequest) -> v2::MutateRowsResponse => grpc.server_streaming(this, request),
    "ReadRows"(v2::ReadRowsRequest) -> v2::ReadRowsResponse => grpc.server_streaming(this, request),
    "SampleRowKeys"(v2::SampleRowKeysRequest) -> v2::SampleRowKeysResponse => grpc.server_streaming(this, request)
);
served!(Admin, "google.bigtable.admin.v2.BigtableTableAdmin", |this, grpc, request|
    "GetTable"(admin::GetTableRequest) -> admin::Table => grpc.unary(this, request),
    "GenerateConsistencyToken"(admin::GenerateConsistencyTokenRequest) -> admin::GenerateConsistencyTokenResponse
        => grpc.unary(this, request),
    "CheckConsistency"(admin::CheckConsistencyRequest) -> admin::CheckConsistencyResponse => grpc.unary(this, request),
    "ModifyColumnFamilies"(admin::ModifyColumnFamiliesRequest) -> admin::Table => grpc.unary(this, request)
);

/// A fake that runs until the test ends, and a directory.
struct Place {
    state: Arc<Mutex<State>>,
    endpoint: String,
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Place {
    fn new(state: State) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let state = Arc::new(Mutex::new(state));
        let data = Data(state.clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let incoming = stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(data)
                .add_service(Admin(state.clone()))
                .serve_with_incoming(incoming),
        );
        Self { state, endpoint, dir: tempfile::tempdir().unwrap(), runtime }
    }

    fn target(&self) -> Target {
        Target {
            endpoint: self.endpoint.clone(),
            project: "p".to_owned(),
            instance: "i".to_owned(),
            table: "t".to_owned(),
            app_profile: String::new(),
        }
    }

    /// Imports rows `r0` and on, two a request, one request at a time.
    fn import(&self, rows: usize, earlier: Earlier, stop: &Stop) -> Result<Summary> {
        let lines: String = (0..rows).map(line).collect();
        import(&self.options(&format!(",f\n,a\n{lines}"), earlier), &ProgressBar::hidden(), stop)
    }

    /// Exports the table to `out`.
    fn export(&self, change: impl FnOnce(&mut Export)) -> Result<export::Summary> {
        let mut options = Export {
            target: self.target(),
            selection: Selection::default(),
            format: Format::Csv,
            output: self.dir.path().join("out"),
            files: None,
            workers: 1,
            columns: vec![csv::Column { family: "f".to_owned(), qualifier: b"q".to_vec() }],
            timestamps: csv::Timestamps::Now,
            resume: false,
            overwrite: false,
            retry_for: Duration::from_secs(20),
        };
        change(&mut options);
        export::export(&options, &ProgressBar::hidden(), &Stop::default())
    }

    /// The files of the directory, by name, with what they hold.
    fn files(&self) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let named = entries.map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), read(&entry.path()))
        });
        named.collect()
    }

    /// An import of a file, two rows a request, one request at a time.
    fn options(&self, text: &str, earlier: Earlier) -> Import {
        let path = self.dir.path().join("rows.csv");
        if !path.exists() {
            std::fs::write(&path, text).unwrap();
        }
        let at = |name: &str| self.dir.path().join(name);
        // As a clock has it, which is no whole millisecond.
        let now_micros = if earlier == Earlier::Resume { 9_000_321 } else { 5_000_123 };
        Import {
            target: self.target(),
            names: vec![path.to_str().unwrap().to_owned()],
            read: ReadOptions {
                format: None,
                csv: csv::Options { now_micros, ..csv::Options::default() },
            },
            workers: 1,
            in_flight: 1,
            batch_rows: 2,
            state: at("state"),
            earlier,
            rejected: at("rejected.jsonl"),
            rejected_dry: at("t.dry-run.jsonl"),
            rejected_is_named: false,
            rejected_max: 10,
            create: false,
            dry_run: false,
            retry_for: Duration::from_secs(20),
        }
    }

    fn written(&self) -> Vec<(String, i64)> {
        self.state.lock().unwrap().written.clone()
    }
}

fn planned(plan: impl IntoIterator<Item = Write>) -> Place {
    Place::new(State { plan: plan.into_iter().collect(), ..State::default() })
}

fn written(rows: std::ops::Range<usize>) -> Vec<(String, i64)> {
    rows.map(|row| (format!("r{row}"), 5_000_000)).collect()
}

#[test]
fn a_busy_server_gets_only_the_rows_again_that_it_refused() {
    let wait = Duration::from_millis(3);
    let place = planned([
        Write::Fail(of_call(&busy(wait))),
        Write::Rows(vec![("r0", busy(wait))]),
        Write::BreakAfter(0),
        Write::Fail(Status::unavailable("away")),
    ]);
    let summary = place.import(4, Earlier::Refuse, &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.rejected), (4, 0));
    let requests = place.state.lock().unwrap().requests.clone();
    let both = ["r0", "r1"];
    assert_eq!(requests[..5], [&both[..], &both, &["r0"], &["r0"], &["r0"]]);
    let mut rows = place.written();
    rows.sort();
    assert_eq!(rows, written(0..4));
}

#[test]
fn answers_that_came_before_a_connection_broke_stand() {
    let place = planned([Write::BreakAfter(1)]);
    place.import(2, Earlier::Refuse, &Stop::default()).unwrap();
    assert_eq!(place.state.lock().unwrap().requests, [vec!["r0", "r1"], vec!["r1"]]);
    assert_eq!(place.written(), written(0..2));
}

#[test]
fn a_row_that_spoils_its_request_is_set_aside_alone() {
    let spoilt = || Write::Fail(Status::invalid_argument("a value is too large"));
    // The request; then its rows one by one, the last first.
    let place = planned([spoilt(), spoilt()]);
    let summary = place.import(2, Earlier::Refuse, &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.rejected), (1, 1));
    assert_eq!(place.written(), written(0..1));
    let rejected = std::fs::read_to_string(place.dir.path().join("rejected.jsonl")).unwrap();
    assert!(rejected.contains("a value is too large") && rejected.contains("\"r1\""), "{rejected}");
}

#[test]
fn a_row_that_is_refused_for_good_is_set_aside_and_the_others_are_written() {
    let place =
        planned([Write::Rows(vec![("r1", status(Code::FailedPrecondition, "no SetCell here"))])]);
    let summary = place.import(3, Earlier::Refuse, &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.cells, summary.rejected), (2, 2, 1));
    assert_eq!(place.written(), [written(0..1), written(2..3)].concat());
}

/// A file of one row that goes in three requests.
fn large_row() -> String {
    let cells = format!(",{}", "v".repeat(1 << 20)).repeat(5);
    format!(",f,,,,\n,a,b,c,d,e\nr0{cells}\n")
}

#[test]
fn requests_under_way_are_bounded_by_their_bytes() {
    // As many as come to 64 MiB.
    let (value_bytes, fit) = (3_100_000, 21);
    let place = planned([]);
    place.state.lock().unwrap().answers_from = Some(fit);
    let value = "v".repeat(value_bytes);
    let line = |row| format!("r{row},{value}\n");
    let lines: String = (0..30).map(line).collect();
    let options = place.options(&format!(",f\n,a\n{lines}"), Earlier::Refuse);
    let options = Import { in_flight: 100, batch_rows: 1, ..options };
    let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
    assert_eq!(summary.rows, 30);
    assert_eq!(place.state.lock().unwrap().waiting_most, fit);
}

fn refused() -> Write {
    Write::Rows(vec![("r0", status(Code::FailedPrecondition, "no SetCell here"))])
}

#[test]
fn a_record_that_goes_in_several_requests_is_rejected_once() {
    for (plan, cells) in [(vec![refused(), refused(), refused()], 0), (vec![refused()], 3)] {
        let parts = plan.len();
        let place = planned(plan);
        let options = Import { rejected_max: 1, ..place.options(&large_row(), Earlier::Refuse) };
        let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
        assert_eq!(place.state.lock().unwrap().requests.len(), 3);
        assert_eq!((summary.rows, summary.cells, summary.rejected), (0, cells, 1));
        assert_eq!(place.files()["rejected.jsonl"].lines().count(), parts);
    }
}

#[test]
fn an_import_that_is_interrupted_within_a_record_sets_nothing_of_it_aside_twice() {
    let stop = Stop::default();
    let place = planned([refused(), Write::Stop(stop.clone()), refused()]);
    let run =
        |earlier, stop| import(&place.options(&large_row(), earlier), &ProgressBar::hidden(), stop);
    assert_eq!(run(Earlier::Refuse, &stop).unwrap_err().kind(), ErrorKind::Interrupted);
    let summary = run(Earlier::Resume, &Stop::default()).unwrap();
    assert_eq!(place.state.lock().unwrap().requests.len(), 5);
    assert_eq!((summary.rows, summary.cells, summary.rejected), (0, 3, 1));
    assert_eq!(place.files()["rejected.jsonl"].lines().count(), 1);
}

#[test]
fn a_server_that_refuses_everybody_ends_the_import_at_once() {
    let place = planned([Write::Fail(Status::permission_denied("not you"))]);
    let error = place.import(4, Earlier::Refuse, &Stop::default()).unwrap_err();
    assert!(error.to_string().contains("not you"), "{error}");
    assert_eq!(place.state.lock().unwrap().requests.len(), 1);
}

#[test]
fn an_interrupted_import_goes_on_behind_what_was_acknowledged_with_its_first_time() {
    let stop = Stop::default();
    let place = planned([Write::Rows(Vec::new()), Write::Stop(stop.clone())]);
    let error = place.import(8, Earlier::Refuse, &stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(place.written(), written(0..4), "what is under way is waited for");
    let summary = place.import(8, Earlier::Resume, &Stop::default()).unwrap();
    assert_eq!(summary.rows, 8);
    assert_eq!(place.written(), written(0..8), "no row is written twice, all at the first time");
}

/// An import of eight rows that was interrupted behind the first four.
fn interrupted() -> Place {
    let stop = Stop::default();
    let place = planned([Write::Rows(Vec::new()), Write::Stop(stop.clone())]);
    place.import(8, Earlier::Refuse, &stop).unwrap_err();
    assert_eq!(place.written(), written(0..4));
    place
}

#[test]
fn an_import_does_not_go_on_into_a_table_that_is_gone() {
    let place = interrupted();
    let gone = || Status::not_found("no table");
    place.state.lock().unwrap().looks.push_back(gone());
    let resumed = Import { create: true, ..place.options("", Earlier::Resume) };
    let run = |options: &Import| import(options, &ProgressBar::hidden(), &Stop::default());
    let error = run(&resumed).unwrap_err().to_string();
    assert!(error.contains("does not exist any more") && error.contains("--restart"), "{error}");
    // It is not made either where something else is in the way.
    place.state.lock().unwrap().looks.push_back(gone());
    std::fs::write(place.dir.path().join("rejected.jsonl"), "of another").unwrap();
    let error = run(&Import { state: place.dir.path().join("new"), ..resumed }).unwrap_err();
    assert!(error.to_string().contains("--rejected"), "{error}");
}

#[test]
fn an_import_does_not_go_on_in_a_table_that_was_made_anew() {
    let stop = Stop::default();
    let plan = [Write::Rows(Vec::new()), Write::Stop(stop.clone())].into_iter().collect();
    let place = Place::new(State { plan, token: Some("first"), ..State::default() });
    place.import(8, Earlier::Refuse, &stop).unwrap_err();
    let resume = |token| {
        place.state.lock().unwrap().token = Some(token);
        place.import(8, Earlier::Resume, &Stop::default())
    };
    let error = resume("second").unwrap_err().to_string();
    assert!(error.contains("made anew since") && error.contains("--restart"), "{error}");
    assert_eq!(place.written(), written(0..4));
    assert_eq!(resume("first").unwrap().rows, 8);
    assert_eq!(place.written(), written(0..8));
}

/// An endpoint where nobody listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn nobody_goes_on_with_an_import_that_was_given_up_for_one_that_was_not_begun() {
    let place = interrupted();
    let target = Target { endpoint: nowhere(), ..place.target() };
    let anew = Import { target, ..place.options("", Earlier::Discard) };
    let error = import(&anew, &ProgressBar::hidden(), &Stop::default()).unwrap_err().to_string();
    assert!(error.contains("cannot connect"), "{error}");
    for earlier in [Earlier::Resume, Earlier::Refuse] {
        let error = place.import(8, earlier, &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("--restart begins anew"), "{error}");
        assert!(!error.contains("--resume"), "{error}");
    }
    assert_eq!(place.written(), written(0..4));
    assert_eq!(place.import(8, Earlier::Discard, &Stop::default()).unwrap().rows, 8);
    assert_eq!(place.written(), [written(0..4), written(0..8)].concat());
}

#[test]
fn an_import_fails_whose_table_is_made_anew_while_it_runs() {
    let plan = [Write::Rows(Vec::new()), Write::MakeAnew("second")].into_iter().collect();
    let place = Place::new(State { plan, token: Some("first"), ..State::default() });
    let run = |earlier| place.import(8, earlier, &Stop::default());
    for earlier in [Earlier::Refuse, Earlier::Resume] {
        let error = run(earlier).unwrap_err().to_string();
        assert!(error.contains("made anew since") && error.contains("--restart"), "{error}");
        assert_eq!(place.written().len(), 8);
    }
    assert_eq!(run(Earlier::Discard).unwrap().rows, 8);
    assert_eq!(place.written().len(), 16);
    assert!(!place.files().contains_key("state"));
}

#[test]
fn an_import_does_not_go_on_at_another_server() {
    let place = interrupted();
    let other = planned([]);
    let mut resumed = place.options("", Earlier::Resume);
    resumed.target = other.target();
    let run = |options: &Import| import(options, &ProgressBar::hidden(), &Stop::default());
    let error = run(&resumed).unwrap_err().to_string();
    assert!(error.contains(&place.endpoint) && error.contains("--restart"), "{error}");
    assert!(other.written().is_empty());
    // The same server in another form.
    resumed.target.endpoint = format!("http://{}/", place.endpoint);
    run(&resumed).unwrap();
    assert_eq!(place.written(), written(0..8));
}

#[test]
fn a_dry_run_needs_no_place_for_what_is_rejected_where_nothing_is() {
    let place = planned([]);
    // Where nothing can be: below a file.
    let nowhere = place.dir.path().join("rows.csv/rejected.jsonl");
    let sound =
        Import { dry_run: true, rejected_dry: nowhere, ..place.options(LINES, Earlier::Refuse) };
    let run = |options: &Import| import(options, &ProgressBar::hidden(), &Stop::default());
    assert_eq!(run(&sound).unwrap().rows, 2);
    assert_eq!(place.files().len(), 1, "the file that it reads");
    // With something to set aside it needs one, and has it for itself.
    std::fs::write(&sound.names[0], format!("{LINES}r2\n")).unwrap();
    let error = run(&sound).unwrap_err().to_string();
    assert!(error.contains("rejected.jsonl"), "{error}");
    let options = Import { rejected_dry: place.dir.path().join("rejected.jsonl"), ..sound };
    let lock = Lock::take(&options.rejected_dry).unwrap();
    let error = run(&options).unwrap_err().to_string();
    assert!(error.contains("another process is running this"), "{error}");
    drop(lock);
    assert_eq!(run(&options).unwrap().rejected, 1);
    assert_eq!(place.files().len(), 2);
}

#[test]
fn what_a_dry_run_sets_aside_is_in_nobodys_way_and_goes_with_the_next() {
    let place = planned([]);
    let at = |name: &str| place.dir.path().join(name);
    let real = Import {
        names: vec![place.dir.path().to_str().unwrap().to_owned()],
        ..place.options(&format!("{LINES}r2\n"), Earlier::Refuse)
    };
    let dry = Import { dry_run: true, ..real.clone() };
    let run = |options: &Import| import(options, &ProgressBar::hidden(), &Stop::default());
    for _ in 0..2 {
        let found = run(&dry).unwrap();
        assert_eq!((found.rejected, found.rejected_path), (1, at("t.dry-run.jsonl")));
        assert_eq!(place.files()["t.dry-run.jsonl"].lines().count(), 1);
    }
    // One that is at work keeps it.
    let lock = Lock::take(&at("t.dry-run.jsonl")).unwrap();
    let error = run(&dry).unwrap_err().to_string();
    assert!(error.contains("another process is running this"), "{error}");
    drop(lock);
    // The import is not kept from starting, and does not read it.
    let done = run(&real).unwrap();
    assert_eq!((done.files, done.rejected, done.rejected_path), (1, 1, at("rejected.jsonl")));
    std::fs::remove_file(at("rejected.jsonl")).unwrap();
    std::fs::write(at("rows.csv"), LINES).unwrap();
    let named = Import { rejected_is_named: true, earlier: Earlier::Discard, ..real.clone() };
    assert_eq!(run(&named).unwrap().files, 1);
    assert_eq!(run(&dry).unwrap().rejected, 0);
    assert_eq!(place.files().len(), 1, "what is true no more is gone");
}

#[test]
fn cells_of_an_aggregate_family_are_replaced_and_not_added_to() {
    let place = Place::new(State { is_sum: true, ..State::default() });
    let run = |timestamps, lines: &str| {
        let mut options = place.options(lines, Earlier::Discard);
        options.read.csv.timestamps = timestamps;
        std::fs::write(&options.names[0], lines).unwrap();
        let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
        (summary.rows, summary.cells, summary.rejected)
    };
    let lines = ",f\n,a\nr0,v@6000000\nr1,v@6000000\n";
    assert_eq!(run(csv::Timestamps::ValueEncoded, lines), (2, 2, 0));
    // Without a time of its own a value is the state of no cell: one more would stand beside the last.
    assert_eq!(run(csv::Timestamps::Now, LINES), (0, 0, 2));
    let rejected = &place.files()["rejected.jsonl"];
    assert!(rejected.contains("so that nobody knows which cell it is the state of"), "{rejected}");
    // Nor does it become one where the rejected are imported.
    let mut again = place.options(LINES, Earlier::Discard);
    let path = place.dir.path().join("again.rejected.jsonl");
    std::fs::write(&path, rejected).unwrap();
    std::fs::remove_file(place.dir.path().join("rejected.jsonl")).unwrap();
    again.names = vec![path.to_str().unwrap().to_owned()];
    again.read.format = None;
    let summary = import(&again, &ProgressBar::hidden(), &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.cells, summary.rejected), (0, 0, 2));
    assert!(place.files()["rejected.jsonl"].contains("f:a: a value without a timestamp"));
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(place.dir.path().join("rejected.jsonl")).unwrap();
    assert_eq!(run(csv::Timestamps::ValueEncoded, LINES), (0, 0, 2));
    let range =
        v2::TimestampRange { start_timestamp_micros: 6_000_000, end_timestamp_micros: 6_001_000 };
    let kind = Some(v2::value::Kind::RawValue("v".into()));
    let state = v2::Value { kind, ..Default::default() };
    let row = |key: &str| (key.to_owned(), range, Some(state.clone()));
    assert_eq!(place.state.lock().unwrap().merged, [row("r0"), row("r1")]);
}

#[test]
fn what_runs_is_not_run_a_second_time_beside_it() {
    let place = planned([]);
    let at = |name: &str| place.dir.path().join(name);
    for running in ["state", "rejected.jsonl"] {
        let lock = Lock::take(&at(running)).unwrap();
        let error = place.import(2, Earlier::Resume, &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("another process is running this"), "{error}");
        drop(lock);
    }
    let lock = Lock::take(&at(".out.export.json")).unwrap();
    let error = place.export(|options| options.resume = true).unwrap_err().to_string();
    assert!(error.contains("another process is running this"), "{error}");
    drop(lock);
    assert!(place.written().is_empty());
    place.import(2, Earlier::Resume, &Stop::default()).unwrap();
    place.export(|options| options.resume = true).unwrap();
    let hidden = place.files().into_keys().filter(|name| name.starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn what_a_file_says_last_of_a_cell_is_what_the_table_has_in_the_end() {
    let place = planned([Write::Fail(of_call(&busy(Duration::from_millis(50))))]);
    let lines = "a,@1000\nb,@1000\na,@2000\nc,@1000\nd,@1000\nd,@2000\na,@3000\n";
    let mut options = place.options(&format!(",f\n,a\n{lines}"), Earlier::Refuse);
    options.in_flight = 8;
    options.read.csv.timestamps = csv::Timestamps::ValueEncoded;
    import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
    let written = place.written();
    for (key, times) in [("a", &[1000, 2000, 3000][..]), ("b", &[1000]), ("d", &[1000, 2000])] {
        let of_key = written.iter().filter(|(row, _)| row == key).map(|(_, at)| *at);
        assert_eq!(of_key.collect::<Vec<_>>(), times, "{key}");
    }
    for mut request in place.state.lock().unwrap().requests.clone() {
        let rows = request.len();
        request.sort();
        request.dedup();
        assert_eq!(request.len(), rows, "entries of one request have no order");
    }
}

#[test]
fn a_family_that_a_busy_server_does_not_make_is_asked_for_again() {
    let busy = || of_call(&busy(Duration::from_millis(1)));
    let families = [busy(), Status::unavailable("away")].into_iter().collect();
    let place = Place::new(State { families, ..State::default() });
    let mut options = place.options(",f,g\n,a,b\nr0,v,w\n", Earlier::Refuse);
    options.create = true;
    let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.cells), (1, 2));
    assert_eq!(place.state.lock().unwrap().made, ["g"]);
}

#[test]
fn a_family_that_cannot_be_made_keeps_only_its_rows_out() {
    let families = [Status::invalid_argument("a wrong name")].into_iter().collect();
    let place = Place::new(State { families, ..State::default() });
    let lines = "r0,v,\nr1,v,w\nr2,v,\nr3,v,\nr4,v,\nr5,v,\nr6,,w\n";
    let mut options = place.options(&format!(",f,b d\n,a,b\n{lines}"), Earlier::Refuse);
    options.create = true;
    let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.cells, summary.rejected), (5, 5, 2));
    let keys: Vec<String> = place.written().into_iter().map(|(row, _)| row).collect();
    assert_eq!(keys, ["r0", "r2", "r3", "r4", "r5"]);
    let rejected = std::fs::read_to_string(&options.rejected).unwrap();
    assert_eq!(rejected.matches("\\\"b d\\\" cannot be made").count(), 2, "{rejected}");
    assert_eq!(rejected.matches("a wrong name").count(), 2, "{rejected}");
}

#[test]
fn streams_that_break_without_a_reason_are_asked_for_again_but_not_for_ever() {
    let broken = || Status::unknown("protocol error: missing grpc-status trailer");
    let place = planned([Write::Fail(broken()), Write::BreakAfter(1), Write::Fail(broken())]);
    let summary = place.import(2, Earlier::Refuse, &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.rejected), (2, 0));
    let place = planned((0..100).map(|_| Write::Fail(broken())));
    let error = place.import(2, Earlier::Refuse, &Stop::default()).unwrap_err().to_string();
    assert!(error.contains("missing grpc-status"), "{error}");
    assert!(place.state.lock().unwrap().requests.len() < 10);
    // A read ends so with each of its first streams, and goes on behind what came.
    let breaks = [3, 0, 4].into_iter().collect();
    let break_with = Some(Status::internal("Unexpected EOF decoding stream."));
    let place = Place::new(State { breaks, break_with, ..State::default() });
    assert_eq!(place.export(|_| {}).unwrap().rows, 10);
}

#[test]
fn a_server_that_is_away_for_a_moment_is_asked_for_its_table_again() {
    let away = || of_call(&busy(Duration::from_millis(1)));
    let place = planned([]);
    place.state.lock().unwrap().looks = [away(), Status::unavailable("away")].into();
    assert_eq!(place.import(2, Earlier::Refuse, &Stop::default()).unwrap().rows, 2);
    // For the table, and for the samples of it.
    place.state.lock().unwrap().looks = [away(), away()].into();
    assert_eq!(place.export(|_| {}).unwrap().rows, 10);
    place.state.lock().unwrap().looks = [Status::permission_denied("not you")].into();
    let error = place.export(|options| options.overwrite = true).unwrap_err().to_string();
    assert!(error.contains("not you"), "{error}");
}

/// A port that says this to whoever connects, and hangs up.
fn saying(runtime: &tokio::runtime::Runtime, what: &'static [u8]) -> String {
    use tokio::io::AsyncWriteExt as _;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(what).await;
        }
    });
    endpoint
}

#[test]
fn a_port_that_is_not_one_of_grpc_is_an_error_within_seconds() {
    let place = planned([]);
    let tls_alert = b"\x15\x03\x01\x00\x02\x02\x46";
    let http_1 = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let ports: [&[u8]; 3] = [b"", tls_alert, http_1];
    std::thread::scope(|scope| {
        for (port, what) in ports.into_iter().enumerate() {
            let endpoint = saying(&place.runtime, what);
            let target = Target { endpoint, ..place.target() };
            let is_refused = move |error: String| {
                assert!(error.starts_with("GetTable: "), "{}: {error}", what.escape_ascii());
            };
            let options =
                Import { target: target.clone(), ..place.options(LINES, Earlier::Refuse) };
            let at = |name: &str| place.dir.path().join(format!("{name}-{port}"));
            let options = Import { state: at("state"), rejected: at("rejected"), ..options };
            scope.spawn(move || {
                let error = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap_err();
                is_refused(error.to_string());
            });
            let output = at("out");
            let place = &place;
            scope.spawn(move || {
                let done = place.export(|options| {
                    (options.target, options.output) = (target, output);
                });
                is_refused(done.unwrap_err().to_string());
            });
        }
    });
}

#[test]
fn a_read_that_breaks_off_goes_on_behind_its_last_row() {
    let place = Place::new(State { breaks: [3, 0, 4].into_iter().collect(), ..State::default() });
    let summary = place.export(|_| {}).unwrap();
    assert_eq!(summary.rows, 10);
    assert_eq!(place.state.lock().unwrap().reads, 4);
    let path = place.dir.path().join("out-00000-of-00001.csv");
    let rows: String = (0..10).map(line).collect();
    assert_eq!(std::fs::read_to_string(path).unwrap(), format!(",f\n,q\n{rows}"));
}

/// A file of an export of rows.
fn exported(rows: std::ops::Range<usize>) -> String {
    format!(",f\n,q\n{}", rows.map(line).collect::<String>())
}

/// An export of two files in place of `first`, of which the read of the second is refused.
fn interrupted_replacement(first: &[(&str, &str)]) -> Place {
    let samples = vec![("r5", 100), ("", 200)];
    let place = Place::new(State { samples, refused_from: Some(2), ..State::default() });
    for (name, text) in first {
        std::fs::write(place.dir.path().join(name), text).unwrap();
    }
    let error = place.export(|options| {
        (options.files, options.overwrite) = (Some(2), true);
    });
    assert!(error.unwrap_err().to_string().contains("not you"));
    place.state.lock().unwrap().refused_from = None;
    place
}

#[test]
fn an_export_that_replaces_another_leaves_it_until_all_its_files_are_whole() {
    let first = [("out-00000-of-00002.csv", "old 0"), ("out-00001-of-00002.csv", "old 1")];
    let place = interrupted_replacement(&first);
    let files = place.files();
    for (name, text) in first {
        assert_eq!(files[name], text);
    }
    // Nobody takes what is there of the new one for a part of the old.
    let hidden = [".out-00000-of-00002.csv.new", ".out.export.json"];
    let others: Vec<_> = files.keys().filter(|name| !name.starts_with("out-")).collect();
    assert_eq!(others, hidden);

    let summary = place.export(|options| options.resume = true).unwrap();
    assert_eq!((summary.files, summary.rows), (2, 10));
    assert_eq!(place.state.lock().unwrap().reads, 3, "the first file was whole");
    let whole = [(first[0].0, exported(0..5)), (first[1].0, exported(5..10))];
    assert_eq!(place.files(), whole.map(|(name, text)| (name.to_owned(), text)).into());
}

#[test]
fn nobody_goes_on_with_an_export_that_was_given_up_for_one_that_was_not_begun() {
    // The scan for columns fails.
    let without_columns = |place: &Place| {
        place.state.lock().unwrap().refused_from = Some(0);
        let done = place.export(|options| {
            (options.columns, options.overwrite) = (Vec::new(), true);
        });
        assert!(done.unwrap_err().to_string().contains("not you"));
        place.state.lock().unwrap().refused_from = None;
    };
    for first in [&[][..], &[("out-00000-of-00001.csv", "old")]] {
        let place = interrupted_replacement(first);
        without_columns(&place);
        for resume in [true, false] {
            let done = place.export(|options| options.resume = resume);
            let error = done.unwrap_err().to_string();
            assert!(error.contains("--overwrite begins anew"), "{error}");
            assert!(!error.contains("--resume"), "{error}");
        }
        let reads = place.state.lock().unwrap().reads;
        let anew = place.export(|options| (options.overwrite, options.files) = (true, Some(2)));
        assert_eq!(anew.unwrap().rows, 10);
        assert_eq!(place.state.lock().unwrap().reads, reads + 2, "none was whole");
        assert_eq!(place.files().len(), 2);
    }
}

#[test]
fn an_export_does_not_go_on_from_another_server() {
    let place = interrupted_replacement(&[("out-00000-of-00001.csv", "old")]);
    let other = planned([]);
    let resumed = place.export(|options| (options.resume, options.target) = (true, other.target()));
    let error = resumed.unwrap_err().to_string();
    assert!(error.contains(&place.endpoint) && error.contains("--overwrite"), "{error}");
    assert_eq!(other.state.lock().unwrap().reads, 0);
}

#[test]
fn an_export_goes_on_only_where_a_server_listens_unless_all_its_files_are_whole() {
    let place = interrupted_replacement(&[("out-00000-of-00001.csv", "old")]);
    // The server where it began is gone.
    let endpoint = nowhere();
    let path = place.dir.path().join(".out.export.json");
    let state = std::fs::read_to_string(&path).unwrap().replace(&place.endpoint, &endpoint);
    std::fs::write(&path, &state).unwrap();
    let target = Target { endpoint: endpoint.clone(), ..place.target() };
    let resume = || {
        let target = target.clone();
        place.export(|options| (options.resume, options.target) = (true, target))
    };
    let is_refused = || {
        let error = resume().unwrap_err().to_string();
        assert!(error.starts_with(&format!("endpoint {endpoint:?}: ")), "{error}");
    };
    is_refused();
    let whole = state.replace("\"done\": null", "\"done\": [5, 5, 9]");
    std::fs::write(place.dir.path().join(".out-00001-of-00002.csv.new"), "new 1").unwrap();
    // Whether the table is still the one that it was, only a server says.
    let with_token = whole.replace("\"token\": null", "\"token\": \"first\"");
    assert_ne!(with_token, whole);
    std::fs::write(&path, with_token).unwrap();
    is_refused();
    std::fs::write(&path, whole).unwrap();
    assert_eq!(resume().unwrap().files, 2);
}

#[test]
fn columns_of_a_family_that_is_left_out_are_refused() {
    let place = planned([]);
    let families = |families: &[&str]| {
        let families = families.iter().map(|family| (*family).to_owned()).collect();
        place.export(|options| options.selection.families = families)
    };
    let error = families(&["g"]).unwrap_err().to_string();
    assert!(error.contains("family \"f\", which --families leaves out"), "{error}");
    assert!(place.files().is_empty() && place.state.lock().unwrap().reads == 0);
    assert_eq!(families(&["f"]).unwrap().rows, 10);
}

#[test]
fn an_export_of_another_number_of_files_replaces_all_earlier_ones() {
    let first = ["out-00000-of-00003.csv", "out-00001-of-00003.csv", "out-00000-of-00001.csv"];
    let place = interrupted_replacement(&first.map(|name| (name, "old")));
    assert_eq!(place.files().len(), 3 + 2);
    // One of another format was interrupted before.
    for name in [".out-00000-of-00001.parquet.new", ".out-00001-of-00002.new.unfinished"] {
        std::fs::write(place.dir.path().join(name), "begun").unwrap();
    }
    // Begins anew, and leaves nothing of those before.
    let summary = place.export(|options| options.overwrite = true).unwrap();
    assert_eq!(summary.rows, 10);
    assert_eq!(place.files(), [(first[2].to_owned(), exported(0..10))].into());
}

#[test]
fn an_export_replaces_earlier_ones_of_any_format_and_stands_beside_none() {
    let place = Place::new(State::default());
    let earlier = [
        "out-00000-of-00002.avro",
        "out-00001-of-00002.avro",
        "out-00000-of-00001.parquet",
        "out-00000-of-00001",
    ];
    for name in earlier {
        std::fs::write(place.dir.path().join(name), "old").unwrap();
        let error = place.export(|_| {}).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("--overwrite"), "{error}");
        std::fs::remove_file(place.dir.path().join(name)).unwrap();
    }
    for name in earlier {
        std::fs::write(place.dir.path().join(name), "old").unwrap();
    }
    // What is not of an export under this name stays.
    let others = [
        "out-00000-of-00001.jsonl",
        "other-00000-of-00001.avro",
        "out-sales-of-march.csv",
        "out-sales-of-march.csv.unfinished",
        ".out-sales-of-march.csv.new",
        ".out-00000-of-00001-mine.new",
    ];
    for name in others {
        std::fs::write(place.dir.path().join(name), "other").unwrap();
    }
    place.export(|options| options.overwrite = true).unwrap();
    let mut files = place.files();
    assert_eq!(files.remove("out-00000-of-00001.csv").unwrap(), exported(0..10));
    assert_eq!(files, others.map(|name| (name.to_owned(), "other".to_owned())).into());
}

#[test]
fn a_directory_with_the_name_of_an_exports_file_is_refused_before_anything_is_read() {
    let place = Place::new(State::default());
    let directory = place.dir.path().join("out-00000-of-00001.csv");
    std::fs::create_dir(&directory).unwrap();
    for overwrite in [false, true] {
        let error = place.export(|options| options.overwrite = overwrite).unwrap_err().to_string();
        assert!(error.contains("out-00000-of-00001.csv is no file"), "{error}");
    }
    assert_eq!(place.state.lock().unwrap().reads, 0);
    std::fs::remove_dir(&directory).unwrap();
    place.export(|_| {}).unwrap();
}

#[test]
fn a_directory_that_somebody_makes_meanwhile_does_not_keep_a_replacement_from_its_end() {
    let place = interrupted_replacement(&[("out-00000-of-00001.csv", "old")]);
    let directory = place.dir.path().join("out-00000-of-00007.csv");
    std::fs::create_dir(&directory).unwrap();
    place.export(|options| options.resume = true).unwrap();
    std::fs::remove_dir(&directory).unwrap();
    assert_eq!(place.files().len(), 2);
}

/// An export of three files, of which the second has a row that is not read.
fn with_unreadable(code: Code) -> Place {
    let samples = vec![("r3", 100), ("r6", 200), ("", 300)];
    let unreadable = Some(("r4", Status::new(code, "no such row for you")));
    Place::new(State { unreadable, samples, ..State::default() })
}

#[test]
fn a_row_that_cannot_be_read_costs_its_file_alone_and_only_that_is_read_again() {
    for code in [Code::DataLoss, Code::FailedPrecondition, Code::Internal] {
        let place = with_unreadable(code);
        let run = |resume| {
            let done = place.export(|options| {
                (options.files, options.resume) = (Some(3), resume);
            });
            let reads = std::mem::take(&mut place.state.lock().unwrap().reads);
            (done, reads)
        };
        let (failed, reads) = run(false);
        let error = failed.unwrap_err().to_string();
        let [first, last] = error.lines().collect::<Vec<_>>()[..] else { panic!("{error}") };
        assert!(first.contains("out-00001-of-00003.csv: behind row r3: ReadRows: "), "{error}");
        assert!(first.contains("no such row for you"), "{error}");
        assert!(last.starts_with("the rows of 1 of 3 files cannot be read"), "{error}");
        // One that may be a broken stream's is asked for several times.
        assert!(if code == Code::Internal { reads > 3 } else { reads == 3 }, "{reads}");
        let names: Vec<_> = place.files().into_keys().collect();
        let whole = ["out-00000-of-00003.csv", "out-00002-of-00003.csv"];
        assert_eq!(names, [&[".out.export.json"], &whole[..]].concat());

        assert_eq!(run(true).0.unwrap_err().to_string(), error, "it comes no further");
        place.state.lock().unwrap().unreadable = None;
        let (done, reads) = run(true);
        assert_eq!((done.unwrap().rows, reads), (10, 1));
        assert_eq!(place.files()["out-00001-of-00003.csv"], exported(3..6));
    }
}

#[test]
fn an_export_does_not_go_on_in_a_table_that_was_made_anew() {
    let place = with_unreadable(Code::DataLoss);
    place.state.lock().unwrap().token = Some("first");
    place.export(|options| options.files = Some(3)).unwrap_err();
    place.state.lock().unwrap().unreadable = None;
    let resume = |token| {
        place.state.lock().unwrap().token = Some(token);
        place.export(|options| (options.files, options.resume) = (Some(3), true))
    };
    let error = resume("second").unwrap_err().to_string();
    assert!(error.contains("made anew since") && error.contains("--overwrite"), "{error}");
    assert!(!place.files().contains_key("out-00001-of-00003.csv"));
    assert_eq!(resume("first").unwrap().rows, 10);
}

#[test]
fn an_export_whose_table_is_made_anew_while_it_runs_replaces_nothing() {
    let samples = vec![("r5", 100), ("", 200)];
    let anew_at = Some((2, "second"));
    let place = Place::new(State { samples, anew_at, token: Some("first"), ..State::default() });
    let earlier = "out-00000-of-00001.csv";
    std::fs::write(place.dir.path().join(earlier), "old").unwrap();
    let run = |resume| {
        place.export(|options| {
            (options.files, options.overwrite, options.resume) = (Some(2), true, resume);
        })
    };
    for resume in [false, true] {
        let error = run(resume).unwrap_err().to_string();
        assert!(error.contains("made anew since") && error.contains("--overwrite"), "{error}");
        let mut files = place.files();
        files.retain(|name, _| !name.starts_with('.'));
        assert_eq!(files, [(earlier.to_owned(), "old".to_owned())].into());
    }
    assert_eq!(run(false).unwrap().rows, 10);
    let whole = [("out-00000-of-00002.csv", 0..5), ("out-00001-of-00002.csv", 5..10)];
    assert_eq!(place.files(), whole.map(|(name, rows)| (name.to_owned(), exported(rows))).into());
}

#[test]
fn what_was_exported_is_there_though_its_table_is_deleted_then_and_what_was_imported_is_not() {
    let gone = State { token: Some("first"), is_gone: true, ..State::default() };
    let place = Place::new(gone);
    assert_eq!(place.export(|_| ()).unwrap().rows, 10);
    let error = place.import(8, Earlier::Refuse, &Stop::default()).unwrap_err().to_string();
    assert!(error.contains("does not exist any more"), "{error}");
}

#[test]
fn an_export_with_rows_that_cannot_be_read_replaces_nothing() {
    let place = with_unreadable(Code::DataLoss);
    let earlier = ["out-00000-of-00003.csv", "out-00001-of-00003.csv", "out-00002-of-00003.csv"];
    for name in earlier {
        std::fs::write(place.dir.path().join(name), "old").unwrap();
    }
    let failed = place.export(|options| (options.files, options.overwrite) = (Some(3), true));
    assert!(failed.unwrap_err().to_string().contains("1 of 3 files"));
    let mut files = place.files();
    files.retain(|name, _| !name.starts_with('.'));
    assert_eq!(files, earlier.map(|name| (name.to_owned(), "old".to_owned())).into());
    place.state.lock().unwrap().unreadable = None;
    assert_eq!(place.export(|options| options.resume = true).unwrap().rows, 10);
    assert_eq!(place.files().len(), 3);
}

#[test]
fn a_refusal_that_is_not_of_one_row_ends_the_export_at_once() {
    for code in [Code::PermissionDenied, Code::Unauthenticated, Code::NotFound] {
        let place = with_unreadable(code);
        let error = place.export(|options| options.files = Some(3)).unwrap_err().to_string();
        assert!(!error.contains("files cannot be read"), "{error}");
        assert_eq!(place.state.lock().unwrap().reads, 2, "{code:?}");
    }
}

#[test]
fn columns_that_a_row_keeps_from_being_known_can_be_named() {
    let place = with_unreadable(Code::DataLoss);
    let error = place.export(|options| options.columns = Vec::new()).unwrap_err().to_string();
    assert!(error.contains("no such row for you") && error.contains("--columns"), "{error}");
}

#[test]
fn cells_of_columns_that_came_after_the_scan_for_columns_are_counted() {
    // A scan for columns, and a read of each half, of which the second one is interrupted.
    let samples = vec![("r5", 50), ("", 100)];
    let place = Place::new(State { other_from: Some(2), samples, ..State::default() });
    let all = |export: &mut Export| {
        (export.columns, export.files) = (Vec::new(), Some(2));
    };
    place.state.lock().unwrap().refused_from = Some(3);
    assert!(place.export(all).is_err());
    place.state.lock().unwrap().refused_from = None;
    let summary = place.export(|export| {
        all(export);
        export.resume = true;
    });
    let summary = summary.unwrap();
    assert_eq!((summary.rows, summary.cells, summary.left_out), (9, 9, 1));
    // Of columns that were named, the others are not missed.
    assert_eq!(place.export(|export| export.overwrite = true).unwrap().left_out, 0);
}

#[test]
fn whether_columns_were_named_is_what_the_export_was_begun_with() {
    for begun_with_names in [false, true] {
        // The first read after a scan for columns finds another one, if there is a scan; each read does.
        let other_from = Some(if begun_with_names { 1 } else { 2 });
        let samples = vec![("r5", 50), ("", 100)];
        let place = Place::new(State { other_from, samples, ..State::default() });
        let export = |with_names: bool, resume| {
            place.export(|export| {
                (export.files, export.resume) = (Some(2), resume);
                if !with_names {
                    export.columns = Vec::new();
                }
            })
        };
        place.state.lock().unwrap().refused_from = other_from;
        assert!(export(begun_with_names, false).is_err());
        place.state.lock().unwrap().refused_from = None;
        let summary = export(!begun_with_names, true).unwrap();
        assert_eq!(summary.left_out, u64::from(!begun_with_names));
    }
}

#[test]
fn an_export_leaves_nothing_of_one_in_another_format_that_was_interrupted() {
    let samples = vec![("r5", 100), ("", 200)];
    let place = Place::new(State { samples, refused_from: Some(2), ..State::default() });
    let begun = place.export(|options| {
        (options.format, options.columns, options.files) = (Format::Avro, Vec::new(), Some(2));
    });
    assert!(begun.unwrap_err().to_string().contains("not you"));
    place.state.lock().unwrap().refused_from = None;
    let at = |name: &str| place.dir.path().join(name);
    assert!(at("out-00000-of-00002.avro").exists());
    // As a crash leaves it in the midst of the second file.
    std::fs::write(at("out-00001-of-00002.avro.unfinished"), "begun").unwrap();
    place.export(|options| options.overwrite = true).unwrap();
    assert_eq!(place.files(), [("out-00000-of-00001.csv".to_owned(), exported(0..10))].into());
}

#[test]
fn a_replacement_that_a_crash_interrupts_between_its_renames_is_done_by_the_next_run() {
    for overwrite in [false, true] {
        let place = interrupted_replacement(&[("out-00000-of-00007.csv", "old")]);
        // As a crash leaves it when all files are whole, the earlier are gone and one of the new has its name.
        let at = |name: &str| place.dir.path().join(name);
        let state =
            place.files()[".out.export.json"].replace("\"done\": null", "\"done\": [5, 5, 9]");
        assert!(state.contains("\"placing\": false"), "{state}");
        let state = state.replace("\"placing\": false", "\"placing\": true");
        std::fs::write(at(".out.export.json"), state).unwrap();
        std::fs::rename(at(".out-00000-of-00002.csv.new"), at("out-00000-of-00002.csv")).unwrap();
        std::fs::write(at(".out-00001-of-00002.csv.new"), "new 1").unwrap();
        // A new export fails: the one before is whole, and the one that it replaced is gone.
        place.state.lock().unwrap().refused_from = overwrite.then_some(0);
        let again = place.export(|options| {
            (options.overwrite, options.resume) = (overwrite, !overwrite);
        });
        assert_eq!(again.is_err(), overwrite);
        let mut files = place.files();
        files.retain(|name, _| !name.starts_with('.'));
        let whole = [
            ("out-00000-of-00002.csv", exported(0..5)),
            ("out-00001-of-00002.csv", "new 1".to_owned()),
        ];
        assert_eq!(files, whole.map(|(name, text)| (name.to_owned(), text)).into());
    }
}

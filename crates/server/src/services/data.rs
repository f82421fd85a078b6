//! `google.bigtable.v2.Bigtable`: reading and writing rows.

use std::pin::pin;
use std::sync::Arc;

use http::HeaderMap;
use prost::Message as _;
use tepui_bigtable::authorized_view::AuthorizedView;
use tepui_bigtable::chunk::LargeRows;
use tepui_bigtable::error::{Error, Result as TepuiResult, Shown};
use tepui_bigtable::frame::{Encoded, Framed};
use tepui_bigtable::origin::WithOrigins;
use tepui_bigtable::read_rows::ReadRows;
use tepui_bigtable::table::{Check, Table};
use tepui_bigtable::turn::others_first;
use tepui_engine::io::Clock;
use tepui_engine::pressure::Priority;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Response, Status};

use super::{Tables, blocking_alone};
use crate::admission::{Answer, Hold, Streams, rate};
use crate::api::kept;
use crate::api::session::{ClientConfiguration, GetClientConfigurationRequest};
use crate::api::v2::mutate_rows_response::Entry;
use crate::api::v2::{
    CheckAndMutateRowResponse, GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse, MutateRowResponse, MutateRowsResponse,
    PingAndWarmRequest, PingAndWarmResponse, ReadChangeStreamRequest, ReadChangeStreamResponse,
    ReadModifyWriteRowRequest, SampleRowKeysResponse,
};
use crate::call::{Address, Addressed, passed};
use crate::catalog::authorized_views::AuthorizedViews;
use crate::change_streams::ChangeStreams;
use crate::grpc::{Made, Messages, Request};
use crate::instances::Instances;
use crate::instances::profiles::Access;
use crate::large;
use crate::limits::{MUTATE_ROWS_MESSAGE_BYTES_MAX, SAMPLINGS_MAX};
use crate::metrics::rpc::Recorder;
use crate::names;
use crate::status::{self, from_error};

/// The service. Cheap to clone: every core has one.
#[derive(Clone)]
pub struct DataService {
    tables: Arc<Tables>,
    views: Arc<AuthorizedViews>,
    pub(super) instances: Arc<Instances>,
    streams: Arc<Streams>,
    changes: Arc<ChangeStreams>,
    /// Turns of [`SAMPLINGS_MAX`].
    samplings: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    pub(super) recorder: Recorder,
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl DataService {
    /// Serves these tables.
    pub fn new(
        tables: Arc<Tables>,
        views: Arc<AuthorizedViews>,
        instances: Arc<Instances>,
        streams: Arc<Streams>,
        changes: Arc<ChangeStreams>,
        clock: Arc<dyn Clock>,
        recorder: Recorder,
    ) -> Self {
        let samplings = Arc::new(Semaphore::new(SAMPLINGS_MAX));
        Self { tables, views, instances, streams, changes, samplings, clock, recorder }
    }

    /// Whether a request may do this by its app profile.
    fn allow(&self, table: &str, profile: &str, access: Access) -> Result<Priority, Status> {
        self.instances.allow(table, profile, access).map_err(|error| from_error(&error))
    }

    /// What a request for rows is for, by the name of a table or by that of an authorized view, where its app profile
    /// lets it do this. By the profile's priority, once others had their turn: a request of low priority stands in the line
    /// of long ones, behind everything small and those that came before; one of medium priority lets go first what is ready.
    async fn target(&self, request: &impl Addressed, access: Access) -> Result<Target, Status> {
        let target = self.find(request.address(), access).map_err(|error| from_error(&error))?;
        match target.priority {
            Priority::High => {}
            Priority::Medium => tokio::task::yield_now().await,
            Priority::Low => others_first().await,
        }
        Ok(target)
    }

    /// The same for a write of a row. One of a lower priority is refused before those of high priority are.
    async fn target_of(
        &self,
        request: &impl Addressed,
        row: &[u8],
        access: Access,
    ) -> Result<Target, Status> {
        let target = self.target(request, access).await?;
        if target.priority < Priority::High {
            let admitted = target.table.admit_as(target.priority, row);
            admitted.map_err(|error| from_error(&error))?;
        }
        Ok(target)
    }

    /// An answer to be made as a whole, once there is room for it.
    async fn room(&self, hold: &Hold) -> Result<Answer, Status> {
        let mut answer = self.streams.answer(hold.clone());
        answer.make_room().await.map_err(|error| from_error(&error))?;
        answer.leave_turn();
        Ok(answer)
    }

    /// Messages that were made in the room of an answer, which keeps what they take until their client has taken them.
    async fn covered<M: Framed + 'static>(
        &self,
        made: Made<M>,
        mut answer: Answer,
    ) -> Result<Messages<M>, Status> {
        if made.is_one() && answer.is_over_at_once(made.bytes()) {
            return Ok(made.keep(None, &self.clock));
        }
        answer.cover(made.bytes()).await.map_err(|error| from_error(&error))?;
        answer.park(None, self.clock.monotonic_micros());
        Ok(made.keep(Some(answer), &self.clock))
    }

    fn find(&self, asked: Address<'_>, access: Access) -> TepuiResult<Target> {
        let Address { name, view, materialized, profile } = asked;
        if !materialized.is_empty() {
            return Err(Error::unimplemented(format!(
                "materialized_view_name {}: access through a view is not supported yet",
                Shown(materialized)
            )));
        }
        if view.is_empty() {
            let priority = self.instances.allow(name, profile, access)?;
            return Ok(Target { table: self.tables.table(name)?, view: None, priority });
        }
        names::check_view("authorized_view_name", view)?;
        let priority = self.instances.allow(view, profile, access)?;
        let (table, _) = names::split_view(view).unwrap_or_default();
        if !name.is_empty() && name != table {
            return Err(Error::invalid_argument(format!(
                "table_name {} is not the table of authorized_view_name {}; set one of them",
                Shown(name),
                Shown(view)
            )));
        }
        let entry = self.tables.get(table)?;
        let view = self.views.compiled(view, entry.record.incarnation)?;
        Ok(Target { table: Arc::clone(&entry.table), view: Some(view), priority })
    }

    pub(super) async fn on_read_rows(
        &self,
        request: Request<kept::ReadRowsRequest>,
    ) -> Result<Response<Messages<kept::ReadRowsResponse>>, Status> {
        let (head, request) = request.into_parts();
        let target = self.target(&request, Access::Read).await?;
        let large_rows = large_rows(&head.headers);
        let mut rows = match large::hold_with(&head.hold, 0) {
            None => target.begin(&request, large_rows, &head.hold).await?,
            // Of many keys, which take long to bring in order. Boxed, so that other reads stay small.
            Some(hold) => {
                let large = Some(hold.clone());
                let begin = move || async move { target.begin(&request, large_rows, &hold).await };
                Box::pin(large::carry_out(large, begin)).await??
            }
        };
        let answer = self.streams.answer(head.hold.clone());
        rows.read_ahead_at_most(answer.ahead_bytes_max() as usize);
        let messages = row_messages(RowMessages {
            rows: Some(rows),
            is_under_way: false,
            has_ended: false,
            answer,
            clock: Arc::clone(&self.clock),
        });
        Ok(head.answer(Messages::ending(messages)))
    }

    pub(super) async fn on_sample_row_keys(
        &self,
        request: Request<kept::SampleRowKeysRequest>,
    ) -> Result<Response<Messages<SampleRowKeysResponse>>, Status> {
        let (head, request) = request.into_parts();
        let target = self.target(&request, Access::Read).await?;
        let mut answer = self.streams.answer(head.hold.clone());
        // What waits for its turn goes with its request.
        let turn = turn(&self.samplings, &mut answer).await?;
        let samples = blocking_alone(move || {
            let _turn = turn;
            target.table.sample_row_keys(target.view(), request.row_range.as_ref())
        })
        .await?;
        let samples = self.covered(Made::new(samples), answer).await?;
        Ok(head.answer(samples))
    }

    pub(super) async fn on_mutate_row(
        &self,
        request: Request<kept::MutateRowRequest>,
    ) -> Result<Response<MutateRowResponse>, Status> {
        let large = large::hold_of(&request);
        let (head, request) = request.into_parts();
        let WithOrigins(request) = request;
        let target = self.target_of(&request, &request.row_key, Access::Write).await?;
        let work = move || async move { target.table.mutate_row(request, target.view()).await };
        large::carry_out(large, work).await?.map_err(|error| from_error(&error))?;
        Ok(head.answer(MutateRowResponse {}))
    }

    pub(super) async fn on_mutate_rows(
        &self,
        request: Request<kept::MutateRowsRequest>,
    ) -> Result<Response<Messages<MutateRowsResponse>>, Status> {
        let large = large::hold_of(&request);
        let (head, request) = request.into_parts();
        // Its statuses may be many, and go out when it is done.
        head.hold.check_answers().map_err(|error| from_error(&error))?;
        let target = self.target(&request, Access::Write).await?;
        let count = request.entry_count();
        let wants_rate = rate::is_wanted(&head.headers);
        // With its statuses, which may be a hundred thousand.
        let work = move || async move {
            let Target { table, priority, .. } = &target;
            let failed = table.mutate_rows_encoded(request, *priority, target.view()).await?;
            let mut messages = in_messages(outcomes(count, failed));
            if wants_rate {
                // In each: the Java client takes one without for a server that gives none any more.
                let pressure = table.pressure();
                let info = pressure.map(|pressure| rate::advice(pressure, *priority));
                for message in &mut messages {
                    message.rate_limit_info = info;
                }
            }
            Ok(Made::new(messages))
        };
        let made = large::carry_out(large, work).await?;
        let made = made.map_err(|error: Error| from_error(&error))?;
        let is_over = made.is_one() && head.hold.is_over_at_once(made.bytes());
        let answer = (!is_over).then(|| {
            let mut answer = self.streams.answer(head.hold.clone());
            answer.made(made.bytes(), self.clock.monotonic_micros());
            answer
        });
        Ok(head.answer(made.keep(answer, &self.clock)))
    }

    pub(super) async fn on_check_and_mutate_row(
        &self,
        request: Request<kept::CheckAndMutateRowRequest>,
    ) -> Result<Response<CheckAndMutateRowResponse>, Status> {
        let large = large::hold_of(&request);
        let (head, request) = request.into_parts();
        let row = &request.request.0.row_key;
        let target = self.target_of(&request, row, Access::Transaction).await?;
        let hold = head.hold.clone();
        let work = move || async move {
            let compile = || target.table.check(&request, target.view());
            let check = hold.in_room_for_filter(compile, Check::filter_bytes, false).await?;
            // Several times as large as what is waited for with.
            drop(request);
            target.table.carry_out(check).await.map_err(|error| from_error(&error))
        };
        let done = large::carry_out(large, work).await?;
        done.map(|done| head.answer(done))
    }

    pub(super) async fn on_read_modify_write_row(
        &self,
        request: Request<ReadModifyWriteRowRequest>,
    ) -> Result<Response<kept::ReadModifyWriteRowResponse>, Status> {
        let large = large::hold_of(&request);
        let (head, request) = request.into_parts();
        let target = self.target_of(&request, &request.row_key, Access::Transaction).await?;
        let read =
            move || async move { target.table.read_to_change(&request, target.view()).await };
        let row = large::carry_out(large, read).await?.map_err(|error| from_error(&error))?;
        let large = large::hold_with(&head.hold, row.bytes());
        // Encoded there, too: the answer has the whole value once more.
        let change = move || async move { row.change().await.map(Encoded::of) };
        let done = large::carry_out_in_time(large, change).await?;
        done.map(|done| head.answer(done)).map_err(|error| from_error(&error))
    }

    /// Sessions are not served, so clients are told not to open any, and not to ask again.
    pub(super) async fn on_get_client_configuration(
        &self,
        request: Request<GetClientConfigurationRequest>,
    ) -> Result<Response<ClientConfiguration>, Status> {
        let request = request.get_ref();
        let checked = names::check_instance("instance_name", &request.instance_name);
        checked.map_err(|error| from_error(&error))?;
        self.allow(&request.instance_name, &request.app_profile_id, Access::Read)?;
        Ok(Response::new(ClientConfiguration::without_sessions()))
    }

    pub(super) async fn on_generate_initial_change_stream_partitions(
        &self,
        request: Request<GenerateInitialChangeStreamPartitionsRequest>,
    ) -> Result<Response<Messages<GenerateInitialChangeStreamPartitionsResponse>>, Status> {
        let answer = self.room(request.hold()).await?;
        let request = request.into_inner();
        self.allow(&request.table_name, &request.app_profile_id, Access::ChangeStream)?;
        let partitions = self.changes.partitions(&request.table_name);
        let partitions = partitions.map_err(|error| from_error(&error))?;
        Ok(Response::new(self.covered(Made::new(partitions), answer).await?))
    }

    pub(super) async fn on_read_change_stream(
        &self,
        request: Request<ReadChangeStreamRequest>,
    ) -> Result<Response<Messages<ReadChangeStreamResponse>>, Status> {
        let answer = self.streams.answer(request.hold().clone());
        let request = request.into_inner();
        self.allow(&request.table_name, &request.app_profile_id, Access::ChangeStream)?;
        // All clusters are this server, and a stream is that of one: a change is said to come from it.
        let cluster = self.instances.cluster(&request.table_name, &request.app_profile_id);
        let changes = self.changes.read(&request, cluster, answer).await;
        changes
            .map(|changes| Response::new(Messages::new(changes)))
            .map_err(|error| from_error(&error))
    }

    /// Nothing is cold: tables are opened at the start. Clients use it to open their connections.
    pub(super) async fn on_ping_and_warm(
        &self,
        request: Request<PingAndWarmRequest>,
    ) -> Result<Response<PingAndWarmResponse>, Status> {
        let request = request.get_ref();
        let checked = names::check_instance("name", &request.name);
        checked.map_err(|error| from_error(&error))?;
        self.allow(&request.name, &request.app_profile_id, Access::Read)?;
        Ok(Response::new(PingAndWarmResponse {}))
    }
}

/// A turn, and room for an answer. Room is not held while the turn is waited for, unless it had to be waited for itself, and the turn never
/// while room is.
async fn turn(turns: &Arc<Semaphore>, answer: &mut Answer) -> Result<OwnedSemaphorePermit, Status> {
    loop {
        let turn = Arc::clone(turns).acquire_owned().await;
        let turn = turn.map_err(|_| Status::internal("the turns are over"))?;
        if answer.has_room() {
            return Ok(turn);
        }
        drop(turn);
        answer.make_room().await.map_err(|error| from_error(&error))?;
        answer.leave_turn();
    }
}

/// What a request is for.
struct Target {
    table: Arc<Table>,
    /// What of the table, where that is not all.
    view: Option<Arc<AuthorizedView>>,
    /// That of its app profile.
    priority: Priority,
}

impl Target {
    fn view(&self) -> Option<&AuthorizedView> {
        self.view.as_deref()
    }

    /// Begins a read: brings its keys in order and compares them with its filter, and all of that again where the filter has no room at once.
    async fn begin(
        &self,
        request: &kept::ReadRowsRequest,
        large_rows: LargeRows,
        hold: &Hold,
    ) -> Result<ReadRows, Status> {
        let begin = || self.table.read_rows_encoded(request, large_rows, self.view());
        hold.in_room_for_filter(begin, ReadRows::filter_bytes, true).await
    }
}

/// What the client makes of rows that are larger than a message. Google's Python client takes a message that begins within a
/// value, and so without a row's key, for a row out of order; its `x-goog-api-client` says `gccl/2.50.2-data`, and what is
/// built on that `-data-async` or `-data-shim`. Versions before, which do not, refuse the key there. Google's Go client takes a message that
/// ends within a row for the end of a broken stream. On an emulator all that it says of itself is gRPC's
/// `user-agent: grpc-go/1.83.2`, and `bigtable-features`, which programs over the generated client, who
/// read the stream by themselves, have no reason to send.
fn large_rows(headers: &HeaderMap) -> LargeRows {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let names_version = |part: &str| part.starts_with("gccl/") && part.contains("-data");
    let api_client = text("x-goog-api-client");
    if api_client.contains("gl-python/") && api_client.split(' ').any(names_version) {
        return LargeRows::SplitNamed;
    }
    let is_go = text("user-agent").split(' ').any(|part| part.starts_with("grpc-go/"));
    if is_go && headers.contains_key("bigtable-features") {
        LargeRows::Whole
    } else {
        LargeRows::Split
    }
}

/// A message, and whether it is the last of a read that is over with it.
type RowMessage = Result<(kept::ReadRowsResponse, bool), Status>;

/// An answer under way.
struct RowMessages {
    /// The read, until it is put aside for the first time.
    rows: Option<ReadRows>,
    /// A message was asked for before.
    is_under_way: bool,
    /// There is nothing more to say.
    has_ended: bool,
    answer: Answer,
    clock: Arc<dyn Clock>,
}

/// Pulls messages one at a time, as fast as the client takes them; dropped with the stream when the client
/// goes away. Yields between messages, so that a scan served from memory alone leaves the core to other
/// requests. Not before the first and not before the end: the message of a small read, and the status behind
/// it, go out in one piece. Between two messages, the read is where it can be suspended. Each comes with whether it is the last of a
/// read that is over with it.
fn row_messages(messages: RowMessages) -> impl futures::Stream<Item = RowMessage> + Send {
    futures::stream::unfold(messages, RowMessages::next)
}

impl RowMessages {
    async fn next(mut self) -> Option<(RowMessage, Self)> {
        if self.has_ended {
            return None;
        }
        // While it waits for room the read stays where it can be suspended, as while it waits for its client: it may be for long.
        if let Err(error) = self.answer.make_room().await {
            return Some(self.failed(&error));
        }
        let rows = match self.rows.take() {
            Some(rows) => Some(rows),
            None => self.answer.unpark().await,
        };
        let Some(mut rows) = rows else {
            self.has_ended = true;
            return Some((Err(passed()), self));
        };
        if std::mem::replace(&mut self.is_under_way, true) {
            others_first().await;
        }
        if let Err(error) = self.answer.lets_go(&mut rows).await {
            return Some(self.failed(&error));
        }
        let next = {
            let next = pin!(rows.next());
            self.answer.make(next).await?
        };
        match next {
            Ok(mut message) => {
                // With those behind it, and rows that lie read ahead, which are in memory too.
                let bytes = (message.len() + rows.ready_bytes()) as u64;
                let mut ahead_bytes = rows.ahead_bytes() as u64;
                if !self.answer.covers(bytes + ahead_bytes) {
                    rows.drop_ahead();
                    ahead_bytes = 0;
                    message.gather();
                    let covered = match rows.suspend_aside().await {
                        Ok(()) => self.answer.cover(bytes).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = covered {
                        return Some(self.failed(&error));
                    }
                }
                self.has_ended = rows.has_ended();
                // A small read is over with its only message, and is to cost no more than that.
                let is_over = self.has_ended && self.answer.is_over_at_once(bytes);
                if !is_over {
                    let behind = if rows.has_ready() { rows.ready_bytes() } else { 0 };
                    self.answer.keep(behind as u64, ahead_bytes);
                    self.answer.park(Some(rows), self.clock.monotonic_micros());
                }
                Some((Ok((message, is_over)), self))
            }
            Err(error) => Some(self.failed(&error)),
        }
    }

    /// Its end.
    fn failed(mut self, error: &Error) -> (RowMessage, Self) {
        self.has_ended = true;
        (Err(from_error(error)), self)
    }
}

/// The status of every entry of a `MutateRows`, in order. `failed` are those that failed, by ascending
/// index; of what the operator must know of them, the log tells.
fn outcomes(count: usize, failed: Vec<(usize, Error)>) -> impl Iterator<Item = Entry> {
    status::tell_of_entries(failed.iter().map(|(_, error)| error));
    let mut failed = failed.into_iter().peekable();
    (0..count).map(move |index| {
        let status = match failed.next_if(|(at, ..)| *at == index) {
            Some((_, error)) => status::of_entry(&error),
            None => Default::default(),
        };
        Entry { index: index as i64, status: Some(status) }
    })
}

/// Packs entries into messages of at most [`MUTATE_ROWS_MESSAGE_BYTES_MAX`] bytes; at least one message,
/// since clients wait for one.
fn in_messages(entries: impl Iterator<Item = Entry>) -> Vec<MutateRowsResponse> {
    /// Bytes of a field's tag and length within a message, at most.
    const FRAMING_BYTES_MAX: usize = 11;
    let mut messages = vec![];
    let mut message = MutateRowsResponse::default();
    let mut bytes = 0;
    for entry in entries {
        let more = entry.encoded_len() + FRAMING_BYTES_MAX;
        if bytes + more > MUTATE_ROWS_MESSAGE_BYTES_MAX && !message.entries.is_empty() {
            messages.push(std::mem::take(&mut message));
            bytes = 0;
        }
        bytes += more;
        message.entries.push(entry);
    }
    messages.push(message);
    messages
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use http::HeaderName;
    use tepui_bigtable::schema::{FamilySchema, TableSchema};
    use tepui_engine::cell::{Mutation, RowBatch, RowRange};
    use tepui_engine::db::{Engine, EngineOptions};
    use tepui_engine::io::{Env, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};

    use super::*;
    use crate::admission::Gate;
    use crate::api::v2::ReadRowsRequest;
    use crate::call::Deadline;
    use crate::status::tests::logged;

    #[test]
    fn statuses_of_many_entries_come_in_bounded_messages_in_order() {
        let text = "x".repeat(1_000);
        let failed = (0..5_000).map(|i| (i, Error::invalid_argument(text.clone()))).collect();
        let messages = in_messages(outcomes(5_000, failed));
        assert!(messages.len() > 1);
        assert!(messages.iter().all(|m| m.encoded_len() <= MUTATE_ROWS_MESSAGE_BYTES_MAX));
        let indices: Vec<_> = messages.iter().flat_map(|m| &m.entries).map(|e| e.index).collect();
        assert_eq!(indices, (0..5_000).collect::<Vec<i64>>());
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_holds_no_room_and_who_waits_for_room_no_turn() {
        // Of which a connection may have an eighth: as much as one answer takes.
        let streams = Arc::new(Streams::new(8 * Answer::BYTES_MIN));
        let connection = streams.connection();
        let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
        let turns = Arc::new(Semaphore::new(1));
        let (mut first, mut second, mut other) = (answer(), answer(), answer());
        let taken = turn(&turns, &mut first).await.unwrap();
        first.taken();
        let mut waits = Box::pin(turn(&turns, &mut second));
        assert!(futures::poll!(&mut waits).is_pending(), "for its turn");
        assert!(other.has_room());
        drop(taken);
        assert!(futures::poll!(&mut waits).is_pending(), "for room");
        assert_eq!(turns.available_permits(), 1);
        other.taken();
        drop(waits.await.unwrap());
    }

    /// A table of so many rows of 100 KiB, all in memory.
    async fn large_table(rows: usize) -> (Arc<Engine>, Table) {
        let env = Env {
            files: Arc::new(MemoryFiles::new()),
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(1_767_225_600_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let engine = Engine::open(env.clone(), Path::new("/data"), options).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        let mut schema = TableSchema::new();
        let family = schema.allocate_family_id();
        schema.families.insert("f".to_owned(), FamilySchema::new(family));
        let tablets = vec![Arc::clone(&tablet)];
        let table = Table::new("t", tablets, Arc::new(schema), env.clock, env.rng).unwrap();
        for row in 0..rows {
            let value = vec![7; 100 << 10].into();
            let put = Mutation::Put { family, qualifier: "q".into(), timestamp: 1_000, value };
            let batch = RowBatch { row: format!("{row:03}").into(), mutations: vec![put] };
            tablet.apply(batch).await.unwrap();
        }
        (engine, table)
    }

    #[tokio::test]
    async fn a_read_whose_client_keeps_up_lets_go_of_old_memtables_when_memory_is_short() {
        let (engine, table) = large_table(60).await;
        let streams = Arc::new(Streams::new(64 << 20));
        let mut messages = RowMessages {
            rows: Some(table.read_rows(ReadRowsRequest::default()).unwrap()),
            is_under_way: false,
            has_ended: false,
            answer: streams.answer(Hold::default()),
            clock: engine.clock(),
        };
        let next = async |messages: RowMessages| {
            let (message, messages) = messages.next().await.unwrap();
            (message.unwrap().0.len(), messages)
        };
        let first;
        (first, messages) = next(messages).await;
        // Its client has asked for more by then.
        messages.rows = messages.answer.unpark().await;
        streams.relieve(0, true, &Gate::new(1 << 20, 1 << 20, 1 << 20));
        assert_eq!(streams.figures().suspended, 0, "it is not between two messages");
        let before = engine.memory().memtables;
        for tablet in engine.tablets() {
            tablet.flush().await.unwrap();
        }
        assert!(engine.memory().memtables >= before, "the read has them");
        let mut bytes = first;
        while !messages.has_ended {
            let message;
            (message, messages) = next(messages).await;
            bytes += message;
            let left = engine.memory().memtables;
            assert!(left < before / 4, "{left} bytes of memtables of {before}");
        }
        assert!(bytes > 60 * (100 << 10), "{bytes}");
        assert_eq!(streams.figures().suspended, 1, "once for each time that it is asked");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_nobody_reads_keeps_nothing_after_its_deadline() {
        let (engine, table) = large_table(60).await;
        let streams = Arc::new(Streams::new(64 << 20));
        let gate = Arc::new(Gate::new(4 << 20, 4 << 20, 1 << 20));
        let headers = [(HeaderName::from_static("grpc-timeout"), "10S".parse().unwrap())];
        let deadline = Deadline::of(&headers.into_iter().collect());
        let hold = Hold::new(Some(Arc::clone(&gate)), streams.connection(), deadline);
        hold.make_room_to_decode(1 << 20, true).await.unwrap();
        let messages = RowMessages {
            rows: Some(table.read_rows(ReadRowsRequest::default()).unwrap()),
            is_under_way: false,
            has_ended: false,
            answer: streams.answer(hold.clone()),
            clock: engine.clock(),
        };
        let (first, messages) = messages.next().await.unwrap();
        first.unwrap();
        streams.relieve(0, false, &gate);
        assert!(hold.request_bytes() > 0);
        tokio::time::advance(Duration::from_secs(10)).await;
        streams.relieve(0, false, &gate);
        assert_eq!(hold.request_bytes(), 0);
        // It does not look as if it had come to its end, should it be asked in this moment.
        let (next, messages) = messages.next().await.unwrap();
        assert_eq!(next.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert!(messages.next().await.is_none());
    }

    #[test]
    fn entries_that_did_not_fail_succeeded() {
        let failed = vec![(1, Error::not_found("a")), (2, Error::data_loss("b"))];
        let entries: Vec<_> = outcomes(4, failed)
            .map(|entry| (entry.index, entry.status.unwrap()))
            .map(|(index, status)| (index, status.code, status.message))
            .collect();
        let expected = [(0, 0, ""), (1, 5, "a"), (2, 15, "b"), (3, 0, "")];
        assert_eq!(entries, expected.map(|(i, c, m)| (i, c, m.to_owned())));
    }

    #[test]
    fn damage_that_entries_meet_is_told_of_in_the_log_once_and_refusals_are_not() {
        let damaged = |n: usize| Error::data_loss(format!("sst/{n}.sst: damage of entries"));
        let failed = |from: usize| {
            let failed = [damaged(from), damaged(from + 1), damaged(from), Error::not_found("row")];
            failed.into_iter().enumerate().collect()
        };
        let lines = |from: usize| logged(|| assert_eq!(outcomes(5, failed(from)).count(), 5));
        // While another test's thread is the first to tell of a failure, to nobody, what is told here may be lost; once one was heard, none is.
        assert!((0..10).any(|n| !lines(2 * n).is_empty()));
        let told = lines(100);
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(told.contains("sst/100.sst") && told.contains("sst/101.sst"), "{told}");
    }

    #[test]
    fn the_go_client_gets_large_rows_whole_and_the_python_client_with_their_names() {
        let of = |headers: &[(&'static str, &str)]| {
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.insert(*name, value.parse().unwrap());
            }
            large_rows(&all)
        };
        let features = ("bigtable-features", "qgEC");
        assert_eq!(of(&[("user-agent", "grpc-go/1.83.2"), features]), LargeRows::Whole);
        assert_eq!(of(&[("user-agent", "cbt-go/v1 grpc-go/1.83.2"), features]), LargeRows::Whole);
        assert_eq!(of(&[("user-agent", "grpc-go/1.83.2")]), LargeRows::Split);
        assert_eq!(of(&[("user-agent", "grpc-python/1.75.0"), features]), LargeRows::Split);
        assert_eq!(of(&[]), LargeRows::Split);
        for (version, expected) in [
            ("gl-python/3.11.2 grpc/1.75.0 gax/2.25.1 gccl/2.50.2-data", LargeRows::SplitNamed),
            ("gl-python/3.11.2 gccl/2.50.2-data-shim pb/6.33.0", LargeRows::SplitNamed),
            ("gl-python/3.11.2 grpc/1.75.0 gax/2.25.1 gapic/2.50.2 gccl/2.50.2", LargeRows::Split),
            ("gl-java/17 gapic/2.83.0 gccl/2.83.0 gax/2.70.0 grpc/1.75.0", LargeRows::Split),
        ] {
            assert_eq!(of(&[("x-goog-api-client", version)]), expected, "{version}");
        }
    }

    #[test]
    fn no_entries_are_one_empty_message() {
        assert_eq!(in_messages(std::iter::empty()), [MutateRowsResponse::default()]);
    }
}

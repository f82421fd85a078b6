//! The Bigtable API as a transfer uses it, over plaintext: one channel for each worker, and how an answer other than
//! "done" is taken.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_rpc::google::rpc;
use indicatif::ProgressBar;
use prost::Message as _;
use prost_types::Any;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::error::{Error, Result};

/// Largest message that is taken: a row comes in one or in several, and none is larger than a row can be.
const RESPONSE_BYTES_MAX: usize = 300 << 20;
/// HTTP/2 windows: small ones would make a long round trip the limit.
const WINDOW_BYTES: u32 = 16 << 20;
/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// How long an endpoint that takes connections may say nothing before it has said anything at all: what speaks HTTP/2 says what
/// it is by within a round trip. Shorter, and one that is busy beyond all measure is taken for none; longer, and who mistyped a port waits.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(10);
/// The least that a client of HTTP/2 begins with: its preface, and settings that change nothing (RFC 9113, 3.4).
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// How long a connection is silent until it is asked whether the other end is there, and how long that may take: a
/// machine that is gone says nothing. Google's own clients ask as often.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(30);
/// See [`KEEP_ALIVE_EVERY`].
const KEEP_ALIVE_WAIT: Duration = Duration::from_secs(20);
/// How long a call that is no write and no scan may go without an answer until it is made again: longer than the samples of
/// the largest table take.
const CALL_MAX: Duration = Duration::from_mins(5);
/// How often in a row something is tried again of which the error may be the server's last word as well as a broken
/// stream's: of these the library says several as if the server had. As often where an endpoint has answered nothing yet, and
/// may be none of gRPC.
const UNCLEAR_MAX: u32 = 5;
/// How long what is under way may go on once the operator wants an end.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The first wait where a server does not say how long; each further one is twice as long.
const DELAY_MIN: Duration = Duration::from_millis(50);
/// The longest wait, whoever asks for it.
const DELAY_MAX: Duration = Duration::from_secs(30);
/// How often a wait looks whether it should end.
const STOP_POLL: Duration = Duration::from_millis(200);
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// The table at the other end.
#[derive(Debug, Clone)]
pub struct Target {
    /// `HOST:PORT`, with or without `http://`.
    pub endpoint: String,
    /// The project's id.
    pub project: String,
    /// The instance's id.
    pub instance: String,
    /// The table's id.
    pub table: String,
    /// The app profile to go by; empty for the default one.
    pub app_profile: String,
}

impl Target {
    /// The instance's full name.
    pub fn instance_name(&self) -> String {
        format!("projects/{}/instances/{}", self.project, self.instance)
    }

    /// The server's address, in one form however it was written.
    pub fn address(&self) -> &str {
        let address = self.endpoint.strip_prefix("http://").unwrap_or(&self.endpoint);
        address.trim_end_matches('/')
    }

    /// The table's full name.
    pub fn table_name(&self) -> String {
        format!("{}/tables/{}", self.instance_name(), self.table)
    }
}

/// What makes a transfer end early.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks everything that it was given to to end soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it should.
    pub fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error where it should.
    pub fn check(&self) -> Result<()> {
        if self.stopped() { Err(Error::interrupted("interrupted")) } else { Ok(()) }
    }

    /// What a request comes to; where that takes more than `most`, or more than [`STOP_GRACE`] after a stop, an error
    /// that calls for another attempt.
    pub async fn in_time<T>(
        &self,
        most: Duration,
        request: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let late = async {
            let begun = Instant::now();
            while !self.stopped() && begun.elapsed() < most {
                tokio::time::sleep(STOP_POLL).await;
            }
            if self.stopped() {
                tokio::time::sleep(STOP_GRACE).await;
            }
        };
        match select(pin!(request), pin!(late)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }
}

/// Whether an answer calls for another attempt, and after how long if it says so.
pub fn retry(code: Code, made_here: bool) -> bool {
    match code {
        Code::Unavailable | Code::ResourceExhausted | Code::Aborted | Code::DeadlineExceeded => {
            true
        }
        // A connection that broke.
        Code::Unknown | Code::Internal | Code::Cancelled => made_here,
        _ => false,
    }
}

/// The same for the status of a call.
pub fn retry_status(status: &Status) -> bool {
    retry(status.code(), std::error::Error::source(status).is_some())
}

/// How long a status asks to wait.
pub fn delay_of(status: &rpc::Status) -> Option<Duration> {
    let info = status.details.iter().find(|any| any.type_url == RETRY_INFO)?;
    let delay = rpc::RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?))
}

/// How long the status of a call asks to wait: its details are a `google.rpc.Status`.
pub fn delay_of_call(status: &Status) -> Option<Duration> {
    delay_of(&rpc::Status::decode(status.details()).ok()?)
}

/// Takes what may be the details of a call's status, and what may be its wish to wait, for fuzzing.
pub(crate) fn fuzz(data: &[u8]) {
    let details = Bytes::copy_from_slice(data);
    let _ = delay_of_call(&Status::with_details(Code::Unavailable, "", details));
    let wish = Any { type_url: RETRY_INFO.to_owned(), value: data.to_vec() };
    let _ = delay_of(&rpc::Status { details: vec![wish], ..rpc::Status::default() });
}

/// A status in words.
pub fn words(what: &str, status: &Status) -> String {
    let mut text = format!("{what}: {:?}: {}", status.code(), status.message());
    // The last one is the system's: "connection refused".
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = error.source();
    }
    text
}

/// Waits between attempts, and gives up when there has been no success for too long.
#[derive(Debug)]
pub struct Patience {
    most: Duration,
    stop: Stop,
    failing_since: Option<Instant>,
    delay: Duration,
    /// Attempts since the last success that ended unclear; see [`UNCLEAR_MAX`].
    unclear: u32,
    /// Until the endpoint's first answer: where it is said that something is tried again.
    unanswered: Option<ProgressBar>,
}

impl Patience {
    /// Gives up after `most` without success.
    pub fn new(most: Duration, stop: Stop) -> Self {
        Self { most, stop, failing_since: None, delay: DELAY_MIN, unclear: 0, unanswered: None }
    }

    /// The same for the first calls of all: a port that is not one of gRPC breaks each connection as a server does that goes
    /// down, so that until one call has succeeded this is unclear. Says at `bar` why it waits.
    pub fn first(most: Duration, stop: Stop, bar: &ProgressBar) -> Self {
        Self { unanswered: Some(bar.clone()), ..Self::new(most, stop) }
    }

    /// See [`Stop::in_time`].
    pub async fn in_time<T>(
        &self,
        most: Duration,
        request: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        self.stop.in_time(most, request).await
    }

    /// Whether the status of a call that may be made twice calls for another attempt.
    pub fn calls_again(&mut self, status: &Status) -> bool {
        let unclear = matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled);
        let again = retry_status(status);
        if !unclear || (again && self.unanswered.is_none()) {
            return again;
        }
        self.unclear += 1;
        self.unclear <= UNCLEAR_MAX
    }

    /// What a call is answered that may be made twice, or with what it is refused for good.
    async fn call<T, F: Future<Output = Result<T, Status>>>(
        &mut self,
        what: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<Result<T, Status>> {
        loop {
            let status = match self.in_time(CALL_MAX, call()).await {
                Ok(answer) => {
                    self.succeeded();
                    return Ok(Ok(answer));
                }
                Err(status) => status,
            };
            if !self.calls_again(&status) {
                return Ok(Err(status));
            }
            self.wait(delay_of_call(&status), &words(what, &status)).await?;
        }
    }

    /// Something went right.
    pub fn succeeded(&mut self) {
        self.unanswered = None;
        self.unclear = 0;
        self.failing_since = None;
        self.delay = DELAY_MIN;
    }

    /// Waits before the next attempt: as long as the server said, else longer each time.
    pub async fn wait(&mut self, said: Option<Duration>, why: &str) -> Result<()> {
        self.stop.check()?;
        let now = Instant::now();
        if let (None, Some(bar)) = (self.failing_since, &self.unanswered) {
            crate::tell(bar, &format!("{why}; trying again"));
        }
        let since = *self.failing_since.get_or_insert(now);
        // A server that says "at once" would be asked without a pause.
        let wait = said.filter(|said| !said.is_zero()).unwrap_or(self.delay).min(DELAY_MAX);
        if now.duration_since(since) + wait > self.most {
            let seconds = now.duration_since(since).as_secs();
            return Err(Error::failed(format!("gave up after {seconds} s of attempts: {why}")));
        }
        self.delay = (self.delay * 2).min(DELAY_MAX);
        let until = now + wait;
        while Instant::now() < until {
            self.stop.check()?;
            tokio::time::sleep(STOP_POLL.min(until.duration_since(Instant::now()))).await;
        }
        self.stop.check()
    }
}

fn wrong_endpoint(target: &Target, why: &str) -> Error {
    Error::failed(format!("endpoint {:?}: {why}", target.endpoint))
}

/// How to connect.
fn endpoint(target: &Target) -> Result<Endpoint> {
    if target.endpoint.starts_with("https://") {
        return Err(wrong_endpoint(target, "only plaintext endpoints are supported"));
    }
    let wrong = || wrong_endpoint(target, "it must be HOST:PORT");
    let address = target.address();
    let port = address.rsplit_once(':').map(|(_, port)| port);
    if !port.is_some_and(|port| matches!(port.parse::<u16>(), Ok(1..))) {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?;
    Ok(endpoint
        .connect_timeout(CONNECT_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_WAIT))
}

/// Sees that somebody is at the endpoint who says something, whatever it is, or hangs up, by a connection of its own. On one that is silent the
/// client would wait, and again, until its patience is at an end.
async fn greet(target: &Target, stop: &Stop) -> Result<()> {
    let connecting = async { Ok(TcpStream::connect(target.address()).await) };
    let connected = stop.in_time(FIRST_ANSWER_MAX, connecting).await;
    stop.check()?;
    // An address that drops what comes: the channel, which tries others beside it, is to say what becomes of that.
    let Ok(connected) = connected else { return Ok(()) };
    let mut stream =
        connected.map_err(|error| wrong_endpoint(target, &format!("cannot connect: {error}")))?;
    let answer = async {
        // One that breaks the connection is told of by the first call.
        if stream.write_all(GREETING).await.is_ok() {
            drop(stream.read_u8().await);
        }
        Ok(())
    };
    let answered = stop.in_time(FIRST_ANSWER_MAX, answer).await;
    stop.check()?;
    answered.map_err(|_| {
        let seconds = FIRST_ANSWER_MAX.as_secs();
        let why = format!(
            "it accepts connections, but does not answer: nothing came in {seconds} s. Is it the port of a server of the Bigtable API?"
        );
        wrong_endpoint(target, &why)
    })
}

/// A table's families, each with what it aggregates by, in a word; none for one that keeps what is written.
pub type FamilyTypes = BTreeMap<String, Option<&'static str>>;

/// See [`FamilyTypes`].
fn aggregate_of(family: &admin::ColumnFamily) -> Option<&'static str> {
    use admin::r#type::{Kind, aggregate::Aggregator};
    let Some(Kind::AggregateType(aggregate)) = &family.value_type.as_ref()?.kind else {
        return None;
    };
    Some(match &aggregate.aggregator {
        Some(Aggregator::Sum(_)) => "sum",
        Some(Aggregator::Min(_)) => "min",
        Some(Aggregator::Max(_)) => "max",
        Some(Aggregator::HllppUniqueCount(_)) => "hllpp",
        None => "aggregate",
    })
}

/// What has the name of a table that a transfer began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableNow {
    /// That table, as far as anybody can tell.
    Same,
    /// A later one.
    Another,
    /// None.
    Gone,
}

/// A client of one table. Clones share the channel.
#[derive(Debug, Clone)]
pub struct Client {
    data: v2::bigtable_client::BigtableClient<Channel>,
    admin: admin::bigtable_table_admin_client::BigtableTableAdminClient<Channel>,
    target: Arc<Target>,
    routing: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl Client {
    /// Connects. An endpoint that is not there is an error at once, and one that says nothing after [`FIRST_ANSWER_MAX`].
    pub async fn connect(target: &Target, stop: &Stop) -> Result<Self> {
        let endpoint = endpoint(target)?;
        greet(target, stop).await?;
        let connecting = async {
            endpoint.connect().await.map_err(|error| {
                let source =
                    std::error::Error::source(&error).map_or(String::new(), |s| format!(": {s}"));
                Status::unavailable(format!("{error}{source}"))
            })
        };
        let connected = stop.in_time(Duration::MAX, connecting).await;
        stop.check()?;
        let channel = connected.map_err(|status| wrong_endpoint(target, status.message()))?;
        Ok(Self::over(target, channel))
    }

    /// Connects with the first request, and so as often as that is tried. Within a runtime.
    pub fn connect_lazily(target: &Target) -> Result<Self> {
        Ok(Self::over(target, endpoint(target)?.connect_lazy()))
    }

    fn over(target: &Target, channel: Channel) -> Self {
        let data = v2::bigtable_client::BigtableClient::new(channel.clone())
            .max_decoding_message_size(RESPONSE_BYTES_MAX);
        let admin = admin::bigtable_table_admin_client::BigtableTableAdminClient::new(channel);
        let routing = format!(
            "table_name={}&app_profile_id={}",
            target.table_name().replace('/', "%2F"),
            target.app_profile
        );
        Self { data, admin, target: Arc::new(target.clone()), routing: routing.parse().ok() }
    }

    /// The table.
    pub fn target(&self) -> &Target {
        &self.target
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(routing) = &self.routing {
            request.metadata_mut().insert("x-goog-request-params", routing.clone());
        }
        request
    }

    /// Begins a read of the table.
    pub async fn read(
        &mut self,
        rows: Option<v2::RowSet>,
        filter: Option<v2::RowFilter>,
    ) -> Result<tonic::Streaming<v2::ReadRowsResponse>, Status> {
        let message = v2::ReadRowsRequest {
            table_name: self.target.table_name(),
            app_profile_id: self.target.app_profile.clone(),
            rows,
            filter,
            ..Default::default()
        };
        let request = self.request(message);
        Ok(self.data.read_rows(request).await?.into_inner())
    }

    /// Begins a write of rows.
    pub async fn write(
        &mut self,
        entries: Vec<v2::mutate_rows_request::Entry>,
    ) -> Result<tonic::Streaming<v2::MutateRowsResponse>, Status> {
        let message = v2::MutateRowsRequest {
            table_name: self.target.table_name(),
            app_profile_id: self.target.app_profile.clone(),
            entries,
            ..Default::default()
        };
        let request = self.request(message);
        Ok(self.data.mutate_rows(request).await?.into_inner())
    }

    /// Keys that divide the table, each with about how many bytes lie before it.
    pub async fn samples(&self, patience: &mut Patience) -> Result<Vec<(bytes::Bytes, u64)>> {
        let message = v2::SampleRowKeysRequest {
            table_name: self.target.table_name(),
            app_profile_id: self.target.app_profile.clone(),
            ..Default::default()
        };
        let call = || {
            let (mut data, request) = (self.data.clone(), self.request(message.clone()));
            async move {
                let mut stream = data.sample_row_keys(request).await?.into_inner();
                let mut samples = Vec::new();
                while let Some(sample) = stream.message().await? {
                    let offset = u64::try_from(sample.offset_bytes).unwrap_or(0);
                    samples.push((sample.row_key, offset));
                }
                Ok(samples)
            }
        };
        let sampled = patience.call("SampleRowKeys", call).await?;
        sampled.map_err(|status| Error::failed(words("SampleRowKeys", &status)))
    }

    /// The table's families; none where there is no table.
    pub async fn families(&self, patience: &mut Patience) -> Result<Option<FamilyTypes>> {
        let message =
            admin::GetTableRequest { name: self.target.table_name(), ..Default::default() };
        let call = || {
            let (mut admin, request) = (self.admin.clone(), self.request(message.clone()));
            async move { admin.get_table(request).await }
        };
        match patience.call("GetTable", call).await? {
            Ok(table) => {
                let families = table.into_inner().column_families.into_iter();
                Ok(Some(families.map(|(name, family)| (name, aggregate_of(&family))).collect()))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(Error::failed(words("GetTable", &status))),
        }
    }

    /// Makes the table, without families; one that is there is left as it is.
    pub async fn create_table(&self, patience: &mut Patience) -> Result<()> {
        let message = admin::CreateTableRequest {
            parent: self.target.instance_name(),
            table_id: self.target.table.clone(),
            table: Some(admin::Table { column_families: HashMap::new(), ..Default::default() }),
            ..Default::default()
        };
        let call = || {
            let (mut admin, request) = (self.admin.clone(), self.request(message.clone()));
            async move { admin.create_table(request).await.map(drop) }
        };
        let made = settled(patience.call("CreateTable", call).await?);
        made.map_err(|status| Error::failed(words("CreateTable", &status)))
    }

    /// What tells the table from a later one of its name; none where the server gives no such token.
    pub async fn token(&self, patience: &mut Patience) -> Result<Option<String>> {
        let name = self.target.table_name();
        let message = admin::GenerateConsistencyTokenRequest { name };
        let call = || {
            let (mut admin, request) = (self.admin.clone(), self.request(message.clone()));
            async move { admin.generate_consistency_token(request).await }
        };
        let token = patience.call("GenerateConsistencyToken", call).await?;
        Ok(token.ok().map(|token| token.into_inner().consistency_token))
    }

    /// What a token says of the table that has the name now.
    pub async fn table_now(&self, token: &str, patience: &mut Patience) -> Result<TableNow> {
        let message = admin::CheckConsistencyRequest {
            name: self.target.table_name(),
            consistency_token: token.to_owned(),
            ..Default::default()
        };
        let call = || {
            let (mut admin, request) = (self.admin.clone(), self.request(message.clone()));
            async move { admin.check_consistency(request).await }
        };
        match patience.call("CheckConsistency", call).await? {
            Ok(_) => Ok(TableNow::Same),
            Err(status) => match status.code() {
                Code::NotFound => Ok(TableNow::Gone),
                Code::InvalidArgument | Code::FailedPrecondition => Ok(TableNow::Another),
                // Who may not ask, or where nobody answers, goes on as without a token.
                Code::Unimplemented | Code::PermissionDenied => Ok(TableNow::Same),
                _ => Err(Error::failed(words("CheckConsistency", &status))),
            },
        }
    }

    /// The same at the end of a transfer that was begun with a token, which may be none; over a connection of its own. Within a
    /// runtime.
    pub async fn table_at_end(
        target: &Target,
        token: Option<&str>,
        patience: &mut Patience,
    ) -> Result<TableNow> {
        match token {
            None => Ok(TableNow::Same),
            Some(token) => Self::connect_lazily(target)?.table_now(token, patience).await,
        }
    }

    /// Makes a family that keeps all versions; one that is there is left as it is. Why not, where it is the family that
    /// the server refuses.
    pub async fn create_family(
        &self,
        family: &str,
        patience: &mut Patience,
    ) -> Result<Result<(), String>> {
        use admin::modify_column_families_request::{Modification, modification::Mod};
        let message = admin::ModifyColumnFamiliesRequest {
            name: self.target.table_name(),
            modifications: vec![Modification {
                id: family.to_owned(),
                r#mod: Some(Mod::Create(admin::ColumnFamily::default())),
                ..Default::default()
            }],
            ..Default::default()
        };
        let call = || {
            let (mut admin, request) = (self.admin.clone(), self.request(message.clone()));
            async move { admin.modify_column_families(request).await.map(drop) }
        };
        match settled(patience.call("ModifyColumnFamilies", call).await?) {
            Ok(()) => Ok(Ok(())),
            Err(status)
                if matches!(
                    status.code(),
                    Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange
                ) =>
            {
                let (code, why) = (status.code(), status.message());
                Ok(Err(format!("family {family:?} cannot be made: {code:?}: {why}")))
            }
            Err(status) => Err(Error::failed(words("ModifyColumnFamilies", &status))),
        }
    }
}

/// What is there already was made by somebody else in the meantime, or by an attempt that broke.
fn settled(done: Result<(), Status>) -> Result<(), Status> {
    done.or_else(|status| if status.code() == Code::AlreadyExists { Ok(()) } else { Err(status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience(seconds: u64) -> Patience {
        Patience::new(Duration::from_secs(seconds), Stop::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_obeyed_and_given_up_when_nothing_succeeds_for_too_long() {
        let mut patience = patience(100);
        let begun = Instant::now();
        patience.wait(Some(Duration::from_secs(7)), "busy").await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 7);
        // An absurd request is cut short.
        patience.wait(Some(Duration::from_secs(100_000)), "busy").await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 37);
        let ended = loop {
            if let Err(error) = patience.wait(None, "busy").await {
                break error;
            }
        };
        assert!(ended.to_string().contains("of attempts: busy"), "{ended}");
        assert!(begun.elapsed() <= Duration::from_secs(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_to_come_back_at_once_is_not_asked_without_a_pause() {
        let mut patience = patience(100);
        let begun = Instant::now();
        for _ in 0..4 {
            patience.wait(Some(Duration::ZERO), "busy").await.unwrap();
        }
        assert_eq!(begun.elapsed(), DELAY_MIN * (1 + 2 + 4 + 8));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_is_asked_again_or_left_when_the_operator_wants_an_end() {
        let stop = Stop::default();
        let never = || std::future::pending::<Result<(), Status>>();
        let begun = Instant::now();
        let ended = stop.in_time(Duration::from_mins(1), never()).await;
        assert!(retry_status(&ended.unwrap_err()));
        assert!(begun.elapsed() <= Duration::from_mins(1) + STOP_POLL);
        stop.stop();
        let begun = Instant::now();
        assert!(stop.in_time(Duration::from_mins(1), never()).await.is_err());
        assert!(begun.elapsed() <= STOP_GRACE + STOP_POLL);
        let soon = async {
            tokio::time::sleep(STOP_GRACE / 2).await;
            Ok(7)
        };
        assert_eq!(stop.in_time(Duration::from_mins(1), soon).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_starts_the_clock_anew() {
        let mut patience = patience(40);
        for _ in 0..10 {
            patience.wait(Some(Duration::from_secs(30)), "busy").await.unwrap();
            patience.succeeded();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_it_is_told_to() {
        let stop = Stop::default();
        let mut patience = Patience::new(Duration::from_secs(100), stop.clone());
        let waiting = async { patience.wait(Some(Duration::from_secs(30)), "busy").await };
        let stopping = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.stop();
        };
        let begun = Instant::now();
        let (waited, ()) = futures::join!(waiting, stopping);
        assert_eq!(waited.unwrap_err().kind(), crate::error::ErrorKind::Interrupted);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn what_a_connection_breaks_is_tried_again_and_what_the_server_refuses_is_not() {
        for code in [Code::Unavailable, Code::ResourceExhausted, Code::Aborted] {
            assert!(retry(code, false));
        }
        assert!(retry(Code::Unknown, true) && !retry(Code::Unknown, false));
        for code in [Code::InvalidArgument, Code::NotFound, Code::PermissionDenied] {
            assert!(!retry(code, true));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_never_answered_is_made_again_and_one_that_is_refused_is_not() {
        let mut patience = patience(100);
        let mut calls = 0;
        let call = || {
            calls += 1;
            let call = calls;
            async move {
                match call {
                    1 => std::future::pending().await,
                    2 => Err(Status::unavailable("away")),
                    3 => Err(Status::internal("a stream that broke")),
                    _ => Ok(call),
                }
            }
        };
        assert_eq!(patience.call("Call", call).await.unwrap().unwrap(), 4);
        let refuse = || async { Err::<(), _>(Status::not_found("no table")) };
        let refused = patience.call("Call", refuse).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        let wrong = || async { Err::<(), _>(Status::internal("this server is wrong")) };
        let begun = Instant::now();
        assert!(patience.call("Call", wrong).await.unwrap().is_err());
        assert_eq!(begun.elapsed(), DELAY_MIN * (1 + 2 + 4 + 8 + 16));
    }

    /// What it comes to to connect there.
    async fn refused(endpoint: &str) -> String {
        let target = Target {
            endpoint: endpoint.to_owned(),
            project: "p".to_owned(),
            instance: "i".to_owned(),
            table: "t".to_owned(),
            app_profile: String::new(),
        };
        Client::connect(&target, &Stop::default()).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn endpoints_that_cannot_be_are_refused() {
        for endpoint in ["https://h:1", "h", "h:0", "h:x", ""] {
            refused(endpoint).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_takes_connections_and_says_nothing_is_an_error_soon() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let begun = Instant::now();
        let error = refused(&endpoint).await;
        assert!(error.contains(&endpoint) && error.contains("does not answer"), "{error}");
        assert!(begun.elapsed() <= FIRST_ANSWER_MAX + CONNECT_MAX);
        drop(listener);
        let error = refused(&endpoint).await;
        assert!(error.contains(&endpoint) && error.contains("Connection refused"), "{error}");
    }
}

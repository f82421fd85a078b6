//! Change streams as the API has them: where a request begins, what it is sent, and how it ends.
//!
//! ```text
//!        start time, tokens                                             the client goes, the server stops
//!               │                                                                    │
//!  check ──► position ──► read a portion ──► a message at a time ──► nothing left: wait ──┴──► end
//!                              ▲                                       │  for a change, a heartbeat, the end time
//!                              └───────────────────────────────────────┘
//! ```
//!
//! A partition is the row range of a tablet. Of one that is no longer (the request's rows lie in several tablets), the client is told at
//! once how to go on, by a `CloseStream` with a token for each part. A stream holds a portion of changes and the
//! message that its client has not taken; both are taken from the budget of answers before messages are made. A portion that turns out to take
//! more than it had room for, and for which there is none at once, is let go, and read again when there is: so what is in memory without room
//! is what the threads that read have in their hands.
//!
//! Delivery is at least once: a client that goes on from a token gets everything after it, once and in the order of commits; what it
//! had got after that token, it gets again.
//!
//! A stream is that of the table, and of the time since changes are kept, for which it was begun: where a client reads slowly while
//! the stream is disabled and enabled again, it is told so instead of being led over the gap.

mod families;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tepui_bigtable::changes::message::{Families, Messages, message_bytes, timestamp};
use tepui_bigtable::changes::partition::{Positions, from_message, to_message};
use tepui_bigtable::changes::token::Token;
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::schema::TableSchema;
use tepui_bigtable::table::Table;
use tepui_engine::ErrorKind;
use tepui_engine::cell::{RowRange, Seq};
use tepui_engine::changes::{Change, ChangeReader, commit_micros, position_before};
use tepui_engine::io::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;

use crate::admission::{Answer, Lent};
use crate::api::rpc;
use crate::api::v2::read_change_stream_request::StartFrom;
use crate::api::v2::read_change_stream_response::{CloseStream, Heartbeat, StreamRecord};
use crate::api::v2::{
    GenerateInitialChangeStreamPartitionsResponse, ReadChangeStreamRequest,
    ReadChangeStreamResponse, StreamContinuationToken,
};
use crate::catalog::Entry;
use crate::limits::{
    CHANGE_DISK_READS_MAX, CHANGE_NEW_PARTITIONS_MAX, CHANGE_PORTION_BYTES, CHANGE_STREAM_BYTES,
    CHANGE_STREAMS_RETRY, CLOCK_SKEW_MAX, HEARTBEAT, HEARTBEAT_MAX, HEARTBEAT_MIN,
};
use crate::runtime::{self, Signal};
use crate::services::Tables;
use crate::status::from_error;
use crate::workers;
use families::SharedFamilies;

/// How long after its end time a stream is closed at the latest, in microseconds: then a fence, which is a second
/// old at most, is behind it.
const END_SLACK_MICROS: i64 = 1_002_000;

/// How long after a fence a stream whose end time has passed asks for another, if that did not end it: while the disk is full a
/// fence stays where the last write is. Sooner, such streams would take a processor to find the disk as full as it was; later,
/// they would end long after there is room.
const FENCE_AGAIN: Duration = Duration::from_secs(1);

/// How long a stream waits for a fence: many syncs of a slow disk. Longer, and what there is to read would wait with it where the log is held up,
/// and the heartbeat; with less, a heartbeat would tell of an older time than it could.
const FENCE_WAIT: Duration = Duration::from_secs(1);

/// What all change streams of a server share.
pub struct ChangeStreams {
    tables: Arc<Tables>,
    clock: Arc<dyn Clock>,
    /// Portions that are read from the disk at a time; the thread that reads one has the permit, whoever waits for it.
    disk: Arc<Semaphore>,
    /// Streams that there may be.
    room: Arc<Semaphore>,
    /// As many as these.
    room_max: usize,
    families: SharedFamilies<Table>,
    /// Given when the server stops.
    stopping: Signal,
}

/// What a request asks for, once it was checked.
#[derive(Debug)]
struct Asked {
    partition: RowRange,
    positions: Positions,
    /// The last position that belongs to the stream.
    end: Option<Seq>,
    heartbeat: Duration,
}

impl Asked {
    /// Whether a change is one of the stream's.
    fn shows(&self, change: &Change) -> bool {
        self.end.is_none_or(|end| change.first_seq <= end)
            && self.partition.contains(&change.batch.row)
            && self.positions.is_after(&change.batch.row, change.last_seq)
    }
}

impl ChangeStreams {
    /// Streams of these tables, so many at most.
    pub fn new(
        tables: Arc<Tables>,
        clock: Arc<dyn Clock>,
        room_max: usize,
        stopping: Signal,
    ) -> Self {
        let disk = Arc::new(Semaphore::new(CHANGE_DISK_READS_MAX));
        let room = Arc::new(Semaphore::new(room_max));
        let families = SharedFamilies::default();
        Self { tables, clock, disk, room, room_max, families, stopping }
    }

    /// Room for one more stream, whose request holds so many bytes.
    fn room(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let places = bytes.div_ceil(CHANGE_STREAM_BYTES).max(1);
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(places);
        room.map_err(|_| {
            let most = self.room_max;
            let what = format!(
                "change streams have all of the memory that they may: there is room for {most} of them, or fewer with more tokens"
            );
            Error::overloaded(what, CHANGE_STREAMS_RETRY)
        })
    }

    /// The partitions of a table's stream, in row order.
    pub fn partitions(
        &self,
        table: &str,
    ) -> Result<Vec<GenerateInitialChangeStreamPartitionsResponse>> {
        let entry = self.streaming(table)?;
        let partition = |range| GenerateInitialChangeStreamPartitionsResponse {
            partition: Some(to_message(range)),
        };
        Ok(entry.table.tablets().map(|(range, _)| partition(range)).collect())
    }

    /// Begins a stream. `cluster` is the cluster that changes are said to come from.
    pub async fn read(
        self: &Arc<Self>,
        request: &ReadChangeStreamRequest,
        cluster: Arc<str>,
        mut answer: Answer,
    ) -> Result<impl futures::Stream<Item = Result<ReadChangeStreamResponse, Status>> + Send + use<>>
    {
        let entry = self.streaming(&request.table_name)?;
        let room = self.room(answer.request_bytes())?;
        let begun = begin(request, &entry).await?;
        let now = self.clock.now_micros();
        let expires = entry.table.expiry_micros().unwrap_or(now);
        let asked = asked(request, &entry, (now, self.tables.newest_micros()), expires, begun)?;
        answer.request_is_carried_out();
        let tablets: Vec<_> = entry
            .table
            .tablets()
            .filter(|(range, _)| !range.intersect(&asked.partition).is_empty())
            .map(|(range, tablet)| (range.clone(), Arc::clone(tablet)))
            .collect();
        let mut pending = VecDeque::new();
        let reader = match &tablets[..] {
            [(_, tablet)] => Some(tablet.changes_after(asked.positions.least())),
            _ => {
                let ranges: Vec<_> = tablets.iter().map(|(range, _)| range.clone()).collect();
                let message = moved(entry.record.incarnation, &asked, &ranges);
                answer.cover(message.encoded_len() as u64).await?;
                pending.push_back(Pending::Message(Box::new(message)));
                None
            }
        };
        let schema = entry.table.schema();
        let stream = ChangeStream {
            streams: Arc::clone(self),
            families: self.families.of(&entry, &schema),
            schema,
            entry,
            cluster,
            ended: reader.is_none(),
            reader,
            heartbeat_at: Instant::now() + asked.heartbeat,
            fence_at: Instant::now(),
            asked: Arc::new(asked),
            pending,
            answer,
            _room: room,
        };
        Ok(futures::stream::unfold(stream, |mut stream| async {
            let next = stream.next().await?;
            Some((next, stream))
        }))
    }

    /// The table, if it has a change stream.
    fn streaming(&self, table: &str) -> Result<Arc<Entry<Table>>> {
        let entry = self.tables.get(table)?;
        if entry.record.change_stream_config.is_none() {
            return Err(Error::failed_precondition(format!(
                "Change streams are not enabled on table {table:?}: set change_stream_config first"
            )));
        }
        Ok(entry)
    }
}

fn stopping() -> Status {
    from_error(&Error::unavailable("the server is shutting down; go on from the last token"))
}

/// Where a stream begins that does not say so. Not at the time: where the clock is set back, what is written then comes before it in
/// the history.
async fn begin(request: &ReadChangeStreamRequest, entry: &Entry<Table>) -> Result<Seq> {
    let tablet = entry.table.tablets().next().map(|(_, tablet)| Arc::clone(tablet));
    match tablet.filter(|_| request.start_from.is_none()) {
        Some(tablet) => Ok(tablet.fence_changes().await?),
        None => Ok(0),
    }
}

/// Checks a request. `begun` is where it begins if it does not say so; `expires` is the time by which changes expire; `newest` the one by
/// which something is in the future, since commits have the times up to there.
fn asked(
    request: &ReadChangeStreamRequest,
    entry: &Entry<Table>,
    (now, newest): (i64, i64),
    expires: i64,
    begun: Seq,
) -> Result<Asked> {
    let partition = from_message("partition", request.partition.as_ref())?;
    let record = &entry.record;
    let retention = record.change_stream_retention().unwrap_or_default();
    let retention = i64::try_from(retention.as_micros()).unwrap_or(i64::MAX);
    let since = record.change_stream_since;
    let oldest = oldest(expires.saturating_sub(retention), since, now);
    let too_old = |what: &str| {
        Err(Error::out_of_range(format!(
            "{what} is before what the change stream has: it begins at {oldest} microseconds since 1970"
        )))
    };
    let mut start = None;
    let positions = match &request.start_from {
        None => Positions::one(partition.clone(), begun.max(since)),
        Some(StartFrom::StartTime(time)) => {
            let time = micros("start_time", time)?;
            let skew = i64::try_from(CLOCK_SKEW_MAX.as_micros()).unwrap_or(i64::MAX);
            if time > newest.saturating_add(skew) {
                return Err(Error::field("start_time", "must not be in the future"));
            }
            if time < oldest {
                return too_old("start_time");
            }
            start = Some(time);
            Positions::one(partition.clone(), position_before(time).max(since))
        }
        Some(StartFrom::ContinuationTokens(tokens)) => {
            let positions = Positions::of_tokens(record.incarnation, &partition, tokens)?;
            let least = positions.least();
            if least < since || commit_micros(least) < oldest {
                return too_old("a continuation token");
            }
            positions
        }
    };
    let end = request.end_time.as_ref().map(|time| micros("end_time", time)).transpose()?;
    if let (Some(start), Some(end)) = (start, end)
        && end < start
    {
        return Err(Error::field("end_time", "must not be before start_time"));
    }
    let end = end.map(|end| position_before(end.saturating_add(1_000)));
    let heartbeat = heartbeat(request.heartbeat_duration.as_ref())?;
    Ok(Asked { partition, positions, end, heartbeat })
}

/// The first time at which a stream may begin, of one that was enabled at `since`. By a clock that was ahead then that is yet to come, and
/// says nothing of times: what is written by now is behind it all the same, since sequences do not go back.
fn oldest(kept_micros: i64, since: Seq, now: i64) -> i64 {
    let enabled = commit_micros(since);
    if enabled > now { kept_micros } else { kept_micros.max(enabled) }
}

/// A time as microseconds since 1970.
fn micros(field: &str, time: &prost_types::Timestamp) -> Result<i64> {
    let nanos = (0..1_000_000_000).contains(&time.nanos).then_some(i64::from(time.nanos));
    let seconds = time.seconds.checked_mul(1_000_000);
    match (seconds, nanos) {
        (Some(seconds), Some(nanos)) if seconds >= 0 => Ok(seconds.saturating_add(nanos / 1_000)),
        _ => Err(Error::field(field, "not a time from 1970 on")),
    }
}

fn heartbeat(given: Option<&prost_types::Duration>) -> Result<Duration> {
    let Some(given) = given else { return Ok(HEARTBEAT) };
    match Duration::try_from(*given) {
        Ok(every) if every >= HEARTBEAT_MIN => Ok(every.min(HEARTBEAT_MAX)),
        _ => Err(Error::field(
            "heartbeat_duration",
            format!("must be at least {} ms", HEARTBEAT_MIN.as_millis()),
        )),
    }
}

/// Tells a client that its partition's rows are in several tablets, and where to go on in each; where there are many, in some that
/// are next to each other: whoever goes on with such a part is told again.
fn moved(table: u64, asked: &Asked, tablets: &[RowRange]) -> ReadChangeStreamResponse {
    let mut close = CloseStream {
        status: Some(rpc::Status {
            code: tonic::Code::OutOfRange.into(),
            message: "the partition has changed: go on with the new partitions".to_owned(),
            details: Vec::new(),
        }),
        ..CloseStream::default()
    };
    let together = tablets.len().div_ceil(CHANGE_NEW_PARTITIONS_MAX).max(1);
    for tablets in tablets.chunks(together) {
        let (Some(first), Some(last)) = (tablets.first(), tablets.last()) else { continue };
        let rows = RowRange::new(first.start.clone(), last.end.clone());
        if let Some((part, position)) = asked.positions.within(&rows) {
            close.continuation_tokens.push(token(table, &part, position));
            // What the request does not cover of a tablet, somebody else reads: the parts are what is to be read on.
            close.new_partitions.push(to_message(&part));
        }
    }
    record(StreamRecord::CloseStream(close))
}

fn token(table: u64, partition: &RowRange, position: Seq) -> StreamContinuationToken {
    StreamContinuationToken {
        partition: Some(to_message(partition)),
        token: Token::new(table, partition, position).to_string(),
    }
}

fn record(record: StreamRecord) -> ReadChangeStreamResponse {
    ReadChangeStreamResponse { stream_record: Some(record) }
}

/// What a client is to be sent.
enum Pending {
    /// A change, or what is left of it to be shown.
    Change(Messages),
    Message(Box<ReadChangeStreamResponse>),
}

/// A portion that was looked for.
enum Portion {
    Read {
        /// There was something, whether or not it is for this stream.
        found: bool,
        /// Those that are.
        changes: Vec<Change>,
    },
    /// Nothing of it is here: it takes so many bytes, for which there was no room.
    Needs(u64),
}

impl Portion {
    /// Of the changes that a reader has found.
    fn of(mut changes: Vec<Change>, asked: &Asked) -> Self {
        let found = !changes.is_empty();
        changes.retain(|change| asked.shows(change));
        Self::Read { found, changes }
    }
}

/// Bytes that changes and their messages take; of the messages there is one at a time.
fn bytes_of(changes: &[Change], families: &Families) -> u64 {
    let message = changes.iter().map(|change| message_bytes(change, families)).max();
    let bytes = changes.iter().map(Change::bytes).sum::<usize>();
    bytes.saturating_add(message.unwrap_or(0)) as u64
}

/// A turn at the disk, and room for a portion. Room is not held while the turn is waited for, unless it had to be waited for itself, as
/// `room` bytes were, and the turn never while room is.
async fn turn(
    disk: &Arc<Semaphore>,
    answer: &mut Answer,
    room: u64,
) -> Result<OwnedSemaphorePermit, Status> {
    let over = || Status::internal("the reads of change streams are over");
    if room == 0 {
        answer.taken();
    }
    let bytes = room.max(CHANGE_PORTION_BYTES as u64);
    loop {
        let turn = Arc::clone(disk).acquire_owned().await.map_err(|_| over())?;
        if answer.covers(bytes) {
            return Ok(turn);
        }
        drop(turn);
        answer.cover(bytes).await.map_err(|error| from_error(&error))?;
    }
}

/// Reads a portion from the disk, of which nothing leaves the thread without room: `room` bytes at least are kept. Blocks.
fn read_disk(
    reader: &mut ChangeReader,
    (asked, families): (&Asked, &Families),
    (lent, room): (&mut Lent, u64),
) -> tepui_engine::Result<Portion> {
    let before = reader.clone();
    let portion = Portion::of(reader.read_disk(CHANGE_PORTION_BYTES)?, asked);
    if let Portion::Read { changes, .. } = &portion {
        let bytes = bytes_of(changes, families);
        if !lent.covers(bytes.max(room)) {
            *reader = before;
            return Ok(Portion::Needs(bytes));
        }
    }
    Ok(portion)
}

/// A stream under way.
struct ChangeStream {
    streams: Arc<ChangeStreams>,
    /// The table as it was when it was looked up last.
    entry: Arc<Entry<Table>>,
    schema: Arc<TableSchema>,
    families: Arc<Families>,
    cluster: Arc<str>,
    asked: Arc<Asked>,
    /// `None` while another thread reads, and for a stream that only tells how to go on.
    reader: Option<ChangeReader>,
    heartbeat_at: Instant,
    /// When a fence may be asked for, once the end time has passed.
    fence_at: Instant,
    /// The last portion, which is charged to the answer until the last of its messages was taken.
    pending: VecDeque<Pending>,
    ended: bool,
    answer: Answer,
    _room: OwnedSemaphorePermit,
}

impl ChangeStream {
    /// The next message, when the client has taken the last.
    async fn next(&mut self) -> Option<Result<ReadChangeStreamResponse, Status>> {
        loop {
            if let Some(message) = self.next_message() {
                self.answer.park(None, self.streams.clock.monotonic_micros());
                return Some(Ok(message));
            }
            self.answer.taken();
            if self.ended {
                return None;
            }
            if let Err(status) = self.advance().await {
                self.ended = true;
                return Some(Err(status));
            }
        }
    }

    /// Makes the next message of the portion.
    fn next_message(&mut self) -> Option<ReadChangeStreamResponse> {
        let table = self.entry.record.incarnation;
        loop {
            match self.pending.front_mut()? {
                Pending::Change(messages) => {
                    let token =
                        |position| Token::new(table, &self.asked.partition, position).to_string();
                    let message = messages.next(&self.families, &self.cluster, token);
                    if message.is_some() {
                        return message;
                    }
                    self.pending.pop_front();
                }
                Pending::Message(_) => match self.pending.pop_front()? {
                    Pending::Message(message) => return Some(*message),
                    Pending::Change(_) => {}
                },
            }
        }
    }

    /// Reads a portion, or waits until there may be one.
    async fn advance(&mut self) -> Result<(), Status> {
        if *self.streams.stopping.borrow() {
            return Err(stopping());
        }
        let beats = Instant::now() >= self.heartbeat_at;
        if beats {
            self.fence().await?;
            // What is to be read has its turn, however long that took.
            self.heartbeat_at = Instant::now() + self.asked.heartbeat;
        }
        // As a portion of a few: what is larger says so, and one large change is followed by small ones.
        self.answer.expects(Answer::BYTES_MIN);
        self.answer.make_room().await.map_err(|error| from_error(&error))?;
        let mut room = 0;
        let found = loop {
            let before = self.reader.clone();
            let needs = match self.read(room).await? {
                Portion::Read { found, changes } => {
                    let from = before.as_ref().map_or(0, ChangeReader::position);
                    let bytes = self.show(changes, from, beats)?;
                    if bytes == 0 {
                        self.answer.taken();
                        break found;
                    }
                    if self.answer.covers(bytes) {
                        break found;
                    }
                    bytes
                }
                Portion::Needs(bytes) => bytes,
            };
            // Whoever waits for room has nothing meanwhile that would take some. With it, as much is found again, or more.
            self.pending.clear();
            self.ended = false;
            self.reader = before;
            room = needs.max(room);
            self.answer.cover(room).await.map_err(|error| from_error(&error))?;
        };
        if self.ended {
            return Ok(());
        }
        if found || beats {
            // A stream that is far behind leaves the core to others between its portions.
            tokio::task::yield_now().await;
            return Ok(());
        }
        self.wait().await
    }

    fn position(&self) -> Seq {
        self.reader.as_ref().map_or(0, ChangeReader::position)
    }

    /// Moves what is visible close to now, unless the log is held up.
    async fn fence(&self) -> Result<(), Status> {
        let Some(reader) = &self.reader else { return Ok(()) };
        match tokio::time::timeout(FENCE_WAIT, reader.tablet().fence_changes()).await {
            Ok(Err(error)) => Err(self.explain(error)),
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Reads a portion; for so many bytes there is room, if that had to be waited for.
    async fn read(&mut self, room: u64) -> Result<Portion, Status> {
        let asked = Arc::clone(&self.asked);
        let Some(mut reader) = self.reader.take() else {
            return Ok(Portion::of(Vec::new(), &asked));
        };
        let read = match reader.read(Answer::BYTES_MIN as usize) {
            Ok(None) => {
                let turn = turn(&self.streams.disk, &mut self.answer, room).await?;
                let (families, mut lent) = (Arc::clone(&self.families), self.answer.lend());
                let read = workers::run(move || {
                    let read = read_disk(&mut reader, (&asked, &families), (&mut lent, room));
                    drop(turn);
                    (reader, lent, read)
                });
                let Some((back, lent, read)) = read.await else {
                    return Err(Status::internal("the stream failed; see the server's log"));
                };
                reader = back;
                self.answer.take_back(lent);
                read
            }
            read => read.map(|changes| Portion::of(changes.unwrap_or_default(), &asked)),
        };
        self.reader = Some(reader);
        read.map_err(|error| self.explain(error))
    }

    /// Looks the table up after it was read from a position on: whether the stream is still the one that was begun, and which
    /// families it has. A write goes by a schema that is there before it, so those of all that was read are found.
    fn look_again(&mut self, from: Seq) -> Result<(), Status> {
        let entry = self.still_streaming(from).map_err(|error| from_error(&error))?;
        let schema = entry.table.schema();
        if !(Arc::ptr_eq(&entry, &self.entry) && Arc::ptr_eq(&schema, &self.schema)) {
            self.families = self.streams.families.of(&entry, &schema);
            (self.entry, self.schema) = (entry, schema);
        }
        Ok(())
    }

    /// The table, where it has kept all changes since this position.
    fn still_streaming(&self, from: Seq) -> Result<Arc<Entry<Table>>> {
        let then = &self.entry.record;
        let entry = self.streams.streaming(&then.name)?;
        let (now, name) = (&entry.record, &then.name);
        if now.incarnation != then.incarnation {
            return Err(Error::not_found(format!("table {name:?} was deleted and made anew")));
        }
        if now.change_stream_since > from {
            return Err(Error::out_of_range(format!(
                "the change stream of table {name:?} was disabled and enabled again: changes between are not kept; begin a new stream"
            )));
        }
        Ok(entry)
    }

    /// Takes changes to be shown, which were read from a position on, a heartbeat where it `beats`, and the end where it is reached.
    /// Returns the bytes that they and their messages take.
    fn show(&mut self, changes: Vec<Change>, from: Seq, beats: bool) -> Result<u64, Status> {
        self.look_again(from)?;
        let mut bytes = bytes_of(&changes, &self.families);
        let changes = changes.into_iter().map(Messages::new);
        self.pending.extend(changes.map(Pending::Change));
        let position = self.position();
        if self.asked.end.is_some_and(|end| position > end) {
            let status = Some(rpc::Status::default());
            bytes += self
                .push(StreamRecord::CloseStream(CloseStream { status, ..CloseStream::default() }));
            self.ended = true;
        } else if beats {
            let table = self.entry.record.incarnation;
            bytes += self.push(StreamRecord::Heartbeat(Heartbeat {
                continuation_token: Some(token(table, &self.asked.partition, position)),
                estimated_low_watermark: Some(timestamp(commit_micros(position))),
            }));
        }
        Ok(bytes)
    }

    /// Takes a message to be sent. Returns its bytes.
    fn push(&mut self, of: StreamRecord) -> u64 {
        let message = record(of);
        let bytes = message.encoded_len() as u64;
        self.pending.push_back(Pending::Message(Box::new(message)));
        bytes
    }

    /// Waits for a change, the time of a heartbeat, or the end time.
    async fn wait(&mut self) -> Result<(), Status> {
        let mut until = self.heartbeat_at;
        let mut ends = false;
        if let Some(end) = self.asked.end {
            let now = self.streams.clock.now_micros();
            let left = commit_micros(end).saturating_add(END_SLACK_MICROS).saturating_sub(now);
            let left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
            let at = (Instant::now() + left).max(self.fence_at);
            ends = at <= until;
            until = until.min(at);
        }
        let Some(reader) = &self.reader else { return Ok(()) };
        tokio::select! {
            ready = reader.ready() => return ready.map_err(|error| self.explain(error)),
            () = tokio::time::sleep_until(until) => {}
            () = runtime::given(self.streams.stopping.clone()) => {
                return Err(stopping());
            }
        }
        if !ends {
            return Ok(());
        }
        self.fence().await?;
        self.fence_at = Instant::now() + FENCE_AGAIN;
        Ok(())
    }

    /// What an error of the reader means to the client.
    fn explain(&self, error: tepui_engine::Error) -> Status {
        let is_over = matches!(error.kind(), ErrorKind::Expired | ErrorKind::NotFound);
        match self.still_streaming(self.position()) {
            Err(reason) if is_over => from_error(&reason),
            _ => from_error(&error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use tepui_bigtable::schema::FamilySchema;
    use tepui_engine::cell::{FamilyId, Mutation, RowBatch};
    use tepui_engine::changes::Source;
    use tepui_engine::db::{Engine, EngineOptions};
    use tepui_engine::io::{Env, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};
    use tepui_engine::schema::{FamilyOptions, TabletSchema};

    use super::families::families_of;
    use super::*;
    use crate::admission::{Hold, Streams};
    use crate::api::v2::mutation::Mutation as ShownMutation;
    use crate::catalog::record::{FamilyRecord, TableRecord};

    #[tokio::test]
    async fn a_stream_that_waits_for_the_disk_holds_no_room_for_its_next_portion() {
        // Of which a connection may have an eighth: as much as one answer takes.
        let streams = Arc::new(Streams::new(8 * Answer::BYTES_MIN));
        let connection = streams.connection();
        let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
        let disk = Arc::new(Semaphore::new(1));
        let (mut reads, mut waits, mut other) = (answer(), answer(), answer());
        let taken = turn(&disk, &mut reads, 0).await.unwrap();
        reads.taken();
        // What it found in memory was to be sent.
        waits.make_room().await.unwrap();
        assert!(!other.has_room());
        let mut waits = Box::pin(turn(&disk, &mut waits, 0));
        assert!(futures::poll!(&mut waits).is_pending());
        assert!(other.has_room());
        other.taken();
        drop(taken);
        drop(waits.await.unwrap());
    }

    #[tokio::test]
    async fn a_change_for_which_there_is_no_room_is_not_in_memory_while_its_stream_waits() {
        let env = Env {
            files: Arc::new(MemoryFiles::new()),
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(1_767_225_600_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        let family = FamilyOptions { gc: None, aggregate: None, gc_since_micros: 0 };
        tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
        let begun = tablet.keep_changes(Some(Duration::from_hours(24)));
        engine.start().unwrap();
        let value = Bytes::from(vec![7; 2 << 20]);
        let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"q"));
        let large = Mutation::Put { family, qualifier, timestamp: 1_000, value };
        tablet.apply(RowBatch { row: "r".into(), mutations: vec![large] }).await.unwrap();

        // Of which a connection may have a megabyte.
        let streams = Arc::new(Streams::new(8 << 20));
        let connection = streams.connection();
        let answer = || streams.answer(Hold::new(None, Arc::clone(&connection), None));
        let (mut stream, mut other) = (answer(), answer());
        other.make_room().await.unwrap();
        other.cover(512 << 10).await.unwrap();
        let asked = Asked {
            partition: RowRange::all(),
            positions: Positions::one(RowRange::all(), begun),
            end: None,
            heartbeat: HEARTBEAT,
        };
        let of = (&asked, &Families::default());
        let disk = Arc::new(Semaphore::new(1));
        let mut reader = tablet.changes_after(begun);
        let its_turn = turn(&disk, &mut stream, 0).await.unwrap();
        let mut lent = stream.lend();
        let Portion::Needs(bytes) = read_disk(&mut reader, of, (&mut lent, 0)).unwrap() else {
            panic!("there is no room for it");
        };
        assert!(bytes > 2 << 20 && reader.position() == begun);
        drop(its_turn);
        stream.take_back(lent);
        {
            let mut room = std::pin::pin!(stream.cover(bytes));
            assert!(futures::poll!(&mut room).is_pending());
            assert_eq!(streams.figures().bytes, 512 << 10, "who waits holds none");
            other.taken();
            room.await.unwrap();
        }
        let _turn = turn(&disk, &mut stream, bytes).await.unwrap();
        let mut lent = stream.lend();
        let read = read_disk(&mut reader, of, (&mut lent, bytes)).unwrap();
        let Portion::Read { found: true, changes } = read else { panic!("there is room for it") };
        assert_eq!((changes.len(), reader.position()), (1, changes[0].last_seq));
        assert_eq!(streams.figures().bytes, bytes);
    }

    #[test]
    fn a_stream_that_was_enabled_by_a_clock_that_was_ahead_may_begin_now() {
        let (now, hour) = (1_767_225_600_000_000, 3_600_000_000);
        let since = |micros| position_before(micros) + 1;
        assert_eq!(oldest(now - hour, since(now + hour), now), now - hour);
        assert_eq!(oldest(now - 2 * hour, since(now - hour), now), now - hour);
        assert_eq!(oldest(now - hour, since(now - 2 * hour), now), now - hour);
    }

    #[test]
    fn a_family_has_its_name_from_its_first_write_to_the_last_stream_of_it() {
        let family = |name: &str, id| FamilyRecord {
            name: name.to_owned(),
            id,
            config: None,
            ..FamilyRecord::default()
        };
        let record = TableRecord {
            families: vec![family("dropped-now", 1)],
            former_families: vec![family("dropped", 2)],
            ..TableRecord::default()
        };
        // The table's schema is ahead of the record.
        let mut schema = TableSchema::new();
        schema.families.insert("created-now".to_owned(), FamilySchema::new(FamilyId(3)));
        let delete = |id| Mutation::DeleteFamily { family: FamilyId(id) };
        let change = Change {
            first_seq: 1,
            last_seq: 4,
            source: Source::User,
            batch: RowBatch { row: "r".into(), mutations: (1..=4).map(delete).collect() },
        };
        let mut messages = Messages::new(change);
        let shown = messages.next(&families_of(&record, &schema), "c", |_| String::new());
        let message = shown.unwrap();
        let Some(StreamRecord::DataChange(change)) = &message.stream_record else { panic!() };
        let names = change.chunks.iter().map(|chunk| match &chunk.mutation.as_ref()?.mutation {
            Some(ShownMutation::DeleteFromFamily(delete)) => Some(delete.family_name.as_str()),
            _ => None,
        });
        let names: Option<Vec<_>> = names.collect();
        assert_eq!(names.unwrap(), ["dropped-now", "dropped", "created-now"]);
    }

    #[test]
    fn of_many_tablets_neighbours_are_told_as_one_partition_and_nothing_is_left_out() {
        let inner =
            (1_000..1_999).map(|n| [n.to_string().into_bytes(), vec![b'k'; 4_000]].concat());
        let keys: Vec<_> = [vec![]].into_iter().chain(inner).chain([vec![]]).collect();
        let tablets: Vec<_> =
            keys.windows(2).map(|ends| RowRange::new(ends[0].clone(), ends[1].clone())).collect();
        let positions = Positions::one(RowRange::all(), 77);
        let asked =
            Asked { partition: RowRange::all(), positions, end: None, heartbeat: HEARTBEAT };
        let message = moved(5, &asked, &tablets);
        assert!(message.encoded_len() < 2 << 20, "{}", message.encoded_len());
        let Some(StreamRecord::CloseStream(close)) = message.stream_record else { panic!() };
        assert!(close.new_partitions.len() <= CHANGE_NEW_PARTITIONS_MAX);
        let parts = close.new_partitions.iter().map(|part| from_message("", Some(part)).unwrap());
        let mut end = Bytes::new();
        for (part, token) in parts.zip(&close.continuation_tokens) {
            assert_eq!(part.start, end);
            assert_eq!(token.partition.as_ref(), Some(&to_message(&part)));
            end = part.end;
        }
        assert_eq!((end.len(), close.continuation_tokens.len()), (0, close.new_partitions.len()));
        let few = moved(5, &asked, &tablets[..3]).stream_record;
        let Some(StreamRecord::CloseStream(few)) = few else { panic!() };
        assert_eq!(few.new_partitions.len(), 3);
    }

    #[test]
    fn heartbeats_come_every_five_seconds_unless_asked_otherwise() {
        let of = |seconds, nanos| heartbeat(Some(&prost_types::Duration { seconds, nanos }));
        assert_eq!(heartbeat(None).unwrap(), Duration::from_secs(5));
        assert_eq!(of(0, 250_000_000).unwrap(), Duration::from_millis(250));
        assert_eq!(of(i64::MAX, 0).unwrap(), HEARTBEAT_MAX);
        for (seconds, nanos) in [(0, 0), (-1, 0), (0, 1_000)] {
            assert!(of(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
    }

    #[test]
    fn times_are_cut_to_microseconds_and_impossible_ones_refused() {
        let of = |seconds, nanos| micros("t", &prost_types::Timestamp { seconds, nanos });
        assert_eq!(of(3, 1_999).unwrap(), 3_000_001);
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, 0)] {
            assert!(of(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
    }
}

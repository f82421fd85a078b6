//! Clients that a server must bear: they open streams and do not read them, send more than it has room for, or go away
//! in the middle. Each kind runs on a thread and connections of its own until it is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all, select};
use tepui_bench::grpc::client::method::{MUTATE_ROWS, READ_ROWS};
use tepui_bench::grpc::connection::{Answer, Connection, Endpoint, decode, framed};
use tepui_bench::network::runtime;
use tepui_bench::{Error, Result};
use tepui_engine::io::{JoinHandle, Spawner as _, ThreadSpawner};
use tepui_server::api::v2;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::priority::run_when_idle;

/// Streams that one connection leaves unread: more than the server's part of a connection has room for.
const STALLED_STREAMS: usize = 32;
/// Connections of stalled streams.
const STALLED_CONNECTIONS: usize = 8;
/// Bytes under way of a stream that is left unread, and of all of a connection's: had the latter room for a few of the former, as a connection
/// of the other clients has, these few alone would get anything.
const STALLED_STREAM_BYTES: u32 = 1 << 20;
const STALLED_CONNECTION_BYTES: u32 = 1 << 30;
/// How long streams are left unread before they are opened anew.
const STALLED_FOR: Duration = Duration::from_secs(3);
/// Streams that are begun and cancelled at a time.
const CANCELLED_AT_ONCE: usize = 16;
/// Large requests under way at a time, each on a connection of its own.
const LARGE_AT_ONCE: usize = 4;
/// Bytes of the largest request, at most: what Bigtable documents.
pub const LARGEST_BYTES: usize = 256 << 20;
/// Bytes of a value of a large request: so much less than 4 MiB that as many of them as it takes, with their names, are no more than
/// the largest may have.
const LARGE_ROW_BYTES: usize = (4 << 20) - (4 << 10);
/// Rows of the largest request, and of one of 32 MB.
const LARGEST_ROWS: usize = LARGEST_BYTES / (4 << 20);
const LARGE_ROWS: usize = 8;
/// After a refusal: a bad client does not wait as it is told, but it does not spin either.
const AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// Between two looks at what the server holds of requests, of which the largest takes several times as long.
const LOOK: Duration = Duration::from_millis(100);
/// The server's metrics are some tens of kilobytes.
const METRICS_BYTES_MAX: u64 = 16 << 20;
/// How the server's metrics call what it holds of requests.
const HELD: &str = "tepui_memory_bytes{part=\"requests\"} ";

/// What bad clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Open scans of everything, take a message, and read no more.
    DoNotRead,
    /// Send requests of 256 MB, and of 32 MB, several at a time.
    SendTooMuch,
    /// Open scans of everything, take a message, and go away.
    Cancel,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::DoNotRead, Self::SendTooMuch, Self::Cancel];

    /// What it is called in a line.
    pub fn name(self) -> &'static str {
        match self {
            Self::DoNotRead => "clients that do not read their streams",
            Self::SendTooMuch => "clients that send 256 MB and 32 MB at once",
            Self::Cancel => "clients that cancel midway",
        }
    }
}

/// Writes the rows that those who send too much write again and again: what everybody reads has them from the beginning.
pub fn write_large_rows(endpoint: &Endpoint, table: String) -> Result<()> {
    let nobody = Arc::new(AtomicU64::new(0));
    let writer = Bad { endpoint: endpoint.clone(), table, done: nobody };
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut connection = writer.connect().await;
        let written = carry_out(&mut connection, writer.request(LARGEST_ROWS)).await;
        let refused = written.unwrap_or_else(Some);
        refused.map_or(Ok(()), |status| Err(Error::failed(format!("writing large rows: {status}"))))
    })
}

/// Bad clients at work; they stop when dropped.
pub struct BadClients {
    stop: watch::Sender<bool>,
    thread: Option<Box<dyn JoinHandle>>,
    done: Arc<AtomicU64>,
    held: Arc<AtomicU64>,
}

impl BadClients {
    /// Sets them on a table of a server that serves its metrics there.
    pub fn start(
        kind: Kind,
        endpoint: Endpoint,
        table: String,
        metrics: SocketAddr,
    ) -> Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let done = Arc::new(AtomicU64::new(0));
        let held = Arc::new(AtomicU64::new(0));
        let (count, most_held) = (Arc::clone(&done), Arc::clone(&held));
        let runtime = runtime()?;
        let work = move || {
            run_when_idle();
            let bad = Bad { endpoint, table, done: count };
            let until_stopped = async {
                // Nobody left to say so means that it is over, too.
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            let work = select(bad.work(kind), Box::pin(watch_requests(metrics, &most_held)));
            runtime.block_on(select(std::pin::pin!(until_stopped), work));
        };
        let thread = ThreadSpawner.spawn("bad-clients", Box::new(work))?;
        Ok(Self { stop, thread: Some(thread), done, held })
    }

    /// Scans that were begun, or large requests that were carried out, whole: 0 means that they did nothing.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The most bytes of requests that the server was seen to hold at once.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for BadClients {
    fn drop(&mut self) {
        // Nobody listening means that the thread has ended.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Threads that use all that their cores have and talk to nobody, at the priority of bad clients, until dropped: what these do
/// to others' latencies is the machine's.
pub struct Spinning {
    stop: Arc<AtomicBool>,
    threads: Vec<Box<dyn JoinHandle>>,
}

impl Spinning {
    /// So many threads.
    pub fn start(threads: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut spinning = Self { stop: Arc::clone(&stop), threads: Vec::new() };
        for _ in 0..threads {
            let stop = Arc::clone(&stop);
            let work = move || {
                run_when_idle();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            spinning.threads.push(ThreadSpawner.spawn("spinning", Box::new(work))?);
        }
        Ok(spinning)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}

struct Bad {
    endpoint: Endpoint,
    table: String,
    done: Arc<AtomicU64>,
}

impl Bad {
    fn work(&self, kind: Kind) -> BoxFuture<'_, ()> {
        match kind {
            Kind::DoNotRead => Box::pin(async {
                join_all((0..STALLED_CONNECTIONS).map(|_| self.do_not_read())).await;
            }),
            Kind::SendTooMuch => Box::pin(async {
                let requests = [LARGEST_ROWS, LARGE_ROWS].map(|rows| self.request(rows));
                let requests = requests.iter().cycle().take(LARGE_AT_ONCE);
                join_all(requests.map(|request| self.send(request))).await;
            }),
            Kind::Cancel => Box::pin(async {
                join_all((0..CANCELLED_AT_ONCE).map(|_| self.cancel())).await;
            }),
        }
    }

    /// A connection; where there is none to be had, the next attempt is made after a pause.
    async fn connect(&self) -> Connection {
        Self::until_connected(|| self.endpoint.connect()).await
    }

    async fn until_connected<F: Future<Output = Result<Connection>>>(
        connect: impl Fn() -> F,
    ) -> Connection {
        loop {
            match connect().await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(AFTER_REFUSAL).await,
            }
        }
    }

    /// A scan of everything whose first message has come; `None` where it is refused.
    async fn begin_scan(&self, connection: &mut Connection) -> Option<Answer> {
        let request = v2::ReadRowsRequest { table_name: self.table.clone(), ..Default::default() };
        let mut answer = connection.call(READ_ROWS, &request).await.ok()?;
        answer.message().await.ok()??;
        self.done.fetch_add(1, Ordering::Relaxed);
        Some(answer)
    }

    async fn do_not_read(&self) {
        let connect = || self.endpoint.connect_with(STALLED_STREAM_BYTES, STALLED_CONNECTION_BYTES);
        loop {
            let mut connection = Self::until_connected(connect).await;
            let mut streams = Vec::new();
            let open = async {
                for _ in 0..STALLED_STREAMS {
                    streams.extend(self.begin_scan(&mut connection).await);
                }
                std::future::pending::<()>().await;
            };
            let enough = tokio::time::sleep(STALLED_FOR);
            select(std::pin::pin!(open), std::pin::pin!(enough)).await;
        }
    }

    async fn cancel(&self) {
        let mut connection = self.connect().await;
        loop {
            if self.begin_scan(&mut connection).await.is_none() {
                tokio::time::sleep(AFTER_REFUSAL).await;
                connection = self.connect().await;
            }
        }
    }

    /// A request that writes so many large rows, framed, once for all times it is sent.
    fn request(&self, rows: usize) -> Bytes {
        use v2::mutation::{Mutation, SetCell};
        let value = Bytes::from(vec![0x5a_u8; LARGE_ROW_BYTES]);
        let entry = |row| v2::mutate_rows_request::Entry {
            row_key: format!("bad-{row:03}").into_bytes().into(),
            mutations: vec![v2::Mutation {
                mutation: Some(Mutation::SetCell(SetCell {
                    family_name: tepui_bench::grpc::ask::FAMILY.to_owned(),
                    column_qualifier: b"large".as_slice().into(),
                    timestamp_micros: 0,
                    value: value.clone(),
                })),
            }],
            ..Default::default()
        };
        framed(&v2::MutateRowsRequest {
            table_name: self.table.clone(),
            entries: (0..rows).map(entry).collect(),
            ..Default::default()
        })
    }

    /// Sends the same request again and again, whatever comes back, and counts how often it was carried out.
    async fn send(&self, request: &Bytes) {
        let mut connection = self.connect().await;
        loop {
            match carry_out(&mut connection, request.clone()).await {
                Ok(None) => {
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                // The connection is at its end, or the server says so; one that is refused stays.
                Err(status) if status.code() == Code::Unavailable => {
                    connection = self.connect().await;
                }
                Ok(Some(_)) | Err(_) => {}
            }
            tokio::time::sleep(AFTER_REFUSAL).await;
        }
    }
}

/// Keeps the most bytes that the server holds of requests, by its metrics; a look that fails is left out.
async fn watch_requests(metrics: SocketAddr, most: &AtomicU64) {
    loop {
        if let Ok(text) = scrape(metrics).await
            && let Some(held) = text.lines().find_map(|line| line.strip_prefix(HELD))
            && let Ok(held) = held.parse::<f64>()
        {
            most.fetch_max(held as u64, Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn scrape(metrics: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(metrics).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.take(METRICS_BYTES_MAX).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Sends a request, and takes in what comes back to its end: the first of the entries that was not carried out, if any.
async fn carry_out(connection: &mut Connection, request: Bytes) -> Result<Option<Status>, Status> {
    let mut answer = connection.send(MUTATE_ROWS, request).await?;
    let mut refused = None;
    while let Some(message) = answer.message().await? {
        let response: v2::MutateRowsResponse = decode(message)?;
        let statuses = response.entries.into_iter().filter_map(|entry| entry.status);
        refused = refused.or_else(|| statuses.into_iter().find(|status| status.code != 0));
    }
    Ok(refused.map(|status| Status::new(Code::from(status.code), status.message)))
}

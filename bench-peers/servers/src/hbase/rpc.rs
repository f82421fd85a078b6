//! A connection of HBase's RPC: many calls under way at once, each answered when it is done.
//!
//! ```text
//! connection: "HBas" | version 0 | authentication 80 (none) | u32 length | ConnectionHeader
//! request:    u32 length | RequestHeader | parameter          messages behind their length as a varint
//! response:   u32 length | ResponseHeader | result | cells    cells: see super::cells
//! ```
//!
//! Calls are queued to a task that writes all that has queued at once; another one reads and hands answers out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message;
use tepui_bench::{Error, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use super::messages::{
    ConnectionHeader, RequestHeader, ResponseHeader, UserInformation, VersionInfo,
};

/// The largest answer that is taken; a scan of a hundred rows has a tenth of a megabyte.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
const PREAMBLE: &[u8; 6] = b"HBas\x00\x50";
/// The version of HBase whose protocol this is.
const VERSION: (u32, u32) = (2, 6);
const CELL_CODEC: &str = "org.apache.hadoop.hbase.codec.KeyValueCodec";

/// What a call came to: bytes that hold a result and cells, or what the server threw.
type Answer = Result<Bytes, String>;

/// Calls that wait for their answers; none where the connection is gone.
type Waiting = Arc<Mutex<Option<HashMap<u32, oneshot::Sender<Answer>>>>>;

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<HashMap<u32, oneshot::Sender<Answer>>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection to a service of a server. Clones share it; it belongs to the runtime that it was opened on.
#[derive(Debug, Clone)]
pub struct Connection {
    requests: mpsc::UnboundedSender<Bytes>,
    waiting: Waiting,
    calls: Arc<AtomicU32>,
}

fn lost() -> Error {
    Error::failed("HBase has closed the connection")
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr, service: &str) -> Result<Self> {
        let failed = |error| Error::failed(format!("cannot connect to {address}: {error}"));
        let mut stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let header = ConnectionHeader {
            user: Some(UserInformation { effective_user: "bench".to_owned() }),
            service: service.to_owned(),
            cell_codec: CELL_CODEC.to_owned(),
            version: Some(VersionInfo {
                version: format!("{}.{}", VERSION.0, VERSION.1),
                major: VERSION.0,
                minor: VERSION.1,
                ..VersionInfo::default()
            }),
        };
        let mut hello = BytesMut::from(&PREAMBLE[..]);
        hello.put_u32(header.encoded_len() as u32);
        hello.put(&*header.encode_to_vec());
        stream.write_all(&hello).await.map_err(failed)?;
        let (reader, writer) = stream.into_split();
        let (requests, queue) = mpsc::unbounded_channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(write(queue, writer));
        let answers = Arc::clone(&waiting);
        tokio::spawn(async move {
            read(reader, &answers).await;
            // Who waits is told by the end of its channel.
            *lock(&answers) = None;
        });
        Ok(Self { requests, waiting, calls: Arc::default() })
    }

    /// Calls a method; its result, and the cells behind it. What the server throws is the inner error.
    pub async fn call<R: Message + Default>(
        &self,
        method: &str,
        param: &impl Message,
    ) -> Result<Result<(R, Bytes), String>> {
        let call_id = self.calls.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).as_mut().ok_or_else(lost)?.insert(call_id, answer);
        self.requests.send(request(call_id, method, param)).map_err(|_| lost())?;
        let mut bytes = match answered.await.map_err(|_| lost())? {
            Ok(bytes) => bytes,
            Err(thrown) => return Ok(Err(thrown)),
        };
        let result = R::decode_length_delimited(&mut bytes)
            .map_err(|error| Error::failed(format!("HBase's answer to {method}: {error}")))?;
        Ok(Ok((result, bytes)))
    }
}

fn request(call_id: u32, method: &str, param: &impl Message) -> Bytes {
    let header =
        RequestHeader { call_id: Some(call_id), method: method.to_owned(), has_param: true };
    let delimited = |length: usize| length + prost::length_delimiter_len(length);
    let length = delimited(header.encoded_len()) + delimited(param.encoded_len());
    let mut frame = BytesMut::with_capacity(4 + length);
    frame.put_u32(length as u32);
    // The buffer grows as needed.
    let encoded = header
        .encode_length_delimited(&mut frame)
        .and_then(|()| param.encode_length_delimited(&mut frame));
    debug_assert!(encoded.is_ok());
    frame.freeze()
}

/// Writes requests until nobody can make more or the server is gone, which its reader notices.
async fn write(mut queue: mpsc::UnboundedReceiver<Bytes>, mut stream: OwnedWriteHalf) {
    let mut out = BytesMut::new();
    while let Some(first) = queue.recv().await {
        out.extend_from_slice(&first);
        while let Ok(next) = queue.try_recv() {
            out.extend_from_slice(&next);
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        out.clear();
    }
}

/// Hands out answers until the connection ends or makes no sense.
async fn read(mut stream: OwnedReadHalf, waiting: &Waiting) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        while let Some(length) = buffer.first_chunk().map(|length| u32::from_be_bytes(*length)) {
            let length = length as usize;
            if length > RESPONSE_BYTES_MAX {
                return;
            }
            if buffer.len() < 4 + length {
                break;
            }
            buffer.advance(4);
            let mut frame = buffer.split_to(length).freeze();
            let Ok(header) = ResponseHeader::decode_length_delimited(&mut frame) else { return };
            let answer = match header.exception {
                None => Ok(frame),
                Some(thrown) => {
                    let reason = thrown.stack_trace.lines().next().unwrap_or_default().to_owned();
                    Err(if reason.is_empty() { thrown.class } else { reason })
                }
            };
            let caller = lock(waiting).as_mut().and_then(|calls| calls.remove(&header.call_id));
            if let Some(caller) = caller {
                // A caller that has gone needs no answer.
                let _ = caller.send(answer);
            }
        }
        buffer.reserve(READ_BYTES);
        if !matches!(stream.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Get, GetRequest, GetResponse, REGION_NAME, Region, Row};
    use super::*;

    fn get() -> GetRequest {
        let region = Region { kind: REGION_NAME, name: Bytes::from_static(b"t,,1") };
        GetRequest { region, get: Get { row: b"r".to_vec(), columns: Vec::new() } }
    }

    /// Reads a frame behind its length.
    async fn frame(stream: &mut TcpStream) -> Bytes {
        let length = stream.read_u32().await.unwrap() as usize;
        let mut frame = vec![0; length];
        stream.read_exact(&mut frame).await.unwrap();
        frame.into()
    }

    async fn answer(stream: &mut TcpStream, header: &ResponseHeader, rest: &[u8]) {
        let mut body = header.encode_length_delimited_to_vec();
        body.extend(rest);
        stream.write_u32(body.len() as u32).await.unwrap();
        stream.write_all(&body).await.unwrap();
    }

    fn on_a_runtime(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    #[test]
    fn answers_find_their_calls_in_any_order_with_their_cells() {
        on_a_runtime(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let connection =
                Connection::open(listener.local_addr().unwrap(), "ClientService").await.unwrap();
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut preamble = [0; 6];
                stream.read_exact(&mut preamble).await.unwrap();
                assert_eq!(&preamble, PREAMBLE);
                let header = ConnectionHeader::decode(frame(&mut stream).await).unwrap();
                assert_eq!(header.service, "ClientService");
                let mut ids = Vec::new();
                for _ in 0..2 {
                    let mut request = frame(&mut stream).await;
                    let header = RequestHeader::decode_length_delimited(&mut request).unwrap();
                    assert_eq!((&*header.method, header.has_param), ("Get", true));
                    let param = GetRequest::decode_length_delimited(&mut request).unwrap();
                    assert_eq!(param, get());
                    ids.push(header.call_id.unwrap());
                }
                let result = GetResponse { row: Some(Row { cells: 3 }) };
                let mut body = result.encode_length_delimited_to_vec();
                body.extend(b"cells");
                let header = ResponseHeader { call_id: ids[1], exception: None };
                answer(&mut stream, &header, &body).await;
                let exception = super::super::messages::Exception {
                    class: "C".to_owned(),
                    stack_trace: "C: no such region\n\tat".to_owned(),
                };
                let header = ResponseHeader { call_id: ids[0], exception: Some(exception) };
                answer(&mut stream, &header, &[]).await;
                stream
            };
            let param = get();
            let first = connection.call::<GetResponse>("Get", &param);
            let second = connection.call::<GetResponse>("Get", &param);
            let (first, second, stream) = tokio::join!(first, second, server);
            assert_eq!(first.unwrap().unwrap_err(), "C: no such region");
            let (result, cells) = second.unwrap().unwrap();
            assert_eq!((result.row.unwrap().cells, &*cells), (3, &b"cells"[..]));
            drop(stream);
            assert!(connection.call::<GetResponse>("Get", &param).await.is_err(), "it is closed");
        });
    }

    #[test]
    fn an_answer_of_an_impossible_length_ends_the_connection() {
        on_a_runtime(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let connection =
                Connection::open(listener.local_addr().unwrap(), "ClientService").await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let param = get();
            let call = connection.call::<GetResponse>("Get", &param);
            let (called, ()) = tokio::join!(call, async {
                stream.write_all(&[0xff; 64]).await.unwrap();
            });
            assert!(called.is_err());
        });
    }
}

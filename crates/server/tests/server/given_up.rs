//! Calls that their client gives up, and what it says of them afterwards. It speaks HTTP/2 as it is on the wire, so that calls and their
//! ends arrive in one piece.

use super::*;
use tepui_server::limits::{BAD_FRAMES_MAX, REQUEST_BODY_PAUSE, UNGATED_MESSAGE_BYTES_MAX};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];
const NOT_SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 2];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The beginning of a call.
fn begin(stream: u32, path: &str) -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    let mut block = Vec::new();
    for (name, value) in headers {
        // A literal that nobody remembers.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A call with an empty message.
fn call(stream: u32, path: &str) -> Vec<u8> {
    [begin(stream, path), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}

/// A connection over which a server has said that it serves, by a watch that goes on.
async fn watch(server: &TestServer, stream: u32) -> TcpStream {
    let mut connection = TcpStream::connect(server.running.address()).await.unwrap();
    let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat();
    connection.write_all(&hello).await.unwrap();
    connection.write_all(&call(stream, "/grpc.health.v1.Health/Watch")).await.unwrap();
    assert_eq!(answer(&mut connection, stream).await, SERVING);
    connection
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The next frame that the server sends: its kind, its stream and its payload.
async fn next_frame(connection: &mut TcpStream) -> (u8, u32, Vec<u8>) {
    let (kind, _, stream, payload) = next_flagged(connection).await;
    (kind, stream, payload)
}

/// The same with its flags, behind its kind.
async fn next_flagged(connection: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    connection.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; number(&head[..3]) as usize];
    connection.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], number(&head[5..]), payload)
}

/// Why the server ends the connection, from the payload of a frame that says so.
fn reason(payload: &[u8]) -> u32 {
    number(payload.get(4..8).unwrap())
}

/// The next bytes of an answer to a call; the connection must go on.
async fn answer(connection: &mut TcpStream, stream: u32) -> Vec<u8> {
    loop {
        let (kind, of, payload) = next_frame(connection).await;
        assert!(kind != GOAWAY || reason(&payload) == 0, "the connection ends: {payload:?}");
        if kind == DATA && of == stream {
            return payload;
        }
    }
}

/// Waits for the end of an answer.
async fn ended(connection: &mut TcpStream, stream: u32) {
    loop {
        let (kind, flags, of, payload) = next_flagged(connection).await;
        assert!(kind != GOAWAY || reason(&payload) == 0, "the connection ends: {payload:?}");
        if of == stream && (kind == RST_STREAM || kind <= HEADERS && flags & END_STREAM != 0) {
            return;
        }
    }
}

#[tokio::test]
async fn a_message_to_health_or_reflection_that_is_no_name_ends_the_call_before_it_comes() {
    let server = start(&memory()).await;
    let mut connection = watch(&server, 1).await;
    let services = [
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ];
    let began = tokio::time::Instant::now();
    for (stream, service) in (3..).step_by(2).zip(services) {
        let header = [&[0], &(UNGATED_MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes()[..]].concat();
        let begun = [begin(stream, &format!("/{service}")), frame(DATA, 0, stream, &header)];
        connection.write_all(&begun.concat()).await.unwrap();
        ended(&mut connection, stream).await;
    }
    assert!(began.elapsed() < REQUEST_BODY_PAUSE, "the rest was waited for");
    drop(connection);
    server.stop().await;
}

#[tokio::test]
async fn calls_that_are_all_given_up_at_once_end_no_other_call_of_their_connection() {
    let server = start(&memory()).await;
    let mut connection = watch(&server, 1).await;
    let mut burst = Vec::new();
    for stream in (3..203).step_by(2) {
        burst.extend(begin(stream, "/google.bigtable.v2.Bigtable/ReadRows"));
        burst.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    burst.extend(call(203, "/grpc.health.v1.Health/Check"));
    connection.write_all(&burst).await.unwrap();
    assert_eq!(answer(&mut connection, 203).await, SERVING);

    // The first call goes on as well.
    let heard = async {
        let heard = answer(&mut connection, 1).await;
        drop(connection);
        heard
    };
    let ((), heard) = tokio::join!(server.stop(), heard);
    assert_eq!(heard, NOT_SERVING);
}

#[tokio::test]
async fn a_client_that_goes_on_to_send_what_no_call_is_there_for_loses_its_connection() {
    let server = start(&memory()).await;
    // Calls with lower numbers are over from here on.
    let mut connection = watch(&server, 1 << 20 | 1).await;
    let mut frames = Vec::new();
    for n in 0..=BAD_FRAMES_MAX as u32 {
        frames.extend(frame(DATA, 0, 2 * n + 1, &[]));
    }
    connection.write_all(&frames).await.unwrap();
    let mut answered = 0;
    let why = loop {
        let (kind, _, payload) = next_frame(&mut connection).await;
        match kind {
            GOAWAY => break reason(&payload),
            RST_STREAM => answered += 1,
            _ => {}
        }
    };
    assert_eq!(why, ENHANCE_YOUR_CALM);
    assert!(answered <= BAD_FRAMES_MAX, "{answered}");
    server.stop().await;
}

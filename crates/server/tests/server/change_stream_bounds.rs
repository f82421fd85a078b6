//! What a change stream sends of changes that are large or many, and where it begins when the clock does not agree.

use std::time::Duration;

use tepui_bigtable::changes::message::CHUNKS_MAX;
use tepui_engine::io::{Clock as _, ManualClock};
use tepui_server::api::v2::mutation::Mutation as Change;
use tepui_server::api::v2::read_change_stream_response::StreamRecord;

use super::change_streams::{next, next_change, partition, request, row_of};
use super::*;

#[tokio::test]
async fn a_stream_without_a_start_misses_nothing_when_the_clock_is_set_back() {
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    let server = start(&Env { clock: Arc::<ManualClock>::clone(&clock), ..memory() }).await;
    server.create_streaming(&[]).await;
    server.set("before", b"v").await.unwrap();
    clock.advance_micros(600_000_000);
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    clock.set_wall_micros(clock.now_micros() - 300_000_000);
    server.set("after", b"v").await.unwrap();
    let change = tokio::time::timeout(Duration::from_mins(1), next_change(&mut records)).await;
    assert_eq!(row_of(&change.expect("it is delivered")), "after");
    server.stop().await;
}

#[tokio::test]
async fn a_change_of_many_columns_comes_whole_in_messages_of_some_hundreds() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    let set = |n: usize| v2::Mutation {
        mutation: Some(Change::SetCell(v2::mutation::SetCell {
            family_name: "cf".to_owned(),
            column_qualifier: Bytes::from(n.to_string()),
            timestamp_micros: 1_000,
            value: Bytes::from_static(b"v"),
        })),
    };
    let columns = 20 * CHUNKS_MAX + 1;
    server.mutate("r", (0..columns).map(set).collect()).await;
    let (mut found, mut messages) = (Vec::new(), 0);
    loop {
        let part = match next(&mut records).await.unwrap() {
            Some(StreamRecord::DataChange(part)) => part,
            Some(StreamRecord::Heartbeat(_)) => continue,
            other => panic!("{other:?}"),
        };
        assert!(part.chunks.len() <= CHUNKS_MAX);
        messages += 1;
        found.extend(part.chunks.into_iter().map(|chunk| chunk.mutation.unwrap()));
        if part.done {
            break;
        }
    }
    assert_eq!(messages, 21);
    assert!(found.into_iter().eq((0..columns).map(set)));
    server.stop().await;
}

#[tokio::test]
async fn a_row_that_one_request_deletes_many_times_is_shown_as_deleted_once() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    let delete = v2::Mutation { mutation: Some(Change::DeleteFromRow(Default::default())) };
    server.mutate("r", vec![delete; 50_000]).await;
    server.set("next", b"v").await.unwrap();
    let change = next_change(&mut records).await;
    assert_eq!((row_of(&change).as_str(), change.chunks.len()), ("r", 2));
    assert_eq!(row_of(&next_change(&mut records).await), "next");
    server.stop().await;
}

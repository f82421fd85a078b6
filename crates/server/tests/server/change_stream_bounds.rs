//! What a change stream sends of changes that are large or many, and where it begins when the clock does not agree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tepui_bigtable::changes::message::CHUNKS_MAX;
use tepui_engine::io::{Clock, ManualClock};
use tepui_server::api::v2::mutation::Mutation as Change;
use tepui_server::api::v2::read_change_stream_request::StartFrom;
use tepui_server::api::v2::read_change_stream_response::StreamRecord;

use super::change_streams::{next, next_change, now, partition, request, row_of};
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

/// The time, and how often somebody has asked for it.
#[derive(Debug)]
struct AskedClock {
    time: SystemClock,
    asked: AtomicU64,
}

impl Clock for AskedClock {
    fn now_micros(&self) -> i64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.time.now_micros()
    }

    fn monotonic_micros(&self) -> u64 {
        self.time.monotonic_micros()
    }
}

#[tokio::test]
async fn a_stream_whose_end_a_full_disk_holds_up_waits_at_rest_and_ends_once_there_is_room() {
    let clock = AskedClock { time: SystemClock::new(), asked: AtomicU64::new(0) };
    let clock = Arc::new(clock);
    let (env, faults) = with_faults(&Env { clock: Arc::<AskedClock>::clone(&clock), ..memory() });
    let server = start_with(&env, |config| config.engine.log_segment_bytes = 64 << 10).await;
    server.create_streaming(&[]).await;
    let start_time = now();
    server.set("before", b"v").await.unwrap();
    let full = Fault::new(FaultOp::Create).on_path(".log");
    faults.inject(full.kind(tepui_engine::ErrorKind::NoSpace).sticky());
    let value = vec![7; 8 << 10];
    let refused = in_time("a write is refused", async {
        loop {
            // One that needs the next segment waits for it.
            let written = server.set("row", &value);
            let written = tokio::time::timeout(Duration::from_millis(100), written).await;
            if let Ok(Err(refused)) = written {
                break refused;
            }
        }
    });
    assert_eq!(refused.await.code(), Code::ResourceExhausted);

    let asked_in = async |time| {
        let before = clock.asked.load(Ordering::Relaxed);
        tokio::time::sleep(time).await;
        clock.asked.load(Ordering::Relaxed) - before
    };
    let until = v2::ReadChangeStreamRequest {
        end_time: Some(now()),
        heartbeat_duration: None,
        ..request(partition("", ""), Some(StartFrom::StartTime(start_time)))
    };
    let at_rest = asked_in(Duration::from_secs(1)).await;
    let mut records = server.read_changes(until).await.unwrap();
    assert_eq!(row_of(&next_change(&mut records).await), "before");
    let end = async {
        loop {
            match next(&mut records).await.unwrap() {
                Some(StreamRecord::Heartbeat(_) | StreamRecord::DataChange(_)) => {}
                other => break other,
            }
        }
    };
    let mut end = std::pin::pin!(end);
    let asked = tokio::select! {
        ended = &mut end => panic!("{ended:?}"),
        asked = asked_in(Duration::from_millis(2_500)) => asked,
    };
    assert!(asked < 3 * at_rest + 100, "{asked}, and {at_rest} a second without the stream");
    faults.heal();
    let ended = in_time("it ends", end).await;
    assert!(matches!(ended, Some(StreamRecord::CloseStream(_))), "{ended:?}");
    server.stop().await;
}

#[tokio::test]
async fn streams_of_large_rows_go_on_beside_each_other_with_little_memory() {
    // Of which a connection may have a megabyte, a third of each row.
    let server = start_with(&memory(), |config| config.budget.answers_bytes = 8 << 20).await;
    server.create_streaming(&[]).await;
    let begun = now();
    let rows: Vec<String> = (0..6).map(|n| format!("row-{n}")).collect();
    let value = vec![7; 3 << 20];
    // More than is kept in memory of what is new: the first are read from the disk.
    for row in &rows {
        server.set(row, &value).await.unwrap();
    }
    let read = async || {
        let request = request(partition("", ""), Some(StartFrom::StartTime(begun)));
        let mut records = server.read_changes(request).await.unwrap();
        for row in &rows {
            assert_eq!(row_of(&next_change(&mut records).await), *row);
        }
    };
    tokio::join!(read(), read(), read(), read());
    server.stop().await;
}

#[tokio::test]
async fn a_stream_may_begin_at_the_time_of_a_change_though_the_clock_has_been_set_back() {
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    let server = start(&Env { clock: Arc::<ManualClock>::clone(&clock), ..memory() }).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    clock.advance_micros(3_600_000_000);
    server.set("row", b"v").await.unwrap();
    let time = next_change(&mut records).await.commit_timestamp.unwrap();
    clock.set_wall_micros(clock.now_micros() - 1_800_000_000);
    let from = |time| request(partition("", ""), Some(StartFrom::StartTime(time)));
    let mut records = server.read_changes(from(time)).await.unwrap();
    assert_eq!(row_of(&next_change(&mut records).await), "row");
    let later = prost_types::Timestamp { seconds: time.seconds + 60, ..time };
    let refused = server.read_changes(from(later)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn heartbeats_come_while_the_log_waits_for_open_files() {
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, |config| config.engine.log_segment_bytes = 64 << 10).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    let none_left = Fault::new(FaultOp::Create).on_path(".log");
    faults.inject(none_left.kind(tepui_engine::ErrorKind::Exhausted).sticky());
    let value = vec![7; 8 << 10];
    in_time("a write waits", async {
        loop {
            let written = tokio::time::timeout(Duration::from_secs(1), server.set("row", &value));
            match written.await {
                Ok(written) => written.unwrap(),
                Err(_) => break,
            }
        }
    })
    .await;
    let old = async {
        loop {
            if let Some(StreamRecord::Heartbeat(heartbeat)) = next(&mut records).await.unwrap()
                && heartbeat.estimated_low_watermark.unwrap().seconds + 2 < now().seconds
            {
                break;
            }
        }
    };
    in_time("there is one that tells of a time that is past", old).await;
    faults.heal();
    server.set("row", b"v").await.unwrap();
    server.stop().await;
}

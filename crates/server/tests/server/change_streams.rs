//! Change streams as a client reads them: what is delivered, where a reader goes on, how a stream ends.

use std::collections::BTreeMap;
use std::time::Duration;

use tepui_engine::io::{Clock as _, ManualClock};
use tepui_server::api::v2::read_change_stream_request::StartFrom;
use tepui_server::api::v2::read_change_stream_response::{
    CloseStream, DataChange, Heartbeat, StreamRecord, data_change::Type,
};
use tepui_server::api::v2::row_range::{EndKey, StartKey};

use super::*;

const DAY_SECONDS: i64 = 86_400;

fn config(days: i64) -> admin::ChangeStreamConfig {
    let retention_period = Some(prost_types::Duration { seconds: days * DAY_SECONDS, nanos: 0 });
    admin::ChangeStreamConfig { retention_period }
}

pub(super) fn partition(start: &'static str, end: &'static str) -> v2::StreamPartition {
    let row_range = v2::RowRange {
        start_key: Some(StartKey::StartKeyClosed(start.into())),
        end_key: Some(EndKey::EndKeyOpen(end.into())),
    };
    v2::StreamPartition { row_range: Some(row_range) }
}

pub(super) fn request(
    partition: v2::StreamPartition,
    from: Option<StartFrom>,
) -> v2::ReadChangeStreamRequest {
    v2::ReadChangeStreamRequest {
        table_name: TABLE.to_owned(),
        partition: Some(partition),
        start_from: from,
        heartbeat_duration: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
        ..Default::default()
    }
}

fn from_token(partition: &v2::StreamPartition, token: &str) -> Option<StartFrom> {
    let partition = Some(partition.clone());
    let token = v2::StreamContinuationToken { partition, token: token.to_owned() };
    Some(StartFrom::ContinuationTokens(v2::StreamContinuationTokens { tokens: vec![token] }))
}

pub(super) fn now() -> prost_types::Timestamp {
    let micros = SystemClock::new().now_micros();
    tepui_bigtable::changes::message::timestamp(micros)
}

pub(super) type Records = tonic::Streaming<v2::ReadChangeStreamResponse>;

/// The next record.
pub(super) async fn next(records: &mut Records) -> Result<Option<StreamRecord>, tonic::Status> {
    let message = tokio::time::timeout(Duration::from_mins(1), records.message());
    let message = message.await.expect("a record or the end, within a minute")?;
    Ok(message.map(|message| message.stream_record.expect("a record of some kind")))
}

/// The next change, put together.
pub(super) async fn next_change(records: &mut Records) -> DataChange {
    let mut whole: Option<DataChange> = None;
    loop {
        match next(records).await.unwrap() {
            Some(StreamRecord::DataChange(part)) => {
                assert_eq!(part.r#type() == Type::Continuation, whole.is_some());
                let done = part.done;
                whole = Some(match whole {
                    None => part,
                    Some(mut whole) => {
                        whole.chunks.extend(part.chunks);
                        whole.token = part.token;
                        whole
                    }
                });
                if done {
                    return whole.unwrap();
                }
            }
            Some(StreamRecord::Heartbeat(_)) => assert!(whole.is_none()),
            other => panic!("{other:?}"),
        }
    }
}

async fn next_heartbeat(records: &mut Records) -> Heartbeat {
    loop {
        match next(records).await.unwrap() {
            Some(StreamRecord::Heartbeat(heartbeat)) => return heartbeat,
            Some(StreamRecord::DataChange(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn row_of(change: &DataChange) -> String {
    String::from_utf8(change.row_key.to_vec()).unwrap()
}

impl TestServer {
    pub(super) async fn create_streaming(&self, splits: &[&'static str]) {
        self.create_streaming_in(INSTANCE, splits).await;
    }

    async fn create_streaming_in(&self, instance: &str, splits: &[&'static str]) {
        let request = admin::CreateTableRequest {
            parent: instance.to_owned(),
            table_id: "t".to_owned(),
            table: Some(admin::Table {
                column_families: ["cf", "cg"].map(|f| (f.to_owned(), Default::default())).into(),
                change_stream_config: Some(config(1)),
                ..Default::default()
            }),
            initial_splits: splits
                .iter()
                .map(|key| admin::create_table_request::Split { key: Bytes::from(*key) })
                .collect(),
        };
        self.tables().create_table(request).await.unwrap();
    }

    async fn set_stream(&self, config: Option<admin::ChangeStreamConfig>) {
        let request = admin::UpdateTableRequest {
            table: Some(admin::Table {
                name: TABLE.to_owned(),
                change_stream_config: config,
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["change_stream_config".to_owned()],
            }),
            ..Default::default()
        };
        self.tables().update_table(request).await.unwrap();
    }

    async fn modify(&self, family: &str, how: Mod) {
        let modification =
            Modification { id: family.to_owned(), r#mod: Some(how), update_mask: None };
        let request = admin::ModifyColumnFamiliesRequest {
            name: TABLE.to_owned(),
            modifications: vec![modification],
            ..Default::default()
        };
        self.tables().modify_column_families(request).await.unwrap();
    }

    pub(super) async fn read_changes(
        &self,
        request: v2::ReadChangeStreamRequest,
    ) -> Result<Records, tonic::Status> {
        self.data().read_change_stream(request).await.map(tonic::Response::into_inner)
    }

    /// What the first message or the request itself fails with.
    async fn refused(&self, request: v2::ReadChangeStreamRequest) -> tonic::Status {
        match self.read_changes(request).await {
            Err(status) => status,
            Ok(mut records) => next(&mut records).await.unwrap_err(),
        }
    }

    pub(super) async fn mutate(&self, row: &str, mutations: Vec<v2::Mutation>) {
        let request = v2::MutateRowRequest {
            table_name: TABLE.to_owned(),
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations,
            ..Default::default()
        };
        self.data().mutate_row(request).await.unwrap();
    }
}

#[tokio::test]
async fn no_more_change_streams_are_begun_than_memory_has_room_for() {
    // Of 64 KiB each: 256.
    let server = start_with(&memory(), |config| config.budget.requests_bytes = 16 << 20).await;
    server.create_streaming(&[]).await;
    let asked = || request(partition("", ""), None);
    let mut streams = Vec::new();
    for _ in 0..256 {
        streams.push(server.read_changes(asked()).await.unwrap());
    }
    let refused = server.refused(asked()).await;
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    assert!(!refused.details().is_empty(), "when to try again");
    drop(streams.pop());
    loop {
        match server.read_changes(asked()).await {
            Ok(mut stream) => break drop(next(&mut stream).await.unwrap()),
            Err(status) => assert_eq!(status.code(), tonic::Code::ResourceExhausted),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn partitions_cover_the_table_and_each_delivers_its_rows_in_order() {
    let server = start(&memory()).await;
    server.create_streaming(&["g", "p"]).await;
    let table_name = TABLE.to_owned();
    let asked =
        v2::GenerateInitialChangeStreamPartitionsRequest { table_name, ..Default::default() };
    let listed = server.data().generate_initial_change_stream_partitions(asked).await.unwrap();
    let listed: Vec<_> = listed.into_inner().map(|p| p.unwrap().partition.unwrap()).collect().await;
    assert_eq!(listed, [partition("", "g"), partition("g", "p"), partition("p", "")]);
    let mut records = server.read_changes(request(listed[1].clone(), None)).await.unwrap();
    for i in 0..50 {
        server.set(&format!("a{i}"), b"not this").await.unwrap();
        server.set("h", i.to_string().as_bytes()).await.unwrap();
    }
    let mut before = (0, 0, 0);
    for i in 0..50 {
        let change = next_change(&mut records).await;
        assert_eq!((row_of(&change).as_str(), change.chunks.len()), ("h", 1));
        let set = change.chunks[0].mutation.clone().unwrap().mutation.unwrap();
        let v2::mutation::Mutation::SetCell(set) = set else { panic!("{set:?}") };
        assert_eq!(set.value, i.to_string());
        assert!(set.timestamp_micros >= 0 && !change.source_cluster_id.is_empty());
        let time = change.commit_timestamp.unwrap();
        let at = (time.seconds, time.nanos, change.tiebreaker);
        assert!(at > before, "{at:?} after {before:?}");
        before = at;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_change_comes_from_the_cluster_that_the_readers_profile_routes_to() {
    let server = start(&memory()).await;
    server.create_two_clusters("made").await;
    server.create_streaming_in("projects/p/instances/made", &[]).await;
    let table_name = || "projects/p/instances/made/tables/t".to_owned();
    let begun = Some(StartFrom::StartTime(now()));
    let write = v2::MutateRowRequest {
        table_name: table_name(),
        row_key: Bytes::from_static(b"r"),
        mutations: vec![set_cell("cf", b"v")],
        ..Default::default()
    };
    server.data().mutate_row(write).await.unwrap();
    for (profile, cluster) in [("", "c1"), ("default", "c1"), ("second", "c2")] {
        let (app_profile_id, table_name) = (profile.to_owned(), table_name());
        let read = request(partition("", ""), begun.clone());
        let read = v2::ReadChangeStreamRequest { app_profile_id, table_name, ..read };
        let mut records = server.read_changes(read).await.unwrap();
        assert_eq!(next_change(&mut records).await.source_cluster_id, cluster, "{profile:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_reader_goes_on_from_a_token_after_a_restart_and_misses_nothing() {
    let env = memory();
    let server = start(&env).await;
    server.create_streaming(&[]).await;
    let all = partition("", "");
    let begun = Some(StartFrom::StartTime(now()));
    let mut records = server.read_changes(request(all.clone(), begun)).await.unwrap();
    for i in 0..20 {
        server.set(&format!("r{i:02}"), b"v").await.unwrap();
    }
    let mut token = String::new();
    for i in 0..7 {
        let change = next_change(&mut records).await;
        assert_eq!(row_of(&change), format!("r{i:02}"));
        token = change.token;
    }
    drop(records);
    server.stop().await;
    let server = start(&env).await;
    server.set("r20", b"v").await.unwrap();
    let mut records =
        server.read_changes(request(all.clone(), from_token(&all, &token))).await.unwrap();
    for i in 7..21 {
        assert_eq!(row_of(&next_change(&mut records).await), format!("r{i:02}"));
    }
    // Nothing is left; heartbeats move on, and what comes after one is delivered after it.
    let heartbeat = next_heartbeat(&mut records).await;
    let token = heartbeat.continuation_token.unwrap();
    assert_eq!(token.partition.as_ref(), Some(&all));
    assert!(heartbeat.estimated_low_watermark.unwrap().seconds >= now().seconds - 10);
    drop(records);
    server.set("r21", b"v").await.unwrap();
    let from = from_token(&all, &token.token);
    let mut records = server.read_changes(request(all, from)).await.unwrap();
    assert_eq!(row_of(&next_change(&mut records).await), "r21");
    server.stop().await;
}

fn row_deletion() -> v2::Mutation {
    let delete = v2::mutation::Mutation::DeleteFromRow(Default::default());
    v2::Mutation { mutation: Some(delete) }
}

/// What a change sets and deletes of which families.
fn what_of(change: &DataChange) -> String {
    let families =
        change.chunks.iter().map(|chunk| match chunk.mutation.clone().unwrap().mutation.unwrap() {
            v2::mutation::Mutation::SetCell(set) => format!("set {}", set.family_name),
            v2::mutation::Mutation::DeleteFromFamily(delete) => {
                format!("delete {}", delete.family_name)
            }
            other => panic!("{other:?}"),
        });
    families.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn deletes_of_all_kinds_are_shown_and_families_keep_their_names() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let all = partition("", "");
    let start_time = Some(StartFrom::StartTime(now()));
    server.set("a", b"1").await.unwrap();
    server.mutate("a", vec![row_deletion()]).await;
    server.set("b1", b"1").await.unwrap();
    server.set("b2", b"1").await.unwrap();
    let target = Some(Target::RowKeyPrefix(Bytes::from_static(b"b")));
    let drop_rows = admin::DropRowRangeRequest { name: TABLE.to_owned(), target };
    server.tables().drop_row_range(drop_rows).await.unwrap();
    assert!(server.rows().await.unwrap().is_empty());
    server.mutate("c", vec![set_cell("cg", b"1")]).await;
    server.modify("cg", Mod::Drop(true)).await;
    let mut records = server.read_changes(request(all, start_time)).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..7 {
        let change = next_change(&mut records).await;
        seen.push((row_of(&change), what_of(&change)));
    }
    let mut dropped = seen.split_off(4);
    dropped[..2].sort();
    let expected = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|(row, what)| ((*row).to_owned(), (*what).to_owned())).collect()
    };
    assert_eq!(
        seen,
        expected(&[
            ("a", "set cf"),
            ("a", "delete cf, delete cg"),
            ("b1", "set cf"),
            ("b2", "set cf")
        ])
    );
    assert_eq!(
        dropped,
        expected(&[
            ("b1", "delete cf, delete cg"),
            ("b2", "delete cf, delete cg"),
            ("c", "set cg")
        ])
    );
    server.stop().await;
}

#[tokio::test]
async fn a_deleted_row_is_shown_for_the_families_that_the_table_had_whenever_it_is_read() {
    let env = memory();
    let mut server = start(&env).await;
    server.create_streaming(&[]).await;
    let start_time = now();
    let delete = || vec![row_deletion()];
    server.mutate("a", vec![set_cell("cf", b"1"), set_cell("cg", b"1")]).await;
    server.mutate("a", delete()).await;
    server.modify("new", Mod::Create(Default::default())).await;
    server.mutate("b", vec![set_cell("new", b"1")]).await;
    server.modify("cg", Mod::Drop(true)).await;
    server.mutate("b", delete()).await;
    server.modify("cf", Mod::Drop(true)).await;
    server.modify("new", Mod::Drop(true)).await;
    // The table has no family left.
    server.mutate("c", delete()).await;
    server.modify("last", Mod::Create(Default::default())).await;
    server.mutate("d", vec![set_cell("last", b"1")]).await;
    for is_restarted in [false, true] {
        let from = Some(StartFrom::StartTime(start_time));
        let mut records = server.read_changes(request(partition("", ""), from)).await.unwrap();
        let mut seen = Vec::new();
        while !seen.iter().any(|change: &String| change.starts_with('d')) {
            let change = next_change(&mut records).await;
            seen.push(format!("{}: {}", row_of(&change), what_of(&change)));
        }
        let all = [
            "a: set cf, set cg",
            "a: delete cf, delete cg",
            "b: set new",
            "b: delete cf, delete new",
            "d: set last",
        ];
        assert_eq!(seen, all, "{is_restarted}");
        drop(records);
        server.stop().await;
        server = start(&env).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_large_value_comes_in_chunks_below_the_limit_of_clients() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    let value: Vec<u8> = (0..9 << 20).map(|i: u32| (i ^ (i >> 9)) as u8).collect();
    server.set("large", &value).await.unwrap();
    let change = next_change(&mut records).await;
    let mut found = Vec::new();
    for chunk in &change.chunks {
        let info = chunk.chunk_info.expect("a part");
        assert_eq!(
            (info.chunked_value_size, info.chunked_value_offset),
            (9 << 20, found.len() as i32)
        );
        let Some(v2::mutation::Mutation::SetCell(set)) = &chunk.mutation.as_ref().unwrap().mutation
        else {
            panic!("{chunk:?}")
        };
        found.extend_from_slice(&set.value);
    }
    assert!(found == value && change.chunks.len() > 3);
    server.stop().await;
}

fn closed(record: Option<StreamRecord>) -> CloseStream {
    match record {
        Some(StreamRecord::CloseStream(close)) => close,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_with_an_end_time_delivers_what_is_before_it_and_closes_with_ok() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let start_time = now();
    for i in 0..5 {
        server.set(&format!("r{i}"), b"v").await.unwrap();
    }
    let until = v2::ReadChangeStreamRequest {
        end_time: Some(now()),
        ..request(partition("", ""), Some(StartFrom::StartTime(start_time)))
    };
    // Another millisecond: what comes now is after the end.
    while now().nanos / 1_000_000 == until.end_time.unwrap().nanos / 1_000_000 {
        tokio::task::yield_now().await;
    }
    server.set("late", b"v").await.unwrap();
    let mut records = server.read_changes(until).await.unwrap();
    for i in 0..5 {
        assert_eq!(row_of(&next_change(&mut records).await), format!("r{i}"));
    }
    let close = loop {
        match next(&mut records).await.unwrap() {
            Some(StreamRecord::Heartbeat(_)) => {}
            other => break closed(other),
        }
    };
    assert_eq!(close.status.unwrap().code, 0);
    assert!(close.continuation_tokens.is_empty() && close.new_partitions.is_empty());
    assert_eq!(next(&mut records).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test]
async fn a_partition_over_several_tablets_is_closed_with_a_token_for_each() {
    let server = start(&memory()).await;
    server.create_streaming(&["g", "p"]).await;
    let begun = Some(StartFrom::StartTime(now()));
    for row in ["c", "h", "q"] {
        server.set(row, b"v").await.unwrap();
    }
    let mut records = server.read_changes(request(partition("b", ""), begun)).await.unwrap();
    let close = closed(next(&mut records).await.unwrap());
    assert_eq!(next(&mut records).await.unwrap(), None);
    assert_eq!(close.status.unwrap().code, tonic::Code::OutOfRange as i32);
    assert_eq!(
        close.new_partitions,
        [partition("b", "g"), partition("g", "p"), partition("p", "")]
    );
    let parts = close.new_partitions.iter().zip(close.continuation_tokens).zip(["c", "h", "q"]);
    for ((part, token), row) in parts {
        assert_eq!(token.partition.as_ref(), Some(part));
        let from = from_token(part, &token.token);
        let mut records = server.read_changes(request(part.clone(), from)).await.unwrap();
        assert_eq!(row_of(&next_change(&mut records).await), row);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_ends_when_it_is_disabled_and_an_old_token_is_not_taken_by_a_new_one() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let all = partition("", "");
    let mut records = server.read_changes(request(all.clone(), None)).await.unwrap();
    server.set("r", b"v").await.unwrap();
    let token = next_change(&mut records).await.token;
    server.set_stream(None).await;
    let status = loop {
        match next(&mut records).await {
            Ok(Some(StreamRecord::Heartbeat(_))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let status = server.refused(request(all.clone(), None)).await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    server.set("unseen", b"v").await.unwrap();
    server.set_stream(Some(config(7))).await;
    let status = server.refused(request(all.clone(), from_token(&all, &token))).await;
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let mut records = server.read_changes(request(all, None)).await.unwrap();
    server.set("seen", b"v").await.unwrap();
    assert_eq!(row_of(&next_change(&mut records).await), "seen");
    server.stop().await;
}

#[tokio::test]
async fn a_slow_reader_is_not_led_over_the_time_in_which_its_stream_was_disabled() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create_streaming(&[]).await;
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    // More than clients take ahead, so that the server waits in the midst of it.
    let value = vec![7; 24 << 20];
    server.set("large", &value).await.unwrap();
    while !matches!(next(&mut records).await.unwrap(), Some(StreamRecord::DataChange(_))) {}
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_reads_parked"), 1);
    let charged = sample(&metrics, "tepui_memory_bytes{part=\"answers\"}");
    assert!(charged >= 24 << 20, "what waits for the client counts: {charged}");
    server.set_stream(None).await;
    server.set("unseen", b"v").await.unwrap();
    server.set_stream(Some(config(1))).await;
    server.set("seen", b"v").await.unwrap();
    let status = loop {
        match next(&mut records).await {
            Ok(Some(StreamRecord::DataChange(part))) => {
                assert!(part.row_key.is_empty(), "{:?} is not of the same stream", part.row_key);
            }
            Ok(Some(StreamRecord::Heartbeat(_))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_have_the_documented_codes() {
    let server = start(&memory()).await;
    server.create_streaming(&["m"]).await;
    let (low, high) = (partition("", "m"), partition("m", ""));
    let mut records = server.read_changes(request(low.clone(), None)).await.unwrap();
    let token = next_heartbeat(&mut records).await.continuation_token.unwrap();
    let at = |seconds| Some(StartFrom::StartTime(prost_types::Timestamp { seconds, nanos: 0 }));
    let hour = now().seconds + 3_600;
    let with = |change: &dyn Fn(&mut v2::ReadChangeStreamRequest)| {
        let mut request = request(low.clone(), None);
        change(&mut request);
        request
    };
    let tokens = |parts: &[(&v2::StreamPartition, &str)]| {
        let token =
            |(partition, token): &(&v2::StreamPartition, &str)| v2::StreamContinuationToken {
                partition: Some((*partition).clone()),
                token: (*token).to_owned(),
            };
        let tokens = parts.iter().map(token).collect();
        Some(StartFrom::ContinuationTokens(v2::StreamContinuationTokens { tokens }))
    };
    let good = token.token.as_str();
    let duration = |nanos| Some(prost_types::Duration { seconds: 0, nanos });
    let cases = [
        ("no table", Code::NotFound, with(&|r| r.table_name = format!("{TABLE}x"))),
        ("a bad name", Code::InvalidArgument, with(&|r| r.table_name = "t".to_owned())),
        ("no partition", Code::InvalidArgument, with(&|r| r.partition = None)),
        (
            "an inverted partition",
            Code::InvalidArgument,
            with(&|r| r.partition = Some(partition("b", "a"))),
        ),
        ("before the stream", Code::OutOfRange, with(&|r| r.start_from = at(1_000))),
        ("in the future", Code::InvalidArgument, with(&|r| r.start_from = at(hour))),
        ("before 1970", Code::InvalidArgument, with(&|r| r.start_from = at(-1))),
        ("no token", Code::InvalidArgument, with(&|r| r.start_from = tokens(&[]))),
        (
            "no such token",
            Code::InvalidArgument,
            with(&|r| r.start_from = tokens(&[(&low, "abc")])),
        ),
        (
            "a damaged token",
            Code::InvalidArgument,
            with(&|r| {
                r.start_from = tokens(&[(&low, &good.replace(&good[30..32], "zz"))]);
            }),
        ),
        (
            "a token of another partition",
            Code::InvalidArgument,
            with(&|r| {
                r.start_from = tokens(&[(&high, good)]);
            }),
        ),
        (
            "tokens that do not cover",
            Code::InvalidArgument,
            with(&|r| {
                r.partition = Some(partition("", ""));
                r.start_from = tokens(&[(&low, good)]);
            }),
        ),
        (
            "a token twice",
            Code::InvalidArgument,
            with(&|r| {
                r.start_from = tokens(&[(&low, good), (&low, good)]);
            }),
        ),
        (
            "an end before the start",
            Code::InvalidArgument,
            with(&|r| {
                r.start_from = Some(StartFrom::StartTime(now()));
                r.end_time = Some(prost_types::Timestamp { seconds: 5, nanos: 0 });
            }),
        ),
        (
            "no time between heartbeats",
            Code::InvalidArgument,
            with(&|r| r.heartbeat_duration = duration(0)),
        ),
        (
            "heartbeats too often",
            Code::InvalidArgument,
            with(&|r| r.heartbeat_duration = duration(1_000)),
        ),
    ];
    for (what, code, request) in cases {
        let status = server.refused(request).await;
        assert_eq!(status.code(), code, "{what}: {status}");
        assert!(!status.message().is_empty(), "{what}");
    }
    for (table, code) in [("t", Code::InvalidArgument), (&format!("{TABLE}x"), Code::NotFound)] {
        let asked = v2::GenerateInitialChangeStreamPartitionsRequest {
            table_name: table.to_owned(),
            ..Default::default()
        };
        let status =
            server.data().generate_initial_change_stream_partitions(asked).await.unwrap_err();
        assert_eq!(status.code(), code);
    }
    server.stop().await;
}

#[tokio::test]
async fn what_has_grown_older_than_the_retention_is_refused_also_after_a_restart() {
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    let env = Env { clock: Arc::<ManualClock>::clone(&clock), ..memory() };
    let server = start(&env).await;
    server.create_streaming(&[]).await;
    let all = partition("", "");
    clock.advance_micros(1_000_000);
    let begun = tepui_bigtable::changes::message::timestamp(clock.now_micros());
    let mut records = server.read_changes(request(all.clone(), None)).await.unwrap();
    server.set("first", b"v").await.unwrap();
    let token = next_change(&mut records).await.token;
    drop(records);

    clock.advance_micros(DAY_SECONDS as u64 * 1_000_000 - 60_000_000);
    server.set("second", b"v").await.unwrap();
    let old = || [Some(StartFrom::StartTime(begun)), from_token(&all, &token)];
    let mut later = String::new();
    for (from, row) in old().into_iter().zip(["first", "second"]) {
        let mut records = server.read_changes(request(all.clone(), from)).await.unwrap();
        let change = next_change(&mut records).await;
        assert_eq!(row_of(&change), row, "it is within the retention");
        later = change.token;
    }
    clock.advance_micros(120_000_000);
    let is_refused = async |server: &TestServer| {
        for from in old() {
            let status = server.refused(request(all.clone(), from.clone())).await;
            assert_eq!(status.code(), Code::OutOfRange, "{from:?}: {status}");
            assert!(status.message().contains("is before what the change stream has"), "{status}");
        }
    };
    is_refused(&server).await;
    server.stop().await;

    let server = start(&env).await;
    is_refused(&server).await;
    server.set("third", b"v").await.unwrap();
    let from = from_token(&all, &later);
    let mut records = server.read_changes(request(all.clone(), from)).await.unwrap();
    assert_eq!(row_of(&next_change(&mut records).await), "third", "a younger token is good");
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_ends_its_streams_at_once() {
    let server = start(&memory()).await;
    server.create_streaming(&[]).await;
    let quiet = v2::ReadChangeStreamRequest {
        heartbeat_duration: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        ..request(partition("", ""), None)
    };
    let mut records = server.read_changes(quiet).await.unwrap();
    let (last, ()) = tokio::join!(records.message(), server.stop());
    let status = last.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

/// Row, family, qualifier and timestamp, the newest of a column first by a negated one.
type CellKey = (String, String, Bytes, i64);

/// What a table is to whoever replays its stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Replay {
    cells: BTreeMap<CellKey, Bytes>,
    /// Cells that garbage collection has deleted.
    collected: usize,
}

impl Replay {
    fn take(&mut self, change: &DataChange) {
        let row = row_of(change);
        let is_user = change.r#type() == Type::User;
        assert_eq!(change.source_cluster_id.is_empty(), !is_user, "{change:?}");
        for chunk in &change.chunks {
            let before = self.cells.len();
            match chunk.mutation.clone().unwrap().mutation.unwrap() {
                v2::mutation::Mutation::SetCell(set) => {
                    assert!(is_user);
                    let qualifier = set.column_qualifier;
                    let key = (row.clone(), set.family_name, qualifier, -set.timestamp_micros);
                    self.cells.insert(key, set.value);
                }
                v2::mutation::Mutation::DeleteFromColumn(delete) => {
                    let range = delete.time_range.unwrap_or_default();
                    let (start, end) = (range.start_timestamp_micros, range.end_timestamp_micros);
                    assert!(start % 1_000 == 0 && end % 1_000 == 0, "what a client may send");
                    self.cells.retain(|(of, family, qualifier, negated), _| {
                        let is_within = start <= -*negated && (end == 0 || -*negated < end);
                        (of, family, qualifier)
                            != (&row, &delete.family_name, &delete.column_qualifier)
                            || !is_within
                    });
                    assert!(is_user || self.cells.len() < before, "it deletes nothing: {delete:?}");
                }
                other => panic!("{other:?}"),
            }
            if !is_user {
                self.collected += before - self.cells.len();
            }
        }
    }
}

impl TestServer {
    /// All cells of the table.
    async fn cells(&self) -> BTreeMap<CellKey, Bytes> {
        let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
        let mut stream = self.data().read_rows(request).await.unwrap().into_inner();
        let (mut cells, mut column) = (BTreeMap::new(), CellKey::default());
        while let Some(message) = stream.message().await.unwrap() {
            for chunk in message.chunks {
                if !chunk.row_key.is_empty() {
                    column.0 = String::from_utf8(chunk.row_key.to_vec()).unwrap();
                }
                if let Some(family) = chunk.family_name {
                    column.1 = family;
                }
                if let Some(qualifier) = chunk.qualifier {
                    column.2 = qualifier.into();
                }
                column.3 = -chunk.timestamp_micros;
                cells.insert(column.clone(), chunk.value);
            }
        }
        cells
    }
}

#[tokio::test]
async fn whoever_replays_a_stream_has_the_table_without_what_garbage_collection_took() {
    let start_micros = 1_767_225_600_000_000;
    let clock = Arc::new(ManualClock::new(start_micros));
    let server = start(&Env { clock: Arc::<ManualClock>::clone(&clock), ..memory() }).await;
    let rule = |rule| admin::ColumnFamily {
        gc_rule: Some(admin::GcRule { rule: Some(rule) }),
        ..Default::default()
    };
    let hour = prost_types::Duration { seconds: 3_600, nanos: 0 };
    let families = [
        ("newest".to_owned(), rule(admin::gc_rule::Rule::MaxNumVersions(1))),
        ("young".to_owned(), rule(admin::gc_rule::Rule::MaxAge(hour))),
        ("all".to_owned(), admin::ColumnFamily::default()),
    ];
    let create = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "t".to_owned(),
        table: Some(admin::Table {
            column_families: families.into(),
            change_stream_config: Some(config(1)),
            ..Default::default()
        }),
        ..Default::default()
    };
    server.tables().create_table(create).await.unwrap();
    let mut records = server.read_changes(request(partition("", ""), None)).await.unwrap();
    let set = |family: &str, timestamp_micros, value: String| v2::Mutation {
        mutation: Some(v2::mutation::Mutation::SetCell(v2::mutation::SetCell {
            family_name: family.to_owned(),
            column_qualifier: Bytes::from_static(b"q"),
            timestamp_micros,
            value: value.into(),
        })),
    };
    for version in 0..4 {
        for row in 0..5 {
            // Of each row one is young for a quarter of an hour still, and three have been old all along.
            let age_minutes = 45 + 30 * version;
            let mutations = vec![
                set("newest", (10 + version) * 1_000, format!("{row} {version}")),
                set("young", start_micros - age_minutes * 60_000_000, "v".to_owned()),
                set("all", (10 + version) * 1_000, "v".to_owned()),
            ];
            server.mutate(&format!("r{row}"), mutations).await;
        }
    }
    let mut replay = Replay::default();
    // What was young grows old, without any write.
    for collected in [5 * (3 + 3), 5 * (3 + 4)] {
        while replay.collected < collected {
            match next(&mut records).await.unwrap() {
                Some(StreamRecord::DataChange(change)) => {
                    assert!(change.done, "each is small");
                    replay.take(&change);
                }
                // A few times a second. Nothing is due before time has passed.
                Some(StreamRecord::Heartbeat(_)) => clock.advance_micros(5_000_000),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(replay.collected, collected);
        assert_eq!(server.cells().await, replay.cells);
        clock.advance_micros(900_000_000);
    }
    let of_family = |name| replay.cells.keys().filter(|(_, family, ..)| family == name).count();
    assert_eq!(["newest", "young", "all"].map(of_family), [5, 0, 20]);
    server.stop().await;
}

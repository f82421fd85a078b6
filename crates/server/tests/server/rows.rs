//! Rows over the wire: written, read and refused.

use std::sync::atomic::{AtomicBool, Ordering};

use tepui_engine::io::Clock;

use super::*;

/// The time, and whether a core's helper has asked for it.
#[derive(Debug, Default)]
struct HelpersClock {
    time: SystemClock,
    was_asked: AtomicBool,
}

impl Clock for HelpersClock {
    fn now_micros(&self) -> i64 {
        self.time.now_micros()
    }

    fn monotonic_micros(&self) -> u64 {
        if std::thread::current().name().is_some_and(|name| name.starts_with("tepui-large")) {
            self.was_asked.store(true, Ordering::Relaxed);
        }
        self.time.monotonic_micros()
    }
}

#[tokio::test]
async fn what_was_written_is_read_after_a_restart() {
    let env = memory();
    let server = start(&env).await;
    server.create(&["m"]).await;
    server.set("b", b"1").await.unwrap();
    server.set("x", b"2").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("b", b"1"), row("x", b"2")]);
    server.stop().await;

    let server = start(&env).await;
    assert_eq!(server.rows().await.unwrap(), [row("b", b"1"), row("x", b"2")]);
    let request = admin::GetTableRequest { name: TABLE.to_owned(), view: 0 };
    let table = server.tables().get_table(request).await.unwrap().into_inner();
    assert!(table.column_families.contains_key("cf"));
    server.stop().await;
}

#[tokio::test]
async fn values_larger_than_a_message_arrive_whole_at_a_client_with_default_limits() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let value: Vec<u8> = (0..20 << 20).map(|i| (i % 251) as u8).collect();
    server.set("big", &value).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("big", &value)]);
    server.stop().await;
}

#[tokio::test]
async fn a_read_of_many_rows_is_answered_and_one_of_too_many_is_refused() {
    let server = start(&memory()).await;
    server.create(&["key-02"]).await;
    for name in ["key-00000007", "key-00049999"] {
        server.set(name, b"v").await.unwrap();
    }
    let read = async |rows: v2::RowSet| {
        let request = v2::ReadRowsRequest {
            table_name: TABLE.to_owned(),
            rows: Some(rows),
            ..Default::default()
        };
        let mut stream = server.data().read_rows(request).await?.into_inner();
        let mut found = 0;
        while let Some(message) = stream.message().await? {
            found += message.chunks.len();
        }
        Ok::<_, tonic::Status>(found)
    };
    let row_keys = (0..50_000).map(|n| format!("key-{n:08}").into()).collect();
    assert_eq!(read(v2::RowSet { row_keys, ..Default::default() }).await.unwrap(), 2);
    // Two bytes each, and each of them all rows.
    let row_ranges = vec![v2::RowRange::default(); 4_000_000];
    let refused = read(v2::RowSet { row_ranges, ..Default::default() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("4000000 provided; limit 250000"), "{refused}");
    assert_eq!(server.rows().await.unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_read_of_many_keys_is_begun_beside_the_core() {
    let clock = Arc::new(HelpersClock::default());
    let env = Env { clock: Arc::<HelpersClock>::clone(&clock), ..memory() };
    let server = start(&env).await;
    server.create(&[]).await;
    server.set("key-00000007", b"v").await.unwrap();
    for (keys, is_large) in [(10, false), (100_000, true)] {
        let row_keys = (0..keys).map(|n| format!("key-{n:08}").into()).collect();
        let request = v2::ReadRowsRequest {
            table_name: TABLE.to_owned(),
            rows: Some(v2::RowSet { row_keys, ..Default::default() }),
            rows_limit: 1,
            // Timed from its beginning on.
            request_stats_view: v2::read_rows_request::RequestStatsView::RequestStatsFull.into(),
            ..Default::default()
        };
        let mut stream = server.data().read_rows(request).await.unwrap().into_inner();
        let mut found = 0;
        while let Some(message) = stream.message().await.unwrap() {
            found += message.chunks.len();
        }
        assert_eq!(found, 1);
        assert_eq!(clock.was_asked.load(Ordering::Relaxed), is_large, "{keys} keys");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_write_answers_for_each_entry() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let entry = |row: &'static str, family: &str| v2::mutate_rows_request::Entry {
        row_key: Bytes::from(row),
        mutations: vec![set_cell(family, b"v")],
        ..Default::default()
    };
    let request = v2::MutateRowsRequest {
        table_name: TABLE.to_owned(),
        entries: vec![entry("a", "cf"), entry("b", "nope"), entry("c", "cf")],
        ..Default::default()
    };
    let mut stream = server.data().mutate_rows(request).await.unwrap().into_inner();
    let mut codes = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        codes.extend(message.entries.into_iter().map(|e| (e.index, e.status.unwrap().code)));
    }
    assert_eq!(codes, [(0, 0), (1, Code::NotFound as i32), (2, 0)]);
    assert_eq!(server.rows().await.unwrap(), [row("a", b"v"), row("c", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn a_table_that_is_sampled_from_a_slow_disk_keeps_nobody_else_waiting() {
    let (env, faults) = with_faults(&memory());
    let server = start(&env).await;
    server.create(&["m"]).await;
    server.set("a", b"v").await.unwrap();
    server.stop().await;
    let server = start_with(&env, |config| {
        config.cores = 1;
        config.engine.block_cache_bytes = 0;
    })
    .await;
    // No file is read before the sender is gone.
    let (read, mut reading) = tokio::sync::mpsc::unbounded_channel();
    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let stands_still = std::sync::Mutex::new(stands_still);
    faults.before_read(Some(Arc::new(move |_: &std::path::Path| {
        let _ = read.send(());
        let _ = stands_still.lock().unwrap().recv();
    })));
    let mut data = server.data();
    let request = v2::SampleRowKeysRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut sampling = std::pin::pin!(data.sample_row_keys(request));
    tokio::select! {
        _ = &mut sampling => panic!("nothing was read"),
        begun = reading.recv() => begun.unwrap(),
    }
    let others = tokio::time::timeout(std::time::Duration::from_mins(1), server.set("b", b"v"));
    others.await.expect("the core serves others meanwhile").unwrap();
    drop(go);
    let mut samples = sampling.await.unwrap().into_inner();
    let mut keys = Vec::new();
    while let Some(sample) = samples.message().await.unwrap() {
        keys.push(sample.row_key);
    }
    assert_eq!(keys, ["m", ""]);
    server.stop().await;
}

#[tokio::test]
async fn clients_that_go_by_it_are_told_their_rate_of_bulk_writes() {
    let server = start(&memory()).await;
    server.create(&["m"]).await;
    let told = async |features: Option<&'static str>| {
        let entry = v2::mutate_rows_request::Entry {
            row_key: Bytes::from_static(b"r"),
            mutations: vec![set_cell("cf", b"v")],
            ..Default::default()
        };
        let mut request = tonic::Request::new(v2::MutateRowsRequest {
            table_name: TABLE.to_owned(),
            entries: vec![entry],
            ..Default::default()
        });
        if let Some(features) = features {
            request.metadata_mut().insert("bigtable-features", features.parse().unwrap());
        }
        let mut answer = server.data().mutate_rows(request).await.unwrap().into_inner();
        let message = answer.message().await.unwrap().unwrap();
        assert_eq!(answer.message().await.unwrap(), None);
        message.rate_limit_info
    };
    // mutate_rows_rate_limit2, padded as most clients do; then reverse_scans.
    let info = told(Some("KAE=")).await.unwrap();
    assert!(info.factor > 1.0 && info.factor <= 1.3, "an idle server can take more: {info:?}");
    assert_eq!(info.period.unwrap().seconds, 10);
    assert_eq!(told(Some("CAE=")).await, None);
    assert_eq!(told(None).await, None);
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_have_their_codes_and_leave_the_connection_usable() {
    let server = start(&memory()).await;
    let missing = server.set("r", b"v").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(missing.message(), format!("table \"{TABLE}\" not found"));
    server.create(&[]).await;
    assert_eq!(server.set("", b"v").await.unwrap_err().code(), Code::InvalidArgument);
    let view = v2::ReadRowsRequest {
        materialized_view_name: format!("{INSTANCE}/materializedViews/v"),
        ..Default::default()
    };
    let status = server.data().read_rows(view).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().starts_with("materialized_view_name"), "{status}");
    let query = v2::PrepareQueryRequest::default();
    let status = server.data().prepare_query(query).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.message(), "Bigtable.PrepareQuery is not supported yet");
    let mut instances = BigtableInstanceAdminClient::new(server.channel.clone());
    let request = admin::GetLogicalViewRequest::default();
    let status = instances.get_logical_view(request).await.unwrap_err();
    assert_eq!(status.message(), "BigtableInstanceAdmin.GetLogicalView is not supported yet");
    server.set("r", b"v").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn the_go_client_gets_each_row_in_one_message_and_others_bounded_ones() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    for (row, bytes) in [("a", 3 << 20), ("b", 5 << 20), ("c", 1)] {
        server.set(row, &vec![b'v'; bytes]).await.unwrap();
    }
    let address = format!("http://{}", server.running.address());
    let messages = async |agent: &'static str| {
        let channel = Channel::from_shared(address.clone()).unwrap().user_agent(agent).unwrap();
        let data = BigtableClient::new(channel.connect().await.unwrap());
        let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
        let mut request = tonic::Request::new(request);
        request.metadata_mut().insert("bigtable-features", "qgEC".parse().unwrap());
        let mut data = data.max_decoding_message_size(64 << 20);
        let mut stream = data.read_rows(request).await.unwrap().into_inner();
        let (mut ends, mut largest) = (Vec::new(), 0);
        while let Some(message) = stream.message().await.unwrap() {
            ends.push(message.chunks.last().unwrap().row_status.is_some());
            largest = largest.max(message.encoded_len());
        }
        (ends, largest)
    };
    let (ends, largest) = messages("grpc-go/1.83.2").await;
    assert_eq!(ends, [true; 3]);
    assert!(largest > 5 << 20);
    let (ends, largest) = messages("grpc-python/1.75.0").await;
    assert!(ends[0] && ends.contains(&false));
    assert!(largest <= 4 << 20);
    server.stop().await;
}

fn append(row: &str, suffix: &[u8]) -> v2::ReadModifyWriteRowRequest {
    let rule = v2::ReadModifyWriteRule {
        family_name: "cf".to_owned(),
        column_qualifier: Bytes::from_static(b"q"),
        rule: Some(v2::read_modify_write_rule::Rule::AppendValue(Bytes::copy_from_slice(suffix))),
    };
    v2::ReadModifyWriteRowRequest {
        table_name: TABLE.to_owned(),
        row_key: Bytes::copy_from_slice(row.as_bytes()),
        rules: vec![rule],
        ..Default::default()
    }
}

#[tokio::test]
async fn only_an_append_that_had_not_begun_when_the_log_failed_is_to_be_tried_again() {
    let (env, faults) = with_faults(&memory());
    let server = start(&env).await;
    server.create(&[]).await;
    server.data().read_modify_write_row(append("r", b"a")).await.unwrap();
    faults.inject(Fault::new(FaultOp::Sync));
    let begun = server.data().read_modify_write_row(append("r", b"b")).await.unwrap_err();
    assert_eq!((begun.code(), retry_delay(&begun)), (Code::Unavailable, None), "{begun}");
    assert!(begun.message().starts_with("it is not known whether this was done"), "{begun}");
    let refused = server.data().read_modify_write_row(append("r", b"c")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(retry_delay(&refused).is_some() && !refused.message().contains("not known"));
    drop(server);
}

#[tokio::test]
async fn an_append_to_a_cell_larger_than_a_message_is_answered_with_all_of_it() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let mut value = vec![b'v'; 5 << 20];
    server.set("r", &value).await.unwrap();
    let mut data = server.data().max_decoding_message_size(64 << 20);
    let answer = data.read_modify_write_row(append("r", b"!")).await.unwrap().into_inner();
    value.push(b'!');
    let cell = &answer.row.unwrap().families[0].columns[0].cells[0];
    assert!(cell.value == value, "{} bytes", cell.value.len());
    server.stop().await;
}

//! Requests when something is short: the log, memory, or the patience for clients that do not read.

use admin::app_profile::Priority;
use tepui_server::config::budget;
use tepui_server::limits::BLOCKING_THREADS_MAX;

use super::*;

async fn set_named<'a>(
    server: &TestServer,
    name: &'a str,
    value: &[u8],
) -> (&'a str, Result<(), tonic::Status>) {
    (name, server.set(name, value).await)
}

/// A client with room for a little of each stream, and for many of them.
async fn client_of_little(server: &TestServer) -> BigtableClient<Channel> {
    let address = format!("http://{}", server.running.address());
    let endpoint = Channel::from_shared(address)
        .unwrap()
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(64 << 20);
    BigtableClient::new(endpoint.connect().await.unwrap())
}

/// A server whose log's queue has so many bytes, and its disk.
async fn start_with_queue(bytes: u64) -> (TestServer, FaultFiles) {
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, |config| {
        serve_metrics(config);
        config.engine.log_queue_bytes = bytes;
    })
    .await;
    (server, faults)
}

/// Lets no sync end before the sender is gone.
fn stand_still(faults: &FaultFiles) -> std::sync::mpsc::Sender<()> {
    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let stands_still = std::sync::Mutex::new(stands_still);
    let hook = move |_: &std::path::Path| {
        let _ = stands_still.lock().unwrap().recv();
    };
    faults.before_sync(Some(Arc::new(hook)));
    go
}

#[tokio::test]
async fn while_the_log_stands_still_writes_are_refused_with_a_hint_and_afterwards_taken() {
    let queue_bytes = 64 << 10;
    let (server, faults) = start_with_queue(queue_bytes).await;
    server.create(&[]).await;
    let go = stand_still(&faults);
    let value = [7_u8; 4 << 10];
    let names: Vec<String> = (0..200).map(|n| format!("r{n}")).collect();
    let mut writes: FuturesUnordered<_> =
        names.iter().map(|name| set_named(&server, name, &value)).collect();
    let mut refused = 0;
    // The queue takes some 16 of them; those wait, and all others are answered.
    while refused < 180 {
        let (_, result) = writes.next().await.unwrap();
        let status = result.expect_err("nothing is durable");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let delay = retry_delay(&status).expect("a refusal says when to come back");
        assert!(delay.seconds > 0 || delay.nanos > 1_000_000);
        refused += 1;
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert!(sample(&metrics, "tepui_refused_total{reason=\"log_queue\"}") >= 180);
    assert!(sample(&metrics, "tepui_memory_bytes{part=\"log_queue\"}") <= 2 * queue_bytes);
    drop(go);
    let mut taken = 0;
    while let Some((name, result)) = writes.next().await {
        if let Err(status) = result {
            assert!(retry_delay(&status).is_some(), "{name}: {status}");
        } else {
            taken += 1;
        }
    }
    assert!(taken > 0, "what had its place in the queue was written");
    drop(writes);
    server.set("after", b"v").await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn while_the_log_stands_still_small_writes_leave_room_for_reads_and_administration() {
    const CONNECTIONS: usize = 4;
    // More than the room for all small requests takes, on connections that may have as many.
    const WRITES_EACH: usize = 950;
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, |config| {
        serve_metrics(config);
        // The parts of the least memory.
        let divided = budget::divide(244 << 20, 2, &Default::default(), &config.engine);
        (config.engine, config.budget) = divided.unwrap();
    })
    .await;
    server.create(&[]).await;
    server.set("before", b"v").await.unwrap();
    let go = stand_still(&faults);
    let address = format!("http://{}", server.running.address());
    let mut writes = FuturesUnordered::new();
    for of in 0..CONNECTIONS {
        let endpoint = Channel::from_shared(address.clone()).unwrap();
        let client = BigtableClient::new(endpoint.connect().await.unwrap());
        for n in 0..WRITES_EACH {
            let request = v2::MutateRowRequest {
                table_name: TABLE.to_owned(),
                row_key: Bytes::from(format!("r{of}-{n}")),
                mutations: vec![set_cell("cf", &[7; 100])],
                ..Default::default()
            };
            let mut client = client.clone();
            writes.push(async move { client.mutate_row(request).await });
        }
    }
    // One is refused when there is no room for more.
    let refused = writes.next().await.unwrap().expect_err("nothing is durable");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(retry_delay(&refused).is_some(), "{refused}");
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_refused_total{reason=\"log_queue\"}"), 0);
    assert!(sample(&metrics, "tepui_refused_total{reason=\"request_memory\"}") > 0);
    assert_eq!(server.rows().await.unwrap(), [row("before", b"v")]);
    let get = admin::GetTableRequest { name: TABLE.to_owned(), ..Default::default() };
    server.tables().get_table(get).await.unwrap();
    drop(go);
    let mut written = 0;
    while let Some(result) = writes.next().await {
        written += usize::from(result.is_ok());
    }
    assert!(written > CONNECTIONS * WRITES_EACH / 4, "{written} had their room");
    drop(writes);
    server.stop().await;
}

#[tokio::test]
async fn lists_of_backups_and_instances_do_not_wait_for_changes_that_the_disk_holds_up() {
    let (env, faults) = with_faults(&memory());
    let server = start(&env).await;
    server.create(&[]).await;
    server.instances().create_instance(instances::create_request("listed")).await.unwrap();
    let go = stand_still(&faults);
    // More than have a turn on two cores.
    let mut changes: FuturesUnordered<_> = (0..2 * BLOCKING_THREADS_MAX)
        .map(|n| {
            let parent = INSTANCE.to_owned();
            let table = Some(admin::Table::default());
            let table_id = format!("t{n}");
            let create =
                admin::CreateTableRequest { parent, table_id, table, ..Default::default() };
            let mut tables = server.tables();
            async move { tables.create_table(create).await }
        })
        .collect();
    let parent = format!("{INSTANCE}/clusters/-");
    let list = admin::ListBackupsRequest { parent, ..Default::default() };
    let parent = "projects/p".to_owned();
    let all = admin::ListInstancesRequest { parent, ..Default::default() };
    let parent = "projects/p/instances/-".to_owned();
    let clusters = admin::ListClustersRequest { parent, ..Default::default() };
    let (mut tables, mut instances) = (server.tables(), server.instances());
    // They come in this order by one connection.
    let lists = async {
        let backups = tables.list_backups(list).await.unwrap().into_inner().backups.len();
        let all = instances.list_instances(all).await.unwrap().into_inner().instances.len();
        let clusters = instances.list_clusters(clusters).await.unwrap().into_inner();
        (backups, all, clusters.clusters.len())
    };
    let listed = tokio::select! {
        biased;
        _ = changes.next() => panic!("the disk takes nothing"),
        listed = in_time("lists", lists) => listed,
    };
    assert_eq!(listed, (0, 1, 2));
    drop(go);
    while let Some(done) = changes.next().await {
        done.unwrap();
    }
    drop((changes, tables, instances));
    server.stop().await;
}

/// A profile of an instance whose requests have this priority; its name is the priority's.
async fn create_ranked(server: &TestServer, instance: &str, priority: Priority) -> String {
    use admin::app_profile::{Isolation, RoutingPolicy, StandardIsolation};
    let id = priority.as_str_name().to_ascii_lowercase();
    let profile = admin::AppProfile {
        routing_policy: Some(RoutingPolicy::MultiClusterRoutingUseAny(Default::default())),
        isolation: Some(Isolation::StandardIsolation(StandardIsolation {
            priority: priority.into(),
        })),
        ..Default::default()
    };
    server.create_profile(instance, &id, profile).await;
    id
}

#[tokio::test]
async fn writes_of_low_priority_are_refused_where_most_of_high_priority_are_let_in() {
    let queue_bytes = 256 << 10;
    let (server, faults) = start_with_queue(queue_bytes).await;
    server.instances().create_instance(instances::create_request("inst")).await.unwrap();
    let instance = "projects/p/instances/inst";
    let table = server.create_table(instance).await.unwrap().name;
    let low = create_ranked(&server, instance, Priority::Low).await;
    let high = create_ranked(&server, instance, Priority::High).await;
    let set = async |profile: &str, row: String, bytes: usize| {
        let request = v2::MutateRowRequest {
            table_name: table.clone(),
            app_profile_id: profile.to_owned(),
            row_key: Bytes::from(row),
            mutations: vec![set_cell("cf", &vec![7; bytes])],
            ..Default::default()
        };
        server.data().mutate_row(request).await.map(|_| ())
    };
    for profile in [&low, &high] {
        set(profile, profile.clone(), 1).await.unwrap();
    }
    let go = stand_still(&faults);
    let queued = async || {
        let (_, metrics) = scrape(&server, "/metrics").await;
        sample(&metrics, "tepui_memory_bytes{part=\"log_queue\"}")
    };
    // Past the point where all of low priority are refused, an eighth of the way from the half to the whole.
    let mut waiting = FuturesUnordered::new();
    let filled = async {
        while queued().await < queue_bytes * 37 / 64 {
            let n = waiting.len();
            waiting.push(set(&high, format!("fill{n}"), 4 << 10));
            // Begun, and let to the queue: nothing of these is answered, but for one that is refused.
            let _ = futures::poll!(waiting.next());
            tokio::task::yield_now().await;
        }
    };
    in_time("the queue fills", filled).await;
    for n in 0..20 {
        let refused = set(&low, format!("low{n}"), 1).await.expect_err("all of low are refused");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(retry_delay(&refused).is_some(), "{refused}");
    }
    // Of high priority some stay in the queue, and are written once the log goes on.
    let before = queued().await;
    let mut of_high: FuturesUnordered<_> =
        (0..20).map(|n| set(&high, format!("high{n}"), 1)).collect();
    let mut refused = 0;
    let decided = async {
        while queued().await == before && refused < 20 {
            if let std::task::Poll::Ready(Some(result)) = futures::poll!(of_high.next()) {
                assert_eq!(result.unwrap_err().code(), Code::ResourceExhausted);
                refused += 1;
            }
        }
    };
    in_time("one of high priority stays in the queue, or all are refused", decided).await;
    assert!(refused < 20, "all of high are refused");
    drop(go);
    let mut written = 0;
    while let Some(result) = of_high.next().await {
        written += u32::from(result.is_ok());
    }
    assert!(written > 0, "of {refused} refused");
    while waiting.next().await.is_some() {}
    drop((waiting, of_high));
    set(&low, "after".to_owned(), 1).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_memory_has_no_room_for_is_refused_by_its_size() {
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        config.budget.requests_bytes = 12 << 20;
    })
    .await;
    server.create(&[]).await;
    server.set("fits", &vec![1; 4 << 20]).await.unwrap();
    let refused = server.set("large", &vec![1; 8 << 20]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("limit"), "{refused}");
    // Several at once take turns. None has to wait for more than two others: who waits for too long is refused, also where the machine is busy.
    let value = vec![2; 4 << 20];
    let names: Vec<String> = (0..3).map(|n| format!("r{n}")).collect();
    let writes = names.iter().map(|name| server.set(name, &value));
    for result in futures::future::join_all(writes).await {
        result.unwrap();
    }
    // One of administration has less.
    let request = admin::UpdateTableRequest {
        table: Some(admin::Table { name: "x".repeat(5 << 20), ..Default::default() }),
        ..Default::default()
    };
    let refused = server.tables().update_table(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("limit 4194304 bytes"), "{refused}");
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_refused_total{reason=\"request_too_large\"}"), 2);
    // They are counted as all others, though nobody has begun them.
    for (service, method) in [("Bigtable", "MutateRow"), ("BigtableTableAdmin", "UpdateTable")] {
        let of = format!("service=\"{service}\",method=\"{method}\",code=\"InvalidArgument\"");
        assert_eq!(sample(&metrics, &format!("tepui_requests_total{{{of}}}")), 1, "{of}");
    }
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"requests\"}"), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_read_whose_client_stalls_lets_go_of_the_engine_and_goes_on_when_it_is_back() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&["r3"]).await;
    let value = vec![3; 100 << 10];
    for n in 0..60 {
        server.set(&format!("r{n:02}"), &value).await.unwrap();
    }
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut stream = server.data().read_rows(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let suspended = async {
        while sample(&scrape(&server, "/metrics").await.1, "tepui_reads_suspended_total") < 1 {
            tokio::task::yield_now().await;
        }
    };
    in_time("a read that waits for its client lets go", suspended).await;
    let committed = |message: &v2::ReadRowsResponse| {
        let chunks = message.chunks.iter();
        chunks.filter(|c| matches!(c.row_status, Some(RowStatus::CommitRow(true)))).count()
    };
    let mut rows = committed(&first);
    while let Some(message) = stream.message().await.unwrap() {
        rows += committed(&message);
    }
    assert_eq!(rows, 60);
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_reads_parked"), 0);
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"answers\"}"), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_row_that_its_client_does_not_take_counts_as_all_that_is_held_of_it() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    let value = vec![5; 24 << 20];
    server.set("large", &value).await.unwrap();
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut stream = server.data().read_rows(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    // The engine has nothing more for it: the rest waits in memory, until the connection's windows are full.
    let stalled = async {
        loop {
            let (_, metrics) = scrape(&server, "/metrics").await;
            if sample(&metrics, "tepui_reads_suspended_total") == 1 {
                break sample(&metrics, "tepui_memory_bytes{part=\"answers\"}");
            }
            tokio::task::yield_now().await;
        }
    };
    let held = in_time("a read that waits for its client is known to", stalled).await;
    assert!(held >= 10 << 20, "{held} bytes");
    let mut bytes = 0;
    while let Some(message) = stream.message().await.unwrap() {
        bytes += message.chunks.iter().map(|chunk| chunk.value.len()).sum::<usize>();
    }
    assert!(bytes > 20 << 20);
    server.stop().await;
}

#[tokio::test]
async fn answers_of_one_message_that_nobody_reads_are_made_as_far_as_their_connection_has_room() {
    const ROW: usize = 2 << 20;
    const READS: u64 = 40;
    let share = 2 * ROW as u64 + (128 << 10);
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        // And a sixteenth, which is kept for small ones.
        config.budget.answers_bytes = 8 * share * 16 / 15 + (8 << 10);
    })
    .await;
    server.create(&[]).await;
    server.set("large", &vec![5; ROW]).await.unwrap();
    let mut client = client_of_little(&server).await;
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut unread = Vec::new();
    for _ in 0..READS {
        unread.push(client.read_rows(request.clone()).await.unwrap().into_inner());
    }
    let all_but_two_wait = async {
        loop {
            let (_, metrics) = scrape(&server, "/metrics").await;
            let held = sample(&metrics, "tepui_memory_bytes{part=\"answers\"}");
            // Those that have room may not be whole yet.
            if sample(&metrics, "tepui_answers_waiting") == READS - 2 && held >= 2 * ROW as u64 {
                break held;
            }
            tokio::task::yield_now().await;
        }
    };
    let held = tokio::time::timeout(std::time::Duration::from_secs(20), all_but_two_wait).await;
    let held = held.expect("answers for which there is no room wait");
    assert!(held <= share, "{held} bytes");
    // All get theirs once somebody reads.
    let reads = unread.into_iter().map(|mut stream| async move {
        let mut bytes = 0;
        while let Some(message) = stream.message().await.unwrap() {
            bytes += value_bytes(&message);
        }
        bytes
    });
    assert_eq!(futures::future::join_all(reads).await, [ROW; READS as usize]);
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"answers\"}"), 0);
    assert_eq!(sample(&metrics, "tepui_refused_total{reason=\"answer_memory\"}"), 0);
    server.stop().await;
}

/// A filter that lets all pass, and has eight patterns, which may come to 36 KiB each.
fn large_filter() -> v2::RowFilter {
    use v2::row_filter::{Filter, Interleave};
    let pattern = |n| Filter::RowKeyRegexFilter(format!(r"\C*[\x00-\x7F]\C{{100}}{n}").into());
    let patterns = (0..8).map(pattern).chain([Filter::PassAllFilter(true)]);
    let filters = patterns.map(|filter| v2::RowFilter { filter: Some(filter) }).collect();
    v2::RowFilter { filter: Some(Filter::Interleave(Interleave { filters })) }
}

#[tokio::test]
async fn reads_with_large_filters_have_room_for_these_or_are_refused_and_others_go_on() {
    const ROW: usize = 2 << 20;
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        // Of which reads have a half.
        config.budget.decoded_bytes = 4 << 20;
    })
    .await;
    server.create(&[]).await;
    server.set("large", &vec![5; ROW]).await.unwrap();
    let mut client = client_of_little(&server).await;
    let plain = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let request = v2::ReadRowsRequest { filter: Some(large_filter()), ..plain.clone() };
    let mut unread = Vec::new();
    let refused = loop {
        match client.read_rows(request.clone()).await {
            Ok(stream) => unread.push(stream.into_inner()),
            Err(refused) => break refused,
        }
        assert!(unread.len() < 10, "nobody counts them");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(retry_delay(&refused).is_some());
    assert!(unread.len() >= 2, "{}", unread.len());
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert!(sample(&metrics, "tepui_memory_bytes{part=\"requests\"}") >= 1 << 20);
    // Neither others nor those who have such a pattern as most wait for that.
    let pattern = v2::row_filter::Filter::RowKeyRegexFilter("[a-z]*lar.*".into());
    let common = v2::RowFilter { filter: Some(pattern) };
    for filter in [None, Some(common)] {
        let request = v2::ReadRowsRequest { filter, ..plain.clone() };
        let mut stream = client.read_rows(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_some());
    }
    let mutation = v2::mutation::Mutation::DeleteFromRow(v2::mutation::DeleteFromRow {});
    let check = v2::CheckAndMutateRowRequest {
        table_name: TABLE.to_owned(),
        row_key: "other".into(),
        predicate_filter: Some(large_filter()),
        true_mutations: vec![v2::Mutation { mutation: Some(mutation) }],
        ..Default::default()
    };
    client.check_and_mutate_row(check).await.expect("writes have the other half");
    drop(unread);
    client.read_rows(request).await.expect("there is room again");
    server.stop().await;
}

#[tokio::test]
async fn rows_read_ahead_for_clients_that_do_not_read_count_and_leave_room_for_others() {
    const ROW: usize = 300 << 10;
    const ROWS: usize = 24;
    const READS: usize = 12;
    const SHARE: u64 = 8 << 20;
    let device = device::Device::default();
    let env = Env { files: Arc::new(device.clone()), io: Arc::new(device), ..memory() };
    let server = start_with(&env, |config| {
        serve_metrics(config);
        config.budget.answers_bytes = 8 * SHARE;
    })
    .await;
    server.create(&[]).await;
    let random = SeededRng::new(1);
    let keys: Vec<_> = (0..ROWS).map(|n| format!("row{n:02}")).collect();
    for key in &keys {
        let value: Vec<u8> = (0..ROW / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        server.set(key, &value).await.unwrap();
    }
    let engine = Arc::clone(server.running.engine());
    // On a thread of its own, since the device waits for this one.
    tokio::task::spawn_blocking(move || engine.compact_fully()).await.unwrap().unwrap();
    let row_keys = keys.iter().map(|key| Bytes::from(key.clone())).collect();
    let request = v2::ReadRowsRequest {
        table_name: TABLE.to_owned(),
        rows: Some(v2::RowSet { row_keys, ..Default::default() }),
        ..Default::default()
    };
    // A client with room for a little of each.
    let address = format!("http://{}", server.running.address());
    let endpoint = Channel::from_shared(address).unwrap().initial_stream_window_size(64 << 10);
    let mut client = BigtableClient::new(endpoint.connect().await.unwrap());
    let held_by = async |reads: usize, least: u64| {
        let held = async {
            loop {
                let (_, metrics) = scrape(&server, "/metrics").await;
                let held = sample(&metrics, "tepui_memory_bytes{part=\"answers\"}");
                let others = sample(&metrics, "tepui_answers_waiting") as usize;
                let parked = sample(&metrics, "tepui_reads_parked") as usize;
                if held >= least && others + parked == reads {
                    break (held, parked);
                }
                tokio::task::yield_now().await;
            }
        };
        in_time("reads are made as far as there is room for them", held).await
    };
    let mut unread = vec![client.read_rows(request.clone()).await.unwrap().into_inner()];
    // A message of one row, and three behind it.
    let (held, _) = held_by(1, 4 * ROW as u64).await;
    assert!(held <= SHARE / 2, "{held} bytes of one read");
    while unread.len() < READS {
        unread.push(client.read_rows(request.clone()).await.unwrap().into_inner());
    }
    let (held, parked) = held_by(READS, SHARE / 2).await;
    assert!(held <= SHARE && parked < READS, "{held} bytes of {parked} reads");
    let reads = unread.into_iter().map(|mut stream| async move {
        let mut bytes = 0;
        while let Some(message) = stream.message().await.unwrap() {
            bytes += value_bytes(&message);
        }
        bytes
    });
    assert_eq!(futures::future::join_all(reads).await, [ROW * ROWS; READS]);
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"answers\"}"), 0);
    server.stop().await;
}

#[tokio::test]
async fn statuses_of_bulks_that_nobody_reads_keep_the_room_of_their_requests() {
    const BULKS: usize = 3;
    const ENTRIES: usize = 20_000;
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    let address = format!("http://{}", server.running.address());
    let endpoint = Channel::from_shared(address).unwrap().initial_stream_window_size(1 << 10);
    let mut client = BigtableClient::new(endpoint.connect().await.unwrap());
    // Without a row's key none is written; each is told so.
    let request = v2::MutateRowsRequest {
        table_name: TABLE.to_owned(),
        entries: vec![
            v2::mutate_rows_request::Entry {
                mutations: vec![v2::Mutation::default()],
                ..Default::default()
            };
            ENTRIES
        ],
        ..Default::default()
    };
    let mut unread = Vec::new();
    for _ in 0..BULKS {
        unread.push(client.mutate_rows(request.clone()).await.unwrap().into_inner());
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    let held = |part: &str| sample(&metrics, &format!("tepui_memory_bytes{{part=\"{part}\"}}"));
    assert_eq!(sample(&metrics, "tepui_reads_parked"), BULKS as u64);
    assert!(held("answers") >= (BULKS * ENTRIES * 20) as u64, "{}", held("answers"));
    // Nothing is left of what they were decoded into.
    let messages = (BULKS * ENTRIES * 6) as u64;
    assert!((messages..2 * messages).contains(&held("requests")), "{}", held("requests"));
    for mut stream in unread {
        let mut entries = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            entries.extend(message.entries);
        }
        assert_eq!(entries.len(), ENTRIES);
        let is_told = |e: &v2::mutate_rows_response::Entry| e.status.as_ref().unwrap().code == 3;
        assert!(entries.iter().all(is_told));
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    for part in ["answers", "requests"] {
        assert_eq!(sample(&metrics, &format!("tepui_memory_bytes{{part=\"{part}\"}}")), 0);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_read_is_answered_though_clients_leave_many_answers_of_40_kib() {
    // All that there is, and nothing of what is kept for others, which suffices; and that as well, for which some are closed.
    for (connections, has_kept) in [(8, false), (60, true)] {
        a_read_beside_many_answers(connections, has_kept).await;
    }
}

/// A read is answered beside so many connections with unread answers, whether or not they have what is kept for first messages, too.
async fn a_read_beside_many_answers(connections: usize, has_kept: bool) {
    /// An eighth of all, which a connection may have, at 64 KiB each; a fifteenth of all is kept beside it.
    const HELD: usize = 15;
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        config.budget.answers_bytes = (8 * (HELD + 1)) as u64 * (64 << 10);
    })
    .await;
    server.create(&[]).await;
    server.set("row", &vec![5; 40 << 10]).await.unwrap();
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let address = format!("http://{}", server.running.address());
    let mut left = Vec::new();
    for _ in 0..connections {
        // Two answers use up what may be on its way to a client that reads none. One more waits.
        let endpoint = Channel::from_shared(address.clone()).unwrap();
        let endpoint = endpoint.initial_connection_window_size(64 << 10);
        let mut client = BigtableClient::new(endpoint.connect().await.unwrap());
        for _ in 0..HELD + 2 + usize::from(has_kept) {
            left.push(client.read_rows(request.clone()).await.unwrap().into_inner());
        }
    }
    let all = async {
        let (name, enough) = if has_kept {
            ("tepui_answers_waiting", connections)
        } else {
            ("tepui_memory_bytes{part=\"answers\"}", connections * HELD * (40 << 10))
        };
        while sample(&scrape(&server, "/metrics").await.1, name) < enough as u64 {
            tokio::task::yield_now().await;
        }
        server.data().read_rows(request.clone()).await.unwrap().into_inner().message().await
    };
    let answered = in_time("a read is answered though others hold all the memory", all).await;
    let answered = answered.unwrap().unwrap();
    assert_eq!(value_bytes(&answered), 40 << 10);
    let closed = sample(&scrape(&server, "/metrics").await.1, "tepui_connections_closed_total");
    // Where none waits, none is closed.
    assert_eq!(closed > 0, has_kept, "{closed}");
    drop(left);
    server.stop().await;
}

#[tokio::test]
async fn a_read_that_waits_for_memory_which_others_hold_lets_go_of_what_was_flushed() {
    const WIDE: usize = 2 << 20;
    const NARROW: usize = 100 << 10;
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        // Of which a connection may have half as much as a wide row.
        config.budget.answers_bytes = 4 * WIDE as u64;
    })
    .await;
    server.create(&[]).await;
    for n in 0..10 {
        server.set(&format!("narrow{n}"), &vec![3; NARROW]).await.unwrap();
    }
    for n in 0..3 {
        server.set(&format!("wide{n}"), &vec![5; WIDE]).await.unwrap();
    }
    // A connection on which little is on its way before it is read.
    let address = format!("http://{}", server.running.address());
    let endpoint = Channel::from_shared(address).unwrap().initial_stream_window_size(16 << 10);
    let mut client = BigtableClient::new(endpoint.connect().await.unwrap());
    let rows_between = |start: &'static str, end: &'static str| {
        let range = v2::RowRange {
            start_key: Some(v2::row_range::StartKey::StartKeyClosed(Bytes::from(start))),
            end_key: Some(v2::row_range::EndKey::EndKeyOpen(Bytes::from(end))),
        };
        let rows = v2::RowSet { row_ranges: vec![range], ..Default::default() };
        let table_name = TABLE.to_owned();
        v2::ReadRowsRequest { table_name, rows: Some(rows), ..Default::default() }
    };
    let mut narrow = client.read_rows(rows_between("narrow", "o")).await.unwrap().into_inner();
    let mut bytes = value_bytes(&narrow.message().await.unwrap().unwrap());
    let mut wide = client.read_rows(rows_between("wide", "x")).await.unwrap().into_inner();
    let waits = async {
        while sample(&scrape(&server, "/metrics").await.1, "tepui_answers_waiting") == 0 {
            tokio::task::yield_now().await;
        }
    };
    in_time("an answer waits for memory", waits).await;
    let engine = Arc::clone(server.running.engine());
    engine.compact_fully().unwrap();

    // The scan that is read on has to wait for the other, which nobody reads. No memtable has to wait for either.
    let freed = async {
        while engine.pressure().level >= 0.001 {
            tokio::task::yield_now().await;
        }
    };
    let freed = tokio::time::timeout(std::time::Duration::from_secs(20), freed);
    let read_on = async {
        while let Some(message) = narrow.message().await.unwrap() {
            bytes += value_bytes(&message);
        }
    };
    tokio::select! {
        freed = freed => freed.expect("writers have the memory of what was flushed"),
        () = read_on => panic!("the scan does not wait"),
    }

    // Both go on where they were.
    let (mut bytes_of_narrow, mut bytes_of_wide) = (bytes, 0);
    let read_narrow = async {
        while let Some(message) = narrow.message().await.unwrap() {
            bytes_of_narrow += value_bytes(&message);
        }
    };
    let read_wide = async {
        while let Some(message) = wide.message().await.unwrap() {
            bytes_of_wide += value_bytes(&message);
        }
    };
    futures::join!(read_narrow, read_wide);
    assert_eq!((bytes_of_narrow, bytes_of_wide), (10 * NARROW, 3 * WIDE));
    drop((client, narrow, wide));
    server.stop().await;
}

fn value_bytes(message: &v2::ReadRowsResponse) -> usize {
    message.chunks.iter().map(|chunk| chunk.value.len()).sum()
}

//! What is told of the server itself: health, reflection, metrics.

use super::*;
use tepui_server::limits::DRAIN;

#[tokio::test]
async fn health_says_serving_until_the_server_stops_and_a_ping_is_answered() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    let server = start(&memory()).await;
    let mut health = HealthClient::new(server.channel.clone());
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in SERVICES.iter().map(|(name, _)| *name).chain([""]) {
        let answer = health.check(check(service)).await.unwrap();
        assert_eq!(answer.into_inner().status, SERVING, "{service}");
    }
    let unknown = health.check(check("google.bigtable.v2.Nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let ping = v2::PingAndWarmRequest { name: INSTANCE.to_owned(), ..Default::default() };
    server.data().ping_and_warm(ping).await.unwrap();

    // A watch is a request under way: it hears of the stop before its connection ends.
    let mut watch = health.watch(check("google.bigtable.v2.Bigtable")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, SERVING);
    let heard = async move {
        let heard = watch.message().await.unwrap().unwrap().status;
        // Nothing keeps the server from stopping at once.
        (heard, watch.message().await.expect("an end and no failure").is_none())
    };
    drop(health);
    let ((), heard) = tokio::join!(server.stop(), heard);
    assert_eq!(heard, (NOT_SERVING, true));
}

#[tokio::test]
async fn a_disk_without_room_for_flushes_is_told_until_it_has_some() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, |config| {
        serve_metrics(config);
        config.engine.memtable_bytes = 1 << 20;
    })
    .await;
    server.create(&[]).await;
    let mut health = HealthClient::new(server.channel.clone());
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1, "SERVING");
    faults.inject(
        Fault::new(FaultOp::Create)
            .on_path("/tepui/sst")
            .kind(tepui_engine::ErrorKind::NoSpace)
            .sticky(),
    );
    let value = vec![7; 64 << 10];
    let mut refusals = 0;
    let heard = in_time("health says what holds the writes", async {
        loop {
            tokio::select! {
                heard = watch.message() => break heard.unwrap().unwrap().status,
                written = server.set("r", &value) => refusals += u64::from(written.is_err()),
            }
        }
    });
    assert_eq!(heard.await, 2, "NOT_SERVING");
    assert!(refusals > 0);
    let refused = in_time("a write is refused", async {
        loop {
            if let Err(refused) = server.set("r", &value).await {
                break refused;
            }
        }
    });
    let refused = refused.await;
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("injected"), "{refused}");
    let (status, told) = scrape(&server, "/health").await;
    assert!(status.contains("503") && told.contains("injected"), "{status} {told}");
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_writes_held{reason=\"flush_fails\"}"), 1, "{metrics}");
    assert_eq!(sample(&metrics, "tepui_writes_held{reason=\"log\"}"), 0);
    assert_eq!(sample(&metrics, "tepui_read_only"), 0);

    faults.heal();
    let heard = in_time("health says that it is over", watch.message()).await;
    assert_eq!(heard.unwrap().unwrap().status, 1, "SERVING by itself");
    assert!(scrape(&server, "/health").await.0.contains("200"));
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_writes_held{reason=\"flush_fails\"}"), 0);
    drop((watch, health));
    server.stop().await;
}

/// Names of everything that is served besides reflection, each with one of its RPCs.
const SERVICES: [(&str, &str); 4] = [
    ("google.bigtable.admin.v2.BigtableInstanceAdmin", "CreateInstance"),
    ("google.bigtable.admin.v2.BigtableTableAdmin", "CreateTable"),
    ("google.bigtable.v2.Bigtable", "ReadRows"),
    ("google.longrunning.Operations", "GetOperation"),
];

#[tokio::test]
async fn reflection_lists_and_describes_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = start(&memory()).await;
    let mut client = ServerReflectionClient::new(server.channel.clone());
    let mut requests = vec![MessageRequest::ListServices(String::new())];
    requests
        .extend(SERVICES.map(|(name, _)| MessageRequest::FileContainingSymbol(name.to_owned())));
    let requests = requests.into_iter().map(|message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    });
    let requests = futures::stream::iter(requests.collect::<Vec<_>>());
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let mut answer = async || answers.message().await.unwrap().unwrap().message_response.unwrap();

    let MessageResponse::ListServicesResponse(listed) = answer().await else { panic!() };
    let listed: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    for (name, _) in SERVICES {
        assert!(listed.iter().any(|listed| listed == name), "{name} is not among {listed:?}");
    }
    for (name, rpc) in SERVICES {
        let MessageResponse::FileDescriptorResponse(files) = answer().await else { panic!() };
        let described = files.file_descriptor_proto.iter().any(|file| {
            let file = prost_types::FileDescriptorProto::decode(file.as_slice()).unwrap();
            let package = file.package().to_owned();
            file.service.iter().any(|service| {
                format!("{package}.{}", service.name()) == name
                    && service.method.iter().any(|method| method.name() == rpc)
            })
        });
        assert!(described, "{name}");
    }
    drop((client, answers));
    server.stop().await;
}

#[tokio::test]
async fn each_connection_may_watch_the_health_and_further_watches_are_bounded() {
    use tepui_server::limits::HEALTH_WATCHES_MAX;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let server = start(&memory()).await;
    let watch = || {
        let mut client = HealthClient::new(server.channel.clone());
        async move { client.watch(HealthCheckRequest::default()).await }
    };
    let kept = futures::future::join_all((0..=HEALTH_WATCHES_MAX).map(|_| watch())).await;
    assert!(kept.iter().all(Result::is_ok));
    let refused = watch().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(!refused.details().is_empty(), "it says when to try again");
    let mut checks = HealthClient::new(server.channel.clone());
    checks.check(HealthCheckRequest::default()).await.unwrap();
    // Whoever connects anew has one all the same.
    let address = format!("http://{}", server.running.address());
    let another = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let mut others = HealthClient::new(another);
    let watched = others.watch(HealthCheckRequest::default()).await.unwrap();
    drop(kept);
    in_time("places are given back", async {
        while let Err(refused) = watch().await {
            assert_eq!(refused.code(), Code::ResourceExhausted);
        }
    })
    .await;
    drop((checks, others, watched));
    server.stop().await;
}

#[tokio::test]
async fn streams_of_reflection_are_refused_while_clients_keep_too_many() {
    use tepui_server::limits::REFLECTION_STREAMS_MAX;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    let server = start(&memory()).await;
    let client = ServerReflectionClient::new(server.channel.clone());
    let ask = || {
        let message_request = Some(MessageRequest::ListServices(String::new()));
        let asked = ServerReflectionRequest { host: String::new(), message_request };
        let (goes_on, end) = tokio::sync::oneshot::channel::<()>();
        let asked = futures::stream::iter([asked]).chain(futures::stream::pending());
        let asked = asked.take_until(end);
        let mut client = client.clone();
        async move { client.server_reflection_info(asked).await.map(|answers| (answers, goes_on)) }
    };
    let kept = futures::future::join_all((0..REFLECTION_STREAMS_MAX).map(|_| ask())).await;
    assert!(kept.iter().all(Result::is_ok));
    let refused = ask().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(!refused.details().is_empty(), "it says when to try again");
    let mut tables = server.tables();
    tables.get_table(admin::GetTableRequest::default()).await.expect_err("it has no name");
    drop(kept);
    let (answers, _goes_on) = loop {
        // Their ends are on their way.
        match ask().await {
            Ok(answers) => break answers,
            Err(refused) => assert_eq!(refused.code(), Code::ResourceExhausted),
        }
    };
    answers.into_inner().message().await.unwrap().unwrap();
    drop((client, tables));
    server.stop().await;
}

#[tokio::test]
async fn a_server_does_not_wait_for_streams_of_reflection_or_for_who_has_not_spoken() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    let server = start(&memory()).await;
    let mut silent = TcpStream::connect(server.running.address()).await.unwrap();
    // The server's own beginning, which it sends unasked.
    silent.read_exact(&mut [0; 9]).await.unwrap();
    let asked = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(server.channel.clone());
    let asked = futures::stream::iter([asked]).chain(futures::stream::pending());
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    let ended = async move {
        assert!(answers.message().await.expect("an end and no failure").is_none());
    };
    drop(client);
    let began = tokio::time::Instant::now();
    tokio::join!(server.stop(), ended);
    assert!(began.elapsed() < DRAIN, "{:?}", began.elapsed());
    drop(silent);
}

/// An answer to a request that is none of gRPC's.
async fn answer_to(server: &TestServer, method: &str, path: &str, content_type: &str) -> u16 {
    use tonic::codegen::Service as _;
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("content-type", content_type).body(tonic::body::Body::empty());
    let mut channel = server.channel.clone();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    channel.call(request.unwrap()).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn who_does_not_speak_grpc_is_told_by_http_wherever_they_ask() {
    let server = start(&memory()).await;
    for path in ["/google.bigtable.v2.Bigtable/ReadRows", "/grpc.health.v1.Health/Check", "/"] {
        assert_eq!(answer_to(&server, "GET", path, "application/grpc").await, 405, "{path}");
        assert_eq!(answer_to(&server, "POST", path, "application/json").await, 415, "{path}");
        assert_eq!(answer_to(&server, "POST", path, "application/grpc+proto").await, 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_rpc_that_is_not_there_is_named_in_the_answer_whatever_its_service() {
    use tonic::codegen::http::uri::PathAndQuery;
    let server = start(&memory()).await;
    for path in [
        "/google.bigtable.v2.Bigtable/Nothing",
        "/google.bigtable.v2.Nobody/ReadRows",
        "/grpc.health.v1.Health/Nothing",
        "/Nothing",
    ] {
        let mut client = tonic::client::Grpc::new(server.channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let request = tonic::Request::new(());
        let status =
            client.unary(request, PathAndQuery::from_static(path), codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
        assert!(status.message().starts_with(path), "{path}: {status}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_tell_what_a_server_did_and_every_name_is_documented() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    for n in 0..20 {
        server.set(&format!("r{n}"), b"v").await.unwrap();
    }
    assert_eq!(server.rows().await.unwrap().len(), 20);
    let missing = v2::MutateRowRequest {
        table_name: format!("{INSTANCE}/tables/none"),
        row_key: Bytes::from_static(b"r"),
        mutations: vec![set_cell("cf", b"v")],
        ..Default::default()
    };
    server.data().mutate_row(missing).await.unwrap_err();
    let (status, metrics) = scrape(&server, "/metrics").await;
    assert!(status.contains("200"), "{status}");
    let calls = "tepui_requests_total{service=\"Bigtable\",method=\"MutateRow\",code=";
    assert_eq!(sample(&metrics, &format!("{calls}\"Ok\"}}")), 20, "{metrics}");
    assert_eq!(sample(&metrics, &format!("{calls}\"NotFound\"}}")), 1);
    let took = "tepui_request_duration_seconds_count{service=\"Bigtable\",method=\"ReadRows\"}";
    assert_eq!(sample(&metrics, took), 1);
    assert_eq!(sample(&metrics, "tepui_records"), 20);
    assert!(sample(&metrics, "tepui_memory_bytes{part=\"memtables\"}") > 0);
    assert_eq!(sample(&metrics, "tepui_read_only"), 0);
    assert_eq!(sample(&metrics, "tepui_log_mutations_total"), 20);
    let groups = sample(&metrics, "tepui_log_groups_total");
    assert!((1..=20).contains(&groups), "{groups}");
    assert_eq!(sample(&metrics, "tepui_log_sync_duration_seconds_count"), groups);
    assert!(sample(&metrics, "tepui_log_written_bytes_total") > 20 * 10);
    assert!(metrics.ends_with("# EOF\n"));
    let documented = include_str!("../../../../docs/operations.md");
    let documented_kind = |name: &str| {
        let row = documented.lines().find(|line| {
            let first = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
            first.is_some_and(|first| first.contains(&format!("`{name}`")))
        });
        let row = row.unwrap_or_else(|| panic!("{name} is not in docs/operations.md"));
        row.split(" | ").nth(1).unwrap()
    };
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for (name, kind) in names.map(|line| line.split_once(' ').unwrap()) {
        assert_eq!(documented_kind(name), kind, "the type of {name} in docs/operations.md");
        if kind == "histogram" {
            let ends = bucket_ends(&metrics, name);
            assert!(
                documented.contains(&format!("`{name}` ends its buckets at {ends} and `+Inf`")),
                "{ends}"
            );
        }
    }
    // Some are there only once they have something to tell, so that the documentation says what there is.
    let alerts = include_str!("../../../../examples/deploy/alerts.yml");
    let is_named = |c: char| c.is_ascii_lowercase() || c == '_';
    for used in alerts.split(|c| !is_named(c)).filter(|word| word.starts_with("tepui_")) {
        let name = used.strip_suffix("_total").unwrap_or(used);
        let is_counter = documented_kind(name) == "counter";
        assert_eq!(is_counter, used.ends_with("_total"), "{used} of the alerts");
    }
    assert!(sample(&metrics, "tepui_catalog_bytes") > 0);
    assert_eq!(sample(&metrics, "tepui_catalog_bytes_max"), 248 << 20);
    assert!(scrape(&server, "/health").await.0.contains("200"));
    assert!(scrape(&server, "/").await.0.contains("404"));
    for (path, status) in [("/health", "200"), ("/metrics", "200"), ("/", "404")] {
        let (line, body) = ask_metrics(&server, "HEAD", path).await;
        assert!(line.contains(status) && body.is_empty(), "{path}: {line}: {body}");
    }
    assert!(ask_metrics(&server, "POST", "/health").await.0.contains("405"));
    server.stop().await;
}

/// The ends of a histogram's buckets but the last, as the documentation has them.
fn bucket_ends(metrics: &str, name: &str) -> String {
    let prefix = format!("{name}_bucket{{");
    let mut ends: Vec<f64> = Vec::new();
    for line in metrics.lines().filter(|line| line.starts_with(&prefix)) {
        let end = line.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
        let end = end.parse::<f64>().unwrap();
        if end.is_infinite() {
            // What follows is of other labels.
            break;
        }
        ends.push(end);
    }
    let ends: Vec<String> = ends.into_iter().map(|end| end.to_string()).collect();
    ends.join(", ")
}

#[tokio::test]
async fn metrics_tell_of_large_values_and_of_all_memory() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    let value = vec![5; 20 << 10];
    for _ in 0..2 {
        for n in 0..4 {
            server.set(&format!("r{n}"), &value).await.unwrap();
        }
        server.running.engine().compact_fully().unwrap();
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    let values = |state| sample(&metrics, &format!("tepui_value_bytes{{state=\"{state}\"}}"));
    assert!(sample(&metrics, "tepui_value_files") >= 1, "{metrics}");
    assert!(values("live") > 0);
    assert!(
        sample(&metrics, "tepui_value_written_bytes_total") >= values("live") + values("garbage")
    );
    // Other tests run in this process: that `other` does not grow by what has a part of its own is tested with the binary.
    let program = sample(&metrics, "tepui_memory_bytes{part=\"program\"}");
    assert!(program > 0 && sample(&metrics, "tepui_resident_memory_bytes") > program);
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_the_files_of_a_restored_table_once() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    server.set("row", &vec![5; 20 << 10]).await.unwrap();
    server.running.engine().compact_fully().unwrap();
    let files = async || {
        let (_, metrics) = scrape(&server, "/metrics").await;
        ["level_files", "level_bytes", "value_files", "value_bytes"]
            .map(|name| sample(&metrics, &format!("tepui_{name}")))
    };
    let before = files().await;
    assert!(before.iter().all(|figure| *figure > 0), "{before:?}");
    let done = async |operation: longrunning::Operation| {
        let wait = longrunning::WaitOperationRequest { name: operation.name, timeout: None };
        let done = server.operations().wait_operation(wait).await.unwrap().into_inner();
        assert!(matches!(done.result, Some(longrunning::operation::Result::Response(_))));
    };
    let seconds = server.running.engine().clock().now_micros() / 1_000_000 + 12 * 3_600;
    let create = admin::CreateBackupRequest {
        parent: format!("{INSTANCE}/clusters/c"),
        backup_id: "b".to_owned(),
        backup: Some(admin::Backup {
            source_table: TABLE.to_owned(),
            expire_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            ..Default::default()
        }),
    };
    done(server.tables().create_backup(create).await.unwrap().into_inner()).await;
    let source = format!("{INSTANCE}/clusters/c/backups/b");
    let restore = admin::RestoreTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "restored".to_owned(),
        source: Some(admin::restore_table_request::Source::Backup(source)),
    };
    done(server.tables().restore_table(restore).await.unwrap().into_inner()).await;
    assert_eq!(files().await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_failed_sync_or_write_of_the_log_shows_with_its_reason_in_answers_health_and_metrics() {
    // The second is that of a full disk on which no space can be reserved.
    let full = Fault::new(FaultOp::Append).on_path("/log/").kind(tepui_engine::ErrorKind::NoSpace);
    for fault in [Fault::new(FaultOp::Sync), full] {
        let (env, faults) = with_faults(&memory());
        let server = start_with(&env, serve_metrics).await;
        server.create(&[]).await;
        server.set("kept", b"v").await.unwrap();
        faults.inject(fault);
        let lost = server.set("lost", b"v").await.unwrap_err();
        assert_eq!(lost.code(), Code::Unavailable);
        let refused = server.set("later", b"v").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert_eq!(server.rows().await.unwrap().len(), 1, "reads go on");
        let (status, reason) = scrape(&server, "/health").await;
        assert!(status.contains("503"), "{status}");
        assert!(reason.contains("commit log failed"), "{reason}");
        let (_, metrics) = scrape(&server, "/metrics").await;
        let line = metrics.lines().find(|line| line.starts_with("tepui_read_only{")).unwrap();
        assert!(line.contains("commit log failed") && line.ends_with(" 1"), "{line}");
        drop(server);
    }
}

/// Starts all threads but one, of which it loses the work.
#[derive(Debug)]
struct Losing(&'static str);

impl tepui_engine::io::Spawner for Losing {
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> tepui_engine::Result<Box<dyn tepui_engine::io::JoinHandle>> {
        let work = if name == self.0 { Box::new(move || drop(work)) } else { work };
        ThreadSpawner.spawn(name, work)
    }
}

#[tokio::test]
async fn a_server_of_which_a_thread_has_ended_ends_as_a_whole_with_an_error() {
    for lost in ["tepui-chores", "tepui-core-1"] {
        let mut env = memory();
        env.spawner = Arc::new(Losing(lost));
        let config = Config {
            data: PathBuf::from("/tepui"),
            listen: "127.0.0.1:0".to_owned(),
            cores: 2,
            ..Config::default()
        };
        let run = move || {
            let running = server::start(env, &config).unwrap();
            // Nobody sends a signal.
            tepui_server::signals::Signals::take().unwrap().stop_on_first_exit_on_second(running)
        };
        let error = tokio::task::spawn_blocking(run).await.unwrap().unwrap_err();
        assert!(error.message().contains("a thread of the server has ended"), "{lost}: {error}");
    }
}

#[test]
fn where_a_port_is_taken_nothing_of_the_directory_is_touched() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let free = "127.0.0.1:0".to_owned();
    for (listen, metrics_listen) in [(taken.to_string(), None), (free, Some(taken))] {
        let env = memory();
        let data = PathBuf::from("/tepui");
        let config = Config { data, listen, metrics_listen, ..Config::default() };
        let error = server::start(env.clone(), &config).map(|_| ()).unwrap_err();
        assert!(error.message().starts_with(&format!("cannot listen on {taken}")), "{error}");
        assert!(!env.files.exists(&config.data).unwrap(), "it was not even made");
    }
}

#[tokio::test]
async fn an_engine_that_panics_as_it_closes_is_no_orderly_stop() {
    let mut env = memory();
    env.spawner = Arc::new(Losing("tepui-close"));
    let TestServer { running, channel } = start(&env).await;
    drop(channel);
    let stopped = tokio::task::spawn_blocking(move || running.stop()).await.unwrap();
    let error = stopped.unwrap_err();
    assert!(error.message().contains("panicked as it closed"), "{error}");
}

//! What benchmarks ask of a server before they measure it, and what they count of it meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Dataset, ErrorKind, OpKind, Progress, Store as _, Workload};
use tepui_bench_server::bench::{Bench, Sizes};
use tepui_bench_server::host::{Host, Settings};
use tepui_engine::io::{Env, IoMode};
use tepui_server::config::Config;

mod support;

use support::clients;

fn dataset() -> Dataset {
    Dataset { rows: 500, key_bytes: 24, columns: 1, value_bytes: 100, seed: 1 }
}

#[test]
fn the_syncs_of_a_run_are_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let delay = Some(Duration::from_millis(2));
    let settings = Settings { sync_delay: delay, ..Settings::with_cache(64 << 20) };
    let host = Host::start(&dir.path().join("data"), settings).unwrap();
    let tepui = clients(host.endpoint().unwrap());
    tepui.ensure_table(&Progress::hidden()).unwrap();
    let sizes =
        Sizes { rows: 500, rows_large: 500, rounds: 1, seconds: 1.0, overload_seconds: 1.0 };
    let mut bench = Bench {
        dir: dir.path().to_owned(),
        sizes,
        tepui: PathBuf::new(),
        own: PathBuf::new(),
        emulator: None,
        progress: Progress::hidden(),
        lines: Vec::new(),
        runs: Vec::new(),
    };
    let increments = bench.workload(Workload::of("increments", OpKind::Increment));
    let increments = Workload { threads: 1, in_flight: 1, ..increments };
    let before = host.used().syncs;
    let sample = bench.sample(&tepui, &|| host.used(), &dataset(), &increments).unwrap();
    let all = host.used().syncs - before;
    // One client alone has a sync for each of its increments. Those of its warm-up are not in the sample.
    let (ops, syncs) = (sample.run.ops, sample.used.syncs);
    assert!(ops > 10 && ops.abs_diff(syncs) <= 2, "{ops} increments, {syncs} syncs");
    assert!((0.8..1.2).contains(&sample.per_sync()), "{}", sample.per_sync());
    assert!(all > syncs, "{syncs} of {all} syncs");
    host.stop().unwrap();
}

#[test]
fn a_server_that_is_dropped_has_ended_and_leaves_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Host::start(&dir.path().join("data"), Settings::with_cache(64 << 20));
    drop(start().unwrap());
    // One that still ran would hold the lock of the directory.
    start().unwrap().stop().unwrap();
}

#[test]
fn a_table_with_other_rows_is_told_by_its_first_one() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&dir.path().join("data"), Settings::with_cache(64 << 20)).unwrap();
    let (tepui, progress) = (clients(host.endpoint().unwrap()), Progress::hidden());
    let check = |dataset: &Dataset| tepui.check_first_row(dataset, &progress);
    tepui.ensure_table(&progress).unwrap();
    check(&dataset()).unwrap();
    tepui.load(&dataset(), &progress).unwrap();
    for rows in [100, 500, 1000] {
        check(&Dataset { rows, ..dataset() }).unwrap();
    }
    let error = check(&Dataset { seed: 2, ..dataset() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Occupied);
    assert!(error.to_string().contains("holds other rows"), "{error}");
    host.stop().unwrap();
}

#[test]
fn families_come_by_the_request_that_lets_googles_emulator_collect_old_versions() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        data: dir.path().join("data"),
        listen: "127.0.0.1:0".to_owned(),
        metrics_listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::default()
    };
    let env = Env::local(IoMode::Buffered).unwrap();
    let running = tepui_server::server::start(env, &config).unwrap();
    let metrics = running.metrics_address().unwrap();
    let modifications = || {
        let mut stream = std::net::TcpStream::connect(metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let of = |line: &&str| {
            line.starts_with("tepui_requests_total") && line.contains("\"ModifyColumnFamilies\"")
        };
        let counts = text.lines().filter(of).filter_map(|line| line.rsplit_once(' '));
        counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    let tepui = clients(Endpoint::parse(&running.address().to_string()).unwrap());
    assert!(tepui.ensure_table(&Progress::hidden()).unwrap());
    assert_eq!(modifications(), 1);
    // A table that has its families is left as it is.
    assert!(!tepui.ensure_table(&Progress::hidden()).unwrap());
    assert_eq!(modifications(), 1);
    tepui.load(&dataset(), &Progress::hidden()).unwrap();
    assert!(tepui.holds(&dataset(), &Progress::hidden()).unwrap());
    running.stop().unwrap();
}

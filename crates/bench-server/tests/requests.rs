//! What requests cost the server, in figures that do not depend on the machine. A program of its own, since an
//! allocator belongs to a whole program.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use tepui_bench::grpc::Grpc;
use tepui_bench::report;
use tepui_bench::{
    Dataset, Distribution, Limit, OpKind, Progress, Share, Store as _, Verify, Workload,
};
use tepui_bench_server::counting::Counting;
use tepui_bench_server::echo::{self, EchoServer};
use tepui_bench_server::host::{self, Host, Settings};
use tepui_bench_server::threads::used;

mod support;

use support::clients;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const OPS: u64 = 4_000;
/// Rows that the server is asked for before it counts: connections, pools and caches are there then.
const WARM_UP_OPS: u64 = 500;
/// Allocations of a read, and of a write of a row, which make 17 each and some now and then. One more is to be noticed, and to be argued
/// here.
const READ_MAX: f64 = 18.0;
const UPDATE_MAX: f64 = 18.0;

fn dataset(columns: u32) -> Dataset {
    Dataset { rows: 500, key_bytes: 24, columns, value_bytes: 1024 / columns as usize, seed: 1 }
}

/// The server's allocations of one operation.
fn allocations(clients: &Grpc, threads: &str, dataset: &Dataset, kind: OpKind) -> f64 {
    let workload = |ops| Workload {
        mix: vec![Share { kind, weight: 1 }],
        distribution: Distribution::Single,
        threads: 1,
        in_flight: 8,
        limit: Limit::Ops(ops),
        verify: Verify::All,
        ..Workload::of("t", kind)
    };
    let progress = Progress::hidden();
    report::warm_up(clients, dataset, &workload(WARM_UP_OPS), &progress).unwrap();
    let before = used(threads);
    let run = report::measure(clients, dataset, &workload(OPS), None, &progress).unwrap();
    assert_eq!(run.ops, OPS);
    (used(threads) - before).allocations as f64 / OPS as f64
}

#[test]
fn a_read_of_a_cached_row_stays_within_its_allocations() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = dataset(1);
    let settings = Settings::with_cache(64 << 20);
    let host = Host::start(dir.path(), settings).unwrap();
    let tepui = clients(host.endpoint().unwrap());
    assert!(tepui.ensure_table(&Progress::hidden()).unwrap());
    assert!(!tepui.holds(&dataset, &Progress::hidden()).unwrap());
    tepui.load(&dataset, &Progress::hidden()).unwrap();
    assert!(tepui.holds(&dataset, &Progress::hidden()).unwrap());
    host.compact(&Progress::hidden()).unwrap();

    let echo = EchoServer::start(echo::message(&dataset, dataset.rows / 2), 2).unwrap();
    let bare = clients(echo.endpoint().unwrap());
    let of_echo = allocations(&bare, echo::THREADS, &dataset, OpKind::GetRow);
    let of_read = allocations(&tepui, host::THREADS, &dataset, OpKind::GetRow);
    let of_update = allocations(&tepui, host::THREADS, &dataset, OpKind::Update);
    println!("allocations: echo {of_echo:.1}, read {of_read:.1}, update {of_update:.1}");
    assert!(of_echo > 1.0, "the allocator counts");
    assert!(of_read <= READ_MAX, "{of_read} for a read");
    assert!(of_update <= UPDATE_MAX, "{of_update} for an update");
    host.stop().unwrap();
}

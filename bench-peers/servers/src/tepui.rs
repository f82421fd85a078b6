//! Tepui: `tepui serve` as a process of its own, driven by the client of `tepui bench server`.

use std::path::Path;

use tepui_bench::child::Child;
use tepui_bench::grpc::ask::Table;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions};
use tepui_bench::{Progress, Result};

use crate::shape::{CONNECTIONS, LOAD_IN_FLIGHT, THREADS};

/// As much memory as the heaps of the others; each write is on the disk before it is answered, which is its default too.
const CONFIG: &str = "memory = \"4GiB\"\n\n[log]\nsync = \"always\"\n";
/// Rows of a request while loading.
const LOAD_ROWS: u64 = 200;

/// Starts a server over an empty directory and makes the table.
pub fn start(program: &Path, dir: &Path, progress: &Progress) -> Result<(Child, Grpc)> {
    let (child, port) = Child::tepui(program, dir, CONFIG, progress)?;
    let server = Grpc::new(GrpcOptions {
        name: "Tepui".to_owned(),
        endpoint: Endpoint::parse(&format!("127.0.0.1:{port}"))?,
        table: Table::new("usertable"),
        connections: CONNECTIONS,
        load_threads: THREADS,
        load_batch_rows: LOAD_ROWS,
        load_in_flight: LOAD_IN_FLIGHT,
        when_refused: WhenRefused::Again,
        process: Some(child.process()),
    })?;
    server.ensure_table(progress)?;
    Ok((child, server))
}

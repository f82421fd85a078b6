//! Tepui: `tepui serve` as a process of its own, driven by the client of `tepui bench server`.

use std::path::Path;
use std::process::Command;

use tepui_bench::child::{Child, free_ports};
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::{Grpc, GrpcOptions};
use tepui_bench::{Progress, Result};

use crate::shape::{CONNECTIONS, LOAD_IN_FLIGHT, THREADS};
use crate::{START_SECONDS, write};

/// As much memory as the heaps of the others; each write is on the disk before it is answered, which is its default too.
const CONFIG: &str = "memory = \"4GiB\"\n\n[log]\nsync = \"always\"\n";
/// Rows of a request while loading.
const LOAD_ROWS: u64 = 200;

/// Starts a server over an empty directory and makes the table.
pub fn start(program: &Path, dir: &Path, progress: &Progress) -> Result<(Child, Grpc)> {
    let [port] = free_ports()?;
    let config = dir.join("tepui.toml");
    write(&config, CONFIG)?;
    let mut command = Command::new(program);
    command
        .arg("serve")
        .arg("--data")
        .arg(dir.join("data"))
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg("--config")
        .arg(config);
    let mut child = Child::start("Tepui", &mut command, &dir.join("server.log"))?;
    child.wait_for_port(port, START_SECONDS, progress)?;
    let server = Grpc::new(GrpcOptions {
        name: "Tepui".to_owned(),
        endpoint: Endpoint::parse(&format!("127.0.0.1:{port}"))?,
        table: "usertable".to_owned(),
        connections: CONNECTIONS,
        load_threads: THREADS,
        load_batch_rows: LOAD_ROWS,
        load_in_flight: LOAD_IN_FLIGHT,
        process: Some(child.process()),
    })?;
    server.ensure_table()?;
    Ok((child, server))
}

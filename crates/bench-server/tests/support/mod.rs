//! What the tests of several programs share.

use tepui_bench::grpc::ask::Table;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions};

/// Clients of the table `t` of a server.
pub fn clients(endpoint: Endpoint) -> Grpc {
    Grpc::new(GrpcOptions {
        name: "test".to_owned(),
        endpoint,
        table: Table::new("t"),
        connections: 2,
        load_threads: 1,
        load_batch_rows: 100,
        load_in_flight: 2,
        when_refused: WhenRefused::Again,
        process: None,
    })
    .unwrap()
}

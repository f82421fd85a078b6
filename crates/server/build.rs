//! Generates the server side of the gRPC services from the table in `src/rpcs.rs`: the traits by
//! `tonic_build::manual`, and for each service the dispatch of its RPCs to the type that serves it.

use std::fmt::Write as _;
use std::path::Path;

#[allow(dead_code, missing_docs, reason = "the library uses the rest of the table")]
#[path = "src/rpcs.rs"]
mod rpcs;

fn main() {
    println!("cargo:rerun-if-changed=src/rpcs.rs");
    println!("cargo:rerun-if-changed=build.rs");
    let services: Vec<_> = rpcs::SERVICES.iter().map(describe).collect();
    tonic_build::manual::Builder::new().build_client(false).compile(&services);

    let mut code = String::new();
    let mut first = 0;
    for service in rpcs::SERVICES {
        dispatch(service, first, &mut code);
        first += service.rpcs.len();
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    #[expect(clippy::disallowed_methods, reason = "a build script has no Files seam")]
    std::fs::write(Path::new(&out).join("dispatch.rs"), code).expect("OUT_DIR can be written");
}

/// The service as tonic's generator takes it.
fn describe(service: &rpcs::Service) -> tonic_build::manual::Service {
    let mut builder =
        tonic_build::manual::Service::builder().name(service.name).package(service.package);
    for rpc in service.rpcs {
        let mut method = tonic_build::manual::Method::builder()
            .name(snake_case(rpc.name))
            .route_name(rpc.name)
            .input_type(format!("crate::api::{}", rpc.input))
            .output_type(format!("crate::api::{}", rpc.output))
            .codec_path("tonic_prost::ProstCodec");
        if rpc.streams {
            method = method.server_streaming();
        }
        if rpc.takes_stream {
            method = method.client_streaming();
        }
        builder = builder.method(method.build());
    }
    builder.build()
}

/// Writes the implementation of the generated trait. `first` is the number of the service's first RPC.
fn dispatch(service: &rpcs::Service, first: usize, code: &mut String) {
    let module = snake_case(service.name);
    let result = writeln!(
        code,
        "#[tonic::async_trait]\nimpl {module}_server::{} for crate::{} {{",
        service.name, service.served_by
    );
    result.expect("a String can be written");
    for (number, rpc) in (first..).zip(service.rpcs) {
        let method = snake_case(rpc.name);
        let output = if rpc.streams {
            let item = rpc.output;
            let name = rpc.name;
            writeln!(code, "    type {name}Stream = crate::services::Stream<crate::api::{item}>;")
                .expect("a String can be written");
            format!("Self::{}Stream", rpc.name)
        } else {
            format!("crate::api::{}", rpc.output)
        };
        let body = if rpc.supported {
            let way = if rpc.streams { "streaming" } else { "unary" };
            // Clients measure the data API alone.
            let metrics = if service.name == "Bigtable" {
                ".with_metrics(&self.recorder, &self.instances, &request)"
            } else {
                ""
            };
            format!(
                "crate::admission::Hold::begin(&request); \
                 let terms = crate::call::Terms::of(&request){metrics}; \
                 crate::metrics::rpc::{way}(&self.recorder, {number}, \
                 terms.{way}(self.on_{method}(request))).await"
            )
        } else {
            let name = format!("{}.{}", service.name, rpc.name);
            let status = match rpc.instead {
                Some(instead) => format!("withdrawn(\"{name}\", \"{instead}\")"),
                None => format!("unsupported(\"{name}\")"),
            };
            format!(
                "crate::admission::Hold::begin(&request); crate::metrics::rpc::unary(&self.recorder, {number}, \
                 async {{ Err(crate::status::{status}) }}).await"
            )
        };
        let mut input = format!("crate::api::{}", rpc.input);
        if rpc.takes_stream {
            input = format!("tonic::Streaming<{input}>");
        }
        writeln!(
            code,
            "    async fn {method}(&self, request: tonic::Request<{input}>) \
             -> Result<tonic::Response<{output}>, tonic::Status> {{ {body} }}"
        )
        .expect("a String can be written");
    }
    code.push_str("}\n");
}

/// `CheckAndMutateRow` as `check_and_mutate_row`.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.char_indices() {
        if c.is_ascii_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

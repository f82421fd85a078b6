//! Generates, for each gRPC service of the table in `src/rpcs.rs`, the dispatch of its RPCs to the type that serves it.

use std::fmt::Write as _;
use std::path::Path;

#[allow(dead_code, missing_docs, reason = "the library uses the rest of the table")]
#[path = "src/rpcs.rs"]
mod rpcs;

fn main() {
    println!("cargo:rerun-if-changed=src/rpcs.rs");
    println!("cargo:rerun-if-changed=build.rs");
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

/// Writes how a service carries out what a path names. `first` is the number of its first RPC.
fn dispatch(service: &rpcs::Service, first: usize, code: &mut String) {
    let name = format!("{}.{}", service.package, service.name);
    let served_by = service.served_by;
    let mut arms = String::new();
    for (number, rpc) in (first..).zip(service.rpcs) {
        let (way, steps) = if rpc.supported { call(service, rpc) } else { refusal(service, rpc) };
        let output = if rpc.supported { rpc.output } else { "Empty" };
        let (before, answer) = match way {
            "streaming" => (String::new(), "crate::grpc::streaming(answered)".to_owned()),
            _ => (
                format!(
                    "let {} = crate::grpc::Unary::new(&request, &service.recorder);",
                    if waits_for_room(rpc) { "mut unary" } else { "unary" }
                ),
                format!("unary.answer::<crate::api::{output}>(answered)"),
            ),
        };
        write!(
            arms,
            "
            \"/{name}/{}\" => Box::pin(async move {{
                {before}
                let answered = async {{
                    {steps}
                    crate::metrics::rpc::{way}(&service.recorder, {number}, call).await
                }};
                let answered = answered.await;
                {answer}
            }}),",
            rpc.name
        )
        .expect("a String can be written");
    }
    write!(
        code,
        "
impl crate::grpc::Rpcs for crate::{served_by} {{
    const NAME: &'static str = \"{name}\";

    fn carry_out<B: crate::admission::Inbound>(
        self: std::sync::Arc<Self>,
        request: http::Request<crate::admission::GatedBody<B>>,
    ) -> futures::future::BoxFuture<'static, crate::grpc::Answer> {{
        let service = self;
        match request.uri().path() {{{arms}
            path => Box::pin(std::future::ready(crate::grpc::no_rpc(path))),
        }}
    }}
}}
"
    )
    .expect("a String can be written");
}

/// How an RPC that is served is called: the kind of its answer, and what makes `call` of `request`.
fn call(service: &rpcs::Service, rpc: &rpcs::Rpc) -> (&'static str, String) {
    let way = if rpc.streams { "streaming" } else { "unary" };
    // Clients measure the data API alone.
    let metrics = if service.name == "Bigtable" {
        ".with_metrics(&service.recorder, &service.instances, &request)"
    } else {
        ""
    };
    let call = format!("service.on_{}(request)", snake_case(rpc.name));
    let call = match rpc.room {
        rpcs::Room::Little => call,
        rpcs::Room::Perhaps => format!("async {{ unary.check()?; {call}.await }}"),
        rpcs::Room::Before => format!("unary.in_room({call})"),
    };
    let (receive, limit) = match rpc.counted {
        rpcs::Counted::Fields => ("receive", ", crate::limits::ADMIN_FIELDS_MAX"),
        rpcs::Counted::Parts => ("receive_parts", ""),
        rpcs::Counted::Nothing => ("receive", ", usize::MAX"),
    };
    let frames = if rpc.streams {
        format!(".map_ok(crate::grpc::frames::<crate::api::{}>)", rpc.output)
    } else {
        String::new()
    };
    let steps = format!(
        "let request = crate::grpc::{receive}::<crate::api::{}>(request{limit}).await?;
                    request.hold().begin();
                    let terms = crate::call::Terms::of(&request){metrics};
                    let call = terms.{way}({call}{frames});",
        rpc.input,
    );
    (way, steps)
}

/// The same for one that is not served. A message is taken in first, as a client may not read before it has sent it; who sends a
/// stream reads meanwhile.
fn refusal(service: &rpcs::Service, rpc: &rpcs::Rpc) -> (&'static str, String) {
    let name = format!("{}.{}", service.name, rpc.name);
    let status = match rpc.instead {
        Some(instead) => format!("withdrawn(\"{name}\", \"{instead}\")"),
        None => format!("unsupported(\"{name}\")"),
    };
    let receive = if rpc.takes_stream {
        "unread(request)"
    } else {
        "receive::<crate::api::Empty>(request, usize::MAX).await?"
    };
    let steps = format!(
        "let request = crate::grpc::{receive};
                    request.hold().begin();
                    let call = async {{ Err::<tonic::Response<crate::api::Empty>, _>(crate::status::{status}) }};"
    );
    ("unary", steps)
}

/// Whether there is to be room for its answer before that is made.
fn waits_for_room(rpc: &rpcs::Rpc) -> bool {
    rpc.supported && rpc.room == rpcs::Room::Before
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

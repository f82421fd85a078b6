//! What RPCs did: how many ended with which code, how long they took, how many are under way.
//!
//! Each core has a set of counters of its own, which its thread alone writes, so that counting costs no
//! traffic between cores; a scrape adds the sets up. `build.rs` wraps every RPC of the generated dispatch in
//! [`unary`] or [`streaming`].

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tepui_engine::io::Clock;
use tonic::{Code, Response, Status};

use crate::rpcs::{Rpc, SERVICES, Service};
use crate::status::panicked;

/// Upper ends of the buckets of latencies, in microseconds, at most 2.5 times apart: from a cached read on a core
/// that has nothing else to do, up to what clients wait for at most.
pub const BUCKETS_MICROS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// gRPC's codes.
pub const CODES: [Code; 17] = [
    Code::Ok,
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// Counters of one RPC on one core.
#[derive(Debug, Default)]
struct Figures {
    /// By the code's number.
    ended: [AtomicU64; CODES.len()],
    /// By bucket; the last has no upper end.
    took: [AtomicU64; BUCKETS_MICROS.len() + 1],
    took_micros: AtomicU64,
    under_way: AtomicU64,
}

/// Counters of all RPCs on one core.
#[derive(Debug)]
pub struct CoreRpcs(Vec<Figures>);

impl Default for CoreRpcs {
    fn default() -> Self {
        let count = SERVICES.iter().map(|service| service.rpcs.len()).sum();
        Self(std::iter::repeat_with(Figures::default).take(count).collect())
    }
}

/// The RPC that is served at a path, `/google.bigtable.v2.Bigtable/ReadRows`, and its number.
pub fn at(path: &str) -> Option<(usize, &'static Rpc)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let (package, name) = service.rsplit_once('.')?;
    let all = SERVICES.iter().flat_map(|of| of.rpcs.iter().map(move |rpc| (of, rpc)));
    let mut all = all.enumerate();
    let is_it =
        |of: &Service, rpc: &Rpc| of.package == package && of.name == name && rpc.name == method;
    all.find(|(_, (of, rpc))| is_it(of, rpc)).map(|(number, (_, rpc))| (number, rpc))
}

/// Figures of one RPC over all cores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RpcFigures {
    /// Calls that ended, by the code's number.
    pub ended: [u64; CODES.len()],
    /// Calls by how long they took; the last bucket has no upper end.
    pub took: [u64; BUCKETS_MICROS.len() + 1],
    /// All their time, in microseconds.
    pub took_micros: u64,
    /// Calls that have begun and not ended.
    pub under_way: u64,
}

/// The figures of the RPC with this number, over the cores.
pub fn sum(cores: &[Arc<CoreRpcs>], rpc: usize) -> RpcFigures {
    let mut sum = RpcFigures::default();
    let add = |to: &mut u64, from: &AtomicU64| *to += from.load(Ordering::Relaxed);
    for figures in cores.iter().filter_map(|core| core.0.get(rpc)) {
        sum.ended.iter_mut().zip(&figures.ended).for_each(|(to, from)| add(to, from));
        sum.took.iter_mut().zip(&figures.took).for_each(|(to, from)| add(to, from));
        add(&mut sum.took_micros, &figures.took_micros);
        add(&mut sum.under_way, &figures.under_way);
    }
    sum
}

impl CoreRpcs {
    /// Counts a call of the RPC with this number that ended before that was begun: refused for its size or for want of memory,
    /// late, or no message of its type.
    pub fn ended_early(&self, rpc: usize, code: Code) {
        let figures = self.0.get(rpc);
        if let Some(ended) = figures.and_then(|figures| figures.ended.get(code as usize)) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts the RPCs of one core's services.
#[derive(Debug, Clone)]
pub struct Recorder {
    core: Arc<CoreRpcs>,
    clock: Arc<dyn Clock>,
}

impl Recorder {
    /// Counts into `core`.
    pub fn new(core: Arc<CoreRpcs>, clock: Arc<dyn Clock>) -> Self {
        Self { core, clock }
    }

    /// The monotonic time by which calls are timed, in microseconds.
    pub fn now_micros(&self) -> u64 {
        self.clock.monotonic_micros()
    }

    /// What it counts into.
    pub fn rpcs(&self) -> Arc<CoreRpcs> {
        Arc::clone(&self.core)
    }

    fn begin(&self, rpc: usize) -> Call {
        if let Some(figures) = self.core.0.get(rpc) {
            figures.under_way.fetch_add(1, Ordering::Relaxed);
        }
        let (recorder, began) = (self.clone(), self.clock.monotonic_micros());
        Call { recorder, rpc, began, code: Code::Cancelled }
    }
}

/// The code of a call that is dropped now with this one: without an end it was cancelled by its client, unless it panics.
pub fn code_at_drop(code: Code) -> Code {
    if code == Code::Cancelled && std::thread::panicking() { Code::Internal } else { code }
}

/// A call under way.
struct Call {
    recorder: Recorder,
    rpc: usize,
    began: u64,
    code: Code,
}

impl Drop for Call {
    fn drop(&mut self) {
        let took = self.recorder.clock.monotonic_micros().saturating_sub(self.began);
        let Some(figures) = self.recorder.core.0.get(self.rpc) else { return };
        let bucket = BUCKETS_MICROS.partition_point(|end| *end < took);
        let increment = |counter: Option<&AtomicU64>| {
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        increment(figures.took.get(bucket));
        increment(figures.ended.get(code_at_drop(self.code) as usize));
        figures.took_micros.fetch_add(took, Ordering::Relaxed);
        figures.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Carries out an RPC with one answer.
pub fn unary<F>(recorder: &Recorder, rpc: usize, call: F) -> CountedCall<F> {
    CountedCall { counted: recorder.begin(rpc), call }
}

/// Carries out an RPC whose answer is a stream; it ends with the stream.
pub fn streaming<F>(recorder: &Recorder, rpc: usize, call: F) -> CountedStream<F> {
    CountedStream { counted: Some(recorder.begin(rpc)), call }
}

pin_project! {
    /// A call whose end is counted.
    pub struct CountedCall<F> {
        #[pin]
        call: F,
        counted: Call,
    }
}

impl<T, F: Future<Output = Result<Response<T>, Status>>> Future for CountedCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.call.poll(context);
        if let Poll::Ready(result) = &polled {
            this.counted.code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        }
        polled
    }
}

pin_project! {
    /// A call whose answer is a stream, with the end of which it is counted.
    pub struct CountedStream<F> {
        #[pin]
        call: F,
        counted: Option<Call>,
    }
}

impl<T, S, F> Future for CountedStream<F>
where
    F: Future<Output = Result<Response<S>, Status>>,
    S: futures::Stream<Item = Result<T, Status>>,
{
    type Output = Result<Response<Counted<S>>, Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.call.poll(context);
        if let Poll::Ready(Err(status)) = &polled
            && let Some(counted) = this.counted
        {
            counted.code = status.code();
        }
        let counted = |inner| Counted { inner, call: this.counted.take() };
        polled.map_ok(|response| response.map(counted))
    }
}

pin_project! {
    /// A stream whose end is counted. A panic is an error with which it ends, so that clients are told.
    pub struct Counted<S> {
        #[pin]
        inner: S,
        call: Option<Call>,
    }
}

impl<T, S: futures::Stream<Item = Result<T, Status>>> futures::Stream for Counted<S> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let polled = catch_unwind(AssertUnwindSafe(|| this.inner.poll_next(context)))
            .unwrap_or_else(|_| Poll::Ready(Some(Err(panicked()))));
        let code = match &polled {
            Poll::Ready(None) => Some(Code::Ok),
            Poll::Ready(Some(Err(status))) => Some(status.code()),
            _ => None,
        };
        if let Some(code) = code
            && let Some(mut call) = this.call.take()
        {
            call.code = code;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;
    use futures::future::BoxFuture;
    use tepui_engine::io::ManualClock;

    fn recorder() -> (Recorder, Arc<ManualClock>, Vec<Arc<CoreRpcs>>) {
        let clock = Arc::new(ManualClock::new(1));
        let core = Arc::new(CoreRpcs::default());
        let recorder = Recorder::new(Arc::clone(&core), Arc::clone(&clock) as Arc<dyn Clock>);
        (recorder, clock, vec![core])
    }

    #[tokio::test]
    async fn calls_are_counted_by_code_and_time() {
        let (recorder, clock, cores) = recorder();
        let call = async {
            assert_eq!(sum(&cores, 3).under_way, 1);
            clock.advance_micros(70);
            Ok(Response::new(()))
        };
        unary(&recorder, 3, call).await.unwrap();
        let call = async { Err::<Response<()>, _>(Status::not_found("x")) };
        unary(&recorder, 3, call).await.unwrap_err();
        let cancelled =
            unary(&recorder, 3, futures::future::pending::<Result<Response<()>, Status>>());
        assert!(futures::poll!(Box::pin(cancelled)).is_pending());
        assert_eq!(sum(&cores, 3).ended[Code::Cancelled as usize], 1);
        let figures = sum(&cores, 3);
        assert_eq!((figures.ended[0], figures.ended[Code::NotFound as usize]), (1, 1));
        assert_eq!((figures.took[0], figures.took[1], figures.took_micros), (2, 1, 70));
        assert_eq!(figures.under_way, 0);
        assert_eq!(sum(&cores, 4), RpcFigures::default());
    }

    #[test]
    fn a_call_that_panics_is_an_internal_error_and_not_its_clients_doing() {
        let (recorder, _, cores) = recorder();
        let calls = std::panic::AssertUnwindSafe(|| {
            let call = async { panic!("expected by the test") };
            let call =
                unary::<BoxFuture<'_, Result<Response<()>, Status>>>(&recorder, 3, Box::pin(call));
            pollster::block_on(call)
        });
        assert!(std::panic::catch_unwind(calls).is_err());
        let figures = sum(&cores, 3);
        let by = |code: Code| figures.ended[code as usize];
        assert_eq!((by(Code::Internal), by(Code::Cancelled), figures.under_way), (1, 0, 0));
    }

    #[test]
    fn a_path_is_that_of_one_rpc_or_of_none() {
        let mut next = 0;
        for service in SERVICES {
            for rpc in service.rpcs {
                let path = format!("/{}.{}/{}", service.package, service.name, rpc.name);
                assert_eq!(at(&path).unwrap().0, next, "{path}");
                next += 1;
            }
        }
        for path in [
            "",
            "/",
            "/google.bigtable.v2.Bigtable",
            "/google.bigtable.v2.Bigtable/x",
            "/x/ReadRows",
        ] {
            assert!(at(path).is_none(), "{path}");
        }
    }

    #[tokio::test]
    async fn a_stream_ends_where_it_ends_fails_where_it_fails_and_else_was_cancelled() {
        let (recorder, _, cores) = recorder();
        let ends: [Vec<Result<u32, Status>>; 2] =
            [vec![Ok(1)], vec![Ok(1), Err(Status::data_loss("x"))]];
        for items in ends {
            let call = async { Ok(Response::new(futures::stream::iter(items))) };
            let stream = streaming(&recorder, 0, call).await.unwrap().into_inner();
            assert_eq!(sum(&cores, 0).under_way, 1);
            let _ = stream.collect::<Vec<_>>().await;
        }
        let call = async { Ok(Response::new(futures::stream::pending::<Result<u32, Status>>())) };
        drop(streaming(&recorder, 0, call).await.unwrap());
        type Never = futures::stream::Pending<Result<u32, Status>>;
        let call = async { Err::<Response<Never>, _>(Status::not_found("x")) };
        assert!(streaming(&recorder, 0, call).await.is_err());
        let call = async {
            let panics = |_: &mut Context<'_>| -> Poll<Option<Result<u32, Status>>> {
                panic!("expected by the test")
            };
            Ok(Response::new(futures::stream::poll_fn(panics)))
        };
        let mut panics = streaming(&recorder, 0, call).await.unwrap().into_inner();
        assert_eq!(panics.next().await.unwrap().unwrap_err().code(), Code::Internal);
        let figures = sum(&cores, 0);
        let by = |code: Code| figures.ended[code as usize];
        assert_eq!((by(Code::Ok), by(Code::DataLoss), by(Code::Cancelled)), (1, 1, 1));
        assert_eq!(by(Code::Internal), 1);
        assert_eq!((by(Code::NotFound), figures.under_way), (1, 0));
    }
}

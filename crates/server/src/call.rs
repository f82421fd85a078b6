//! The terms of a call beside its answer: until when its client waits for it, and what its client's metrics want to
//! know of it.
//!
//! ```text
//! grpc-timeout: 1500m                      ─► the work is dropped after that, with DEADLINE_EXCEEDED
//! x-goog-ext-425905942-bin: ResponseParams ◄─ which cluster answered, and in which zone     (data API)
//! server-timing: gfet4t7; dur=3            ◄─ milliseconds until the answer began           (data API)
//! ```
//!
//! A client that went away is noticed by the transport, which drops its call; a deadline is for proxies that do not
//! pass a cancellation on, and for calls that wait long in a queue. It counts from the arrival of the request's head, so that a
//! body that comes slowly, or waits for room ([`crate::admission`]), takes its share. A stream whose client does not read is told of it when it
//! is next asked for a message, and its read ends before ([`Streams::relieve`](crate::admission::Streams::relieve)). What a write has given to the commit log when
//! it is dropped still happens, as with any lost answer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tepui_bigtable::bulk::Bulk;
use tepui_bigtable::filter::WithFilter;
use tepui_bigtable::origin::WithOrigins;
use tokio::time::{Instant, Sleep};
use tonic::metadata::{AsciiMetadataValue, BinaryMetadataValue, MetadataMap};
use tonic::{Response, Status};

use crate::api::kept;
use crate::api::session::GetClientConfigurationRequest;
use crate::api::v2;
use crate::grpc::Request;
use crate::instances::Instances;
use crate::metrics::rpc::Recorder;

/// The header of [`ResponseParams`], named by the number of an extension in Google's own messages.
pub const LOCATION_HEADER: &str = "x-goog-ext-425905942-bin";

/// The header of the time that the server took, of which clients read the entry `gfet4t7`.
pub const TIMING_HEADER: &str = "server-timing";

/// Digits of a timeout, at most: gRPC's own limit.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// A request of the data API, which is for an instance and goes by an app profile.
pub trait Addressed {
    /// What it is for.
    fn address(&self) -> Address<'_>;
}

/// What a request is for, by names of which those that are not given are empty.
#[derive(Debug, Clone, Copy)]
pub struct Address<'a> {
    /// Of a table, or of an instance.
    pub name: &'a str,
    /// Of an authorized view.
    pub view: &'a str,
    /// Of a materialized view.
    pub materialized: &'a str,
    /// The id of the app profile.
    pub profile: &'a str,
}

impl<'a> Address<'a> {
    /// The names in the order of the fields.
    fn of(names: &[&'a str], profile: &'a str) -> Self {
        let at = |place| names.get(place).copied().unwrap_or_default();
        Self { name: at(0), view: at(1), materialized: at(2), profile }
    }

    /// The first name that is given.
    pub fn any(self) -> &'a str {
        let names = [self.name, self.view, self.materialized];
        names.into_iter().find(|name| !name.is_empty()).unwrap_or_default()
    }
}

macro_rules! addressed {
    ($($request:ty: $($name:ident)|+;)*) => {
        $(
            impl Addressed for $request {
                fn address(&self) -> Address<'_> {
                    Address::of(&[$(self.$name.as_str()),+], &self.app_profile_id)
                }
            }
        )*
    };
}

addressed! {
    v2::ReadRowsRequest: table_name | authorized_view_name | materialized_view_name;
    kept::SampleRowKeysRequest: table_name | authorized_view_name | materialized_view_name;
    v2::MutateRowRequest: table_name | authorized_view_name;
    v2::MutateRowsRequest: table_name | authorized_view_name;
    v2::CheckAndMutateRowRequest: table_name | authorized_view_name;
    v2::ReadModifyWriteRowRequest: table_name | authorized_view_name;
    v2::GenerateInitialChangeStreamPartitionsRequest: table_name;
    v2::ReadChangeStreamRequest: table_name;
    v2::PingAndWarmRequest: name;
    GetClientConfigurationRequest: instance_name;
}

impl<R: Addressed> Addressed for WithFilter<R> {
    fn address(&self) -> Address<'_> {
        self.request.address()
    }
}

impl<R: Addressed> Addressed for WithOrigins<R> {
    fn address(&self) -> Address<'_> {
        self.0.address()
    }
}

impl Addressed for Bulk {
    fn address(&self) -> Address<'_> {
        self.head().address()
    }
}

/// Until when a client waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// What the headers of a request say that arrives now.
    pub fn of(headers: &http::HeaderMap) -> Option<Self> {
        let timeout = headers.get("grpc-timeout")?.to_str().ok().and_then(parse_timeout)?;
        // A deadline beyond the clock's end is none.
        Instant::now().checked_add(timeout).map(Self)
    }

    /// A timer that ends with it.
    pub fn timer(self) -> Sleep {
        tokio::time::sleep_until(self.0)
    }

    /// Whether nobody waits any more.
    pub fn has_passed(self) -> bool {
        self.0 <= Instant::now()
    }
}

/// The terms of one call.
#[derive(Debug, Clone)]
pub struct Terms {
    deadline: Option<Deadline>,
    metrics: Option<Metrics>,
}

/// What clients' metrics are told.
#[derive(Debug, Clone)]
struct Metrics {
    recorder: Recorder,
    began_micros: u64,
    location: BinaryMetadataValue,
}

impl Terms {
    /// Those of a request: its deadline counts from its arrival, which the gate saw.
    pub fn of<T>(request: &Request<T>) -> Self {
        Self { deadline: request.hold().deadline(), metrics: None }
    }

    /// With the headers that clients' metrics read.
    pub fn with_metrics<R: Addressed>(
        self,
        recorder: &Recorder,
        instances: &Instances,
        request: &Request<R>,
    ) -> Self {
        let address = request.get_ref().address();
        let metrics = Metrics {
            recorder: recorder.clone(),
            began_micros: recorder.now_micros(),
            location: instances.location(address.any(), address.profile),
        };
        Self { metrics: Some(metrics), ..self }
    }

    /// Carries out a call with one answer.
    pub fn unary<F>(self, call: F) -> Timed<F> {
        Timed { call, timer: None, terms: Some(self) }
    }

    /// Carries out a call whose answer is a stream.
    pub fn streaming<F>(self, call: F) -> TimedStream<F> {
        TimedStream { deadline: self.deadline, call: self.unary(call) }
    }

    fn tell<T>(self, mut result: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        if let Some(metrics) = self.metrics {
            metrics.add_to(match &mut result {
                Ok(response) => response.metadata_mut(),
                Err(status) => status.metadata_mut(),
            });
        }
        result
    }
}

impl Metrics {
    fn add_to(self, headers: &mut MetadataMap) {
        headers.insert_bin(LOCATION_HEADER, self.location);
        let took_micros = self.recorder.now_micros().saturating_sub(self.began_micros);
        headers.insert(TIMING_HEADER, timing(took_micros));
    }
}

fn timing(took_micros: u64) -> AsciiMetadataValue {
    const AT_ONCE: &str = "gfet4t7; dur=0";
    /// Those of most calls, which need not be made.
    const SHORT: [&str; 8] = [
        AT_ONCE,
        "gfet4t7; dur=1",
        "gfet4t7; dur=2",
        "gfet4t7; dur=3",
        "gfet4t7; dur=4",
        "gfet4t7; dur=5",
        "gfet4t7; dur=6",
        "gfet4t7; dur=7",
    ];
    let millis = took_micros / 1_000;
    let made = match SHORT.get(millis as usize) {
        Some(short) => Ok(AsciiMetadataValue::from_static(short)),
        None => format!("gfet4t7; dur={millis}").try_into(),
    };
    // Digits are always a value.
    made.unwrap_or_else(|_| AsciiMetadataValue::from_static(AT_ONCE))
}

/// The status of a call that was not answered in time.
pub fn passed() -> Status {
    Status::deadline_exceeded(
        "the client's deadline passed before the answer was there; a write may still take effect",
    )
}

/// gRPC's form of a timeout: digits and a unit. `None` for what is not of that form, as if it were not there.
fn parse_timeout(value: &str) -> Option<Duration> {
    let unit = value.chars().last()?;
    let digits = value.strip_suffix(unit)?;
    let is_number = !digits.is_empty()
        && digits.len() <= TIMEOUT_DIGITS_MAX
        && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| digits.parse().ok())??;
    match unit {
        'H' => Some(Duration::from_secs(number * 3_600)),
        'M' => Some(Duration::from_secs(number * 60)),
        'S' => Some(Duration::from_secs(number)),
        'm' => Some(Duration::from_millis(number)),
        'u' => Some(Duration::from_micros(number)),
        'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

// These are written out, since each async function that takes a future keeps room for it twice: of a write, several kilobytes
// that every request would have to move.

pin_project! {
    /// A call that ends with DEADLINE_EXCEEDED when its deadline passes before it does.
    #[derive(Debug)]
    pub struct Timed<F> {
        #[pin]
        call: F,
        // Set once the call had to wait: one that never does costs no timer.
        #[pin]
        timer: Option<Sleep>,
        // Until the call ends.
        terms: Option<Terms>,
    }
}

impl<T, F: Future<Output = Result<Response<T>, Status>>> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let deadline = this.terms.as_ref().and_then(|terms| terms.deadline);
        let result = match deadline {
            Some(deadline) if this.timer.is_none() && deadline.has_passed() => Err(passed()),
            _ => match (this.call.poll(context), deadline) {
                (Poll::Ready(result), _) => result,
                (Poll::Pending, None) => return Poll::Pending,
                (Poll::Pending, Some(deadline)) => {
                    if this.timer.is_none() {
                        this.timer.set(Some(deadline.timer()));
                    }
                    let timer = this.timer.as_pin_mut();
                    let waits = timer.is_some_and(|timer| timer.poll(context).is_pending());
                    // A timer says nothing in a turn in which its task has done much.
                    if waits && !deadline.has_passed() {
                        return Poll::Pending;
                    }
                    Err(passed())
                }
            },
        };
        Poll::Ready(match this.terms.take() {
            Some(terms) => terms.tell(result),
            None => result,
        })
    }
}

pin_project! {
    /// The same, whose answer is a stream that goes by the same deadline.
    #[derive(Debug)]
    pub struct TimedStream<F> {
        #[pin]
        call: Timed<F>,
        deadline: Option<Deadline>,
    }
}

impl<S, F: Future<Output = Result<Response<S>, Status>>> Future for TimedStream<F> {
    type Output = Result<Response<Within<S>>, Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let deadline = *this.deadline;
        let within = |inner| Within { inner, deadline, timer: None };
        this.call.poll(context).map_ok(|response| response.map(within))
    }
}

pin_project! {
    /// A stream that ends with DEADLINE_EXCEEDED when its deadline passes before it does.
    #[derive(Debug)]
    pub struct Within<S> {
        #[pin]
        inner: S,
        deadline: Option<Deadline>,
        // Set once the stream had to wait: one that never does costs no timer.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<T, S: futures::Stream<Item = Result<T, Status>>> futures::Stream for Within<S> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let Some(deadline) = *this.deadline else { return this.inner.poll_next(context) };
        // A stream that always has a next item would never meet the timer.
        if !deadline.has_passed() {
            if let Poll::Ready(item) = this.inner.poll_next(context) {
                return Poll::Ready(item);
            }
            let timer = this.timer.get_or_insert_with(|| Box::pin(deadline.timer()));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Some(Err(passed())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt as _;
    use prost::Message as _;
    use tepui_engine::io::{Clock, ManualClock};

    use super::*;
    use crate::admission::{Hold, Streams};
    use crate::api::v2::ResponseParams;
    use crate::catalog::memory_meta::MemoryMeta;
    use crate::catalog::resources::Resources;
    use crate::metrics::rpc::CoreRpcs;

    fn request(timeout: &str) -> Request<()> {
        let headers = [(http::HeaderName::from_static("grpc-timeout"), timeout.parse().unwrap())];
        let deadline = Deadline::of(&headers.into_iter().collect()).unwrap();
        let streams = Arc::new(Streams::new(1 << 20));
        Request::holding((), Hold::new(None, streams.connection(), Some(deadline)))
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        for (text, want) in [
            ("1H", Some(Duration::from_hours(1))),
            ("2M", Some(Duration::from_mins(2))),
            ("3S", Some(Duration::from_secs(3))),
            ("1500m", Some(Duration::from_millis(1_500))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_hours(99_999_999))),
            ("", None),
            ("S", None),
            ("-1S", None),
            ("+1S", None),
            ("1", None),
            ("1x", None),
            ("123456789S", None),
            ("1ä", None),
        ] {
            assert_eq!(parse_timeout(text), want, "{text}");
        }
        assert!(Terms::of(&Request::new(())).deadline.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn work_past_its_deadline_is_dropped() {
        let (alive, dropped) = tokio::sync::oneshot::channel::<()>();
        let call = async move {
            let _alive = alive;
            futures::future::pending::<Result<Response<()>, Status>>().await
        };
        let status = Terms::of(&request("20m")).unary(call).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(dropped.await.is_err());
        let call = async { Ok(Response::new(5)) };
        assert_eq!(Terms::of(&request("20m")).unary(call).await.unwrap().into_inner(), 5);

        let late = request("20m");
        tokio::time::advance(Duration::from_millis(21)).await;
        let call = async { unreachable!("nobody waits for it") };
        let status = Terms::of(&late).unary::<_>(call).await.map(|_: Response<()>| ()).unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_past_its_deadline_ends_with_it_whether_it_waits_or_not() {
        let waiting = futures::stream::iter([Ok(1)]).chain(futures::stream::pending());
        let call = async { Ok(Response::new(waiting)) };
        let stream = Terms::of(&request("20m")).streaming(call).await.unwrap().into_inner();
        let items: Vec<_> = stream.take(2).collect().await;
        assert_eq!(items[0].as_ref().unwrap(), &1);
        assert_eq!(items[1].as_ref().unwrap_err().code(), tonic::Code::DeadlineExceeded);

        let endless = futures::stream::repeat_with(|| Ok(1));
        let call = async { Ok(Response::new(endless)) };
        let mut stream = Terms::of(&request("20m")).streaming(call).await.unwrap().into_inner();
        assert!(stream.next().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_millis(21)).await;
        assert_eq!(stream.next().await.unwrap().unwrap_err().code(), tonic::Code::DeadlineExceeded);
    }

    #[test]
    fn an_answer_says_how_many_milliseconds_it_took() {
        for millis in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1_234] {
            let said = timing(millis * 1_000 + 999);
            assert_eq!(said.to_str().unwrap(), format!("gfet4t7; dur={millis}"));
        }
    }

    #[tokio::test]
    async fn answers_and_errors_say_where_and_how_fast() {
        let clock = Arc::new(ManualClock::new(1));
        let core = Arc::new(CoreRpcs::default());
        let recorder = Recorder::new(core, Arc::clone(&clock) as Arc<dyn Clock>);
        let resources = Resources::open(Arc::<MemoryMeta>::default()).unwrap();
        let instances = Instances::new(Arc::new(resources), Arc::clone(&clock) as _, false);
        let terms = || {
            let request = Request::new(v2::ReadRowsRequest::default());
            Terms::of(&request).with_metrics(&recorder, &instances, &request)
        };
        let slow = terms().unary(async {
            clock.advance_micros(12_345);
            Ok(Response::new(()))
        });
        let slow = slow.await.unwrap();
        let failed = terms().unary(async { Err::<Response<()>, _>(Status::not_found("x")) });
        let failed = failed.await.unwrap_err();
        for (headers, timing) in
            [(slow.metadata(), "gfet4t7; dur=12"), (failed.metadata(), "gfet4t7; dur=0")]
        {
            assert_eq!(headers.get(TIMING_HEADER).unwrap(), timing);
            let location = headers.get_bin(LOCATION_HEADER).unwrap().to_bytes().unwrap();
            let location = ResponseParams::decode(location).unwrap();
            assert_eq!((location.zone_id(), location.cluster_id()), ("local", "tepui"));
        }
    }
}

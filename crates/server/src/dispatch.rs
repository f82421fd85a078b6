//! Which service a request is for: each is asked in turn by a comparison of the path. Reads and writes of rows come far more
//! often than anything else, so their service is asked first. Those that are not ours come last, by the router of the library
//! that they are of, with several boxes and clones for each request.

use std::convert::Infallible;
use std::sync::Arc;

use futures::future::{BoxFuture, Either};
use http_body_util::BodyExt as _;
use hyper::service::Service;
use tepui_bigtable::error::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::admission::ungated::STREAMS;
use crate::admission::{Arrived, Connection, Inbound};
use crate::grpc::{Answer, Reply, no_rpc};
use crate::limits::{HEALTH_WATCHES_MAX, PLACES_RETRY, REFLECTION_STREAMS_MAX};
use crate::status::from_error;

/// A service before others. Cheap to clone: every connection has one.
#[derive(Debug, Clone)]
pub struct Dispatch<S, R> {
    first: S,
    rest: R,
}

impl<S, R> Dispatch<S, R> {
    /// Looks for `first` before the rest.
    pub fn new(first: S, rest: R) -> Self {
        Self { first, rest }
    }
}

/// Whether a path (`/package.Service/Method`) is one of a service's.
fn is_of(path: &str, service: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(service))
        .is_some_and(|method| method.starts_with('/'))
}

impl<S, R, B> Service<http::Request<Arrived<B>>> for Dispatch<S, R>
where
    S: Service<http::Request<Arrived<B>>, Response = http::Response<Reply>, Error = Infallible>
        + NamedService,
    R: Service<http::Request<Arrived<B>>, Response = http::Response<Reply>, Error = Infallible>,
{
    type Response = http::Response<Reply>;
    type Error = Infallible;
    type Future = Either<S::Future, R::Future>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        if is_of(request.uri().path(), S::NAME) {
            Either::Left(self.first.call(request))
        } else {
            Either::Right(self.rest.call(request))
        }
    }
}

/// Services of tonic's. What names none of them either, or no RPC of theirs, is answered UNIMPLEMENTED.
#[derive(Debug, Clone)]
pub struct Others {
    routes: Routes,
    places: Places,
}

/// The path of requests whose answers are streams without an end.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// How many streams of reflection there may be, and of health.
#[derive(Debug, Clone)]
pub struct Places {
    reflection: Arc<Semaphore>,
    /// Watches beyond the one that each connection may have.
    watches: Arc<Semaphore>,
}

/// A stream's place, until it is dropped.
enum Place {
    /// One of those that all share.
    Shared { _permit: OwnedSemaphorePermit },
    /// That of the only watch of its connection.
    Own(Arc<Connection>),
}

impl Default for Places {
    fn default() -> Self {
        Self {
            reflection: Arc::new(Semaphore::new(REFLECTION_STREAMS_MAX)),
            watches: Arc::new(Semaphore::new(HEALTH_WATCHES_MAX)),
        }
    }
}

impl Places {
    /// A place for a request to a path, where it needs one.
    fn of(&self, path: &str, connection: &Arc<Connection>) -> Result<Option<Place>, Status> {
        let (places, what) = if path.starts_with(STREAMS) {
            (&self.reflection, "too many streams of reflection are open")
        } else if path != WATCH {
            return Ok(None);
        } else if connection.begin_watch() {
            return Ok(Some(Place::Own(Arc::clone(connection))));
        } else {
            (
                &self.watches,
                "too many watches of health are open; one for each connection is enough",
            )
        };
        match Arc::clone(places).try_acquire_owned() {
            Ok(permit) => Ok(Some(Place::Shared { _permit: permit })),
            Err(_) => Err(from_error(&Error::overloaded(what, PLACES_RETRY))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Own(connection) = self {
            connection.end_watch();
        }
    }
}

impl Others {
    /// Serves these.
    pub fn new(routes: Routes) -> Self {
        Self { routes: routes.prepare(), places: Places::default() }
    }

    /// The same with places that others share.
    pub fn with_places(self, places: &Places) -> Self {
        Self { places: places.clone(), ..self }
    }
}

impl<B: Inbound> Service<http::Request<Arrived<B>>> for Others {
    type Response = http::Response<Reply>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answer>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let place = match self.places.of(&path, &request.body().connection) {
            Ok(place) => place,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.into_http()))),
        };
        let request = request.map(|arrived| Body::new(arrived.body));
        // A router is always ready.
        let answer = tonic::codegen::Service::call(&mut self.routes.clone(), request);
        Box::pin(async move {
            let answer = answer.await?;
            // Until all of it was taken, or nobody waits for it, it has its place.
            let answer = answer.map(|body| match place {
                Some(place) => Body::new(body.map_frame(move |frame| {
                    let _held = &place;
                    frame
                })),
                None => body,
            });
            // The library does so without a word.
            let is_unknown = Status::from_header_map(answer.headers())
                .is_some_and(|s| s.code() == Code::Unimplemented && s.message().is_empty());
            if is_unknown { no_rpc(&path) } else { Ok(answer.map(Reply::Other)) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures::future::join_all;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::watch;
    use tokio::time::Instant;

    use crate::admission::Streams;
    use crate::admission::ungated::Ungated;
    use crate::limits::REFLECTION_QUIET_MAX;
    use crate::server::DESCRIPTORS;

    #[tokio::test(start_paused = true)]
    async fn streams_of_reflection_that_are_quiet_make_room_for_others() {
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS);
        let routes = Routes::new(reflection.build_v1().unwrap());
        let (_drain, draining) = watch::channel(false);
        let ungated = Ungated::new(Others::new(routes), draining);
        // Streams that ask nothing, and have no end of their own.
        let ask = || {
            let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Status>>());
            let connection = Arc::new(Streams::new(1 << 20)).connection();
            let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
            let request = http::Request::post(path).header("content-type", "application/grpc");
            ungated.call(request.body(Arrived { body, connection }).unwrap())
        };
        let is_refused = |answer: &http::Response<Reply>| {
            Status::from_header_map(answer.headers())
                .is_some_and(|status| status.code() == Code::ResourceExhausted)
        };
        let began = Instant::now();
        let kept = join_all((0..REFLECTION_STREAMS_MAX).map(|_| ask())).await;
        assert!(!kept.iter().flatten().any(is_refused));
        assert!(is_refused(&ask().await.unwrap()));
        assert!(began.elapsed() < REFLECTION_QUIET_MAX);
        let ends = kept.into_iter().map(|answer| async {
            let Ok(answer) = answer;
            let Reply::Other(body) = answer.into_body() else { panic!() };
            body.collect().await.unwrap().trailers().and_then(Status::from_header_map)
        });
        let ends = tokio::time::timeout(2 * REFLECTION_QUIET_MAX, join_all(ends)).await;
        for end in ends.unwrap() {
            assert_eq!(end.unwrap().code(), Code::Ok);
        }
        assert!(began.elapsed() >= REFLECTION_QUIET_MAX);
        assert!(!is_refused(&ask().await.unwrap()));
    }

    #[test]
    fn a_path_is_of_the_service_that_it_names_in_full() {
        let service = "google.bigtable.v2.Bigtable";
        assert!(is_of("/google.bigtable.v2.Bigtable/ReadRows", service));
        for other in [
            "",
            "/",
            "google.bigtable.v2.Bigtable/ReadRows",
            "/google.bigtable.v2.Bigtable",
            "/google.bigtable.v2.BigtableX/ReadRows",
            "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable",
        ] {
            assert!(!is_of(other, service), "{other}");
        }
    }
}

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
use crate::admission::{Arrived, Inbound};
use crate::grpc::{Answer, Reply, no_rpc};
use crate::limits::{REFLECTION_RETRY, REFLECTION_STREAMS_MAX};
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

/// How many streams of reflection there may be.
#[derive(Debug, Clone)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(REFLECTION_STREAMS_MAX)))
    }
}

impl Places {
    /// A place for a request to a path, where it needs one.
    fn of(&self, path: &str) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if !path.starts_with(STREAMS) {
            return Ok(None);
        }
        Arc::clone(&self.0).try_acquire_owned().map(Some).map_err(|_| {
            let what = "too many streams of reflection are open";
            from_error(&Error::overloaded(what, REFLECTION_RETRY))
        })
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
        let place = match self.places.of(&path) {
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

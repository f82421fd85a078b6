//! Which service a request is for: each is asked in turn by a comparison of the path. Reads and writes of rows come far more
//! often than anything else, so their service is asked first. Those that are not ours come last, by the router of the library
//! that they are of, with several boxes and clones for each request.

use std::convert::Infallible;

use futures::future::{BoxFuture, Either};
use hyper::service::Service;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::admission::{Arrived, Inbound};
use crate::grpc::{Answer, Reply, no_rpc};

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
pub struct Others(Routes);

impl Others {
    /// Serves these.
    pub fn new(routes: Routes) -> Self {
        Self(routes.prepare())
    }
}

impl<B: Inbound> Service<http::Request<Arrived<B>>> for Others {
    type Response = http::Response<Reply>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answer>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let request = request.map(|arrived| Body::new(arrived.body));
        // A router is always ready.
        let answer = tonic::codegen::Service::call(&mut self.0.clone(), request);
        Box::pin(async move {
            let answer = answer.await?;
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

//! Which service a request is for. Reads and writes of rows come far more often than anything else, so their
//! service is looked for first, by a comparison of the path; tonic's router, which has several boxes and clones for
//! each request, has the others.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::Either;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;

/// All services of a core. Cheap to clone: every connection has one.
#[derive(Debug, Clone)]
pub struct Dispatch<S> {
    first: S,
    rest: Routes,
}

impl<S> Dispatch<S> {
    /// Looks for `first` before all others.
    pub fn new(first: S, rest: Routes) -> Self {
        Self { first, rest: rest.prepare() }
    }
}

/// Whether a path (`/package.Service/Method`) is one of a service's.
fn is_of(path: &str, service: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(service))
        .is_some_and(|method| method.starts_with('/'))
}

impl<S> Service<http::Request<Body>> for Dispatch<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, <Routes as Service<http::Request<Body>>>::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self.first.poll_ready(context) {
            Poll::Ready(Ok(())) => {
                Service::<http::Request<Body>>::poll_ready(&mut self.rest, context)
            }
            other => other,
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if is_of(request.uri().path(), S::NAME) {
            Either::Left(self.first.call(request))
        } else {
            Either::Right(self.rest.call(request))
        }
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

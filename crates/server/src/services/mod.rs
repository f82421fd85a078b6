//! The gRPC services. Their dispatch is generated from `crate::rpcs`: an RPC that is
//! supported calls the method `on_<rpc>` of its service, any other answers UNIMPLEMENTED.

mod authorized_views;
mod backups;
mod bundles;
mod changes;
mod data;
mod iam;
mod instances;
pub(crate) mod operations;
mod tables;
pub(crate) mod views;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use prost::Message;
use tepui_bigtable::error::{Code, Error, Result};
use tonic::Status;

use crate::catalog::Catalog;
use crate::catalog::host::EngineHost;
use crate::limits::{PAGE_BYTES_MAX, PAGE_SIZE_DEFAULT};
use crate::{status, workers};

pub use data::DataService;
pub use iam::Iam;
pub use instances::InstanceAdminService;
pub use operations::OperationsService;
pub use tables::TableAdminService;

/// The catalog as the services use it.
pub type Tables = Catalog<EngineHost>;

/// The dispatch of each service.
mod generated {
    use futures::TryFutureExt as _;

    include!(concat!(env!("OUT_DIR"), "/dispatch.rs"));
}

/// Runs work that blocks and may wait for what others do (commits to the meta store, creation of tablets) off the core's runtime, so that
/// the core's other requests go on. Work that has not begun when nobody waits for it any more is dropped, and its request with
/// it: what is deleted long after a client gave up might be what it has made since. Work that has begun goes on to its end.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    blocking_asked(move |_| work()).await
}

/// As [`blocking`], for work that waits for its turn among others after it has begun, and asks then whether it is still wanted.
async fn blocking_asked<T: Send + 'static>(
    work: impl FnOnce(&Asked) -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    blocking_on(work, workers::run_in_turn).await
}

/// As [`blocking`], for what waits for nobody, and of which other limits bound how much there is.
async fn blocking_alone<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    blocking_on(move |_: &Asked| work(), workers::run).await
}

async fn blocking_on<T: Send + 'static, D: Future<Output = Option<Result<T>>>>(
    work: impl FnOnce(&Asked) -> Result<T> + Send + 'static,
    run: impl FnOnce(Box<dyn FnOnce() -> Result<T> + Send>) -> D,
) -> Result<T, Status> {
    // Whoever waits has the work, and whoever begins it takes it.
    let waiting = Arc::new(Mutex::new(Some(work)));
    let queued = Arc::downgrade(&waiting);
    let done = run(Box::new(move || {
        let take = |work: Arc<Mutex<Option<_>>>| {
            work.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let work = queued.upgrade().and_then(take).ok_or_else(given_up)?;
        work(&Asked(queued))
    }))
    .await;
    drop(waiting);
    match done {
        Some(done) => done.map_err(|error| status::from_error(&error)),
        None => Err(status::panicked()),
    }
}

/// Whether somebody waits for a request's work.
#[derive(Clone)]
struct Asked(Weak<dyn Send + Sync>);

impl Asked {
    /// `CANCELLED` where nobody does.
    fn check(&self) -> Result<()> {
        if self.0.strong_count() == 0 { Err(given_up()) } else { Ok(()) }
    }
}

fn given_up() -> Error {
    Error::new(Code::Cancelled, "the client is gone")
}

/// The number of results of one page; an unset size is the largest.
fn page_size(requested: i32) -> Result<usize> {
    match usize::try_from(requested) {
        Ok(0) => Ok(PAGE_SIZE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_SIZE_DEFAULT)),
        Err(_) => Err(Error::invalid_argument("page_size must not be negative")),
    }
}

/// The first messages of a list, as many as fit on a page of `size`, and whether there are more: no more than
/// [`PAGE_BYTES_MAX`], but one at least, so that pages come to an end.
pub(crate) fn page<T: Message>(all: impl Iterator<Item = T>, size: usize) -> (Vec<T>, bool) {
    let mut page = Vec::new();
    let mut bytes = 0;
    for message in all {
        bytes += message.encoded_len();
        if page.len() >= size || (bytes > PAGE_BYTES_MAX && !page.is_empty()) {
            return (page, true);
        }
        page.push(message);
    }
    (page, false)
}

/// An error for arguments.
fn invalid(message: impl Into<String>) -> Status {
    status::from_error(&Error::new(Code::InvalidArgument, message))
}

/// Microseconds since 1970 as a protobuf timestamp.
pub(crate) fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: micros.rem_euclid(1_000_000) as i32 * 1_000,
    }
}

#[cfg(test)]
mod tests {
    use tepui_engine::io::ThreadSpawner;

    use super::*;

    #[test]
    fn pages_are_bounded_and_negative_sizes_refused() {
        assert_eq!(page_size(0).unwrap(), PAGE_SIZE_DEFAULT);
        assert_eq!(page_size(7).unwrap(), 7);
        assert_eq!(page_size(i32::MAX).unwrap(), PAGE_SIZE_DEFAULT);
        assert_eq!(page_size(-1).unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn a_page_ends_before_it_is_too_large_for_a_message_and_is_never_empty() {
        let of = |mib: &[usize]| {
            let texts = mib.iter().map(|mib| "x".repeat(mib << 20)).collect::<Vec<String>>();
            let (page, has_more) = page(texts.into_iter(), 3);
            (page.len(), has_more)
        };
        assert_eq!(of(&[]), (0, false));
        assert_eq!(of(&[0, 0, 0]), (3, false));
        assert_eq!(of(&[0, 0, 0, 0]), (3, true));
        assert_eq!(of(&[1, 1, 1]), (2, true), "with their lengths they are more than the limit");
        assert_eq!(of(&[5]), (1, false));
        assert_eq!(of(&[5, 0]), (1, true));
    }

    /// One thread for what blocks.
    pub(super) fn one_worker() -> workers::Lent {
        let workers = workers::Workers::start(Arc::new(ThreadSpawner), "tepui-work", 1);
        workers::lend(Arc::new(workers.unwrap()))
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_does_not_begin() {
        let _lent = one_worker();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let saying = |what| {
            let say = say.clone();
            move || {
                say.send(what).unwrap();
                Ok(())
            }
        };
        let first = workers::run(move || may_go.recv());
        let given_up = blocking(saying("given up"));
        let (mut first, mut given_up) = (Box::pin(first), Box::pin(given_up));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut given_up).is_pending());
        drop(given_up);
        let wanted = blocking(saying("wanted"));
        drop(go);
        let (first, wanted) = tokio::join!(first, wanted);
        assert!(first.is_some());
        wanted.unwrap();
        assert_eq!(said.recv().await, Some("wanted"));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_lets_go_of_its_request_before_its_turn() {
        let _lent = one_worker();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(workers::run(move || may_go.recv()));
        assert!(futures::poll!(&mut first).is_pending());
        let request = Arc::new(());
        let kept = Arc::downgrade(&request);
        let mut given_up = Box::pin(blocking(move || {
            drop(request);
            Ok(())
        }));
        assert!(futures::poll!(&mut given_up).is_pending());
        drop(given_up);
        assert_eq!(kept.strong_count(), 0);
        drop(go);
        assert!(first.await.is_some());
    }

    #[tokio::test]
    async fn work_that_waits_for_a_lock_learns_that_nobody_waits_for_it() {
        let _lent = one_worker();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
        let work = move |asked: &Asked| {
            say.send(asked.check()).unwrap();
            let _ = may_go.recv();
            say.send(asked.check()).unwrap();
            Ok(())
        };
        let mut given_up = Box::pin(blocking_asked(work));
        assert!(futures::poll!(&mut given_up).is_pending());
        assert_eq!(said.recv().await, Some(Ok(())));
        drop(given_up);
        drop(go);
        let error = said.recv().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), Code::Cancelled);
    }

    #[test]
    fn timestamps_keep_microseconds() {
        let stamp = timestamp(1_500_000_000_123_456);
        assert_eq!((stamp.seconds, stamp.nanos), (1_500_000_000, 123_456_000));
    }
}

//! The engine's seams as a benchmark wants them: reads counted, reads and syncs delayed where it asks for that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tepui_engine::io::{Attached, Env, FaultFiles, IoEngine, IoMode, ReadRequest};

use super::slow::{Slow, SlowFiles, SlowIo};
use crate::clock;
use crate::error::Result;

/// The seams of this machine, with counted reads. `slow_sync` is what each sync of a file takes longer, as on the
/// disk of a cloud.
pub(super) fn env(
    mode: IoMode,
    slow: Option<Slow>,
    slow_sync: Option<Duration>,
) -> Result<(Env, Arc<CountedIo>)> {
    let mut env = Env::local(mode)?;
    if let Some(delay) = slow_sync {
        let files = FaultFiles::new(env.files);
        files.before_sync(Some(Arc::new(move |_| clock::pause(delay))));
        env.files = Arc::new(files);
    }
    if let Some(slow) = slow {
        env.files = Arc::new(SlowFiles::new(env.files));
        env.io = Arc::new(SlowIo::new(env.io, slow));
    }
    let counted = Arc::new(CountedIo::new(env.io));
    env.io = Arc::clone(&counted) as Arc<dyn IoEngine>;
    Ok((env, counted))
}

/// Counts what goes through the I/O engine: the blocks that reads wait for. What compactions read does not
/// come this way, so this tells the two apart where the device's counters cannot.
pub struct CountedIo {
    inner: Arc<dyn IoEngine>,
    batches: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl CountedIo {
    fn new(inner: Arc<dyn IoEngine>) -> Self {
        let zero = || AtomicU64::new(0);
        Self { inner, batches: zero(), reads: zero(), bytes: zero() }
    }

    /// Batches, reads and bytes so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(&self.batches), get(&self.reads), get(&self.bytes))
    }
}

impl fmt::Debug for CountedIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedIo").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl IoEngine for CountedIo {
    fn read_batch(
        &self,
        requests: Vec<ReadRequest>,
    ) -> BoxFuture<'static, Vec<tepui_engine::Result<Bytes>>> {
        let bytes: usize = requests.iter().map(|r| r.len).sum();
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(requests.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner.read_batch(requests)
    }

    fn attach(&self) -> tepui_engine::Result<Attached> {
        self.inner.attach()
    }

    fn attach_blocking(&self) -> tepui_engine::Result<Attached> {
        self.inner.attach_blocking()
    }
}

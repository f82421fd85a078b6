//! A server in this process, as `tepui serve` runs one: the same start, the same threads, a socket between it and
//! its clients. In this process its device can be made slower, and its threads can be told from the clients'.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tepui_bench::clock::pause;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Error, Progress, Result};
use tepui_engine::io::{Env, FaultFiles, FaultOp, IoMode};
use tepui_server::config::Config;
use tepui_server::server::{self, Running};

use crate::threads::{self, Used};

/// What the names of a server's threads start with.
pub const THREADS: &str = "tepui-";
/// How long background work must have had nothing to do, in looks.
const SETTLED_LOOKS: u32 = 5;
const SETTLED_LOOK: Duration = Duration::from_millis(100);

/// A server that is running; it ends when it is dropped.
pub struct Host {
    /// None only once it is stopped.
    running: Option<Running>,
    slow: Option<FaultFiles>,
    cores: usize,
}

/// How a server is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// What each sync takes longer, as on a device that is not memory in disguise.
    pub sync_delay: Option<Duration>,
}

impl Settings {
    /// A block cache of this many bytes, on the device as it is.
    pub fn with_cache(cache_bytes: u64) -> Self {
        Self { cache_bytes, sync_delay: None }
    }
}

impl Host {
    /// Starts a server over a directory.
    pub fn start(dir: &Path, settings: Settings) -> Result<Self> {
        let mut config = Config {
            data: dir.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            io: IoMode::Direct,
            ..Config::default()
        };
        config.engine.block_cache_bytes = settings.cache_bytes;
        // A cache of everything may be more than the default budget leaves for one.
        config.engine.memory_bytes =
            config.engine.memory_bytes.max(config.engine.memory_bytes_min());
        let mut env = Env::local(config.io)?;
        let slow = settings.sync_delay.map(|delay| {
            let slow = FaultFiles::new(Arc::clone(&env.files));
            slow.before_sync(Some(Arc::new(move |_: &Path| pause(delay))));
            slow
        });
        if let Some(slow) = &slow {
            env.files = Arc::new(slow.clone());
        }
        let running = server::start(env, &config).map_err(|e| Error::failed(e.message()))?;
        Ok(Self { running: Some(running), slow, cores: config.core_count() })
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("only what ends it takes it")
    }

    /// The cores that it serves on: all of the machine.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::parse(&self.running().address().to_string())
    }

    /// What its threads have used so far, and the syncs of its files, which are counted where they are delayed.
    pub fn used(&self) -> Used {
        let syncs = self.slow.as_ref().map_or(0, |slow| slow.count(FaultOp::Sync));
        Used { syncs, ..threads::used(THREADS) }
    }

    /// Waits until background work has nothing to do.
    pub fn settle(&self, progress: &Progress) -> Result<()> {
        let mut settled = 0;
        while settled < SETTLED_LOOKS {
            progress.check()?;
            settled = if self.running().engine().is_settled() { settled + 1 } else { 0 };
            pause(SETTLED_LOOK);
        }
        Ok(())
    }

    /// Compacts all that is on disk into the last level.
    pub fn compact(&self, progress: &Progress) -> Result<()> {
        self.settle(progress)?;
        Ok(self.running().engine().compact_fully()?)
    }

    /// Stops it in order.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let stopped = self.running.take().map_or(Ok(()), Running::stop);
        stopped.map_err(|e| Error::failed(e.message()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its data can be removed then. Who wants to know of a failure stops it first.
        let _ = self.end();
    }
}

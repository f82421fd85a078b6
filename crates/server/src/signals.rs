//! SIGTERM and SIGINT: the first stops the server in order, a second ends the process at once. While the server starts there is
//! nothing to stop in order, and the first ends the process.

use std::sync::Arc;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::ThreadSpawner;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::server::Running;
use crate::workers::Workers;
use crate::{logging, runtime};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

/// The same of a process that was told to end by SIGTERM.
const EXIT_TERMINATED: i32 = 143;

/// The process's signals, from now on handled here.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    /// Who starts the server and stops it.
    workers: Workers,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over.
    pub fn take() -> Result<Self> {
        let failed = |error| Error::internal(format!("cannot handle signals: {error}"));
        let runtime = runtime::build().map_err(failed)?;
        let guard = runtime.enter();
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        drop(guard);
        let workers = Workers::start(Arc::new(ThreadSpawner), "tepui-main", 1)?;
        Ok(Self { runtime, workers, terminate, interrupt })
    }

    /// Blocks until `start` is done, which has a thread of its own. A signal meanwhile ends the process at once: a start may
    /// replay a log for long, and leaves nothing that a crash would not.
    pub fn exit_during<T: Send + 'static>(
        &mut self,
        start: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let started = self.runtime.block_on(async {
            let start = self.workers.run(start);
            tokio::select! {
                // A signal that comes when the server has started stops that in order.
                biased;
                started = start => started,
                code = either(&mut self.terminate, &mut self.interrupt) => {
                    tracing::warn!("a signal during the start: ending at once; nothing is lost");
                    exit(code)
                }
            }
        });
        started.ok_or_else(|| Error::internal("the start panicked; what it said is on stderr"))?
    }

    /// Blocks until a signal, then stops the server and returns what came of it. Stops it also where one of its threads has ended by
    /// itself: a process that serves nothing, or a part of its clients, is to be started anew; that is an error.
    pub fn stop_on_first_exit_on_second(mut self, running: Running) -> Result<()> {
        let runtime = self.runtime;
        let stopped = runtime.block_on(async {
            let failed = tokio::select! {
                _ = either(&mut self.terminate, &mut self.interrupt) => None,
                () = runtime::given(running.ended()) => {
                    tracing::error!("a thread of the server has ended: stopping");
                    Some(Error::internal("a thread of the server has ended; what it said is in the log"))
                }
            };
            let stop = self.workers.run(move || running.stop());
            tokio::select! {
                stopped = stop => (failed, stopped),
                _ = either(&mut self.terminate, &mut self.interrupt) => {
                    tracing::warn!("second signal: ending at once; the log keeps what was acknowledged");
                    exit(EXIT_INTERRUPTED)
                }
            }
        });
        logging::flush();
        let (failed, stopped) = stopped;
        stopped
            .ok_or_else(|| Error::internal("the stop panicked; what it said is on stderr"))??;
        failed.map_or(Ok(()), Err)
    }
}

/// Ends the process, whether or not somebody takes what was logged.
fn exit(code: i32) -> ! {
    logging::flush();
    std::process::exit(code)
}

/// Resolves at a signal: the exit code of a process that it ends.
async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => EXIT_TERMINATED,
        _ = interrupt.recv() => EXIT_INTERRUPTED,
    }
}

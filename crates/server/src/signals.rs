//! What signals do. SIGTERM and SIGINT: the first stops the server in order, a second ends the process at once. While the server starts
//! there is nothing to stop in order, and the first ends the process. SIGHUP is such a signal where the standard input is a terminal, which
//! was closed then. Where it is none, somebody wants settings to be read again, and hears that they are not; so does who sends SIGUSR1 or
//! SIGUSR2. SIGXFSZ is for a write beyond the process's limit on the size of files, which fails and is told of like a full disk.
//!
//! None of these finds its default handler, which would end the process without a word. SIGQUIT does: it is for a dump of memory.

use std::io::IsTerminal as _;
use std::sync::Arc;

use rustix::process::Signal as Number;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::ThreadSpawner;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::limits::SAME_SIGNAL;
use crate::metrics::process;
use crate::server::Running;
use crate::workers::Workers;
use crate::{logging, runtime};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

/// What tells the server to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP, of a terminal.
    HangUp,
}

impl Told {
    /// The exit code of a process that it ends at once.
    fn exit_code(self) -> i32 {
        match self {
            Self::Terminate => 143,
            Self::Interrupt => EXIT_INTERRUPTED,
            Self::HangUp => 129,
        }
    }
}

/// Signals as they come.
#[derive(Debug)]
struct Incoming {
    terminate: Signal,
    interrupt: Signal,
    /// None where it is ignored, as under `nohup`, and stays so.
    hang_up: Option<Signal>,
    user: [Signal; 2],
    /// Whether the standard input was a terminal at the start. One that is closed is none any more.
    is_of_terminal: bool,
}

impl Incoming {
    /// Takes them over. Within a runtime.
    fn take() -> std::io::Result<Self> {
        let of = |number: Number| signal(SignalKind::from_raw(number.as_raw()));
        // It is enough that there is a handler, which is never removed.
        drop(of(Number::XFSZ)?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if hang_up_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) },
            user: [signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?],
            is_of_terminal: std::io::stdin().is_terminal(),
        })
    }

    /// Resolves when one comes that tells the server to stop. Others are told of.
    async fn stop(&mut self) -> Told {
        let Self { terminate, interrupt, hang_up, user: [one, two], is_of_terminal } = self;
        loop {
            let hang_up = async {
                match hang_up {
                    Some(signal) => drop(signal.recv().await),
                    None => std::future::pending().await,
                }
            };
            let name = tokio::select! {
                _ = terminate.recv() => return Told::Terminate,
                _ = interrupt.recv() => return Told::Interrupt,
                () = hang_up => {
                    if *is_of_terminal {
                        return Told::HangUp;
                    }
                    tracing::warn!("SIGHUP: there is nothing to reload; restart the server to change its settings");
                    continue;
                }
                _ = one.recv() => "SIGUSR1",
                _ = two.recv() => "SIGUSR2",
            };
            tracing::warn!("{name}: it means nothing to this server, which goes on");
        }
    }

    /// Resolves at a further signal to stop after the first; where the server stops by itself, that is the first to come. One like it that
    /// comes at once is the same again.
    async fn stop_again(&mut self, first: Option<Told>) {
        let first = match first {
            Some(first) => first,
            None => self.stop().await,
        };
        let begun = Instant::now();
        loop {
            let told = self.stop().await;
            if told != first || begun.elapsed() >= SAME_SIGNAL {
                return;
            }
        }
    }
}

/// Whether who started the process has it ignore SIGHUP. Where the system does not say so, the signal is left as it is.
fn hang_up_is_ignored() -> bool {
    process::ignores_signal(Number::HUP.as_raw()).unwrap_or(true)
}

/// The process's signals, from now on handled here.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    /// Who starts the server and stops it.
    workers: Workers,
    incoming: Incoming,
}

impl Signals {
    /// Takes the signals over.
    pub fn take() -> Result<Self> {
        let failed = |error| Error::internal(format!("cannot handle signals: {error}"));
        let runtime = runtime::build().map_err(failed)?;
        let guard = runtime.enter();
        let incoming = Incoming::take().map_err(failed)?;
        drop(guard);
        let workers = Workers::start(Arc::new(ThreadSpawner), "tepui-main", 1)?;
        Ok(Self { runtime, workers, incoming })
    }

    /// Blocks until `start` is done, which has a thread of its own. A signal to stop meanwhile ends the process at once: a start may
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
                told = self.incoming.stop() => {
                    tracing::warn!("a signal during the start: ending at once; nothing is lost");
                    exit(told.exit_code())
                }
            }
        });
        started.ok_or_else(|| Error::internal("the start panicked; what it said is on stderr"))?
    }

    /// Blocks until a signal to stop, then stops the server and returns what came of it. Stops it also where one of its threads has ended by
    /// itself: a process that serves nothing, or a part of its clients, is to be started anew; that is an error.
    pub fn stop_on_first_exit_on_second(mut self, running: Running) -> Result<()> {
        let runtime = self.runtime;
        let stopped = runtime.block_on(async {
            let (first, failed) = tokio::select! {
                told = self.incoming.stop() => (Some(told), None),
                () = runtime::given(running.ended()) => {
                    tracing::error!("a thread of the server has ended: stopping");
                    let text = "a thread of the server has ended; what it said is in the log";
                    (None, Some(Error::internal(text)))
                }
            };
            let stop = self.workers.run(move || running.stop());
            tokio::select! {
                stopped = stop => (failed, stopped),
                () = self.incoming.stop_again(first) => {
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

//! Ctrl-C and SIGTERM: the first ends a command in order, with what it has measured or written; a second ends the
//! process at once.

use std::pin::pin;

use futures::future::select;
use tepui_engine::io::{Spawner as _, ThreadSpawner};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{Error, Result};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Lets the first signal call `stop` from now on.
pub fn on_signal(stop: impl Fn() + Send + 'static) -> Result<()> {
    let failed = |error: std::io::Error| Error::failed(format!("cannot handle signals: {error}"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    drop(guard);
    let listen = move || {
        runtime.block_on(async {
            let mut signals = 0;
            loop {
                select(pin!(interrupt.recv()), pin!(terminate.recv())).await;
                signals += 1;
                if signals > 1 {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                stop();
            }
        });
    };
    // It listens until the process ends; nobody waits for it.
    ThreadSpawner.spawn("signals", Box::new(listen))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn the_first_signal_asks_to_stop_and_ends_nothing_by_itself() {
        let (tell, told) = mpsc::channel();
        on_signal(move || tell.send(()).unwrap()).unwrap();
        kill_process(getpid(), Signal::INT).unwrap();
        told.recv_timeout(Duration::from_mins(1)).unwrap();
    }
}

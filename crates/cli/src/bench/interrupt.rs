//! Ctrl-C and SIGTERM: the first ends a benchmark in order, with what it has measured; a second ends the
//! process at once.

use tepui_bench::{Error, Progress, Result};
use tepui_engine::io::{Spawner as _, ThreadSpawner};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

/// Lets signals stop `progress` from now on.
pub fn stop_on_signal(progress: &Progress) -> Result<()> {
    let failed = |error| Error::failed(format!("cannot handle signals: {error}"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    drop(guard);
    let progress = progress.clone();
    let listen = move || {
        runtime.block_on(async {
            let mut signals = 0;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                signals += 1;
                if signals > 1 {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                progress.stop();
            }
        });
    };
    // It listens until the process ends; nobody waits for it.
    drop(ThreadSpawner.spawn("bench-signals", Box::new(listen))?);
    Ok(())
}

//! Ctrl-C and SIGTERM: the first ends a command in order, with what it has measured or written; a second ends the
//! process at once.

use tepui_engine::io::{Spawner as _, ThreadSpawner};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Lets the first signal call `stop` from now on.
pub fn on_signal(stop: impl Fn() + Send + 'static) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot handle signals: {error}");
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
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                signals += 1;
                if signals > 1 {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                stop();
            }
        });
    };
    // It listens until the process ends; nobody waits for it.
    let spawned = ThreadSpawner.spawn("signals", Box::new(listen));
    spawned.map(drop).map_err(|error| error.to_string())
}

//! Ctrl-C and SIGTERM: the first ends a command in order, with what it has measured or written; a second ends the
//! process at once. The same one again at once is no second one, as for the server.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use tepui_engine::io::{Spawner as _, ThreadSpawner};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::error::{Error, Result};

/// The exit code of a process that was interrupted: 128 and SIGINT's number, as shells have it.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Signals that are equal and come within so long of the first are one: `timeout` sends its signal to the process and then to the
/// group that the process is in. Longer, and somebody who wants an end at once has to wait for it.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Interrupt,
    Terminate,
}

/// What is to be done then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Stop,
    Nothing,
    Exit,
}

/// What a signal asks for; `first` is the one that came before all others.
fn asks(first: &mut Option<(Told, Instant)>, told: Told, now: Instant) -> Asks {
    match *first {
        None => {
            *first = Some((told, now));
            Asks::Stop
        }
        Some((same, at)) if same == told && now.duration_since(at) < SAME_SIGNAL => Asks::Nothing,
        Some(_) => Asks::Exit,
    }
}

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
            let mut first = None;
            loop {
                let told = match select(pin!(interrupt.recv()), pin!(terminate.recv())).await {
                    Either::Left(_) => Told::Interrupt,
                    Either::Right(_) => Told::Terminate,
                };
                match asks(&mut first, told, Instant::now()) {
                    Asks::Stop => stop(),
                    Asks::Nothing => {}
                    Asks::Exit => std::process::exit(EXIT_INTERRUPTED),
                }
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

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn the_first_signal_asks_to_stop_and_ends_nothing_by_itself() {
        let (tell, told) = mpsc::channel();
        on_signal(move || tell.send(()).unwrap()).unwrap();
        kill_process(getpid(), Signal::INT).unwrap();
        told.recv_timeout(Duration::from_mins(1)).unwrap();
    }

    #[test]
    fn the_same_signal_again_at_once_is_one_and_another_or_a_later_one_ends_the_process() {
        let begun = Instant::now();
        let all = |later: &[(Told, u64)]| -> Vec<Asks> {
            let mut first = None;
            let told = [(Told::Terminate, 0)].iter().chain(later).copied().collect::<Vec<_>>();
            let after = |millis| begun + Duration::from_millis(millis);
            told.into_iter().map(|(told, at)| asks(&mut first, told, after(at))).collect()
        };
        for (later, last) in [
            (&[(Told::Terminate, 1)][..], Asks::Nothing),
            (&[(Told::Terminate, 1), (Told::Terminate, 499)], Asks::Nothing),
            (&[(Told::Terminate, 1), (Told::Terminate, 500)], Asks::Exit),
            (&[(Told::Interrupt, 1)], Asks::Exit),
        ] {
            let asked = all(later);
            assert_eq!((asked[0], *asked.last().unwrap()), (Asks::Stop, last), "{later:?}");
        }
    }
}

//! `tepui serve`: runs a server until it is told to stop.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use tepui_bigtable::error::Result;
use tepui_engine::io::{Env, Spawner as _, ThreadSpawner};
use tepui_server::{logging, open_files, server, signals};

use crate::config;

/// A budget of memory from which on the allocator may use huge pages. It asks the kernel for pages of 2 MiB, and what it gives
/// back of one is in memory again as a whole at the next touch: some 50 MiB that no part of the budget counts. Reads of a large
/// cache are an eighth cheaper with them; in a small budget the memory is worth more (entry 70 of docs/decisions.md).
const HUGE_PAGES_FROM_BYTES: u64 = 2 << 30;

/// The flags of `tepui serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory [default: ./tepui-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:8086]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A TOML file; `tepui config check --explain` shows its keys [env: TEPUI_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command: returns once the server has stopped in order.
pub fn run(args: &Args) -> Result<()> {
    let mut flags = Vec::new();
    if let Some(data) = &args.data {
        flags.push(("data", "--data", data.clone()));
    }
    if let Some(listen) = &args.listen {
        flags.push(("listen", "--listen", listen.clone()));
    }
    let effective = config::load(args.config.as_ref(), flags)?;
    logging::init(effective.config.log_format, &effective.config.log_level)?;
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    open_files::raise_and_tell();
    // Takes memory for buffers, which stays in huge pages if the system has any at this moment: it is little.
    let env = Env::local(effective.config.io)?;
    if effective.config.budget.total_bytes < HUGE_PAGES_FROM_BYTES {
        without_huge_pages();
    }
    // Taken before there is anything to stop, so that no signal finds the default handler: the first process of a container
    // would not even end by that.
    let mut signals = signals::Signals::take()?;
    let config = effective.config;
    let data = config.data.clone();
    let running = signals.exit_during(move || server::start(env, &config))?;
    tracing::info!(address = %running.address(), data = %data.display(), "serving");
    if let Some(address) = running.metrics_address() {
        tracing::info!(%address, "serving metrics");
    }
    announce(running.address());
    signals.stop_on_first_exit_on_second(running)
}

/// Keeps this process from getting huge pages from now on. A kernel that has no such switch has none to keep from.
fn without_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages cannot be switched off");
    }
}

/// Says on stdout that the server is ready, for people and for scripts that wait for it. On a thread of its own: nobody may be left to
/// take it, or it may be left there for long, and the server serves all the same.
fn announce(address: SocketAddr) {
    let say = move || {
        // What was logged before is to be found by who reads this; a log that nobody takes is not waited for.
        logging::flush();
        let mut out = std::io::stdout().lock();
        let reached = reached_at(address);
        let said =
            write!(out, "tepui listens on {address}\nexport BIGTABLE_EMULATOR_HOST={reached}\n");
        if let Err(error) = said.and_then(|()| out.flush()) {
            tracing::warn!(%error, "cannot say on the standard output where the server listens");
        }
    };
    if let Err(error) = ThreadSpawner.spawn("tepui-announce", Box::new(say)) {
        tracing::warn!(%error, "cannot say on the standard output where the server listens");
    }
}

/// Where a client on this machine finds who listens there: all addresses of a machine are none to connect to.
fn reached_at(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("localhost:{}", address.port());
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_an_address_that_can_be_connected_to() {
        for (address, reached) in [
            ("0.0.0.0:8086", "localhost:8086"),
            ("[::]:8086", "localhost:8086"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(reached_at(address.parse().unwrap()), reached);
        }
    }
}

//! A server as `tepui serve` runs one, on a disk that takes few bytes a second, whatever they are of: the log, flushes and
//! compactions share it. This program serves so as a process of its own, so that what the server takes of memory is its alone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tepui_bench::clock::{Timer, pause};
use tepui_bench::{Error, Result};
use tepui_engine::io::{Env, FaultFiles};
use tepui_server::config::{self, Inputs};
use tepui_server::metrics::process;
use tepui_server::{logging, open_files, server, signals};

/// What the disk takes in a second: a fifth of it or less is what clients write, since each byte goes to the log, to a flush and to
/// compactions. Less, and it takes minutes to fill memory; more, and the processor is the limit before the disk is.
pub const BYTES_PER_SECOND: u64 = 32 << 20;
/// Bytes that the disk takes of one file before another one has its turn: what is appended in large pieces does not hold up for long
/// what comes in small ones, as the log does.
const PIECE_BYTES: u64 = 128 << 10;
/// Bytes that the disk has in its queue: so much it is given without a wait, which a sync then waits for. Less, and it stands idle
/// while those who waited for it wake up, so that many small appends, as the log's are, take longer than their bytes do.
const QUEUE_BYTES: u64 = 512 << 10;

/// The flags of such a server, which are those of `tepui serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory
    #[arg(long)]
    data: PathBuf,
    /// The address to listen on
    #[arg(long)]
    listen: String,
    /// A TOML file
    #[arg(long)]
    config: PathBuf,
}

/// Serves until it is told to stop.
pub fn serve(args: &Args) -> Result<()> {
    let file = config::read_file(args.config.clone()).map_err(|e| Error::failed(e.message()))?;
    let data = args.data.display().to_string();
    let flags = vec![("data", "--data", data), ("listen", "--listen", args.listen.clone())];
    let machine_bytes = process::memory_limit_bytes();
    let processors = process::processors();
    let inputs = Inputs { file: Some(file), env: Vec::new(), flags, machine_bytes, processors };
    let config = config::resolve(&inputs).map_err(|e| Error::failed(e.message()))?.config;
    logging::init(config.log_format, &config.log_level).map_err(|e| Error::failed(e.message()))?;
    open_files::raise_and_tell();
    // As `tepui serve` does with a small budget. A kernel that has no such switch has no such pages.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let signals = signals::Signals::take().map_err(|e| Error::failed(e.message()))?;
    let mut env = Env::local(config.io)?;
    let slow = FaultFiles::new(Arc::clone(&env.files));
    let disk = Arc::new(SlowDisk::new(BYTES_PER_SECOND));
    let synced = Arc::clone(&disk);
    slow.before_append(Some(Arc::new(move |_: &Path, bytes| disk.take(bytes as u64))));
    slow.before_sync(Some(Arc::new(move |_: &Path| synced.sync())));
    env.files = Arc::new(slow);
    let running = server::start(env, &config).map_err(|e| Error::failed(e.message()))?;
    signals.stop_on_first_exit_on_second(running).map_err(|e| Error::failed(e.message()))
}

/// A disk that takes so many bytes a second, from whoever comes first.
#[derive(Debug)]
struct SlowDisk {
    bytes_per_second: u64,
    timer: Timer,
    /// When it has taken all that it was given, in the timer's nanoseconds.
    free_at_nanos: Mutex<u64>,
}

impl SlowDisk {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, timer: Timer::start(), free_at_nanos: Mutex::new(0) }
    }

    /// Takes so many bytes: the caller waits until they have room in the queue.
    fn take(&self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            let now = self.timer.nanos();
            let queued = self.taken_at(now, piece).saturating_sub(self.nanos(QUEUE_BYTES));
            self.wait_until(queued);
            left -= piece;
        }
    }

    /// The caller waits until all that is in the queue has been taken.
    fn sync(&self) {
        self.wait_until(self.taken_at(self.timer.nanos(), 0));
    }

    fn wait_until(&self, nanos: u64) {
        pause(Duration::from_nanos(nanos.saturating_sub(self.timer.nanos())));
    }

    fn nanos(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000_000_000) / self.bytes_per_second
    }

    /// When so many bytes that come now will have been taken, after those that came before.
    fn taken_at(&self, now_nanos: u64, bytes: u64) -> u64 {
        let mut free_at = self.free_at_nanos.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = now_nanos.max(*free_at).saturating_add(self.nanos(bytes));
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_share_the_disk_and_what_it_was_idle_is_gone() {
        let disk = SlowDisk::new(1_000);
        // The log and a flush at the same moment: one waits for the other.
        assert_eq!(disk.taken_at(0, 100), 100_000_000);
        assert_eq!(disk.taken_at(0, 400), 500_000_000);
        assert_eq!(disk.taken_at(200_000_000, 100), 600_000_000);
        assert_eq!(disk.taken_at(2_000_000_000, 100), 2_100_000_000);
    }
}

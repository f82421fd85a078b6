//! Tables of the Bigtable API into files and back: `tepui export` and `tepui import`.
//!
//! - [`mod@import`]: files into a table, resumable, with what cannot be written set aside; [`batch`] cuts the requests;
//! - [`mod@export`]: a table into files, in parallel by the keys that SampleRowKeys gives;
//! - [`format`]: CSV as `cbt import` reads it; Avro, Parquet and SequenceFile as Google's templates write them;
//! - [`client`], [`mod@scan`], [`mod@write`]: the API, with bounded retries that obey the server's RetryInfo.
//!
//! Nothing here knows Tepui's engine: both ends are files and gRPC, so that data moves from and to any server of the
//! API.

mod base64;
pub mod batch;
pub mod client;
pub mod error;
pub mod export;
mod export_state;
pub mod files;
pub mod format;
pub mod fuzzing;
mod held;
pub mod import;
pub mod journal;
pub mod patterns;
pub mod row;
pub mod scan;
pub mod write;

use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::thread::ScopedJoinHandle;

use indicatif::ProgressBar;

use error::{Error, ErrorKind, Result};

/// Parts of the work that failed, of which an error tells why; of more, how many there are.
const FAILURES_LISTED_MAX: usize = 10;

/// What a state may say that was counted, of everything together: half of what a counter counts, so that nothing that is added
/// makes it overflow. Bytes are counted, and no table has as many.
const COUNTED_MAX: u64 = u64::MAX / 2;

/// A worker's runtime: its requests and its file are all that runs on it.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("runtime: {error}")))
}

/// Says something to the operator, above the bar.
fn tell(bar: &ProgressBar, what: &str) {
    // Nobody may be left to read it, which is no reason to panic.
    bar.suspend(|| drop(writeln!(std::io::stderr(), "tepui: {what}")));
}

/// Tells the operator who wants to go on that there is nothing to go on from: everything is done again.
fn tell_of_no_state(bar: &ProgressBar, state: &Path, what: &str) {
    tell(bar, &format!("{} is not there to go on from: the {what} begins anew", state.display()));
}

/// Takes the lock of a file; the operator is told where there are none.
fn lock_file(of: &Path, bar: &ProgressBar) -> Result<files::Lock> {
    let lock = files::Lock::take(of)?;
    if let Some(missing) = lock.missing() {
        tell(bar, missing);
    }
    Ok(lock)
}

fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| Error::failed("another thread panicked"))
}

/// Whether what a state says that was counted, all of it together, leaves room to go on counting.
fn leaves_room(mut counts: impl Iterator<Item = u64>) -> bool {
    counts.try_fold(0_u64, u64::checked_add).is_some_and(|sum| sum <= COUNTED_MAX)
}

/// One error for parts of the work that failed while the others were done: why, of the first ones, and what that means.
fn partly(failed: &[impl Display], what: &str) -> Error {
    let listed = failed.iter().take(FAILURES_LISTED_MAX);
    let mut lines: Vec<String> = listed.map(ToString::to_string).collect();
    let more = failed.len().saturating_sub(FAILURES_LISTED_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.push(what.to_owned());
    Error::failed(lines.join("\n"))
}

/// What a thread came to.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked")))
}

/// The error of several threads that tells most: one that failed by itself, before those that it stopped.
fn first_failure(ended: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = ended.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() == ErrorKind::Interrupted);
    errors.into_iter().next().map_or(Ok(()), Err)
}

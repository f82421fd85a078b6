//! Loading a peer: a few threads that take batches of rows until all are written.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tepui_bench::{Dataset, Error, Progress, Result};

/// Threads that load: one for each core here.
const THREADS: usize = 2;

/// Gives all rows to `write`, in batches of `batch_rows`. The first error ends the load.
pub fn in_batches<F>(
    dataset: &Dataset,
    what: &str,
    batch_rows: u64,
    progress: &Progress,
    write: F,
) -> Result<()>
where
    F: Fn(Range<u64>) -> Result<()> + Sync,
{
    let bar = progress.bar(what, "rows", Some(dataset.rows));
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        loop {
            let start = next.fetch_add(batch_rows, Ordering::Relaxed);
            if start >= dataset.rows {
                return Ok(());
            }
            progress.check()?;
            let end = (start + batch_rows).min(dataset.rows);
            // Others stop at their next batch: there is none left.
            write(start..end).inspect_err(|_| next.store(dataset.rows, Ordering::Relaxed))?;
            bar.add(end - start);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked")));
            result = result.and(ended);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn dataset() -> Dataset {
        Dataset { rows: 95, key_bytes: 50, columns: 1, value_bytes: 10, seed: 1 }
    }

    #[test]
    fn every_row_is_written_once() {
        let written = Mutex::new(Vec::new());
        in_batches(&dataset(), "test", 10, &Progress::hidden(), |rows| {
            written.lock().unwrap().extend(rows);
            Ok(())
        })
        .unwrap();
        let mut written = written.into_inner().unwrap();
        written.sort_unstable();
        assert_eq!(written, (0..95).collect::<Vec<_>>());
    }

    #[test]
    fn a_write_that_fails_ends_the_load() {
        let result = in_batches(&dataset(), "test", 10, &Progress::hidden(), |rows| {
            if rows.contains(&42) { Err(Error::failed("disk full")) } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err().to_string(), "disk full");
    }
}

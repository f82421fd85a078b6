//! The files that this process may have open: its limit of descriptors (`RLIMIT_NOFILE`).
//!
//! The engine holds a descriptor for each SST and value file and for the manifest of each tablet that was written, as long as
//! they live, and a connection is one, too. Where there is none left, a flush or a new segment of the log cannot begin: both
//! are tried again, and writes are held or refused until then. So a program that opens a data directory [raises](raise) its
//! limit to what it is allowed, and connections may be a [part](connections_max) of it only.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{
    CONNECTION_BYTES, CONNECTIONS_LOW, CONNECTIONS_PART_OF_MEMORY, CONNECTIONS_PART_OF_OPEN_FILES,
    OPEN_FILES_LOW,
};

/// Raises the soft limit, commonly 1,024, to the hard one. The former is there for programs that use `select`, which knows
/// no greater descriptors.
pub fn raise() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    Ok(())
}

/// Raises the limit and says what it is; warns where that is little.
pub fn raise_and_tell() {
    if let Err(error) = raise() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    match max() {
        Some(max) if max < OPEN_FILES_LOW => tracing::warn!(
            "may have {max} files open, which is little: each data file and each connection is one, and without one left \
             writes wait or are refused. Raise the hard limit: LimitNOFILE= of a systemd unit, --ulimit nofile= of docker run, ulimit -n of a shell"
        ),
        Some(max) => tracing::info!("may have {max} files open"),
        None => tracing::info!("may have any number of files open"),
    }
}

/// Files that may be open; `None` without a limit.
pub fn max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Connections that may be open where so many files may, and the process may have so much memory: the rest is for files of data, and for what
/// is done by the connections.
pub fn connections_max(files_max: Option<u64>, memory_bytes: u64) -> usize {
    let by_memory = memory_bytes / CONNECTIONS_PART_OF_MEMORY / CONNECTION_BYTES;
    let by_files = files_max.map_or(u64::MAX, |max| max / CONNECTIONS_PART_OF_OPEN_FILES);
    usize::try_from(by_files.min(by_memory.max(CONNECTIONS_LOW))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_half_of_the_descriptors_to_files() {
        assert_eq!(connections_max(Some(256), 16 << 30), 128);
        assert_eq!(connections_max(Some(1 << 20), 1 << 40), 1 << 19);
    }

    #[test]
    fn connections_take_no_more_than_a_part_of_the_memory() {
        assert_eq!(connections_max(Some(1 << 20), 1 << 30), 2_048);
        assert_eq!(connections_max(None, 16 << 30), 32_768);
        assert_eq!(connections_max(None, 100 << 20), 256);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        raise().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(max(), limit.maximum);
    }
}

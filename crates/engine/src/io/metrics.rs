//! Counters of reads: what went to the device, what came back wrong, and how well a ring batches.
//!
//! Plain atomics: a read costs microseconds, so that even many cores do not fight over the line.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the files were set up. One set is shared by all files of a [`Files`](super::Files).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct IoMetrics {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    cached_reads: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    ring_reads: AtomicU64,
    ring_enters: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoFigures {
    /// Reads carried out, by whichever way; those that the page cache answered at once are not among them.
    pub reads: u64,
    /// Bytes that these brought, with what direct I/O reads around what was asked.
    pub read_bytes: u64,
    /// Reads that the page cache answered without waiting (buffered mode only).
    pub cached_reads: u64,
    /// Reads tried a second time after a device error or a short answer.
    pub retries: u64,
    /// Reads that were reported as failed.
    pub failures: u64,
    /// Of `reads`: those that a ring carried.
    pub ring_reads: u64,
    /// System calls that rings made, to submit and to collect.
    pub ring_enters: u64,
}

impl IoMetrics {
    /// The counters now.
    pub fn figures(&self) -> IoFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoFigures {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            cached_reads: get(&self.cached_reads),
            retries: get(&self.retries),
            failures: get(&self.failures),
            ring_reads: get(&self.ring_reads),
            ring_enters: get(&self.ring_enters),
        }
    }

    pub(super) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn cached_read(&self) {
        self.cached_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(target_os = "linux")]
    pub(super) fn ring(&self, reads: u64, enters: u64) {
        self.ring_reads.fetch_add(reads, Ordering::Relaxed);
        self.ring_enters.fetch_add(enters, Ordering::Relaxed);
    }
}

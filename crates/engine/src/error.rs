//! The engine's one error type: a kind that callers branch on and a message for the person who reads
//! it. `tepui-server` maps kinds to gRPC codes in one place.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

/// What went wrong, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request cannot be carried out as it is; sending it again will not help. Of a file that is read: a newer version
    /// wrote it.
    InvalidArgument,
    /// The named object does not exist.
    NotFound,
    /// The object exists already.
    AlreadyExists,
    /// Bytes on disk are not what was written. The message names file and offset.
    Corruption,
    /// The operating system refused an operation.
    Io,
    /// The disk is full (ENOSPC or a quota), or the process may write no larger file (EFBIG).
    NoSpace,
    /// The process or the machine has no open file, memory or thread left for it (EMFILE, ENFILE, ENOMEM, EAGAIN of a thread); soon it may.
    Exhausted,
    /// An earlier failed write or sync made the engine read-only until it is restarted.
    ReadOnly,
    /// A limit on memory or queued work is near or reached; the same request may succeed later, and the
    /// error says when to try.
    Overloaded,
    /// A row is larger than a read may return (`limits::ROW_READ_BYTES_MAX`).
    RowTooLarge,
    /// What is asked for was there once, and is not kept any more.
    Expired,
    /// The engine is shutting down.
    Closed,
    /// Another process holds the directory.
    Locked,
    /// Whoever asked for it waits no more; nothing was done.
    Cancelled,
}

/// An error of the engine.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
    in_doubt: bool,
    large_row: Option<Box<[u8]>>,
    sst: Option<u64>,
    is_denied: bool,
    is_of_device: bool,
    is_put_off: bool,
}

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; the message says what to do where something can be done.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            retry_after: None,
            in_doubt: false,
            large_row: None,
            sst: None,
            is_denied: false,
            is_of_device: false,
            is_put_off: false,
        }
    }

    /// A refusal of work that is too much now, with a hint when to try again.
    pub fn overloaded(message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(ErrorKind::Overloaded, message) }
    }

    /// The same error, of a write that had begun: whether it was done is not known before a restart, which may find it in
    /// the log. Only who may do it twice may try it again.
    pub fn in_doubt(self) -> Self {
        if self.in_doubt {
            return self;
        }
        Self { in_doubt: true, ..self.context("it is not known whether this was done") }
    }

    /// The same without the words, of a change whose file failed: its error is also the reason that is told to those who come
    /// later, and nothing of theirs was begun.
    pub(crate) fn of_unknown_outcome(self) -> Self {
        Self { in_doubt: true, ..self }
    }

    /// Whether what failed may have been done nevertheless.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Background work that is put off, since it would take what is kept free of the disk.
    pub(crate) fn put_off(message: impl Into<String>) -> Self {
        Self { is_put_off: true, ..Self::new(ErrorKind::NoSpace, message) }
    }

    /// Whether it is that: it was said where it was found out, and the disk has refused nothing.
    pub(crate) fn is_put_off(&self) -> bool {
        self.is_put_off
    }

    /// Whether there was too little of something that there may be enough of again.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self.kind, ErrorKind::Exhausted | ErrorKind::NoSpace)
    }

    /// Whether the same may succeed later: nothing was written, for want of something that there may be again.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_shortage() && !self.in_doubt
    }

    /// The same, of a file that what is stored needs: one that is missing is damage, and not something that was asked for and is not there.
    pub(crate) fn of_needed_file(self) -> Self {
        match self.kind {
            ErrorKind::NotFound => Self { kind: ErrorKind::Corruption, ..self },
            _ => self,
        }
    }

    /// Damage found in `file` at byte `offset`.
    pub fn corruption(file: impl fmt::Display, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Corruption, format!("{file}: offset {offset}: {what}"))
    }

    /// What a newer version wrote, where `file` says `version` and this program knows `known`: no damage, and to be left as it is.
    pub fn newer_version(
        file: impl fmt::Display,
        version: impl Into<u64>,
        known: impl Into<u64>,
    ) -> Self {
        let (version, known) = (version.into(), known.into());
        let text = format!(
            "{file}: format version {version}; this program knows {known}: a newer version wrote the file"
        );
        Self::new(ErrorKind::InvalidArgument, text)
    }

    /// An operating-system error met while doing `what` (for example "write log/0001.log").
    /// ENOSPC, EDQUOT and EFBIG become [`ErrorKind::NoSpace`]; EMFILE, ENFILE and ENOMEM [`ErrorKind::Exhausted`].
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            _ => match Errno::from_io_error(error) {
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => ErrorKind::Exhausted,
                _ => ErrorKind::Io,
            },
        };
        let hint = match Errno::from_io_error(error) {
            Some(Errno::MFILE) => {
                ": each data file and each connection is one; raise the limit of open files (LimitNOFILE, ulimit -n)"
            }
            Some(Errno::FBIG) => {
                ": the process may write no larger one; raise the limit on the size of files (LimitFSIZE, ulimit -f)"
            }
            _ => "",
        };
        let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let is_of_device = Errno::from_io_error(error) == Some(Errno::IO);
        Self { is_denied, is_of_device, ..Self::new(kind, format!("{what}: {error}{hint}")) }
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// When the same request may be tried again, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the user of this process may not do it (EACCES, EPERM): of a file, that somebody else may read it.
    pub(crate) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Whether the device could not do it (EIO).
    pub(crate) fn is_of_device(&self) -> bool {
        self.is_of_device
    }

    /// The key of the row that is too large, of [`ErrorKind::RowTooLarge`]: who reads on can leave it out.
    pub fn large_row(&self) -> Option<&[u8]> {
        self.large_row.as_deref()
    }

    /// The same error about the row that is too large.
    pub fn of_large_row(mut self, row: Vec<u8>) -> Self {
        self.large_row = Some(row.into());
        self
    }

    /// The number of the SST that could not be read, where it is known that this was it.
    pub(crate) fn sst(&self) -> Option<u64> {
        self.sst
    }

    /// The same error of reading this SST.
    pub(crate) fn of_sst(self, id: u64) -> Self {
        Self { sst: Some(id), ..self }
    }

    /// The message without the kind.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with `context: ` put before its message.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_told_once() {
        let error = Error::new(ErrorKind::ReadOnly, "the log failed").in_doubt().in_doubt();
        assert!(error.is_in_doubt() && error.kind() == ErrorKind::ReadOnly);
        assert_eq!(error.message(), "it is not known whether this was done: the log failed");
    }

    #[test]
    fn who_meets_a_limit_of_the_process_is_told_what_to_raise() {
        let error = Error::io("open sst/1", &Errno::MFILE.into());
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.message().starts_with("open sst/1: ") && error.message().contains("ulimit"));
        assert!(!Error::io("open sst/1", &Errno::IO.into()).message().contains("ulimit"));
        let too_large = Error::io("write sst/1", &Errno::FBIG.into());
        assert_eq!(too_large.kind(), ErrorKind::NoSpace);
        assert!(too_large.message().contains("LimitFSIZE"), "{too_large}");
    }
}

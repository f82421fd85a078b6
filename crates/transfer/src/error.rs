//! The crate's one error type: what went wrong, as the operator reads it, and what kind of end that is.

use std::fmt;

/// How a transfer ended that did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Something is wrong that trying again as it is will not mend.
    Failed,
    /// The server does not give some rows of a range, however often they are asked for; those of others it may.
    Unreadable,
    /// The operator asked it to stop; what is done is kept.
    Interrupted,
}

/// A transfer's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure, in words.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failed, message: message.into() }
    }

    /// Rows that the server does not give.
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unreadable, message: message.into() }
    }

    /// The operator's wish to stop.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Interrupted, message: message.into() }
    }

    /// What kind of end this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same, saying where.
    #[must_use]
    pub fn context(self, place: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{place}: {}", self.message) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

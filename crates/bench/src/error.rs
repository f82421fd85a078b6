//! What can end a benchmark early.

/// What kind of end it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The store, the device or the arguments.
    Failed,
    /// A store gave back something else than was written: its figures mean nothing.
    Mismatch,
    /// The person asked for it.
    Interrupted,
    /// The place of its data holds something else, which stays.
    Occupied,
    /// The store refused one operation, which is not to be made again: the run goes on without it.
    Refused,
}

/// An error, for the person who runs the benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The result of a step of a benchmark.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The store, the device or the arguments failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failed, message: message.into() }
    }

    /// The place of its data holds something else.
    pub fn occupied(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Occupied, message: message.into() }
    }

    /// A store gave back something else than was written.
    pub fn mismatch(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Mismatch, message: message.into() }
    }

    /// The person asked to stop.
    pub fn interrupted() -> Self {
        Self { kind: ErrorKind::Interrupted, message: "interrupted".to_owned() }
    }

    /// The store refused an operation.
    pub fn refused() -> Self {
        Self { kind: ErrorKind::Refused, message: "refused".to_owned() }
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn context(mut self, what: impl std::fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// What kind of end it was.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<tepui_engine::Error> for Error {
    fn from(error: tepui_engine::Error) -> Self {
        Self::failed(error.to_string())
    }
}

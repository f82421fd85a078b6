//! The crate's error: a gRPC code and a message. Placeholder until the real file is merged.

use tepui_engine::ErrorKind;

/// A gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "placeholder")]
pub enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
    DataLoss,
    Internal,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Code,
    message: String,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[expect(missing_docs, reason = "placeholder")]
impl Error {
    pub fn new(kind: Code, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }
    pub fn kind(&self) -> Code {
        self.kind
    }
    pub fn message(&self) -> &str {
        &self.message
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
        let code = match error.kind() {
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::Corruption => Code::DataLoss,
            ErrorKind::Io => Code::Internal,
            ErrorKind::NoSpace | ErrorKind::Overloaded => Code::ResourceExhausted,
            ErrorKind::ReadOnly | ErrorKind::Closed => Code::Unavailable,
            ErrorKind::RowTooLarge | ErrorKind::Locked => Code::FailedPrecondition,
        };
        Self::new(code, error.message())
    }
}

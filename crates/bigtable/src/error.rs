//! The crate's one error type: a gRPC code and the message that a client reads.
//!
//! Messages follow Bigtable's own where its clients or documentation know them. `tepui-server` turns a
//! [`Code`] into a transport status in one place; this crate knows no transport.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tepui_engine::ErrorKind;

/// When to try again what met too many open files, or no memory: nothing of it was done, and as soon it may pass.
const RETRY_EXHAUSTED: Duration = Duration::from_secs(1);

/// The gRPC codes that Bigtable's services answer with, and what each means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The caller went away.
    Cancelled,
    /// The request is wrong whatever the state of the server.
    InvalidArgument,
    /// The caller's time ran out.
    DeadlineExceeded,
    /// A table, family or operation does not exist.
    NotFound,
    /// What was to be created exists.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// A limit on memory, disk or queued work is reached; try again later.
    ResourceExhausted,
    /// The request is right in itself and wrong for the state of the table or row.
    FailedPrecondition,
    /// The operation lost a race; try again.
    Aborted,
    /// A value is outside of what is there.
    OutOfRange,
    /// The RPC, or what it asks for, is not supported.
    Unimplemented,
    /// A defect, or an operating system that refuses.
    Internal,
    /// The server cannot take the request now.
    Unavailable,
    /// Stored bytes are not what was written.
    DataLoss,
    /// The caller is not known.
    Unauthenticated,
}

/// An error of Bigtable's semantics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Code,
    message: String,
    retry_after: Option<Duration>,
    in_doubt: bool,
    large_row: Option<Bytes>,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Writes one constructor for each code: `Error::not_found("...")`.
macro_rules! constructors {
    ($($name:ident => $code:ident),* $(,)?) => {
        impl Error {
            $(
                #[doc = concat!("An error with [`Code::", stringify!($code), "`].")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled => Cancelled,
    invalid_argument => InvalidArgument,
    deadline_exceeded => DeadlineExceeded,
    not_found => NotFound,
    already_exists => AlreadyExists,
    permission_denied => PermissionDenied,
    resource_exhausted => ResourceExhausted,
    failed_precondition => FailedPrecondition,
    aborted => Aborted,
    out_of_range => OutOfRange,
    unimplemented => Unimplemented,
    internal => Internal,
    unavailable => Unavailable,
    data_loss => DataLoss,
    unauthenticated => Unauthenticated,
}

impl Error {
    /// An error of `kind`.
    pub fn new(kind: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, retry_after: None, in_doubt: false, large_row: None }
    }

    /// A request field whose value is refused, in the words that Bigtable's service uses:
    /// `Error in field 'cells_per_row_limit_filter' : argument must be > 0`.
    pub fn field(field: &str, what: impl fmt::Display) -> Self {
        Self::invalid_argument(format!("Error in field '{field}' : {what}"))
    }

    /// A refusal of work that is too much now, with a hint when to try again.
    pub fn overloaded(message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::resource_exhausted(message) }
    }

    /// A row that is too large to be read, or that a filter makes too large; a client may go on without it.
    pub fn large_row(row: Bytes, message: impl Into<String>) -> Self {
        Self { large_row: Some(row), ..Self::failed_precondition(message) }
    }

    /// The key of the row that is too large, where that is what is wrong.
    pub fn large_row_key(&self) -> Option<&Bytes> {
        self.large_row.as_ref()
    }

    /// The same error of an entry of a bulk that can be sent again. Google's clients for Go, Python and Node send entries again
    /// for the code alone, where it is this one; those for Java and C++ for this one too.
    pub fn as_unavailable(self) -> Self {
        Self { kind: Code::Unavailable, ..self }
    }

    /// When the same request may be tried again, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether what failed may have been done nevertheless: a client must not be told to try it again.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// The code.
    pub fn kind(&self) -> Code {
        self.kind
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with `context: ` put before its message.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }
}

/// Bytes of a client's text that a message repeats, at most: enough to know it by. The whole may be as long as a request.
const SHOWN_BYTES_MAX: usize = 200;

/// A client's text within a message: in quotes, and of a long one its beginning and how long it is.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        let start = start_of(text, SHOWN_BYTES_MAX);
        if start.len() == text.len() {
            return write!(f, "{text:?}");
        }
        write!(f, "{start:?}... ({} bytes)", text.len())
    }
}

/// Bytes of a client's key or qualifier that a message repeats, at most; four characters each where they are escaped.
const SHOWN_RAW_BYTES_MAX: usize = 128;

/// A client's bytes within a message, which puts its own quotes around them: escaped, and of long ones the beginning and
/// how long they are.
#[derive(Debug, Clone, Copy)]
pub struct ShownBytes<'a>(pub &'a [u8]);

impl fmt::Display for ShownBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = self;
        match bytes.get(..SHOWN_RAW_BYTES_MAX) {
            Some(start) if start.len() < bytes.len() => {
                write!(f, "{}... ({} bytes)", start.escape_ascii(), bytes.len())
            }
            _ => bytes.escape_ascii().fmt(f),
        }
    }
}

/// The start of a text, of so many bytes at most, in whole characters.
pub fn start_of(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<tepui_engine::Error> for Error {
    /// Every kind of the engine has its code here; a new kind does not compile until it has one too.
    fn from(error: tepui_engine::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::Corruption => Code::DataLoss,
            ErrorKind::Io => Code::Internal,
            // Clients back off on it; an operator can make room, or there may soon be an open file, or memory.
            ErrorKind::NoSpace | ErrorKind::Overloaded | ErrorKind::Exhausted => {
                Code::ResourceExhausted
            }
            // Both end when the server is started again, so a client may try again what had not begun.
            ErrorKind::ReadOnly | ErrorKind::Closed => Code::Unavailable,
            // What the service answers when a row cannot be read in one piece: a filter can help.
            ErrorKind::RowTooLarge => Code::FailedPrecondition,
            ErrorKind::Locked => Code::FailedPrecondition,
            ErrorKind::Expired => Code::OutOfRange,
            ErrorKind::Cancelled => Code::Cancelled,
        };
        let passes = (error.kind() == ErrorKind::Exhausted).then_some(RETRY_EXHAUSTED);
        let retry_after = error.retry_after().or(passes);
        let in_doubt = error.is_in_doubt();
        let large_row = error.large_row().map(Bytes::copy_from_slice);
        Self { kind, message: error.message().to_owned(), retry_after, in_doubt, large_row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_kind_has_the_code_that_tells_clients_what_to_do() {
        let cases = [
            (ErrorKind::InvalidArgument, Code::InvalidArgument),
            (ErrorKind::NotFound, Code::NotFound),
            (ErrorKind::AlreadyExists, Code::AlreadyExists),
            (ErrorKind::Corruption, Code::DataLoss),
            (ErrorKind::Io, Code::Internal),
            (ErrorKind::NoSpace, Code::ResourceExhausted),
            (ErrorKind::ReadOnly, Code::Unavailable),
            (ErrorKind::Exhausted, Code::ResourceExhausted),
            (ErrorKind::Overloaded, Code::ResourceExhausted),
            (ErrorKind::RowTooLarge, Code::FailedPrecondition),
            (ErrorKind::Closed, Code::Unavailable),
            (ErrorKind::Locked, Code::FailedPrecondition),
            (ErrorKind::Expired, Code::OutOfRange),
            (ErrorKind::Cancelled, Code::Cancelled),
        ];
        for (kind, code) in cases {
            let error = Error::from(tepui_engine::Error::new(kind, "why"));
            assert_eq!((error.kind(), error.message()), (code, "why"), "{kind:?}");
        }
    }

    #[test]
    fn a_refusal_keeps_its_hint() {
        let after = Duration::from_millis(30);
        let error = Error::from(tepui_engine::Error::overloaded("busy", after)).context("row 'r'");
        assert_eq!((error.kind(), error.retry_after()), (Code::ResourceExhausted, Some(after)));
        assert_eq!(Error::internal("x").retry_after(), None);
    }

    #[test]
    fn a_doubt_passes_with_its_words() {
        let error = tepui_engine::Error::new(ErrorKind::ReadOnly, "the log failed").in_doubt();
        let error = Error::from(error).context("row 'r'");
        assert!(error.is_in_doubt() && error.message().contains("not known"), "{error:?}");
        assert!(!Error::unavailable("x").is_in_doubt());
    }

    #[test]
    fn a_row_that_is_too_large_keeps_its_key() {
        let error = tepui_engine::Error::new(ErrorKind::RowTooLarge, "larger than a read");
        let error = Error::from(error.of_large_row(b"r\0".to_vec())).context("table 't'");
        let key = error.large_row_key().map(AsRef::as_ref);
        assert_eq!((error.kind(), key), (Code::FailedPrecondition, Some(&b"r\0"[..])));
        assert_eq!(Error::failed_precondition("x").large_row_key(), None);
    }

    #[test]
    fn corruption_keeps_file_and_offset() {
        let error = Error::from(tepui_engine::Error::corruption("sst/7.sst", 4096, "checksum"));
        assert_eq!(error.kind(), Code::DataLoss);
        assert_eq!(error.to_string(), "sst/7.sst: offset 4096: checksum");
    }

    #[test]
    fn context_goes_before_the_message_and_keeps_the_code() {
        let error = Error::not_found("no such family").context("row 'r'");
        assert_eq!(error, Error::new(Code::NotFound, "row 'r': no such family"));
        assert_eq!(
            Error::field("f", "argument must be > 0").message(),
            "Error in field 'f' : argument must be > 0"
        );
    }

    #[test]
    fn a_long_text_is_shown_by_its_start_and_its_length() {
        assert_eq!(Shown("a\"b").to_string(), "\"a\\\"b\"");
        let long = "ä".repeat(1 << 20);
        let shown = Shown(&long).to_string();
        assert!(shown.starts_with("\"ää") && shown.ends_with("ä\"... (2097152 bytes)"), "{shown}");
        assert!(shown.len() < 300);
        assert_eq!(ShownBytes(b"a'\xFF").to_string(), r"a\'\xff");
        assert_eq!(ShownBytes(&[b'a'; 128]).to_string(), "a".repeat(128));
        let shown = ShownBytes(&[b'a'; 129]).to_string();
        assert_eq!(shown, "a".repeat(128) + "... (129 bytes)");
        assert_eq!((start_of("aä", 2), start_of("aä", 3), start_of("", 5)), ("a", "aä", ""));
    }
}

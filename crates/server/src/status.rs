//! The one place where errors become gRPC statuses.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use tepui_bigtable::error::{Code, Error, start_of};
use tokio::time::Instant;
use tonic::Status;

use crate::api::rpc;
use crate::limits::{FAILURE_TOLD_INTERVAL, FAILURES_TOLD_MAX};

/// The type of the detail that tells a client when to try again.
const RETRY_INFO_TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// When to try again where the server is about to be started anew: that takes seconds. Sooner, and all clients ask several
/// times meanwhile; later, and they are idle when it is back.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(1);

/// When to try again where something is used up of which nobody knows when there is more, as of the disk: an operator has
/// to make room, so this keeps clients from asking in vain.
const RETRY_EXHAUSTED: Duration = Duration::from_secs(10);

/// The type of the detail that tells a client which row to leave out.
const ERROR_INFO_TYPE: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// What Bigtable says of itself in such a detail.
const ERROR_DOMAIN: &str = "bigtable.googleapis.com";

/// The reason, and the name of the row's key in base64, by which Google's Java client knows a row that is too large to be read
/// (`skipLargeRowsCallable`).
const LARGE_ROW_REASON: &str = "LargeRowReadError";
const LARGE_ROW_KEY: &str = "rowKeyBase64Encoded";

/// Bytes of such a key, at most; of a longer one clients are told in the message alone. Details are a header of the answer, and
/// base64 there once more: 16 bytes of it for 9 of the key, so that this many leave room for the message twice in the
/// 8 KiB that clients take. Keys of Bigtable have 4 KiB at most.
const LARGE_ROW_KEY_BYTES_MAX: usize = 3 << 10;

/// Bytes of a message, at most. It is a header of the answer, where every byte may become three and some clients take 8 KiB in all, and
/// it is in the details once more. Longer, and they would see a failure of the connection in its place.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// What follows a message that was cut off.
const CUT_OFF: &str = "...";

/// The message of an error, as much of it as an answer can say.
fn message(error: &Error) -> Cow<'_, str> {
    let all = error.message();
    if all.len() <= MESSAGE_BYTES_MAX {
        return Cow::Borrowed(all);
    }
    Cow::Owned(format!("{}{CUT_OFF}", start_of(all, MESSAGE_BYTES_MAX - CUT_OFF.len())))
}

/// The gRPC code of an error's code.
pub fn grpc_code(code: Code) -> tonic::Code {
    match code {
        Code::Cancelled => tonic::Code::Cancelled,
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::NotFound => tonic::Code::NotFound,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::Aborted => tonic::Code::Aborted,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::Unimplemented => tonic::Code::Unimplemented,
        Code::Internal => tonic::Code::Internal,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::DataLoss => tonic::Code::DataLoss,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        // The enum may grow; what is not known here is a defect.
        _ => tonic::Code::Internal,
    }
}

/// The status that a client sees. Damage and failures of the machine are logged here, since this is
/// where they are handled: the operator must learn of them, not only the client.
pub fn from_error(error: &Error) -> Status {
    let code = grpc_code(error.kind());
    if is_to_be_told(code) {
        tell(code, error);
    }
    let told = of_entry(error);
    if told.details.is_empty() {
        return Status::new(code, told.message);
    }
    let details = told.encode_to_vec().into();
    Status::with_details(code, told.message, details)
}

/// The same for one entry of many, within an answer; what is to be logged, [`tell_of_entries`] does.
pub fn of_entry(error: &Error) -> rpc::Status {
    rpc::Status {
        code: grpc_code(error.kind()).into(),
        message: message(error).into_owned(),
        details: details(error),
    }
}

/// Tells of damage and failures of the machine that entries of one answer met, of each once.
pub fn tell_of_entries<'a>(errors: impl Iterator<Item = &'a Error>) {
    let mut told = HashSet::new();
    for error in errors {
        let code = grpc_code(error.kind());
        if is_to_be_told(code) && told.insert(error.message()) {
            tell(code, error);
        }
    }
}

/// Whether it is one of damage, or of the machine.
fn is_to_be_told(code: tonic::Code) -> bool {
    matches!(code, tonic::Code::DataLoss | tonic::Code::Internal)
}

/// Failures that were told of in the log lately.
static TOLD: Mutex<Told> = Mutex::new(Told(BTreeMap::new()));

/// Tells of a failure in the log, unless one like it was told of just now.
fn tell(code: tonic::Code, error: &Error) {
    // Valid at every step.
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let left_out = told.admit(&message(error), Instant::now());
    drop(told);
    if let Some(left_out) = left_out {
        tracing::error!(?code, error = error.message(), left_out, "request failed");
    }
}

/// By message: when it was told last, and how often it was left out since. The empty one is that of all for which there is no room.
#[derive(Debug)]
struct Told(BTreeMap<Box<str>, (Instant, u64)>);

impl Told {
    /// Forgets those that were told long ago. What was left out of them counts as that of all others.
    fn forget(&mut self, is_over: impl Fn(Instant) -> bool) {
        let mut of_others: Option<(Instant, u64)> = None;
        self.0.retain(|message, (at, left_out)| {
            let goes = !message.is_empty() && is_over(*at);
            if goes && *left_out > 0 {
                of_others.get_or_insert((*at, 0)).1 += *left_out;
            }
            !goes
        });
        if let Some((at, left_out)) = of_others {
            self.0.entry("".into()).or_insert((at, 0)).1 += left_out;
        }
    }

    /// Whether a failure is to be told of now, with how many like it were left out before.
    fn admit(&mut self, message: &str, now: Instant) -> Option<u64> {
        let is_over = |at: Instant| now.duration_since(at) >= FAILURE_TOLD_INTERVAL;
        let mut key = message;
        if !self.0.contains_key(key) && self.0.len() >= FAILURES_TOLD_MAX {
            self.forget(is_over);
            if self.0.len() >= FAILURES_TOLD_MAX {
                // That of all others.
                key = "";
            }
        }
        match self.0.get_mut(key) {
            Some((at, left_out)) if !is_over(*at) => {
                *left_out += 1;
                None
            }
            Some((at, left_out)) => {
                *at = now;
                Some(std::mem::take(left_out))
            }
            None => {
                self.0.insert(key.into(), (now, 0));
                Some(0)
            }
        }
    }
}

/// What a client can act on.
fn details(error: &Error) -> Vec<prost_types::Any> {
    let retry = retry_after(error).map(retry_info);
    let large_row = error.large_row_key().filter(|key| key.len() <= LARGE_ROW_KEY_BYTES_MAX);
    retry.into_iter().chain(large_row.map(|key| large_row_info(key))).collect()
}

fn large_row_info(key: &[u8]) -> prost_types::Any {
    let info = rpc::ErrorInfo {
        reason: LARGE_ROW_REASON.to_owned(),
        domain: ERROR_DOMAIN.to_owned(),
        metadata: [(LARGE_ROW_KEY.to_owned(), STANDARD.encode(key))].into(),
    };
    prost_types::Any { type_url: ERROR_INFO_TYPE.to_owned(), value: info.encode_to_vec() }
}

/// When the client may try again: every refusal that is not for good says so. Not an error after which what was asked may
/// have been done: clients that obey the hint do so for increments and appends too, which would count twice.
fn retry_after(error: &Error) -> Option<Duration> {
    if error.is_in_doubt() {
        return None;
    }
    error.retry_after().or(match error.kind() {
        Code::Unavailable => Some(RETRY_UNAVAILABLE),
        Code::ResourceExhausted => Some(RETRY_EXHAUSTED),
        _ => None,
    })
}

fn retry_info(after: Duration) -> prost_types::Any {
    let delay = prost_types::Duration {
        seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        nanos: after.subsec_nanos() as i32,
    };
    let info = rpc::RetryInfo { retry_delay: Some(delay) };
    prost_types::Any { type_url: RETRY_INFO_TYPE.to_owned(), value: info.encode_to_vec() }
}

/// The status of a request whose work panicked; the log has the panic.
pub fn panicked() -> Status {
    Status::internal("the request failed unexpectedly; see the server's log")
}

/// The status of an RPC that is not served yet, for example `Bigtable.ExecuteQuery`.
pub fn unsupported(rpc: &str) -> Status {
    Status::unimplemented(format!("{rpc} is not supported yet"))
}

/// The status of an RPC that Bigtable itself has withdrawn, with what to call instead.
pub fn withdrawn(rpc: &str, instead: &str) -> Status {
    Status::unimplemented(format!("{rpc} is withdrawn; use {instead}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn codes_and_messages_pass_unchanged() {
        let status = from_error(&Error::not_found("table \"t\" not found"));
        assert_eq!(status.code(), tonic::Code::NotFound);
        assert_eq!(status.message(), "table \"t\" not found");
    }

    /// What is logged meanwhile, as JSON.
    pub(crate) fn logged(work: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let to = lines.clone();
        let logs =
            tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || to.clone());
        tracing::subscriber::with_default(logs.finish(), work);
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_clients_meet_all_the_time_is_told_of_once_a_minute_with_how_often() {
        let fail = |times: usize, what: &str| {
            for _ in 0..times {
                from_error(&Error::data_loss(what));
            }
        };
        // While another test's thread is the first to tell of a failure, to nobody, what is told here may be lost; once one was heard, none is.
        let is_heard =
            |n: u32| !logged(|| fail(1, &format!("nobody may hear this: {n}"))).is_empty();
        assert!((0..10).any(is_heard));
        let first = logged(|| fail(5_000, "sst/1.sst: a damaged block"));
        assert_eq!(first.lines().count(), 1, "{first}");
        assert_eq!(first.matches("\"message\":").count(), 1, "a key stands for one value: {first}");
        assert!(first.contains(r#""error":"sst/1.sst: a damaged block""#), "{first}");
        let other = logged(|| fail(3, "sst/2.sst: another one"));
        assert_eq!(other.lines().count(), 1, "{other}");
        tokio::time::advance(FAILURE_TOLD_INTERVAL).await;
        let again = logged(|| fail(2, "sst/1.sst: a damaged block"));
        assert!(again.lines().count() == 1 && again.contains(r#""left_out":4999"#), "{again}");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_ever_new_kinds_are_told_of_by_themselves_only_so_many_times() {
        let mut told = Told(BTreeMap::new());
        let mut admitted = |from: usize| {
            let kinds = (from..from + 1_000).map(|kind| kind.to_string());
            kinds.filter_map(|kind| told.admit(&kind, Instant::now())).collect::<Vec<_>>()
        };
        assert_eq!(admitted(0), [0; FAILURES_TOLD_MAX + 1]);
        assert_eq!(admitted(1_000), [0; 0]);
        tokio::time::advance(FAILURE_TOLD_INTERVAL).await;
        // What is left out of all others has a place by now.
        assert_eq!(admitted(2_000).len(), FAILURES_TOLD_MAX);
        assert_eq!(told.0.len(), FAILURES_TOLD_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_out_of_failures_that_are_long_over_is_told_with_others() {
        let mut told = Told(BTreeMap::new());
        let mut admit = |kind: usize| told.admit(&kind.to_string(), Instant::now());
        for kind in (0..FAILURES_TOLD_MAX).chain([0, 0, 1]) {
            admit(kind);
        }
        tokio::time::advance(FAILURE_TOLD_INTERVAL).await;
        let new: Vec<_> = (1_000..=1_000 + FAILURES_TOLD_MAX).filter_map(&mut admit).collect();
        assert_eq!(new.iter().sum::<u64>(), 3, "{new:?}");
    }

    #[test]
    fn corruption_in_the_engine_is_data_loss_with_file_and_offset() {
        let engine = tepui_engine::Error::corruption("sst/7.sst", 4_096, "checksum mismatch");
        let status = from_error(&engine.into());
        assert_eq!(status.code(), tonic::Code::DataLoss);
        assert_eq!(status.message(), "sst/7.sst: offset 4096: checksum mismatch");
    }

    #[test]
    fn a_refusal_says_in_its_details_when_to_try_again() {
        let error = Error::overloaded("busy", Duration::from_millis(1_250));
        let status = from_error(&error);
        assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, "busy"));
        let told = rpc::Status::decode(status.details()).unwrap();
        assert_eq!((told.code, told.message.as_str()), (8, "busy"));
        assert_eq!(told, of_entry(&error));
        let [detail] = &told.details[..] else { panic!("one detail: {told:?}") };
        assert_eq!(detail.type_url, RETRY_INFO_TYPE);
        let delay = rpc::RetryInfo::decode(&detail.value[..]).unwrap().retry_delay.unwrap();
        assert_eq!((delay.seconds, delay.nanos), (1, 250_000_000));
    }

    #[test]
    fn whatever_is_unavailable_or_used_up_says_when_to_try_again_and_nothing_else_does() {
        use tepui_engine::ErrorKind;
        for kind in [
            ErrorKind::InvalidArgument,
            ErrorKind::NotFound,
            ErrorKind::Io,
            ErrorKind::NoSpace,
            ErrorKind::Overloaded,
            ErrorKind::ReadOnly,
            ErrorKind::Closed,
        ] {
            let error = Error::from(tepui_engine::Error::new(kind, "what"));
            let status = from_error(&error);
            let is_passing =
                matches!(status.code(), tonic::Code::Unavailable | tonic::Code::ResourceExhausted);
            let told = rpc::Status::decode(status.details()).unwrap();
            assert_eq!(
                told.details.iter().any(|d| d.type_url == RETRY_INFO_TYPE),
                is_passing,
                "{kind:?}"
            );
            assert_eq!(of_entry(&error).details.len(), usize::from(is_passing), "{kind:?}");
        }
    }

    #[test]
    fn what_may_have_been_done_does_not_say_when_to_try_it_again() {
        use tepui_engine::{Error as EngineError, ErrorKind};
        for error in [
            EngineError::new(ErrorKind::ReadOnly, "what"),
            EngineError::new(ErrorKind::NoSpace, "what"),
            EngineError::new(ErrorKind::Exhausted, "what"),
            EngineError::overloaded("what", Duration::from_secs(1)),
        ] {
            let error = Error::from(error.in_doubt());
            let status = from_error(&error);
            assert!(status.details().is_empty() && of_entry(&error).details.is_empty());
            assert_eq!(status.message(), "it is not known whether this was done: what");
        }
    }

    #[test]
    fn a_message_is_cut_off_where_it_would_not_fit_into_a_header() {
        let long = "ä".repeat(1 << 20);
        for error in [Error::not_found(long.clone()), Error::overloaded(long, Duration::ZERO)] {
            let status = from_error(&error);
            let entry = of_entry(&error);
            assert_eq!(status.message(), entry.message);
            assert!(entry.message.starts_with("ää") && entry.message.ends_with("ä..."));
            assert!((MESSAGE_BYTES_MAX - 2..=MESSAGE_BYTES_MAX).contains(&entry.message.len()));
            let headers = status.into_http::<()>();
            let bytes: usize = headers.headers().values().map(|value| value.len()).sum();
            assert!(bytes < 6 << 10, "{bytes}");
        }
        let fits = "x".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(from_error(&Error::not_found(fits.clone())).message(), fits);
    }

    #[test]
    fn a_row_that_is_too_large_is_named_whole_as_long_as_that_fits_into_a_header() {
        let of = |bytes: usize| {
            let key = vec![0xff; bytes];
            let text =
                format!("row \"{}\": too large: {}", key[..128].escape_ascii(), "x ".repeat(60));
            from_error(&Error::large_row(key.into(), text))
        };
        let status = of(LARGE_ROW_KEY_BYTES_MAX);
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        let told = rpc::Status::decode(status.details()).unwrap();
        let [detail] = &told.details[..] else { panic!("one detail: {told:?}") };
        assert_eq!(detail.type_url, ERROR_INFO_TYPE);
        let info = rpc::ErrorInfo::decode(&detail.value[..]).unwrap();
        assert_eq!((&*info.reason, &*info.domain), ("LargeRowReadError", ERROR_DOMAIN));
        let key = STANDARD.decode(&info.metadata["rowKeyBase64Encoded"]).unwrap();
        assert_eq!(key, vec![0xff; LARGE_ROW_KEY_BYTES_MAX]);
        let headers = status.into_http::<()>();
        // As HTTP/2 counts them.
        let headers = headers.headers().iter();
        let bytes: usize =
            headers.map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(bytes < 15 << 9, "{bytes}");
        assert!(of(LARGE_ROW_KEY_BYTES_MAX + 1).details().is_empty());
    }

    #[test]
    fn an_unsupported_rpc_is_named() {
        let status = unsupported("Bigtable.ExecuteQuery");
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert_eq!(status.message(), "Bigtable.ExecuteQuery is not supported yet");
    }
}

//! The one place where errors become gRPC statuses.

use tepui_bigtable::error::{Code, Error};
use tonic::Status;

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
    if matches!(code, tonic::Code::DataLoss | tonic::Code::Internal) {
        tracing::error!(?code, message = error.message(), "request failed");
    }
    Status::new(code, error.message())
}

/// The status of an RPC that is not served yet, for example `Bigtable.ExecuteQuery`.
pub fn unsupported(rpc: &str) -> Status {
    Status::unimplemented(format!("{rpc} is not supported yet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_messages_pass_unchanged() {
        let status = from_error(&Error::not_found("table \"t\" not found"));
        assert_eq!(status.code(), tonic::Code::NotFound);
        assert_eq!(status.message(), "table \"t\" not found");
    }

    #[test]
    fn corruption_in_the_engine_is_data_loss_with_file_and_offset() {
        let engine = tepui_engine::Error::corruption("sst/7.sst", 4_096, "checksum mismatch");
        let status = from_error(&engine.into());
        assert_eq!(status.code(), tonic::Code::DataLoss);
        assert_eq!(status.message(), "sst/7.sst: offset 4096: checksum mismatch");
    }

    #[test]
    fn an_unsupported_rpc_is_named() {
        let status = unsupported("Bigtable.ExecuteQuery");
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert_eq!(status.message(), "Bigtable.ExecuteQuery is not supported yet");
    }
}

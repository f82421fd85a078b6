//! The API's message types under short names. `crate::rpcs` names its types by these paths.

pub mod spelled_out;

pub use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
pub use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
pub use googleapis_tonic_google_iam_v1::google::iam::v1 as iam;
pub use googleapis_tonic_google_longrunning::google::longrunning;
pub use googleapis_tonic_google_rpc::google::rpc;

/// `google.protobuf.Empty`.
pub type Empty = ();

/// Requests that carry a row filter, with the filter kept as the bytes that arrived: it is decoded, and
/// refused where it must be, by `tepui_bigtable::filter`. The same messages on the wire as in [`v2`].
pub mod kept {
    use tepui_bigtable::filter::WithFilter;

    use super::v2;

    /// `google.bigtable.v2.ReadRowsRequest`.
    pub type ReadRowsRequest = WithFilter<v2::ReadRowsRequest>;
    /// `google.bigtable.v2.CheckAndMutateRowRequest`.
    pub type CheckAndMutateRowRequest = WithFilter<v2::CheckAndMutateRowRequest>;
}

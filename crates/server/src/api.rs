//! The API's message types under short names. `crate::rpcs` names its types by these paths.

pub mod bundles;
pub mod instances;
pub mod session;
pub mod spelled_out;

pub use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2 as admin;
pub use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
pub use googleapis_tonic_google_iam_v1::google::iam::v1 as iam;
pub use googleapis_tonic_google_longrunning::google::longrunning;
pub use googleapis_tonic_google_rpc::google::rpc;
pub use googleapis_tonic_google_type::google::r#type::Expr;

/// `google.protobuf.Empty`.
pub type Empty = ();

/// Requests that are decoded with care; the same messages on the wire as in [`v2`]. A row filter is kept as the bytes
/// that arrived: it is decoded, and refused where it must be, by `tepui_bigtable::filter`. The entries of a bulk are decoded once it is let in.
pub mod kept {
    use tepui_bigtable::filter::WithFilter;
    use tepui_bigtable::frame::Encoded;
    use tepui_bigtable::origin::WithOrigins;

    use super::v2;

    /// `google.bigtable.v2.SampleRowKeysRequest`, with the field `row_range`, which is younger than [`v2`].
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SampleRowKeysRequest {
        /// The table, unless the view is given.
        #[prost(string, tag = "1")]
        pub table_name: String,
        /// The profile; empty means the default one.
        #[prost(string, tag = "2")]
        pub app_profile_id: String,
        /// The authorized view, unless the table is given.
        #[prost(string, tag = "4")]
        pub authorized_view_name: String,
        /// The materialized view, which is not supported.
        #[prost(string, tag = "5")]
        pub materialized_view_name: String,
        /// The rows to divide; all of them if there is none.
        #[prost(message, optional, tag = "6")]
        pub row_range: Option<v2::RowRange>,
    }

    /// `google.bigtable.v2.ReadRowsResponse`.
    pub type ReadRowsResponse = tepui_bigtable::response::ReadRowsMessage;
    /// `google.bigtable.v2.ReadModifyWriteRowResponse`.
    pub type ReadModifyWriteRowResponse = Encoded<v2::ReadModifyWriteRowResponse>;
    /// `google.bigtable.v2.ReadRowsRequest`.
    pub type ReadRowsRequest = WithFilter<v2::ReadRowsRequest>;
    /// `google.bigtable.v2.CheckAndMutateRowRequest`.
    pub type CheckAndMutateRowRequest = WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>>;
    /// `google.bigtable.v2.MutateRowRequest`.
    pub type MutateRowRequest = WithOrigins<v2::MutateRowRequest>;
    /// `google.bigtable.v2.MutateRowsRequest`.
    pub type MutateRowsRequest = tepui_bigtable::bulk::Bulk;
}

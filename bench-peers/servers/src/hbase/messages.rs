//! The messages of HBase's protocol that a benchmark needs, with the fields of them that it sets or reads. Numbers are those
//! of HBase's RPC.proto, HBase.proto, Client.proto and Master.proto.

use prost::Message;

/// How a connection begins.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectionHeader {
    #[prost(message, optional, tag = "1")]
    pub user: Option<UserInformation>,
    #[prost(string, tag = "2")]
    pub service: String,
    #[prost(string, tag = "3")]
    pub cell_codec: String,
    #[prost(message, optional, tag = "5")]
    pub version: Option<VersionInfo>,
}

/// What the client claims to be: to one from before 1.3 a server sends the cells of a Get within the message.
#[derive(Clone, PartialEq, Message)]
pub struct VersionInfo {
    #[prost(string, required, tag = "1")]
    pub version: String,
    #[prost(string, required, tag = "2")]
    pub url: String,
    #[prost(string, required, tag = "3")]
    pub revision: String,
    #[prost(string, required, tag = "4")]
    pub user: String,
    #[prost(string, required, tag = "5")]
    pub date: String,
    #[prost(string, required, tag = "6")]
    pub checksum: String,
    #[prost(uint32, tag = "7")]
    pub major: u32,
    #[prost(uint32, tag = "8")]
    pub minor: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UserInformation {
    #[prost(string, required, tag = "1")]
    pub effective_user: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestHeader {
    #[prost(uint32, optional, tag = "1")]
    pub call_id: Option<u32>,
    #[prost(string, tag = "3")]
    pub method: String,
    #[prost(bool, tag = "4")]
    pub has_param: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(uint32, tag = "1")]
    pub call_id: u32,
    #[prost(message, optional, tag = "2")]
    pub exception: Option<Exception>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exception {
    #[prost(string, tag = "1")]
    pub class: String,
    #[prost(string, tag = "2")]
    pub stack_trace: String,
}

/// [`Region::kind`]: the region's whole name.
pub const REGION_NAME: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct Region {
    #[prost(int32, required, tag = "1")]
    pub kind: i32,
    #[prost(bytes = "bytes", required, tag = "2")]
    pub name: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct Column {
    #[prost(bytes = "vec", required, tag = "1")]
    pub family: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Get {
    #[prost(bytes = "vec", required, tag = "1")]
    pub row: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub columns: Vec<Column>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetRequest {
    #[prost(message, required, tag = "1")]
    pub region: Region,
    #[prost(message, required, tag = "2")]
    pub get: Get,
}

/// What was read of a row: its cells follow the message.
#[derive(Clone, PartialEq, Message)]
pub struct Row {
    #[prost(int32, tag = "2")]
    pub cells: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub row: Option<Row>,
}

#[derive(Clone, PartialEq, Message)]
pub struct QualifierValue {
    #[prost(bytes = "vec", tag = "1")]
    pub qualifier: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ColumnValues {
    #[prost(bytes = "vec", required, tag = "1")]
    pub family: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub values: Vec<QualifierValue>,
}

/// [`Mutation::kind`]: a put.
pub const PUT: i32 = 2;
/// [`Mutation::durability`]: on the disk before it is answered.
pub const FSYNC_WAL: i32 = 4;

#[derive(Clone, PartialEq, Message)]
pub struct Mutation {
    #[prost(bytes = "vec", tag = "1")]
    pub row: Vec<u8>,
    #[prost(int32, optional, tag = "2")]
    pub kind: Option<i32>,
    #[prost(message, repeated, tag = "3")]
    pub columns: Vec<ColumnValues>,
    #[prost(int32, optional, tag = "6")]
    pub durability: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MutateRequest {
    #[prost(message, required, tag = "1")]
    pub region: Region,
    #[prost(message, required, tag = "2")]
    pub mutation: Mutation,
}

#[derive(Clone, PartialEq, Message)]
pub struct MutateResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct Scan {
    #[prost(message, repeated, tag = "1")]
    pub columns: Vec<Column>,
    #[prost(bytes = "vec", tag = "3")]
    pub start_row: Vec<u8>,
    #[prost(bool, tag = "15")]
    pub reversed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScanRequest {
    #[prost(message, optional, tag = "1")]
    pub region: Option<Region>,
    #[prost(message, optional, tag = "2")]
    pub scan: Option<Scan>,
    #[prost(uint32, optional, tag = "4")]
    pub rows: Option<u32>,
    #[prost(bool, optional, tag = "5")]
    pub close: Option<bool>,
    #[prost(uint32, optional, tag = "11")]
    pub limit_rows: Option<u32>,
}

/// The rows of a scan: how many cells each has of those that follow the message.
#[derive(Clone, PartialEq, Message)]
pub struct ScanResponse {
    #[prost(uint32, repeated, packed = "false", tag = "1")]
    pub cells_of_rows: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Action {
    #[prost(uint32, optional, tag = "1")]
    pub index: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub mutation: Option<Mutation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegionAction {
    #[prost(message, required, tag = "1")]
    pub region: Region,
    #[prost(message, repeated, tag = "3")]
    pub actions: Vec<Action>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MultiRequest {
    #[prost(message, repeated, tag = "1")]
    pub regions: Vec<RegionAction>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NameBytes {
    #[prost(string, required, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ActionResult {
    #[prost(message, optional, tag = "3")]
    pub exception: Option<NameBytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegionResult {
    #[prost(message, repeated, tag = "1")]
    pub actions: Vec<ActionResult>,
    #[prost(message, optional, tag = "2")]
    pub exception: Option<NameBytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MultiResponse {
    #[prost(message, repeated, tag = "1")]
    pub regions: Vec<RegionResult>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TableName {
    #[prost(bytes = "vec", required, tag = "1")]
    pub namespace: Vec<u8>,
    #[prost(bytes = "vec", required, tag = "2")]
    pub name: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BytesPair {
    #[prost(bytes = "vec", required, tag = "1")]
    pub first: Vec<u8>,
    #[prost(bytes = "vec", required, tag = "2")]
    pub second: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FamilySchema {
    #[prost(bytes = "vec", required, tag = "1")]
    pub name: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub attributes: Vec<BytesPair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TableSchema {
    #[prost(message, optional, tag = "1")]
    pub name: Option<TableName>,
    #[prost(message, repeated, tag = "3")]
    pub families: Vec<FamilySchema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateTableRequest {
    #[prost(message, required, tag = "1")]
    pub table: TableSchema,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateTableResponse {
    #[prost(uint64, optional, tag = "1")]
    pub procedure: Option<u64>,
}

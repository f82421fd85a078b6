//! Every limit of the engine, with its unit and its reason.

/// Bytes of one row that a read returns at most: Bigtable's documented limit of 256 MiB.
pub const ROW_READ_BYTES_MAX: u64 = 256 << 20;

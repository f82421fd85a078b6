//! read_rows

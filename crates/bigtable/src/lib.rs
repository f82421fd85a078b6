//! Bigtable's semantics over Tepui's storage engine: schema, mutations, filters, row-atomic operations
//! and the chunking of `ReadRows`. No transport: requests and responses are the API's messages, errors
//! carry a gRPC code and a text, and the server crate puts both on the wire.
//!
//! # The life of a write
//!
//! [`table::Table::mutate_row`] checks the request against [`limits`], [`mutation`] turns it into one
//! engine batch, and the tablet that holds the row applies that atomically.
//! [`check_and_mutate_row`](table::Table::check_and_mutate_row) and
//! [`read_modify_write_row`](table::Table::read_modify_write_row) first take the row's lock and read
//! the row as it is pending; what they write is computed by pure functions ([`mutation`], [`rmw`]).
//!
//! # The life of a read
//!
//! [`table::Table::read_rows`] normalizes the row set ([`rowset`]), lays it over the tablets
//! ([`tablets`]) and returns a [`read_rows::ReadRows`], which is pulled message by message: rows come
//! from the engine already narrowed by the filter's projection, the filter runs on merged rows, and
//! [`chunk`] cuts them into messages of bounded size.
//!
//! Through an [`authorized_view`], the rows and the projection are narrowed to what it lets through, and writes
//! are checked against it before they are compiled.

pub mod activity;
pub mod authorized_view;
pub mod bulk;
mod bulk_writes;
pub mod changes;
pub mod chunk;
pub mod error;
pub mod filter;
pub mod frame;
pub mod fuzzing;
pub mod gc;
pub mod idempotency;
pub mod limits;
pub mod mutation;
pub mod origin;
pub mod parts;
pub mod read_rows;
pub mod read_stats;
pub mod regex;
pub mod response;
pub mod rmw;
pub mod rowset;
pub mod sample;
pub mod schema;
mod selection;
pub mod sketch;
pub mod table;
pub mod tablets;
pub mod turn;
pub mod value_type;

pub use error::{Code, Error, Result};

#[cfg(test)]
#[path = "../tests/support/chunk_decoder.rs"]
mod chunk_decoder;
#[cfg(test)]
mod in_place;

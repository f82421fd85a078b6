//! What the tests of a table are made of.

pub mod chunk_decoder;
pub mod device;
pub mod model;

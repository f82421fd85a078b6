//! Change streams: what a committed batch looks like in one, and where a reader of one stands.
//!
//! * [`message`]: a batch as `DataChange` messages of bounded size.
//! * [`token`]: a position in a partition, as the text that clients keep.
//! * [`partition`]: the row ranges of requests and tokens.

pub mod message;
pub mod partition;
pub mod token;

//! What clients may have in the server's memory at a time: bytes of requests, and bytes of answers that they have
//! not read.
//!
//! ```text
//!             ┌ requests ─ a message's bytes are taken from the budget before they are read ─► decoded, carried out
//! connection ─┤
//!             └ answers ── a message's bytes are taken before it is made ─► given back when the client took it ([`paced`])
//! ```
//!
//! Whoever finds the budget used up waits, and HTTP/2's windows make its client wait. A request that has waited for
//! [`REQUEST_WAIT`](crate::limits::REQUEST_WAIT) is refused with a hint when to try again. Answers are held up by
//! clients that do not read; one connection may hold only a part of the budget, and where all of it is held, the
//! connection that has held most for longest is closed. So is the one that keeps most room of requests, where reads that their clients
//! have left keep half of it and others are refused.

pub mod connection;
pub mod gated;
mod loose;
pub mod paced;
pub mod rate;
pub mod requests;
pub mod streams;
pub mod ungated;

pub use connection::{Accepted, Arrived, Connection, UnderWay};
pub use gated::Gated;
pub use paced::Paced;
pub use requests::{Gate, GatedBody, Hold, Inbound};
pub use streams::{Answer, Lent, Streams};
pub use ungated::Ungated;

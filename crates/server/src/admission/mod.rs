//! What clients may have in the server's memory at a time: bytes of requests, and bytes of answers that they have
//! not read.
//!
//! ```text
//!             ┌ requests ─ a message's bytes are taken from the budget before they are read ─► decoded, carried out
//! connection ─┤
//!             └ answers ── a message's bytes are taken before it is made ─► given back when it was sent
//! ```
//!
//! Whoever finds the budget used up waits, and HTTP/2's windows make its client wait. A request that has waited for
//! [`REQUEST_WAIT`](crate::limits::REQUEST_WAIT) is refused with a hint when to try again. Answers are held up by
//! clients that do not read; one connection may hold only a part of the budget. Where that part is held by answers that its client has
//! left for long, others on it are refused; where the budget is, the connection that holds most of it so is closed.

pub mod charge;
pub mod connection;
pub mod gated;
pub mod rate;
pub mod requests;
mod slot;
pub mod streams;

pub use charge::Handed;
pub use connection::{Accepted, Connection};
pub use gated::Gated;
pub use requests::{Gate, Hold};
pub use streams::{Answer, Streams};

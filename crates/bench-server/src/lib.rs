//! `bench-server`: the bars of Tepui's server, measured over gRPC with the clients of `tepui bench server`.
//!
//! * [`host`]: a server in this process, as `tepui serve` runs one, whose threads are told from the clients'.
//! * [`slow_disk`]: one in a process of its own, whose disk takes few bytes a second.
//! * [`threads`]: what the threads of a kind use: processor time, and allocations ([`counting`]).
//! * [`echo`]: what gRPC costs at least: the same messages without a database.
//! * [`bad_clients`]: clients that do not read, send too much, or go away; [`priority`]: whose threads go first.
//! * [`emulator`]: Google's emulator as another process.
//! * [`groups`]: the bars; [`bench`] what they share.

pub mod bad_clients;
pub mod bench;
pub mod counting;
pub mod echo;
pub mod emulator;
pub mod groups;
pub mod host;
pub mod priority;
pub mod slow_disk;
pub mod threads;

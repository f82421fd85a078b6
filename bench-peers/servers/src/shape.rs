//! What all servers are asked for alike.

/// Operations under way at once, as the bars say.
pub const IN_FLIGHT: usize = 64;
/// Threads of the clients: one for each core of a small machine.
pub const THREADS: usize = 2;
/// Connections: enough that a server spreads them over its threads about evenly.
pub const CONNECTIONS: usize = 16;
/// Requests of many rows that are under way while loading.
pub const LOAD_IN_FLIGHT: usize = 16;

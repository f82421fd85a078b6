//! What all servers are asked for alike.

/// Operations under way at once, as the bars say.
pub const IN_FLIGHT: usize = 64;
/// Threads of the clients: one for each core of a small machine.
pub const THREADS: usize = 2;
/// Connections: two for each of the client's threads. A client keeps few; requests that share one share its system calls too.
pub const CONNECTIONS: usize = 4;
/// Requests of many rows that are under way while loading.
pub const LOAD_IN_FLIGHT: usize = 16;

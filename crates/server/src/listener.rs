//! One listening socket per core on one port. The kernel spreads new connections over them
//! (`SO_REUSEPORT`), so that no accepting thread stands between; whichever core accepts one may hand it on
//! ([`crate::placement`]).
//!
//! Sharing a port must not go further than this process: another server that the operator forgot about
//! would silently get half of the connections. So the port is first taken without sharing, which fails
//! where anyone else listens, and only then shared.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::limits::ACCEPT_BACKLOG;

/// Binds `count` non-blocking sockets to an address. Port 0 takes a free port, the same for all.
pub fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    let alone = listen(address, false)?;
    let address = alone.local_addr()?;
    drop(alone);
    (0..count).map(|_| listen(address, true)).collect()
}

/// Fails where an address is none of this machine's, or somebody listens there. Nothing listens meanwhile, so that no client waits in vain.
pub fn check(address: SocketAddr) -> io::Result<()> {
    bound(address, false).map(drop)
}

fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = bound(address, shared)?;
    rustix::net::listen(&socket, ACCEPT_BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn bound(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of an earlier run that linger in TIME_WAIT do not keep the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn all_sockets_share_one_free_port() {
        let listeners = bind(loopback(), 3).unwrap();
        let ports: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap().port()).collect();
        assert_ne!(ports[0], 0);
        assert_eq!(ports, [ports[0]; 3]);
    }

    #[test]
    fn a_port_that_a_server_listens_on_is_refused() {
        let first = bind(loopback(), 2).unwrap();
        let address = first[0].local_addr().unwrap();
        let error = bind(address, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(check(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        check(address).unwrap();
        bind(address, 2).unwrap();
    }
}

//! Listeners: one a worker, all on the same address, the kernel spreading the connections.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted, a listener.
const BACKLOG: i32 = 1024;

/// `many` listeners on `address` (port 0: all on the port that was free) that nobody else has.
///
/// SO_REUSEPORT alone would let a second tollgate onto the same port, each with half of the calls and all of the
/// limit. So the first socket is bound without it, which fails where anybody is, and shares the port only afterwards.
pub(crate) fn bind(address: SocketAddr, many: usize) -> io::Result<Vec<TcpListener>> {
    let first = socket(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..many {
        let next = socket(address)?;
        next.set_reuse_port(true)?;
        next.bind(&bound)?;
        sockets.push(next);
    }
    sockets.into_iter().map(listener).collect()
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the connections of the last run to be forgotten.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn listener(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn any_port() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn all_listen_on_one_port_and_every_connection_reaches_one() {
        let listeners = bind(any_port(), 3).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert!(listeners.iter().all(|listener| listener.local_addr().unwrap() == address));
        let _clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accepted = listeners.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count());
        let accepted: Vec<_> = accepted.collect();
        assert_eq!(accepted.iter().sum::<usize>(), 64);
        // The odds that one of three gets none of 64 are 1 in 10^11.
        assert!(accepted.iter().all(|many| *many > 0), "{accepted:?}");
    }

    #[test]
    fn a_port_that_is_shared_already_is_in_use() {
        let listeners = bind(any_port(), 2).unwrap();
        let taken = bind(listeners[0].local_addr().unwrap(), 2).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}

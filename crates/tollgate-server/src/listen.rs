//! Listeners: one a worker, all on the same address, the kernel spreading the connections.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;

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

/// Lets nobody begin to connect any more, while those who have are still accepted. To close a listener resets whoever waits in
/// its queue, and somebody always does; so its queue must be emptied first, and nobody may come meanwhile. What is left out is
/// tried again by the client's system a second later, and refused then, as it is where nobody listens.
#[cfg(target_os = "linux")]
pub(crate) fn close_door(listener: &impl AsFd) -> io::Result<()> {
    use socket2::{SockFilter, SockRef};
    // The byte of a TCP header that has the flags, and the flag of a first packet.
    const FLAGS: u32 = 13;
    const SYN: u32 = 2;
    // Load a byte; go on if the flag is set, else skip one; return nothing of the packet; return all of it.
    const FILTER: [(u16, u8, u8, u32); 4] =
        [(0x30, 0, 0, FLAGS), (0x45, 0, 1, SYN), (0x06, 0, 0, 0), (0x06, 0, 0, u32::MAX)];
    let filter = FILTER.map(|(code, jump, skip, value)| SockFilter::new(code, jump, skip, value));
    SockRef::from(listener).attach_filter(&filter)
}

/// Other systems have no such door.
#[cfg(not(target_os = "linux"))]
pub(crate) fn close_door(_: &impl AsFd) -> io::Result<()> {
    Ok(())
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

    /// The connection that was there before the door closed is served, and none comes after it.
    #[test]
    #[cfg(target_os = "linux")]
    fn behind_a_closed_door_nobody_waits() {
        use std::time::Duration;
        let listener = bind(any_port(), 1).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let _before = TcpStream::connect(address).unwrap();
        close_door(&listener).unwrap();
        let after = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert_eq!(after.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(listener.accept().is_ok());
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_port_that_is_shared_already_is_in_use() {
        let listeners = bind(any_port(), 2).unwrap();
        let taken = bind(listeners[0].local_addr().unwrap(), 2).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}

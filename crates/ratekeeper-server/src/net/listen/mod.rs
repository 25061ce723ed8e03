//! Listeners: one per worker, all on the same address or Unix socket. The kernel spreads the
//! connections.

mod unix;

use crate::config::Listen;
use crate::net::stream::Stream;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::TcpListener;
use unix::BoundUnixSocket;

/// The length of a listener's accept queue.
const BACKLOG: i32 = 1024;

/// The pause after a failed accept, for example when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket that no runtime has registered yet.
pub(crate) enum BoundSocket {
    Tcp(std::net::TcpListener),
    Unix(BoundUnixSocket),
}

impl BoundSocket {
    /// Its address, with the actual port if port 0 was requested.
    pub(crate) fn address(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(socket) => Ok(Listen::Unix(socket.path().to_owned())),
        }
    }

    /// Registers the socket with the runtime that this is called in.
    pub(crate) fn listener(self) -> io::Result<Listener> {
        match self {
            Self::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
            Self::Unix(socket) => socket
                .listener()
                .map(|(listener, socket)| Listener::Unix(listener, socket)),
        }
    }
}

/// A registered listener, which accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(tokio::net::UnixListener, BoundUnixSocket),
}

impl Listener {
    /// Accepts the next connection. The peer address is `None` on a Unix socket.
    pub(crate) async fn accept(&self) -> (Stream, Option<SocketAddr>) {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| {
                    // A response is one small packet; with Nagle's algorithm it may wait for the
                    // client's ACK.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY");
                    }
                    (Stream::Plain(stream), Some(peer))
                }),
                Self::Unix(listener, _) => listener
                    .accept()
                    .await
                    .map(|(stream, _)| (Stream::Unix(stream), None)),
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Stops new connections, while those that are established can still be accepted.
    pub(crate) fn refuse_new_connections(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => refuse_new_connections(listener),
            Self::Unix(_, socket) => {
                socket.close();
                Ok(())
            }
        }
    }
}

/// Binds `count` listeners to an address that no other process uses.
pub(crate) fn bind(address: &Listen, count: usize) -> io::Result<Vec<BoundSocket>> {
    match address {
        Listen::Unix(path) => Ok(unix::bind(path, count)?
            .into_iter()
            .map(BoundSocket::Unix)
            .collect()),
        Listen::Tcp(address) => Ok(bind_tcp(*address, count)?
            .into_iter()
            .map(BoundSocket::Tcp)
            .collect()),
    }
}

/// Binds `count` listeners to `address`, which no other process may use. With port 0 all get the
/// same free port.
///
/// SO_REUSEPORT alone would let a second ratekeeper onto the same port, each with half of the calls
/// and all of the limit. So the first socket is bound without it, which fails if the port is in
/// use, and shares the port only afterwards.
fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<Vec<std::net::TcpListener>> {
    let first = socket(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..count {
        let next = socket(address)?;
        next.set_reuse_port(true)?;
        next.bind(&bound)?;
        sockets.push(next);
    }
    sockets.into_iter().map(listener).collect()
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for connections of the last run in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn listener(socket: Socket) -> io::Result<std::net::TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Drops SYN packets with a socket filter. Closing a listener resets the connections in its queue,
/// so the queue must be emptied first, and no new one may come meanwhile. The client sends a
/// dropped SYN again a second later, and is then rejected, as on a closed port.
#[cfg(target_os = "linux")]
fn refuse_new_connections(listener: &impl AsFd) -> io::Result<()> {
    use socket2::{SockFilter, SockRef};
    // The byte of a TCP header that has the flags, and the SYN flag.
    const FLAGS: u32 = 13;
    const SYN: u32 = 2;
    // Load a byte; continue if the flag is set, else skip one; return nothing of the packet; return
    // all of it.
    const FILTER: [(u16, u8, u8, u32); 4] = [
        (0x30, 0, 0, FLAGS),
        (0x45, 0, 1, SYN),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, u32::MAX),
    ];
    let filter = FILTER.map(|(code, jump, skip, value)| SockFilter::new(code, jump, skip, value));
    SockRef::from(listener).attach_filter(&filter)
}

/// Other systems have no socket filters.
#[cfg(not(target_os = "linux"))]
fn refuse_new_connections(_: &impl AsFd) -> io::Result<()> {
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
    fn all_listeners_share_one_port_and_each_gets_connections() {
        let listeners = bind_tcp(any_port(), 3).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert!(
            listeners
                .iter()
                .all(|listener| listener.local_addr().unwrap() == address)
        );
        let _clients: Vec<_> = (0..64)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let accepted = listeners
            .iter()
            .map(|listener| std::iter::from_fn(|| listener.accept().ok()).count());
        let accepted: Vec<_> = accepted.collect();
        assert_eq!(accepted.iter().sum::<usize>(), 64);
        // The probability that one of three gets none of 64 is 1 in 10^11.
        assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
    }

    /// A connection established before is served, and none can be established after.
    #[test]
    #[cfg(target_os = "linux")]
    fn no_connection_is_established_after_new_ones_are_rejected() {
        use std::time::Duration;
        let listener = bind_tcp(any_port(), 1).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let _before = TcpStream::connect(address).unwrap();
        refuse_new_connections(&listener).unwrap();
        let after = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        assert_eq!(after.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(listener.accept().is_ok());
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn a_port_shared_by_another_process_is_in_use() {
        let listeners = bind_tcp(any_port(), 2).unwrap();
        let taken = bind_tcp(listeners[0].local_addr().unwrap(), 2).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}

//! [`FaultProxy`]: a TCP proxy in front of a server, whose faults can be switched while it runs.
//!
//! TCP never loses bytes from the middle of a connection, so neither does the proxy: a connection
//! from which it has dropped bytes stays silent in that direction, and is closed when the fault
//! changes. Otherwise a client would take the next reply for the one it missed, which no network
//! does to it.

mod connection;

use crate::ports;
use connection::{Direction, ProxiedConnection, pump};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The timeout for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the network does to all connections, existing and new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fault {
    /// No fault: bytes are forwarded at once.
    #[default]
    None,
    /// The server gets every request, the client no reply.
    DropReplies,
    /// The server gets no request.
    DropRequests,
    /// Connections are closed, and new ones as soon as they are accepted.
    Cut,
    /// Replies are delayed; they keep their order.
    Delay(Duration),
    /// Requests are delayed, so the server decides later than the client thinks.
    DelayRequests(Duration),
    /// Replies are replaced by as many bytes that are not RESP.
    Garble,
    /// The first half of what the server sends next arrives, then nothing more.
    HalfReply,
}

/// A proxy on a port of its own. Its threads and connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    shared: Arc<ProxyState>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyState {
    state: Mutex<FaultState>,
    ended: AtomicBool,
    accepted: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
    bytes_swallowed: AtomicU64,
}

#[derive(Debug, Default)]
struct FaultState {
    fault: Fault,
    connections: Vec<Arc<ProxiedConnection>>,
}

impl FaultProxy {
    /// Starts a proxy to this port of this machine, without a fault.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub fn to(server: u16) -> Self {
        let (listener, port) = ports::listen();
        let shared = Arc::new(ProxyState {
            state: Mutex::default(),
            ended: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            bytes_to_server: AtomicU64::new(0),
            bytes_to_client: AtomicU64::new(0),
            bytes_swallowed: AtomicU64::new(0),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, server, &shared)
        });
        Self {
            port,
            shared,
            accepting: Some(accepting),
        }
    }

    /// The port to which clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes the fault from now on. Closes connections that have lost bytes.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        if state.fault == fault {
            return;
        }
        state.fault = fault;
        for connection in &state.connections {
            if fault == Fault::Cut || connection.has_lost_bytes() {
                connection.close();
            }
        }
    }

    /// The current fault.
    pub fn fault(&self) -> Fault {
        self.shared.lock().fault
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.shared
            .lock()
            .connections
            .iter()
            .filter(|connection| connection.is_open())
            .count()
    }

    /// The number of connections ever accepted, including those that a [`Fault::Cut`] closed at
    /// once.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// The bytes that were forwarded to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.bytes_to_server.load(Ordering::Relaxed)
    }

    /// The bytes that were forwarded to clients, including garbage.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.bytes_to_client.load(Ordering::Relaxed)
    }

    /// The bytes that were lost, in both directions: a test can see by this that a fault took
    /// effect. Bytes still in transit when the fault ended are not lost.
    pub fn bytes_swallowed(&self) -> u64 {
        self.shared.bytes_swallowed.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.set(Fault::Cut);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl ProxyState {
    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forwarded_bytes(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Requests => &self.bytes_to_server,
            Direction::Replies => &self.bytes_to_client,
        }
    }
}

/// Accepts until the proxy ends, then waits for all threads it has started.
fn accept(listener: &TcpListener, server: u16, shared: &Arc<ProxyState>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let client = listener.accept();
        if shared.ended.load(Ordering::Acquire) {
            break;
        }
        let Ok((client, _)) = client else { continue };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        pumps.retain(|pump| !pump.is_finished());
        // A client whose server connection fails is closed by being dropped.
        let _ = open(client, server, shared).map(|opened| pumps.extend(opened));
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

fn open(
    client: TcpStream,
    server: u16,
    shared: &Arc<ProxyState>,
) -> io::Result<[JoinHandle<()>; 2]> {
    if shared.lock().fault == Fault::Cut {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let server = TcpStream::connect_timeout(
        &SocketAddr::from((Ipv4Addr::LOCALHOST, server)),
        CONNECT_TIMEOUT,
    )?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let connection = Arc::new(ProxiedConnection::new(
        client.try_clone()?,
        server.try_clone()?,
    ));
    {
        let mut state = shared.lock();
        // It may have been cut meanwhile.
        if state.fault == Fault::Cut {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        state.connections.retain(|connection| connection.is_open());
        state.connections.push(Arc::clone(&connection));
    }
    let (from_client, to_client) = (client.try_clone()?, client);
    let (from_server, to_server) = (server.try_clone()?, server);
    let start = |direction, from: TcpStream, to: TcpStream| {
        let (shared, connection) = (Arc::clone(shared), Arc::clone(&connection));
        thread::spawn(move || {
            pump(direction, from, to, &shared, &connection);
            connection.close();
        })
    };
    Ok([
        start(Direction::Requests, from_client, to_server),
        start(Direction::Replies, from_server, to_client),
    ])
}

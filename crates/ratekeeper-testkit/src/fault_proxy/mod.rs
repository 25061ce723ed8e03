//! A TCP proxy before a server, whose faults are switched while it runs.
//!
//! TCP never loses bytes from the middle of a connection, so neither does the proxy: a connection
//! from which it has swallowed something stays silent in that direction, and is closed when the
//! fault changes. Without that, a client would take the next reply for the one it missed, which no
//! network does to it.

mod link;

use crate::ports;
use link::{Direction, Link, pump};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long a connection to the server may take; on one machine it takes no time.
const CONNECT: Duration = Duration::from_secs(5);

/// What the network does to all connections, old and new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing: bytes pass at once.
    #[default]
    None,
    /// The server gets every request, the client no reply.
    DropReplies,
    /// The server gets no request.
    DropRequests,
    /// Connections are closed, and new ones as soon as they are made.
    Cut,
    /// Replies come that much later; they keep their order.
    Delay(Duration),
    /// Requests arrive that much later, so the server decides later than the client thinks.
    DelayRequests(Duration),
    /// Replies are replaced by as many bytes that are no RESP.
    Garble,
    /// The first half of what the server sends next arrives, then nothing more.
    HalfReply,
}

/// A proxy on a port of its own. Its threads and connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ended: AtomicBool,
    accepted: AtomicU64,
    bytes_to_server: AtomicU64,
    bytes_to_client: AtomicU64,
    bytes_swallowed: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    links: Vec<Arc<Link>>,
}

impl FaultProxy {
    /// A proxy to that port of this machine, with no fault yet.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub fn to(server: u16) -> Self {
        let (listener, port) = ports::listen();
        let shared = Arc::new(Shared {
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

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Changes what the network does, from now on. Closes connections that have lost something.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        if state.fault == fault {
            return;
        }
        state.fault = fault;
        for link in &state.links {
            if fault == Fault::Cut || link.lost_something() {
                link.close();
            }
        }
    }

    /// What the network does now.
    pub fn fault(&self) -> Fault {
        self.shared.lock().fault
    }

    /// The connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared
            .lock()
            .links
            .iter()
            .filter(|link| link.is_open())
            .count()
    }

    /// The connections that were ever made, with those that a [`Fault::Cut`] closed at once.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// The bytes that were passed on to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.bytes_to_server.load(Ordering::Relaxed)
    }

    /// The bytes that were passed on to clients, garbage too.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.bytes_to_client.load(Ordering::Relaxed)
    }

    /// The bytes that were lost, both ways: by this a test knows that a fault has struck. What was
    /// still under way when the fault ended is not lost.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Requests => &self.bytes_to_server,
            Direction::Replies => &self.bytes_to_client,
        }
    }
}

/// Accepts until the proxy ends, then waits for all it has started.
fn accept(listener: &TcpListener, server: u16, shared: &Arc<Shared>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let client = listener.accept();
        if shared.ended.load(Ordering::Acquire) {
            break;
        }
        let Ok((client, _)) = client else { continue };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        pumps.retain(|pump| !pump.is_finished());
        // Whoever cannot be connected is closed by being dropped.
        let _ = open(client, server, shared).map(|opened| pumps.extend(opened));
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

fn open(client: TcpStream, server: u16, shared: &Arc<Shared>) -> io::Result<[JoinHandle<()>; 2]> {
    if shared.lock().fault == Fault::Cut {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let server =
        TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, server)), CONNECT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let link = Arc::new(Link::new(client.try_clone()?, server.try_clone()?));
    {
        let mut state = shared.lock();
        // It may have been cut meanwhile.
        if state.fault == Fault::Cut {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        state.links.retain(|link| link.is_open());
        state.links.push(Arc::clone(&link));
    }
    let (from_client, to_client) = (client.try_clone()?, client);
    let (from_server, to_server) = (server.try_clone()?, server);
    let start = |direction, from: TcpStream, to: TcpStream| {
        let (shared, link) = (Arc::clone(shared), Arc::clone(&link));
        thread::spawn(move || {
            pump(direction, from, to, &shared, &link);
            link.close();
        })
    };
    Ok([
        start(Direction::Requests, from_client, to_server),
        start(Direction::Replies, from_server, to_client),
    ])
}

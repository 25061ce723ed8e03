//! [`ProxiedConnection`]: one connection through the proxy, and the threads that forward its bytes.

use super::{Fault, ProxyState};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes read at once.
const MAX_READ: usize = 64 * 1024;
/// The interval between checks whether a connection was closed.
const POLL: Duration = Duration::from_millis(2);

/// The direction in which bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// Both ends of a connection.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    has_lost_bytes: AtomicBool,
    closed: AtomicBool,
}

impl ProxiedConnection {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> Self {
        Self {
            client,
            server,
            has_lost_bytes: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn has_lost_bytes(&self) -> bool {
        self.has_lost_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    /// Closes both ends, which ends the threads that read from them.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// What to do with bytes that were just read.
enum ForwardAction {
    Forward(usize, Duration),
    Garble,
}

/// Forwards bytes in one direction until either end closes. Bytes that were in transit when their
/// sender closed still arrive.
pub(super) fn pump(
    direction: Direction,
    mut from: TcpStream,
    mut to: TcpStream,
    shared: &ProxyState,
    connection: &ProxiedConnection,
) {
    let mut buffer = vec![0; MAX_READ];
    let mut delayed: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    // This direction has lost bytes, so nothing may follow them.
    let mut silent = false;
    let mut sender_closed = false;
    loop {
        while delayed
            .front()
            .is_some_and(|(due, _)| *due <= Instant::now())
        {
            let (_, bytes) = delayed.pop_front().expect("there is a first one");
            // Counted first, so that a receiver finds them counted.
            shared
                .forwarded_bytes(direction)
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let wait = delayed
            .front()
            .map(|(due, _)| due.saturating_duration_since(Instant::now()));
        if sender_closed {
            let Some(wait) = wait.filter(|_| connection.is_open()) else {
                return;
            };
            thread::sleep(wait.min(POLL));
            continue;
        }
        // A timeout of zero is an error.
        if from
            .set_read_timeout(wait.map(|wait| wait.max(Duration::from_micros(1))))
            .is_err()
        {
            return;
        }
        let read = match from.read(&mut buffer) {
            Ok(0) => {
                sender_closed = true;
                continue;
            }
            Ok(read) => read,
            Err(error) if is_timeout(error.kind()) => continue,
            Err(_) => return,
        };
        let action = {
            // Locked while it is decided, so that a thread that changes the fault knows what was
            // lost before.
            let state = shared.lock();
            let action = if silent {
                ForwardAction::Forward(0, Duration::ZERO)
            } else {
                action(direction, state.fault, read)
            };
            if let ForwardAction::Forward(passed, _) = action
                && passed < read
            {
                silent = true;
                connection.has_lost_bytes.store(true, Ordering::Relaxed);
                shared
                    .bytes_swallowed
                    .fetch_add((read - passed) as u64, Ordering::Relaxed);
            }
            action
        };
        let (bytes, delay) = match action {
            ForwardAction::Forward(0, _) => continue,
            ForwardAction::Forward(passed, delay) => (buffer[..passed].to_vec(), delay),
            ForwardAction::Garble => (garbage(read), Duration::ZERO),
        };
        delayed.push_back((Instant::now() + delay, bytes));
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// A line that no reply begins with, so that a client that reads lines sees it too.
fn garbage(length: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; length];
    if let Some(end) = bytes.last_chunk_mut() {
        *end = *b"\r\n";
    }
    bytes
}

fn action(direction: Direction, fault: Fault, read: usize) -> ForwardAction {
    use Direction::{Replies, Requests};
    match (fault, direction) {
        (Fault::DropReplies, Replies) | (Fault::DropRequests, Requests) | (Fault::Cut, _) => {
            ForwardAction::Forward(0, Duration::ZERO)
        }
        (Fault::Delay(delay), Replies) | (Fault::DelayRequests(delay), Requests) => {
            ForwardAction::Forward(read, delay)
        }
        (Fault::Garble, Replies) => ForwardAction::Garble,
        (Fault::HalfReply, Replies) => ForwardAction::Forward(read / 2, Duration::ZERO),
        _ => ForwardAction::Forward(read, Duration::ZERO),
    }
}

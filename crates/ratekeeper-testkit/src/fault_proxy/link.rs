//! One connection through the proxy, and the threads that carry its bytes.

use super::{Fault, Shared};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The most that is read at once.
const CHUNK: usize = 64 * 1024;
/// Between two looks at whether a connection was closed.
const LOOK: Duration = Duration::from_millis(2);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// Both ends of a connection.
#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    lost_something: AtomicBool,
    closed: AtomicBool,
}

impl Link {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> Self {
        Self {
            client,
            server,
            lost_something: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn lost_something(&self) -> bool {
        self.lost_something.load(Ordering::Relaxed)
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

/// What becomes of bytes that were just read.
enum Fate {
    Pass(usize, Duration),
    Garble,
}

/// Carries bytes one way until either end closes. What was under way when its sender closed still
/// arrives.
pub(super) fn pump(
    direction: Direction,
    mut from: TcpStream,
    mut to: TcpStream,
    shared: &Shared,
    link: &Link,
) {
    let mut buffer = vec![0; CHUNK];
    let mut late: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    // This direction has lost bytes, so nothing may follow them.
    let mut silent = false;
    let mut sender_closed = false;
    loop {
        while late.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let (_, bytes) = late.pop_front().expect("there is a first one");
            // Counted first, so that whoever has them finds them counted.
            shared
                .passed(direction)
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let wait = late
            .front()
            .map(|(due, _)| due.saturating_duration_since(Instant::now()));
        if sender_closed {
            let Some(wait) = wait.filter(|_| link.is_open()) else {
                return;
            };
            thread::sleep(wait.min(LOOK));
            continue;
        }
        // A wait of zero would be refused.
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
        let fate = {
            // Held while it is decided, so that whoever changes the fault knows what was lost
            // before.
            let state = shared.lock();
            let fate = if silent {
                Fate::Pass(0, Duration::ZERO)
            } else {
                fate(direction, state.fault, read)
            };
            if let Fate::Pass(passed, _) = fate
                && passed < read
            {
                silent = true;
                link.lost_something.store(true, Ordering::Relaxed);
                shared
                    .bytes_swallowed
                    .fetch_add((read - passed) as u64, Ordering::Relaxed);
            }
            fate
        };
        let (bytes, delay) = match fate {
            Fate::Pass(0, _) => continue,
            Fate::Pass(passed, delay) => (buffer[..passed].to_vec(), delay),
            Fate::Garble => (garbage(read), Duration::ZERO),
        };
        late.push_back((Instant::now() + delay, bytes));
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// A line that no reply begins with, so that a client which reads lines sees it too.
fn garbage(length: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; length];
    if let Some(end) = bytes.last_chunk_mut() {
        *end = *b"\r\n";
    }
    bytes
}

fn fate(direction: Direction, fault: Fault, read: usize) -> Fate {
    use Direction::{Replies, Requests};
    match (fault, direction) {
        (Fault::DropReplies, Replies) | (Fault::DropRequests, Requests) | (Fault::Cut, _) => {
            Fate::Pass(0, Duration::ZERO)
        }
        (Fault::Delay(delay), Replies) | (Fault::DelayRequests(delay), Requests) => {
            Fate::Pass(read, delay)
        }
        (Fault::Garble, Replies) => Fate::Garble,
        (Fault::HalfReply, Replies) => Fate::Pass(read / 2, Duration::ZERO),
        _ => Fate::Pass(read, Duration::ZERO),
    }
}

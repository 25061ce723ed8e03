//! The signals that a server is told what to do by.

use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for something.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// What a signal asks for.
pub(crate) enum SignalRequest {
    Stop(&'static str),
    Reload,
}

impl Signals {
    pub(crate) fn new(hang_up: Signal) -> io::Result<Self> {
        let (terminate, interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        Ok(Self {
            terminate,
            interrupt,
            hang_up,
        })
    }

    /// Waits for one; none if none came for so long.
    pub(crate) async fn next_within(&mut self, most: Duration) -> Option<SignalRequest> {
        tokio::time::timeout(most, self.next()).await.ok()
    }

    /// Waits for one.
    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalRequest::Stop("SIGINT"),
            _ = self.hang_up.recv() => SignalRequest::Reload,
        }
    }
}

//! The signals of a server: SIGTERM and SIGINT stop it, SIGHUP reloads.

use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the signals.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// The action a signal requests.
pub(crate) enum SignalRequest {
    Stop(&'static str),
    Reload,
}

impl Signals {
    pub(crate) fn new(hang_up: Signal) -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up,
        })
    }

    /// Waits for the next signal. Returns `None` after `timeout`.
    pub(crate) async fn next_within(&mut self, timeout: Duration) -> Option<SignalRequest> {
        tokio::time::timeout(timeout, self.next()).await.ok()
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop("SIGTERM"),
            _ = self.interrupt.recv() => SignalRequest::Stop("SIGINT"),
            _ = self.hang_up.recv() => SignalRequest::Reload,
        }
    }
}

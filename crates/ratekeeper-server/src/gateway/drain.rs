//! The stages of stopping the gateway, shared by everything that serves a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A stage of stopping the gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    Serving,
    /// Clients are asked to close their connections, and served until they do.
    Draining,
    /// New connections are not accepted, and idle ones are closed.
    Stopping,
}

/// The current stage, and a notification of its changes.
#[derive(Default)]
pub(crate) struct Drain {
    stage: AtomicU8,
    changed: Arc<Notify>,
}

impl Drain {
    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(SeqCst) {
            0 => Stage::Serving,
            1 => Stage::Draining,
            _ => Stage::Stopping,
        }
    }

    /// Enters a stage, and notifies all connections.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, SeqCst);
        self.changed.notify_waiters();
    }

    /// A future that is ready when the stage has changed after this call.
    pub(crate) fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.changed).notified_owned()
    }
}

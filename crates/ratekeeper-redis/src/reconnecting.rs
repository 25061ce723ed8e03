//! A connection that is opened when it is needed and replaced when it fails.

use crate::connection::{Connection, Endpoint, Reply};
use crate::script::{Call, Script};
use crate::sentinel::Sentinels;
use crate::store_error::StoreError;
use redis::{Pipeline, Value};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A server's location, and how to connect to it.
pub(crate) struct Server {
    pub(crate) location: ServerLocation,
    pub(crate) connect_timeout: Duration,
    /// The server's address, for error messages in a Cluster.
    pub(crate) name: Option<String>,
}

/// Where to connect to.
pub(crate) enum ServerLocation {
    Fixed(Endpoint),
    /// The primary that these sentinels name when a connection is made.
    Sentinels(Sentinels),
}

impl Server {
    /// Opens a connection.
    async fn connect(&self) -> Result<Connection, StoreError> {
        match &self.location {
            ServerLocation::Fixed(endpoint) => endpoint
                .connect(self.connect_timeout)
                .await
                .map_err(|error| match (error, &self.name) {
                    (StoreError::Unreachable(reason), Some(name)) => {
                        StoreError::Unreachable(format!("{name}: {reason}"))
                    }
                    (error, _) => error,
                }),
            ServerLocation::Sentinels(sentinels) => sentinels.connect(self.connect_timeout).await,
        }
    }

    /// Whether connections lead to a server that is no longer the primary, though it may think so
    /// itself.
    pub(crate) async fn has_new_primary(&self) -> bool {
        match &self.location {
            ServerLocation::Fixed(_) => false,
            ServerLocation::Sentinels(sentinels) => sentinels.name_new_primary().await,
        }
    }
}

/// A connection that reconnects when it breaks.
pub(crate) struct ReconnectingConnection {
    server: Arc<Server>,
    slot: Arc<ConnectionSlot>,
}

#[derive(Default)]
struct ConnectionSlot {
    state: Mutex<ConnectionState>,
    changed: Notify,
}

#[derive(Default)]
enum ConnectionState {
    #[default]
    None,
    /// A task is connecting. It goes on if the caller that started it gives up.
    Connecting,
    /// The last attempt failed; for callers that waited for it.
    Failed(StoreError),
    Connected(Connection),
}

impl ReconnectingConnection {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            slot: Arc::default(),
        }
    }

    /// Closes the connection; the next command opens another.
    pub(crate) fn disconnect(&self) {
        let mut state = self.slot.lock();
        if matches!(*state, ConnectionState::Connected(_)) {
            *state = ConnectionState::None;
        }
    }

    async fn connection(&self) -> Result<Connection, StoreError> {
        let mut has_waited = false;
        loop {
            let changed = self.slot.changed.notified();
            {
                let mut state = self.slot.lock();
                match std::mem::take(&mut *state) {
                    ConnectionState::Connected(connection) => {
                        *state = ConnectionState::Connected(connection.clone());
                        return Ok(connection);
                    }
                    ConnectionState::Failed(error) if has_waited => {
                        *state = ConnectionState::Failed(error.clone());
                        return Err(error);
                    }
                    ConnectionState::Connecting => *state = ConnectionState::Connecting,
                    // A later caller tries again: what failed then may work now.
                    ConnectionState::None | ConnectionState::Failed(_) => {
                        *state = ConnectionState::Connecting;
                        let server = Arc::clone(&self.server);
                        let slot = Arc::clone(&self.slot);
                        tokio::spawn(async move {
                            let made = server.connect().await;
                            *slot.lock() = match made {
                                Ok(connection) => ConnectionState::Connected(connection),
                                Err(error) => ConnectionState::Failed(error),
                            };
                            slot.changed.notify_waiters();
                        });
                    }
                }
            }
            changed.await;
            has_waited = true;
        }
    }

    /// Runs scripts in one pipeline; the outcome of each.
    pub(crate) async fn run(&self, calls: &[ScriptRequest<'_>], time: Option<u64>) -> Vec<Reply> {
        let mut results: Vec<Reply> = calls.iter().map(|_| Err(StoreError::Broken)).collect();
        let mut pending: Vec<usize> = (0..calls.len()).collect();
        for last in [false, true] {
            let mut connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) => {
                    pending
                        .iter()
                        .for_each(|at| results[*at] = Err(error.clone()));
                    break;
                }
            };
            let Err(error) = run_on(&mut connection, calls, time, &mut pending, &mut results).await
            else {
                break;
            };
            for at in &pending {
                results[*at] = Err(error.clone());
            }
            if last || !matches!(error, StoreError::Unreachable(_)) {
                break;
            }
            self.disconnect();
            pending.retain(|at| calls[*at].may_resend);
            if pending.is_empty() {
                break;
            }
        }
        if results
            .iter()
            .any(|result| result.as_ref().is_err_and(StoreError::needs_new_connection))
        {
            self.disconnect();
        }
        results
    }

    /// Sends one command and returns its reply, which may have up to `max_reply` bytes.
    pub(crate) async fn send(
        &self,
        command: &redis::Cmd,
        max_reply: usize,
        asking: bool,
    ) -> Result<Value, StoreError> {
        let mut connection = self.connection().await?;
        let sent = if asking {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ASKING").add_command(command.clone());
            let answers = connection.ask_all(&pipeline, max_reply).await;
            answers.and_then(|mut answers| answers.pop().unwrap_or(Err(StoreError::Broken)))
        } else {
            connection.send(command, max_reply).await
        };
        if sent.as_ref().is_err_and(StoreError::needs_new_connection) {
            self.disconnect();
        }
        sent
    }
}

/// A call of a script.
pub(crate) struct ScriptRequest<'a> {
    pub(crate) call: Call,
    pub(crate) script: &'a Script,
    /// Whether it may be sent again when it is not known whether the first arrived.
    pub(crate) may_resend: bool,
    /// Whether to send `ASKING` first: the server is still importing the slot of the keys.
    pub(crate) asking: bool,
}

/// Runs the calls in `pending`, which then holds those that were not answered.
async fn run_on(
    connection: &mut Connection,
    calls: &[ScriptRequest<'_>],
    time: Option<u64>,
    pending: &mut Vec<usize>,
    results: &mut [Reply],
) -> Result<(), StoreError> {
    let max_reply = calls
        .iter()
        .map(|sent| sent.call.max_reply())
        .max()
        .unwrap_or(0);
    // First by hash. If the server does not know a script, send its long text once and the other
    // calls of it by hash; then all by text.
    for attempt in 0..3 {
        let by_text = |position: usize, at: usize| match attempt {
            0 => false,
            1 => !pending[..position]
                .iter()
                .any(|earlier| std::ptr::eq(calls[*earlier].script, calls[at].script)),
            _ => true,
        };
        let command = |(position, at): (usize, &usize)| {
            let ScriptRequest { call, script, .. } = &calls[*at];
            if by_text(position, *at) {
                call.by_text(script, time)
            } else {
                call.by_hash(script, time)
            }
        };
        let mut unknown = Vec::new();
        let mut note = |at: usize, answer: Reply| {
            if answer.as_ref().is_err_and(StoreError::is_no_script) {
                unknown.push(at);
            }
            results[at] = answer;
        };
        match &pending[..] {
            [] => return Ok(()),
            [at] if !calls[*at].asking => {
                note(*at, connection.ask(&command((0, at)), max_reply).await?);
            }
            indices => {
                let mut pipeline = Pipeline::with_capacity(indices.len());
                for (position, at) in indices.iter().enumerate() {
                    if calls[*at].asking {
                        pipeline.cmd("ASKING");
                    }
                    pipeline.add_command(command((position, at)));
                }
                let mut answers = connection.ask_all(&pipeline, max_reply).await?.into_iter();
                for at in indices {
                    if calls[*at].asking {
                        answers.next();
                    }
                    note(
                        *at,
                        answers
                            .next()
                            .ok_or_else(|| StoreError::Protocol("too few replies".to_owned()))?,
                    );
                }
            }
        }
        *pending = unknown;
    }
    pending.clear();
    Ok(())
}

impl ConnectionSlot {
    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! One connection to the server: made when it is needed, given up when it is of no use.

use crate::script::{Call, Script};
use crate::trouble::Trouble;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Where the server is, and how to get there.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) connect_timeout: Duration,
}

impl Server {
    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Trouble> {
        // Answers are waited for as long as callers do, which they say themselves.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1_024);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Trouble::of(&error)),
            Err(_) => Err(Trouble::Unreachable(format!("no connection within {:?}", self.connect_timeout))),
        }
    }
}

/// A connection that is made again when it breaks.
pub(crate) struct Link {
    server: Arc<Server>,
    slot: Arc<Slot>,
}

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
enum State {
    #[default]
    None,
    /// Somebody makes one, and goes on doing so if who asked first gives up.
    Connecting,
    /// Why there is none, for those who waited for it.
    Failed(Trouble),
    Connected(MultiplexedConnection),
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, slot: Arc::default() }
    }

    /// Gives up the connection.
    pub(crate) fn cut(&self) {
        let mut state = self.slot.lock();
        if matches!(*state, State::Connected(_)) {
            *state = State::None;
        }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Trouble> {
        let mut has_waited = false;
        loop {
            let changed = self.slot.changed.notified();
            {
                let mut state = self.slot.lock();
                match std::mem::take(&mut *state) {
                    State::Connected(connection) => {
                        *state = State::Connected(connection.clone());
                        return Ok(connection);
                    }
                    State::Failed(trouble) if has_waited => {
                        *state = State::Failed(trouble.clone());
                        return Err(trouble);
                    }
                    State::Connecting => *state = State::Connecting,
                    // Who comes later tries again: what failed then may not fail now.
                    State::None | State::Failed(_) => {
                        *state = State::Connecting;
                        let (server, slot) = (Arc::clone(&self.server), Arc::clone(&self.slot));
                        tokio::spawn(async move {
                            let made = server.connect().await;
                            *slot.lock() = match made {
                                Ok(connection) => State::Connected(connection),
                                Err(trouble) => State::Failed(trouble),
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

    /// Runs a script. `again`: whether it may be sent a second time where nobody knows whether the first arrived.
    pub(crate) async fn run(
        &self,
        call: &Call,
        script: &Script,
        time: Option<u64>,
        again: bool,
    ) -> Result<Value, Trouble> {
        for last in [false, true] {
            let mut connection = self.connection().await?;
            let mut sent = send(&mut connection, &call.by_hash(script, time)).await;
            if sent.as_ref().is_err_and(Trouble::is_no_script) {
                sent = send(&mut connection, &call.by_text(script, time)).await;
            }
            match sent {
                Err(trouble) if trouble.ends_the_connection() => {
                    self.cut();
                    if last || !again || !matches!(trouble, Trouble::Unreachable(_)) {
                        return Err(trouble);
                    }
                }
                sent => return sent,
            }
        }
        Err(Trouble::Broken)
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &redis::Cmd) -> Result<Value, Trouble> {
        let mut connection = self.connection().await?;
        let sent = send(&mut connection, command).await;
        if sent.as_ref().is_err_and(Trouble::ends_the_connection) {
            self.cut();
        }
        sent
    }
}

async fn send(connection: &mut MultiplexedConnection, command: &redis::Cmd) -> Result<Value, Trouble> {
    match connection.send_packed_command(command).await {
        Ok(Value::ServerError(error)) => Err(Trouble::of(&error.into())),
        Ok(value) => Ok(value),
        Err(error) => Err(Trouble::of(&error)),
    }
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! One connection to the server: made when it is needed, given up when it is of no use.

use crate::connection::{Connection, Endpoint, Reply};
use crate::script::{Call, Script};
use crate::sentinel::Sentinels;
use crate::store_error::StoreError;
use redis::{Pipeline, Value};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Where the server is, and how to get there.
pub(crate) struct Server {
    pub(crate) at: At,
    pub(crate) connect_timeout: Duration,
    /// Which of several it is, for whoever reads what is wrong with it.
    pub(crate) name: Option<String>,
}

pub(crate) enum At {
    One(Endpoint),
    /// The one that they name when a connection is made.
    Named(Sentinels),
}

impl Server {
    /// A new connection.
    async fn connect(&self) -> Result<Connection, StoreError> {
        match &self.at {
            At::One(endpoint) => endpoint
                .connect(self.connect_timeout)
                .await
                .map_err(|trouble| match (trouble, &self.name) {
                    (StoreError::Unreachable(why), Some(name)) => {
                        StoreError::Unreachable(format!("{name}: {why}"))
                    }
                    (trouble, _) => trouble,
                }),
            At::Named(sentinels) => sentinels.connect(self.connect_timeout).await,
        }
    }

    /// Whether connections lead to who is no primary any more, though it may think that it is.
    pub(crate) async fn is_another(&self) -> bool {
        match &self.at {
            At::One(_) => false,
            At::Named(sentinels) => sentinels.name_another().await,
        }
    }
}

/// A connection that is made again when it breaks.
pub(crate) struct ReconnectingConnection {
    server: Arc<Server>,
    slot: Arc<ConnectionSlot>,
}

#[derive(Default)]
struct ConnectionSlot {
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

    /// Gives up the connection.
    pub(crate) fn cut(&self) {
        let mut state = self.slot.lock();
        if matches!(*state, State::Connected(_)) {
            *state = State::None;
        }
    }

    async fn connection(&self) -> Result<Connection, StoreError> {
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

    /// Runs scripts, all in one piece; what came of each.
    pub(crate) async fn run(&self, calls: &[ScriptRequest<'_>], time: Option<u64>) -> Vec<Reply> {
        let mut results: Vec<Reply> = calls.iter().map(|_| Err(StoreError::Broken)).collect();
        let mut left: Vec<usize> = (0..calls.len()).collect();
        for last in [false, true] {
            let mut connection = match self.connection().await {
                Ok(connection) => connection,
                Err(trouble) => {
                    left.iter()
                        .for_each(|at| results[*at] = Err(trouble.clone()));
                    break;
                }
            };
            let Err(trouble) = run_on(&mut connection, calls, time, &mut left, &mut results).await
            else {
                break;
            };
            for at in &left {
                results[*at] = Err(trouble.clone());
            }
            if last || !matches!(trouble, StoreError::Unreachable(_)) {
                break;
            }
            self.cut();
            left.retain(|at| calls[*at].again);
            if left.is_empty() {
                break;
            }
        }
        if results
            .iter()
            .any(|result| result.as_ref().is_err_and(StoreError::ends_the_connection))
        {
            self.cut();
        }
        results
    }

    /// Sends one command, whose reply is no longer than that.
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
        if sent.as_ref().is_err_and(StoreError::ends_the_connection) {
            self.cut();
        }
        sent
    }
}

/// A script to be run.
pub(crate) struct ScriptRequest<'a> {
    pub(crate) call: Call,
    pub(crate) script: &'a Script,
    /// Whether it may be sent a second time where nobody knows whether the first arrived.
    pub(crate) again: bool,
    /// Whether the server is to answer for keys that it is only about to get.
    pub(crate) asking: bool,
}

/// Runs those that are `left`, which becomes those that were not answered.
async fn run_on(
    connection: &mut Connection,
    calls: &[ScriptRequest<'_>],
    time: Option<u64>,
    left: &mut Vec<usize>,
    results: &mut [Reply],
) -> Result<(), StoreError> {
    let max_reply = calls
        .iter()
        .map(|sent| sent.call.max_reply())
        .max()
        .unwrap_or(0);
    // By their hashes; if the server does not know those, the first of each by its text, which is
    // long; then all.
    for attempt in 0..3 {
        let by_text = |place: usize, at: usize| match attempt {
            0 => false,
            1 => !left[..place]
                .iter()
                .any(|earlier| std::ptr::eq(calls[*earlier].script, calls[at].script)),
            _ => true,
        };
        let command = |(place, at): (usize, &usize)| {
            let ScriptRequest { call, script, .. } = &calls[*at];
            if by_text(place, *at) {
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
        match &left[..] {
            [] => return Ok(()),
            [at] if !calls[*at].asking => {
                note(*at, connection.ask(&command((0, at)), max_reply).await?)
            }
            several => {
                let mut pipeline = Pipeline::with_capacity(several.len());
                for (place, at) in several.iter().enumerate() {
                    if calls[*at].asking {
                        pipeline.cmd("ASKING");
                    }
                    pipeline.add_command(command((place, at)));
                }
                let mut answers = connection.ask_all(&pipeline, max_reply).await?.into_iter();
                for at in several {
                    if calls[*at].asking {
                        answers.next();
                    }
                    note(
                        *at,
                        answers
                            .next()
                            .ok_or_else(|| StoreError::Protocol("too few answers".to_owned()))?,
                    );
                }
            }
        }
        *left = unknown;
    }
    left.clear();
    Ok(())
}

impl ConnectionSlot {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

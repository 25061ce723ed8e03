//! One connection to the server: made when it is needed, given up when it is of no use.

use crate::script::{Call, Script};
use crate::sentinel::Sentinels;
use crate::trouble::Trouble;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, Value};
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
    One(Client),
    /// The one that they name when a connection is made.
    Named(Sentinels),
}

impl Server {
    /// A new connection.
    async fn connect(&self) -> Result<MultiplexedConnection, Trouble> {
        match &self.at {
            At::One(client) => {
                connect(client, self.connect_timeout).await.map_err(|trouble| match (trouble, &self.name) {
                    (Trouble::Unreachable(why), Some(name)) => Trouble::Unreachable(format!("{name}: {why}")),
                    (trouble, _) => trouble,
                })
            }
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

/// A new connection.
pub(crate) async fn connect(client: &Client, timeout: Duration) -> Result<MultiplexedConnection, Trouble> {
    // Answers are waited for as long as callers do, which they say themselves.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1_024);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match tokio::time::timeout(timeout, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(Trouble::of(&error)),
        Err(_) => Err(Trouble::Unreachable(format!("no connection within {timeout:?}"))),
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

    /// Runs scripts, all in one piece; what came of each.
    pub(crate) async fn run(&self, calls: &[Sent<'_>], time: Option<u64>) -> Vec<Result<Value, Trouble>> {
        let mut results: Vec<Result<Value, Trouble>> = calls.iter().map(|_| Err(Trouble::Broken)).collect();
        let mut left: Vec<usize> = (0..calls.len()).collect();
        for last in [false, true] {
            let mut connection = match self.connection().await {
                Ok(connection) => connection,
                Err(trouble) => {
                    left.iter().for_each(|at| results[*at] = Err(trouble.clone()));
                    break;
                }
            };
            let Err(trouble) = run_on(&mut connection, calls, time, &mut left, &mut results).await else { break };
            for at in &left {
                results[*at] = Err(trouble.clone());
            }
            if last || !matches!(trouble, Trouble::Unreachable(_)) {
                break;
            }
            self.cut();
            left.retain(|at| calls[*at].again);
            if left.is_empty() {
                break;
            }
        }
        if results.iter().any(|result| result.as_ref().is_err_and(Trouble::ends_the_connection)) {
            self.cut();
        }
        results
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &redis::Cmd, asking: bool) -> Result<Value, Trouble> {
        let mut connection = self.connection().await?;
        let sent = if asking {
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ASKING").add_command(command.clone());
            let answers = connection.send_packed_commands(&pipeline, 0, 2).await.map_err(|error| Trouble::of(&error));
            answers.and_then(|mut answers| answers.pop().map_or(Err(Trouble::Broken), told))
        } else {
            send(&mut connection, command).await
        };
        if sent.as_ref().is_err_and(Trouble::ends_the_connection) {
            self.cut();
        }
        sent
    }
}

/// A script to be run.
pub(crate) struct Sent<'a> {
    pub(crate) call: Call,
    pub(crate) script: &'a Script,
    /// Whether it may be sent a second time where nobody knows whether the first arrived.
    pub(crate) again: bool,
    /// Whether the server is to answer for keys that it is only about to get.
    pub(crate) asking: bool,
}

/// Runs those that are `left`, which becomes those that were not answered.
async fn run_on(
    connection: &mut MultiplexedConnection,
    calls: &[Sent<'_>],
    time: Option<u64>,
    left: &mut Vec<usize>,
    results: &mut [Result<Value, Trouble>],
) -> Result<(), Trouble> {
    // By their hashes; if the server does not know those, the first of each by its text, which is long; then all.
    for attempt in 0..3 {
        let by_text = |place: usize, at: usize| match attempt {
            0 => false,
            1 => !left[..place].iter().any(|earlier| std::ptr::eq(calls[*earlier].script, calls[at].script)),
            _ => true,
        };
        let command = |(place, at): (usize, &usize)| {
            let Sent { call, script, .. } = &calls[*at];
            if by_text(place, *at) { call.by_text(script, time) } else { call.by_hash(script, time) }
        };
        let answers = match &left[..] {
            [] => return Ok(()),
            [at] if !calls[*at].asking => match connection.send_packed_command(&command((0, at))).await {
                Ok(answer) => vec![answer],
                Err(error) => return Err(Trouble::of(&error)),
            },
            several => {
                let mut pipeline = Pipeline::with_capacity(several.len());
                for (place, at) in several.iter().enumerate() {
                    if calls[*at].asking {
                        pipeline.cmd("ASKING");
                    }
                    pipeline.add_command(command((place, at)));
                }
                let count = pipeline.len();
                let sent = connection.send_packed_commands(&pipeline, 0, count).await;
                let mut answers = sent.map_err(|error| Trouble::of(&error))?.into_iter();
                let mut told = Vec::with_capacity(several.len());
                for at in several {
                    if calls[*at].asking {
                        answers.next();
                    }
                    told.push(answers.next().ok_or_else(|| Trouble::Protocol("too few answers".to_owned()))?);
                }
                told
            }
        };
        let mut unknown = Vec::new();
        for (at, answer) in left.iter().zip(answers) {
            results[*at] = told(answer);
            if results[*at].as_ref().is_err_and(Trouble::is_no_script) {
                unknown.push(*at);
            }
        }
        *left = unknown;
    }
    left.clear();
    Ok(())
}

pub(crate) async fn send(connection: &mut MultiplexedConnection, command: &redis::Cmd) -> Result<Value, Trouble> {
    told(connection.send_packed_command(command).await.map_err(|error| Trouble::of(&error))?)
}

fn told(answer: Value) -> Result<Value, Trouble> {
    match answer {
        Value::ServerError(error) => Err(Trouble::of(&error.into())),
        answer => Ok(answer),
    }
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

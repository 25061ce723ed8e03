//! The notice board: short texts that the nodes of a fleet share, each for a limited time.
//!
//! One Redis hash holds all notices, so that in a Cluster they are in one slot and are read in one
//! call. Every node polls it a few times a second, which costs two small reads while nothing
//! changes. If Redis loses the board, the nodes that have read it restore it.

use crate::health::Health;
use crate::maintenance::RedisRoute;
use crate::random::random_bytes;
use crate::reply::{MAX_BOARD_REPLY, MAX_SHORT_REPLY};
use crate::store::{Inner, RedisStore};
use crate::store_error::StoreError;
use ratekeeper::{Clock, Timestamp};
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How often a node polls the board.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// How long the mark of a removed notice is kept, in milliseconds, if it is not known when the
/// notice would have ended.
const REMOVAL_MARK_MS: u64 = 3_600_000;
/// Commands that may be queued.
const MAX_QUEUED_COMMANDS: usize = 64;
/// Lost notices with less time left than this are not restored.
const MIN_REMAINING: Duration = Duration::from_secs(1);
/// Notices restored by one call.
const RESTORE_BATCH: usize = 256;

/// A notice on the board.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedNotice {
    /// The name of the notice; it is unique on the board.
    pub name: Box<str>,
    /// The text of the notice.
    pub text: Box<str>,
    /// When the notice ends, by the clock of this store.
    pub until: Timestamp,
}

/// The notices on the board, as of the last poll.
pub type Notices = Arc<[SharedNotice]>;

/// # Notices
///
/// All nodes read a notice within about half a second. It lasts as long as Redis keeps it or any
/// node that has read it runs. Only the caller that puts or removes a notice waits for Redis.
impl RedisStore {
    /// Puts a notice on the board for all nodes, replacing one of the same name. Afterwards it is
    /// in [`notices`](Self::notices).
    pub async fn put_notice(
        &self,
        name: &str,
        text: &str,
        lasts: Duration,
    ) -> Result<(), StoreError> {
        let lasts = u64::try_from(lasts.as_millis())
            .unwrap_or(u64::MAX)
            .clamp(1, 1 << 50);
        let put = BoardCommand::Put {
            name: name.to_owned(),
            text: text.to_owned(),
            lasts,
        };
        if self.inner.board.send(put).await? {
            return Ok(());
        }
        Err(StoreError::Refused {
            code: "FULL".to_owned(),
            message: "the notice board is full; remove some notices".to_owned(),
        })
    }

    /// Removes a notice. Returns whether it was on the board.
    pub async fn remove_notice(&self, name: &str) -> Result<bool, StoreError> {
        self.inner
            .board
            .send(BoardCommand::Remove {
                name: name.to_owned(),
            })
            .await
    }

    /// Reads the board now.
    pub async fn read_notices(&self) -> Result<Notices, StoreError> {
        self.inner.board.send(BoardCommand::Refresh).await?;
        Ok(self.notices())
    }

    /// The notices on the board, as of the last poll. The first call starts polling.
    pub fn notices(&self) -> Notices {
        self.inner.board.start_polling();
        Arc::clone(&self.inner.board.notices.borrow())
    }

    /// A watch on the notices, for tasks that wait for changes. The first call starts polling.
    pub fn follow_notices(&self) -> watch::Receiver<Notices> {
        self.inner.board.start_polling();
        self.inner.board.notices.clone()
    }
}

/// A handle that sends commands to the [`BoardTask`].
pub(crate) struct BoardHandle {
    commands: mpsc::Sender<(BoardCommand, CommandReply)>,
    notices: watch::Receiver<Notices>,
    is_polling: AtomicBool,
}

/// The sender of a command's outcome.
type CommandReply = oneshot::Sender<Result<bool, StoreError>>;

/// A command to the [`BoardTask`].
enum BoardCommand {
    Put {
        name: String,
        text: String,
        lasts: u64,
    },
    Remove {
        name: String,
    },
    Refresh,
}

impl BoardHandle {
    /// Starts polling the board, unless that has begun.
    fn start_polling(&self) {
        if !self.is_polling.swap(true, Relaxed) {
            // A full queue means that polling has begun.
            let _ = self
                .commands
                .try_send((BoardCommand::Refresh, oneshot::channel().0));
        }
    }

    async fn send(&self, command: BoardCommand) -> Result<bool, StoreError> {
        let (reply, receiver) = oneshot::channel();
        self.commands
            .try_send((command, reply))
            .map_err(|_| StoreError::QueueFull)?;
        receiver.await.unwrap_or(Err(StoreError::Broken))
    }
}

/// The task that reads and writes the board.
pub(crate) struct BoardTask {
    commands: mpsc::Receiver<(BoardCommand, CommandReply)>,
    notices_sender: watch::Sender<Notices>,
    /// The version that was read last.
    known_version: String,
    /// The notices that were read last.
    notices: HashMap<String, PostedNotice>,
    node: String,
}

/// A notice as it was read: a space and its text, or an empty text if it was removed.
struct PostedNotice {
    rest: String,
    until: Timestamp,
}

pub(crate) fn board(node: u64) -> (BoardHandle, BoardTask) {
    let (commands, incoming) = mpsc::channel(MAX_QUEUED_COMMANDS);
    let (notices_sender, notices) = watch::channel(Notices::default());
    let node = format!("{node:016x}");
    (
        BoardHandle {
            commands,
            notices,
            is_polling: AtomicBool::new(false),
        },
        BoardTask {
            commands: incoming,
            notices_sender,
            known_version: String::new(),
            notices: HashMap::new(),
            node,
        },
    )
}

/// Runs the board script.
struct BoardScript {
    route: RedisRoute,
    key: String,
    /// The key of the fleet's secret.
    secret: String,
    health: Arc<Health>,
    generation: u64,
    inner: Weak<Inner>,
}

impl BoardTask {
    /// Runs until the store is dropped. Polling begins with the first command.
    pub(crate) async fn run(mut self, route: RedisRoute, fleet: String, inner: Weak<Inner>) {
        let Some(health) = inner.upgrade().map(|inner| Arc::clone(&inner.health)) else {
            return;
        };
        let key = format!("{fleet}:board");
        let secret = format!("{fleet}:secret");
        let mut script = BoardScript {
            route,
            key,
            secret,
            generation: health.generation(),
            health,
            inner,
        };
        let mut next = self.commands.recv().await;
        loop {
            if let Some((command, reply)) = next.take() {
                // A caller that has stopped waiting has timed out.
                let _ = reply.send(self.execute(&mut script, command).await);
            } else if let Err(error) = self.refresh(&mut script).await {
                // The maintenance task reports what is wrong with Redis.
                tracing::debug!(target: "ratekeeper::redis", "cannot read the notice board: {error}");
            }
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => next = Some(command),
                    None => return,
                },
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    async fn execute(
        &mut self,
        script: &mut BoardScript,
        command: BoardCommand,
    ) -> Result<bool, StoreError> {
        let version = self.version();
        let done = match command {
            BoardCommand::Refresh => true,
            BoardCommand::Put { name, text, lasts } => {
                script
                    .ask(&["put", &version, &name, &lasts.to_string(), &text])
                    .await?
                    == Value::Int(1)
            }
            BoardCommand::Remove { name } => {
                script
                    .ask(&["remove", &version, &name, &REMOVAL_MARK_MS.to_string()])
                    .await?
                    == Value::Int(1)
            }
        };
        self.refresh(script).await?;
        Ok(done)
    }

    /// A version that no board has had.
    fn version(&self) -> String {
        format!("{}{:016x}", self.node, u64::from_be_bytes(random_bytes()))
    }

    /// Reads the board if it has changed, and restores lost notices.
    async fn refresh(&mut self, script: &mut BoardScript) -> Result<(), StoreError> {
        let known_version = self.known_version.clone();
        let mut read = script.read(&known_version).await?;
        if read.version == known_version {
            return Ok(());
        }
        let lost = self.lost(script, &read);
        if !lost.is_empty() {
            // Key names are derived from the secret: a node that starts now must not find the
            // secret missing and choose another.
            script.put_back_secret().await?;
            for batch in lost.chunks(RESTORE_BATCH) {
                let version = self.version();
                let mut words = vec!["restore", &version];
                words.extend(batch.iter().flatten().map(String::as_str));
                script.ask(&words).await?;
            }
            tracing::info!(target: "ratekeeper::redis", notices = lost.len(), "restored notices that Redis had lost");
            read = script.read("").await?;
        }
        self.apply(read);
        Ok(())
    }

    /// Notices that this node has read, that have not ended, and that are missing.
    fn lost(&self, script: &BoardScript, read: &BoardContents) -> Vec<[String; 3]> {
        let Some(now) = script.now() else {
            return Vec::new();
        };
        let missing = self
            .notices
            .iter()
            .filter(|(name, _)| !read.notices.contains_key(*name));
        let left =
            missing.map(|(name, notices)| (name, notices, notices.until.saturating_since(now)));
        // By the clock of Redis a notice that is nearly over may have ended.
        let lost = left.filter(|(_, _, left)| *left > MIN_REMAINING);
        lost.map(|(name, notices, left)| {
            [
                name.clone(),
                left.as_millis().to_string(),
                notices.rest.clone(),
            ]
        })
        .collect()
    }

    fn apply(&mut self, read: BoardContents) {
        self.known_version = read.version;
        self.notices = read.notices;
        let mut notices: Vec<SharedNotice> = self
            .notices
            .iter()
            .filter_map(|(name, notices)| {
                let text = notices.rest.strip_prefix(' ')?;
                Some(SharedNotice {
                    name: name.as_str().into(),
                    text: text.into(),
                    until: notices.until,
                })
            })
            .collect();
        notices.sort_by(|one, other| one.name.cmp(&other.name));
        self.notices_sender.send_replace(notices.into());
    }
}

/// The contents of the board; empty if the version was known.
struct BoardContents {
    version: String,
    notices: HashMap<String, PostedNotice>,
}

impl BoardScript {
    fn now(&self) -> Option<Timestamp> {
        Some(self.inner.upgrade()?.fallback.clock().now())
    }

    /// Restores the secret that the nodes have agreed on, if Redis has none.
    async fn put_back_secret(&mut self) -> Result<(), StoreError> {
        let Some(inner) = self.inner.upgrade() else {
            return Ok(());
        };
        let mut command = redis::cmd("SET");
        command
            .arg(&self.secret)
            .arg(inner.secret.offer())
            .arg("NX");
        drop(inner);
        self.route
            .send(&self.secret, &command, MAX_SHORT_REPLY)
            .await
            .map(drop)
    }

    /// Reads the board, if its version differs from the known one.
    async fn read(&mut self, known_version: &str) -> Result<BoardContents, StoreError> {
        let answer = self.ask(&["read", known_version]).await?;
        let here = self.now().ok_or(StoreError::Broken)?;
        let unreadable = || StoreError::Protocol("unexpected reply to a script".to_owned());
        let Value::Array(values) = answer else {
            return Err(unreadable());
        };
        let mut values = values.into_iter();
        let Some(Value::Int(now)) = values.next() else {
            return Err(unreadable());
        };
        let mut text = || match values.next() {
            None => Ok(None),
            Some(Value::BulkString(text)) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Some(_) => Err(unreadable()),
        };
        let version = text()?.ok_or_else(unreadable)?;
        let mut notices = HashMap::new();
        while let (Some(name), Some(value)) = (text()?, text()?) {
            let digits = value.bytes().take_while(u8::is_ascii_digit).count();
            let ends = value[..digits].parse::<i64>().unwrap_or(0);
            // Only the time left is taken from Redis, so the clocks need not agree.
            let lasts = Duration::from_millis(u64::try_from(ends.saturating_sub(now)).unwrap_or(0));
            notices.insert(
                name,
                PostedNotice {
                    rest: value[digits..].to_owned(),
                    until: here + lasts,
                },
            );
        }
        Ok(BoardContents { version, notices })
    }

    /// Runs the script. All of its commands may be executed twice.
    async fn ask(&mut self, words: &[&str]) -> Result<Value, StoreError> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(include_str!("script/board.lua"))
            .arg(1)
            .arg(&self.key)
            .arg(words);
        // Connections of an earlier generation may be dead, or lead to a server that is no longer
        // the primary.
        let generation = self.health.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.route.disconnect();
        }
        let first = self.route.send(&self.key, &command, MAX_BOARD_REPLY).await;
        if !matches!(first, Err(StoreError::Unreachable(_))) {
            if first.is_err() {
                self.route.disconnect();
            }
            return first;
        }
        self.route.disconnect();
        self.route.send(&self.key, &command, MAX_BOARD_REPLY).await
    }
}

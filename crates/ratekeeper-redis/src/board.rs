//! The board: notices that the nodes of a fleet leave for each other, each until its time is over.
//!
//! One hash in Redis holds them all, so that in a Cluster they lie together and are read in one go.
//! Every node looks at it a few times a second, which costs two small reads while nothing changes.
//! A board that Redis has lost is put back by the nodes that had read it.

use crate::health::Health;
use crate::maintenance::RedisRoute;
use crate::random::random_bytes;
use crate::reply::{BOARD, SHORT};
use crate::store::{Inner, RedisStore};
use crate::store_error::StoreError;
use ratekeeper::{Clock, Timestamp};
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(400);
/// How long it is remembered that a notice was taken down, in ms, where nobody knows when it would
/// have ended.
const HOUR: u64 = 3_600_000;
/// So many orders may wait.
const ORDERS: usize = 64;
/// What has less time left is not missed.
const NEARLY_OVER: Duration = Duration::from_secs(1);
/// So many notices are put back in one piece.
const PIECE: usize = 256;

/// Something that a node has left for all.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedNotice {
    /// What it is known by: there is one of a name.
    pub name: Box<str>,
    /// What it says.
    pub text: Box<str>,
    /// Until when it stays, by the clock of this store.
    pub until: Timestamp,
}

/// What is on the board, as of the last look.
pub type Notices = Arc<[SharedNotice]>;

/// # Notices
///
/// What is put here is read by all nodes within about half a second, and as long as Redis has it or
/// any node that has read it runs. Nothing waits for it but who puts it there.
impl RedisStore {
    /// Leaves a notice for all nodes, in place of one of the same name. It is in
    /// [`notices`](Self::notices) afterwards.
    pub async fn put_notice(
        &self,
        name: &str,
        text: &str,
        lasts: Duration,
    ) -> Result<(), StoreError> {
        let lasts = u64::try_from(lasts.as_millis())
            .unwrap_or(u64::MAX)
            .clamp(1, 1 << 50);
        let put = Order::Put {
            name: name.to_owned(),
            text: text.to_owned(),
            lasts,
        };
        match self.inner.board.order(put).await? {
            true => Ok(()),
            false => {
                let message = "the board of notices is full; take some down".to_owned();
                Err(StoreError::Refused {
                    code: "FULL".to_owned(),
                    message,
                })
            }
        }
    }

    /// Takes a notice down; whether it was there.
    pub async fn remove_notice(&self, name: &str) -> Result<bool, StoreError> {
        self.inner
            .board
            .order(Order::Remove {
                name: name.to_owned(),
            })
            .await
    }

    /// Looks at the board now.
    pub async fn read_notices(&self) -> Result<Notices, StoreError> {
        self.inner.board.order(Order::Look).await?;
        Ok(self.notices())
    }

    /// What is on the board, as of the last look. The first call begins to look.
    pub fn notices(&self) -> Notices {
        self.inner.board.begin();
        Arc::clone(&self.inner.board.seen.borrow())
    }

    /// The same for who keeps up with it, and waits for what changes.
    pub fn follow_notices(&self) -> watch::Receiver<Notices> {
        self.inner.board.begin();
        self.inner.board.seen.clone()
    }
}

/// Where the store hands in what it wants of the board.
pub(crate) struct Door {
    orders: mpsc::Sender<(Order, OrderReply)>,
    seen: watch::Receiver<Notices>,
    began: AtomicBool,
}

type OrderReply = oneshot::Sender<Result<bool, StoreError>>;

enum Order {
    Put {
        name: String,
        text: String,
        lasts: u64,
    },
    Remove {
        name: String,
    },
    Look,
}

impl Door {
    /// Looks at it from now on.
    fn begin(&self) {
        if !self.began.swap(true, Relaxed) {
            // If the queue is full somebody has begun.
            let _ = self.orders.try_send((Order::Look, oneshot::channel().0));
        }
    }

    async fn order(&self, order: Order) -> Result<bool, StoreError> {
        let (told, hears) = oneshot::channel();
        self.orders
            .try_send((order, told))
            .map_err(|_| StoreError::QueueFull)?;
        hears.await.unwrap_or(Err(StoreError::Broken))
    }
}

/// Who looks after it.
pub(crate) struct BoardTask {
    orders: mpsc::Receiver<(Order, OrderReply)>,
    seen: watch::Sender<Notices>,
    /// The version that was read last.
    known: String,
    /// What there was.
    held: HashMap<String, PostedNotice>,
    node: String,
}

/// A notice as it was read: a space and its text, or nothing where it was taken down.
struct PostedNotice {
    rest: String,
    until: Timestamp,
}

pub(crate) fn board(node: u64) -> (Door, BoardTask) {
    let (orders, incoming) = mpsc::channel(ORDERS);
    let (seen, seeing) = watch::channel(Notices::default());
    let node = format!("{node:016x}");
    (
        Door {
            orders,
            seen: seeing,
            began: AtomicBool::new(false),
        },
        BoardTask {
            orders: incoming,
            seen,
            known: String::new(),
            held: HashMap::new(),
            node,
        },
    )
}

/// How it is spoken to.
struct BoardScript {
    way: RedisRoute,
    key: String,
    /// The key of the secret.
    secret: String,
    health: Arc<Health>,
    era: u64,
    inner: Weak<Inner>,
}

impl BoardTask {
    /// Runs until the store is gone. Nobody looks before the first order.
    pub(crate) async fn run(mut self, way: RedisRoute, fleet: String, inner: Weak<Inner>) {
        let Some(health) = inner.upgrade().map(|inner| Arc::clone(&inner.health)) else {
            return;
        };
        let (key, secret) = (format!("{fleet}:board"), format!("{fleet}:secret"));
        let mut wire = BoardScript {
            way,
            key,
            secret,
            era: health.era(),
            health,
            inner,
        };
        let mut next = self.orders.recv().await;
        loop {
            if let Some((order, told)) = next.take() {
                // Who does not listen any more has been told that it took too long.
                let _ = told.send(self.carry_out(&mut wire, order).await);
            } else if let Err(trouble) = self.look(&mut wire).await {
                // The keeper tells what is wrong with Redis.
                tracing::debug!(target: "ratekeeper::redis", "the board of notices was not read: {trouble}");
            }
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => next = Some(order),
                    None => return,
                },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn carry_out(
        &mut self,
        wire: &mut BoardScript,
        order: Order,
    ) -> Result<bool, StoreError> {
        let version = self.version();
        let done = match order {
            Order::Look => true,
            Order::Put { name, text, lasts } => {
                wire.ask(&["put", &version, &name, &lasts.to_string(), &text])
                    .await?
                    == Value::Int(1)
            }
            Order::Remove { name } => {
                wire.ask(&["remove", &version, &name, &HOUR.to_string()])
                    .await?
                    == Value::Int(1)
            }
        };
        self.look(wire).await?;
        Ok(done)
    }

    /// One that no board has had.
    fn version(&self) -> String {
        format!("{}{:016x}", self.node, u64::from_be_bytes(random_bytes()))
    }

    /// Reads what has changed, and puts back what was lost.
    async fn look(&mut self, wire: &mut BoardScript) -> Result<(), StoreError> {
        let known = self.known.clone();
        let mut read = wire.read(&known).await?;
        if read.version == known {
            return Ok(());
        }
        let lost = self.lost(wire, &read);
        if !lost.is_empty() {
            // Names are made with it: whoever comes now must not find none and choose another.
            wire.put_back_secret().await?;
            for piece in lost.chunks(PIECE) {
                let version = self.version();
                let mut words = vec!["restore", &version];
                words.extend(piece.iter().flatten().map(String::as_str));
                wire.ask(&words).await?;
            }
            tracing::info!(target: "ratekeeper::redis", notices = lost.len(), "notices that Redis had lost are put back");
            read = wire.read("").await?;
        }
        self.take(read);
        Ok(())
    }

    /// What this node had read, is not over, and is not there.
    fn lost(&self, wire: &BoardScript, read: &BoardContents) -> Vec<[String; 3]> {
        let Some(now) = wire.now() else {
            return Vec::new();
        };
        let missing = self
            .held
            .iter()
            .filter(|(name, _)| !read.held.contains_key(*name));
        let left = missing.map(|(name, held)| (name, held, held.until.saturating_since(now)));
        // What is nearly over may be so by the clock of Redis.
        let lost = left.filter(|(_, _, left)| *left > NEARLY_OVER);
        lost.map(|(name, held, left)| {
            [
                name.clone(),
                left.as_millis().to_string(),
                held.rest.clone(),
            ]
        })
        .collect()
    }

    fn take(&mut self, read: BoardContents) {
        self.known = read.version;
        self.held = read.held;
        let mut notices: Vec<SharedNotice> = self
            .held
            .iter()
            .filter_map(|(name, held)| {
                let text = held.rest.strip_prefix(' ')?;
                Some(SharedNotice {
                    name: name.as_str().into(),
                    text: text.into(),
                    until: held.until,
                })
            })
            .collect();
        notices.sort_by(|one, other| one.name.cmp(&other.name));
        self.seen.send_replace(notices.into());
    }
}

/// What is on the board; nothing is held if it is the version that was known.
struct BoardContents {
    version: String,
    held: HashMap<String, PostedNotice>,
}

impl BoardScript {
    fn now(&self) -> Option<Timestamp> {
        Some(self.inner.upgrade()?.fallback.clock().now())
    }

    /// Leaves the secret that the nodes had agreed on, if Redis has none.
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
        self.way.send(&self.secret, &command, SHORT).await.map(drop)
    }

    /// What is there.
    async fn read(&mut self, known: &str) -> Result<BoardContents, StoreError> {
        let answer = self.ask(&["see", known]).await?;
        let here = self.now().ok_or(StoreError::Broken)?;
        let unreadable = || StoreError::Protocol("its answer to our script is not ours".to_owned());
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
        let mut held = HashMap::new();
        while let (Some(name), Some(value)) = (text()?, text()?) {
            let digits = value.bytes().take_while(u8::is_ascii_digit).count();
            let ends = value[..digits].parse::<i64>().unwrap_or(0);
            // Only how long it lasts is taken from there, so clocks need not agree.
            let lasts = Duration::from_millis(u64::try_from(ends.saturating_sub(now)).unwrap_or(0));
            held.insert(
                name,
                PostedNotice {
                    rest: value[digits..].to_owned(),
                    until: here + lasts,
                },
            );
        }
        Ok(BoardContents { version, held })
    }

    /// Runs the script. Whatever it does comes to the same if it is done twice.
    async fn ask(&mut self, words: &[&str]) -> Result<Value, StoreError> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(include_str!("script/board.lua"))
            .arg(1)
            .arg(&self.key)
            .arg(words);
        // What was connected before Redis was away may lead nowhere, or to who is no primary any
        // more.
        let era = self.health.era();
        if std::mem::replace(&mut self.era, era) != era {
            self.way.cut();
        }
        let first = self.way.send(&self.key, &command, BOARD).await;
        if !matches!(first, Err(StoreError::Unreachable(_))) {
            if first.is_err() {
                self.way.cut();
            }
            return first;
        }
        self.way.cut();
        self.way.send(&self.key, &command, BOARD).await
    }
}

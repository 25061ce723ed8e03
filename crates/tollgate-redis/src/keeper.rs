//! What goes on beside the decisions: this node says that it is alive, renews its permits, and looks whether a server that was
//! in trouble is well again.

use crate::cluster::{Cluster, slot};
use crate::health::Health;
use crate::link::{Link, Server};
use crate::reply::SHORT;
use crate::script::PERMIT_LIVES;
use crate::script::amend::{Amend, Amendment};
use crate::secret::Known;
use crate::store::Inner;
use crate::trouble::Trouble;
use redis::Value;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_secs(1);
/// A node that has not said so for this long, in microseconds, is not alive.
const ALIVE: u64 = 5_000_000;
const RENEWAL: Duration = Duration::from_secs(3);
/// How long a beat may take: longer than a decision, short enough to find a server within two seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at a server that is in trouble.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(1);
/// Between two looks at who has what in a Cluster where nothing seems to have changed.
const REMAPPED: Duration = Duration::from_secs(10);
/// So many amendments go in one piece.
const PIECE: usize = 64;

pub(crate) struct Keeper {
    inner: Weak<Inner>,
    way: Way,
    node: u64,
    /// What the keys of the fleet itself begin with.
    fleet: String,
    renewed: Instant,
    /// When the map of a Cluster was last asked for, whatever happened.
    mapped: Instant,
    /// When all its primaries were last looked at.
    looked: Instant,
    /// Whether it was told that a key of the fleet is spoilt.
    spoilt: AtomicBool,
}

/// How Redis is spoken to beside the lanes.
pub(crate) enum Way {
    One(Link, Arc<Server>),
    Cluster(Arc<Cluster>),
}

impl Way {
    pub(crate) fn to(server: Arc<Server>) -> Self {
        Self::One(Link::new(Arc::clone(&server)), server)
    }

    /// Another one to the same Redis.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::One(_, server) => Self::to(Arc::clone(server)),
            Self::Cluster(cluster) => Self::Cluster(Arc::clone(cluster)),
        }
    }

    /// What the keys of the fleet itself begin with. In a Cluster they are in one slot, so that one script has several.
    pub(crate) fn fleet(&self, prefix: &str) -> String {
        match self {
            Self::One(..) => prefix.to_owned(),
            Self::Cluster(_) => format!("{prefix}:{{fleet}}"),
        }
    }

    /// Sends a command to who has that key; its reply is no longer than that.
    pub(crate) async fn send(&self, key: &str, command: &redis::Cmd, max_reply: usize) -> Result<Value, Trouble> {
        match self {
            Self::One(link, _) => tokio::time::timeout(PATIENCE, link.send(command, max_reply, false))
                .await
                .unwrap_or(Err(Trouble::TimedOut)),
            Self::Cluster(cluster) => {
                let slot = slot(key.as_bytes());
                tokio::time::timeout(PATIENCE, cluster.send(slot, command, max_reply)).await.unwrap_or_else(|_| {
                    cluster.gave_up(slot);
                    Err(Trouble::TimedOut)
                })
            }
        }
    }

    pub(crate) fn cut(&self) {
        if let Self::One(link, _) = self {
            link.cut();
        }
    }

    /// Whether somebody is to be looked for.
    fn is_in_trouble(&self, health: &Health) -> bool {
        health.is_open() || matches!(self, Self::Cluster(cluster) if cluster.needs_tending())
    }
}

impl Keeper {
    pub(crate) fn new(inner: &Arc<Inner>, way: Way, node: u64, prefix: &str) -> Self {
        let inner = Arc::downgrade(inner);
        let fleet = way.fleet(prefix);
        let now = Instant::now();
        Self { inner, way, node, fleet, renewed: now, mapped: now, looked: now, spoilt: AtomicBool::new(false) }
    }

    /// Runs until the store is gone.
    pub(crate) async fn run(mut self) {
        let mut pause = SOONEST;
        loop {
            let Some(inner) = self.inner.upgrade() else { return };
            let health = Arc::clone(&inner.health);
            let open = self.way.is_in_trouble(&health);
            let wait = if open { pause.mul_f64(0.5 + fastrand::f64() / 2.0) } else { BEAT };
            pause = if open { (pause * 2).min(LATEST) } else { SOONEST };
            let gone = Arc::clone(&inner.gone);
            drop(inner);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = health.opened() => {}
                () = gone.notified() => return,
            }
            if !open && self.way.is_in_trouble(&health) {
                // It has just opened: the first look comes after a pause.
                continue;
            }
            let Some(inner) = self.inner.upgrade() else { return };
            match self.look_around(&health).await {
                Ok(()) => match self.beat(&inner).await {
                    Ok(()) => self.is_well(&inner),
                    Err(trouble) => self.is_unwell(&health, &trouble),
                },
                Err(trouble) => health.failed(&trouble),
            }
        }
    }

    /// Finds out where Redis is now.
    async fn look_around(&mut self, health: &Health) -> Result<(), Trouble> {
        match &self.way {
            Way::One(link, server) => {
                if health.is_open() {
                    // Whatever was wrong may be with the connection.
                    link.cut();
                } else if server.is_another().await {
                    tracing::info!(target: "tollgate::redis", "the sentinels name another primary");
                    link.cut();
                    health.new_era();
                }
                Ok(())
            }
            Way::Cluster(cluster) => {
                // Nodes may say again and again that something has moved.
                tokio::time::sleep(SOONEST.saturating_sub(self.looked.elapsed())).await;
                self.looked = Instant::now();
                let is_time = self.mapped.elapsed() >= REMAPPED;
                if is_time {
                    self.mapped = Instant::now();
                }
                cluster.tend(is_time).await
            }
        }
    }

    fn is_well(&mut self, inner: &Inner) {
        let health = &inner.health;
        if health.is_open() || !health.is_well() {
            health.well_again();
        }
        // In a Cluster another primary may be away; what was spent is charged when all are there.
        if health.is_well() {
            let children = inner.children();
            let all = std::iter::once(inner).chain(children.iter().map(|child| &**child));
            all.filter(|store| store.fallback.is_in_use()).for_each(|store| self.debit(store));
        }
        self.renew(inner);
    }

    fn is_unwell(&self, health: &Health, trouble: &Trouble) {
        self.way.cut();
        match self.way {
            Way::One(..) => health.failed(trouble),
            // It is one primary that is, which knows; there is a map, and the others may be well.
            Way::Cluster(_) => health.well_again(),
        }
    }

    /// Says that this node is alive, learns who else is, and agrees on the secret.
    pub(crate) async fn beat(&self, inner: &Inner) -> Result<(), Trouble> {
        let (nodes, secret) = (format!("{}:nodes", self.fleet), format!("{}:secret", self.fleet));
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("script/alive.lua")).arg(2).arg(&nodes).arg(secret);
        command.arg(format!("{:016x}", self.node)).arg(ALIVE).arg(inner.secret.offer());
        let answer = self.way.send(&nodes, &command, SHORT).await?;
        let Value::Array(answer) = answer else { return Err(Trouble::Protocol("no list".to_owned())) };
        let [Value::Int(nodes), Value::BulkString(secret)] = &answer[..] else {
            return Err(Trouble::Protocol("not two values".to_owned()));
        };
        let mut spoilt = None;
        match inner.secret.seen(secret) {
            Known::Same => {}
            Known::Differs(why) => tracing::warn!(target: "tollgate::redis", "{why}"),
            Known::Spoilt => spoilt = Some("secret"),
        }
        match u64::try_from(*nodes) {
            Ok(nodes) => {
                let children = inner.children();
                for store in std::iter::once(inner).chain(children.iter().map(|child| &**child)) {
                    if store.fallback.set_nodes(nodes) {
                        store.limits.all().iter().for_each(|limit| store.fallback.set(limit));
                    }
                }
            }
            Err(_) => spoilt = Some("nodes"),
        }
        self.tell_spoilt(inner, spoilt)
    }

    /// A key of the fleet itself holds what is not ours. What is known goes on: decisions do not need that key.
    fn tell_spoilt(&self, inner: &Inner, spoilt: Option<&str>) -> Result<(), Trouble> {
        let was_told = self.spoilt.swap(spoilt.is_some(), Relaxed);
        let Some(key) = spoilt else { return Ok(()) };
        let trouble = Trouble::BadKey(format!("{}:{key}", self.fleet));
        if !was_told {
            inner.health.count(&trouble);
            tracing::warn!(target: "tollgate::redis", "{trouble}");
        }
        if inner.secret.get().is_some() { Ok(()) } else { Err(trouble) }
    }

    /// Learns where everything is.
    pub(crate) async fn find(&self) -> Result<(), Trouble> {
        match &self.way {
            Way::One(..) => Ok(()),
            Way::Cluster(cluster) => cluster.learn().await,
        }
    }

    /// Which version it is; none if it does not say.
    pub(crate) async fn version(&self) -> Result<Option<(u64, u64)>, Trouble> {
        let mut command = redis::cmd("INFO");
        command.arg("server");
        let text = match self.way.send(&self.fleet, &command, SHORT).await {
            Ok(Value::BulkString(text)) => text,
            Err(trouble @ (Trouble::Unreachable(_) | Trouble::TimedOut)) => return Err(trouble),
            // What the sentinels say is not said of it.
            Err(trouble @ Trouble::Refused { .. }) if trouble.is_of_sentinels() => return Err(trouble),
            _ => return Ok(None),
        };
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let mut numbers =
            line.into_iter().flat_map(|line| line.trim().split('.')).map_while(|number| number.parse().ok());
        Ok(numbers.next().zip(numbers.next()))
    }

    /// Charges what was spent here while the server was away.
    fn debit(&self, inner: &Inner) {
        let limits = inner.limits.all();
        let spent = inner.fallback.over(&limits);
        let Some(secret) = inner.secret.get().filter(|_| !spent.is_empty()) else { return };
        let debits = spent.iter().filter_map(|spent| {
            let limit = limits.get(spent.limit as usize)?;
            let key = secret.name(&limit.stem, &spent.key);
            Some(Amendment { key, limit: limit.form, what: Amend::ChargeMore(spent.tokens) })
        });
        inner.health.counts.debited.fetch_add(spent.iter().map(|spent| spent.tokens).sum(), Relaxed);
        tracing::info!(target: "tollgate::redis", keys = spent.len(), "charged what was spent without Redis");
        send(inner, debits);
    }

    fn renew(&mut self, inner: &Inner) {
        if self.renewed.elapsed() < RENEWAL - BEAT / 2 {
            return;
        }
        self.renewed = Instant::now();
        send(inner, inner.permits.renewals(PERMIT_LIVES).into_iter());
    }
}

/// Hands amendments in, each where its key is asked about.
fn send(inner: &Inner, amendments: impl Iterator<Item = Amendment>) {
    let mut lanes: Vec<Vec<Amendment>> = vec![Vec::new(); inner.lanes.len()];
    for amendment in amendments {
        lanes[inner.lane_of(&amendment.key)].push(amendment);
    }
    for (lane, amendments) in inner.lanes.iter().zip(lanes) {
        for piece in amendments.chunks(PIECE) {
            // Nobody waits for it; if it is lost it was not counted for long.
            drop(lane.amend_later(piece.to_vec(), PATIENCE));
        }
    }
}

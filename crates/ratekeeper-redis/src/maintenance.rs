//! What goes on beside the decisions: this node says that it is alive, renews its permits, and
//! looks whether a server that was in trouble is well again.

use crate::cluster::{Cluster, slot};
use crate::connection_handle::ConnectionHandle;
use crate::health::Health;
use crate::limits_check::Report;
use crate::probe;
use crate::reconnecting::{ReconnectingConnection, Server};
use crate::reply::SHORT;
use crate::script::PERMIT_LIVES;
use crate::script::amend::{Amend, Amendment};
use crate::secret::SecretKnowledge;
use crate::store::Inner;
use crate::store_error::StoreError;
use redis::Value;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_secs(1);
/// A node that has not said so for this long, in microseconds, is not alive.
const ALIVE: u64 = 5_000_000;
const RENEWAL: Duration = Duration::from_secs(3);
/// How long a beat may take: longer than a decision, short enough to find a server within two
/// seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks at a server that is in trouble.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(1);
/// Between two looks at who has what in a Cluster where nothing seems to have changed.
const REMAPPED: Duration = Duration::from_secs(10);
/// So many amendments go in one piece.
const PIECE: usize = 64;

pub(crate) struct Maintenance {
    inner: Weak<Inner>,
    way: RedisRoute,
    /// None if it is not counted among the nodes.
    node: Option<u64>,
    /// What the keys of the fleet itself begin with.
    fleet: String,
    renewed: Instant,
    /// When the map of a Cluster was last asked for, whatever happened.
    mapped: Instant,
    /// When all its primaries were last looked at.
    looked: Instant,
    /// Whether it was told that a key of the fleet is spoilt.
    spoilt: AtomicBool,
    /// How many decisions Redis had made at the last heartbeat.
    decided: u64,
}

/// How Redis is spoken to beside the lanes.
pub(crate) enum RedisRoute {
    One(ReconnectingConnection, Arc<Server>),
    Cluster(Arc<Cluster>),
}

impl RedisRoute {
    pub(crate) fn to(server: Arc<Server>) -> Self {
        Self::One(ReconnectingConnection::new(Arc::clone(&server)), server)
    }

    /// Another one to the same Redis.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::One(_, server) => Self::to(Arc::clone(server)),
            Self::Cluster(cluster) => Self::Cluster(Arc::clone(cluster)),
        }
    }

    /// What the keys of the fleet itself begin with. In a Cluster they are in one slot, so that one
    /// script has several.
    pub(crate) fn fleet(&self, prefix: &str) -> String {
        match self {
            Self::One(..) => prefix.to_owned(),
            Self::Cluster(_) => format!("{prefix}:{{fleet}}"),
        }
    }

    /// Sends a command to who has that key; its reply is no longer than that.
    pub(crate) async fn send(
        &self,
        key: &str,
        command: &redis::Cmd,
        max_reply: usize,
    ) -> Result<Value, StoreError> {
        match self {
            Self::One(link, _) => {
                tokio::time::timeout(PATIENCE, link.send(command, max_reply, false))
                    .await
                    .unwrap_or(Err(StoreError::TimedOut))
            }
            Self::Cluster(cluster) => {
                let slot = slot(key.as_bytes());
                tokio::time::timeout(PATIENCE, cluster.send(slot, command, max_reply))
                    .await
                    .unwrap_or_else(|_| {
                        cluster.gave_up(slot);
                        Err(StoreError::TimedOut)
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

impl Maintenance {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        way: RedisRoute,
        node: Option<u64>,
        prefix: &str,
    ) -> Self {
        let inner = Arc::downgrade(inner);
        let fleet = way.fleet(prefix);
        let now = Instant::now();
        let spoilt = AtomicBool::new(false);
        Self {
            inner,
            way,
            node,
            fleet,
            renewed: now,
            mapped: now,
            looked: now,
            spoilt,
            decided: 0,
        }
    }

    /// Runs until the store is gone.
    pub(crate) async fn run(mut self) {
        let mut pause = SOONEST;
        loop {
            let Some(inner) = self.inner.upgrade() else {
                return;
            };
            let health = Arc::clone(&inner.health);
            let open = self.way.is_in_trouble(&health);
            let wait = if open {
                pause.mul_f64(0.5 + fastrand::f64() / 2.0)
            } else {
                BEAT
            };
            pause = if open {
                (pause * 2).min(LATEST)
            } else {
                SOONEST
            };
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
            let Some(inner) = self.inner.upgrade() else {
                return;
            };
            match self.look_around(&health).await {
                Ok(()) => {
                    let beat = self.beat(&inner).await;
                    self.judge(&inner, beat).await;
                    self.catch_up(&inner);
                }
                Err(trouble) => health.failed(&trouble),
            }
        }
    }

    /// Finds out where Redis is now.
    async fn look_around(&mut self, health: &Health) -> Result<(), StoreError> {
        match &self.way {
            RedisRoute::One(link, server) => {
                if health.is_open() {
                    // Whatever was wrong may be with the connection.
                    link.cut();
                } else if server.is_another().await {
                    tracing::info!(target: "ratekeeper::redis", "the sentinels name another primary");
                    link.cut();
                    health.new_era();
                }
                Ok(())
            }
            RedisRoute::Cluster(cluster) => {
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

    /// Finds out whether decisions are made, after a heartbeat that came to this.
    async fn judge(&mut self, inner: &Inner, beat: Result<(), StoreError>) {
        let health = &inner.health;
        if beat.is_err() {
            self.way.cut();
        }
        if let (Err(trouble), None) = (&beat, inner.secret.get()) {
            // Without it no key has a name.
            health.failed(trouble);
        } else {
            let decided = health.counts.decisions.load(Relaxed);
            let is_idle = std::mem::replace(&mut self.decided, decided) == decided;
            if is_idle || beat.is_err() || !health.is_well_itself() {
                // What it comes to is noted in the health.
                let _ = self.probe(inner).await;
            }
        }
        let trouble = beat.err();
        // What is wrong with all of Redis was said of that.
        if let Some(trouble) = trouble
            .as_ref()
            .filter(|_| health.is_well() && inner.heartbeat().is_none())
        {
            tracing::warn!(
                target: "ratekeeper::redis",
                "the heartbeat of this node fails, so that other nodes do not count it: {trouble}"
            );
        }
        *inner.heartbeat() = trouble;
    }

    /// The first heartbeat, and whether decisions are made in time.
    pub(crate) async fn begin(&self, inner: &Inner) -> Result<(), StoreError> {
        self.beat(inner).await?;
        match &self.way {
            RedisRoute::One(..) => self.probe(inner).await,
            RedisRoute::Cluster(cluster) => {
                cluster.tend(false).await?;
                // That a primary is away does not keep this node from starting.
                match inner.health.trouble() {
                    Some((_, trouble @ StoreError::Refused { .. })) => Err(trouble),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Looks whether decisions are made. The primaries of a Cluster were looked at by its
    /// [`tend`](Cluster::tend).
    async fn probe(&self, inner: &Inner) -> Result<(), StoreError> {
        let questions = probe::questions(&probe::key(inner.limits.prefix(), 0));
        let lanes = inner.lanes.iter().filter_map(ConnectionHandle::lane);
        probe::run(&inner.health, lanes, &questions, 0, inner.timeout).await
    }

    /// Does what had to wait until Redis is well.
    fn catch_up(&mut self, inner: &Arc<Inner>) {
        if inner.health.is_well_itself() {
            let is_over = |server: &u64| inner.lanes[0].is_over(*server);
            for store in std::iter::once(Arc::clone(inner)).chain(inner.children()) {
                store
                    .fallback
                    .outages()
                    .into_iter()
                    .filter(is_over)
                    .for_each(|server| debit(&store, server));
            }
        }
        self.renew(inner);
    }

    /// Says that this node is alive, learns who else is, and agrees on the secret.
    pub(crate) async fn beat(&self, inner: &Inner) -> Result<(), StoreError> {
        let (nodes, secret) = (
            format!("{}:nodes", self.fleet),
            format!("{}:secret", self.fleet),
        );
        let mut command = redis::cmd("EVAL");
        command
            .arg(include_str!("script/alive.lua"))
            .arg(2)
            .arg(&nodes)
            .arg(secret);
        let node = self
            .node
            .map_or_else(String::new, |node| format!("{node:016x}"));
        command.arg(node).arg(ALIVE).arg(inner.secret.offer());
        let digest = inner.limits_check.digest();
        command.arg(&digest);
        let answer = self.way.send(&nodes, &command, SHORT).await?;
        let Value::Array(answer) = answer else {
            return Err(StoreError::Protocol("no list".to_owned()));
        };
        let [
            Value::Int(nodes),
            Value::BulkString(secret),
            Value::Int(others),
        ] = &answer[..]
        else {
            return Err(StoreError::Protocol("not three values".to_owned()));
        };
        let others = u64::try_from(*others).unwrap_or(0);
        match inner.limits_check.seen(&digest, others, Instant::now()) {
            Some(Report::Differ(others)) => tracing::warn!(target: "ratekeeper::redis", "{others}"),
            Some(Report::Agree) => {
                tracing::info!(target: "ratekeeper::redis", "all nodes have the same limits again")
            }
            None => {}
        }
        let mut spoilt = None;
        match inner.secret.seen(secret) {
            SecretKnowledge::Same => {}
            SecretKnowledge::Differs(why) => tracing::warn!(target: "ratekeeper::redis", "{why}"),
            SecretKnowledge::Spoilt => spoilt = Some("secret"),
        }
        match u64::try_from(*nodes) {
            Ok(nodes) => {
                let children = inner.children();
                for store in std::iter::once(inner).chain(children.iter().map(|child| &**child)) {
                    if store.fallback.set_nodes(nodes) {
                        store
                            .limits
                            .all()
                            .iter()
                            .for_each(|limit| store.fallback.set(limit));
                    }
                }
            }
            Err(_) => spoilt = Some("nodes"),
        }
        self.tell_spoilt(inner, spoilt)
    }

    /// A key of the fleet itself holds what is not ours. What is known goes on: decisions do not
    /// need that key.
    fn tell_spoilt(&self, inner: &Inner, spoilt: Option<&str>) -> Result<(), StoreError> {
        let was_told = self.spoilt.swap(spoilt.is_some(), Relaxed);
        let Some(key) = spoilt else { return Ok(()) };
        let trouble = StoreError::BadKey(format!("{}:{key}", self.fleet));
        if !was_told {
            inner.health.count(&trouble);
            tracing::warn!(target: "ratekeeper::redis", "{trouble}");
        }
        if inner.secret.get().is_some() {
            Ok(())
        } else {
            Err(trouble)
        }
    }

    /// Learns where everything is.
    pub(crate) async fn find(&self) -> Result<(), StoreError> {
        match &self.way {
            RedisRoute::One(..) => Ok(()),
            RedisRoute::Cluster(cluster) => cluster.learn().await,
        }
    }

    /// Which version it is; none if it does not say.
    pub(crate) async fn version(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let mut command = redis::cmd("INFO");
        command.arg("server");
        let text = match self.way.send(&self.fleet, &command, SHORT).await {
            Ok(Value::BulkString(text)) => text,
            Err(trouble @ (StoreError::Unreachable(_) | StoreError::TimedOut)) => {
                return Err(trouble);
            }
            // What the sentinels say is not said of it.
            Err(trouble @ StoreError::Refused { .. }) if trouble.is_of_sentinels() => {
                return Err(trouble);
            }
            _ => return Ok(None),
        };
        let text = String::from_utf8_lossy(&text);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        let mut numbers = line
            .into_iter()
            .flat_map(|line| line.trim().split('.'))
            .map_while(|number| number.parse().ok());
        Ok(numbers.next().zip(numbers.next()))
    }

    fn renew(&mut self, inner: &Inner) {
        if self.renewed.elapsed() < RENEWAL - BEAT / 2 {
            return;
        }
        self.renewed = Instant::now();
        send(inner, inner.permits.renewals(PERMIT_LIVES).into_iter());
    }
}

/// Charges what was spent here while a server was away.
fn debit(inner: &Arc<Inner>, server: u64) {
    let limits = inner.limits.all();
    let spent = inner.fallback.over(server, &limits);
    let Some(secret) = inner.secret.get().filter(|_| !spent.is_empty()) else {
        return;
    };
    let debits = spent.iter().filter_map(|spent| {
        let limit = limits.get(spent.limit as usize)?;
        let key = secret.name(&limit.stem, &spent.key);
        Some(Amendment {
            key,
            limit: limit.form,
            what: Amend::ChargeMore(spent.tokens),
        })
    });
    let (pieces, keys, inner) = (pieces(inner, debits), spent.len(), Arc::clone(inner));
    // Heartbeats do not wait for it.
    tokio::spawn(async move {
        let (mut units, mut failed) = (0, None);
        for (lane, piece) in pieces {
            match inner.lanes[lane].amend(piece, PATIENCE).await {
                Ok(came) => units += came.iter().flatten().sum::<u64>(),
                Err(trouble) => failed = Some(trouble),
            }
        }
        inner.health.counts.debited.fetch_add(units, Relaxed);
        match failed {
            None => {
                tracing::info!(target: "ratekeeper::redis", keys, units, "charged what was spent without Redis")
            }
            Some(trouble) => {
                inner.health.count(&trouble);
                tracing::warn!(
                    target: "ratekeeper::redis",
                    keys, units, "not all that was spent without Redis could be charged: {trouble}"
                );
            }
        }
    });
}

/// Hands amendments in.
fn send(inner: &Inner, amendments: impl Iterator<Item = Amendment>) {
    for (lane, piece) in pieces(inner, amendments) {
        // Nobody waits for it; if it is lost it was not counted for long.
        drop(inner.lanes[lane].amend_later(piece, PATIENCE));
    }
}

/// Amendments in pieces, each for the lane where its keys are asked about.
fn pieces(
    inner: &Inner,
    amendments: impl Iterator<Item = Amendment>,
) -> Vec<(usize, Vec<Amendment>)> {
    let mut lanes: Vec<Vec<Amendment>> = vec![Vec::new(); inner.lanes.len()];
    for amendment in amendments {
        lanes[inner.lane_of(&amendment.key)].push(amendment);
    }
    let of_lane = |(lane, amendments): (usize, Vec<Amendment>)| {
        amendments
            .chunks(PIECE)
            .map(|piece| (lane, piece.to_vec()))
            .collect::<Vec<_>>()
    };
    lanes.into_iter().enumerate().flat_map(of_lane).collect()
}

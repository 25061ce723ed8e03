//! The background task of a store: heartbeats, renewal of permits, and probes of a server that has
//! failed.

use crate::cluster::{Cluster, slot};
use crate::connection_handle::ConnectionHandle;
use crate::health::Health;
use crate::limits_check::Report;
use crate::probe;
use crate::reconnecting::{ReconnectingConnection, Server};
use crate::reply::MAX_SHORT_REPLY;
use crate::script::PERMIT_TTL_MICROS;
use crate::script::amend::{Amend, Amendment};
use crate::secret::SecretCheck;
use crate::store::Inner;
use crate::store_error::StoreError;
use redis::Value;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often a node sends a heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a node counts as alive after its last heartbeat, in microseconds.
const NODE_TTL_MICROS: u64 = 5_000_000;
/// How often permits are renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3);
/// How long a heartbeat or another background command may take: longer than a decision, short
/// enough to find a server that is back within two seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// Pauses between two probes of a server that has failed: doubled each time from the first to the
/// second.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(100);
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the slots of a Cluster are read without a sign of a change.
const SLOTS_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Amendments sent in one call.
const AMENDMENTS_PER_CALL: usize = 64;

/// The background task of a store.
pub(crate) struct Maintenance {
    inner: Weak<Inner>,
    route: RedisRoute,
    /// `None` if this store is not counted among the nodes.
    node: Option<u64>,
    /// The prefix of the keys that the fleet itself uses.
    fleet_prefix: String,
    last_renewal: Instant,
    /// When the slots of a Cluster were last requested, whatever the outcome.
    last_slots_refresh: Instant,
    /// When the primaries of a Cluster were last checked.
    last_check: Instant,
    /// Whether a bad key of the fleet was reported.
    bad_key_reported: AtomicBool,
    /// How many decisions Redis had made at the last heartbeat.
    last_decisions: u64,
}

/// The connections for commands that are not decisions.
pub(crate) enum RedisRoute {
    One(ReconnectingConnection, Arc<Server>),
    Cluster(Arc<Cluster>),
}

impl RedisRoute {
    pub(crate) fn to(server: Arc<Server>) -> Self {
        Self::One(ReconnectingConnection::new(Arc::clone(&server)), server)
    }

    /// A second route to the same Redis, with its own connection.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::One(_, server) => Self::to(Arc::clone(server)),
            Self::Cluster(cluster) => Self::Cluster(Arc::clone(cluster)),
        }
    }

    /// The prefix of the keys that the fleet itself uses. In a Cluster they are in one slot, so
    /// that one script can use several of them.
    pub(crate) fn fleet_prefix(&self, prefix: &str) -> String {
        match self {
            Self::One(..) => prefix.to_owned(),
            Self::Cluster(_) => format!("{prefix}:{{fleet}}"),
        }
    }

    /// Sends a command to the server that has `key`; the reply may have up to `max_reply` bytes.
    pub(crate) async fn send(
        &self,
        key: &str,
        command: &redis::Cmd,
        max_reply: usize,
    ) -> Result<Value, StoreError> {
        match self {
            Self::One(connection, _) => {
                tokio::time::timeout(REQUEST_TIMEOUT, connection.send(command, max_reply, false))
                    .await
                    .unwrap_or(Err(StoreError::TimedOut))
            }
            Self::Cluster(cluster) => {
                let slot = slot(key.as_bytes());
                tokio::time::timeout(REQUEST_TIMEOUT, cluster.send(slot, command, max_reply))
                    .await
                    .unwrap_or_else(|_| {
                        cluster.disconnect(slot);
                        Err(StoreError::TimedOut)
                    })
            }
        }
    }

    pub(crate) fn disconnect(&self) {
        if let Self::One(connection, _) = self {
            connection.disconnect();
        }
    }

    /// Whether a server must be probed.
    fn needs_probe(&self, health: &Health) -> bool {
        health.is_open() || matches!(self, Self::Cluster(cluster) if cluster.needs_check())
    }
}

impl Maintenance {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        route: RedisRoute,
        node: Option<u64>,
        prefix: &str,
    ) -> Self {
        let inner = Arc::downgrade(inner);
        let fleet_prefix = route.fleet_prefix(prefix);
        let now = Instant::now();
        let bad_key_reported = AtomicBool::new(false);
        Self {
            inner,
            route,
            node,
            fleet_prefix,
            last_renewal: now,
            last_slots_refresh: now,
            last_check: now,
            bad_key_reported,
            last_decisions: 0,
        }
    }

    /// Runs until the store is dropped.
    pub(crate) async fn run(mut self) {
        let mut pause = MIN_PROBE_INTERVAL;
        loop {
            let Some(inner) = self.inner.upgrade() else {
                return;
            };
            let health = Arc::clone(&inner.health);
            let needs_probe = self.route.needs_probe(&health);
            let wait = if needs_probe {
                pause.mul_f64(0.5 + fastrand::f64() / 2.0)
            } else {
                HEARTBEAT_INTERVAL
            };
            pause = if needs_probe {
                (pause * 2).min(MAX_PROBE_INTERVAL)
            } else {
                MIN_PROBE_INTERVAL
            };
            let closed = Arc::clone(&inner.closed);
            drop(inner);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = health.opened() => {}
                () = closed.notified() => return,
            }
            if !needs_probe && self.route.needs_probe(&health) {
                // The breaker has just opened: the first probe comes after a pause.
                continue;
            }
            let Some(inner) = self.inner.upgrade() else {
                return;
            };
            match self.check_servers(&health).await {
                Ok(()) => {
                    let heartbeat = self.heartbeat(&inner).await;
                    self.check_decisions(&inner, heartbeat).await;
                    self.run_deferred(&inner);
                }
                Err(error) => health.record_failure(&error),
            }
        }
    }

    /// Finds out where Redis is now.
    async fn check_servers(&mut self, health: &Health) -> Result<(), StoreError> {
        match &self.route {
            RedisRoute::One(connection, server) => {
                if health.is_open() {
                    // The connection itself may be at fault.
                    connection.disconnect();
                } else if server.has_new_primary().await {
                    tracing::info!(target: "ratekeeper::redis", "the sentinels name another primary; reconnecting");
                    connection.disconnect();
                    health.new_generation();
                }
                Ok(())
            }
            RedisRoute::Cluster(cluster) => {
                // Nodes may report moved slots again and again.
                tokio::time::sleep(MIN_PROBE_INTERVAL.saturating_sub(self.last_check.elapsed()))
                    .await;
                self.last_check = Instant::now();
                let is_due = self.last_slots_refresh.elapsed() >= SLOTS_REFRESH_INTERVAL;
                if is_due {
                    self.last_slots_refresh = Instant::now();
                }
                cluster.check(is_due).await
            }
        }
    }

    /// Finds out whether decisions work, after a heartbeat with this outcome.
    async fn check_decisions(&mut self, inner: &Inner, heartbeat: Result<(), StoreError>) {
        let health = &inner.health;
        if heartbeat.is_err() {
            self.route.disconnect();
        }
        if let (Err(error), None) = (&heartbeat, inner.secret.get()) {
            // Without the secret no key has a name.
            health.record_failure(error);
        } else {
            let decided = health.counts.decisions.load(Relaxed);
            let is_idle = std::mem::replace(&mut self.last_decisions, decided) == decided;
            if is_idle || heartbeat.is_err() || !health.is_own_state_healthy() {
                // The outcome is recorded in the health.
                let _ = self.probe(inner).await;
            }
        }
        let error = heartbeat.err();
        // A failure of Redis as a whole was logged by the health.
        if let Some(error) = error
            .as_ref()
            .filter(|_| health.is_healthy() && inner.heartbeat().is_none())
        {
            tracing::warn!(
                target: "ratekeeper::redis",
                "the heartbeat of this node fails, so other nodes do not count it: {error}"
            );
        }
        *inner.heartbeat() = error;
    }

    /// Sends the first heartbeat, and checks that decisions are made in time.
    pub(crate) async fn start(&self, inner: &Inner) -> Result<(), StoreError> {
        self.heartbeat(inner).await?;
        match &self.route {
            RedisRoute::One(..) => self.probe(inner).await,
            RedisRoute::Cluster(cluster) => {
                cluster.check(false).await?;
                // A primary that is down does not keep this node from starting.
                match inner.health.error() {
                    Some((_, error @ StoreError::Refused { .. })) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Probes whether decisions work. The primaries of a Cluster are probed by [`Cluster::check`].
    async fn probe(&self, inner: &Inner) -> Result<(), StoreError> {
        let questions = probe::questions(&probe::key(inner.limits.prefix(), 0));
        let connections = inner
            .connections
            .iter()
            .filter_map(ConnectionHandle::single);
        probe::run(&inner.health, connections, &questions, 0, inner.timeout).await
    }

    /// Does what had to wait until Redis was healthy.
    fn run_deferred(&mut self, inner: &Arc<Inner>) {
        if inner.health.is_own_state_healthy() {
            let has_recovered = |server: &u64| inner.connections[0].has_recovered(*server);
            for store in std::iter::once(Arc::clone(inner)).chain(inner.children()) {
                store
                    .fallback
                    .outages()
                    .into_iter()
                    .filter(has_recovered)
                    .for_each(|server| debit(&store, server));
            }
        }
        self.renew(inner);
    }

    /// Sends a heartbeat: announces this node, counts the others, and agrees on the secret.
    pub(crate) async fn heartbeat(&self, inner: &Inner) -> Result<(), StoreError> {
        let nodes = format!("{}:nodes", self.fleet_prefix);
        let secret = format!("{}:secret", self.fleet_prefix);
        let mut command = redis::cmd("EVAL");
        command
            .arg(include_str!("script/heartbeat.lua"))
            .arg(2)
            .arg(&nodes)
            .arg(secret);
        let node = self
            .node
            .map_or_else(String::new, |node| format!("{node:016x}"));
        command
            .arg(node)
            .arg(NODE_TTL_MICROS)
            .arg(inner.secret.offer());
        let digest = inner.limits_check.digest();
        command.arg(&digest);
        let answer = self.route.send(&nodes, &command, MAX_SHORT_REPLY).await?;
        let Value::Array(answer) = answer else {
            return Err(StoreError::Protocol(
                "the reply to the heartbeat is not a list".to_owned(),
            ));
        };
        let [
            Value::Int(nodes),
            Value::BulkString(secret),
            Value::Int(others),
        ] = &answer[..]
        else {
            return Err(StoreError::Protocol(
                "the reply to the heartbeat does not have three values".to_owned(),
            ));
        };
        let others = u64::try_from(*others).unwrap_or(0);
        match inner.limits_check.record(&digest, others, Instant::now()) {
            Some(Report::Differ(others)) => tracing::warn!(target: "ratekeeper::redis", "{others}"),
            Some(Report::Agree) => {
                tracing::info!(target: "ratekeeper::redis", "all nodes have the same limits again");
            }
            None => {}
        }
        let mut bad_key = None;
        match inner.secret.check(secret) {
            SecretCheck::Same => {}
            SecretCheck::Differs(reason) => tracing::warn!(target: "ratekeeper::redis", "{reason}"),
            SecretCheck::Invalid => bad_key = Some("secret"),
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
            Err(_) => bad_key = Some("nodes"),
        }
        self.report_bad_key(inner, bad_key)
    }

    /// Reports that a key of the fleet itself holds data of another kind. Decisions go on if the
    /// secret is known: they do not need that key.
    fn report_bad_key(&self, inner: &Inner, bad_key: Option<&str>) -> Result<(), StoreError> {
        let was_reported = self.bad_key_reported.swap(bad_key.is_some(), Relaxed);
        let Some(key) = bad_key else { return Ok(()) };
        let error = StoreError::BadKey(format!("{}:{key}", self.fleet_prefix));
        if !was_reported {
            inner.health.count_error(&error);
            tracing::warn!(target: "ratekeeper::redis", "{error}");
        }
        if inner.secret.get().is_some() {
            Ok(())
        } else {
            Err(error)
        }
    }

    /// Reads the slots of a Cluster.
    pub(crate) async fn discover(&self) -> Result<(), StoreError> {
        match &self.route {
            RedisRoute::One(..) => Ok(()),
            RedisRoute::Cluster(cluster) => cluster.refresh_slots().await,
        }
    }

    /// The version of the server; `None` if it is unknown.
    pub(crate) async fn version(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let mut command = redis::cmd("INFO");
        command.arg("server");
        let text = match self
            .route
            .send(&self.fleet_prefix, &command, MAX_SHORT_REPLY)
            .await
        {
            Ok(Value::BulkString(text)) => text,
            Err(error @ (StoreError::Unreachable(_) | StoreError::TimedOut)) => {
                return Err(error);
            }
            // An error of the sentinels is not an error of the server.
            Err(error @ StoreError::Refused { .. }) if error.is_from_sentinels() => {
                return Err(error);
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
        if self.last_renewal.elapsed() < RENEWAL_INTERVAL - HEARTBEAT_INTERVAL / 2 {
            return;
        }
        self.last_renewal = Instant::now();
        send(inner, inner.permits.renewals(PERMIT_TTL_MICROS).into_iter());
    }
}

/// Charges in Redis what was spent here during the outage of a server.
fn debit(inner: &Arc<Inner>, server: u64) {
    let limits = inner.limits.all();
    let spent = inner.fallback.end_outage(server, &limits);
    let Some(secret) = inner.secret.get().filter(|_| !spent.is_empty()) else {
        return;
    };
    let debits = spent.iter().filter_map(|spent| {
        let limit = limits.get(spent.limit as usize)?;
        let key = secret.name(&limit.key_prefix, &spent.key);
        Some(Amendment {
            key,
            limit: limit.form,
            change: Amend::ChargeMore(spent.tokens),
        })
    });
    let batches = batches(inner, debits);
    let keys = spent.len();
    let inner = Arc::clone(inner);
    // Heartbeats do not wait for it.
    tokio::spawn(async move {
        let mut units = 0;
        let mut failed = None;
        for (index, batch) in batches {
            match inner.connections[index].amend(batch, REQUEST_TIMEOUT).await {
                Ok(outcomes) => units += outcomes.iter().flatten().sum::<u64>(),
                Err(error) => failed = Some(error),
            }
        }
        inner.health.counts.debited.fetch_add(units, Relaxed);
        match failed {
            None => {
                tracing::info!(target: "ratekeeper::redis", keys, units, "charged in Redis what was spent during the outage");
            }
            Some(error) => {
                inner.health.count_error(&error);
                tracing::warn!(
                    target: "ratekeeper::redis",
                    keys, units, "some of what was spent during the outage could not be charged in Redis: {error}"
                );
            }
        }
    });
}

/// Queues amendments without waiting for their outcome.
fn send(inner: &Inner, amendments: impl Iterator<Item = Amendment>) {
    for (index, batch) in batches(inner, amendments) {
        // A lost renewal is repeated after three seconds; a permit that is not released expires.
        drop(inner.connections[index].amend_later(batch, REQUEST_TIMEOUT));
    }
}

/// Splits amendments into batches, each with the index of its connection.
fn batches(
    inner: &Inner,
    amendments: impl Iterator<Item = Amendment>,
) -> Vec<(usize, Vec<Amendment>)> {
    let mut connections: Vec<Vec<Amendment>> = vec![Vec::new(); inner.connections.len()];
    for amendment in amendments {
        connections[inner.connection_index(&amendment.key)].push(amendment);
    }
    let split = |(index, amendments): (usize, Vec<Amendment>)| {
        amendments
            .chunks(AMENDMENTS_PER_CALL)
            .map(|batch| (index, batch.to_vec()))
            .collect::<Vec<_>>()
    };
    connections
        .into_iter()
        .enumerate()
        .flat_map(split)
        .collect()
}

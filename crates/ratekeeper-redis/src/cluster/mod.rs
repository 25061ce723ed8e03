//! Redis Cluster: which primary has which slots, requests across several slots, and redirections.
//!
//! A script may only touch keys of one slot. A request whose limits are in several slots is sent to
//! all of them at once. Where one denies, the charges of the others are refunded at once. So a
//! limit is never exceeded, but another request may be denied while a refund is on its way.

mod slot_requests;
mod slots;
mod topology;

pub(crate) use slots::slot;

use crate::address::{Address, Dialer};
use crate::batched_connection::{BatchHandle, BatchedConnection, Job, ReplyReceiver};
use crate::fallback::ONLY_SERVER;
use crate::health::Health;
use crate::reconnecting::{ReconnectingConnection, Server, ServerLocation};
use crate::script::Scripts;
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, FEW, Questions};
use crate::store_error::{Redirect, StoreError};
use slots::SLOTS;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

/// Redirections of one call before the nodes are considered to disagree.
const MAX_REDIRECTS: u8 = 8;
/// How long to wait before asking again for keys of a migrating slot.
const MIGRATION_RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The settings of connections to the primaries.
pub(crate) struct ConnectionConfig {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) max_waiting: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) time: Option<Arc<AtomicU64>>,
}

/// The connections to the primaries of a Redis Cluster, and the map of their slots.
pub(crate) struct Cluster {
    weak_self: Weak<Self>,
    seeds: Vec<Address>,
    dial: Dialer,
    config: ConnectionConfig,
    health: Arc<Health>,
    prefix: Box<str>,
    map: RwLock<Arc<SlotMap>>,
    /// Whether a node has reported that the map is out of date.
    is_stale: AtomicBool,
    /// Counter that rotates which node is asked for the slots first.
    next_node: AtomicUsize,
    /// The last node number given.
    last_number: AtomicU64,
    /// Held by every connection that runs, so that shutdown can wait for them.
    running: tokio::sync::mpsc::Sender<()>,
}

/// The known owners of the slots.
struct SlotMap {
    /// For each slot the index of its primary in `nodes`.
    owners: Vec<u16>,
    nodes: Vec<Arc<Node>>,
}

/// The owner of a slot that no node serves.
const NO_OWNER: u16 = u16::MAX;

/// The numbers of servers, one for each ask of a request.
pub(crate) type Servers = SmallVec<[u64; FEW]>;

/// One primary.
struct Node {
    /// A unique number, never reused.
    number: u64,
    address: Address,
    handles: Vec<BatchHandle>,
    health: Arc<Health>,
    /// The connection for commands that are not decisions.
    control: ReconnectingConnection,
}

impl SlotMap {
    fn node(&self, slot: u16) -> Result<&Arc<Node>, StoreError> {
        let owner = self.owners[usize::from(slot % SLOTS)];
        self.nodes
            .get(usize::from(owner))
            .ok_or_else(|| StoreError::Refused {
                code: "CLUSTERDOWN".to_owned(),
                message: format!("no primary serves slot {slot}"),
            })
    }
}

impl Node {
    /// The connection of a slot. It is always the same, so that a later command about a key arrives
    /// later.
    fn handle(&self, slot: u16) -> &BatchHandle {
        &self.handles[usize::from(slot) % self.handles.len()]
    }
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Address>,
        dial: Dialer,
        config: ConnectionConfig,
        health: Arc<Health>,
        prefix: &str,
        running: tokio::sync::mpsc::Sender<()>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            weak_self: Weak::clone(me),
            seeds,
            dial,
            config,
            health,
            prefix: prefix.into(),
            map: RwLock::new(Arc::new(SlotMap {
                owners: vec![NO_OWNER; usize::from(SLOTS)],
                nodes: Vec::new(),
            })),
            is_stale: AtomicBool::new(true),
            next_node: AtomicUsize::new(0),
            last_number: AtomicU64::new(ONLY_SERVER),
            running,
        })
    }

    fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The connection of a slot, unless the breaker of its primary is open.
    fn healthy_handle(map: &SlotMap, slot: u16) -> Result<&BatchHandle, StoreError> {
        let node = map.node(slot)?;
        if node.health.is_open() {
            Err(StoreError::Broken)
        } else {
            Ok(node.handle(slot))
        }
    }

    /// For each slot the number of the primary whose failure made the request fall back: its own if
    /// that fails, else another failing one, since a request is decided as a whole.
    pub(crate) fn failing_servers(&self, slots: impl Iterator<Item = Option<u16>>) -> Servers {
        let map = self.map();
        let nodes: SmallVec<[Option<&Arc<Node>>; FEW]> =
            slots.map(|slot| map.node(slot?).ok()).collect();
        let fails = |node: &&Arc<Node>| !node.health.is_healthy();
        let failing = nodes.iter().flatten().copied().find(fails);
        let number = |own: &Option<&Arc<Node>>| match own.filter(fails).or(failing).or(*own) {
            Some(node) => node.number,
            None => ONLY_SERVER,
        };
        nodes.iter().map(number).collect()
    }

    /// Whether a primary decides again, or is no longer a primary.
    pub(crate) fn has_recovered(&self, server: u64) -> bool {
        self.map()
            .nodes
            .iter()
            .find(|node| node.number == server)
            .is_none_or(|node| node.health.is_healthy())
    }

    pub(crate) async fn decide(
        &self,
        questions: Questions,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let map = self.map();
        let slot_requests = slot_requests::of(&questions);
        if let [slot_request] = &slot_requests[..] {
            let reply = Self::healthy_handle(&map, slot_request.slot)?.decide(
                questions,
                slot_request.slot,
                timeout,
            )?;
            return reply.await.unwrap_or(Err(StoreError::Broken));
        }
        // Nothing is charged anywhere if one of the primaries is known to fail.
        let handles = slot_requests
            .iter()
            .map(|slot_request| Self::healthy_handle(&map, slot_request.slot))
            .collect::<Result<SmallVec<[_; 4]>, _>>()?;
        let replies = slot_requests
            .iter()
            .zip(handles)
            .map(|(slot_request, handle)| {
                handle.decide(
                    slot_request.questions(&questions),
                    slot_request.slot,
                    timeout,
                )
            });
        let replies: SmallVec<[Result<ReplyReceiver<Answer>, StoreError>; 4]> = replies.collect();
        let mut answers: SmallVec<[Result<Answer, StoreError>; 4]> = SmallVec::new();
        for reply in replies {
            answers.push(match reply {
                Ok(reply) => reply.await.unwrap_or(Err(StoreError::Broken)),
                Err(error) => Err(error),
            });
        }
        let (answer, refunds) = slot_requests::merge(&questions, &slot_requests, answers);
        if !refunds.is_empty() {
            // No caller waits for the refund. If it is lost, the charge stays.
            drop(self.amend_later(refunds, timeout.max(REFUND_TIMEOUT)));
        }
        answer
    }

    /// Queues amendments at once, before the future is polled; the future has the outcome of each.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Option<u64>>, StoreError>> + Send + use<> {
        let map = self.map();
        let mut outcomes = vec![None; amendments.len()];
        let mut queued = Vec::new();
        let mut failed = None;
        for (slot, indices) in by_slot(&amendments) {
            let own = indices.iter().map(|at| amendments[*at].clone()).collect();
            match Self::healthy_handle(&map, slot)
                .and_then(|handle| handle.amend(own, slot, timeout))
            {
                Ok(reply) => queued.push((indices, reply)),
                Err(error) => failed = Some(error),
            }
        }
        async move {
            for (indices, reply) in queued {
                match reply.await.unwrap_or(Err(StoreError::Broken)) {
                    Ok(own) => indices
                        .iter()
                        .zip(own)
                        .for_each(|(at, one)| outcomes[*at] = one),
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(outcomes), Err)
        }
    }

    pub(crate) fn amend_later(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let map = self.map();
        let mut failed = None;
        for (slot, indices) in by_slot(&amendments) {
            let own = indices.iter().map(|at| amendments[*at].clone()).collect();
            // Sent even if the breaker is open: the primary may answer by then.
            if let Err(error) = map
                .node(slot)
                .and_then(|node| node.handle(slot).amend(own, slot, timeout))
            {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Creates a node that was not known, and starts its connections.
    fn node(&self, address: &Address) -> Result<Arc<Node>, StoreError> {
        let endpoint = self
            .dial
            .endpoint(address)
            .map_err(|error| StoreError::Unreachable(format!("{address}: {error}")))?;
        let ConnectionConfig {
            scripts,
            timeout,
            connections,
            max_waiting,
            connect_timeout,
            time,
        } = &self.config;
        let server = Arc::new(Server {
            location: ServerLocation::Fixed(endpoint),
            connect_timeout: *connect_timeout,
            name: Some(address.to_string()),
        });
        let health = self.health.for_primary();
        let open = |_| {
            let router = ClusterRouter {
                cluster: Weak::clone(&self.weak_self),
                host: address.host.clone(),
            };
            let scripts = Arc::clone(scripts);
            let health = Arc::clone(&health);
            let time = time.clone();
            let reconnecting = ReconnectingConnection::new(Arc::clone(&server));
            let max_waiting_each = max_waiting.div_ceil(*connections);
            let (handle, connection) = BatchedConnection::new(
                reconnecting,
                scripts,
                health,
                *timeout,
                max_waiting_each,
                time,
                Some(router),
            );
            let running = self.running.clone();
            tokio::spawn(async move {
                connection.run().await;
                drop(running);
            });
            handle
        };
        let handles = (0..*connections).map(open).collect();
        let number = self.last_number.fetch_add(1, Relaxed) + 1;
        Ok(Arc::new(Node {
            number,
            address: address.clone(),
            handles,
            health,
            control: ReconnectingConnection::new(server),
        }))
    }

    /// Handles `MOVED`: another node has this slot now.
    fn slot_moved(&self, slot: u16, to: &Address) -> Result<Arc<Node>, StoreError> {
        self.is_stale.store(true, Relaxed);
        self.health.wake();
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let known = map.nodes.iter().position(|node| node.address == *to);
        if let Some(at) = known.filter(|at| map.owners[usize::from(slot % SLOTS)] == *at as u16) {
            return Ok(Arc::clone(&map.nodes[at]));
        }
        let mut nodes = map.nodes.clone();
        let at = match known {
            Some(at) => at,
            None => {
                nodes.push(self.node(to)?);
                nodes.len() - 1
            }
        };
        let node = Arc::clone(&nodes[at]);
        let mut owners = map.owners.clone();
        owners[usize::from(slot % SLOTS)] = at as u16;
        *map = Arc::new(SlotMap { owners, nodes });
        Ok(node)
    }

    /// The node at an address, whichever slots it has; for `ASK`.
    fn node_at(&self, address: &Address) -> Result<Arc<Node>, StoreError> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = map.nodes.iter().find(|node| node.address == *address) {
            return Ok(Arc::clone(known));
        }
        let node = self.node(address)?;
        let mut nodes = map.nodes.clone();
        nodes.push(Arc::clone(&node));
        *map = Arc::new(SlotMap {
            owners: map.owners.clone(),
            nodes,
        });
        Ok(node)
    }
}

/// How long a refund between slots may take.
const REFUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The indices of the amendments, by slot.
fn by_slot(amendments: &[Amendment]) -> Vec<(u16, Vec<usize>)> {
    let mut all: Vec<(u16, Vec<usize>)> = Vec::new();
    for (at, amendment) in amendments.iter().enumerate() {
        let slot = slot(&amendment.key);
        match all.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, indices)) => indices.push(at),
            None => all.push((slot, vec![at])),
        }
    }
    all
}

/// Forwards the jobs of a connection whose node does not have their slot.
pub(crate) struct ClusterRouter {
    cluster: Weak<Cluster>,
    /// The node's own host, which a redirection to itself may leave out.
    host: String,
}

impl ClusterRouter {
    /// Sends a job to the node that a redirection names. `is_immediate`: do not wait for migrating
    /// keys, because the job will go in another form.
    pub(crate) fn send(&self, mut job: Job, redirect: Redirect<'_>, is_immediate: bool) {
        // The store was dropped.
        let Some(cluster) = self.cluster.upgrade() else {
            return;
        };
        job.redirects = job.redirects.saturating_add(1);
        if job.is_late() {
            return job.fail(&StoreError::TimedOut);
        }
        let slot = job.slot;
        let node = match redirect {
            Redirect::To { .. } if job.redirects > MAX_REDIRECTS => {
                let message = "its nodes redirect to each other".to_owned();
                Err(StoreError::Refused {
                    code: "CLUSTERDOWN".to_owned(),
                    message,
                })
            }
            Redirect::To { host, port, asking } => {
                let host = if host.is_empty() { &self.host } else { host };
                let to = Address {
                    host: host.to_owned(),
                    port,
                };
                job.asking = asking;
                if asking {
                    cluster.node_at(&to)
                } else {
                    cluster.slot_moved(slot, &to)
                }
            }
            Redirect::TryAgain => {
                job.asking = false;
                cluster.map().node(slot).cloned()
            }
        };
        match node {
            Ok(node) if redirect == Redirect::TryAgain && !is_immediate => {
                drop(tokio::spawn(async move {
                    tokio::time::sleep(MIGRATION_RETRY_INTERVAL).await;
                    if job.is_late() {
                        job.fail(&StoreError::TimedOut);
                    } else {
                        // If the connection is gone, so is the caller.
                        drop(node.handle(slot).enqueue_job(job));
                    }
                }));
            }
            Ok(node) => drop(node.handle(slot).enqueue_job(job)),
            Err(error) => job.fail(&error),
        }
    }
}

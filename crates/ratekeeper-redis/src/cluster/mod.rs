//! Redis Cluster: which primary has which keys, a request in as many calls as it has slots, and
//! what goes elsewhere.
//!
//! A script may touch keys of one slot only. A request whose limits lie in several is asked in all
//! of them at once, and where one denies, what the others charged goes back at once. So it is never
//! admitted too much; somebody else may be denied by what is on its way back.

mod slot_requests;
mod slots;
mod topology;

pub(crate) use slots::slot;

use crate::address::{Address, Dialer};
use crate::batched_connection::{BatchHandle, BatchedConnection, Job, ReplyReceiver};
use crate::fallback::ONLY_SERVER;
use crate::health::Health;
use crate::reconnecting::{At, ReconnectingConnection, Server};
use crate::script::Scripts;
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, FEW, Questions};
use crate::store_error::{Redirect, StoreError};
use slots::SLOTS;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

/// So often a call is sent elsewhere before the nodes must be in disagreement.
const MOST_REDIRECTED: u8 = 8;
/// How long to wait for keys that are on the way.
const ON_THE_WAY: Duration = Duration::from_millis(2);

/// What lanes to any primary are made with.
pub(crate) struct ConnectionConfig {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) most_waiting: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) time: Option<Arc<AtomicU64>>,
}

pub(crate) struct Cluster {
    me: Weak<Self>,
    seeds: Vec<Address>,
    dial: Dialer,
    lanes: ConnectionConfig,
    health: Arc<Health>,
    prefix: Box<str>,
    map: RwLock<Arc<Map>>,
    /// Whether somebody was told that it is not right any more.
    is_stale: AtomicBool,
    /// Whom to ask first next time.
    turn: AtomicUsize,
    /// Primaries that ever were.
    numbers: AtomicU64,
    /// Held by every lane that runs.
    running: tokio::sync::mpsc::Sender<()>,
}

/// Who has which slots, as far as is known.
struct Map {
    /// The primary of each slot, by its place among the nodes.
    owners: Vec<u16>,
    nodes: Vec<Arc<Node>>,
}

const NOBODY: u16 = u16::MAX;

/// The numbers of servers, one for each ask of a request.
pub(crate) type Servers = SmallVec<[u64; FEW]>;

/// One primary.
struct Node {
    /// Another for each that ever was.
    number: u64,
    address: Address,
    doors: Vec<BatchHandle>,
    health: Arc<Health>,
    /// For what is not a decision.
    link: ReconnectingConnection,
}

impl Map {
    fn node(&self, slot: u16) -> Result<&Arc<Node>, StoreError> {
        let owner = self.owners[usize::from(slot % SLOTS)];
        self.nodes
            .get(usize::from(owner))
            .ok_or_else(|| StoreError::Refused {
                code: "CLUSTERDOWN".to_owned(),
                message: format!("nobody has the slot {slot}"),
            })
    }
}

impl Node {
    /// Where a slot is asked about, always the same, so that what is said of a key later comes
    /// later.
    fn door(&self, slot: u16) -> &BatchHandle {
        &self.doors[usize::from(slot) % self.doors.len()]
    }
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Address>,
        dial: Dialer,
        lanes: ConnectionConfig,
        health: Arc<Health>,
        prefix: &str,
        running: tokio::sync::mpsc::Sender<()>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            seeds,
            dial,
            lanes,
            health,
            prefix: prefix.into(),
            map: RwLock::new(Arc::new(Map {
                owners: vec![NOBODY; usize::from(SLOTS)],
                nodes: Vec::new(),
            })),
            is_stale: AtomicBool::new(true),
            turn: AtomicUsize::new(0),
            numbers: AtomicU64::new(ONLY_SERVER),
            running,
        })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a slot is asked about, if its primary is not in trouble.
    fn door(map: &Map, slot: u16) -> Result<&BatchHandle, StoreError> {
        let node = map.node(slot)?;
        if node.health.is_open() {
            Err(StoreError::Broken)
        } else {
            Ok(node.door(slot))
        }
    }

    /// The primary that each of these slots is decided without: its own if that fails, else another
    /// of them that does, since a request is decided as a whole.
    pub(crate) fn missing(&self, slots: impl Iterator<Item = Option<u16>>) -> Servers {
        let map = self.map();
        let nodes: SmallVec<[Option<&Arc<Node>>; FEW]> =
            slots.map(|slot| map.node(slot?).ok()).collect();
        let fails = |node: &&Arc<Node>| !node.health.is_well();
        let failing = nodes.iter().flatten().copied().find(fails);
        let number = |own: &Option<&Arc<Node>>| match own.filter(fails).or(failing).or(*own) {
            Some(node) => node.number,
            None => ONLY_SERVER,
        };
        nodes.iter().map(number).collect()
    }

    /// Whether a primary decides again, or is none any more.
    pub(crate) fn is_over(&self, server: u64) -> bool {
        self.map()
            .nodes
            .iter()
            .find(|node| node.number == server)
            .is_none_or(|node| node.health.is_well())
    }

    pub(crate) async fn decide(
        &self,
        questions: Questions,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let map = self.map();
        let parts = slot_requests::of(&questions);
        if let [part] = &parts[..] {
            let told = Self::door(&map, part.slot)?.decide(questions, part.slot, timeout)?;
            return told.await.unwrap_or(Err(StoreError::Broken));
        }
        // Nothing is charged anywhere if one is known to be in trouble.
        let doors = parts
            .iter()
            .map(|part| Self::door(&map, part.slot))
            .collect::<Result<SmallVec<[_; 4]>, _>>()?;
        let asked = parts
            .iter()
            .zip(doors)
            .map(|(part, door)| door.decide(part.questions(&questions), part.slot, timeout));
        let asked: SmallVec<[Result<ReplyReceiver<Answer>, StoreError>; 4]> = asked.collect();
        let mut answers: SmallVec<[Result<Answer, StoreError>; 4]> = SmallVec::new();
        for told in asked {
            answers.push(match told {
                Ok(told) => told.await.unwrap_or(Err(StoreError::Broken)),
                Err(trouble) => Err(trouble),
            });
        }
        let (answer, back) = slot_requests::together(&questions, &parts, answers);
        if !back.is_empty() {
            // Nobody waits for it. What is lost stays charged.
            drop(self.amend_later(back, timeout.max(GIVEN_BACK)));
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
        let mut came = vec![None; amendments.len()];
        let mut handed_in = Vec::new();
        let mut failed = None;
        for (slot, places) in by_slot(&amendments) {
            let own = places.iter().map(|at| amendments[*at].clone()).collect();
            match Self::door(&map, slot).and_then(|door| door.amend(own, slot, timeout)) {
                Ok(told) => handed_in.push((places, told)),
                Err(trouble) => failed = Some(trouble),
            }
        }
        async move {
            for (places, told) in handed_in {
                match told.await.unwrap_or(Err(StoreError::Broken)) {
                    Ok(own) => places.iter().zip(own).for_each(|(at, one)| came[*at] = one),
                    Err(trouble) => failed = Some(trouble),
                }
            }
            failed.map_or(Ok(came), Err)
        }
    }

    pub(crate) fn amend_later(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let map = self.map();
        let mut failed = None;
        for (slot, places) in by_slot(&amendments) {
            let own = places.iter().map(|at| amendments[*at].clone()).collect();
            // Who is in trouble is told all the same: it may be well by then.
            if let Err(trouble) = map
                .node(slot)
                .and_then(|node| node.door(slot).amend(own, slot, timeout))
            {
                failed = Some(trouble);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// A node that was not known; its lanes run from now on.
    fn node(&self, address: &Address) -> Result<Arc<Node>, StoreError> {
        let endpoint = self
            .dial
            .endpoint(address)
            .map_err(|error| StoreError::Unreachable(format!("{address}: {error}")))?;
        let ConnectionConfig {
            scripts,
            timeout,
            connections,
            most_waiting,
            connect_timeout,
            time,
        } = &self.lanes;
        let (connect_timeout, name) = (*connect_timeout, Some(address.to_string()));
        let server = Arc::new(Server {
            at: At::One(endpoint),
            connect_timeout,
            name,
        });
        let health = self.health.part();
        let lane = |_| {
            let elsewhere = ClusterRouter {
                cluster: Weak::clone(&self.me),
                host: address.host.clone(),
            };
            let (scripts, health, time) = (Arc::clone(scripts), Arc::clone(&health), time.clone());
            let link = ReconnectingConnection::new(Arc::clone(&server));
            let most = most_waiting.div_ceil(*connections);
            let (door, lane) = BatchedConnection::new(
                link,
                scripts,
                health,
                *timeout,
                most,
                time,
                Some(elsewhere),
            );
            let running = self.running.clone();
            tokio::spawn(async move {
                lane.run().await;
                drop(running);
            });
            door
        };
        let doors = (0..*connections).map(lane).collect();
        let number = self.numbers.fetch_add(1, Relaxed) + 1;
        Ok(Arc::new(Node {
            number,
            address: address.clone(),
            doors,
            health,
            link: ReconnectingConnection::new(server),
        }))
    }

    /// A node says that another has this slot.
    fn moved(&self, slot: u16, to: &Address) -> Result<Arc<Node>, StoreError> {
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
        *map = Arc::new(Map { owners, nodes });
        Ok(node)
    }

    /// Another node that is to be asked, whoever has the slot.
    fn other(&self, address: &Address) -> Result<Arc<Node>, StoreError> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = map.nodes.iter().find(|node| node.address == *address) {
            return Ok(Arc::clone(known));
        }
        let node = self.node(address)?;
        let mut nodes = map.nodes.clone();
        nodes.push(Arc::clone(&node));
        *map = Arc::new(Map {
            owners: map.owners.clone(),
            nodes,
        });
        Ok(node)
    }
}

/// What is given back has so long to arrive.
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// Which of them are in which slot.
fn by_slot(amendments: &[Amendment]) -> Vec<(u16, Vec<usize>)> {
    let mut all: Vec<(u16, Vec<usize>)> = Vec::new();
    for (at, amendment) in amendments.iter().enumerate() {
        let slot = slot(&amendment.key);
        match all.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, places)) => places.push(at),
            None => all.push((slot, vec![at])),
        }
    }
    all
}

/// Where a lane of a Cluster goes with what its node does not have.
pub(crate) struct ClusterRouter {
    cluster: Weak<Cluster>,
    /// Of the node itself, which may leave it out where it means itself.
    host: String,
}

impl ClusterRouter {
    /// Sends a job there. `at_once`: though its keys are on the way, since it will go in another
    /// form.
    pub(crate) fn send(&self, mut job: Job, redirect: Redirect<'_>, at_once: bool) {
        // A store that is gone asks nobody.
        let Some(cluster) = self.cluster.upgrade() else {
            return;
        };
        job.redirected = job.redirected.saturating_add(1);
        if job.is_late() {
            return job.fail(&StoreError::TimedOut);
        }
        let slot = job.slot;
        let node = match redirect {
            Redirect::To { .. } if job.redirected > MOST_REDIRECTED => {
                let message = "its nodes send us to each other".to_owned();
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
                    cluster.other(&to)
                } else {
                    cluster.moved(slot, &to)
                }
            }
            Redirect::Later => {
                job.asking = false;
                cluster.map().node(slot).cloned()
            }
        };
        match node {
            Ok(node) if redirect == Redirect::Later && !at_once => drop(tokio::spawn(async move {
                tokio::time::sleep(ON_THE_WAY).await;
                if job.is_late() {
                    job.fail(&StoreError::TimedOut);
                } else {
                    // If it is gone, so is who waits.
                    drop(node.door(slot).take_over(job));
                }
            })),
            Ok(node) => drop(node.door(slot).take_over(job)),
            Err(trouble) => job.fail(&trouble),
        }
    }
}

//! Keeping the map of a Cluster right, and looking after its primaries.

use super::slots::{self, Range};
use super::{Cluster, Map, NOBODY, Node, SLOTS, slot};
use crate::address::Address;
use crate::probe;
use crate::reply::LIST;
use crate::store_error::{Redirect, StoreError};
use redis::{Cmd, Value};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a node may take to say who has what, or that it is well.
const PATIENCE: Duration = Duration::from_millis(500);
/// So often a command is sent elsewhere, or again to who is about to get its keys.
const TRIES: u32 = 20;
/// Between two of those.
const PAUSE: Duration = Duration::from_millis(10);

impl Cluster {
    /// Whether something is to be looked at soon.
    pub(crate) fn needs_tending(&self) -> bool {
        self.map().nodes.iter().any(|node| node.health.is_open())
    }

    /// Learns who has what if that may have changed, and looks whether every primary is well, asked
    /// or not.
    pub(crate) async fn tend(&self, is_time: bool) -> Result<(), StoreError> {
        let learnt = match is_time || self.is_stale.load(Relaxed) || !self.health.is_well() {
            true => self.learn().await,
            false => Ok(()),
        };
        let map = self.map();
        // All at once, so that one that hangs holds nobody up.
        let timeout = self.lanes.timeout;
        let mut probes: tokio::task::JoinSet<()> = map
            .nodes
            .iter()
            .filter_map(|node| Some((Arc::clone(node), self.probe_key(&map, node)?)))
            .map(|(node, key)| look_at(node, key, timeout))
            .collect();
        while probes.join_next().await.is_some() {}
        learnt
    }

    /// Asks who has what: those that are well first, then the others, then the seeds.
    pub(crate) async fn learn(&self) -> Result<(), StoreError> {
        self.is_stale.store(false, Relaxed);
        let map = self.map();
        let mut known: Vec<&Arc<Node>> = map.nodes.iter().collect();
        if !known.is_empty() {
            let first = self.turn.fetch_add(1, Relaxed) % known.len();
            known.rotate_left(first);
            known.sort_by_key(|node| node.health.is_open());
        }
        let mut failed = None;
        for node in &known {
            match self.ask(&node.address, &node.link).await {
                Ok(ranges) => return self.take(&map, &ranges),
                Err(trouble) => failed = Some(trouble),
            }
        }
        for seed in self
            .seeds
            .iter()
            .filter(|seed| known.iter().all(|node| node.address != **seed))
        {
            match self.ask_seed(seed).await {
                Ok(ranges) => return self.take(&map, &ranges),
                // What one of them says is worth more than that another is not there.
                Err(trouble)
                    if failed.is_none() || matches!(trouble, StoreError::Refused { .. }) =>
                {
                    failed = Some(trouble);
                }
                Err(_) => {}
            }
        }
        self.is_stale.store(true, Relaxed);
        Err(failed.unwrap_or(StoreError::Broken))
    }

    async fn ask_seed(&self, seed: &Address) -> Result<Vec<Range>, StoreError> {
        let endpoint = self
            .dial
            .endpoint(seed)
            .map_err(|error| StoreError::Unreachable(format!("{seed}: {error}")))?;
        let mut connection = endpoint.connect(self.lanes.connect_timeout).await?;
        let command = who_has_what();
        let sent = connection.send(&command, LIST);
        read(
            tokio::time::timeout(PATIENCE, sent)
                .await
                .unwrap_or(Err(StoreError::TimedOut)),
            seed,
        )
    }

    async fn ask(
        &self,
        address: &Address,
        link: &crate::reconnecting::ReconnectingConnection,
    ) -> Result<Vec<Range>, StoreError> {
        let answer = tokio::time::timeout(PATIENCE, link.send(&who_has_what(), LIST, false)).await;
        read(answer.unwrap_or(Err(StoreError::TimedOut)), address)
    }

    /// Takes over what a node says, on top of what was known.
    fn take(&self, before: &Map, ranges: &[Range]) -> Result<(), StoreError> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for Range {
            first,
            last,
            primary,
        } in ranges
        {
            let at = match nodes.iter().position(|node| node.address == *primary) {
                Some(at) => at,
                None => {
                    let known = map.nodes.iter().find(|node| node.address == *primary);
                    nodes.push(
                        known.map_or_else(|| self.node(primary), |node| Ok(Arc::clone(node)))?,
                    );
                    nodes.len() - 1
                }
            };
            owners[usize::from(*first)..=usize::from(*last)].fill(at as u16);
        }
        // What was learnt about a slot while we asked is newer.
        for (slot, owner) in owners.iter_mut().enumerate() {
            let now = map.nodes.get(usize::from(map.owners[slot]));
            let then = before.nodes.get(usize::from(before.owners[slot]));
            if let Some(now) = now.filter(|now| then.is_none_or(|then| then.address != now.address))
            {
                let known = nodes.iter().position(|node| node.address == now.address);
                *owner = known.unwrap_or_else(|| {
                    nodes.push(Arc::clone(now));
                    nodes.len() - 1
                }) as u16;
            }
        }
        self.health
            .keep(&nodes.iter().map(|node| &node.health).collect::<Vec<_>>());
        *map = Arc::new(Map { owners, nodes });
        Ok(())
    }

    /// A key that a primary has; none if it has no slots.
    fn probe_key(&self, map: &Map, node: &Arc<Node>) -> Option<String> {
        let is_its = |key: &String| {
            map.node(slot(key.as_bytes()))
                .is_ok_and(|owner| Arc::ptr_eq(owner, node))
        };
        let has_any = || {
            map.owners.iter().any(|owner| {
                map.nodes
                    .get(usize::from(*owner))
                    .is_some_and(|at| Arc::ptr_eq(at, node))
            })
        };
        // One in three is, where there are three; of one that has few slots it takes some looking.
        let mut keys = (0..200_000).map(|number| probe::key(&self.prefix, number));
        keys.by_ref()
            .take(64)
            .find(is_its)
            .or_else(|| if has_any() { keys.find(is_its) } else { None })
    }

    /// Sends a command to whoever has its slot.
    pub(crate) async fn send(
        &self,
        slot: u16,
        command: &Cmd,
        max_reply: usize,
    ) -> Result<Value, StoreError> {
        let mut node = self.map().node(slot)?.clone();
        let mut asking = false;
        for _ in 0..TRIES {
            let sent = node.link.send(command, max_reply, asking).await;
            let redirect = sent.as_ref().err().and_then(StoreError::redirect);
            match redirect {
                Some(Redirect::To {
                    host,
                    port,
                    asking: only_asked,
                }) => {
                    let host = if host.is_empty() {
                        &node.address.host
                    } else {
                        host
                    };
                    let to = Address {
                        host: host.to_owned(),
                        port,
                    };
                    node = if only_asked {
                        self.other(&to)?
                    } else {
                        self.moved(slot, &to)?
                    };
                    asking = only_asked;
                }
                Some(Redirect::Later) => {
                    tokio::time::sleep(PAUSE).await;
                    (node, asking) = (self.map().node(slot)?.clone(), false);
                }
                // Whether it is well is for its probes to say.
                None => return sent,
            }
        }
        Err(StoreError::TimedOut)
    }

    /// Gives up the connection to who has this slot and did not answer.
    pub(crate) fn gave_up(&self, slot: u16) {
        if let Ok(node) = self.map().node(slot) {
            node.link.cut();
        }
    }
}

/// Looks whether a primary decides, and notes it.
async fn look_at(node: Arc<Node>, key: String, timeout: Duration) {
    let slot = slot(key.as_bytes());
    if probe::run(
        &node.health,
        node.doors.iter(),
        &probe::questions(&key),
        slot,
        timeout,
    )
    .await
    .is_err()
    {
        node.link.cut();
    }
}

fn who_has_what() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn read(answer: Result<Value, StoreError>, asked: &Address) -> Result<Vec<Range>, StoreError> {
    match answer {
        Ok(answer) => match slots::read(&answer, asked) {
            Some(ranges) if !ranges.is_empty() => Ok(ranges),
            Some(_) => {
                let message = format!("{asked} knows of no primary");
                Err(StoreError::Refused {
                    code: "CLUSTERDOWN".to_owned(),
                    message,
                })
            }
            None => Err(StoreError::Protocol("CLUSTER SLOTS".to_owned())),
        },
        Err(StoreError::Refused { code, message })
            if message.contains("cluster support disabled") =>
        {
            Err(StoreError::Refused {
                code: code.replace("ERR", "NOCLUSTER"),
                message,
            })
        }
        Err(trouble) => Err(trouble),
    }
}

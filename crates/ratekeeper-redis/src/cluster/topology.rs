//! Cluster topology: keeps the slot map up to date, and probes the primaries.

use super::slots::{self, Range};
use super::{Cluster, NO_OWNER, Node, SLOTS, SlotMap, slot};
use crate::address::Address;
use crate::probe;
use crate::reply::MAX_LIST_REPLY;
use crate::store_error::{Redirect, StoreError};
use redis::{Cmd, Value};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a node may take to answer `CLUSTER SLOTS`.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(500);
/// Attempts to send a command, over redirections and migrating keys.
const MAX_ATTEMPTS: u32 = 20;
/// Pause before asking again for keys of a migrating slot.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl Cluster {
    /// Whether a primary's breaker is open, so that it should be probed soon.
    pub(crate) fn needs_check(&self) -> bool {
        self.map().nodes.iter().any(|node| node.health.is_open())
    }

    /// Refreshes the slot map if it may have changed, and probes every primary, whether it is used
    /// or not.
    pub(crate) async fn check(&self, is_due: bool) -> Result<(), StoreError> {
        let refreshed = if is_due || self.is_stale.load(Relaxed) || !self.health.is_healthy() {
            self.refresh_slots().await
        } else {
            Ok(())
        };
        let map = self.map();
        // All at once, so that a primary that hangs does not delay the others.
        let timeout = self.config.timeout;
        let mut probes: tokio::task::JoinSet<()> = map
            .nodes
            .iter()
            .filter_map(|node| Some((Arc::clone(node), self.probe_key(&map, node)?)))
            .map(|(node, key)| probe_node(node, key, timeout))
            .collect();
        while probes.join_next().await.is_some() {}
        refreshed
    }

    /// Reads the slot map from a node: healthy nodes first, then the others, then the seeds.
    pub(crate) async fn refresh_slots(&self) -> Result<(), StoreError> {
        self.is_stale.store(false, Relaxed);
        let map = self.map();
        let mut known: Vec<&Arc<Node>> = map.nodes.iter().collect();
        if !known.is_empty() {
            let first = self.next_node.fetch_add(1, Relaxed) % known.len();
            known.rotate_left(first);
            known.sort_by_key(|node| node.health.is_open());
        }
        let mut failed = None;
        for node in &known {
            match self.ask(&node.address, &node.control).await {
                Ok(ranges) => return self.apply_ranges(&map, &ranges),
                Err(error) => failed = Some(error),
            }
        }
        for seed in self
            .seeds
            .iter()
            .filter(|seed| known.iter().all(|node| node.address != **seed))
        {
            match self.ask_seed(seed).await {
                Ok(ranges) => return self.apply_ranges(&map, &ranges),
                // A node's error reply is more specific than an unreachable node.
                Err(error) if failed.is_none() || matches!(error, StoreError::Refused { .. }) => {
                    failed = Some(error);
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
        let mut connection = endpoint.connect(self.config.connect_timeout).await?;
        let command = cluster_slots_command();
        let sent = connection.send(&command, MAX_LIST_REPLY);
        parse_slots(
            tokio::time::timeout(SLOTS_TIMEOUT, sent)
                .await
                .unwrap_or(Err(StoreError::TimedOut)),
            seed,
        )
    }

    async fn ask(
        &self,
        address: &Address,
        connection: &crate::reconnecting::ReconnectingConnection,
    ) -> Result<Vec<Range>, StoreError> {
        let answer = tokio::time::timeout(
            SLOTS_TIMEOUT,
            connection.send(&cluster_slots_command(), MAX_LIST_REPLY, false),
        )
        .await;
        parse_slots(answer.unwrap_or(Err(StoreError::TimedOut)), address)
    }

    /// Applies the ranges that a node reported.
    fn apply_ranges(&self, before: &SlotMap, ranges: &[Range]) -> Result<(), StoreError> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut owners = vec![NO_OWNER; usize::from(SLOTS)];
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
        // Slots that moved while the node was asked are newer than its answer.
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
            .retain_primaries(&nodes.iter().map(|node| &node.health).collect::<Vec<_>>());
        *map = Arc::new(SlotMap { owners, nodes });
        Ok(())
    }

    /// A probe key in a slot of the primary; `None` if it has no slots.
    fn probe_key(&self, map: &SlotMap, node: &Arc<Node>) -> Option<String> {
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
        // With three primaries one key in three fits; for a primary with few slots it takes more
        // tries.
        let mut keys = (0..200_000).map(|number| probe::key(&self.prefix, number));
        keys.by_ref()
            .take(64)
            .find(is_its)
            .or_else(|| if has_any() { keys.find(is_its) } else { None })
    }

    /// Sends a command to the primary of its slot, and follows redirections.
    pub(crate) async fn send(
        &self,
        slot: u16,
        command: &Cmd,
        max_reply: usize,
    ) -> Result<Value, StoreError> {
        let mut node = self.map().node(slot)?.clone();
        let mut asking = false;
        for _ in 0..MAX_ATTEMPTS {
            let sent = node.control.send(command, max_reply, asking).await;
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
                        self.node_at(&to)?
                    } else {
                        self.slot_moved(slot, &to)?
                    };
                    asking = only_asked;
                }
                Some(Redirect::TryAgain) => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    (node, asking) = (self.map().node(slot)?.clone(), false);
                }
                // Only probes decide about the node's health.
                None => return sent,
            }
        }
        Err(StoreError::TimedOut)
    }

    /// Closes the connection to the primary of a slot that did not answer.
    pub(crate) fn disconnect(&self, slot: u16) {
        if let Ok(node) = self.map().node(slot) {
            node.control.disconnect();
        }
    }
}

/// Probes a primary; the outcome is recorded in its health.
async fn probe_node(node: Arc<Node>, key: String, timeout: Duration) {
    let slot = slot(key.as_bytes());
    if probe::run(
        &node.health,
        node.handles.iter(),
        &probe::questions(&key),
        slot,
        timeout,
    )
    .await
    .is_err()
    {
        node.control.disconnect();
    }
}

fn cluster_slots_command() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn parse_slots(
    answer: Result<Value, StoreError>,
    answering_node: &Address,
) -> Result<Vec<Range>, StoreError> {
    match answer {
        Ok(answer) => match slots::read(&answer, answering_node) {
            Some(ranges) if !ranges.is_empty() => Ok(ranges),
            Some(_) => {
                let message = format!("{answering_node} reports no primary");
                Err(StoreError::Refused {
                    code: "CLUSTERDOWN".to_owned(),
                    message,
                })
            }
            None => Err(StoreError::Protocol(
                "unexpected reply to CLUSTER SLOTS".to_owned(),
            )),
        },
        Err(StoreError::Refused { code, message })
            if message.contains("cluster support disabled") =>
        {
            Err(StoreError::Refused {
                code: code.replace("ERR", "NOCLUSTER"),
                message,
            })
        }
        Err(error) => Err(error),
    }
}

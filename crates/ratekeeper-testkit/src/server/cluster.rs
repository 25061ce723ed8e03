//! A Redis Cluster of real servers: three primaries, each with a replica.

use super::{Builder, RedisServer, until};
use crate::resp::Reply;
use std::thread;

const PRIMARIES: usize = 3;
const SLOTS: u16 = 16_384;
/// How long a node may be silent before the others consider it dead, in ms. Short, so that tests
/// are; long enough for a busy machine.
const NODE_TIMEOUT: &str = "1500";

/// Six servers on 127.0.0.1, the first three of which start as primaries. They end when the value
/// is dropped.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts the Cluster and waits until every node reports it as healthy and knows every replica.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or the nodes do not form a Cluster.
    pub fn start() -> Self {
        Self::of(&RedisServer::builder())
    }

    /// Starts a Cluster of servers with these settings.
    pub fn of(builder: &Builder) -> Self {
        let start = |_| {
            let builder = builder.clone();
            thread::spawn(move || {
                let builder = builder
                    .cluster_node()
                    .arg("cluster-node-timeout", NODE_TIMEOUT);
                // A replica that has received nothing is not counted, and without writes it
                // receives only this.
                let builder = builder.arg("repl-ping-replica-period", "1");
                builder.arg("cluster-replica-validity-factor", "0").start()
            })
        };
        let starting: Vec<_> = (0..2 * PRIMARIES).map(start).collect();
        let nodes = starting
            .into_iter()
            .map(|node| node.join().expect("a node starts"))
            .collect();
        let cluster = Self { nodes };
        cluster.come_together();
        cluster
    }

    fn come_together(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            ok(
                node,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()],
            );
        }
        for (at, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let bound = |part: usize| part * usize::from(SLOTS) / PRIMARIES;
            ok(
                node,
                &[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &bound(at).to_string(),
                    &(bound(at + 1) - 1).to_string(),
                ],
            );
        }
        // Each node meets each other node: to learn of each other by gossip takes seconds.
        for (at, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[at + 1..] {
                let (port, bus) = (other.port.to_string(), other.bus_port.to_string());
                ok(node, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        until("all nodes know each other", || {
            self.nodes.iter().all(|node| {
                let known = text(node, &["CLUSTER", "NODES"]);
                known.lines().count() == self.nodes.len() && !known.contains("handshake")
            })
        });
        for (replica, primary) in self.nodes[PRIMARIES..].iter().zip(&self.nodes) {
            ok(replica, &["CLUSTER", "REPLICATE", &id(primary)]);
        }
        self.await_whole();
    }

    /// Waits until every running node reports a healthy Cluster and every primary has a replica
    /// with its data, as far as there are nodes for it.
    pub fn await_whole(&self) {
        let running = || self.nodes.iter().filter(|node| node.running().is_some());
        let replicas = running().count() - PRIMARIES;
        until("the Cluster is whole", || {
            running().all(|node| {
                let slots = node.command(&["CLUSTER", "SLOTS"]);
                let known: usize = {
                    let mut ports: Vec<i64> = slots
                        .items()
                        .iter()
                        .flat_map(|range| range.items().iter().skip(3))
                        .filter_map(port)
                        .collect();
                    ports.sort_unstable();
                    ports.dedup();
                    ports.len()
                };
                let synced = text(node, &["INFO", "replication"]);
                let synced =
                    !synced.contains("role:slave") || synced.contains("master_link_status:up");
                text(node, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && known == replicas
                    && synced
            })
        });
    }

    /// All nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The URL for clients: `redis+cluster://127.0.0.1:PORT,…`, with every node, and the password
    /// if there is one.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        let password = self.nodes[0]
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        format!("redis+cluster://{password}{}", hosts.join(","))
    }

    /// The replica of a primary, as the primary reports it.
    pub fn replica_of(&self, primary: &RedisServer) -> &RedisServer {
        let slots = primary.command(&["CLUSTER", "SLOTS"]);
        let its = slots.items().iter().find(|range| {
            range.items().get(2).and_then(port) == Some(i64::from(primary.port))
                && range.items().len() > 3
        });
        let replica = its.and_then(|range| range.items().get(3).and_then(port));
        let node = self
            .nodes
            .iter()
            .find(|node| Some(i64::from(node.port)) == replica);
        node.expect("every primary has a replica")
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let answer = self.running().command(&["CLUSTER", "KEYSLOT", key]);
        answer
            .int()
            .and_then(|slot| u16::try_from(slot).ok())
            .expect("a slot")
    }

    /// The primary of a slot, as a running node reports it.
    pub fn primary(&self, slot: u16) -> &RedisServer {
        let slots = self.running().command(&["CLUSTER", "SLOTS"]);
        let owner = slots.items().iter().find_map(|range| match range.items() {
            [first, last, primary, ..]
                if (first.int()?..=last.int()?).contains(&i64::from(slot)) =>
            {
                port(primary)
            }
            _ => None,
        });
        let node =
            owner.and_then(|port| self.nodes.iter().find(|node| i64::from(node.port) == port));
        node.unwrap_or_else(|| panic!("no node has the slot {slot}"))
    }

    /// A running node.
    fn running(&self) -> &RedisServer {
        let node = self.nodes.iter().find(|node| node.running().is_some());
        node.expect("a node of the Cluster runs")
    }

    /// Every key, with the node that has it.
    pub fn keys(&self, pattern: &str) -> Vec<(&RedisServer, String)> {
        let mut all = Vec::new();
        for node in self.nodes.iter().filter(|node| node.running().is_some()) {
            if text(node, &["INFO", "replication"]).contains("role:master") {
                let keys = node.command(&["KEYS", pattern]);
                all.extend(
                    keys.items()
                        .iter()
                        .filter_map(|key| Some((node, key.text()?.to_owned()))),
                );
            }
        }
        all
    }

    /// Begins to move a slot, as `redis-cli --cluster reshard` does: from now on its keys may be on
    /// either node.
    pub fn begin_move(&self, slot: u16, to: &RedisServer) {
        let (from, number) = (self.primary(slot), slot.to_string());
        ok(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &id(from)]);
        ok(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &id(to)]);
    }

    /// Moves the keys of the slot, and ends the move.
    pub fn end_move(&self, slot: u16, to: &RedisServer) {
        let (from, number) = (self.primary(slot), slot.to_string());
        loop {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &number, "10"]);
            if keys.items().is_empty() {
                break;
            }
            let port = to.port.to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.items().iter().filter_map(Reply::text));
            // A key that has expired since is no error.
            let answer = from.command(&migrate);
            assert!(!answer.is_error(), "{answer:?}");
        }
        for node in [to, from] {
            ok(node, &["CLUSTER", "SETSLOT", &number, "NODE", &id(to)]);
        }
    }

    /// Moves a slot with its keys.
    pub fn move_slot(&self, slot: u16, to: &RedisServer) {
        self.begin_move(slot, to);
        self.end_move(slot, to);
    }

    /// Waits until another node is the primary of a slot and accepts writes; returns it.
    pub fn await_other_primary(&self, slot: u16, than: u16) -> &RedisServer {
        // A key in that slot.
        let key = (0..)
            .map(|number: u32| format!("probe{{{number}}}"))
            .find(|key| self.slot(key) == slot);
        let key = key.expect("a key in each slot");
        let mut found = None;
        until("there is another primary", || {
            let running = self
                .nodes
                .iter()
                .filter(|node| node.port != than && node.running().is_some());
            found = running.into_iter().find(|node| {
                node.try_command(&["SET", &key, "1", "PX", "1"])
                    .is_ok_and(|answer| !answer.is_error())
            });
            found.is_some()
        });
        found.expect("until returns only once it is found")
    }
}

fn ok(node: &RedisServer, command: &[&str]) {
    let answer = node.command(command);
    assert!(!answer.is_error(), "{command:?}: {answer:?}");
}

fn text(node: &RedisServer, command: &[&str]) -> String {
    // A node that is being killed does not answer.
    node.try_command(command)
        .ok()
        .and_then(|answer| answer.text().map(str::to_owned))
        .unwrap_or_default()
}

fn id(node: &RedisServer) -> String {
    text(node, &["CLUSTER", "MYID"])
}

/// The port of a node in `CLUSTER SLOTS`.
fn port(node: &Reply) -> Option<i64> {
    node.items().get(1)?.int()
}

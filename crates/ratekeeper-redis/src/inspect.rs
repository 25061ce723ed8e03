//! Inspecting the servers: their version, settings and clock, to find mistakes in their setup.

use crate::address::{Address, Deployment, Dialer};
use crate::builder::{ConnectError, RedisStoreBuilder};
use crate::connection::Connection;
use crate::reply::MAX_LIST_REPLY;
use crate::sentinel::Sentinels;
use crate::store_error::StoreError;
use redis::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long connecting to a server may take, and each of its answers.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the server's clock is read; the quickest answer is the most exact.
const CLOCK_SAMPLES: usize = 5;

/// Primaries of a Cluster that are inspected.
const MAX_PRIMARIES: usize = 64;

/// The report of [`RedisStoreBuilder::inspect`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectionReport {
    /// The server, or each primary of a Cluster.
    pub servers: Vec<Inspection>,
    /// How many of a Cluster's 16,384 slots are served; `None` for a single server.
    pub slots: Option<u64>,
}

/// The report of one server; a field is `None` if the server does not report it, or the user may
/// not read it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The address of the server, in a Cluster.
    pub name: Option<String>,
    /// Its version, as `7.2.4`.
    pub version: Option<String>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// Its `maxmemory`, in bytes; 0 for none.
    pub max_memory: Option<u64>,
    /// Its `maxmemory-policy`.
    pub eviction: Option<String>,
    /// Whether it writes each change to the append-only file.
    pub append_only: Option<bool>,
    /// How far its clock is ahead of this machine's, in seconds; it may be off by half of the round
    /// trip.
    pub ahead: Option<f64>,
    /// The shortest of a few round trips.
    pub round_trip: Option<Duration>,
}

impl RedisStoreBuilder {
    /// Inspects the servers. Writes nothing.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or none of the servers answers.
    pub async fn inspect(&self) -> Result<InspectionReport, ConnectError> {
        let (url, ca_file, auth) = self.endpoint_settings();
        match Deployment::of(url, ca_file)? {
            Deployment::One(client) => one(client.connect(INSPECT_TIMEOUT).await).await,
            Deployment::Sentinels {
                sentinels,
                master,
                dial,
            } => {
                let sentinels = Sentinels::new(&sentinels, master, dial, auth)?;
                one(sentinels.connect(INSPECT_TIMEOUT).await).await
            }
            Deployment::Cluster { seeds, dial } => {
                cluster(&seeds, &dial).await.map_err(ConnectError::Unusable)
            }
        }
    }
}

async fn one(connected: Result<Connection, StoreError>) -> Result<InspectionReport, ConnectError> {
    let mut connection = connected.map_err(ConnectError::Unusable)?;
    let found = inspect(&mut connection, None)
        .await
        .map_err(ConnectError::Unusable)?;
    Ok(InspectionReport {
        servers: vec![found],
        slots: None,
    })
}

/// Inspects a Cluster; the first seed that answers names the other nodes.
async fn cluster(seeds: &[Address], dial: &Dialer) -> Result<InspectionReport, StoreError> {
    let mut last_error = StoreError::Unreachable("no seed answered".to_owned());
    for seed in seeds {
        match of_cluster(seed, dial).await {
            Ok(found) => return Ok(found),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

async fn of_cluster(seed: &Address, dial: &Dialer) -> Result<InspectionReport, StoreError> {
    let connect = async |address: &Address| {
        let client = dial
            .endpoint(address)
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        client.connect(INSPECT_TIMEOUT).await
    };
    let mut connection = connect(seed).await?;
    let mut slots = slots_of(&mut connection).await?;
    let nodes = text(&mut connection, &["CLUSTER", "NODES"]).await?;
    let mut servers = Vec::new();
    for address in nodes
        .lines()
        .filter_map(|line| primary(line, seed))
        .take(MAX_PRIMARIES)
    {
        let mut connection = connect(&address).await?;
        // Each node knows best which slots are its own.
        slots = slots.min(slots_of(&mut connection).await?);
        servers.push(inspect(&mut connection, Some(address.to_string())).await?);
    }
    Ok(InspectionReport {
        servers,
        slots: Some(slots),
    })
}

/// How many slots are served, according to one node.
async fn slots_of(connection: &mut Connection) -> Result<u64, StoreError> {
    let info = text(connection, &["CLUSTER", "INFO"]).await?;
    Ok(fields(&info)
        .get("cluster_slots_ok")
        .and_then(|slots| slots.parse().ok())
        .unwrap_or(0))
}

/// The address in a line of `CLUSTER NODES` (an id, `ip:port@bus,hostname`, flags …), if it is a
/// primary that has slots.
fn primary(line: &str, seed: &Address) -> Option<Address> {
    let mut words = line.split(' ').skip(1);
    let address = words.next()?;
    let flags = words.next()?;
    if !flags.split(',').any(|flag| flag == "master") || words.nth(5).is_none() {
        return None;
    }
    let (host, port) = address.split(['@', ',']).next()?.rsplit_once(':')?;
    // A node that does not know its own address is at the one we used.
    let host = if host.is_empty() { &seed.host } else { host };
    Some(Address {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

async fn inspect(
    connection: &mut Connection,
    name: Option<String>,
) -> Result<Inspection, StoreError> {
    // A user without the right to run `INFO` may still decide: unknown fields are left out.
    let info = text(connection, &["INFO"]).await.unwrap_or_default();
    let info = fields(&info);
    let of = |key: &str| info.get(key).map(|value| (*value).to_owned());
    let mut quickest: Option<(Duration, f64)> = None;
    for _ in 0..CLOCK_SAMPLES {
        let start = Instant::now();
        let sent_at = SystemTime::now();
        let (seconds, micros) = match time(connection).await {
            Err(StoreError::Refused { .. }) => break,
            answer => answer?,
        };
        let round_trip = start.elapsed();
        if quickest.is_none_or(|(before, _)| round_trip < before) {
            // The server read its clock about half-way.
            let ours = (sent_at + round_trip / 2)
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            quickest = Some((
                round_trip,
                seconds as f64 + micros as f64 / 1e6 - ours.as_secs_f64(),
            ));
        }
    }
    Ok(Inspection {
        name,
        version: of("valkey_version").or_else(|| of("redis_version")),
        role: of("role"),
        max_memory: of("maxmemory").and_then(|bytes| bytes.parse().ok()),
        eviction: of("maxmemory_policy"),
        append_only: of("aof_enabled").map(|enabled| enabled == "1"),
        ahead: quickest.map(|(_, ahead)| ahead),
        round_trip: quickest.map(|(round_trip, _)| round_trip),
    })
}

/// Lines of `key:value`.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim()))
        .collect()
}

async fn send(connection: &mut Connection, words: &[&str]) -> Result<Value, StoreError> {
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(*word);
    });
    tokio::time::timeout(INSPECT_TIMEOUT, connection.send(&command, MAX_LIST_REPLY))
        .await
        .unwrap_or(Err(StoreError::TimedOut))
}

async fn text(connection: &mut Connection, words: &[&str]) -> Result<String, StoreError> {
    let answer = send(connection, words).await?;
    redis::from_redis_value(answer).map_err(|error| StoreError::Protocol(error.to_string()))
}

async fn time(connection: &mut Connection) -> Result<(u64, u64), StoreError> {
    let answer = send(connection, &["TIME"]).await?;
    redis::from_redis_value(answer).map_err(|error| StoreError::Protocol(error.to_string()))
}

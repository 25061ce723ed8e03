//! What servers say of themselves, for whoever looks for mistakes in how they are set up.

use crate::address::{Address, Deployment, Dialer};
use crate::builder::{ConnectError, RedisStoreBuilder};
use crate::connection::Connection;
use crate::reply::LIST;
use crate::sentinel::Sentinels;
use crate::store_error::StoreError;
use redis::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a server may take to be reached, and to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the time is asked for: the answer that came quickest tells it best.
const QUESTIONS: usize = 5;

/// More primaries than that are not asked.
const MOST_PRIMARIES: usize = 64;

/// What was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectionReport {
    /// The server, or each primary of a Cluster.
    pub servers: Vec<Inspection>,
    /// How many of a Cluster's 16,384 slots are served; none if it is no Cluster.
    pub slots: Option<u64>,
}

/// What one server says of itself; none where it does not say it, or may not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Which one of a Cluster.
    pub name: Option<String>,
    /// Its version, as `7.2.4`.
    pub version: Option<String>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// Its `maxmemory`, in bytes; 0 for none.
    pub max_memory: Option<u64>,
    /// Its `maxmemory-policy`.
    pub eviction: Option<String>,
    /// Whether it writes each change to a file.
    pub append_only: Option<bool>,
    /// How far its clock is ahead of ours, in seconds; it may be wrong by half of the round trip.
    pub ahead: Option<f64>,
    /// The quickest of a few answers.
    pub round_trip: Option<Duration>,
}

impl RedisStoreBuilder {
    /// Asks the servers about themselves. Nothing is written.
    ///
    /// # Errors
    ///
    /// If the url cannot be read, or none of the servers answers.
    pub async fn inspect(&self) -> Result<InspectionReport, ConnectError> {
        let (url, ca_file, auth) = self.place();
        match Deployment::of(url, ca_file)? {
            Deployment::One(client) => one(client.connect(PATIENCE).await).await,
            Deployment::Sentinels {
                sentinels,
                master,
                dial,
            } => {
                let sentinels = Sentinels::new(&sentinels, master, dial, auth)?;
                one(sentinels.connect(PATIENCE).await).await
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

/// The first seed that answers knows the others.
async fn cluster(seeds: &[Address], dial: &Dialer) -> Result<InspectionReport, StoreError> {
    let mut worst = StoreError::Unreachable("no seed answers".to_owned());
    for seed in seeds {
        match of_cluster(seed, dial).await {
            Ok(found) => return Ok(found),
            Err(trouble) => worst = trouble,
        }
    }
    Err(worst)
}

async fn of_cluster(seed: &Address, dial: &Dialer) -> Result<InspectionReport, StoreError> {
    let connect = async |address: &Address| {
        let client = dial
            .endpoint(address)
            .map_err(|error| StoreError::Unreachable(error.to_string()))?;
        client.connect(PATIENCE).await
    };
    let mut connection = connect(seed).await?;
    let mut slots = slots_of(&mut connection).await?;
    let nodes = text(&mut connection, &["CLUSTER", "NODES"]).await?;
    let mut servers = Vec::new();
    for address in nodes
        .lines()
        .filter_map(|line| primary(line, seed))
        .take(MOST_PRIMARIES)
    {
        let mut connection = connect(&address).await?;
        // Each knows best what is its own.
        slots = slots.min(slots_of(&mut connection).await?);
        servers.push(inspect(&mut connection, Some(address.to_string())).await?);
    }
    Ok(InspectionReport {
        servers,
        slots: Some(slots),
    })
}

/// How many slots are served, as one node sees it.
async fn slots_of(connection: &mut Connection) -> Result<u64, StoreError> {
    let said = text(connection, &["CLUSTER", "INFO"]).await?;
    Ok(fields(&said)
        .get("cluster_slots_ok")
        .and_then(|slots| slots.parse().ok())
        .unwrap_or(0))
}

/// A line of `CLUSTER NODES`: an id, `ip:port@bus,hostname`, flags; where a primary is that has
/// slots.
fn primary(line: &str, seed: &Address) -> Option<Address> {
    let mut words = line.split(' ').skip(1);
    let (place, flags) = (words.next()?, words.next()?);
    if !flags.split(',').any(|flag| flag == "master") || words.nth(5).is_none() {
        return None;
    }
    let (host, port) = place.split(['@', ',']).next()?.rsplit_once(':')?;
    // One that does not know its own address is where we found it.
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
    // Who may not ask for this may still decide: what is not known is left out.
    let said = text(connection, &["INFO"]).await.unwrap_or_default();
    let said = fields(&said);
    let of = |key: &str| said.get(key).map(|value| (*value).to_owned());
    let mut quickest: Option<(Duration, f64)> = None;
    for _ in 0..QUESTIONS {
        let (start, asked) = (Instant::now(), SystemTime::now());
        let (seconds, micros) = match time(connection).await {
            Err(StoreError::Refused { .. }) => break,
            told => told?,
        };
        let took = start.elapsed();
        if quickest.is_none_or(|(before, _)| took < before) {
            // It looked at its clock about half-way.
            let ours = (asked + took / 2)
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            quickest = Some((
                took,
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
        round_trip: quickest.map(|(took, _)| took),
    })
}

/// `key:value`, a line each.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim()))
        .collect()
}

async fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, StoreError> {
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(*word);
    });
    tokio::time::timeout(PATIENCE, connection.send(&command, LIST))
        .await
        .unwrap_or(Err(StoreError::TimedOut))
}

async fn text(connection: &mut Connection, words: &[&str]) -> Result<String, StoreError> {
    let answer = ask(connection, words).await?;
    redis::from_redis_value(answer).map_err(|error| StoreError::Protocol(error.to_string()))
}

async fn time(connection: &mut Connection) -> Result<(u64, u64), StoreError> {
    let answer = ask(connection, &["TIME"]).await?;
    redis::from_redis_value(answer).map_err(|error| StoreError::Protocol(error.to_string()))
}

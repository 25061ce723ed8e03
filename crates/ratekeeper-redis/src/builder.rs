//! Making a store: where Redis is, and how it is to be used.

use crate::address::Deployment;
use crate::batched_connection::BatchedConnection;
use crate::board;
use crate::cluster::{Cluster, ConnectionConfig};
use crate::connection_handle::ConnectionHandle;
use crate::fallback::Fallback;
use crate::health::Health;
use crate::lease::{self, table::LeaseTable};
use crate::limits::Limits;
use crate::limits_check::LimitsCheck;
use crate::maintenance::{Maintenance, RedisRoute};
use crate::permits::Permits;
use crate::random::random_bytes;
use crate::reconnecting::{At, ReconnectingConnection, Server};
use crate::script::Scripts;
use crate::secret::FleetSecret;
use crate::sentinel::Sentinels;
use crate::store::{Inner, RedisStore};
use crate::store_error::StoreError;
use ratekeeper::{MemoryStore, store::OnFailure};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Makes a [`RedisStore`]; what [`RedisStore::builder`] returns.
#[must_use = "a store is made by connect"]
pub struct RedisStoreBuilder {
    url: String,
    prefix: String,
    timeout: Duration,
    on_failure: OnFailure,
    nodes: u64,
    connections: usize,
    max_waiting: usize,
    key_secret: Option<String>,
    ca_file: Option<PathBuf>,
    sentinel_auth: Option<(String, String)>,
    max_keys: usize,
    max_bytes: Option<usize>,
    counted: bool,
    rollout_grace: Duration,
    time: Option<Arc<std::sync::atomic::AtomicU64>>,
}

/// How long making a connection may take.
const CONNECTING: Duration = Duration::from_secs(1);

/// How long a store that is gone goes on sending what it was handed before.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The oldest that replicates what a script does and not the script, so that it may ask for the
/// time.
const OLDEST: (u64, u64) = (5, 0);

impl RedisStore {
    /// A store on the Redis or Valkey at `url`: `redis://[user:password@]host[:port][/db]`,
    /// `rediss://` for TLS, `redis+unix:///path/to/socket`.
    ///
    /// The primary that sentinels name is
    /// `redis+sentinel://[user:password@]host[:port],…/mymaster[/db]`, a Cluster is
    /// `redis+cluster://[user:password@]host[:port],…`, of which some nodes are enough; with TLS
    /// `rediss+sentinel://` and `rediss+cluster://`.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            url: url.into(),
            prefix: "ratekeeper".to_owned(),
            timeout: Duration::from_millis(10),
            on_failure: OnFailure::LocalShare,
            nodes: 1,
            connections: 2,
            max_waiting: 32_768,
            key_secret: None,
            ca_file: None,
            sentinel_auth: None,
            max_keys: 1_000_000,
            max_bytes: None,
            counted: true,
            rollout_grace: Duration::from_secs(60),
            time: None,
        }
    }
}

impl RedisStoreBuilder {
    /// What all keys begin with; `ratekeeper` if not said. Stores of one prefix share their limits.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a decision waits for Redis before it falls back; 10 ms if not said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What becomes of asks while Redis does not answer, where a limit does not say.
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = then;
        self
    }

    /// How many nodes there are, for their shares, until Redis was seen and tells.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// How many connections, in a Cluster to each primary; 2 if not said. A key is always asked
    /// about on the same one.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How many callers may wait for Redis at once, on all connections together; 32,768 if not
    /// said. One more is decided without it, at once.
    pub fn max_waiting(mut self, callers: usize) -> Self {
        self.max_waiting = callers;
        self
    }

    /// The secret that keys are hashed with; the nodes agree on one if not said.
    pub fn key_secret(mut self, secret: impl Into<String>) -> Self {
        self.key_secret = Some(secret.into());
        self
    }

    /// A file of certificates (PEM) to trust a `rediss://` server by, beside those of the system.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// User and password of the sentinels, who have their own; for a password alone the user is
    /// empty. Those in the url are for the server.
    pub fn sentinel_auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.sentinel_auth = Some((user.into(), password.into()));
        self
    }

    /// How many keys this node counts by itself while Redis does not answer; a million if not said.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// How much memory those may take; see
    /// [`MemoryStoreBuilder::max_bytes`](ratekeeper::store::MemoryStoreBuilder::max_bytes).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// How long nodes of one prefix may have different limits before that is reported, as while a
    /// change of the configuration reaches one after the other; a minute if not said. See
    /// [`declare_limits`](RedisStore::declare_limits).
    pub fn rollout_grace(mut self, grace: Duration) -> Self {
        self.rollout_grace = grace;
        self
    }

    /// Does not count this store among the nodes that share the limits: for programs that check the
    /// setup and exit.
    pub fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }

    /// For tests: the scripts go by this time, in microseconds, and not by the server's.
    #[cfg(feature = "test-time")]
    #[doc(hidden)]
    pub fn given_time(mut self, time: Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.time = Some(time);
        self
    }

    /// Where the servers are, who signs for them, and who we are to their sentinels.
    pub(crate) fn place(&self) -> (&str, Option<&Path>, Option<&(String, String)>) {
        (
            &self.url,
            self.ca_file.as_deref(),
            self.sentinel_auth.as_ref(),
        )
    }

    /// Makes the store, and looks whether Redis is there.
    ///
    /// A Redis that cannot be reached is not an error: the store falls back, says so, and goes on
    /// when it answers. A url that cannot be read is one, and a Redis that answers that it will
    /// never do.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let place = Deployment::of(&self.url, self.ca_file.as_deref())?;
        let health = Arc::new(Health::default());
        let (scripts, time) = self.scripts();
        let connections = self.connections.max(1);
        // Held by whatever runs in a Cluster, so that it can be waited for.
        let (running, mut ended) = tokio::sync::mpsc::channel(1);
        let in_cluster = matches!(place, Deployment::Cluster { .. });
        let at = match place {
            Deployment::One(client) => Ok(At::One(client)),
            Deployment::Sentinels {
                sentinels,
                master,
                dial,
            } => Ok(At::Named(Sentinels::new(
                &sentinels,
                master,
                dial,
                self.sentinel_auth.as_ref(),
            )?)),
            Deployment::Cluster { seeds, dial } => Err((seeds, dial)),
        };
        let (way, lanes, workers) = match at {
            Ok(at) => {
                let server = Arc::new(Server {
                    at,
                    connect_timeout: CONNECTING,
                    name: None,
                });
                let most = self.max_waiting.div_ceil(connections);
                let lane = |_| {
                    let (link, scripts) = (
                        ReconnectingConnection::new(Arc::clone(&server)),
                        Arc::clone(&scripts),
                    );
                    let (door, lane) = BatchedConnection::new(
                        link,
                        scripts,
                        Arc::clone(&health),
                        self.timeout,
                        most,
                        time.clone(),
                        None,
                    );
                    (ConnectionHandle::Lane(door), lane)
                };
                let (lanes, workers): (Vec<_>, Vec<_>) = (0..connections).map(lane).unzip();
                (RedisRoute::to(server), lanes, workers)
            }
            Err((seeds, dial)) => {
                let (timeout, most_waiting) = (self.timeout, self.max_waiting);
                let lanes = ConnectionConfig {
                    scripts,
                    timeout,
                    connections,
                    most_waiting,
                    connect_timeout: CONNECTING,
                    time,
                };
                let cluster = Cluster::new(
                    seeds,
                    dial,
                    lanes,
                    Arc::clone(&health),
                    &self.prefix,
                    running.clone(),
                );
                (
                    RedisRoute::Cluster(Arc::clone(&cluster)),
                    vec![ConnectionHandle::Cluster(cluster)],
                    Vec::new(),
                )
            }
        };
        drop(running);
        let node = u64::from_be_bytes(random_bytes());
        let (board, caretaker) = board::board(node);
        let (board_way, fleet) = (way.another(), way.fleet(&self.prefix));
        let (leases, fetches) = LeaseTable::new(self.max_keys, self.timeout);
        let inner = Arc::new(Inner {
            names: MemoryStore::builder().max_keys(1).build(),
            limits: Limits::new(&self.prefix, in_cluster),
            fallback: Fallback::new(self.max_keys, self.max_bytes, self.nodes)
                .map_err(|error| ConnectError::Memory(error.to_string()))?,
            health,
            lanes,
            secret: Arc::new(FleetSecret::new(self.key_secret.as_deref())),
            permits: Arc::new(Permits::new(node)),
            leases,
            heartbeat: Arc::default(),
            limits_check: Arc::new(LimitsCheck::new(self.rollout_grace)),
            board: Arc::new(board),
            timeout: self.timeout,
            on_failure: self.on_failure,
            gone: Arc::default(),
            children: Mutex::default(),
            parent: None,
        });
        let keeper = Maintenance::new(&inner, way, self.counted.then_some(node), &self.prefix);
        let (sender, seen) = tokio::sync::oneshot::channel();
        let (first, weak) = (Arc::clone(&inner), Arc::downgrade(&inner));
        let run = async move {
            let mut workers: tokio::task::JoinSet<()> =
                workers.into_iter().map(BatchedConnection::run).collect();
            let result = keeper.look(&first).await;
            let fatal = result.is_err();
            drop(first);
            if sender.send(result).is_err() || fatal {
                return;
            }
            tokio::spawn(caretaker.run(board_way, fleet, weak.clone()));
            tokio::spawn(lease::request::run(fetches, weak));
            keeper.run().await;
            // What was handed in last, permits that go back, is still sent.
            let all = async {
                while workers.join_next().await.is_some() {}
                while ended.recv().await.is_some() {}
            };
            let _ = tokio::time::timeout(LAST_WORDS, all).await;
        };
        std::thread::Builder::new()
            .name("ratekeeper-redis".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                if let Ok(runtime) = runtime {
                    runtime.block_on(run);
                }
            })
            .map_err(|error| ConnectError::Memory(format!("no thread: {error}")))?;
        match seen.await {
            Ok(Ok(())) => Ok(RedisStore { inner }),
            Ok(Err(trouble)) => Err(ConnectError::Unusable(trouble)),
            Err(_) => Err(ConnectError::Memory("its thread ended".to_owned())),
        }
    }

    #[cfg(feature = "test-time")]
    fn scripts(&self) -> (Arc<Scripts>, Option<Arc<std::sync::atomic::AtomicU64>>) {
        match &self.time {
            Some(time) => (Arc::new(Scripts::with_given_time()), Some(Arc::clone(time))),
            None => (Arc::new(Scripts::new()), None),
        }
    }

    #[cfg(not(feature = "test-time"))]
    fn scripts(&self) -> (Arc<Scripts>, Option<Arc<std::sync::atomic::AtomicU64>>) {
        (Arc::new(Scripts::new()), self.time.clone())
    }
}

impl Maintenance {
    /// The first look: an error if this Redis will never do.
    async fn look(&self, inner: &Inner) -> Result<(), StoreError> {
        let version = match self.find().await {
            Ok(()) => self.version().await,
            Err(trouble) => Err(trouble),
        };
        let trouble = match version {
            Ok(Some(version)) if version < OLDEST => {
                let message = format!(
                    "it is Redis {}.{}; {} or newer is needed",
                    version.0, version.1, OLDEST.0
                );
                return Err(StoreError::Refused {
                    code: "VERSION".to_owned(),
                    message,
                });
            }
            // Who may not ask for the version may still decide.
            Ok(_) => match self.begin(inner).await {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            },
            Err(trouble) => trouble,
        };
        let passes = match &trouble {
            StoreError::Refused { code, .. } => [
                "LOADING",
                "READONLY",
                "MASTERDOWN",
                "BUSY",
                "OOM",
                "MISCONF",
                "CLUSTERDOWN",
            ]
            .contains(&code.as_str()),
            StoreError::Protocol(_) => false,
            _ => true,
        };
        if !passes {
            return Err(trouble);
        }
        // Not again for every caller.
        inner.health.broke(&trouble);
        Ok(())
    }
}

/// Why there is no store.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The url cannot be read.
    Url(String),
    /// The certificates cannot be.
    Certificates(PathBuf, String),
    /// Redis answers that it will not do.
    Unusable(StoreError),
    /// The system has no memory, or no thread, for it.
    Memory(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(why) => write!(
                f,
                "the url of Redis cannot be read ({why}); write it like redis://127.0.0.1:6379, \
                 rediss://user:password@host:6380/0, redis+unix:///run/redis.sock, \
                 redis+sentinel://host:26379,host:26379/mymaster or redis+cluster://host:6379,host:6379"
            ),
            Self::Certificates(path, why) => {
                write!(
                    f,
                    "the certificates in {} cannot be used ({why}); name a PEM file",
                    path.display()
                )
            }
            Self::Unusable(trouble) => trouble.fmt(f),
            Self::Memory(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ConnectError {}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The url may hold a password.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

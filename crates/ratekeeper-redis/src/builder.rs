//! [`RedisStoreBuilder`]: configures a store and connects it.

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
use crate::reconnecting::{ReconnectingConnection, Server, ServerLocation};
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

/// Configures a [`RedisStore`]; returned by [`RedisStore::builder`].
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

/// How long connecting to a server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a dropped store goes on sending what was queued before.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// The oldest supported version of Redis: the first that replicates the effects of a script and not
/// the script itself, so that a script may read the clock.
const MIN_VERSION: (u64, u64) = (5, 0);

impl RedisStore {
    /// A store on the Redis or Valkey at `url`: `redis://[user:password@]host[:port][/db]`,
    /// `rediss://` for TLS, `redis+unix:///path/to/socket`.
    ///
    /// For a primary that sentinels name, write
    /// `redis+sentinel://[user:password@]host[:port],…/mymaster[/db]`; for a Cluster,
    /// `redis+cluster://[user:password@]host[:port],…` with some of its nodes; with TLS
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
    /// Sets the prefix of all keys; `ratekeeper` by default. Stores with the same prefix share
    /// their limits.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a decision waits for Redis before it falls back; 10 ms by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how asks are decided while Redis does not answer, for limits that do not set it
    /// themselves.
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = then;
        self
    }

    /// Sets how many nodes divide the limits among them during an outage, until Redis has returned
    /// their number.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the number of connections, in a Cluster to each primary; 2 by default. A key always
    /// uses the same one.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets how many callers may wait for Redis at once, on all connections together; 32,768 by
    /// default. Beyond that, decisions fall back at once.
    pub fn max_waiting(mut self, callers: usize) -> Self {
        self.max_waiting = callers;
        self
    }

    /// Sets the secret that keys are hashed with; by default the nodes agree on one.
    pub fn key_secret(mut self, secret: impl Into<String>) -> Self {
        self.key_secret = Some(secret.into());
        self
    }

    /// Sets a file of CA certificates (PEM) that the certificate of a `rediss://` server is checked
    /// against, instead of those of the system.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the user and password of the sentinels, which differ from those of the server in the
    /// URL. For a password alone, leave the user empty.
    pub fn sentinel_auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.sentinel_auth = Some((user.into(), password.into()));
        self
    }

    /// Sets how many keys this node counts by itself while Redis does not answer; a million by
    /// default.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets how much memory those keys may take; see
    /// [`MemoryStoreBuilder::max_bytes`](ratekeeper::store::MemoryStoreBuilder::max_bytes).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets how long nodes of one prefix may have different limits before that is reported, as
    /// during a rolling change of the configuration; a minute by default. See
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

    /// For tests: the scripts use this time, in microseconds, instead of the server's.
    #[cfg(feature = "test-time")]
    #[doc(hidden)]
    pub fn given_time(mut self, time: Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.time = Some(time);
        self
    }

    /// The URL, the file of CA certificates, and the user and password of the sentinels.
    pub(crate) fn endpoint_settings(&self) -> (&str, Option<&Path>, Option<&(String, String)>) {
        (
            &self.url,
            self.ca_file.as_deref(),
            self.sentinel_auth.as_ref(),
        )
    }

    /// Creates the store and checks the server.
    ///
    /// A Redis that cannot be reached is not an error: the store falls back, reports it, and uses
    /// Redis as soon as it answers. An invalid URL is an error, and so is a server that can never
    /// be used, such as one that is too old.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let deployment = Deployment::of(&self.url, self.ca_file.as_deref())?;
        let health = Arc::new(Health::default());
        let (scripts, time) = self.scripts();
        let connection_count = self.connections.max(1);
        // Held by every task that runs in a Cluster, so that shutdown can wait for them.
        let (running, mut ended) = tokio::sync::mpsc::channel(1);
        let in_cluster = matches!(deployment, Deployment::Cluster { .. });
        let location = match deployment {
            Deployment::One(client) => Ok(ServerLocation::Fixed(client)),
            Deployment::Sentinels {
                sentinels,
                master,
                dial,
            } => Ok(ServerLocation::Sentinels(Sentinels::new(
                &sentinels,
                master,
                dial,
                self.sentinel_auth.as_ref(),
            )?)),
            Deployment::Cluster { seeds, dial } => Err((seeds, dial)),
        };
        let (route, connections, workers) = match location {
            Ok(location) => {
                let server = Arc::new(Server {
                    location,
                    connect_timeout: CONNECT_TIMEOUT,
                    name: None,
                });
                let max_waiting = self.max_waiting.div_ceil(connection_count);
                let open = |_| {
                    let reconnecting = ReconnectingConnection::new(Arc::clone(&server));
                    let scripts = Arc::clone(&scripts);
                    let (handle, connection) = BatchedConnection::new(
                        reconnecting,
                        scripts,
                        Arc::clone(&health),
                        self.timeout,
                        max_waiting,
                        time.clone(),
                        None,
                    );
                    (ConnectionHandle::Single(handle), connection)
                };
                let (connections, workers): (Vec<_>, Vec<_>) =
                    (0..connection_count).map(open).unzip();
                (RedisRoute::to(server), connections, workers)
            }
            Err((seeds, dial)) => {
                let timeout = self.timeout;
                let max_waiting = self.max_waiting;
                let config = ConnectionConfig {
                    scripts,
                    timeout,
                    connections: connection_count,
                    max_waiting,
                    connect_timeout: CONNECT_TIMEOUT,
                    time,
                };
                let cluster = Cluster::new(
                    seeds,
                    dial,
                    config,
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
        let (board, board_task) = board::board(node);
        let board_route = route.duplicate();
        let fleet_prefix = route.fleet_prefix(&self.prefix);
        let (leases, fetches) = LeaseTable::new(self.max_keys, self.timeout);
        let inner = Arc::new(Inner {
            registry: MemoryStore::builder().max_keys(1).build(),
            limits: Limits::new(&self.prefix, in_cluster),
            fallback: Fallback::new(self.max_keys, self.max_bytes, self.nodes)
                .map_err(|error| ConnectError::Memory(error.to_string()))?,
            health,
            connections,
            secret: Arc::new(FleetSecret::new(self.key_secret.as_deref())),
            permits: Arc::new(Permits::new(node)),
            leases,
            heartbeat: Arc::default(),
            limits_check: Arc::new(LimitsCheck::new(self.rollout_grace)),
            board: Arc::new(board),
            timeout: self.timeout,
            on_failure: self.on_failure,
            closed: Arc::default(),
            children: Mutex::default(),
            parent: None,
        });
        let maintenance =
            Maintenance::new(&inner, route, self.counted.then_some(node), &self.prefix);
        let (sender, result_receiver) = tokio::sync::oneshot::channel();
        let first = Arc::clone(&inner);
        let weak = Arc::downgrade(&inner);
        let run = async move {
            let mut workers: tokio::task::JoinSet<()> =
                workers.into_iter().map(BatchedConnection::run).collect();
            let result = maintenance.check_server(&first).await;
            let fatal = result.is_err();
            drop(first);
            if sender.send(result).is_err() || fatal {
                return;
            }
            tokio::spawn(board_task.run(board_route, fleet_prefix, weak.clone()));
            tokio::spawn(lease::request::run(fetches, weak));
            maintenance.run().await;
            // Jobs that were queued last, such as released permits, are still sent.
            let all = async {
                while workers.join_next().await.is_some() {}
                while ended.recv().await.is_some() {}
            };
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, all).await;
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
            .map_err(|error| {
                ConnectError::Memory(format!("cannot start the store's thread: {error}"))
            })?;
        match result_receiver.await {
            Ok(Ok(())) => Ok(RedisStore { inner }),
            Ok(Err(error)) => Err(ConnectError::Unusable(error)),
            Err(_) => Err(ConnectError::Memory("the store's thread ended".to_owned())),
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
    /// The first check: an error if this server can never be used.
    async fn check_server(&self, inner: &Inner) -> Result<(), StoreError> {
        let version = match self.discover().await {
            Ok(()) => self.version().await,
            Err(error) => Err(error),
        };
        let error = match version {
            Ok(Some(version)) if version < MIN_VERSION => {
                let message = format!(
                    "Redis {}.{} is too old; use version {} or newer",
                    version.0, version.1, MIN_VERSION.0
                );
                return Err(StoreError::Refused {
                    code: "VERSION".to_owned(),
                    message,
                });
            }
            // A user without the right to read the version may still decide.
            Ok(_) => match self.start(inner).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let is_transient = match &error {
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
        if !is_transient {
            return Err(error);
        }
        // Opens the breaker, so that callers do not each wait for the same failure.
        inner.health.open_breaker(&error);
        Ok(())
    }
}

/// The error of [`RedisStoreBuilder::connect`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is invalid.
    Url(String),
    /// The certificates cannot be used.
    Certificates(PathBuf, String),
    /// Redis answered that it cannot be used.
    Unusable(StoreError),
    /// The system has too little memory, or no thread, for the store.
    Memory(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(reason) => write!(
                f,
                "the url of Redis is invalid ({reason}); write it like redis://127.0.0.1:6379, \
                 rediss://user:password@host:6380/0, redis+unix:///run/redis.sock, \
                 redis+sentinel://host:26379,host:26379/mymaster or redis+cluster://host:6379,host:6379"
            ),
            Self::Certificates(path, reason) => {
                write!(
                    f,
                    "the certificates in {} cannot be used ({reason}); set ca_file to a PEM file",
                    path.display()
                )
            }
            Self::Unusable(error) => error.fmt(f),
            Self::Memory(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for ConnectError {}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

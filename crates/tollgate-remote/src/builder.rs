//! Making a store: where the service is, and how it is to be used.

use crate::address::{Address, ConnectError};
use crate::fallback::Fallback;
use crate::health::Health;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::limits::Limits;
use crate::link::{Link, Server};
use crate::store::{Inner, RemoteStore};
use crate::trouble::Trouble;
use http::HeaderValue;
use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{MemoryStore, OnFailure};

/// Makes a [`RemoteStore`]; what [`RemoteStore::builder`] returns.
#[must_use = "a store is made by connect"]
pub struct RemoteStoreBuilder {
    url: String,
    token: Option<String>,
    timeout: Duration,
    on_failure: OnFailure,
    nodes: u64,
    connections: usize,
    max_waiting: usize,
    max_keys: usize,
    max_bytes: Option<usize>,
    #[cfg(feature = "tls")]
    ca_file: Option<std::path::PathBuf>,
}

/// How long making a connection may take.
const CONNECTING: Duration = Duration::from_secs(1);

/// How long a store that is gone goes on sending what it was handed before.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl RemoteStore {
    /// A store on the tollgate whose HTTP listener is at `url`: `http://host:port`, or `https://` with the feature `tls`.
    pub fn builder(url: impl Into<String>) -> RemoteStoreBuilder {
        RemoteStoreBuilder {
            url: url.into(),
            token: None,
            timeout: Duration::from_millis(25),
            on_failure: OnFailure::LocalShare,
            nodes: 1,
            connections: 2,
            max_waiting: 32_768,
            max_keys: 1_000_000,
            max_bytes: None,
            #[cfg(feature = "tls")]
            ca_file: None,
        }
    }
}

impl RemoteStoreBuilder {
    /// The `store_token` of the service, if it has one. Without it nobody may grant or reset.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long a decision waits for the service before it falls back; 25 ms if not said, which is more than the service
    /// itself waits for its Redis.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What becomes of asks while the service does not answer, where a limit does not say.
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = then;
        self
    }

    /// How many clients share the limits: while the service does not answer each admits that part of them. 1 if not said.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// How many connections; 2 if not said. A key is always asked about on the same one.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How many callers may wait for the service at once, on all connections together; 32,768 if not said. One more is
    /// decided without it, at once.
    pub fn max_waiting(mut self, callers: usize) -> Self {
        self.max_waiting = callers;
        self
    }

    /// How many keys this client counts by itself while the service does not answer; a million if not said.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// How much memory those may take; see [`MemoryStoreBuilder::max_bytes`](tollgate::MemoryStoreBuilder::max_bytes).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// A file of certificates (PEM) to trust an `https://` service by, beside those of the system.
    #[cfg(feature = "tls")]
    pub fn ca_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Makes the store, and looks whether the service is there.
    ///
    /// A service that cannot be reached is not an error: the store falls back, says so, and goes on when it answers. A url that
    /// cannot be used is one, and what answers but is no tollgate, or does not take the token.
    pub async fn connect(self) -> Result<RemoteStore, ConnectError> {
        let server = Arc::new(self.server()?);
        let health = Arc::new(Health::default());
        let connections = self.connections.max(1);
        let (lanes, workers): (Vec<_>, Vec<_>) = (0..connections)
            .map(|_| {
                let link = Link::new(Arc::clone(&server));
                Lane::new(link, Arc::clone(&health), self.timeout, self.max_waiting.div_ceil(connections))
            })
            .unzip();
        let inner = Arc::new(Inner {
            names: MemoryStore::builder().max_keys(1).build(),
            limits: Limits::default(),
            fallback: Fallback::new(self.max_keys, self.max_bytes, self.nodes)
                .map_err(|error| ConnectError::Memory(error.to_string()))?,
            health,
            lanes,
            spread: RandomState::new(),
            timeout: self.timeout,
            on_failure: self.on_failure,
            gone: Arc::default(),
        });
        let keeper = Keeper::new(&inner, server);
        let (sender, seen) = tokio::sync::oneshot::channel();
        let first = Arc::clone(&inner);
        let run = async move {
            let result = look(&keeper, &first).await;
            let fatal = result.is_err();
            drop(first);
            if sender.send(result).is_err() || fatal {
                return;
            }
            let mut workers: tokio::task::JoinSet<()> = workers.into_iter().map(Lane::run).collect();
            keeper.run().await;
            // What was handed in last, permits that go back, is still sent.
            let _ = tokio::time::timeout(LAST_WORDS, async { while workers.join_next().await.is_some() {} }).await;
        };
        std::thread::Builder::new()
            .name("tollgate-remote".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                if let Ok(runtime) = runtime {
                    runtime.block_on(run);
                }
            })
            .map_err(|error| ConnectError::Memory(format!("no thread: {error}")))?;
        match seen.await {
            Ok(Ok(())) => Ok(RemoteStore { inner }),
            Ok(Err(trouble)) => Err(ConnectError::Unusable(trouble)),
            Err(_) => Err(ConnectError::Memory("its thread ended".to_owned())),
        }
    }

    fn server(&self) -> Result<Server, ConnectError> {
        let address = Address::read(&self.url)?;
        let header = |token: &String| {
            let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ConnectError::Token)?;
            header.set_sensitive(true);
            Ok(header)
        };
        Ok(Server {
            token: self.token.as_ref().map(header).transpose()?,
            connect_timeout: CONNECTING,
            #[cfg(feature = "tls")]
            tls: address.tls.then(|| crate::tls::Tls::new(&address, self.ca_file.as_deref())).transpose()?,
            address,
        })
    }
}

/// The first look: an error if what is there will never do.
async fn look(keeper: &Keeper, inner: &Inner) -> Result<(), Trouble> {
    match keeper.look().await {
        Err(trouble) if trouble.is_lasting() => Err(trouble),
        Err(trouble) => {
            inner.health.began_badly(&trouble);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

impl fmt::Debug for RemoteStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the token.
        f.debug_struct("RemoteStoreBuilder")
            .field("url", &self.url)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

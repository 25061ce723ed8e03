//! [`LimitOptions`]: how a store shared by several processes treats a limit.

use super::OnFailure;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// How a store shared by several processes treats a limit; see
/// [`Store::configure`](super::Store::configure). Only what is set here changes.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limit, MemoryStore, Store, store::LimitOptions, store::OnFailure};
///
/// let store = MemoryStore::new();
/// let login = store.limit("login", Limit::per_minute(5))?;
/// let options = LimitOptions::new().on_failure(OnFailure::Closed).lease(Some(Duration::from_secs(1)));
/// assert!(!store.configure(&login, options), "this store is not shared");
/// # Ok::<_, ratekeeper::keyed::TooManyLimitsError>(())
/// ```
#[derive(Clone, Default)]
pub struct LimitOptions {
    on_failure: Option<OnFailure>,
    lease: Option<Option<Duration>>,
    shared_name: Option<Arc<str>>,
    shard_prefix: Option<Option<ShardPrefix>>,
}

/// How many bytes at the front of a key decide which keys are stored together; see
/// [`LimitOptions::shard_prefix`].
pub type ShardPrefix = Arc<dyn Fn(&[u8]) -> usize + Send + Sync>;

impl LimitOptions {
    /// Creates options that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what happens to the limit's asks while the store is unreachable; by default
    /// [`OnFailure::LocalShare`].
    #[must_use]
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = Some(then);
        self
    }

    /// Sets whether this process may decide the limit's asks with tokens leased from the store that
    /// holds the counts, and for how long at most. With `None`, the default, every decision asks
    /// that store.
    #[must_use]
    pub fn lease(mut self, staleness: Option<Duration>) -> Self {
        self.lease = Some(staleness);
        self
    }

    /// Sets the name under which other processes share the limit's counts: by default the one it
    /// was registered with. There, limits with the same name and algorithm share their counts.
    #[must_use]
    pub fn shared_name(mut self, name: &str) -> Self {
        self.shared_name = Some(name.into());
        self
    }

    /// Sets which keys of the limit are stored together, where a store is spread over several
    /// servers: keys with the same first bytes, as many as `prefix` says; by default the whole key.
    /// Asks on one server are charged all or nothing; asks on several are charged on each, and
    /// refunded if another server denies.
    #[must_use]
    pub fn shard_prefix(mut self, prefix: Option<ShardPrefix>) -> Self {
        self.shard_prefix = Some(prefix);
        self
    }

    /// For store implementers: what happens while the store is unreachable, if it changes.
    pub fn changed_on_failure(&self) -> Option<OnFailure> {
        self.on_failure
    }

    /// For store implementers: the longest lease, if it changes.
    pub fn changed_lease(&self) -> Option<Option<Duration>> {
        self.lease
    }

    /// For store implementers: the shared name, if it changes.
    pub fn changed_shared_name(&self) -> Option<&str> {
        self.shared_name.as_deref()
    }

    /// For store implementers: the shard prefix, if it changes.
    pub fn changed_shard_prefix(&self) -> Option<Option<&ShardPrefix>> {
        self.shard_prefix.as_ref().map(Option::as_ref)
    }
}

impl fmt::Debug for LimitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard_prefix = self.shard_prefix.as_ref().map(Option::is_some);
        f.debug_struct("LimitOptions")
            .field("on_failure", &self.on_failure)
            .field("lease", &self.lease)
            .field("shared_name", &self.shared_name)
            .field("shard_prefix", &shard_prefix)
            .finish()
    }
}

//! Stores: several limits decided together, all or nothing.

mod ask;
mod detached;
mod memory;
mod verdict;

pub use crate::keyed::table::LimitKeyStats;
pub use ask::{Ask, LimitHandle, Mode};
pub use detached::{DetachError, SettleError};
pub use memory::{MemoryStore, MemoryStoreBuilder, TooManyKeysError};
pub use verdict::{AskOutcome, AskResult, Source, Verdict};
pub(crate) use verdict::{Permits, Receipt};

use crate::clock::Timestamp;
use crate::keyed::TooManyLimitsError;
use crate::keyed::table::INLINE_ENTRIES;
use crate::limit::Limit;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::vec::Vec;

/// Decides several limits together, all or nothing.
///
/// [`MemoryStore`] decides at once; a store that a fleet shares decides over the network. Code that
/// is generic over `Store` runs on both:
///
/// ```
/// use ratekeeper::{Ask, Limit, store::LimitHandle, MemoryStore, Store, keyed::TooManyLimitsError};
///
/// struct Gate<S> {
///     store: S,
///     user: LimitHandle,
///     all: LimitHandle,
/// }
///
/// impl<S: Store> Gate<S> {
///     fn new(store: S) -> Result<Self, TooManyLimitsError> {
///         let (user, all) = (store.limit("user", Limit::per_minute(60))?, store.limit("all", Limit::per_second(1_000))?);
///         Ok(Self { store, user, all })
///     }
///
///     async fn allow(&self, name: &str) -> bool {
///         self.store.decide(&[Ask::new(&self.user, name), Ask::new(&self.all, "")]).await.is_allowed()
///     }
///
///     /// For an operator.
///     async fn forgive(&self, name: &str) {
///         self.store.reset(&self.user, name.as_bytes()).await;
///     }
/// }
///
/// let gate = Gate::new(MemoryStore::new())?;
/// # Ok::<_, TooManyLimitsError>(())
/// ```
///
/// The limits of a store are registered with it. Asks for a handle of another store are always
/// denied, and the other verbs ignore it. A store that keeps its counts elsewhere has a
/// [`MemoryStore`] to register them with, and to fall back on.
pub trait Store: Send + Sync {
    /// Registers a limit; see [`MemoryStore::limit`].
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError>;

    /// Registers a limit on how many are in flight.
    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError>;

    /// Changes a limit for every key at once; each keeps its tokens.
    fn set_limit(&self, handle: &LimitHandle, limit: Limit);

    /// Changes how many may be in flight. Permits already taken stay valid.
    fn set_concurrency(&self, handle: &LimitHandle, limit: u64);

    /// Returns the time of its clock.
    fn now(&self) -> Timestamp;

    /// Charges every ask, or none of them.
    fn decide(&self, asks: &[Ask<'_>]) -> impl Future<Output = Verdict> + Send;

    /// Decides as [`decide`](Self::decide) does, for a caller that has just read
    /// [`now`](Self::now), so that it is not read twice. By default, and in a store that goes by a
    /// time of its own, `now` is ignored.
    fn decide_at(&self, asks: &[Ask<'_>], now: Timestamp) -> impl Future<Output = Verdict> + Send {
        let _ = now;
        self.decide(asks)
    }

    /// Decides without waiting, if no other process has to be asked; otherwise returns `None`, and
    /// nothing was charged.
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp) -> Option<Verdict> {
        let _ = (asks, now);
        None
    }

    /// Decides as [`try_decide`](Self::try_decide) does, but overwrites `verdict`: verdicts are
    /// large to move. `false` if another process has to be asked, and then `verdict` is not
    /// written.
    fn decide_into(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        self.try_decide(asks, now)
            .map(|decided| *verdict = decided)
            .is_some()
    }

    /// Whether it never has to ask another process: [`try_decide`](Self::try_decide) and
    /// [`decide_into`](Self::decide_into) always decide, and each of its futures is ready when it
    /// is first polled.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns a future that is ready at `at`, by its clock.
    #[cfg(feature = "tokio")]
    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        crate::clock::Sleep::real(at.saturating_since(self.now()))
    }

    /// Decides as [`decide_at`](Self::decide_at) does, for a caller that needs the verdict `within`
    /// some time: a store that has to ask another process falls back before that. By default
    /// `within` is ignored.
    fn decide_within(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        within: Duration,
    ) -> impl Future<Output = Verdict> + Send {
        let _ = within;
        self.decide_at(asks, now)
    }

    /// Sets what happens to a limit's asks while the store is unreachable; by default
    /// [`OnFailure::LocalShare`]. A store in this process is always reachable.
    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        let _ = (handle, then);
    }

    /// Sets whether this process may decide a limit's asks with tokens leased from where the counts
    /// are, and for how long at most; with `None`, the default, it asks about each. A store in this
    /// process ignores it.
    fn lease(&self, handle: &LimitHandle, staleness: Option<Duration>) {
        let _ = (handle, staleness);
    }

    /// Sets the name under which other processes share this limit's counts: by default the one it
    /// was registered with. Limits of one name and one algorithm are one limit there. A store of
    /// one process ignores it.
    fn set_shared_name(&self, handle: &LimitHandle, name: &str) {
        let _ = (handle, name);
    }

    /// Sets which keys of this limit are stored together, where a store is spread over several
    /// servers: keys with the same first bytes, as many as `prefix` says; by default the whole key.
    /// What is stored together is charged all or nothing; what is not is charged in each place, and
    /// refunded if another denies. A store in one place ignores it.
    fn set_shard_prefix(&self, handle: &LimitHandle, prefix: Option<ShardPrefix>) {
        let _ = (handle, prefix);
    }

    /// Settles a verdict at its true cost: `actual[i]` is for the i-th ask, and asks beyond the end
    /// of `actual` stay as they are. Permits are released. See
    /// [`Charge::settle`](crate::Charge::settle).
    fn settle(&self, verdict: Verdict, actual: &[u64]) -> impl Future<Output = ()> + Send;

    /// Detaches a verdict from this process: what it charged is settled later by the receipt that
    /// this returns, once, by any node that shares the counts. Its permits stay taken until then,
    /// or until `until`; after that nothing is refunded.
    ///
    /// A receipt is for the store alone: sign it before handing it to others. If the store cannot
    /// hold another one, the verdict is cancelled. By default a store cannot detach, and returns
    /// [`DetachError::Unable`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Ask, Limit, MemoryStore, store::SettleError, Store};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let tokens = store.limit("tokens", Limit::per_hour(10_000))?;
    /// let verdict = store.decide(&[Ask::new(&tokens, "ann").cost(500)]).await; // an estimate
    /// let receipt = store.detach(verdict, store.now() + Duration::from_secs(60)).await?;
    /// // … elsewhere, later …
    /// store.settle_detached(&receipt, &[120]).await?;
    /// assert_eq!(store.settle_detached(&receipt, &[0]).await, Err(SettleError::AlreadySettled));
    /// # Ok(()) }
    /// ```
    fn detach(
        &self,
        verdict: Verdict,
        until: Timestamp,
    ) -> impl Future<Output = Result<Vec<u8>, DetachError>> + Send {
        let _ = until;
        async move {
            let nothing: Vec<u64> = verdict.results().map(|_| 0).collect();
            self.settle(verdict, &nothing).await;
            Err(DetachError::Unable)
        }
    }

    /// Settles a [detached](Self::detach) verdict, as [`settle`](Self::settle) does.
    fn settle_detached(
        &self,
        receipt: &[u8],
        actual: &[u64],
    ) -> impl Future<Output = Result<(), SettleError>> + Send {
        let _ = (receipt, actual);
        async { Err(SettleError::InvalidReceipt) }
    }

    /// Grants a key up to `tokens` of what it has used; see
    /// [`Limiter::grant`](crate::Limiter::grant). Permits are not granted.
    fn grant(
        &self,
        handle: &LimitHandle,
        key: &[u8],
        tokens: u64,
    ) -> impl Future<Output = ()> + Send;

    /// Makes a key fresh. Earlier verdicts refund nothing to it. Permits already taken stay valid.
    fn reset(&self, handle: &LimitHandle, key: &[u8]) -> impl Future<Output = ()> + Send;

    /// Returns statistics of the keys of each of these limits, in their order; `None` if the store
    /// cannot count them. It may take long, but no longer for many limits than for one.
    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>>;
}

/// How many bytes at the front of a key decide which keys are stored together; see
/// [`Store::set_shard_prefix`].
pub type ShardPrefix = Arc<dyn Fn(&[u8]) -> usize + Send + Sync>;

/// What happens to an ask while the store that holds the counts is unreachable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnFailure {
    /// Each node allows its share of the limit: the rate and the burst divided by the number of
    /// nodes.
    #[default]
    LocalShare,
    /// Every request is allowed.
    Open,
    /// Every request is denied.
    Closed,
}

impl OnFailure {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::LocalShare, Self::Open, Self::Closed];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalShare => "local_share",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }

    /// Returns the variant of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

//! Stores: several limits decided together, all or nothing.

mod ask;
pub mod backend;
mod detached;
mod dyn_store;
mod memory;
mod options;
mod verdict;

pub use crate::keyed::table::LimitKeyStats;
pub use ask::{Ask, LimitHandle, Mode};
pub use detached::{DetachError, SettleError};
pub use dyn_store::DynStore;
pub use memory::{MemoryStore, MemoryStoreBuilder, TooManyKeysError};
pub use options::{LimitOptions, ShardPrefix};
pub use verdict::{AskOutcome, AskResult, Source, Verdict};
pub(crate) use verdict::{Permits, Receipt};

use crate::clock::Timestamp;
use crate::keyed::TooManyLimitsError;
use crate::keyed::table::INLINE_ENTRIES;
use crate::limit::Limit;
use core::fmt;
use core::time::Duration;
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
/// denied, and the other methods ignore such a handle. A store that keeps its counts elsewhere
/// registers its limits with a [`MemoryStore`] of its own, and falls back on it.
pub trait Store: Send + Sync {
    /// Registers a limit; see [`MemoryStore::limit`].
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError>;

    /// Registers a limit on how many requests may be in flight at once.
    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError>;

    /// Changes a limit for every key at once; each keeps its tokens.
    fn set_limit(&self, handle: &LimitHandle, limit: Limit);

    /// Changes how many may be in flight. Permits already taken stay valid.
    fn set_concurrency(&self, handle: &LimitHandle, limit: u64);

    /// Returns the time of its clock.
    fn now(&self) -> Timestamp;

    /// Decides now, if no other process has to be asked: charges every ask, or none of them, and
    /// overwrites `verdict`. Otherwise returns `false`; nothing was charged or written, and
    /// [`decide_within`](Self::decide_within) decides. `now` must have been read from
    /// [`now`](Self::now).
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        let _ = (asks, now, verdict);
        false
    }

    /// Charges every ask, or none of them. A store that has to ask another process answers `within`
    /// this time, falling back if it must; with `None` within its own timeout.
    fn decide_within(
        &self,
        asks: &[Ask<'_>],
        within: Option<Duration>,
    ) -> impl Future<Output = Verdict> + Send;

    /// Charges every ask, or none of them, within the store's own timeout:
    /// [`decide_within`](Self::decide_within) with `None`.
    fn decide(&self, asks: &[Ask<'_>]) -> impl Future<Output = Verdict> + Send {
        self.decide_within(asks, None)
    }

    /// Whether it never has to ask another process: [`try_decide`](Self::try_decide) always
    /// decides, and each of its futures is ready when it is first polled.
    fn is_local(&self) -> bool {
        false
    }

    /// Returns a future that is ready at `at`, by its clock.
    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        crate::clock::Sleep::real(at.saturating_since(self.now()))
    }

    /// Changes the [options](LimitOptions) of a limit that several processes share. Returns whether
    /// the store supports options; a store in one process does not.
    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        let _ = (handle, options);
        false
    }

    /// Settles a verdict at its true cost: `actual[i]` is for the i-th ask, and asks beyond the end
    /// of `actual` stay as they are. Permits are released. See
    /// [`Charge::settle`](crate::Charge::settle).
    fn settle(&self, verdict: Verdict, actual: &[u64]) -> impl Future<Output = ()> + Send;

    /// Settles now, as [`settle`](Self::settle) does, if no other process has to be asked. Otherwise
    /// returns the verdict, and nothing was settled.
    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        let _ = actual;
        Some(verdict)
    }

    /// Detaches a verdict from this process: any node that shares the counts can settle its charges
    /// later, once, with the receipt that this returns. Its permits stay taken until then, or until
    /// `until`; after that nothing is refunded.
    ///
    /// A receipt is for the store alone: sign it before handing it to others. If the store already
    /// holds too many receipts, the verdict is cancelled. By default a store cannot detach, and
    /// returns [`DetachError::Unable`].
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

    /// Makes the allowance of a key full again. Earlier verdicts refund nothing to it. Permits
    /// already taken stay valid.
    fn reset(&self, handle: &LimitHandle, key: &[u8]) -> impl Future<Output = ()> + Send;

    /// Returns statistics of the keys of each of these limits, in their order; `None` if the store
    /// cannot count them. It may take long, but no longer for many limits than for one.
    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>>;
}

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

//! Several limits at once, all or nothing: what is asked, what is answered, and the contract of
//! whoever answers.

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

/// Decides over several limits at once, all or nothing.
///
/// [`MemoryStore`] answers at once; a store that is shared by a fleet answers from afar. Code that
/// is generic over it runs on both:
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
///     fn new(store: S) -> Result<Self, TooManyLimits> {
///         let (user, all) = (store.limit("user", Limit::per_minute(60))?, store.limit("all", Limit::per_second(1_000))?);
///         Ok(Self { store, user, all })
///     }
///
///     async fn admit(&self, name: &str) -> bool {
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
/// # Ok::<_, TooManyLimits>(())
/// ```
///
/// The limits of a store are registered with it, and a handle of another store is not its own: asks
/// for it never pass, and the other verbs ignore it. A store that keeps its counts elsewhere holds
/// a [`MemoryStore`] to register them with, and to fall back on.
pub trait Store: Send + Sync {
    /// Registers a limit; see [`MemoryStore::limit`].
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError>;

    /// Registers a limit on how many are in flight.
    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError>;

    /// Changes a limit for every key, at once, each keeping the tokens it has.
    fn set_limit(&self, handle: &LimitHandle, limit: Limit);

    /// Changes how many may be in flight. Permits that are out stay out.
    fn set_concurrency(&self, handle: &LimitHandle, limit: u64);

    /// What its clock says.
    fn now(&self) -> Timestamp;

    /// Charges every ask, or none of them.
    fn decide(&self, asks: &[Ask<'_>]) -> impl Future<Output = Verdict> + Send;

    /// The same for a caller who has just read [`now`](Self::now), so that it is not read twice. A
    /// store that goes by a time of its own ignores it, as all do that do not say otherwise.
    fn decide_at(&self, asks: &[Ask<'_>], now: Timestamp) -> impl Future<Output = Verdict> + Send {
        let _ = now;
        self.decide(asks)
    }

    /// Decides if it need not ask elsewhere, for a caller who would rather not wait; none if it
    /// must, and then nothing was charged.
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp) -> Option<Verdict> {
        let _ = (asks, now);
        None
    }

    /// The same, told to `verdict` in place of what it says: verdicts are large to move. False if
    /// it must ask elsewhere, and then nothing is told.
    fn decide_into(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        self.try_decide(asks, now)
            .map(|decided| *verdict = decided)
            .is_some()
    }

    /// Whether it need never ask elsewhere: [`decide_here`](Self::decide_here) and
    /// [`decide_into`](Self::decide_into) always decide, and every future of it is
    /// ready when it is first polled.
    fn is_local(&self) -> bool {
        false
    }

    /// A future that is ready at `at`, by its clock.
    #[cfg(feature = "tokio")]
    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        crate::clock::Sleep::real(at.saturating_since(self.now()))
    }

    /// The same for a caller who needs the answer `within` some time: a store that has to ask
    /// elsewhere falls back before that. One that does not, which is what all are that do not say
    /// otherwise, ignores it.
    fn decide_within(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        within: Duration,
    ) -> impl Future<Output = Verdict> + Send {
        let _ = within;
        self.decide_at(asks, now)
    }

    /// What becomes of a limit's asks while the store cannot be reached; [`OnFailure::LocalShare`]
    /// if nobody says. A store that is in this process is always reached.
    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        let _ = (handle, then);
    }

    /// Whether this process may decide a limit's asks by tokens that it took on lease from where
    /// the counts are, for so long at most; none if it asks about each, as it does if nobody says.
    /// A store that is in this process has no use for it.
    fn lease(&self, handle: &LimitHandle, staleness: Option<Duration>) {
        let _ = (handle, staleness);
    }

    /// Under which name other processes know this limit, if they share its counts: by default the
    /// one it was registered with. Limits of one name and one algorithm are one limit there. A
    /// store of one process has no use for it.
    fn set_shared_name(&self, handle: &LimitHandle, name: &str) {
        let _ = (handle, name);
    }

    /// With what others the keys of this limit are kept, where a store is spread over several
    /// servers: the first bytes of a key, as many as `tag` says; all of it if nobody says. What is
    /// kept together is charged all or nothing; what is not is charged in each place, and given
    /// back if another denies. A store in one place has no use for it.
    fn set_shard_prefix(&self, handle: &LimitHandle, tag: Option<ShardPrefix>) {
        let _ = (handle, tag);
    }

    /// Corrects what a verdict charged to what it really cost: `actual[i]` is for the i-th ask, and
    /// what is not said stays as it is. Permits go back. See
    /// [`Charge::settle`](crate::Charge::settle).
    fn settle(&self, verdict: Verdict, actual: &[u64]) -> impl Future<Output = ()> + Send;

    /// Takes a verdict apart from this process: what it charged is settled later by the receipt
    /// that this returns, once, by any node that shares the counts. Its permits stay out until
    /// then, or until `until`; after that nothing comes back.
    ///
    /// A receipt is for the store alone: who hands it to others signs it. If there is no room for
    /// another, the verdict is cancelled. A store that cannot do this, as those that do not say
    /// otherwise, always says so.
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
    /// assert_eq!(store.settle_detached(&receipt, &[0]).await, Err(SettleError::Before));
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

    /// Settles what was [detached](Self::detach), as [`settle`](Self::settle) does.
    fn settle_detached(
        &self,
        receipt: &[u8],
        actual: &[u64],
    ) -> impl Future<Output = Result<(), SettleError>> + Send {
        let _ = (receipt, actual);
        async { Err(SettleError::InvalidReceipt) }
    }

    /// Gives a key up to `tokens` of what it has used; see
    /// [`Limiter::grant`](crate::Limiter::grant). Permits are not given.
    fn grant(
        &self,
        handle: &LimitHandle,
        key: &[u8],
        tokens: u64,
    ) -> impl Future<Output = ()> + Send;

    /// Makes a key fresh. Older verdicts give nothing back to it; permits that are out stay out.
    fn reset(&self, handle: &LimitHandle, key: &[u8]) -> impl Future<Output = ()> + Send;

    /// What became of the keys of each of these limits, in their order; none if the store cannot
    /// count them. It may take long, but no longer for many limits than for one.
    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>>;
}

/// How many bytes at the front of a key say with what others it is kept; see [`Store::tag_by`].
pub type ShardPrefix = Arc<dyn Fn(&[u8]) -> usize + Send + Sync>;

/// What becomes of an ask while the store that knows the counts cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnFailure {
    /// Each node admits its share of the limit: the rate and the burst divided by the number of
    /// nodes.
    #[default]
    LocalShare,
    /// Everyone passes.
    Open,
    /// Nobody passes.
    Closed,
}

impl OnFailure {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::LocalShare, Self::Open, Self::Closed];

    /// The name users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LocalShare => "local_share",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }

    /// The choice of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

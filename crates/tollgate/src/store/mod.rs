//! Several limits at once, all or nothing: what is asked, what is answered, and the contract of whoever answers.

mod detached;
mod memory;

pub use crate::keyed::table::Census;
pub use detached::{NotDetached, NotSettled};
pub use memory::{MemoryStore, MemoryStoreBuilder, TooManyKeys};

use crate::algorithm::token_bucket::Charged;
use crate::clock::{Instant, nanos};
use crate::decision::{Decision, Outcome};
use crate::keyed::TooManyLimits;
use crate::keyed::table::{AccountNumber, FEW};
use crate::keyed::terms::{Line, Rule, Terms};
use crate::limit::Limit;
use core::any::Any;
use core::fmt;
use core::time::Duration;
use smallvec::SmallVec;
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

/// Decides over several limits at once, all or nothing.
///
/// [`MemoryStore`] answers at once; a store that is shared by a fleet answers from afar. Code that is generic over it runs
/// on both:
///
/// ```
/// use tollgate::{Ask, Limit, LimitHandle, MemoryStore, Store, TooManyLimits};
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
/// The limits of a store are registered with it, and a handle of another store is not its own: asks for it never pass, and
/// the other verbs ignore it. A store that keeps its counts elsewhere holds a [`MemoryStore`] to register them with, and to
/// fall back on.
pub trait Store: Send + Sync {
    /// Registers a limit; see [`MemoryStore::limit`].
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimits>;

    /// Registers a limit on how many are in flight.
    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimits>;

    /// Changes a limit for every key, at once, each keeping the tokens it has.
    fn set_limit(&self, handle: &LimitHandle, limit: Limit);

    /// Changes how many may be in flight. Permits that are out stay out.
    fn set_concurrency(&self, handle: &LimitHandle, limit: u64);

    /// What its clock says.
    fn now(&self) -> Instant;

    /// Charges every ask, or none of them.
    fn decide(&self, asks: &[Ask<'_>]) -> impl Future<Output = Verdict> + Send;

    /// The same for a caller who has just read [`now`](Self::now), so that it is not read twice. A store that goes by a
    /// time of its own ignores it, as all do that do not say otherwise.
    fn decide_at(&self, asks: &[Ask<'_>], now: Instant) -> impl Future<Output = Verdict> + Send {
        let _ = now;
        self.decide(asks)
    }

    /// Decides if it need not ask elsewhere, for a caller who would rather not wait; none if it must, and then nothing was
    /// charged.
    fn decide_here(&self, asks: &[Ask<'_>], now: Instant) -> Option<Verdict> {
        let _ = (asks, now);
        None
    }

    /// The same, told to `verdict` in place of what it says: verdicts are large to move. False if it must ask elsewhere, and
    /// then nothing is told.
    fn decide_into(&self, asks: &[Ask<'_>], now: Instant, verdict: &mut Verdict) -> bool {
        self.decide_here(asks, now).map(|decided| *verdict = decided).is_some()
    }

    /// Whether it need never ask elsewhere: [`decide_here`](Self::decide_here) and
    /// [`decide_into`](Self::decide_into) always decide, and every future of it is
    /// ready when it is first polled.
    fn is_here(&self) -> bool {
        false
    }

    /// A future that is ready at `at`, by its clock.
    #[cfg(feature = "tokio")]
    fn sleep_until(&self, at: Instant) -> crate::Sleep {
        crate::Sleep::real(at.saturating_since(self.now()))
    }

    /// The same for a caller who needs the answer `within` some time: a store that has to ask elsewhere falls back before
    /// that. One that does not, which is what all are that do not say otherwise, ignores it.
    fn decide_within(&self, asks: &[Ask<'_>], now: Instant, within: Duration) -> impl Future<Output = Verdict> + Send {
        let _ = within;
        self.decide_at(asks, now)
    }

    /// What becomes of a limit's asks while the store cannot be reached; [`OnFailure::LocalShare`] if nobody says. A store
    /// that is in this process is always reached.
    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        let _ = (handle, then);
    }

    /// Whether this process may decide a limit's asks by tokens that it took on lease from where the counts are, for so long
    /// at most; none if it asks about each, as it does if nobody says. A store that is in this process has no use for it.
    fn lease(&self, handle: &LimitHandle, staleness: Option<Duration>) {
        let _ = (handle, staleness);
    }

    /// Under which name other processes know this limit, if they share its counts: by default the one it was registered
    /// with. Limits of one name and one algorithm are one limit there. A store of one process has no use for it.
    fn share_as(&self, handle: &LimitHandle, name: &str) {
        let _ = (handle, name);
    }

    /// With what others the keys of this limit are kept, where a store is spread over several servers: the first bytes of a
    /// key, as many as `tag` says; all of it if nobody says. What is kept together is charged all or nothing; what is not is
    /// charged in each place, and given back if another denies. A store in one place has no use for it.
    fn tag_by(&self, handle: &LimitHandle, tag: Option<TagOf>) {
        let _ = (handle, tag);
    }

    /// Corrects what a verdict charged to what it really cost: `actual[i]` is for the i-th ask, and what is not said stays
    /// as it is. Permits go back. See [`Charge::settle`](crate::Charge::settle).
    fn settle(&self, verdict: Verdict, actual: &[u64]) -> impl Future<Output = ()> + Send;

    /// Takes a verdict apart from this process: what it charged is settled later by the receipt that this returns, once, by
    /// any node that shares the counts. Its permits stay out until then, or until `until`; after that nothing comes back.
    ///
    /// A receipt is for the store alone: who hands it to others signs it. If there is no room for another, the verdict is
    /// cancelled. A store that cannot do this, as those that do not say otherwise, always says so.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ask, Limit, MemoryStore, NotSettled, Store};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let tokens = store.limit("tokens", Limit::per_hour(10_000))?;
    /// let verdict = store.decide(&[Ask::new(&tokens, "ann").cost(500)]).await; // an estimate
    /// let receipt = store.detach(verdict, store.now() + Duration::from_secs(60)).await?;
    /// // … elsewhere, later …
    /// store.settle_detached(&receipt, &[120]).await?;
    /// assert_eq!(store.settle_detached(&receipt, &[0]).await, Err(NotSettled::Before));
    /// # Ok(()) }
    /// ```
    fn detach(&self, verdict: Verdict, until: Instant) -> impl Future<Output = Result<Vec<u8>, NotDetached>> + Send {
        let _ = until;
        async move {
            let nothing: Vec<u64> = verdict.statuses().map(|_| 0).collect();
            self.settle(verdict, &nothing).await;
            Err(NotDetached::Unable)
        }
    }

    /// Settles what was [detached](Self::detach), as [`settle`](Self::settle) does.
    fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> impl Future<Output = Result<(), NotSettled>> + Send {
        let _ = (receipt, actual);
        async { Err(NotSettled::Unreadable) }
    }

    /// Gives a key up to `tokens` of what it has used; see [`Limiter::grant`](crate::Limiter::grant). Permits are not given.
    fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) -> impl Future<Output = ()> + Send;

    /// Makes a key fresh. Older verdicts give nothing back to it; permits that are out stay out.
    fn reset(&self, handle: &LimitHandle, key: &[u8]) -> impl Future<Output = ()> + Send;

    /// What became of the keys of each of these limits, in their order; none if the store cannot count them. It may take
    /// long, but no longer for many limits than for one.
    fn census(&self, limits: &[LimitHandle]) -> Option<Vec<Census>>;
}

/// How many bytes at the front of a key say with what others it is kept; see [`Store::tag_by`].
pub type TagOf = Arc<dyn Fn(&[u8]) -> usize + Send + Sync>;

/// What becomes of an ask while the store that knows the counts cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnFailure {
    /// Each node admits its share of the limit: the rate and the burst divided by the number of nodes.
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

/// A limit that is registered with a store. A handle: cheap to clone.
#[derive(Clone)]
pub struct LimitHandle {
    pub(crate) first: Arc<Terms>,
}

impl LimitHandle {
    /// The name it was registered with.
    pub fn name(&self) -> &str {
        &self.line().name
    }

    /// Its number in its store, counted from 0 in the order of registration.
    pub fn number(&self) -> u64 {
        self.line().number
    }

    /// The limit in force; none if it limits how many are in flight.
    pub fn limit(&self) -> Option<Limit> {
        self.line().rule().limit()
    }

    /// How many may be in flight; none if it is a rate.
    pub fn in_flight(&self) -> Option<u64> {
        match self.line().rule() {
            Rule::InFlight(most) => Some(most),
            Rule::Rate(_) => None,
        }
    }

    fn line(&self) -> &Line {
        &self.first.line
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle").field("name", &self.name()).field("rule", &self.line().rule()).finish()
    }
}

/// What becomes of an ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// It decides, and is charged.
    #[default]
    Enforce,
    /// It is judged and, if it is admitted and so are the others, charged; but it turns nobody away.
    Shadow,
    /// It decides, and nothing is charged.
    Peek,
}

/// One limit that a request is asked about, and the key it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The limit.
    pub limit: &'a LimitHandle,
    /// Whose bucket.
    pub key: &'a [u8],
    /// How many units; 1 if not said.
    pub cost: u64,
    /// Units that this class of requests may not touch: it sees the limit that much smaller, and may not go into debt.
    pub reserve: u64,
    /// Whether it decides and is charged.
    pub mode: Mode,
    /// How long the caller would wait for the tokens; not at all if not said. Windows and logs cannot be waited for.
    pub max_wait: Option<Duration>,
}

impl<'a> Ask<'a> {
    /// One unit of `limit` for `key`, to be enforced.
    pub fn new(limit: &'a LimitHandle, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { limit, key: key.as_ref(), cost: 1, reserve: 0, mode: Mode::Enforce, max_wait: None }
    }

    /// How many units.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What this class of requests may not touch.
    #[must_use]
    pub fn reserve(mut self, reserve: u64) -> Self {
        self.reserve = reserve;
        self
    }

    /// Whether it decides and is charged.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How long the caller would wait.
    #[must_use]
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = Some(longest);
        self
    }
}

/// Who decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// This process, alone.
    Memory,
    /// Redis, exactly.
    Redis,
    /// This process, on tokens that Redis leased to it.
    Lease,
    /// Another tollgate, which this one asks.
    Remote,
    /// This process, on its share of the limit, because the store that knows the counts does not answer.
    LocalShare,
    /// Nobody: the store does not answer, and the operator chose to let everyone in.
    Open,
    /// Nobody: the store does not answer, and the operator chose to let nobody in.
    Closed,
    /// Nobody: limits are switched off.
    Off,
}

impl Source {
    /// Its name, as it is told to callers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Lease => "lease",
            Self::Remote => "remote",
            Self::LocalShare => "local_share",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What became of one ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AskOutcome {
    /// It fits.
    Allowed,
    /// It fits after a wait; see [`Decision::delay`].
    Delayed,
    /// It does not; later it will.
    Denied,
    /// It does not, and only watches.
    ShadowDenied,
    /// It does not, and waiting will not help.
    Never,
}

impl AskOutcome {
    /// Its name, as it is told to callers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Never => "never",
        }
    }
}

/// What one ask came to, with its limit's figures; see [`Verdict::statuses`].
#[derive(Clone, Copy, Debug)]
pub struct Status {
    decision: Decision,
    mode: Mode,
    /// What was charged, to be settled by: by which terms, to whom, how much.
    pub(crate) charged: Option<Receipt>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    pub(crate) terms: u32,
    pub(crate) hash: u64,
    pub(crate) account: AccountNumber,
    pub(crate) cost: u64,
    pub(crate) charged: Charged,
    pub(crate) permit: bool,
    /// Whether no other ask was charged with it, as one.
    pub(crate) alone: bool,
}

/// Stands for the terms of a charge that is not of the memory store.
pub(crate) const NOT_OURS: u32 = u32::MAX;

impl Status {
    /// For those who write a store: what an ask of that mode came to, with nothing to settle.
    pub fn new(decision: Decision, mode: Mode) -> Self {
        Self { decision, mode, charged: None }
    }

    /// For those who write a store: what it finds again what was charged by, and how much that was, without memory of its
    /// own. Another store must not settle it.
    #[inline]
    #[must_use]
    pub fn settled_by(mut self, mark: [u64; 2], cost: u64) -> Self {
        let charged = Charged { tat: mark[1], ahead: 0, refunded: 0, given: 0 };
        let (terms, hash, account) = (NOT_OURS, mark[0], AccountNumber::default());
        self.charged = Some(Receipt { terms, hash, account, cost, charged, permit: false, alone: false });
        self
    }

    /// For those who write a store: what was told to [`settled_by`](Self::settled_by).
    pub fn settles_by(&self) -> Option<([u64; 2], u64)> {
        let receipt = self.charged.filter(|receipt| receipt.terms == NOT_OURS)?;
        Some(([receipt.hash, receipt.charged.tat], receipt.cost))
    }

    /// The limit's figures. If the request was turned away nothing is charged, and these are the figures before it.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// What became of it.
    pub fn outcome(&self) -> AskOutcome {
        match (self.decision.outcome(), self.mode) {
            (Outcome::Allowed, _) if !self.decision.delay().is_zero() => AskOutcome::Delayed,
            (Outcome::Allowed, _) => AskOutcome::Allowed,
            (_, Mode::Shadow) => AskOutcome::ShadowDenied,
            (Outcome::Denied, _) => AskOutcome::Denied,
            (Outcome::Never, _) => AskOutcome::Never,
        }
    }

    fn decides(&self) -> bool {
        self.mode != Mode::Shadow
    }
}

/// The outcome of all asks, with the one that binds. It holds the permits that the asks took: dropping it gives them back.
#[must_use = "a verdict that nobody looks at limits nothing, and its permits are gone when it is dropped"]
pub struct Verdict {
    statuses: SmallVec<[Status; FEW]>,
    source: Source,
    /// Where permits go back to.
    permits: Option<Arc<dyn Permits>>,
    /// What a store that is not of this crate settles by.
    held: Option<Box<dyn Any + Send + Sync>>,
}

/// Where permits go back to.
pub(crate) trait Permits: Send + Sync {
    fn land(&self, hash: u64, cost: u64);
}

impl Verdict {
    /// For those who write a store: of no asks yet.
    #[inline]
    pub fn new(source: Source) -> Self {
        Self { statuses: SmallVec::new(), source, permits: None, held: None }
    }

    /// For those who write a store: says that somebody else decided.
    pub fn decided_by(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// For those who write a store: keeps what it will [`settle`](Store::settle) by. It is dropped with the verdict, which
    /// is when permits go back.
    pub fn hold(&mut self, held: Box<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    /// For those who write a store: what was kept.
    pub fn let_go(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        self.held.take()
    }

    /// Makes it what `source` says of no asks, as by [`new`](Self::new). Permits and what it [holds](Self::hold) go, as if it were
    /// dropped; memory of its own it gives back.
    pub fn clear(&mut self, source: Source) {
        self.land();
        self.statuses.clear();
        if self.statuses.spilled() {
            self.statuses = SmallVec::new();
        }
        (self.source, self.held) = (source, None);
    }

    /// For those who write a store: what the next ask came to.
    #[inline]
    pub fn push(&mut self, status: Status) {
        self.statuses.push(status);
    }

    /// Whether the request passed. If not, nothing was charged.
    pub fn is_allowed(&self) -> bool {
        !self.turned_away().any(|_| true)
    }

    /// Whether it was turned away, for now or for good.
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Whether waiting will not help.
    pub fn is_never(&self) -> bool {
        self.turned_away().any(|(_, status)| status.decision.is_never())
    }

    /// Which ask turned it away, by its index: one that never admits it, else the one that takes longest.
    pub fn binding(&self) -> Option<usize> {
        let weight = |status: &Status| match status.decision.retry_after() {
            _ if status.decision.is_never() => (true, 0),
            after => (false, after.map_or(0, nanos)),
        };
        // Of equals the first.
        let worst = self.turned_away().map(|(at, status)| (weight(status), core::cmp::Reverse(at))).max()?;
        Some(worst.1.0)
    }

    /// How long until the same request passes if nobody else comes. None if it has passed or never will, or waits only
    /// for permits, of which nobody knows when they come back.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.is_never() {
            true => None,
            false => self.turned_away().filter_map(|(_, status)| status.decision.retry_after()).max(),
        }
    }

    /// How long the caller must wait before it acts: the longest of the waits, and of what its queues tell it.
    pub fn delay(&self) -> Duration {
        match self.is_allowed() {
            false => Duration::ZERO,
            true => {
                let waits = self.statuses.iter().filter(|status| status.decides());
                waits.map(|status| status.decision.delay()).max().unwrap_or_default()
            }
        }
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        self.source
    }

    /// What each ask came to, in their order. Asks for the same limit and key are judged as one.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = &Status> {
        self.statuses.iter()
    }

    fn turned_away(&self) -> impl Iterator<Item = (usize, &Status)> {
        let statuses = self.statuses.iter().enumerate();
        statuses.filter(|(_, status)| status.decides() && status.decision.is_denied())
    }

    fn land(&mut self) {
        let Some(home) = self.permits.take() else { return };
        for receipt in self.statuses.iter().filter_map(|status| status.charged).filter(|receipt| receipt.permit) {
            home.land(receipt.hash, receipt.cost);
        }
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.land();
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("allowed", &self.is_allowed())
            .field("binding", &self.binding())
            .field("source", &self.source)
            .field("statuses", &self.statuses)
            .finish()
    }
}

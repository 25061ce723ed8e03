//! What is answered: who decided, what each ask came to, and what all of them did.

use super::Mode;
use crate::algorithm::token_bucket::ChargeRecord;
use crate::clock::nanos;
use crate::decision::{Decision, Outcome};
use crate::keyed::table::{ChargeOrigin, FEW};
use core::any::Any;
use core::fmt;
use core::time::Duration;
use smallvec::SmallVec;
use std::boxed::Box;
use std::sync::Arc;

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
    /// This process, on its share of the limit, because the store that knows the counts does not
    /// answer.
    LocalShare,
    /// Nobody: the store does not answer, and the operator chose to let everyone in.
    Open,
    /// Nobody: the store does not answer, and the operator chose to let nobody in.
    Closed,
    /// Nobody: limits are switched off.
    Off,
}

impl Source {
    /// Every source.
    pub const ALL: &'static [Self] = &[
        Self::Memory,
        Self::Redis,
        Self::Lease,
        Self::LocalShare,
        Self::Open,
        Self::Closed,
        Self::Off,
    ];

    /// Its name, as it is told to callers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Lease => "lease",
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
    /// Every outcome.
    pub const ALL: &'static [Self] = &[
        Self::Allowed,
        Self::Delayed,
        Self::Denied,
        Self::ShadowDenied,
        Self::Never,
    ];

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
pub struct AskResult {
    decision: Decision,
    mode: Mode,
    /// What was charged, to be settled by: by which terms, to whom, how much.
    pub(crate) charged: Option<Receipt>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    pub(crate) hash: u64,
    /// [`ELSEWHERE`](Booking::ELSEWHERE) if the charge is not of the memory store.
    pub(crate) booking: ChargeOrigin,
    pub(crate) cost: u64,
    pub(crate) charged: ChargeRecord,
    pub(crate) permit: bool,
}

impl AskResult {
    /// For those who write a store: what an ask of that mode came to, with nothing to settle.
    pub fn new(decision: Decision, mode: Mode) -> Self {
        Self {
            decision,
            mode,
            charged: None,
        }
    }

    /// For those who write a store: what it finds again what was charged by, and how much that was,
    /// without memory of its own. Another store must not settle it.
    #[inline]
    #[must_use]
    pub fn settled_by(mut self, mark: [u64; 2], cost: u64) -> Self {
        let charged = ChargeRecord {
            tat: mark[1],
            ahead: 0,
            refunded: 0,
            given: 0,
        };
        let (hash, booking) = (mark[0], ChargeOrigin::ELSEWHERE);
        self.charged = Some(Receipt {
            hash,
            booking,
            cost,
            charged,
            permit: false,
        });
        self
    }

    /// For those who write a store: what was told to [`settled_by`](Self::settled_by).
    pub fn settles_by(&self) -> Option<([u64; 2], u64)> {
        let receipt = self
            .charged
            .filter(|receipt| receipt.booking == ChargeOrigin::ELSEWHERE)?;
        Some(([receipt.hash, receipt.charged.tat], receipt.cost))
    }

    /// The limit's figures. If the request was turned away nothing is charged, and these are the
    /// figures before it.
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

/// The outcome of all asks, with the one that binds. It holds the permits that the asks took:
/// dropping it gives them back.
#[must_use = "a verdict that nobody looks at limits nothing, and its permits are gone when it is dropped"]
pub struct Verdict {
    statuses: SmallVec<[AskResult; FEW]>,
    source: Source,
    /// The table of the memory store that decided; none if another did.
    pub(super) table: Option<u64>,
    /// Where permits go back to.
    pub(super) permits: Option<Arc<dyn Permits>>,
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
        Self {
            statuses: SmallVec::new(),
            source,
            table: None,
            permits: None,
            held: None,
        }
    }

    /// For those who write a store: says that somebody else decided.
    pub fn decided_by(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// For those who write a store: keeps what it will [`settle`](super::Store::settle) by. It is
    /// dropped with the verdict, which is when permits go back.
    pub fn hold(&mut self, held: Box<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    /// For those who write a store: what was kept.
    pub fn let_go(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        self.held.take()
    }

    /// Makes it what `source` says of no asks, as by [`new`](Self::new). Permits and what it
    /// [holds](Self::hold) go, as if it were dropped; memory of its own it gives back.
    pub fn clear(&mut self, source: Source) {
        self.land();
        self.statuses.clear();
        if self.statuses.spilled() {
            self.statuses = SmallVec::new();
        }
        (self.source, self.table, self.held) = (source, None, None);
    }

    /// For those who write a store: what the next ask came to.
    #[inline]
    pub fn push(&mut self, status: AskResult) {
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
        self.turned_away()
            .any(|(_, status)| status.decision.is_never())
    }

    /// Which ask turned it away, by its index: one that never admits it, else the one that takes
    /// longest.
    pub fn binding(&self) -> Option<usize> {
        let weight = |status: &AskResult| match status.decision.retry_after() {
            _ if status.decision.is_never() => (true, 0),
            after => (false, after.map_or(0, nanos)),
        };
        // Of equals the first.
        let worst = self
            .turned_away()
            .map(|(at, status)| (weight(status), core::cmp::Reverse(at)))
            .max()?;
        Some(worst.1.0)
    }

    /// How long until the same request passes if nobody else comes. None if it has passed or never
    /// will, or waits only for permits, of which nobody knows when they come back.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.is_never() {
            true => None,
            false => self
                .turned_away()
                .filter_map(|(_, status)| status.decision.retry_after())
                .max(),
        }
    }

    /// How long the caller must wait before it acts: the longest of the waits, and of what its
    /// queues tell it.
    pub fn delay(&self) -> Duration {
        match self.is_allowed() {
            false => Duration::ZERO,
            true => {
                let waits = self.statuses.iter().filter(|status| status.decides());
                waits
                    .map(|status| status.decision.delay())
                    .max()
                    .unwrap_or_default()
            }
        }
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        self.source
    }

    /// What each ask came to, in their order. Asks for the same limit and key are judged as one.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = &AskResult> {
        self.statuses.iter()
    }

    fn turned_away(&self) -> impl Iterator<Item = (usize, &AskResult)> {
        let statuses = self.statuses.iter().enumerate();
        statuses.filter(|(_, status)| status.decides() && status.decision.is_denied())
    }

    fn land(&mut self) {
        let Some(home) = self.permits.take() else {
            return;
        };
        for receipt in self
            .statuses
            .iter()
            .filter_map(|status| status.charged)
            .filter(|receipt| receipt.permit)
        {
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

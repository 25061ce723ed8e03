//! Verdicts: what a store decided, ask by ask.

use super::Mode;
use crate::algorithm::token_bucket::ChargeRecord;
use crate::clock::nanos;
use crate::decision::{Decision, Outcome};
use crate::keyed::table::{ChargeOrigin, INLINE_ENTRIES};
use core::any::Any;
use core::fmt;
use core::time::Duration;
use smallvec::SmallVec;
use std::boxed::Box;
use std::sync::Arc;

/// Who decided a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// This process, alone.
    Memory,
    /// Redis, exactly.
    Redis,
    /// This process, on tokens that Redis leased to it.
    Lease,
    /// This process, on its share of the limit, because the store that holds the counts is
    /// unreachable.
    LocalShare,
    /// No store: it is unreachable, and the operator chose to allow every request.
    Open,
    /// No store: it is unreachable, and the operator chose to deny every request.
    Closed,
    /// No store: limits are switched off.
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

    /// Returns its name, as used in answers to callers.
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

/// The outcome of one ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AskOutcome {
    /// It is allowed.
    Allowed,
    /// It is allowed after a wait; see [`Decision::delay`].
    Delayed,
    /// It is denied for now; later it is allowed.
    Denied,
    /// It would be denied, but is in [`Mode::Shadow`].
    ShadowDenied,
    /// It is denied, and waiting does not help.
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

    /// Returns its name, as used in answers to callers.
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

/// The result of one ask, with its limit's numbers; see [`Verdict::results`].
#[derive(Clone, Copy, Debug)]
pub struct AskResult {
    pub(super) decision: Decision,
    pub(super) mode: Mode,
    /// What was charged, for settling: by which limit version, to which key, how much.
    pub(crate) charged: Option<Receipt>,
}

/// What an ask charged, for settling it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    pub(crate) hash: u64,
    /// [`EXTERNAL`](ChargeOrigin::EXTERNAL) if the charge is not of the memory store.
    pub(crate) charge_origin: ChargeOrigin,
    pub(crate) cost: u64,
    pub(crate) charged: ChargeRecord,
    pub(crate) permit: bool,
}

impl AskResult {
    /// Returns the decision of this ask's limit. If the request was denied nothing is charged, and
    /// these are the numbers before it.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the outcome.
    pub fn outcome(&self) -> AskOutcome {
        match (self.decision.outcome(), self.mode) {
            (Outcome::Allowed, _) if !self.decision.delay().is_zero() => AskOutcome::Delayed,
            (Outcome::Allowed, _) => AskOutcome::Allowed,
            (_, Mode::Shadow) => AskOutcome::ShadowDenied,
            (Outcome::Denied, _) => AskOutcome::Denied,
            (Outcome::Never, _) => AskOutcome::Never,
        }
    }

    fn can_deny(&self) -> bool {
        self.mode != Mode::Shadow
    }
}

/// The result of all asks, decided together. It holds the permits that the asks took: dropping it
/// releases them.
#[must_use = "an unused verdict limits nothing, and dropping it releases its permits"]
pub struct Verdict {
    pub(super) results: SmallVec<[AskResult; INLINE_ENTRIES]>,
    pub(super) source: Source,
    /// The table of the memory store that decided; `None` if another store did.
    pub(super) table: Option<u64>,
    /// Where its permits are released to.
    pub(super) permits: Option<Arc<dyn Permits>>,
    /// What a store outside this crate needs to settle.
    pub(super) extension: Option<Box<dyn Any + Send + Sync>>,
}

/// The store that permits are released to.
pub(crate) trait Permits: Send + Sync {
    fn release(&self, hash: u64, cost: u64);
}

impl Verdict {
    /// Whether the request was allowed. If not, nothing was charged.
    pub fn is_allowed(&self) -> bool {
        !self.denied().any(|_| true)
    }

    /// Whether the request was denied, for now or for good.
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Whether the request was denied and waiting does not help.
    pub fn is_never(&self) -> bool {
        self.denied().any(|(_, result)| result.decision.is_never())
    }

    /// Returns the index of the ask that denied it: one that can never be allowed, else the one
    /// that takes longest.
    pub fn binding(&self) -> Option<usize> {
        let weight = |result: &AskResult| match result.decision.retry_after() {
            _ if result.decision.is_never() => (true, 0),
            after => (false, after.map_or(0, nanos)),
        };
        // Of equals the first.
        let worst = self
            .denied()
            .map(|(at, result)| (weight(result), core::cmp::Reverse(at)))
            .max()?;
        Some(worst.1.0)
    }

    /// Returns how long until the same request is allowed if no other comes in between. `None` if
    /// it was allowed or never will be, or waits only for permits, which may be released at any
    /// time.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_never() {
            return None;
        }
        self.denied()
            .filter_map(|(_, result)| result.decision.retry_after())
            .max()
    }

    /// Returns how long the caller must wait before it acts: the longest of the waits, and of the
    /// delays of its pacing limits.
    pub fn delay(&self) -> Duration {
        if self.is_denied() {
            return Duration::ZERO;
        }
        let waits = self.results.iter().filter(|result| result.can_deny());
        waits
            .map(|result| result.decision.delay())
            .max()
            .unwrap_or_default()
    }

    /// Returns who decided.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the result of each ask, in their order. Asks for the same limit and key are judged
    /// as one.
    pub fn results(&self) -> impl ExactSizeIterator<Item = &AskResult> {
        self.results.iter()
    }

    fn denied(&self) -> impl Iterator<Item = (usize, &AskResult)> {
        let results = self.results.iter().enumerate();
        results.filter(|(_, result)| result.can_deny() && result.decision.is_denied())
    }

    pub(super) fn release_permits(&mut self) {
        let Some(permits) = self.permits.take() else {
            return;
        };
        for receipt in self
            .results
            .iter()
            .filter_map(|result| result.charged)
            .filter(|receipt| receipt.permit)
        {
            permits.release(receipt.hash, receipt.cost);
        }
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.release_permits();
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("allowed", &self.is_allowed())
            .field("binding", &self.binding())
            .field("source", &self.source)
            .field("results", &self.results)
            .finish()
    }
}

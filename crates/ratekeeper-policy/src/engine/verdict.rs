//! What an engine says of a request.

use super::Completion;
use super::asking::{Asked, FEW, Role};
use super::parts::{Parts, Place};
use super::reason::{Ban, Reason, reason_of};
use super::rules::{Rules, Ruling};
use crate::policy::{Cost, Count, DenialStatus};
use crate::policy_limit::PolicyLimit;
use arc_swap::Guard;
use ratekeeper::{
    Decision, Mode, Store, Timestamp, store::AskOutcome, store::AskResult, store::Source,
};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What became of a request, with the figures of every limit it met.
///
/// It holds the permits that the request took: keep it until the request has ended, then drop it or
/// [settle](super::Engine::settle) it.
#[must_use = "a verdict that nobody looks at limits nothing, and its permits are gone when it is dropped"]
pub struct PolicyVerdict {
    /// Apart: it is large to move.
    pub(super) parts: Place,
}

/// What is shed comes back slowly: whoever comes sooner hardly finds more room.
const SHED_FOR: Duration = Duration::from_secs(5);

/// One limit of one policy, as a request met it.
#[derive(Clone, Copy)]
pub struct LimitStatus<'a> {
    ruling: &'a Ruling,
    asked: &'a Asked,
    status: &'a AskResult,
}

impl<'a> LimitStatus<'a> {
    /// The policy.
    pub fn policy(&self) -> &'a str {
        &self.ruling.policy.name
    }

    /// By what it counts, in words: `ip`, `user+endpoint`, or `global` for one bucket.
    pub fn key(&self) -> &'a str {
        &self.ruling.key_name
    }

    /// The limit.
    pub fn limit(&self) -> &'a PolicyLimit {
        &self.asked.slot(self.ruling).limit
    }

    /// Its figures. If the request was turned away, those before it.
    pub fn decision(&self) -> Decision {
        self.status.decision()
    }

    /// What became of the request here.
    pub fn outcome(&self) -> AskOutcome {
        outcome(self.asked, self.status)
    }

    /// Whether it only watches.
    pub fn is_shadow(&self) -> bool {
        self.asked.mode == Mode::Shadow
    }
}

impl fmt::Debug for LimitStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitStatus")
            .field("policy", &self.policy())
            .field("key", &self.key())
            .field("limit", &self.limit())
            .field("outcome", &self.outcome())
            .finish()
    }
}

/// What became of an ask. One that was only peeked at has the mode it was meant with.
pub(super) fn outcome(asked: &Asked, status: &AskResult) -> AskOutcome {
    match status.outcome() {
        AskOutcome::Denied | AskOutcome::Never if asked.mode == Mode::Shadow => {
            AskOutcome::ShadowDenied
        }
        outcome => outcome,
    }
}

impl PolicyVerdict {
    /// Of nothing yet.
    pub(super) fn new(rules: Guard<Arc<Rules>>, now: Timestamp) -> Self {
        let mut parts = Place::take();
        parts.rules = Some(rules);
        parts.now = now;
        Self { parts }
    }

    pub(super) fn rules(&self) -> &Rules {
        self.parts.rules()
    }

    /// Whether the store is to be asked.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.parts.reason, Reason::Limits) && !self.parts.asking.asked.is_empty()
    }

    /// Asks the store, if it need not ask elsewhere; whether it did.
    pub(super) fn ask_store_here(&mut self, store: &impl Store, peek: bool) -> bool {
        let Parts {
            rules,
            asking,
            inner,
            now,
            ..
        } = &mut *self.parts;
        let mut asks = SmallVec::new();
        asking.ask(
            rules.as_deref().expect("a verdict has rules"),
            peek,
            &mut asks,
        );
        let answered = store.decide_into(&asks, *now, inner);
        drop(asks);
        if answered {
            self.go_by_answer();
        }
        answered
    }

    pub(super) fn answered(&mut self, answer: ratekeeper::Verdict) {
        self.parts.inner = answer;
        self.go_by_answer();
    }

    fn go_by_answer(&mut self) {
        let parts = &mut *self.parts;
        parts.is_answered = true;
        parts.reason = reason_of(&parts.asking, &parts.inner);
        let fits = self.turned_away().next().is_none();
        self.parts.fits = fits;
        // Places are for those who pass.
        if self.is_denied() {
            self.parts.free(None);
        }
    }

    /// Whether it is a denial by limits that a policy may count against whom it was for.
    pub(super) fn is_to_be_punished(&self) -> bool {
        let has_penalty = |asked: &Asked| self.ruling(asked).penalty.is_some();
        matches!(self.parts.reason, Reason::Limits)
            && self.is_denied()
            && self.parts.asking.asked.iter().any(has_penalty)
    }
}

impl PolicyVerdict {
    /// Whether the request passes. If not, nothing was charged.
    pub fn is_allowed(&self) -> bool {
        match &self.parts.reason {
            Reason::NoPolicy | Reason::AllowList | Reason::Off => true,
            Reason::Limits => self.parts.fits,
            _ => false,
        }
    }

    /// Whether it is turned away, for now or for good.
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Whether waiting will not help.
    pub fn is_never(&self) -> bool {
        match &self.parts.reason {
            Reason::DenyList { until, .. } => until.is_none(),
            // Its deadline has passed for good; its attribute does not appear by waiting.
            Reason::TooLate | Reason::MissingAttribute { .. } => true,
            // After a ban its limits are met again.
            Reason::Limits | Reason::Ban(Ban::Penalty) => self.limits_admit_after().is_none(),
            _ => false,
        }
    }

    /// When it was decided, on the clock of the store.
    pub fn decided_at(&self) -> Timestamp {
        self.parts.now
    }

    /// A number that is the same for the same keys, in this process and the next.
    pub fn key_hash(&self) -> u64 {
        super::key::lasting_hash("", &self.parts.asking.keys)
    }

    /// What it goes back to.
    pub fn reason(&self) -> &Reason {
        &self.parts.reason
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        match (&self.parts.reason, self.parts.answer()) {
            (Reason::Off, _) => Source::Off,
            (_, Some(inner)) => inner.source(),
            (_, None) => Source::Memory,
        }
    }

    /// The policy that turned the request away: one that never admits it, else the one that takes
    /// longest.
    pub fn policy(&self) -> Option<&str> {
        self.binding().map(|ruling| &*ruling.policy.name)
    }

    /// How long until the same request passes if nobody else comes. None if it has passed or never
    /// will, or waits only for permits, of which nobody knows when they come back.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.parts.reason {
            Reason::DenyList { until, .. } => {
                until.map(|until| until.saturating_since(self.parts.now))
            }
            Reason::Ban(Ban::Operator(ban)) => Some(ban.until().saturating_since(self.parts.now)),
            Reason::Shed(_) => Some(SHED_FOR),
            Reason::Limits | Reason::Ban(Ban::Penalty) if self.is_never() => None,
            Reason::Limits | Reason::Ban(Ban::Penalty) => self
                .turned_away()
                .filter_map(|(_, status)| status.decision().retry_after())
                .max(),
            _ => None,
        }
    }

    /// How long the caller must wait before it acts; nothing if it is turned away.
    pub fn delay(&self) -> Duration {
        // Whoever the limits do not hold waits for none of them, even if they were looked at.
        if self.is_denied() || !matches!(self.parts.reason, Reason::Limits) {
            return Duration::ZERO;
        }
        let enforced = self
            .statuses()
            .filter(|(asked, _)| asked.mode != Mode::Shadow);
        enforced
            .map(|(_, status)| status.decision().delay())
            .max()
            .unwrap_or_default()
    }

    /// The HTTP status for it: 200 if it passes, else 429, or 503 where the policy says so, the
    /// store is closed or there is too much, or 504 if it comes after its deadline.
    pub fn status(&self) -> u16 {
        match &self.parts.reason {
            _ if self.is_allowed() => 200,
            Reason::Closed
            | Reason::Shed(_)
            | Reason::AtCapacity
            | Reason::QueueFull
            | Reason::WaitedTooLong => DenialStatus::ServiceUnavailable.code(),
            Reason::TooLate => 504,
            Reason::Limits => self
                .binding()
                .map(|ruling| ruling.policy.status)
                .unwrap_or_default()
                .code(),
            _ => DenialStatus::TooManyRequests.code(),
        }
    }

    /// Every limit that was looked at, in the order of the policies.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.statuses()
            .filter(|(asked, _)| asked.role != Role::Ban)
            .map(|(asked, status)| LimitStatus {
                ruling: self.ruling(asked),
                asked,
                status,
            })
    }

    /// The limit to tell a caller about where there is room for one: who turned it away, else who
    /// has the least left.
    pub fn tightest(&self) -> Option<LimitStatus<'_>> {
        let share = |limit: &LimitStatus<'_>| {
            let decision = limit.decision();
            decision.remaining() as f64 / decision.capacity().max(1) as f64
        };
        let wait = |limit: &LimitStatus<'_>| match limit.decision() {
            decision if decision.is_never() => Duration::MAX,
            decision => decision.retry_after().unwrap_or_default(),
        };
        let enforced = || self.limits().filter(|limit| !limit.is_shadow());
        // Of equals the first, as for the policy that binds.
        let longer = |worst, limit| {
            if wait(&limit) > wait(&worst) {
                limit
            } else {
                worst
            }
        };
        if !self.parts.fits
            && let Some(denied) = enforced()
                .filter(|limit| limit.decision().is_denied())
                .reduce(longer)
        {
            return Some(denied);
        }
        let (_, least) =
            enforced()
                .map(|limit| (share(&limit), limit))
                .reduce(|least, other| {
                    // Of equals the first.
                    if other.0.total_cmp(&least.0).is_lt() {
                        other
                    } else {
                        least
                    }
                })?;
        Some(least)
    }

    pub(super) fn ruling(&self, asked: &Asked) -> &Ruling {
        &self.rules().policies[asked.policy as usize]
    }

    /// Whether it is for a place among those in flight.
    pub(super) fn is_a_permit(&self, asked: &Asked) -> bool {
        asked.role != Role::Ban && asked.slot(self.ruling(asked)).limit.rate().is_none()
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = (&Asked, &AskResult)> {
        // Of one who was not asked there are none.
        let statuses = self.parts.inner.results();
        self.parts.asking.asked.iter().zip(statuses)
    }

    /// The asks that turned the request away. Where nobody decided, nobody did.
    fn turned_away(&self) -> impl Iterator<Item = (&Asked, &AskResult)> {
        let statuses = self.statuses().filter(|_| self.source() != Source::Open);
        statuses
            .filter(|(asked, status)| asked.mode != Mode::Shadow && status.decision().is_denied())
    }

    /// How long until the limits that were looked at admit it, whatever else is against it; none if
    /// they never do.
    pub(super) fn limits_admit_after(&self) -> Option<Duration> {
        let after = |(_, status): (&Asked, &AskResult)| match status.decision() {
            decision if decision.is_never() => None,
            decision => Some(decision.retry_after().unwrap_or_default()),
        };
        self.turned_away()
            .map(after)
            .try_fold(Duration::ZERO, |longest, after| Some(longest.max(after?)))
    }

    /// Never first, else the longest wait; of equals the first.
    pub(super) fn binding(&self) -> Option<&Ruling> {
        match &self.parts.reason {
            Reason::Ban(Ban::Operator(ban)) => self
                .rules()
                .policies
                .iter()
                .find(|ruling| *ruling.policy.name == *ban.policy()),
            Reason::Limits | Reason::Ban(Ban::Penalty) => {
                let weight = |status: &AskResult| match status.decision() {
                    decision if decision.is_never() => (true, Duration::ZERO),
                    decision => (false, decision.retry_after().unwrap_or_default()),
                };
                let mut worst: Option<(&Asked, (bool, Duration))> = None;
                for (asked, status) in self.turned_away() {
                    if worst.is_none_or(|(_, worst)| weight(status) > worst) {
                        worst = Some((asked, weight(status)));
                    }
                }
                worst.map(|(asked, _)| self.ruling(asked))
            }
            Reason::MissingAttribute { policy, .. } => self
                .rules()
                .policies
                .iter()
                .find(|ruling| *ruling.policy.name == **policy),
            Reason::AtCapacity | Reason::QueueFull | Reason::WaitedTooLong => {
                self.rules().policies.get(self.parts.full as usize)
            }
            _ => None,
        }
    }

    /// What it is accounted for by: the policy that denied it, or else the one with the least left.
    pub(super) fn accounted(&self) -> Option<(&Ruling, Option<&Asked>)> {
        if self.is_denied()
            && let Some(ruling) = self.binding()
        {
            let of_policy = |asked: &&Asked| std::ptr::eq(self.ruling(asked), ruling);
            let limit = |asked: &&Asked| asked.role != Role::Ban;
            let asked = || self.parts.asking.asked.iter().filter(of_policy);
            return Some((ruling, asked().find(limit).or_else(|| asked().next())));
        }
        let LimitStatus { ruling, asked, .. } = self.tightest()?;
        Some((ruling, Some(asked)))
    }

    /// Whether it holds places that are free only when the request has ended.
    pub fn holds_places(&self) -> bool {
        !self.parts.permits.is_empty() || self.limits().any(|limit| limit.limit().rate().is_none())
    }

    /// Whether nothing is left to do for a request that ends so: it holds no places, and was
    /// charged what it costs. Then it need not be [settled](super::Engine::settle).
    pub fn is_settled_by(&self, ending: &Completion) -> bool {
        !self.holds_places() && self.is_settled(ending)
    }

    /// Whether a request that ended so was charged what it costs. A policy that counts only some
    /// requests is told of the end of each.
    pub(super) fn is_settled(&self, ending: &Completion) -> bool {
        let is_settled = |asked: &Asked| {
            self.ruling(asked).policy.count == Count::All
                && self.actual(asked, ending) == asked.cost
        };
        self.parts.asking.asked.iter().all(is_settled)
    }

    /// What the asks really cost, now that it is known how the request ended.
    pub(super) fn settled(&self, ending: &Completion) -> SmallVec<[u64; FEW]> {
        self.parts
            .asking
            .asked
            .iter()
            .map(|asked| self.actual(asked, ending))
            .collect()
    }

    fn actual(&self, asked: &Asked, ending: &Completion) -> u64 {
        let ruling = self.ruling(asked);
        let counts = match ruling.policy.count {
            Count::All => true,
            Count::Failures => ending.failed_in(ruling).unwrap_or(true),
            Count::Successes => ending.failed_in(ruling).is_none_or(|failed| !failed),
        };
        match (counts, ending.true_cost()) {
            (false, _) => 0,
            (true, Some(cost)) => match ruling.policy.cost {
                Cost::Attribute { .. } => cost,
                Cost::Units(units) if self.parts.asking.scales => cost.saturating_mul(units),
                Cost::Units(_) => asked.cost,
            },
            (true, None) => asked.cost,
        }
    }
}

impl fmt::Debug for PolicyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("allowed", &self.is_allowed())
            .field("policy", &self.policy())
            .field("reason", &self.parts.reason.name())
            .field("source", &self.source())
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish()
    }
}

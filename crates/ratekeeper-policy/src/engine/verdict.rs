//! The verdict of an engine on a request.

use super::Completion;
use super::query::{INLINE_ITEMS, QueryItem, Role};
use super::reason::{Ban, Reason, reason_of};
use super::rules::{Rule, Rules};
use super::verdict_pool::{PooledState, VerdictState};
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

/// The verdict on a request, with the decision of every limit that applied.
///
/// It holds the permits of the request: keep it until the request has ended, then drop it or
/// [settle](super::Engine::settle) it.
#[must_use = "an unused verdict limits nothing, and its permits are released when it is dropped"]
pub struct PolicyVerdict {
    /// Pooled, since the state is large to move.
    pub(super) state: PooledState,
}

/// The `Retry-After` of shed requests: load shedding ends slowly, and an earlier retry is likely to
/// be shed too.
const SHED_FOR: Duration = Duration::from_secs(5);

/// The decision of one limit of one policy on a request.
#[derive(Clone, Copy)]
pub struct LimitStatus<'a> {
    rule: &'a Rule,
    item: &'a QueryItem,
    status: &'a AskResult,
}

impl<'a> LimitStatus<'a> {
    /// The name of the policy.
    pub fn policy(&self) -> &'a str {
        &self.rule.policy.name
    }

    /// The key of the policy in words: `ip`, `user+endpoint`, or `global` for one bucket.
    pub fn key(&self) -> &'a str {
        &self.rule.key_name
    }

    /// The limit.
    pub fn limit(&self) -> &'a PolicyLimit {
        &self.item.slot(self.rule).limit
    }

    /// The decision. If the request was denied, the values are those before it.
    pub fn decision(&self) -> Decision {
        self.status.decision()
    }

    /// The outcome at this limit.
    pub fn outcome(&self) -> AskOutcome {
        outcome(self.item, self.status)
    }

    /// Whether the policy is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        self.item.mode == Mode::Shadow
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

/// The outcome of an item. A peek has the mode that the decision would have.
pub(super) fn outcome(item: &QueryItem, status: &AskResult) -> AskOutcome {
    match status.outcome() {
        AskOutcome::Denied | AskOutcome::Never if item.mode == Mode::Shadow => {
            AskOutcome::ShadowDenied
        }
        outcome => outcome,
    }
}

impl PolicyVerdict {
    /// An undecided verdict.
    pub(super) fn new(rules: Guard<Arc<Rules>>, now: Timestamp) -> Self {
        let mut state = PooledState::take();
        state.rules = Some(rules);
        state.now = now;
        Self { state }
    }

    pub(super) fn rules(&self) -> &Rules {
        self.state.rules()
    }

    /// Whether the store has to be asked.
    pub(super) fn needs_store(&self) -> bool {
        matches!(self.state.reason, Reason::Limits) && !self.state.query.items.is_empty()
    }

    /// Asks the store, if it can answer without asking a server; returns whether it did.
    pub(super) fn try_query_store(&mut self, store: &impl Store, peek: bool) -> bool {
        let VerdictState {
            rules,
            query,
            inner,
            now,
            ..
        } = &mut *self.state;
        let mut asks = SmallVec::new();
        query.ask(
            rules.as_deref().expect("a verdict has rules"),
            peek,
            &mut asks,
        );
        let set_store_verdict = store.try_decide(&asks, *now, inner);
        drop(asks);
        if set_store_verdict {
            self.apply_store_verdict();
        }
        set_store_verdict
    }

    pub(super) fn set_store_verdict(&mut self, answer: ratekeeper::Verdict) {
        self.state.inner = answer;
        self.apply_store_verdict();
    }

    fn apply_store_verdict(&mut self) {
        let state = &mut *self.state;
        state.has_store_verdict = true;
        state.reason = reason_of(&state.query, &state.inner);
        let fits = self.denials().next().is_none();
        self.state.is_within_limits = fits;
        // A denied request holds no permits.
        if self.is_denied() {
            self.state.release_permits(None);
        }
    }

    /// Whether it is a denial by a policy with a penalty.
    pub(super) fn needs_penalty(&self) -> bool {
        let has_penalty = |item: &QueryItem| self.rule(item).penalty.is_some();
        matches!(self.state.reason, Reason::Limits)
            && self.is_denied()
            && self.state.query.items.iter().any(has_penalty)
    }
}

impl PolicyVerdict {
    /// Whether the request is allowed. If not, nothing was charged.
    pub fn is_allowed(&self) -> bool {
        match &self.state.reason {
            Reason::NoPolicy | Reason::AllowList | Reason::Off => true,
            Reason::Limits => self.state.is_within_limits,
            _ => false,
        }
    }

    /// Whether the request is denied, for now or for good.
    pub fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Whether waiting will not help.
    pub fn is_never(&self) -> bool {
        match &self.state.reason {
            Reason::DenyList { until, .. } => until.is_none(),
            // A deadline stays passed; a missing attribute does not appear by waiting.
            Reason::TooLate | Reason::MissingAttribute { .. } => true,
            // After a ban the limits still hold.
            Reason::Limits | Reason::Ban(Ban::Penalty) => self.limits_retry_after().is_none(),
            _ => false,
        }
    }

    /// The time of the decision, by the clock of the store.
    pub fn decided_at(&self) -> Timestamp {
        self.state.now
    }

    /// A hash of the keys: the same for the same keys, in this process and the next.
    pub fn key_hash(&self) -> u64 {
        super::key::stable_hash("", &self.state.query.keys)
    }

    /// The reason of the verdict.
    pub fn reason(&self) -> &Reason {
        &self.state.reason
    }

    /// The source of the decision: the store, a fallback, or none.
    pub fn source(&self) -> Source {
        match (&self.state.reason, self.state.store_verdict()) {
            (Reason::Off, _) => Source::Off,
            (_, Some(inner)) => inner.source(),
            (_, None) => Source::Memory,
        }
    }

    /// The policy that denied the request: one that never allows it, else the one with the longest
    /// wait.
    pub fn policy(&self) -> Option<&str> {
        self.binding().map(|rule| &*rule.policy.name)
    }

    /// Time until the same request would be allowed if no other comes. `None` if it is allowed or
    /// never will be, or waits only for permits, whose release is not known ahead.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.state.reason {
            Reason::DenyList { until, .. } => {
                until.map(|until| until.saturating_since(self.state.now))
            }
            Reason::Ban(Ban::Operator(ban)) => Some(ban.until().saturating_since(self.state.now)),
            Reason::Shed(_) => Some(SHED_FOR),
            Reason::Limits | Reason::Ban(Ban::Penalty) if self.is_never() => None,
            Reason::Limits | Reason::Ban(Ban::Penalty) => self
                .denials()
                .filter_map(|(_, status)| status.decision().retry_after())
                .max(),
            _ => None,
        }
    }

    /// Time that the caller must wait before it acts; zero if the request is denied.
    pub fn delay(&self) -> Duration {
        // Where the limits do not decide, there is no delay, even if they were evaluated.
        if self.is_denied() || !matches!(self.state.reason, Reason::Limits) {
            return Duration::ZERO;
        }
        let enforced = self
            .statuses()
            .filter(|(item, _)| item.mode != Mode::Shadow);
        enforced
            .map(|(_, status)| status.decision().delay())
            .max()
            .unwrap_or_default()
    }

    /// The HTTP status for the verdict: 200 if it is allowed, else 429; 503 if the policy sets it,
    /// the store is closed or there is overload; 504 after the deadline.
    pub fn status(&self) -> u16 {
        match &self.state.reason {
            _ if self.is_allowed() => 200,
            Reason::Closed
            | Reason::Shed(_)
            | Reason::AtCapacity
            | Reason::QueueFull
            | Reason::WaitedTooLong => DenialStatus::ServiceUnavailable.code(),
            Reason::TooLate => 504,
            Reason::Limits => self
                .binding()
                .map(|rule| rule.policy.status)
                .unwrap_or_default()
                .code(),
            _ => DenialStatus::TooManyRequests.code(),
        }
    }

    /// Every limit that was evaluated, in the order of the policies.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.statuses()
            .filter(|(item, _)| item.role != Role::Ban)
            .map(|(item, status)| LimitStatus {
                rule: self.rule(item),
                item,
                status,
            })
    }

    /// The limit to report if only one can be reported: the one that denied the request, else the
    /// one with the least left.
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
        // Of equals the first, as in [`policy`](Self::policy).
        let longer = |worst, limit| {
            if wait(&limit) > wait(&worst) {
                limit
            } else {
                worst
            }
        };
        if !self.state.is_within_limits
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

    pub(super) fn rule(&self, item: &QueryItem) -> &Rule {
        &self.rules().policies[item.policy as usize]
    }

    /// Whether the item is a permit of a concurrency limit.
    pub(super) fn is_concurrency(&self, item: &QueryItem) -> bool {
        item.role != Role::Ban && item.slot(self.rule(item)).limit.rate().is_none()
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = (&QueryItem, &AskResult)> {
        // If the store was not asked, there are no statuses.
        let statuses = self.state.inner.results();
        self.state.query.items.iter().zip(statuses)
    }

    /// The items that denied the request. With the source `Open` the store did not decide, so there
    /// are none.
    fn denials(&self) -> impl Iterator<Item = (&QueryItem, &AskResult)> {
        let statuses = self.statuses().filter(|_| self.source() != Source::Open);
        statuses.filter(|(item, status)| item.mode != Mode::Shadow && status.decision().is_denied())
    }

    /// Time until the evaluated limits allow the request, whatever else denies it; `None` if they
    /// never do.
    pub(super) fn limits_retry_after(&self) -> Option<Duration> {
        let after = |(_, status): (&QueryItem, &AskResult)| match status.decision() {
            decision if decision.is_never() => None,
            decision => Some(decision.retry_after().unwrap_or_default()),
        };
        self.denials()
            .map(after)
            .try_fold(Duration::ZERO, |longest, after| Some(longest.max(after?)))
    }

    /// The policy that denied the request: a denial for ever first, else the longest wait; of
    /// equals the first.
    pub(super) fn binding(&self) -> Option<&Rule> {
        match &self.state.reason {
            Reason::Ban(Ban::Operator(ban)) => self
                .rules()
                .policies
                .iter()
                .find(|rule| *rule.policy.name == *ban.policy()),
            Reason::Limits | Reason::Ban(Ban::Penalty) => {
                let weight = |status: &AskResult| match status.decision() {
                    decision if decision.is_never() => (true, Duration::ZERO),
                    decision => (false, decision.retry_after().unwrap_or_default()),
                };
                let mut worst: Option<(&QueryItem, (bool, Duration))> = None;
                for (item, status) in self.denials() {
                    if worst.is_none_or(|(_, worst)| weight(status) > worst) {
                        worst = Some((item, weight(status)));
                    }
                }
                worst.map(|(item, _)| self.rule(item))
            }
            Reason::MissingAttribute { policy, .. } => self
                .rules()
                .policies
                .iter()
                .find(|rule| *rule.policy.name == **policy),
            Reason::AtCapacity | Reason::QueueFull | Reason::WaitedTooLong => self
                .rules()
                .policies
                .get(self.state.rejecting_policy as usize),
            _ => None,
        }
    }

    /// The policy and item for the summary: those that denied it, or else those with the least
    /// left.
    pub(super) fn summary_source(&self) -> Option<(&Rule, Option<&QueryItem>)> {
        if self.is_denied()
            && let Some(rule) = self.binding()
        {
            let of_policy = |item: &&QueryItem| std::ptr::eq(self.rule(item), rule);
            let limit = |item: &&QueryItem| item.role != Role::Ban;
            let item = || self.state.query.items.iter().filter(of_policy);
            return Some((rule, item().find(limit).or_else(|| item().next())));
        }
        let LimitStatus { rule, item, .. } = self.tightest()?;
        Some((rule, Some(item)))
    }

    /// Whether it holds permits, which are released when the request has ended.
    pub fn holds_permits(&self) -> bool {
        !self.state.permits.is_empty() || self.limits().any(|limit| limit.limit().rate().is_none())
    }

    /// Whether a request that ends like this needs no settlement: it holds no permits, and was
    /// charged its actual cost. Then it need not be [settled](super::Engine::settle).
    pub fn is_settled_by(&self, completion: &Completion) -> bool {
        !self.holds_permits() && self.is_settled(completion)
    }

    /// Whether the charge is right for a request that ends like this. A policy that counts only
    /// some requests must see the completion of each.
    pub(super) fn is_settled(&self, completion: &Completion) -> bool {
        let is_settled = |item: &QueryItem| {
            self.rule(item).policy.count == Count::All && self.actual(item, completion) == item.cost
        };
        self.state.query.items.iter().all(is_settled)
    }

    /// The actual cost of each item, given the completion.
    pub(super) fn settled(&self, completion: &Completion) -> SmallVec<[u64; INLINE_ITEMS]> {
        self.state
            .query
            .items
            .iter()
            .map(|item| self.actual(item, completion))
            .collect()
    }

    fn actual(&self, item: &QueryItem, completion: &Completion) -> u64 {
        let rule = self.rule(item);
        let counts = match rule.policy.count {
            _ if completion.is_cancelled() => false,
            Count::All => true,
            Count::Failures => completion.failed_in(rule).unwrap_or(true),
            Count::Successes => completion.failed_in(rule).is_none_or(|failed| !failed),
        };
        match (counts, completion.true_cost()) {
            (false, _) => 0,
            (true, Some(cost)) => match rule.policy.cost {
                Cost::Attribute { .. } => cost,
                Cost::Units(units) if self.state.query.explicit_cost => cost.saturating_mul(units),
                Cost::Units(_) => item.cost,
            },
            (true, None) => item.cost,
        }
    }
}

impl fmt::Debug for PolicyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyVerdict")
            .field("allowed", &self.is_allowed())
            .field("policy", &self.policy())
            .field("reason", &self.state.reason.name())
            .field("source", &self.source())
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish()
    }
}

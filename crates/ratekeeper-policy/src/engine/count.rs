//! Counting: adds each verdict to the statistics of the engine and of its policies.

use super::query::{QueryItem, Role};
use super::reason::{Ban, Reason};
use super::rules::Rule;
use super::verdict::{self, PolicyVerdict};
use super::{Engine, key};
use crate::stats::Event;
use ratekeeper::{Store, store::AskOutcome, store::Source};
use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

impl<S: Store> Engine<S> {
    /// Adds a verdict to the statistics.
    pub(super) fn count(&self, verdict: &PolicyVerdict) {
        let stats = &self.inner.stats;
        let allowed = verdict.is_allowed();
        stats.all.add(if allowed {
            Event::Allowed
        } else {
            Event::Denied
        });
        if let Reason::Ban(Ban::Operator(_)) | Reason::MissingAttribute { .. } =
            &verdict.state.reason
        {
            if let Some(rule) = verdict.binding() {
                rule.counters.applied();
                rule.counters.tally.add(Event::Denied);
            }
        } else {
            // Enforced ones deny, and so are counted above.
            for denial in &verdict.state.query.missing_denials {
                let counters = &verdict.rules().policies[denial.policy as usize].counters;
                counters.applied();
                counters.tally.add(Event::ShadowDenied);
            }
        }
        for (policy, _) in &verdict.state.query.adaptive_policies {
            verdict.rules().policies[*policy as usize]
                .counters
                .applied();
        }
        match &verdict.state.reason {
            Reason::TooLate => _ = stats.late.fetch_add(1, Ordering::Relaxed),
            Reason::AtCapacity | Reason::QueueFull | Reason::WaitedTooLong => {
                self.count_rejection(verdict);
            }
            _ => {}
        }
        let failed = matches!(
            verdict.source(),
            Source::Open | Source::Closed | Source::LocalShare
        );
        let mut of_policy: Option<(&QueryItem, AskOutcome, u64)> = None;
        for (item, status) in verdict.statuses() {
            let outcome = verdict::outcome(item, status);
            let units = if item.role == Role::Ban || verdict.is_concurrency(item) {
                0
            } else {
                item.cost
            };
            of_policy = match of_policy.take() {
                Some((first, worst, max_units)) if first.policy == item.policy => {
                    Some((first, worse(worst, outcome), max_units.max(units)))
                }
                done => {
                    self.count_policy(done, verdict, allowed, failed);
                    Some((item, outcome, units))
                }
            };
        }
        self.count_policy(of_policy, verdict, allowed, failed);
        self.time(verdict);
    }

    /// Counts a denial by an adaptive limit.
    #[cold]
    fn count_rejection(&self, verdict: &PolicyVerdict) {
        if let Some(rule) = verdict.binding() {
            rule.counters.tally.add(Event::Denied);
            rule.counters.rejections.add(&verdict.state.reason);
        }
    }

    fn count_policy(
        &self,
        of_policy: Option<(&QueryItem, AskOutcome, u64)>,
        verdict: &PolicyVerdict,
        allowed: bool,
        failed: bool,
    ) {
        let Some((item, outcome, units)) = of_policy else {
            return;
        };
        let rule = verdict.rule(item);
        rule.counters.applied();
        let tally = &rule.counters.tally;
        let denied = matches!(outcome, AskOutcome::Denied | AskOutcome::Never);
        match outcome {
            AskOutcome::Denied | AskOutcome::Never => tally.add(Event::Denied),
            AskOutcome::ShadowDenied => tally.add(Event::ShadowDenied),
            AskOutcome::Delayed if allowed => tally.add(Event::Delayed),
            AskOutcome::Allowed if allowed => tally.add(Event::Allowed),
            // Another policy denied the request.
            _ => {}
        }
        if failed {
            tally.add(Event::Error);
        }
        if allowed {
            tally.add_cost(units, verdict.state.now);
        }
        if rule.policy.key.is_empty() {
            return;
        }
        let key = verdict.state.query.key(item);
        let hash = self.inner.key_hasher.hash_one((rule.number, key));
        let number = rule.number;
        let long = || self.display_key(rule, key).into();
        self.inner.stats.most_active.add(hash, number, 1, key, long);
        if denied {
            self.inner.stats.most_denied.add(hash, number, 1, key, long);
        }
        if outcome == AskOutcome::ShadowDenied {
            self.inner
                .stats
                .shadow_denied
                .add(hash, number, 1, key, long);
        }
    }

    /// Records the decision time of one in `timed_every` decisions.
    fn time(&self, verdict: &PolicyVerdict) {
        thread_local!(static DECISIONS: Cell<u32> = const { Cell::new(0) });
        let every = self.inner.options.timed_every;
        if every == 0 {
            return;
        }
        let count = DECISIONS.get().wrapping_add(1);
        DECISIONS.set(count);
        if count.is_multiple_of(every) {
            self.inner
                .stats
                .times
                .record(self.inner.store.now().saturating_since(verdict.state.now));
        }
    }

    /// A key as the lists of top keys show it.
    pub(super) fn display_key(&self, rule: &Rule, key: &[u8]) -> String {
        let attributes = &rule.policy.key;
        let secret = self.inner.overrides.secret();
        if self.inner.options.plain_keys {
            key::display(attributes, key, &secret)
        } else {
            key::fingerprint(attributes, key, &secret)
        }
    }
}

/// The worse of two outcomes, for a policy with several limits.
fn worse(a: AskOutcome, b: AskOutcome) -> AskOutcome {
    let weight = |outcome| match outcome {
        AskOutcome::Allowed => 0,
        AskOutcome::Delayed => 1,
        AskOutcome::ShadowDenied => 2,
        AskOutcome::Denied => 3,
        AskOutcome::Never => 4,
    };
    if weight(b) > weight(a) { b } else { a }
}

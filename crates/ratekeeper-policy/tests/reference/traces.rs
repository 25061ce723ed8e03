//! Random policies and random traffic: both engines say the same.

use super::history::Told;
use super::naive::{Naive, Says};
use super::spec::{Operation, Spec, Who, operations, requests, specs};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ratekeeper::{Clock, ManualClock, MemoryStore};
use ratekeeper_policy::{Completion, Engine, Policies, PolicyVerdict};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) type Gate = Engine<MemoryStore<ManualClock>>;

/// So many cases, or as many as PROPTEST_CASES says.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let kept = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: Some(Box::new(kept)),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

pub(crate) fn gate(spec: &Spec) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build();
    (Engine::new(store, spec.build(clock.now())).unwrap(), clock)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// What a store in memory answers, it answers when it is asked.
pub(crate) fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("memory never waits"),
    }
}

/// How far a step goes, who asks, and what for.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) after: u64,
    pub(crate) who: prop::sample::Index,
    pub(crate) cost: u64,
    peek: bool,
    /// Status, and what a request whose cost is told really cost, in percent.
    ending: (Option<u16>, Option<u64>),
    /// Which of those in flight ends.
    ends: Option<prop::sample::Index>,
    /// The same policies are loaded again before it, or gone for a moment.
    reload: Option<bool>,
    /// What an operator says of the key that the request has in a policy.
    operation: Option<(Operation, prop::sample::Index)>,
}

pub(crate) fn steps(most: usize) -> BoxedStrategy<Vec<Step>> {
    let after = prop_oneof![5 => Just(0_u64), 3 => 1_u64..30, 2 => 30_u64..700];
    let cost = prop_oneof![8 => Just(1_u64), 1 => Just(0), 1 => Just(2), 1 => Just(u64::MAX)];
    let status = prop::option::of(prop::sample::select(vec![200_u16, 399, 400, 429, 599, 600]));
    let ending = (status, prop::option::of(0_u64..=100));
    let ends = prop::option::weighted(0.4, any::<prop::sample::Index>());
    let reload = prop::option::weighted(0.05, any::<bool>());
    let operation = prop::option::weighted(0.08, (operations(), any::<prop::sample::Index>()));
    let step = (
        after,
        any::<prop::sample::Index>(),
        cost,
        prop::bool::weighted(0.1),
        ending,
        ends,
        reload,
        operation,
    )
        .prop_map(
            |(after, who, cost, peek, ending, ends, reload, operation)| Step {
                after,
                who,
                cost,
                peek,
                ending,
                ends,
                reload,
                operation,
            },
        );
    prop::collection::vec(step, 1..most).boxed()
}

fn told(limit: &ratekeeper_policy::engine::LimitStatus<'_>) -> Told {
    let decision = limit.decision();
    Told {
        outcome: decision.outcome(),
        limit: decision.capacity(),
        remaining: decision.remaining(),
        retry_after: decision.retry_after().map(nanos),
        delay: nanos(decision.delay()),
    }
}

pub(crate) fn assert_says(verdict: &PolicyVerdict, says: &Says) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        verdict.is_allowed(),
        says.allowed,
        "{:?} {:?}",
        verdict,
        says
    );
    prop_assert_eq!(verdict.reason().name(), says.reason, "{:?}", says);
    prop_assert_eq!(verdict.is_never(), says.never, "{:?}", says);
    prop_assert_eq!(verdict.policy(), says.policy.as_deref(), "{:?}", says);
    prop_assert_eq!(verdict.status(), says.status, "{:?}", says);
    prop_assert_eq!(
        verdict.retry_after().map(nanos),
        says.retry_after,
        "{:?}",
        says
    );
    prop_assert_eq!(nanos(verdict.delay()), says.delay, "{:?}", says);
    if !says.allowed && says.reason == "limits" {
        prop_assert_eq!(
            verdict.tightest().map(|limit| limit.policy()),
            verdict.policy(),
            "one limit binds"
        );
    }
    let limits: Vec<_> = verdict.limits().collect();
    prop_assert_eq!(limits.len(), says.limits.len(), "{:?}", says);
    for (limit, judged) in limits.iter().zip(&says.limits) {
        prop_assert_eq!(limit.policy(), Spec::name(judged.policy));
        prop_assert_eq!(*limit.limit(), judged.kind.build());
        prop_assert_eq!(
            limit.outcome(),
            judged.outcome,
            "{:?} of {:?}",
            judged,
            says
        );
        prop_assert_eq!(told(limit), judged.told, "{:?} of {:?}", judged, says);
    }
    Ok(())
}

/// Both engines, side by side.
pub(crate) struct Pair {
    pub(crate) gate: Gate,
    pub(crate) clock: ManualClock,
    pub(crate) naive: Naive,
    /// Requests that have not ended.
    flying: Vec<(PolicyVerdict, Says, Step)>,
}

impl Pair {
    pub(crate) fn new(spec: &Spec) -> Self {
        let (gate, clock) = gate(spec);
        let naive = Naive::new(spec, clock.now().as_unix_nanos());
        Self {
            gate,
            clock,
            naive,
            flying: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_unix_nanos()
    }

    /// Lets time pass. What a later settlement gives back is not for history to say: those come
    /// first.
    pub(crate) fn advance(&mut self, by: u64) {
        if by > 0 {
            let (settle, keep) = std::mem::take(&mut self.flying)
                .into_iter()
                .partition(|(_, says, _)| self.naive.settles(says));
            self.flying = keep;
            let settle: Vec<_> = settle;
            settle.into_iter().for_each(|flight| self.land(flight));
            self.clock.advance(Duration::from_nanos(by));
        }
    }

    fn land(&mut self, (verdict, says, step): (PolicyVerdict, Says, Step)) {
        let (status, percent) = step.ending;
        let least = says
            .limits
            .iter()
            .filter(|judged| !judged.is_permit())
            .map(|judged| judged.cost)
            .min();
        // Charging more afterwards is outside the promises, and what several policies charged may
        // differ.
        let cost = percent
            .zip(least)
            .map(|(percent, cost)| (u128::from(cost) * u128::from(percent) / 100) as u64);
        let ending = status.map_or_else(Completion::unknown, Completion::status);
        let ending = cost.map_or(ending, |cost| ending.cost(cost));
        self.gate.settle_now(verdict, ending);
        self.naive.settle(
            &says,
            status.map(|status| (400..600).contains(&status)),
            cost,
        );
    }

    pub(crate) fn step(&mut self, step: &Step, pool: &[Who]) -> Result<(), TestCaseError> {
        self.advance(step.after);
        if let Some(gone) = step.reload {
            let policies = self.gate.policies();
            if gone {
                self.gate.set_policies(Policies::new()).unwrap();
            }
            self.gate.set_policies(policies).unwrap();
        }
        let (who, now) = (step.who.get(pool), self.now());
        if let Some((operation, policy)) = &step.operation {
            let policy = policy.index(self.naive.spec.rules.len());
            let (name, subject) = (Spec::name(policy), who.subject());
            let done = match operation {
                Operation::Ban(lasts) => self
                    .gate
                    .ban(&name, &subject, Duration::from_nanos(*lasts), None)
                    .is_ok(),
                Operation::Limits(kinds, lasts) => {
                    let limits: Vec<_> = kinds.iter().map(|kind| kind.build()).collect();
                    self.gate
                        .override_limits(
                            &name,
                            &subject,
                            &limits,
                            Duration::from_nanos(*lasts),
                            None,
                        )
                        .is_ok()
                }
                Operation::Free => at_once(self.gate.reset_key(&name, &subject)).is_ok(),
            };
            prop_assert_eq!(done, self.naive.operate(operation, policy, who, now));
        }
        if self.naive.is_silent_on(who, step.cost, now) {
            return Ok(());
        }
        let says = self.naive.decide(who, step.cost, now, step.peek);
        let verdict = match step.peek {
            true => self.gate.peek_now(&who.subject(), step.cost),
            false => self.gate.decide_n_now(&who.subject(), step.cost),
        };
        assert_says(&verdict, &says)?;
        if !step.peek && says.allowed {
            self.flying.push((verdict, says, step.clone()));
        }
        if let Some(ends) = step.ends.filter(|_| !self.flying.is_empty()) {
            let flight = self.flying.swap_remove(ends.index(self.flying.len()));
            self.land(flight);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn the_engine_decides_and_tells_as_the_reference_does(
        spec in specs(),
        pool in prop::collection::vec(requests(), 1..5),
        steps in steps(50),
    ) {
        let mut pair = Pair::new(&spec);
        for step in &steps {
            pair.step(step, &pool)?;
        }
        prop_assert_eq!(pair.gate.totals(), pair.naive.totals);
        let figures = at_once(pair.gate.policy_stats());
        for (number, policy) in figures.iter().enumerate() {
            prop_assert_eq!((policy.counts, policy.bans), (pair.naive.counts[number], pair.naive.bans_of(number)));
        }
    }
}

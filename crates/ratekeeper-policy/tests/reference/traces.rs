//! Random policies and random traffic: both engines decide alike.

use super::naive::{ExpectedVerdict, Naive};
use super::spec::{Caller, Operation, Spec, operations, requests, specs};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use ratekeeper::{Clock, ManualClock, MemoryStore};
use ratekeeper_policy::{Completion, Engine, Policies, PolicyVerdict};
use ratekeeper_testkit::{DecisionInfo, poll::assert_ready};
use std::time::Duration;

pub(crate) type TestEngine = Engine<MemoryStore<ManualClock>>;

/// The number of cases, or that of `PROPTEST_CASES`.
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

pub(crate) fn new_engine(spec: &Spec) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build();
    (Engine::new(store, spec.build(clock.now())).unwrap(), clock)
}

/// One step of a trace: time, caller, cost and events.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) after: u64,
    pub(crate) caller: prop::sample::Index,
    pub(crate) cost: u64,
    peek: bool,
    /// The status, and the actual cost in percent of the charged one.
    completion: (Option<u16>, Option<u64>),
    /// The request in flight that ends.
    ends: Option<prop::sample::Index>,
    /// Before it, the same policies are loaded again (`false`) or removed for a moment.
    reload: Option<bool>,
    /// An operation on a key of the request.
    operation: Option<(Operation, prop::sample::Index)>,
}

pub(crate) fn steps(most: usize) -> BoxedStrategy<Vec<Step>> {
    let after = prop_oneof![5 => Just(0_u64), 3 => 1_u64..30, 2 => 30_u64..700];
    let cost = prop_oneof![8 => Just(1_u64), 1 => Just(0), 1 => Just(2), 1 => Just(u64::MAX)];
    let status = prop::option::of(prop::sample::select(vec![200_u16, 399, 400, 429, 599, 600]));
    let completion = (status, prop::option::of(0_u64..=100));
    let ends = prop::option::weighted(0.4, any::<prop::sample::Index>());
    let reload = prop::option::weighted(0.05, any::<bool>());
    let operation = prop::option::weighted(0.08, (operations(), any::<prop::sample::Index>()));
    let step = (
        after,
        any::<prop::sample::Index>(),
        cost,
        prop::bool::weighted(0.1),
        completion,
        ends,
        reload,
        operation,
    )
        .prop_map(
            |(after, caller, cost, peek, completion, ends, reload, operation)| Step {
                after,
                caller,
                cost,
                peek,
                completion,
                ends,
                reload,
                operation,
            },
        );
    prop::collection::vec(step, 1..most).boxed()
}

pub(crate) fn assert_matches(
    verdict: &PolicyVerdict,
    expected: &ExpectedVerdict,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        verdict.is_allowed(),
        expected.allowed,
        "{:?} {:?}",
        verdict,
        expected
    );
    prop_assert_eq!(verdict.reason().name(), expected.reason, "{:?}", expected);
    prop_assert_eq!(verdict.is_never(), expected.never, "{:?}", expected);
    prop_assert_eq!(
        verdict.policy(),
        expected.policy.as_deref(),
        "{:?}",
        expected
    );
    prop_assert_eq!(verdict.status(), expected.status, "{:?}", expected);
    prop_assert_eq!(
        verdict.retry_after(),
        expected.retry_after,
        "{:?}",
        expected
    );
    prop_assert_eq!(verdict.delay(), expected.delay, "{:?}", expected);
    if !expected.allowed && expected.reason == "limits" {
        prop_assert_eq!(
            verdict.tightest().map(|limit| limit.policy()),
            verdict.policy(),
            "one limit binds"
        );
    }
    let limits: Vec<_> = verdict.limits().collect();
    prop_assert_eq!(limits.len(), expected.limits.len(), "{:?}", expected);
    for (limit, judged) in limits.iter().zip(&expected.limits) {
        prop_assert_eq!(limit.policy(), Spec::name(judged.policy));
        prop_assert_eq!(*limit.limit(), judged.limit);
        prop_assert_eq!(
            limit.outcome(),
            judged.outcome,
            "{:?} of {:?}",
            judged,
            expected
        );
        prop_assert_eq!(
            DecisionInfo::from(limit.decision()),
            judged.decision,
            "{:?} of {:?}",
            judged,
            expected
        );
    }
    Ok(())
}

/// Both engines, side by side.
pub(crate) struct Pair {
    pub(crate) engine: TestEngine,
    pub(crate) clock: ManualClock,
    pub(crate) naive: Naive,
    /// Requests that have not ended.
    in_flight: Vec<(PolicyVerdict, ExpectedVerdict, Step)>,
}

impl Pair {
    pub(crate) fn new(spec: &Spec) -> Self {
        let (engine, clock) = new_engine(spec);
        let naive = Naive::new(spec, clock.now().as_unix_nanos());
        Self {
            engine,
            clock,
            naive,
            in_flight: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_unix_nanos()
    }

    /// Advances the time. Later refunds are not covered by the history, so requests are settled
    /// first.
    pub(crate) fn advance(&mut self, by: u64) {
        if by > 0 {
            let (settle, keep) = std::mem::take(&mut self.in_flight)
                .into_iter()
                .partition(|(_, expected, _)| self.naive.settles(expected));
            self.in_flight = keep;
            let settle: Vec<_> = settle;
            settle.into_iter().for_each(|flight| self.complete(flight));
            self.clock.advance(Duration::from_nanos(by));
        }
    }

    fn complete(&mut self, (verdict, expected, step): (PolicyVerdict, ExpectedVerdict, Step)) {
        let (status, percent) = step.completion;
        let least = expected
            .limits
            .iter()
            .filter(|judged| !judged.is_permit())
            .map(|judged| judged.cost)
            .min();
        // A higher charge at the end is not specified, and policies may differ in it.
        let cost = percent
            .zip(least)
            .map(|(percent, cost)| (u128::from(cost) * u128::from(percent) / 100) as u64);
        let completion = status.map_or_else(Completion::unknown, Completion::status);
        let completion = cost.map_or(completion, |cost| completion.cost(cost));
        self.engine.settle_now(verdict, completion);
        self.naive.settle(
            &expected,
            status.map(|status| (400..600).contains(&status)),
            cost,
        );
    }

    pub(crate) fn step(&mut self, step: &Step, pool: &[Caller]) -> Result<(), TestCaseError> {
        self.advance(step.after);
        if let Some(gone) = step.reload {
            let policies = self.engine.policies();
            if gone {
                self.engine.set_policies(Policies::new()).unwrap();
            }
            self.engine.set_policies(policies).unwrap();
        }
        let caller = step.caller.get(pool);
        let now = self.now();
        if let Some((operation, policy)) = &step.operation {
            let policy = policy.index(self.naive.spec.rules.len());
            let name = Spec::name(policy);
            let subject = caller.subject();
            let done = match operation {
                Operation::Ban(lasts) => self
                    .engine
                    .operator()
                    .ban(&name, &subject, Duration::from_nanos(*lasts), None)
                    .is_ok(),
                Operation::Limits(limits, lasts) => self
                    .engine
                    .operator()
                    .override_limits(&name, &subject, limits, Duration::from_nanos(*lasts), None)
                    .is_ok(),
                Operation::Reset => {
                    assert_ready(self.engine.operator().reset_key(&name, &subject)).is_ok()
                }
            };
            prop_assert_eq!(done, self.naive.operate(operation, policy, caller, now));
        }
        if self.naive.is_unspecified(caller, step.cost, now) {
            return Ok(());
        }
        let expected = self.naive.decide(caller, step.cost, now, step.peek);
        let verdict = if step.peek {
            self.engine.peek_now(&caller.subject().cost(step.cost))
        } else {
            self.engine.decide_now(&caller.subject().cost(step.cost))
        };
        assert_matches(&verdict, &expected)?;
        if !step.peek && expected.allowed {
            self.in_flight.push((verdict, expected, step.clone()));
        }
        if let Some(ends) = step.ends.filter(|_| !self.in_flight.is_empty()) {
            let flight = self.in_flight.swap_remove(ends.index(self.in_flight.len()));
            self.complete(flight);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn the_engine_agrees_with_the_reference(
        spec in specs(),
        pool in prop::collection::vec(requests(), 1..5),
        steps in steps(50),
    ) {
        let mut pair = Pair::new(&spec);
        for step in &steps {
            pair.step(step, &pool)?;
        }
        prop_assert_eq!(pair.engine.stats().totals(), pair.naive.totals);
        let figures = assert_ready(pair.engine.stats().policies());
        for (number, policy) in figures.iter().enumerate() {
            prop_assert_eq!((policy.counts, policy.bans), (pair.naive.counts[number], pair.naive.bans_of(number)));
        }
    }
}

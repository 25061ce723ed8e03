//! An explanation agrees with the decision.

use super::spec::{Spec, requests, specs};
use super::traces::{Pair, assert_matches, cases, steps};
use proptest::prelude::*;
use ratekeeper::{Clock, store::AskOutcome};
use ratekeeper_policy::Explanation;
use ratekeeper_testkit::poll::assert_ready;
use std::time::Duration;

/// All visible parts of an explanation.
fn describe(explained: &Explanation) -> String {
    format!(
        "{:?} {:?} {:?}",
        explained.verdict(),
        explained.traces(),
        explained.allowed_at()
    )
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn explanations_agree_with_decisions(
        spec in specs(),
        pool in prop::collection::vec(requests(), 1..4),
        before in steps(30),
        cost in prop_oneof![8 => Just(1_u64), 1 => Just(0), 1 => Just(2)],
    ) {
        let mut pair = Pair::new(&spec);
        for step in &before {
            pair.step(step, &pool)?;
        }
        let now = pair.now();
        let specified: Vec<_> = pool.iter().filter(|caller| !pair.naive.is_unspecified(caller, cost, now)).collect();
        for caller in &specified {
            let subject = caller.subject();
            let expected = pair.naive.decide(caller, cost, pair.now(), true);
            let explained = assert_ready(pair.engine.explain(&subject.clone().cost(cost)));
            // Neither explaining nor peeking changes anything.
            let peeked = pair.engine.peek_now(&subject.clone().cost(cost));
            assert_matches(&peeked, &expected)?;
            prop_assert_eq!(describe(&assert_ready(pair.engine.explain(&subject.clone().cost(cost)))), describe(&explained));

            let listed = expected.without_limits;
            let verdict = explained.verdict();
            if !listed {
                assert_matches(verdict, &expected)?;
            }
            let limit_values = |verdict: &ratekeeper_policy::PolicyVerdict| {
                let retry_after = verdict.retry_after();
                let delay = verdict.delay();
                (verdict.is_allowed(), verdict.is_never(), verdict.policy().map(str::to_owned), verdict.status(), retry_after, delay)
            };
            prop_assert_eq!(limit_values(verdict), limit_values(&peeked));
            prop_assert_eq!(verdict.reason().name(), peeked.reason().name());

            // Every policy is listed, and those that apply are those that are asked.
            prop_assert_eq!(explained.traces().len(), spec.rules.len());
            if !listed {
                let key_state = explained.traces().iter().enumerate().filter(|(_, tried)| tried.outcome.is_ok());
                let applied: Vec<usize> = key_state.map(|(number, _)| number).collect();
                prop_assert_eq!(&applied, &expected.applied);
                let levels = explained.traces().iter().flat_map(|tried| tried.outcome.iter().flat_map(|key_state| &key_state.limits));
                let levels: Vec<_> = levels.collect();
                prop_assert_eq!(levels.len(), expected.limits.len());
                for (level, judged) in levels.iter().zip(&expected.limits) {
                    prop_assert_eq!(level.decision.remaining(), judged.decision.remaining);
                    prop_assert_eq!((level.cost, level.outcome), (judged.cost, judged.outcome));
                    prop_assert_eq!(level.limit, judged.limit);
                }
            }
            for (number, tried) in explained.traces().iter().enumerate() {
                prop_assert_eq!(&tried.policy, &Spec::name(number));
            }
        }

        // A request is repeated at the time that was reported, with no other in between.
        let Some(caller) = specified.first() else { return Ok(()) };
        let subject = caller.subject();
        let explained = assert_ready(pair.engine.explain(&subject.clone().cost(cost)));
        // The reported time holds for the limits in force; those of an operator expire.
        let has_replacement = |tried: &ratekeeper_policy::engine::PolicyTrace| tried.outcome.as_ref().is_ok_and(|key_state| key_state.replacement.is_some());
        if explained.traces().iter().any(has_replacement) {
            return Ok(());
        }
        if explained.verdict().is_denied() {
            let permits = |tried: &ratekeeper_policy::engine::PolicyTrace| {
                let levels = tried.outcome.iter().flat_map(|key_state| &key_state.limits);
                levels.into_iter().any(|level| level.outcome == AskOutcome::Denied && level.allowed_at.is_none())
            };
            let permits = explained.traces().iter().any(permits);
            match explained.allowed_at() {
                Some(at) if !permits => {
                    let wait = at.saturating_since(pair.clock.now());
                    prop_assert!(wait > Duration::ZERO);
                    // Settling requests in flight would refund units: none is settled here.
                    pair.clock.advance(wait - Duration::from_nanos(1));
                    let early = pair.engine.peek_now(&subject.clone().cost(cost));
                    prop_assert!(early.is_denied(), "a nanosecond before {:?}", explained);
                    pair.clock.advance(Duration::from_nanos(1));
                    let verdict = pair.engine.decide_now(&subject.clone().cost(cost));
                    prop_assert!(verdict.is_allowed(), "{:?} after {:?}", verdict, explained);
                }
                Some(_) => {}
                None if !permits => {
                    pair.clock.advance(Duration::from_secs(86_400));
                    prop_assert!(pair.engine.peek_now(&subject.clone().cost(cost)).is_denied(), "{:?}", explained);
                }
                None => {}
            }
        } else {
            let expected = pair.naive.decide(caller, cost, now, false);
            let verdict = pair.engine.decide_now(&subject.clone().cost(cost));
            assert_matches(&verdict, &expected)?;
            prop_assert_eq!(explained.allowed_at().unwrap().saturating_since(pair.clock.now()), expected.delay);
        }
    }
}

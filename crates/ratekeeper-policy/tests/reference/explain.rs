//! What is explained is what is decided.

use super::spec::{Spec, requests, specs};
use super::traces::{Pair, assert_says, at_once, cases, nanos, steps};
use proptest::prelude::*;
use ratekeeper::{Clock, store::AskOutcome};
use ratekeeper_policy::Explanation;
use std::time::Duration;

/// All that can be seen of an explanation.
fn seen(explained: &Explanation) -> String {
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
    fn what_is_explained_is_what_is_decided(
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
        let spoken: Vec<_> = pool.iter().filter(|who| !pair.naive.is_silent_on(who, cost, now)).collect();
        for who in &spoken {
            let subject = who.subject();
            let says = pair.naive.decide(who, cost, pair.now(), true);
            let explained = at_once(pair.gate.explain(&subject, cost));
            // Neither to explain nor to peek changes anything.
            let peeked = pair.gate.peek_now(&subject, cost);
            assert_says(&peeked, &says)?;
            prop_assert_eq!(seen(&at_once(pair.gate.explain(&subject, cost))), seen(&explained));

            let listed = says.without_limits;
            let verdict = explained.verdict();
            if !listed {
                assert_says(verdict, &says)?;
            }
            let told = |verdict: &ratekeeper_policy::PolicyVerdict| {
                let (retry_after, delay) = (verdict.retry_after(), verdict.delay());
                (verdict.is_allowed(), verdict.is_never(), verdict.policy().map(str::to_owned), verdict.status(), retry_after, delay)
            };
            prop_assert_eq!(told(verdict), told(&peeked));
            prop_assert_eq!(verdict.reason().name(), peeked.reason().name());

            // Every policy is told of, and those that apply are those that are asked.
            prop_assert_eq!(explained.traces().len(), spec.rules.len());
            if !listed {
                let standing = explained.traces().iter().enumerate().filter(|(_, tried)| tried.outcome.is_ok());
                let applied: Vec<usize> = standing.map(|(number, _)| number).collect();
                prop_assert_eq!(&applied, &says.applied);
                let levels = explained.traces().iter().flat_map(|tried| tried.outcome.iter().flat_map(|standing| &standing.limits));
                let levels: Vec<_> = levels.collect();
                prop_assert_eq!(levels.len(), says.limits.len());
                for (level, judged) in levels.iter().zip(&says.limits) {
                    prop_assert_eq!(level.decision.remaining(), judged.told.remaining);
                    prop_assert_eq!((level.cost, level.outcome), (judged.cost, judged.outcome));
                    prop_assert_eq!(level.limit, judged.kind.build());
                }
            }
            for (number, tried) in explained.traces().iter().enumerate() {
                prop_assert_eq!(&tried.policy, &Spec::name(number));
            }
        }

        // One of them comes again at the instant that it is told, nobody else having come.
        let Some(who) = spoken.first() else { return Ok(()) };
        let subject = who.subject();
        let explained = at_once(pair.gate.explain(&subject, cost));
        // What is told holds by the limits in force; those of an operator end at their time.
        let stand_in = |tried: &ratekeeper_policy::engine::PolicyTrace| tried.outcome.as_ref().is_ok_and(|standing| standing.replacement.is_some());
        if explained.traces().iter().any(stand_in) {
            return Ok(());
        }
        if explained.verdict().is_denied() {
            let permits = |tried: &ratekeeper_policy::engine::PolicyTrace| {
                let levels = tried.outcome.iter().flat_map(|standing| &standing.limits);
                levels.into_iter().any(|level| level.outcome == AskOutcome::Denied && level.allowed_at.is_none())
            };
            let permits = explained.traces().iter().any(permits);
            match explained.allowed_at() {
                Some(at) if !permits => {
                    let wait = at.saturating_since(pair.clock.now());
                    prop_assert!(wait > Duration::ZERO);
                    // Settling what is in flight would give something back: nobody does.
                    pair.clock.advance(wait - Duration::from_nanos(1));
                    let early = pair.gate.peek_now(&subject, cost);
                    prop_assert!(early.is_denied(), "a nanosecond before {:?}", explained);
                    pair.clock.advance(Duration::from_nanos(1));
                    let verdict = pair.gate.decide_n_now(&subject, cost);
                    prop_assert!(verdict.is_allowed(), "{:?} after {:?}", verdict, explained);
                }
                Some(_) => {}
                None if !permits => {
                    pair.clock.advance(Duration::from_secs(86_400));
                    prop_assert!(pair.gate.peek_now(&subject, cost).is_denied(), "{:?}", explained);
                }
                None => {}
            }
        } else {
            let says = pair.naive.decide(who, cost, now, false);
            let verdict = pair.gate.decide_n_now(&subject, cost);
            assert_says(&verdict, &says)?;
            prop_assert_eq!(nanos(explained.allowed_at().unwrap().saturating_since(pair.clock.now())), says.delay);
        }
    }
}

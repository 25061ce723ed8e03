//! The model of the keyed and store tests, tested against a single limiter: all algorithms, any
//! costs, idle spells, stale instants and live changes.

mod common;

use common::traces::{any_limits, cases, instant, limiter, moved_by, same_kind, steps};
use proptest::prelude::*;
use ratekeeper_testkit::{DecisionInfo, Model};

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn a_limiter_returns_the_same_decisions_as_the_model(
        limit in any_limits(),
        changes in prop::collection::vec((1_u64..=9, 1_u64..=9), 3),
        calls in prop::collection::vec((steps(), 0_u64..=4, prop::option::weighted(0.05, 0_usize..3)), 1..80),
    ) {
        let (limiter, mut now) = limiter(limit);
        let mut model = Model::new(limit);
        for (step, cost, change) in calls {
            let at = moved_by(&mut now, step, &model.limit());
            if model.is_silent_on(at, cost) {
                continue;
            }
            let peeked = limiter.at(instant(at)).peek_n(cost);
            prop_assert_eq!(DecisionInfo::from(peeked), model.peek(at, cost), "peek {} at {}", cost, at);
            let decided = limiter.at(instant(at)).check_n(cost);
            prop_assert_eq!(DecisionInfo::from(decided), model.check(at, cost), "{} at {}", cost, at);
            if let Some(next) = change.and_then(|which| same_kind(&limit, changes[which])) {
                limiter.at(instant(now)).set_limit(next);
                model.keep(next, now);
            }
        }
    }
}

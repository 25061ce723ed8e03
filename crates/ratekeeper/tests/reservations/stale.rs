//! Stale instants: callers see different times, so instants go back by a little, for every method.

use super::common::traces::cases;
use super::{LimiterHistory, Op, ops, whole};
use proptest::prelude::*;

fn stale_ops() -> impl Strategy<Value = Vec<(Op, u64)>> {
    let back = prop_oneof![3 => Just(0), 1 => 1_u64..30];
    prop::collection::vec((ops(7), back), 1..40)
}

proptest! {
    #![proptest_config(cases(400))]

    /// Reserve and check alone: P1 holds at act times whatever the instants.
    #[test]
    fn reservations_at_stale_instants_keep_p1(limit in whole(), ops in stale_ops()) {
        let mut world = LimiterHistory::new(limit);
        for (op, back) in ops {
            if matches!(op, Op::Cancel(_) | Op::CancelLast) {
                continue;
            }
            world.now -= back;
            world.run(op);
            world.now += back;
            prop_assert_eq!(world.rule.violation(&world.events()), None, "{:?}", world.events());
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// The word does not store when its calls came, so a cancel trusts its instant: one that is
    /// late by d gives back at most r·d too much, and at most what it took.
    #[test]
    fn a_stale_cancel_adds_at_most_what_its_staleness_is_worth(limit in whole(), ops in stale_ops()) {
        let mut world = LimiterHistory::new(limit);
        let mut on_top = 0;
        for (op, back) in ops {
            let was = world.outstanding();
            world.now -= back;
            world.run(op);
            world.now += back;
            let gone = was.into_iter().find(|slot| world.slots[*slot].held.is_none());
            let cost = gone.map_or(0, |slot| i128::from(world.slots[slot].cost));
            on_top += (cost * world.rule.token).min(i128::from(back) * world.rule.per_nano);
            let broken = world.rule.violation_beyond(&world.events(), on_top);
            prop_assert_eq!(broken, None, "{:?}", world.events());
        }
    }
}

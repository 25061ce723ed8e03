//! With intervals a violation is reported only if every placement is one.

use crate::exact::any_bound;
use crate::plain::{Exact, slack};
use proptest::prelude::*;
use ratekeeper_testkit::auditor::{Admission, Bound};

/// Few and narrow, so that all placements can be tried.
fn any_trace() -> impl Strategy<Value = Vec<Admission>> {
    let admission = (0u64..30, 0u64..3, 1u64..4)
        .prop_map(|(time, width, cost)| Admission::between(time, time + width, cost));
    prop::collection::vec(admission, 1..6)
}

fn placements(trace: &[Admission]) -> Vec<Vec<Exact>> {
    trace.iter().fold(vec![vec![]], |placed, admission| {
        let times = admission.earliest..=admission.latest;
        times
            .flat_map(|time| {
                placed.iter().map(move |before| {
                    let mut after = before.clone();
                    after.push((time, admission.cost));
                    after
                })
            })
            .collect()
    })
}

/// What certainly lies from one time to another.
fn certain(trace: &[Admission], from: u64, to: u64) -> u64 {
    trace
        .iter()
        .filter(|a| a.earliest >= from && a.latest <= to)
        .map(|a| a.cost)
        .sum()
}

/// After all that the wider traces have.
const END: u64 = 70;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_violation_is_one_wherever_the_admissions_lie(bound in any_bound(), trace in any_trace()) {
        // The largest reported excess.
        let Some(allowance) = (0..).take_while(|&allowance| bound.check(&trace, allowance).is_err()).last() else {
            return Ok(());
        };
        for placed in placements(&trace) {
            let slack = slack(&bound, &placed, allowance);
            prop_assert!(slack < Some(0), "broken beyond {}, but not if placed {:?}", allowance, placed);
        }
    }

    #[test]
    fn a_token_bucket_counts_certain_admissions(
        trace in prop::collection::vec((0u64..40, 0u64..20, 1u64..4), 1..15),
        count in 0u64..6, period in 1u64..20, burst in 0u64..8,
    ) {
        let trace: Vec<_> = trace.into_iter().map(|(time, width, cost)| Admission::between(time, time + width, cost)).collect();
        let pairs = (0..END).flat_map(|s| (s..END).map(move |t| (s, t)));
        let worst = pairs.map(|(s, t)| {
            i128::from(certain(&trace, s, t)) - i128::from(burst + count * (t - s) / period)
        }).max().unwrap();
        let found = Bound::TokenBucket { count, period, burst }.check(&trace, 0);
        prop_assert_eq!(found.map_err(|violation| i128::from(violation.excess())).err(), (worst > 0).then_some(worst));
    }

    #[test]
    fn a_log_counts_certain_admissions(
        trace in prop::collection::vec((0u64..40, 0u64..20, 1u64..4), 1..15),
        limit in 0u64..8, window in 1u64..30,
    ) {
        let trace: Vec<_> = trace.into_iter().map(|(time, width, cost)| Admission::between(time, time + width, cost)).collect();
        let most = (0..END).map(|t| certain(&trace, (t + 1).saturating_sub(window), t)).max().unwrap();
        match (Bound::SlidingLog { limit, window }).check(&trace, 0) {
            Ok(report) => prop_assert_eq!(report.slack, Some(limit - most)),
            Err(violation) => {
                prop_assert_eq!(violation.measured, most);
                prop_assert_eq!(certain(&trace, violation.from, violation.to), most);
            }
        }
    }
}

//! With exact times the auditor finds the same smallest slack as the plain checks.

use crate::plain::{Exact, LONGEST_WINDOW, slack};
use proptest::prelude::*;
use ratekeeper_testkit::auditor::{Admission, Bound, PermitInterval, check_permits};

pub(crate) fn any_bound() -> impl Strategy<Value = Bound> {
    let window = || (0u64..6, 1..=LONGEST_WINDOW);
    prop_oneof![
        (0u64..6, 1u64..20, 0u64..8).prop_map(|(count, period, burst)| Bound::TokenBucket {
            count,
            period,
            burst
        }),
        window().prop_map(|(limit, window)| Bound::SlidingLog { limit, window }),
        window().prop_map(|(limit, window)| Bound::FixedWindow { limit, window }),
        window().prop_map(|(limit, window)| Bound::FirstHitWindow { limit, window }),
        window().prop_map(|(limit, window)| Bound::EvictedFirstHitWindow { limit, window }),
        window().prop_map(|(limit, window)| Bound::SlidingCounter { limit, window }),
        (1u64..6, 1u64..20).prop_map(|(count, period)| Bound::Pacing { count, period }),
    ]
}

fn any_trace() -> impl Strategy<Value = Vec<Exact>> {
    prop::collection::vec((0u64..60, 0u64..4), 0..12)
}

fn admissions(trace: &[Exact]) -> Vec<Admission> {
    trace
        .iter()
        .map(|&(time, cost)| Admission::at(time, cost))
        .collect()
}

/// The smallest slack that the auditor found.
fn audited(bound: &Bound, trace: &[Exact], allowance: u64) -> Option<i128> {
    match bound.check(&admissions(trace), allowance) {
        Ok(report) => {
            assert_eq!(
                report.admitted,
                trace.iter().map(|(_, cost)| cost).sum::<u64>()
            );
            report.slack.map(i128::from)
        }
        Err(violation) => Some(-i128::from(violation.excess())),
    }
}

/// Filters a trace to what a limiter could have admitted without breaking the bound.
fn kept(bound: &Bound, trace: &[Exact]) -> Vec<Exact> {
    let mut in_order = trace.to_vec();
    in_order.sort_unstable();
    let mut kept = Vec::new();
    for admission in in_order {
        kept.push(admission);
        if slack(bound, &kept, 0).is_some_and(|slack| slack < 0) {
            kept.pop();
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_least_slack_is_that_of_the_plain_check(bound in any_bound(), trace in any_trace(), allowance in 0u64..3) {
        prop_assert_eq!(audited(&bound, &trace, allowance), slack(&bound, &trace, allowance));
    }

    #[test]
    fn a_trace_that_keeps_its_bound_passes_and_one_more_is_caught(bound in any_bound(), trace in any_trace()) {
        let kept = kept(&bound, &trace);
        let report = bound.check(&admissions(&kept), 0).map_err(|v| TestCaseError::fail(v.to_string()))?;
        if let Some(slack) = report.slack {
            // The slack of the tightest interval, and one more, added at an admission.
            let over: Vec<_> = kept.iter().map(|&(time, _)| {
                let more = [kept.as_slice(), &[(time, slack + 1)]].concat();
                bound.check(&admissions(&more), 0).is_err()
            }).collect();
            prop_assert!(over.contains(&true) || kept.is_empty());
        }
    }

    #[test]
    fn a_violation_is_in_the_reported_interval(bound in any_bound(), trace in any_trace(), allowance in 0u64..3) {
        if let Err(violation) = bound.check(&admissions(&trace), allowance) {
            let inside = trace.iter().filter(|(time, _)| (violation.from..=violation.to).contains(time));
            prop_assert!(violation.measured <= inside.map(|(_, cost)| cost).sum::<u64>());
            prop_assert!(violation.measured > violation.allowed);
        }
    }

    #[test]
    fn paced_unit_starts_keep_lq2(trace in prop::collection::vec(0u64..60, 0..12), count in 1u64..4, period in 1u64..20) {
        let units: Vec<_> = trace.iter().map(|&time| (time, 1)).collect();
        if audited(&Bound::Pacing { count, period }, &units, 0).is_some_and(|slack| slack < 0) {
            return Ok(());
        }
        for from in 0u64..60 {
            for length in 1u64..60 {
                let starts = trace.iter().filter(|time| (from..from + length).contains(*time)).count() as u64;
                prop_assert!(starts <= (length * count).div_ceil(period));
            }
        }
    }

    #[test]
    fn holds_are_counted_at_every_moment(
        holds in prop::collection::vec((0u64..40, 0u64..20, 1u64..4), 0..10),
        limit in 0u64..6,
        allowance in 0u64..3,
    ) {
        let holds: Vec<_> =
            holds.into_iter().map(|(from, long, cost)| PermitInterval { from, until: from + long, cost }).collect();
        let at = |t: u64| holds.iter().filter(|hold| hold.from <= t && t < hold.until).map(|hold| hold.cost).sum::<u64>();
        let most = (0..70).map(at).max().unwrap();
        match check_permits(limit, &holds, allowance) {
            Ok(report) => {
                prop_assert!(most <= limit + allowance);
                prop_assert!(report.slack.is_none_or(|slack| slack == limit + allowance - most));
            }
            Err(violation) => {
                prop_assert_eq!(violation.measured, most);
                prop_assert_eq!(violation.excess(), most - limit - allowance);
                for t in violation.from..=violation.to {
                    prop_assert_eq!(at(t), most);
                }
            }
        }
    }
}

//! Violations that the auditor must find, and how it reports them.

use ratekeeper_testkit::auditor::{
    Admission, Bound, PermitInterval, Report, Violation, check_permits,
};

const SECOND: u64 = 1_000_000;

fn at(times: &[u64]) -> Vec<Admission> {
    times.iter().map(|&time| Admission::at(time, 1)).collect()
}

fn caught(bound: Bound, admissions: &[Admission]) -> Violation {
    bound.check(admissions, 0).expect_err("it is broken")
}

#[test]
fn an_empty_trace_breaks_no_bound() {
    let bound = Bound::TokenBucket {
        count: 0,
        period: 1,
        burst: 0,
    };
    assert_eq!(
        bound.check(&[], 0),
        Ok(Report {
            admitted: 0,
            slack: None
        })
    );
    assert_eq!(
        bound.check(&[Admission::at(3, 0)], 0),
        Ok(Report {
            admitted: 0,
            slack: None
        })
    );
}

#[test]
fn one_token_too_many() {
    let bucket = Bound::TokenBucket {
        count: 1,
        period: 100,
        burst: 3,
    };
    let kept = at(&[0, 500, 500, 500, 600, 699, 700]);
    let violation = caught(bucket, &kept);
    assert_eq!(
        (
            violation.from,
            violation.to,
            violation.measured,
            violation.allowed
        ),
        (500, 699, 5, 4)
    );
    assert_eq!(
        violation.to_string(),
        "5 admitted from 500 to 699, 1 more than the 4 that a token bucket of 3 with 1 per 100 allows there"
    );
    assert_eq!(
        bucket.check(&kept, 1),
        Ok(Report {
            admitted: 7,
            slack: Some(0)
        }),
        "one more was stated"
    );
    assert!(bucket.check(&at(&[0, 500, 500, 500, 600, 700]), 0).is_ok());
}

#[test]
fn a_rate_a_little_too_fast_is_caught_in_the_long_run() {
    let bucket = Bound::TokenBucket {
        count: 3,
        period: SECOND,
        burst: 10,
    };
    let every = |micros: u64| {
        (0..5000)
            .map(|i| Admission::at(i * micros, 1))
            .collect::<Vec<_>>()
    };
    assert!(bucket.check(&every(333_334), 0).is_ok());
    let violation = caught(bucket, &every(332_500));
    // After 4999 · 0.3325 s there are 10 + 4986 tokens for 5000.
    assert_eq!((violation.from, violation.excess()), (0, 4));
}

#[test]
fn uncertain_times_are_not_violations() {
    let bucket = Bound::TokenBucket {
        count: 1,
        period: 10,
        burst: 1,
    };
    assert!(
        bucket
            .check(
                &[Admission::between(0, 5, 1), Admission::between(3, 10, 1)],
                0
            )
            .is_ok()
    );
    let violation = caught(
        bucket,
        &[Admission::between(0, 5, 1), Admission::between(3, 9, 1)],
    );
    assert_eq!(
        (violation.from, violation.to, violation.excess()),
        (0, 9, 1)
    );
}

#[test]
fn a_log_drops_entries_after_exactly_its_window() {
    let log = Bound::SlidingLog {
        limit: 2,
        window: 100,
    };
    assert_eq!(
        log.check(&at(&[0, 50, 100, 150]), 0).unwrap().slack,
        Some(0)
    );
    let violation = caught(log, &at(&[0, 50, 99]));
    assert_eq!(
        (violation.from, violation.to, violation.measured),
        (0, 99, 3)
    );
}

#[test]
fn a_fixed_window_may_hold_twice_its_limit_across_a_boundary() {
    let across = at(&[98, 99, 100, 101]);
    assert!(
        Bound::FixedWindow {
            limit: 2,
            window: 100
        }
        .check(&across, 0)
        .is_ok()
    );
    let violation = caught(
        Bound::FixedWindow {
            limit: 1,
            window: 100,
        },
        &across,
    );
    assert_eq!(
        (violation.from, violation.to, violation.measured),
        (0, 99, 2)
    );
    assert_eq!(
        violation.to_string(),
        "2 admitted from 0 to 99, 1 more than the 1 that a limit of 1 in each window of 100 allows there"
    );
}

#[test]
fn a_window_from_its_first_hit_begins_with_it() {
    let bound = Bound::FirstHitWindow {
        limit: 2,
        window: 100,
    };
    assert!(bound.check(&at(&[50, 149, 150, 249, 250]), 0).is_ok());
    let violation = caught(bound, &at(&[50, 149, 160, 170, 259]));
    assert_eq!(
        (violation.from, violation.to, violation.measured),
        (160, 259, 3)
    );
}

#[test]
fn a_window_whose_begin_is_uncertain_is_still_caught() {
    let bound = Bound::FirstHitWindow {
        limit: 1,
        window: 100,
    };
    let sure = [
        Admission::between(0, 10, 1),
        Admission::between(120, 130, 1),
        Admission::between(140, 150, 1),
    ];
    assert_eq!(caught(bound, &sure).measured, 2);
    assert!(
        bound
            .check(
                &[Admission::between(0, 10, 1), Admission::between(90, 105, 1)],
                0
            )
            .is_ok()
    );
}

#[test]
fn admissions_that_may_be_of_the_window_before_do_not_count() {
    let bound = Bound::FirstHitWindow {
        limit: 2,
        window: 100,
    };
    // The first window ends from 100 to 110, so the second admission is in the first or the second.
    let either = [
        Admission::between(0, 10, 1),
        Admission::between(105, 106, 1),
        Admission::at(150, 1),
    ];
    assert!(
        bound
            .check(&[either.as_slice(), &at(&[160])].concat(), 0)
            .is_ok()
    );
    assert_eq!(
        caught(bound, &[either.as_slice(), &at(&[160, 170])].concat()).measured,
        3
    );
}

#[test]
fn a_window_begins_no_earlier_than_the_one_before_ends() {
    let bound = Bound::FirstHitWindow {
        limit: 1,
        window: 100,
    };
    let wide = [
        Admission::at(0, 1),
        Admission::between(50, 150, 1),
        Admission::at(160, 1),
        Admission::at(170, 1),
    ];
    let violation = caught(bound, &wide);
    assert_eq!(
        (violation.from, violation.to, violation.measured),
        (100, 199, 2)
    );
}

#[test]
fn twice_the_limit_is_found_without_known_window_starts() {
    let bound = Bound::FirstHitWindow {
        limit: 1,
        window: 100,
    };
    let lost = [
        Admission::between(0, 1000, 1),
        Admission::at(2000, 1),
        Admission::at(2010, 1),
    ];
    assert!(bound.check(&lost, 0).is_ok());
    let violation = caught(bound, &[lost.as_slice(), &at(&[2020])].concat());
    assert_eq!((violation.measured, violation.allowed), (3, 2));
}

#[test]
fn an_evicted_window_may_begin_anywhere_but_not_be_shorter() {
    let bound = Bound::EvictedFirstHitWindow {
        limit: 1,
        window: 100,
    };
    // One each in windows from 0, 100 and 200; a fourth needs a window of its own.
    let three = at(&[50, 150, 250]);
    assert!(bound.check(&three, 0).is_ok());
    assert!(bound.check(&at(&[99, 100, 299]), 0).is_ok());
    let violation = caught(bound, &at(&[99, 100, 198]));
    assert_eq!((violation.measured, violation.allowed), (3, 2));
    let violation = caught(bound, &at(&[99, 100, 200, 298]));
    assert_eq!((violation.measured, violation.allowed), (4, 3));
}

#[test]
fn a_sliding_counter_may_allow_more_than_a_log() {
    let bound = Bound::SlidingCounter {
        limit: 4,
        window: 100,
    };
    // Four at the end of a window; at 75 % of the next the counter weighs them as one, so three
    // more fit.
    assert!(
        bound
            .check(&at(&[99, 99, 99, 99, 175, 175, 175]), 0)
            .is_ok()
    );
    let violation = caught(bound, &at(&[99, 99, 99, 99, 175, 175, 175, 175]));
    assert_eq!(
        (violation.to, violation.measured, violation.allowed),
        (175, 8, 7)
    );
    // The window before has all from its first time on, and what may have been in it.
    let this = at(&[199, 199, 275, 275, 275, 275]);
    assert_eq!(
        bound
            .check(&[at(&[100, 100]), this.clone()].concat(), 0)
            .unwrap()
            .admitted,
        8
    );
    assert_eq!(
        bound
            .check(
                &[vec![Admission::between(90, 110, 2)], this.clone()].concat(),
                0
            )
            .unwrap()
            .admitted,
        8
    );
    assert_eq!(caught(bound, &[at(&[99, 99]), this].concat()).allowed, 5);
}

#[test]
fn starts_too_near_are_caught() {
    let bound = Bound::Pacing {
        count: 1,
        period: 10,
    };
    assert!(
        bound
            .check(
                &[
                    Admission::at(0, 2),
                    Admission::at(20, 1),
                    Admission::at(30, 5)
                ],
                0
            )
            .is_ok()
    );
    let near = [Admission::at(0, 2), Admission::at(19, 1)];
    let violation = caught(bound, &near);
    assert_eq!(
        (violation.from, violation.to, violation.excess()),
        (0, 19, 1)
    );
    assert!(bound.check(&near, 1).is_ok(), "1 early");
    assert!(bound.check(&at(&[7, 7]), 0).is_err());
}

#[test]
fn uncertain_starts_too_near_are_caught() {
    let bound = Bound::Pacing {
        count: 1,
        period: 10,
    };
    let two = [Admission::between(0, 3, 1), Admission::between(2, 9, 1)];
    assert!(bound.check(&two, 0).is_err());
    assert!(
        bound
            .check(&[two.as_slice(), &[Admission::at(1000, 50)]].concat(), 0)
            .is_err(),
        "a dear one elsewhere"
    );
    assert!(
        bound
            .check(
                &[Admission::between(0, 3, 1), Admission::between(2, 10, 1)],
                0
            )
            .is_ok()
    );
    // Each two of them can be 10 apart, all three cannot.
    let three = |last| {
        [
            Admission::between(0, 3, 1),
            Admission::between(8, 13, 1),
            Admission::between(16, last, 1),
        ]
    };
    assert!(bound.check(&three(20), 0).is_ok());
    assert_eq!(caught(bound, &three(19)).measured, 3);
}

#[test]
fn too_many_permits_at_once_are_caught() {
    let hold = |from, until| PermitInterval {
        from,
        until,
        cost: 1,
    };
    assert!(
        check_permits(
            2,
            &[hold(0, 10), hold(0, 10), hold(10, 20), hold(10, 20)],
            0
        )
        .is_ok()
    );
    let violation = check_permits(2, &[hold(0, 10), hold(0, 10), hold(9, 20)], 0).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "3 held from 9 to 9, 1 more than the 2 that a limit of 2 in flight allows there"
    );
}

#[test]
fn the_worst_key_is_named() {
    let bound = Bound::SlidingLog {
        limit: 1,
        window: 10,
    };
    let trace = |keys: &[&'static str]| {
        keys.iter()
            .map(|&key| (key, Admission::at(5, 1)))
            .collect::<Vec<_>>()
    };
    let report = bound.check_by_key(trace(&["a", "b", "c"]), 0).unwrap();
    assert_eq!(
        report,
        Report {
            admitted: 3,
            slack: Some(0)
        }
    );
    let violation = bound
        .check_by_key(trace(&["a", "b", "c", "b", "c", "b"]), 0)
        .unwrap_err();
    assert_eq!(
        violation.to_string(),
        "key b: 3 admitted from 0 to 5, 2 more than the 1 that a limit of 1 in any 10 allows there"
    );
}

#[test]
fn times_since_1970_do_not_overflow() {
    const NOW: u64 = 1_800_000_000 * SECOND;
    const DAY: u64 = 86_400 * SECOND;
    let trace: Vec<_> = (0..10).map(|i| Admission::at(NOW + i, 1 << 40)).collect();
    for bound in [
        Bound::TokenBucket {
            count: 1 << 50,
            period: 3650 * DAY,
            burst: 10 << 40,
        },
        Bound::SlidingLog {
            limit: 10 << 40,
            window: 3650 * DAY,
        },
        Bound::SlidingLog {
            limit: 10 << 40,
            window: u64::MAX,
        },
        Bound::FixedWindow {
            limit: 10 << 40,
            window: DAY,
        },
        Bound::FirstHitWindow {
            limit: 10 << 40,
            window: u64::MAX,
        },
        Bound::EvictedFirstHitWindow {
            limit: 5 << 40,
            window: u64::MAX,
        },
        Bound::SlidingCounter {
            limit: 10 << 40,
            window: u64::MAX,
        },
    ] {
        assert_eq!(
            bound.check(&trace, 0).unwrap().admitted,
            10 << 40,
            "{bound}"
        );
        let over = [trace.as_slice(), &[Admission::at(NOW + 5, 1 << 30)]].concat();
        assert!(bound.check(&over, 0).is_err(), "{bound}");
    }
}

/// There are over a billion pairs: a check of each pair would not finish.
#[test]
fn long_traces_are_checked_fast() {
    let trace: Vec<_> = (0..50_000)
        .map(|i: u64| Admission::between(i * 10, i * 10 + i % 37, 1 + i % 2))
        .collect();
    for bound in [
        Bound::TokenBucket {
            count: 16,
            period: 100,
            burst: 1000,
        },
        Bound::SlidingLog {
            limit: 1000,
            window: 1000,
        },
        Bound::FixedWindow {
            limit: 1000,
            window: 1000,
        },
        Bound::FirstHitWindow {
            limit: 1000,
            window: 1000,
        },
        Bound::EvictedFirstHitWindow {
            limit: 1000,
            window: 1000,
        },
        Bound::SlidingCounter {
            limit: 1000,
            window: 1000,
        },
        Bound::Pacing {
            count: 1,
            period: 1,
        },
    ] {
        assert_eq!(bound.check(&trace, 0).unwrap().admitted, 75_000);
    }
}

//! Limits as text: what is accepted, what is printed, and the error messages.

use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit};
use std::time::Duration;

fn parse(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_grammar_is_accepted() {
    let hour = Duration::from_secs(3_600);
    for (text, limit) in [
        ("10/s", Limit::per_second(10)),
        ("10 / second", Limit::per_second(10)),
        ("100/min burst 20", Limit::per_minute(100).burst(20)),
        ("100/m  burst  20 ", Limit::per_minute(100).burst(20)),
        ("1000/h", Limit::per_hour(1_000)),
        ("5/15m", Limit::of(5, hour / 4)),
        ("5/15 minutes", Limit::of(5, hour / 4)),
        ("7/d", Limit::per_day(7)),
        ("7/w", Limit::of(7, 24 * 7 * hour)),
        ("1/250ms", Limit::every(Duration::from_millis(250))),
        ("unlimited", Limit::unlimited()),
        (" unlimited ", Limit::unlimited()),
        ("0", Limit::deny_all()),
        ("0/s burst 5", Limit::deny_all().burst(5)),
        ("10/s gcra", Limit::per_second(10)),
        ("10/s token_bucket", Limit::per_second(10)),
        (
            "10/s wait 2s",
            Limit::per_second(10).paced_max_wait(Duration::from_secs(2)),
        ),
        (
            "10/s pacing wait 1500ms",
            Limit::per_second(10).paced_max_wait(Duration::from_millis(1_500)),
        ),
        ("10/s queue 20", Limit::per_second(10).paced_max_queue(20)),
        ("10/s pacing", Limit::per_second(10).paced_max_queue(10)),
        (
            "1000/h sliding_log",
            Limit::per_hour(1_000).algorithm(Algorithm::SlidingLog),
        ),
        (
            "5/15m fixed_window",
            Limit::of(5, hour / 4).algorithm(Algorithm::FixedWindow),
        ),
        ("5/h refundable", Limit::per_hour(5).refundable()),
        (
            "5/h refundable burst 9",
            Limit::per_hour(5).burst(9).refundable(),
        ),
        (
            "10/s leaky_bucket burst 3",
            Limit::per_second(10)
                .burst(3)
                .algorithm(Algorithm::LeakyBucket),
        ),
    ] {
        assert_eq!(parse(text), limit, "{text}");
    }
}

#[test]
fn limits_are_printed_as_written() {
    for text in [
        "10/s",
        "100/min burst 20",
        "1000/h",
        "5/15min",
        "7/d",
        "7/w",
        "1/250ms",
        "unlimited",
        "0",
        "0/s burst 5",
        "10/s leaky_bucket",
        "10/s burst 3 leaky_bucket",
        "0 leaky_bucket",
        "90/90s",
        "1/1500ms",
        "3/2w burst 1",
        "10/s wait 2s",
        "10/s wait 1min",
        "10/s wait 0s",
        "10/s queue 20",
        "10/s queue 0",
        "10/s pacing",
        "10/s fixed_window",
        "10/s fixed_window_first_hit",
        "10/s sliding_window",
        "10/15min sliding_window_strict",
        "5/h refundable",
        "5/h burst 9 refundable",
        "5/h burst 9 leaky_bucket refundable",
        "1000/h sliding_log",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
    assert_eq!(format!("{:?}", Limit::per_second(10)), "Limit(10/s)");
}

#[test]
fn an_error_names_the_position_and_a_correction() {
    for (text, says) in [
        (
            "",
            "`` is not a limit: at character 1, a whole number is missing; write a limit as `100/min burst 20`",
        ),
        (
            "ten/s",
            "`ten/s` is not a limit: at character 1, `ten/s` is not a whole number; write a limit as `100/min burst 20`",
        ),
        (
            "10",
            "`10` is not a limit: at character 3, a `/` and a unit must follow the count, as in `100/min`",
        ),
        (
            "10/",
            "`10/` is not a limit: at character 4, a unit of time is missing; write s, min, h, d or w, as in `10/min`",
        ),
        (
            "10/0s",
            "`10/0s` is not a limit: at character 4, a period must be more than zero and at most 584 years",
        ),
        (
            "-5/s",
            "`-5/s` is not a limit: at character 1, `-5/s` is not a whole number; write a limit as `100/min burst 20`",
        ),
        (
            "1.5/s",
            "`1.5/s` is not a limit: at character 2, a `/` and a unit must follow the count, as in `100/min`",
        ),
        (
            "10/s bust 3",
            "`10/s bust 3` is not a limit: at character 6, `bust` is not known here; write `burst N`, `wait 2s`, `queue N`, `refundable` or an algorithm (token_bucket, leaky_bucket, pacing, fixed_window, fixed_window_first_hit, sliding_window, sliding_window_strict, sliding_log, gcra)",
        ),
        (
            "10/s burst",
            "`10/s burst` is not a limit: at character 11, a whole number is missing; write a limit as `100/min burst 20`",
        ),
        (
            "10/s burst 5leaky_bucket",
            "`10/s burst 5leaky_bucket` is not a limit: at character 12, `5leaky_bucket` is not a whole number; write a limit as `100/min burst 20`",
        ),
        (
            "10/s burst 3 burst 4",
            "`10/s burst 3 burst 4` is not a limit: at character 14, `burst` is given twice; give it once",
        ),
        (
            "10/s sliding_log burst 3",
            "`10/s sliding_log burst 3` is not a limit: at character 6, only token_bucket and leaky_bucket have a burst; leave it out",
        ),
        (
            "10/s burst 3 wait 2s",
            "`10/s burst 3 wait 2s` is not a limit: at character 14, `wait D` or `queue N` belong to pacing, one of them, without burst",
        ),
        (
            "10/s queue 3 fixed_window",
            "`10/s queue 3 fixed_window` is not a limit: at character 14, `wait D` or `queue N` belong to pacing, one of them, without burst",
        ),
        (
            "10/s wait soon",
            "`10/s wait soon` is not a limit: at character 11, `soon` is not a unit of time; write s, min, h, d or w, as in `10/min`",
        ),
        (
            "10/s refundable sliding_log",
            "`10/s refundable sliding_log` is not a limit: at character 6, only token_bucket and leaky_bucket can be refundable; the others give back in full without it",
        ),
        (
            "10/s wait 1s refundable",
            "`10/s wait 1s refundable` is not a limit: at character 14, only token_bucket and leaky_bucket can be refundable; the others give back in full without it",
        ),
        (
            "10/s refundable refundable",
            "`10/s refundable refundable` is not a limit: at character 17, `refundable` is given twice; give it once",
        ),
        (
            "unlimited burst 3",
            "`unlimited burst 3` is not a limit: at character 11, `burst` is not expected after the limit; remove it",
        ),
        (
            "99999999999999999999/s",
            "`99999999999999999999/s` is not a limit: at character 1, `99999999999999999999/s` is more than 18446744073709551615",
        ),
        (
            "1/d burst 100000",
            "`1/d burst 100000` is not a limit: at character 11, this much would take over 142 years to fill; lower the burst or raise the rate",
        ),
    ] {
        let error = text.parse::<Limit>().unwrap_err();
        assert_eq!(error.to_string(), says);
        assert!(error.at() <= text.len());
    }
}

#[test]
fn effective_shows_what_was_rounded() {
    assert!(Limit::per_second(58_000_000_000).effective().is_none());
    assert_eq!(
        Limit::per_second(60_000_000_000)
            .effective()
            .unwrap()
            .to_string(),
        "1 every 0.01724 ns, burst 60000000000"
    );
    let clipped = Limit::per_day(1).burst(u64::MAX).effective().unwrap();
    assert_eq!(clipped.burst(), 52_124);
    assert_eq!(
        Limit::every(Duration::MAX).effective().unwrap().to_string(),
        "no refill, burst 1"
    );
    assert!(Limit::deny_all().burst(9).effective().is_none());
}

#[test]
fn floats_become_the_fraction_they_stand_for() {
    for (rate, text) in [
        (10.0, "10/s"),
        (0.5, "1/2s"),
        (0.1, "1/10s"),
        (1.0 / 3.0, "1/3s"),
        (0.769_230_769_230_769_3, "10/13s burst 1"),
        (2.5, "5/2s burst 3"),
        (1e10, "10000000000/s"),
        (0.0, "0"),
        (1.0 / 86_400.0, "1/d"),
    ] {
        assert_eq!(Limit::per_second_f64(rate).unwrap().to_string(), text);
    }
    assert_eq!(
        Limit::per_second_f64(f64::MIN_POSITIVE).unwrap().fills_in(),
        None
    );
    assert!(Limit::per_second_f64(f64::MAX).is_ok());
    let error = Limit::per_second_f64(f64::INFINITY).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inf is not a rate: for no limit, use Limit::unlimited()"
    );
    assert_eq!(
        Limit::per_second_f64(-1.5).unwrap_err().to_string(),
        "-1.5 is not a rate: a rate must be zero or more"
    );
}

#[cfg(feature = "serde")]
#[test]
fn serde_reads_and_writes_the_text() {
    let limit = Limit::per_minute(100).burst(20);
    assert_eq!(
        serde_json::to_string(&limit).unwrap(),
        "\"100/min burst 20\""
    );
    assert_eq!(
        serde_json::from_str::<Limit>("\"100/min burst 20\"").unwrap(),
        limit
    );
    let error = serde_json::from_str::<Limit>("\"100/fortnight\"").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`fortnight` is not a unit of time"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn printing_and_parsing_are_inverse(
        count in prop_oneof![0..100u64, any::<u64>()],
        period in prop_oneof![(1..100u64).prop_map(|s| s * 1_000_000_000), 1..u64::MAX],
        burst in prop::option::of(prop_oneof![0..100u64, any::<u64>()]),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        paced in prop::option::of((any::<bool>(), prop_oneof![0..100u64, any::<u64>()])),
        refundable in any::<bool>(),
    ) {
        let limit = Limit::of(count, Duration::from_nanos(period));
        let limit = burst.map_or(limit, |burst| limit.burst(burst));
        let limit = match paced {
            Some((true, longest)) => limit.paced_max_queue(longest),
            Some((false, longest)) => limit.paced_max_wait(Duration::from_nanos(longest)),
            None => limit.algorithm(algorithm),
        };
        let limit = if refundable { limit.refundable() } else { limit };
        match limit.to_string().parse::<Limit>() {
            Ok(parsed) => prop_assert_eq!(parsed, limit),
            // Only what code clips is an error in text.
            Err(error) => prop_assert_eq!(error.kind(), ratekeeper::limit::ParseLimitErrorKind::Fill),
        }
    }

    #[test]
    fn a_float_keeps_its_value(rate in 1e-9..1e12f64) {
        let told = Limit::per_second_f64(rate).unwrap().rate().unwrap().per_second();
        prop_assert!((told / rate - 1.0).abs() < 1e-12, "{rate} became {told}");
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        if let Err(error) = text.parse::<Limit>() {
            prop_assert!(error.at() <= text.len());
            let _ = error.to_string();
        }
    }

    #[test]
    fn no_text_that_is_nearly_right_panics(text in "[0-9]{0,21} ?/? ?[0-9]{0,3}(s|min|h|d|w|µ|ms)? ?(burst|wait|gcra)? ?[0-9]{0,21}") {
        let _ = text.parse::<Limit>().map_err(|error| error.to_string());
    }
}

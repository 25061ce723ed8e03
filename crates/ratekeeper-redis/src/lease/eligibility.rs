//! Which limits can be leased, and how.

use super::node::LeaseSettings;
use ratekeeper::{limit::MicrosLimit, limit::WindowCounter};
use std::time::Duration;

/// The shortest life of a lease, in microseconds: a shorter one is over when its answer is there.
const SHORTEST: u64 = 20_000;
/// Of fewer tokens an eighth is next to nothing.
const FEWEST: u64 = 16;

/// How a limit is leased; none if it is too small, or of a kind that is not.
///
/// A lease of a window ends with the window, so that it is spent where it was counted. Those of a
/// log are counted from when they were given, for a window that is longer by their life (see
/// [`stretched`]).
pub(crate) fn manner(form: &MicrosLimit, staleness: Duration) -> Option<LeaseSettings> {
    let staleness = u64::try_from(staleness.as_micros()).unwrap_or(u64::MAX);
    // A quarter of the time it takes to be whole again, so that what is out is never most of it.
    let of = |whole: u64, burst: u64| {
        let lives = (whole / 4).min(staleness).max(SHORTEST);
        (whole >= 4 * SHORTEST && burst >= FEWEST).then_some(LeaseSettings { lives, burst })
    };
    match *form {
        MicrosLimit::Bucket {
            per_micro,
            token,
            capacity,
            refundable: false,
        } if per_micro > 0 => of(capacity / per_micro, capacity / token),
        MicrosLimit::Window {
            count: WindowCounter::Fixed | WindowCounter::Sliding { .. },
            window,
            most,
        } => of(window, most),
        MicrosLimit::Window {
            count: WindowCounter::Strict { steps },
            window,
            most,
        } => of(window / steps, most),
        MicrosLimit::Window {
            count: WindowCounter::Log,
            window,
            most,
        } => {
            let lives = (window / 100).min(staleness);
            (lives >= SHORTEST && most >= FEWEST).then_some(LeaseSettings { lives, burst: most })
        }
        _ => None,
    }
}

/// The form of a limit that is, or was, leased for so long: a log has a longer window.
pub(crate) fn stretched(form: MicrosLimit, lives: u64) -> MicrosLimit {
    match form {
        MicrosLimit::Window {
            count: WindowCounter::Log,
            window,
            most,
        } => MicrosLimit::Window {
            count: WindowCounter::Log,
            window: window + lives,
            most,
        },
        form => form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::Limit;

    fn lives(limit: &str, staleness: u64) -> Option<u64> {
        let form = limit.parse::<Limit>().unwrap().in_micros();
        manner(&form, Duration::from_millis(staleness)).map(|manner| manner.lives / 1_000)
    }

    #[test]
    fn a_lease_lives_as_long_as_the_limit_and_the_operator_allow() {
        assert_eq!(lives("100/s burst 200", 100), Some(100));
        assert_eq!(lives("100/s burst 200", 10_000), Some(500));
        assert_eq!(lives("100/s burst 200", 1), Some(20));
        assert_eq!(lives("1000000/s burst 2000000", 1_000), Some(500));
        assert_eq!(lives("1000/min fixed_window", 60_000), Some(15_000));
        assert_eq!(lives("1000/min sliding_window", 100), Some(100));
        assert_eq!(lives("1000/min sliding_window_strict", 60_000), Some(1_500));
        assert_eq!(lives("1000/min sliding_log", 60_000), Some(600));
    }

    #[test]
    fn what_is_too_small_or_of_another_kind_is_not_leased() {
        for limit in [
            "10/s burst 15",
            "1000/s burst 79",
            "100/ms burst 100",
            "10/s wait 2s",
            "100/s fixed_window_first_hit",
            "30/50ms fixed_window",
            "30/200ms sliding_window_strict",
            "30/s sliding_log",
            "100/s burst 200 refundable",
            "0",
            "unlimited",
        ] {
            assert_eq!(lives(limit, 100), None, "{limit}");
        }
    }
}

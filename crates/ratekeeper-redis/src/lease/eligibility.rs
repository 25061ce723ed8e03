//! Which limits can be leased, and for how long.

use super::node::LeaseSettings;
use ratekeeper::{store::backend::MicrosLimit, store::backend::WindowCounter};
use std::time::Duration;

/// The shortest TTL of a lease, in microseconds: a shorter one would be over when the answer
/// arrives.
const MIN_TTL_MICROS: u64 = 20_000;
/// The smallest burst that is leased: an eighth of less would be too few tokens.
const MIN_BURST: u64 = 16;

/// How a limit is leased; `None` if it is too small or its algorithm cannot be leased.
///
/// A lease of a window ends with the window, so that it is spent in the window that counted it.
/// Leases of a log are counted from when they were granted, in a window that is longer by their TTL
/// (see [`extended_window`]).
pub(crate) fn lease_settings(form: &MicrosLimit, staleness: Duration) -> Option<LeaseSettings> {
    let staleness = u64::try_from(staleness.as_micros()).unwrap_or(u64::MAX);
    // A quarter of the time to refill, so that leases never take most of the limit.
    let of = |whole: u64, burst: u64| {
        let ttl = (whole / 4).min(staleness).max(MIN_TTL_MICROS);
        (whole >= 4 * MIN_TTL_MICROS && burst >= MIN_BURST).then_some(LeaseSettings { ttl, burst })
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
            max,
        } => of(window, max),
        MicrosLimit::Window {
            count: WindowCounter::Strict { steps },
            window,
            max,
        } => of(window / steps, max),
        MicrosLimit::Window {
            count: WindowCounter::Log,
            window,
            max,
        } => {
            let ttl = (window / 100).min(staleness);
            (ttl >= MIN_TTL_MICROS && max >= MIN_BURST).then_some(LeaseSettings { ttl, burst: max })
        }
        _ => None,
    }
}

/// The form of a limit that is or was leased with this TTL: a log gets a longer window.
pub(crate) fn extended_window(form: MicrosLimit, ttl: u64) -> MicrosLimit {
    match form {
        MicrosLimit::Window {
            count: WindowCounter::Log,
            window,
            max,
        } => MicrosLimit::Window {
            count: WindowCounter::Log,
            window: window + ttl,
            max,
        },
        form => form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::Limit;

    fn ttl(limit: &str, staleness: u64) -> Option<u64> {
        let form = limit.parse::<Limit>().unwrap().in_micros();
        lease_settings(&form, Duration::from_millis(staleness)).map(|settings| settings.ttl / 1_000)
    }

    #[test]
    fn the_ttl_follows_the_limit_and_the_staleness() {
        assert_eq!(ttl("100/s burst 200", 100), Some(100));
        assert_eq!(ttl("100/s burst 200", 10_000), Some(500));
        assert_eq!(ttl("100/s burst 200", 1), Some(20));
        assert_eq!(ttl("1000000/s burst 2000000", 1_000), Some(500));
        assert_eq!(ttl("1000/min fixed_window", 60_000), Some(15_000));
        assert_eq!(ttl("1000/min sliding_window", 100), Some(100));
        assert_eq!(ttl("1000/min sliding_window_strict", 60_000), Some(1_500));
        assert_eq!(ttl("1000/min sliding_log", 60_000), Some(600));
    }

    #[test]
    fn small_limits_and_other_algorithms_are_not_leased() {
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
            assert_eq!(ttl(limit, 100), None, "{limit}");
        }
    }
}

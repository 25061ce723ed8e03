//! Deadlines and start times as clients and proxies write them.

use ratekeeper::Timestamp;
use std::time::Duration;

/// Parses the timeout of a gRPC client in `grpc-timeout`: up to eight digits and a unit. `None` if
/// it is malformed.
///
/// ```
/// use ratekeeper_policy::request::grpc_timeout;
/// use std::time::Duration;
///
/// assert_eq!(grpc_timeout(b"250m"), Some(Duration::from_millis(250)));
/// ```
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Parses the start time of a request as proxies write it (`X-Request-Start`): `t=1700000000.123`
/// in seconds, or a whole number since 1970 whose size determines the unit. `None` if it is
/// malformed.
///
/// ```
/// use ratekeeper_policy::request::request_start;
///
/// assert_eq!(request_start(b"t=1700000000.123"), request_start(b"1700000000123"));
/// ```
pub fn request_start(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let text = text.strip_prefix("t=").unwrap_or(text);
    let (whole, fraction) = text
        .split_once('.')
        .map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || fraction.is_some_and(|fraction| !digits(fraction)) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    // A day of 1973 in each unit is already more than a day of 5138 in the next greater one.
    const UNITS: [(u64, u64); 3] = [
        (100_000_000_000_000_000, 1),
        (100_000_000_000_000, 1_000),
        (100_000_000_000, 1_000_000),
    ];
    let in_unit = UNITS.iter().find(|(from, _)| number >= *from);
    if let Some((_, nanos)) = in_unit {
        return Some(Timestamp::from_unix_nanos(number.checked_mul(*nanos)?));
    }
    // Nanoseconds of the fraction: its first nine digits.
    let nanos = fraction
        .unwrap_or_default()
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(9);
    let nanos = nanos.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(Timestamp::from_unix_nanos(
        number.checked_mul(1_000_000_000)?.checked_add(nanos)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::{grpc_timeout, request_start};
    use proptest::prelude::*;
    use ratekeeper::Timestamp;
    use std::time::Duration;

    #[test]
    fn grpc_timeouts_are_parsed() {
        assert_eq!(grpc_timeout(b"2S"), Some(Duration::from_secs(2)));
        assert_eq!(
            grpc_timeout(b"99999999H"),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
        assert_eq!(grpc_timeout(b"250m"), Some(Duration::from_millis(250)));
        assert_eq!(grpc_timeout(b"0n"), Some(Duration::ZERO));
        for nonsense in ["", "S", "1", "123456789S", "-1S", "1.5S", "1s", " 1S"] {
            assert_eq!(grpc_timeout(nonsense.as_bytes()), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_start_may_have_any_unit() {
        let expected = Some(Timestamp::from_unix(Duration::from_millis(
            1_700_000_000_123,
        )));
        for text in [
            "t=1700000000.123",
            "1700000000123",
            "t=1700000000123000",
            "1700000000123000000",
            "1700000000.1230",
        ] {
            assert_eq!(request_start(text.as_bytes()), expected, "{text}");
        }
        for nonsense in [
            "",
            "t=",
            "soon",
            "t=-5",
            "1e9",
            "1.",
            ".5",
            "99999999999999999999999",
        ] {
            assert_eq!(request_start(nonsense.as_bytes()), None, "{nonsense:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            request_start(&bytes);
            grpc_timeout(&bytes);
        }
    }
}

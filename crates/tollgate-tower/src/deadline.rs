//! Until when somebody waits for an answer, and how requests say so.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use tollgate::Instant;

/// `grpc-timeout`, as gRPC's clients send it.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Until when somebody waits for the answer to a request: an extension of the request.
///
/// [`ShedLayer`](crate::ShedLayer) drops what comes after it, and [`ClientLayer`](crate::client::ClientLayer) neither waits nor
/// tries again beyond it. Take it from the request that came in and put it into those that go out on its behalf.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, SystemClock};
/// use tollgate_tower::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline(SystemClock.now() + Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(
    /// From then on nobody waits.
    pub Instant,
);

/// How long a gRPC client waits: up to eight digits and a unit. None if it does not say, or nonsense.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(GRPC_TIMEOUT)?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
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

/// When a request began, as proxies write it: `t=1700000000.123` in seconds, or a whole number since 1970 of which its size
/// tells the unit. None if it is nonsense.
pub(crate) fn start(value: &HeaderValue) -> Option<Instant> {
    let text = value.to_str().ok()?.trim();
    let text = text.strip_prefix("t=").unwrap_or(text);
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || fraction.is_some_and(|fraction| !digits(fraction)) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    // A day of 1973 in each unit is already more than a day of 5138 in the next greater one.
    const UNITS: [(u64, u64); 3] =
        [(100_000_000_000_000_000, 1), (100_000_000_000_000, 1_000), (100_000_000_000, 1_000_000)];
    let in_unit = UNITS.iter().find(|(from, _)| number >= *from);
    if let Some((_, nanos)) = in_unit {
        return Some(Instant::from_unix_nanos(number.checked_mul(*nanos)?));
    }
    // Nanoseconds of the fraction: its first nine digits.
    let nanos = fraction.unwrap_or_default().bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(Instant::from_unix_nanos(number.checked_mul(1_000_000_000)?.checked_add(nanos)?))
}

#[cfg(test)]
mod tests {
    use super::{GRPC_TIMEOUT, grpc_timeout, start};
    use http::{HeaderMap, HeaderValue};
    use proptest::prelude::*;
    use std::time::Duration;
    use tollgate::Instant;

    fn timeout(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_str(text).unwrap());
        grpc_timeout(&headers)
    }

    #[test]
    fn grpc_clients_say_how_long_they_wait() {
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        assert_eq!(timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(timeout("0n"), Some(Duration::ZERO));
        for nonsense in ["", "S", "1", "123456789S", "-1S", "1.5S", "1s", " 1S"] {
            assert_eq!(timeout(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_start_is_told_in_any_unit() {
        let at = |text: &'static str| start(&HeaderValue::from_static(text));
        let expected = Some(Instant::from_unix(Duration::from_millis(1_700_000_000_123)));
        for text in
            ["t=1700000000.123", "1700000000123", "t=1700000000123000", "1700000000123000000", "1700000000.1230"]
        {
            assert_eq!(at(text), expected, "{text}");
        }
        for nonsense in ["", "t=", "soon", "t=-5", "1e9", "1.", ".5", "99999999999999999999999"] {
            assert_eq!(at(nonsense), None, "{nonsense:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                start(&value);
                let mut headers = HeaderMap::new();
                headers.insert(GRPC_TIMEOUT, value);
                grpc_timeout(&headers);
            }
        }
    }
}

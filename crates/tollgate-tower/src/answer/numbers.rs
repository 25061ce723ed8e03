//! Numbers as the wire tells them: times are rounded up, so that nobody comes too early.

use http::HeaderValue;
use std::cell::RefCell;
use std::time::Duration;

/// As large as an integer of a structured field may be.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;

/// Whole seconds.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// An integer of a structured field.
pub(super) fn integer(number: u64) -> u64 {
    number.min(LARGEST_INTEGER)
}

/// A number as the value of a header. That of the http crate takes memory twice, for 20 digits and for sharing them; this
/// one once, for as many as there are.
pub(super) fn value(number: u64) -> HeaderValue {
    const MOST_DIGITS: usize = 20;
    let mut digits = [0; MOST_DIGITS];
    let (mut at, mut rest) = (MOST_DIGITS, number);
    // Two at a time: each step waits for the division before it.
    while rest >= 10 {
        let pair = (rest % 100) as u8;
        rest /= 100;
        at -= 2;
        [digits[at], digits[at + 1]] = [b'0' + pair / 10, b'0' + pair % 10];
    }
    if rest > 0 || at == MOST_DIGITS {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    // Digits are a value.
    HeaderValue::from_bytes(&digits[at..]).unwrap_or_else(|_| number.into())
}

/// The same for a number that seldom changes, such as a limit: that of the last call on this thread, if it is the same.
pub(super) fn lasting_value(number: u64) -> HeaderValue {
    thread_local!(static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) });
    LAST.with_borrow_mut(|last| match last {
        Some((of, value)) if *of == number => value.clone(),
        _ => last.insert((number, value(number))).1.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::{lasting_value, value};

    #[test]
    fn a_value_says_the_number() {
        let powers = (0..20).map(|digits| 10_u64.pow(digits)).flat_map(|power| [power - 1, power, power + 1]);
        for number in powers.chain([57, 101, 1_005, u64::MAX - 1, u64::MAX]) {
            assert_eq!(value(number), number.to_string().as_str());
            assert_eq!([lasting_value(number), lasting_value(number)], [value(number), value(number)]);
        }
    }
}

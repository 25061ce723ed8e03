//! Numbers as the wire tells them: times are rounded up, so that nobody comes too early.

use http::{HeaderMap, HeaderName, HeaderValue};
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

/// A number that is not small as the value of a header. That of the http crate takes memory twice, for 20 digits and for sharing
/// them, and this one once, for as many as there are.
fn value(number: u64) -> HeaderValue {
    const MOST_DIGITS: usize = 21;
    let mut digits = [0; MOST_DIGITS];
    let (mut at, mut rest) = (MOST_DIGITS, number);
    // Three at a time: each step waits for the division before it.
    let mut put = |three: u64| {
        let three = 3 * three as usize;
        at -= 3;
        digits[at..at + 3].copy_from_slice(&DIGITS[three..three + 3]);
    };
    while rest >= SMALL as u64 {
        put(rest % SMALL as u64);
        rest /= SMALL as u64;
    }
    put(rest);
    at += zeros(rest as usize);
    // Digits are a value.
    HeaderValue::from_bytes(&digits[at..]).unwrap_or_else(|_| number.into())
}

/// Numbers below are small.
const SMALL: usize = 1_000;

/// The three digits of each small number behind one another, leading zeros and all.
static DIGITS: [u8; 3 * SMALL] = {
    let mut digits = [0; 3 * SMALL];
    let mut number = 0;
    while number < SMALL {
        digits[3 * number] = b'0' + (number / 100) as u8;
        digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        digits[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    digits
};

/// The same as text.
static TEXT: &str = match str::from_utf8(&DIGITS) {
    Ok(text) => text,
    Err(_) => "",
};

/// A small number as the value of a header, which takes no memory.
#[inline]
fn small(number: usize) -> HeaderValue {
    HeaderValue::from_static(&TEXT[3 * number + zeros(number)..3 * number + 3])
}

/// How many zeros lead the three digits of a small number, of which one stays.
const fn zeros(number: usize) -> usize {
    (number < 10) as usize + (number < 100) as usize
}

/// Inserts a number.
// There once for all numbers of a response: what a server does between two requests leaves little of this in the nearest cache, and
// to fetch code again costs more than to run it.
#[inline(never)]
fn insert_one(headers: &mut HeaderMap, name: HeaderName, number: u64) {
    // Each where it is made: a value is slow to move.
    if number < SMALL as u64 {
        headers.insert(name, small(number as usize));
    } else {
        headers.insert(name, value(number));
    }
}

/// Inserts a limit, what remains of it, and its reset if there is one, under these names.
#[inline(always)]
pub(super) fn insert(headers: &mut HeaderMap, names: [HeaderName; 3], limit: u64, remaining: u64, reset: Option<u64>) {
    let [limit_name, remaining_name, reset_name] = names;
    insert_one(headers, limit_name, limit);
    insert_one(headers, remaining_name, remaining);
    if let Some(reset) = reset {
        insert_one(headers, reset_name, reset);
    }
}

#[cfg(test)]
mod tests {
    use super::{SMALL, insert, value};
    use http::HeaderMap;
    use http::header::{AGE, CONTENT_LENGTH, HeaderName, RETRY_AFTER};

    const THREE: [HeaderName; 3] = [AGE, CONTENT_LENGTH, RETRY_AFTER];

    #[test]
    fn a_value_says_the_number() {
        let powers = (0..20).map(|digits| 10_u64.pow(digits)).flat_map(|power| [power - 1, power, power + 1]);
        for number in powers.chain([57, 101, 1_005, 1_069, u64::MAX - 1, u64::MAX]) {
            let text = number.to_string();
            if number >= SMALL as u64 {
                assert_eq!(value(number), text.as_str());
            }
            for _ in 0..3 {
                let mut headers = HeaderMap::new();
                insert(&mut headers, THREE, number, number, Some(number));
                for name in THREE {
                    assert_eq!(headers[name], text.as_str());
                }
            }
        }
    }
}

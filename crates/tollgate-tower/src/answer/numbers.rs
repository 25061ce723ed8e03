//! Numbers as the wire tells them: times are rounded up, so that nobody comes too early.

use http::{HeaderMap, HeaderName, HeaderValue};
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

/// The small numbers, which take no memory.
static SMALL_VALUES: [HeaderValue; SMALL] = {
    let mut values = [const { HeaderValue::from_static("") }; SMALL];
    let mut number = 0;
    while number < SMALL {
        let (_, from) = DIGITS.split_at(3 * number + zeros(number));
        let (digits, _) = from.split_at(3 - zeros(number));
        if let Ok(digits) = str::from_utf8(digits) {
            // What was there is text that nobody drops, which could not be done here.
            std::mem::forget(std::mem::replace(&mut values[number], HeaderValue::from_static(digits)));
        }
        number += 1;
    }
    values
};

/// How many zeros lead the three digits of a small number, of which one stays.
const fn zeros(number: usize) -> usize {
    (number < 10) as usize + (number < 100) as usize
}

/// Values of numbers that come more than once, shared by the responses of a thread: limits, and the seconds of resets, of which those
/// within a minute are all remembered; then what remains, for those who come slowly (of a limit of 5,000 that is 4,999 every time).
/// That is apart, since for those in a hurry it is another number each time.
struct Seen([Shared; LASTING + PASSING]);

const LASTING: usize = 64;
const PASSING: usize = 8;

thread_local!(static SEEN: RefCell<Seen> = const { RefCell::new(Seen([Shared::NONE; LASTING + PASSING])) });

/// A number that came, and its value once it came again: that of one that does not would be remembered for nothing.
struct Shared(u64, Option<HeaderValue>);

impl Shared {
    const NONE: Self = Self(0, None);

    /// The value of a number that is not in `self`, or has none there.
    #[inline(never)]
    fn renewed(&mut self, number: u64) -> HeaderValue {
        let value = value(number);
        self.1 = (self.0 == number).then(|| value.clone());
        self.0 = number;
        value
    }
}

impl Seen {
    /// Inserts a number that lasts, or one that passes.
    // There once for all numbers of a response, and what is rare apart: what a server does between two requests leaves little of
    // this in the nearest cache, and to fetch code again costs more than to run it.
    #[inline(never)]
    fn insert(&mut self, headers: &mut HeaderMap, name: HeaderName, number: u64, lasts: bool) {
        let value = if let Some(small) = usize::try_from(number).ok().and_then(|number| SMALL_VALUES.get(number)) {
            small.clone()
        } else {
            let place = if lasts { number as usize % LASTING } else { LASTING + number as usize % PASSING };
            let shared = &mut self.0[place];
            match &shared.1 {
                Some(value) if shared.0 == number => value.clone(),
                _ => shared.renewed(number),
            }
        };
        headers.insert(name, value);
    }
}

/// Inserts a limit, what remains of it, and its reset if there is one, under these names.
#[inline(always)]
pub(super) fn insert(headers: &mut HeaderMap, names: [HeaderName; 3], limit: u64, remaining: u64, reset: Option<u64>) {
    let [limit_name, remaining_name, reset_name] = names;
    SEEN.with_borrow_mut(|seen| {
        seen.insert(headers, limit_name, limit, true);
        seen.insert(headers, remaining_name, remaining, false);
        if let Some(reset) = reset {
            seen.insert(headers, reset_name, reset, true);
        }
    });
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

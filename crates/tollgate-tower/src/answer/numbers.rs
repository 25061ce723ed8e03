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

/// A number as the value of a header. A small one takes no memory; that of the http crate takes it twice, for 20 digits and
/// for sharing them, and this one once, for as many as there are.
fn value(number: u64) -> HeaderValue {
    if let Some(text) = small(number) {
        return HeaderValue::from_static(text);
    }
    const MOST_DIGITS: usize = 21;
    let mut digits = [0; MOST_DIGITS];
    let (mut at, mut rest) = (MOST_DIGITS, number);
    // Three at a time: each step waits for the division before it.
    let mut put = |three: u64| {
        let three = 3 * three as usize;
        at -= 3;
        digits[at..at + 3].copy_from_slice(&DIGITS[three..three + 3]);
    };
    while rest >= SMALL {
        put(rest % SMALL);
        rest /= SMALL;
    }
    put(rest);
    at += zeros(rest);
    // Digits are a value.
    HeaderValue::from_bytes(&digits[at..]).unwrap_or_else(|_| number.into())
}

/// Numbers below are small.
const SMALL: u64 = 1_000;

/// The three digits of each small number behind one another, leading zeros and all.
const DIGITS: &[u8; 3 * SMALL as usize] = &{
    let mut digits = [0; 3 * SMALL as usize];
    let mut number = 0;
    while number < SMALL as usize {
        digits[3 * number] = b'0' + (number / 100) as u8;
        digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        digits[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    digits
};

/// The same as text.
const TEXT: &str = match str::from_utf8(DIGITS) {
    Ok(text) => text,
    Err(_) => panic!("digits are text"),
};

/// The text of a small number.
#[inline]
fn small(number: u64) -> Option<&'static str> {
    if number >= SMALL {
        return None;
    }
    let three = 3 * number as usize;
    TEXT.get(three + zeros(number)..three + 3)
}

/// How many zeros lead the three digits of a small number, of which one stays.
#[inline]
fn zeros(number: u64) -> usize {
    usize::from(number < 10) + usize::from(number < 100)
}

/// Values of numbers that come more than once, shared by the responses of a thread.
struct Seen {
    /// Limits, and the seconds of resets: those within a minute are all remembered.
    lasting: [Shared; 64],
    /// What remains, for those who come slowly: of a limit of 5,000 that is 4,999 every time. Apart, since for those in a hurry it is
    /// another number each time.
    remaining: [Shared; 8],
}

thread_local!(static SEEN: RefCell<Seen> =
    const { RefCell::new(Seen { lasting: [Shared::NONE; 64], remaining: [Shared::NONE; 8] }) });

/// A number that came, and its value once it came again: that of one that does not would be remembered for nothing.
struct Shared(u64, Option<HeaderValue>);

impl Shared {
    const NONE: Self = Self(0, None);

    // Inserted here rather than handed out: a value is slow to move.
    #[inline(always)]
    fn insert<const N: usize>(all: &mut [Self; N], headers: &mut HeaderMap, name: HeaderName, number: u64) {
        if let Some(text) = small(number) {
            headers.insert(name, HeaderValue::from_static(text));
            return;
        }
        let seen = &mut all[number as usize % N];
        if seen.0 != number {
            *seen = Self(number, None);
            headers.insert(name, value(number));
        } else {
            headers.insert(name, seen.1.get_or_insert_with(|| value(number)).clone());
        }
    }
}

/// What the three headers of a limit are called.
pub(super) trait Names {
    const LIMIT: HeaderName;
    const REMAINING: HeaderName;
    const RESET: HeaderName;
}

/// Inserts a limit, what remains of it, and its reset if there is one.
#[inline]
pub(super) fn insert<N: Names>(headers: &mut HeaderMap, limit: u64, remaining: u64, reset: Option<u64>) {
    SEEN.with_borrow_mut(|seen| {
        Shared::insert(&mut seen.lasting, headers, N::LIMIT, limit);
        Shared::insert(&mut seen.remaining, headers, N::REMAINING, remaining);
        if let Some(reset) = reset {
            Shared::insert(&mut seen.lasting, headers, N::RESET, reset);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{Names, insert, value};
    use http::HeaderMap;
    use http::header::{AGE, CONTENT_LENGTH, HeaderName, RETRY_AFTER};

    struct Three;

    impl Names for Three {
        const LIMIT: HeaderName = AGE;
        const REMAINING: HeaderName = CONTENT_LENGTH;
        const RESET: HeaderName = RETRY_AFTER;
    }

    #[test]
    fn a_value_says_the_number() {
        let powers = (0..20).map(|digits| 10_u64.pow(digits)).flat_map(|power| [power - 1, power, power + 1]);
        for number in powers.chain([57, 101, 1_005, 1_069, u64::MAX - 1, u64::MAX]) {
            assert_eq!(value(number), number.to_string().as_str());
            for _ in 0..3 {
                let mut headers = HeaderMap::new();
                insert::<Three>(&mut headers, number, number, Some(number));
                for name in [AGE, CONTENT_LENGTH, RETRY_AFTER] {
                    assert_eq!(headers[name], value(number));
                }
            }
        }
    }
}

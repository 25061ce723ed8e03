//! Numbers as the wire tells them: times are rounded up, so that nobody comes too early.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::cell::RefCell;
use std::fmt::Write;
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

/// Room for the digits of any number, three at a time.
const MOST_DIGITS: usize = 21;

/// A number that is not small as the value of a header. That of the http crate takes memory twice, for 20 digits and for sharing
/// them, and this one once, for as many as there are.
fn value(number: u64) -> HeaderValue {
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

/// For how long a number is told.
#[derive(Clone, Copy)]
enum Stays {
    /// Limits: for as long as nobody changes them.
    Long,
    /// Resets: until that second has come, and then the next one is.
    ASecond,
    /// What remains: the next response tells another number.
    Once,
}

/// Values that the responses of a thread share: of limits that came again, and of the seconds that are told now.
struct Seen {
    limits: [Shared; LIMITS],
    seconds: Seconds,
}

const LIMITS: usize = 16;

thread_local!(static SEEN: RefCell<Seen> = const { RefCell::new(Seen::NONE) });

/// A number that came, and its value once it came again: that of one that does not would be remembered for nothing.
struct Shared(u64, Option<HeaderValue>);

/// The values of as many seconds as there are from one multiple of [`Seconds::MANY`] to the next.
///
/// All at once, in memory that they have together: a value for each as it came would be two small pieces of memory every second,
/// taken for longer than any request has them. glibc keeps few small pieces at hand, and where one is missing it takes a larger one,
/// which is then never put back among those: from then on it tidies up all its memory for each request, which costs as much as the
/// whole decision.
struct Seconds {
    /// Which multiple; the values are none before the first.
    which: u64,
    values: Vec<HeaderValue>,
    /// That of the last one that was not among them. If it comes again before any that is, its time has come.
    next: u64,
}

impl Seen {
    const NONE: Self = Self {
        limits: [const { Shared(0, None) }; LIMITS],
        seconds: Seconds { which: 0, values: Vec::new(), next: 0 },
    };
}

impl Shared {
    fn value(&mut self, number: u64) -> HeaderValue {
        match &self.1 {
            Some(value) if self.0 == number => value.clone(),
            _ => self.renewed(number),
        }
    }

    /// The value of a number that is not in `self`, or has none there.
    #[cold]
    #[inline(never)]
    fn renewed(&mut self, number: u64) -> HeaderValue {
        let value = value(number);
        self.1 = (self.0 == number).then(|| value.clone());
        self.0 = number;
        value
    }
}

impl Seconds {
    const MANY: u64 = 64;

    fn value(&mut self, second: u64) -> HeaderValue {
        let (which, at) = (second / Self::MANY, second % Self::MANY);
        match self.values.get(at as usize) {
            Some(value) if self.which == which => {
                self.next = which;
                value.clone()
            }
            _ => self.renewed(second, which),
        }
    }

    #[cold]
    #[inline(never)]
    fn renewed(&mut self, second: u64, which: u64) -> HeaderValue {
        if std::mem::replace(&mut self.next, which) == which {
            let mut text = String::with_capacity(MOST_DIGITS * Self::MANY as usize);
            let ends: [usize; Self::MANY as usize] = std::array::from_fn(|at| {
                // Writing to a string does not fail.
                let _ = write!(text, "{}", (which * Self::MANY).saturating_add(at as u64));
                text.len()
            });
            let (text, starts) = (Bytes::from(text), [0].into_iter().chain(ends));
            self.which = which;
            self.values.clear();
            // Digits are a value.
            let values = starts.zip(ends).map(|(start, end)| HeaderValue::from_maybe_shared(text.slice(start..end)));
            self.values.extend(values.flatten());
        }
        value(second)
    }
}

/// Inserts a number.
// There once for all numbers of a response, and what is rare apart: what a server does between two requests leaves little of
// this in the nearest cache, and to fetch code again costs more than to run it.
#[inline(never)]
fn insert_one(headers: &mut HeaderMap, name: HeaderName, number: u64, stays: Stays) {
    // Each where it is made: a value is slow to move.
    match (SMALL_VALUES.get(usize::try_from(number).unwrap_or(SMALL)), stays) {
        (Some(small), _) => headers.insert(name, small.clone()),
        (None, Stays::ASecond) => headers.insert(name, SEEN.with_borrow_mut(|seen| seen.seconds.value(number))),
        (None, Stays::Long) => {
            headers.insert(name, SEEN.with_borrow_mut(|seen| seen.limits[number as usize % LIMITS].value(number)))
        }
        (None, Stays::Once) => headers.insert(name, value(number)),
    };
}

/// Inserts a limit, what remains of it, and its reset if there is one, under these names.
#[inline(always)]
pub(super) fn insert(headers: &mut HeaderMap, names: [HeaderName; 3], limit: u64, remaining: u64, reset: Option<u64>) {
    let [limit_name, remaining_name, reset_name] = names;
    insert_one(headers, limit_name, limit, Stays::Long);
    insert_one(headers, remaining_name, remaining, Stays::Once);
    if let Some(reset) = reset {
        insert_one(headers, reset_name, reset, Stays::ASecond);
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

    /// Those of two clients in turn, one of whom is reset later: whoever comes more often has the shared values, and both are told
    /// the truth.
    #[test]
    fn every_second_is_told() {
        for second in 1_794_828_000..1_794_828_200_u64 {
            for told in [second, second, second + 50, second + 3_600, second] {
                let mut headers = HeaderMap::new();
                insert(&mut headers, THREE, 100, 99, Some(told));
                assert_eq!(headers[RETRY_AFTER], told.to_string().as_str());
            }
        }
    }
}

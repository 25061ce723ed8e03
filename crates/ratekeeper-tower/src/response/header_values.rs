//! Header values that are numbers; times are rounded up, so that no client comes back too early.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::ops::Range;
use std::time::Duration;

/// The largest integer of a structured field.
const MAX_SF_INTEGER: u64 = 999_999_999_999_999;

/// The value of `Retry-After` for a wait: whole seconds, rounded up so that no client comes back
/// too early, and at least 1. Waits are rounded for clients only here, in [`whole_seconds`] and in
/// [`whole_millis`].
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_tower::response::retry_after;
///
/// assert_eq!(retry_after(Duration::from_secs(10)), 10);
/// assert_eq!(retry_after(Duration::from_millis(10_001)), 11);
/// assert_eq!(retry_after(Duration::ZERO), 1);
/// ```
pub fn retry_after(wait: Duration) -> u64 {
    whole_seconds(wait).max(1)
}

/// Whole seconds of a time, rounded up.
pub fn whole_seconds(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Whole milliseconds of a time, rounded up.
pub fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Clamps a number to the integers of structured fields.
pub(super) fn sf_integer(number: u64) -> u64 {
    number.min(MAX_SF_INTEGER)
}

/// The header value of a number that is not small. The http crate's conversion allocates twice, for
/// 20 digits and for sharing them; this one allocates once, for the digits there are, unless there
/// are more than 16.
fn decimal_value(number: u64) -> HeaderValue {
    // Unix seconds have ten digits until the year 2286. With a fixed length of plain digits no loop
    // is needed to validate the value.
    const TEN_DIGITS: Range<u64> = 1_000_000_000..10_000_000_000;
    if TEN_DIGITS.contains(&number) {
        let [.., a, b] = eight_digits(number / EIGHT_DIGITS);
        let [c, d, e, f, g, h, i, j] = eight_digits(number % EIGHT_DIGITS);
        HeaderValue::from_bytes(&[a, b, c, d, e, f, g, h, i, j]).unwrap_or_else(|_| number.into())
    } else {
        decimal_value_slow(number)
    }
}

#[inline(never)]
fn decimal_value_slow(number: u64) -> HeaderValue {
    let (high, low) = (number / EIGHT_DIGITS, number % EIGHT_DIGITS);
    if high >= EIGHT_DIGITS {
        return number.into();
    }
    let digits = [eight_digits(high), eight_digits(low)];
    let digits = digits.as_flattened();
    // The last digit stays, also if it is zero.
    let leading = digits[..15]
        .iter()
        .take_while(|digit| **digit == b'0')
        .count();
    HeaderValue::from_bytes(&digits[leading..]).unwrap_or_else(|_| number.into())
}

/// Numbers below this have at most eight digits.
const EIGHT_DIGITS: u64 = 100_000_000;

/// The eight digits of a number below [`EIGHT_DIGITS`], with leading zeros.
fn eight_digits(number: u64) -> [u8; 8] {
    debug_assert!(number < EIGHT_DIGITS);
    // All digits at once, because each division would wait for the one before: two numbers of four
    // digits in a word, then four of two, then eight of one. Division by multiplication is exact
    // for such small numbers.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let ones = tens | ((twos - 10 * tens) << 8);
    ((ones & 0x0f0f_0f0f_0f0f_0f0f) | 0x3030_3030_3030_3030).to_le_bytes()
}

/// Numbers below this have a static value.
const SMALL_NUMBERS: usize = 1_000;

/// The three digits of each small number in sequence, with leading zeros.
static DIGITS: [u8; 3 * SMALL_NUMBERS] = {
    let mut digits = [0; 3 * SMALL_NUMBERS];
    let mut number = 0;
    while number < SMALL_NUMBERS {
        digits[3 * number] = b'0' + (number / 100) as u8;
        digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        digits[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    digits
};

/// `DIGITS` as text.
static TEXT: &str = match str::from_utf8(&DIGITS) {
    Ok(text) => text,
    Err(_) => "",
};

/// The header value of a small number; does not allocate.
#[inline]
fn small_value(number: usize) -> HeaderValue {
    HeaderValue::from_static(&TEXT[3 * number + leading_zeros(number)..3 * number + 3])
}

/// The number of leading zeros in the three digits of a small number, except the last digit.
const fn leading_zeros(number: usize) -> usize {
    (number < 10) as usize + (number < 100) as usize
}

/// Inserts a number as a header.
// Not inlined: one copy for all headers of a response stays in the instruction cache, where a
// server leaves little of it between two requests, and fetching code again costs more than running
// it.
#[inline(never)]
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, number: u64) {
    // Each value is built in place: it is slow to move.
    if number < SMALL_NUMBERS as u64 {
        headers.insert(name, small_value(number as usize));
    } else {
        headers.insert(name, decimal_value(number));
    }
}

#[cfg(test)]
mod tests {
    use super::{eight_digits, insert, retry_after, whole_millis, whole_seconds};
    use http::HeaderMap;
    use http::header::AGE;
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        /// A client that waits for this long does not come back too early, and one unit less would
        /// be too early.
        #[test]
        fn waits_are_rounded_up_by_less_than_a_unit(
            seconds in prop_oneof![0_u64..100, any::<u64>()],
            nanos in prop_oneof![Just(0), Just(1), 0_u32..1_000_000_000, Just(999_999_999)],
        ) {
            let (wait, second) = (Duration::new(seconds, nanos), 1_000_000_000_u128);
            let seconds = retry_after(wait);
            prop_assert!(seconds >= 1);
            let least = wait.as_nanos().max(1);
            prop_assert!(u128::from(seconds) * second >= least || seconds == u64::MAX);
            prop_assert!(u128::from(seconds - 1) * second < least);
            prop_assert_eq!(whole_seconds(wait), if wait.is_zero() { 0 } else { seconds });
            let millis = u128::from(whole_millis(wait));
            prop_assert!(millis * 1_000_000 >= wait.as_nanos() || millis == u128::from(u64::MAX));
            prop_assert!(millis == 0 || (millis - 1) * 1_000_000 < wait.as_nanos());
        }
    }

    #[test]
    fn a_value_contains_the_number() {
        let powers = (0..20)
            .map(|digits| 10_u64.pow(digits))
            .flat_map(|power| [power - 1, power, power + 1]);
        for number in powers.chain([57, 101, 1_005, 1_069, u64::MAX - 1, u64::MAX]) {
            let mut headers = HeaderMap::new();
            insert(&mut headers, AGE, number);
            assert_eq!(headers[AGE], number.to_string().as_str());
        }
    }

    #[test]
    fn four_digits_of_either_half_are_written_beside_any_others() {
        let halves =
            (0..10_000).flat_map(|half| [0, half, 9_999 - half, 9_999].map(|other| (half, other)));
        for number in halves.flat_map(|(a, b)| [a * 10_000 + b, b * 10_000 + a]) {
            assert_eq!(
                str::from_utf8(&eight_digits(number)),
                Ok(&*format!("{number:08}"))
            );
        }
    }
}

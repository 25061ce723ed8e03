//! Rates written as floating point numbers: converted to the simplest ratio that rounds to the same
//! number.

use super::{Algorithm, BurstSpec, Limit};
use crate::clock::NANOS_PER_SECOND;
use core::fmt;

/// Error: a number that is not a rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RateError {
    written: f64,
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a rate: ", self.written)?;
        match self.written {
            r if r.is_nan() => f.write_str("it is not a number"),
            r if r.is_infinite() => f.write_str("for no limit, use Limit::unlimited()"),
            _ => f.write_str("a rate must be zero or more"),
        }
    }
}

impl core::error::Error for RateError {}

impl Limit {
    /// A rate as a floating point number of events per second, with a burst of the rate rounded up
    /// (at least 1, unless the rate is zero).
    ///
    /// The number is taken as the simplest fraction that rounds to it: `0.1` is one in ten seconds.
    /// NaN, infinite and negative numbers are an error.
    ///
    /// ```
    /// use ratekeeper::Limit;
    ///
    /// assert_eq!(Limit::per_second_f64(0.1)?.to_string(), "1/10s");
    /// assert!(Limit::per_second_f64(f64::NAN).is_err());
    /// # Ok::<_, ratekeeper::limit::RateError>(())
    /// ```
    pub fn per_second_f64(rate: f64) -> Result<Self, RateError> {
        if !rate.is_finite() || rate < 0.0 {
            return Err(RateError { written: rate });
        }
        let (count, seconds) = simplest_ratio(rate);
        let burst = count.div_ceil(seconds);
        // A period that does not fit 64 bits is an interval that never elapses.
        let limit = match seconds.checked_mul(NANOS_PER_SECOND) {
            Some(period) => Limit::build(
                count,
                period,
                BurstSpec::Burst(burst),
                Algorithm::TokenBucket,
                false,
            ),
            None => Limit::build(
                0,
                NANOS_PER_SECOND,
                BurstSpec::Burst(burst),
                Algorithm::TokenBucket,
                false,
            ),
        };
        Ok(limit)
    }
}

/// The fraction with the smallest denominator among those that round to `rate`: by continued
/// fractions, in integers.
fn simplest_ratio(rate: f64) -> (u64, u64) {
    const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    let bits = rate.to_bits();
    let exponent = (bits >> FRACTION_BITS) as i32;
    if rate == 0.0 {
        return (0, 1);
    }
    // Below 2^-63 per second the interval is longer than any that elapses; this includes subnormal
    // numbers.
    if exponent < 1023 - 63 {
        return (1, u64::MAX);
    }
    let mantissa = (bits & ((1 << FRACTION_BITS) - 1)) | (1 << FRACTION_BITS);
    let shift = exponent - 1023 - FRACTION_BITS as i32;
    if shift >= 0 {
        // More than 64 bits per second is beyond every tick anyway.
        return (
            if shift <= 11 {
                mantissa << shift
            } else {
                u64::MAX
            },
            1,
        );
    }
    // rate = mantissa / 2^down, and every fraction within half a unit of the mantissa's last digit
    // rounds to it.
    let down = (-shift) as u32;
    let (numerator, denominator) = (u128::from(mantissa) * 2, 1u128 << (down + 1).min(126));
    let (low, high) = ((numerator - 1, denominator), (numerator + 1, denominator));
    let (count, seconds) = simplest_between(low, high);
    (count as u64, u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// The simplest fraction strictly between two: the Stern-Brocot descent, a run of equal steps at a
/// time.
fn simplest_between(mut low: (u128, u128), mut high: (u128, u128)) -> (u128, u128) {
    // The matrix of the steps taken so far; the result is the mediant it ends on.
    let (mut a, mut b, mut c, mut d) = (1u128, 0u128, 0u128, 1u128);
    loop {
        let whole = low.0 / low.1;
        if (whole + 1) * high.1 < high.0 {
            // A whole number lies between: the smallest is the simplest.
            let n = whole + 1;
            return (a * n + b, c * n + d);
        }
        // Both ends share the whole part; go on with the reciprocals of what is left, which swaps
        // the ends.
        (a, b, c, d) = (a * whole + b, a, c * whole + d, c);
        let (l, h) = (
            (low.0 - whole * low.1, low.1),
            (high.0 - whole * high.1, high.1),
        );
        if l.0 == 0 {
            // The low end is whole, so any large reciprocal lies above it: take the smallest that
            // is inside.
            let n = h.1 / h.0 + 1;
            return (a * n + b, c * n + d);
        }
        (low, high) = ((h.1, h.0), (l.1, l.0));
    }
}

//! `CL.THROTTLE`, compatible with redis-cell.

use super::batch::Call;
use super::parse::{Arguments, integer};
use super::quoted::QuotedBytes;
use super::reply::Reply;
use ratekeeper::{
    Clock, Decision, Timestamp, keyed::GcraParams, keyed::GcraParamsError, keyed::KeyedGcra,
};
use std::fmt;
use std::time::Duration;

/// Number of allowed and denied calls, without peeks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

/// The reason why a call is invalid.
enum ThrottleError<'a> {
    Usage,
    NotAnInteger(&'a [u8]),
    Negative(&'static str),
    Zero(&'static str),
    TooSlow,
}

impl fmt::Display for ThrottleError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage => f.write_str(
                "ERR usage: CL.THROTTLE <key> <max_burst> <count per period> <period in seconds> [<quantity>]",
            ),
            Self::NotAnInteger(text) => write!(f, "ERR couldn't parse as integer: {}", QuotedBytes(text)),
            Self::Negative(name) => write!(f, "ERR {name} must not be negative"),
            Self::Zero(name) => write!(f, "ERR {name} must be more than zero"),
            Self::TooSlow => f.write_str("ERR period / count is longer than 142 years; use a shorter period"),
        }
    }
}

/// Parses a call, decides it and replies.
pub(super) fn throttle<C: Clock>(
    arguments: Arguments<'_>,
    gcra: &KeyedGcra<C>,
    now: Timestamp,
    totals: &mut Totals,
    reply: &mut Reply<'_>,
) {
    match read(arguments) {
        Ok(call) => decide(&call, gcra, now, totals, reply),
        Err(error) => reply.error(error),
    }
}

/// Decides a call and replies.
#[inline]
pub(super) fn decide<C: Clock>(
    call: &Call<'_>,
    gcra: &KeyedGcra<C>,
    now: Timestamp,
    totals: &mut Totals,
    reply: &mut Reply<'_>,
) {
    let decision = gcra.check(call.key, &call.params, call.quantity, now);
    if call.quantity > 0 {
        let allowed = u64::from(decision.is_allowed());
        totals.allowed += allowed;
        totals.denied += 1 - allowed;
    }
    reply.five(fields(&decision, call.limit));
}

/// The GCRA parameters of a call.
#[inline]
pub(super) fn params(limit: u64, count: u64, period: u64) -> Result<GcraParams, GcraParamsError> {
    GcraParams::new(limit, count, Duration::from_secs(period))
}

fn read(arguments: Arguments<'_>) -> Result<Call<'_>, ThrottleError<'_>> {
    if !(5..=6).contains(&arguments.len()) {
        return Err(ThrottleError::Usage);
    }
    let number = |at: usize, name: &'static str| {
        let text = arguments.get(at).unwrap_or_default();
        let number = integer(text).ok_or(ThrottleError::NotAnInteger(text))?;
        u64::try_from(number).map_err(|_| ThrottleError::Negative(name))
    };
    let key = arguments.get(1).unwrap_or_default();
    let max_burst = number(2, "max_burst")?;
    let count = number(3, "count")?;
    let period = number(4, "period")?;
    let quantity = if arguments.len() == 6 {
        number(5, "quantity")?
    } else {
        1
    };
    // Cannot overflow: it was a signed number.
    let limit = max_burst + 1;
    let params = params(limit, count, period).map_err(|error| match error {
        GcraParamsError::Zero => ThrottleError::Zero(if count == 0 { "count" } else { "period" }),
        _ => ThrottleError::TooSlow,
    })?;
    Ok(Call {
        key,
        limit,
        quantity,
        params,
    })
}

/// The five numbers of a reply: denied or not, the limit, the remaining quantity, and the seconds
/// until retry and until reset.
#[inline]
pub(crate) fn fields(decision: &Decision, limit: u64) -> [i64; 5] {
    [
        i64::from(decision.is_denied()),
        signed(limit),
        signed(decision.remaining()),
        decision.retry_after().map_or(-1, seconds),
        seconds(decision.reset_after()),
    ]
}

/// Seconds as redis-cell rounds them: up, but less than a millisecond is 0.
#[inline]
pub(crate) fn seconds(time: Duration) -> i64 {
    signed(
        time.as_secs()
            .saturating_add(u64::from(time.subsec_millis() > 0)),
    )
}

#[inline]
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

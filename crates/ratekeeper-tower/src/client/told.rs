//! What a response says about limits, in every dialect there is.
//!
//! Of several the most exact is believed: Retry-After where the request was turned away, then the
//! RateLimit field of drafts 8 to 11, of draft 7, of draft 6, and X-RateLimit-…, whose Reset is a
//! time since 1970 or a number of seconds.

use crate::response::GRPC_STATUS;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime};

/// What the other side says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Told {
    /// It turned the request away: there was too much.
    pub(super) refused: bool,
    pub(super) allowance: Option<Allowance>,
}

/// For so long only so many more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allowance {
    pub(super) left: u64,
    pub(super) during: Duration,
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT_6: (HeaderName, HeaderName) = (
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
);
const X: (HeaderName, HeaderName) = (
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
);

/// Whoever is turned away without a word on when to come again leaves it alone for so long.
const UNTOLD: Duration = Duration::from_secs(1);
/// Nobody is believed for longer.
const MOST: Duration = Duration::from_secs(24 * 3_600);
/// A Reset above is a time since 1970; 31 years as a number of seconds are no limit of anybody.
const A_TIME: u64 = 1_000_000_000;
const IN_MILLIS: u64 = 1_000_000_000_000;

/// Reads a response that came at this time since 1970.
pub(super) fn read(status: StatusCode, headers: &HeaderMap, now: Duration) -> Told {
    let grpc = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes);
    let over_limit = status == StatusCode::TOO_MANY_REQUESTS || grpc == Some(b"8");
    let refused = over_limit || status == StatusCode::SERVICE_UNAVAILABLE || grpc == Some(b"14");
    // By the other side's own clock, if it says what time it is there.
    let now = headers.get(DATE).and_then(date).unwrap_or(now);
    // What lasts no time says nothing: a clock that runs ahead, or a server that rounds down.
    let told = fields(headers)
        .or_else(|| draft_6(headers))
        .or_else(|| x(headers, now));
    let told = told.filter(|told| !told.during.is_zero());
    let allowance = match retry_after(headers, now).filter(|_| refused) {
        Some(during) => Some(Allowance { left: 0, during }),
        None if over_limit => {
            let during = told
                .filter(|told| told.left == 0)
                .map_or(UNTOLD, |told| told.during);
            Some(Allowance { left: 0, during })
        }
        None => told,
    };
    Told {
        refused,
        allowance: allowance.map(|told| Allowance {
            during: told.during.min(MOST),
            ..told
        }),
    }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Duration) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?;
    number(value.to_str().ok()?)
        .map(Duration::from_secs)
        .or_else(|| Some(date(value)?.saturating_sub(now)))
}

/// A date of HTTP, as time since 1970.
fn date(value: &HeaderValue) -> Option<Duration> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    date.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// A whole number, or one with a fraction, which is rounded up.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let more = fraction.bytes().any(|digit| digit != b'0');
    Some(
        whole
            .parse::<u64>()
            .unwrap_or(u64::MAX)
            .saturating_add(u64::from(more)),
    )
}

fn of_header(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    number(headers.get(name)?.to_str().ok()?)
}

fn draft_6(headers: &HeaderMap) -> Option<Allowance> {
    let (left, during) = (
        of_header(headers, &DRAFT_6.0)?,
        of_header(headers, &DRAFT_6.1)?,
    );
    Some(Allowance {
        left,
        during: Duration::from_secs(during),
    })
}

fn x(headers: &HeaderMap, now: Duration) -> Option<Allowance> {
    let (left, reset) = (of_header(headers, &X.0)?, of_header(headers, &X.1)?);
    let during = match reset {
        IN_MILLIS.. => Duration::from_millis(reset).saturating_sub(now),
        A_TIME.. => Duration::from_secs(reset).saturating_sub(now),
        _ => Duration::from_secs(reset),
    };
    Some(Allowance { left, during })
}

/// The field `RateLimit`: of drafts 8 to 11 an item for each policy, of draft 7 its three numbers.
/// Of several policies the one that leaves least, and of those the one that lasts longest.
fn fields(headers: &HeaderMap) -> Option<Allowance> {
    let mut tightest: Option<Allowance> = None;
    let (mut remaining, mut reset) = (None, None);
    for line in headers.get_all(RATE_LIMIT) {
        for member in split(line.to_str().unwrap_or_default(), ',') {
            let mut parts = split(member, ';');
            let name = parts.next().unwrap_or_default().trim();
            let parameter = |part: &str, key: &str| part.trim().strip_prefix(key).and_then(number);
            let (mut left, mut during) = (None, None);
            for part in parts {
                left = left.or_else(|| parameter(part, "r="));
                during = during.or_else(|| parameter(part, "t="));
            }
            if let Some(left) = left {
                let during = during
                    .or_else(|| window(headers, name))
                    .map_or(UNTOLD, Duration::from_secs);
                let told = Allowance { left, during };
                let tighter =
                    tightest.is_none_or(|known| (left, known.during) < (known.left, during));
                tightest = if tighter { Some(told) } else { tightest };
            }
            remaining = remaining.or_else(|| parameter(name, "remaining="));
            reset = reset.or_else(|| parameter(name, "reset="));
        }
    }
    tightest.or_else(|| {
        Some(Allowance {
            left: remaining?,
            during: Duration::from_secs(reset?),
        })
    })
}

/// The window of a policy, `w` of the field `RateLimit-Policy`.
fn window(headers: &HeaderMap, name: &str) -> Option<u64> {
    let lines = headers
        .get_all(POLICY)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let mut members = lines.flat_map(|line| split(line, ','));
    members.find_map(|member| {
        let mut parts = split(member, ';');
        let same = parts.next().is_some_and(|known| known.trim() == name);
        parts
            .find_map(|part| part.trim().strip_prefix("w=").and_then(number))
            .filter(|_| same)
    })
}

/// The pieces of a structured field between separators that stand outside of quotes.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |char| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match char {
            '"' => quoted = !quoted,
            '\\' if quoted => escaped = true,
            _ => {}
        }
        !quoted && char == separator
    })
}

#[cfg(test)]
mod tests;

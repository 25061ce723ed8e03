//! Reads the rate limit headers of a response, in all dialects.
//!
//! If there are several, the most precise one is used: Retry-After of a denied request, then the
//! RateLimit field of drafts 8 to 11, of draft 7, of draft 6, and X-RateLimit-…, whose Reset is a
//! Unix time or a number of seconds.

use crate::response::GRPC_STATUS;
use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime};

/// The state of the server's limit, by a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ResponseInfo {
    /// The request was denied because of too much load.
    pub(super) denied: bool,
    pub(super) allowance: Option<Allowance>,
}

/// The number of requests allowed in the coming time window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allowance {
    pub(super) remaining: u64,
    pub(super) window: Duration,
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

/// The pause after a denial without a retry time.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);
/// Longer pauses are ignored.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 3_600);
/// A Reset of at least this is a Unix time: no limit resets in 31 years.
const MIN_UNIX_SECONDS: u64 = 1_000_000_000;
const MIN_UNIX_MILLIS: u64 = 1_000_000_000_000;

/// Reads a response that arrived at this Unix time.
pub(super) fn read(status: StatusCode, headers: &HeaderMap, now: Duration) -> ResponseInfo {
    let grpc = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes);
    let over_limit = status == StatusCode::TOO_MANY_REQUESTS || grpc == Some(b"8");
    let denied = over_limit || status == StatusCode::SERVICE_UNAVAILABLE || grpc == Some(b"14");
    // By the server's clock, if the response has a date.
    let now = headers.get(DATE).and_then(date).unwrap_or(now);
    // A window of zero is ignored: the server's clock is ahead, or it rounds down.
    let allowance = ratelimit_field(headers)
        .or_else(|| draft_6(headers))
        .or_else(|| x(headers, now));
    let allowance = allowance.filter(|allowance| !allowance.window.is_zero());
    let allowance = match retry_after(headers, now).filter(|_| denied) {
        Some(window) => Some(Allowance {
            remaining: 0,
            window,
        }),
        None if over_limit => {
            let window = allowance
                .filter(|allowance| allowance.remaining == 0)
                .map_or(DEFAULT_PAUSE, |allowance| allowance.window);
            Some(Allowance {
                remaining: 0,
                window,
            })
        }
        None => allowance,
    };
    ResponseInfo {
        denied,
        allowance: allowance.map(|allowance| Allowance {
            window: allowance.window.min(MAX_PAUSE),
            ..allowance
        }),
    }
}

/// Retry-After: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Duration) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?;
    number(value.to_str().ok()?)
        .map(Duration::from_secs)
        .or_else(|| Some(date(value)?.saturating_sub(now)))
}

/// An HTTP date, as Unix time.
fn date(value: &HeaderValue) -> Option<Duration> {
    let date = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    date.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// A whole number, or a decimal that is rounded up.
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

fn header_number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    number(headers.get(name)?.to_str().ok()?)
}

fn draft_6(headers: &HeaderMap) -> Option<Allowance> {
    let (remaining, window) = (
        header_number(headers, &DRAFT_6.0)?,
        header_number(headers, &DRAFT_6.1)?,
    );
    Some(Allowance {
        remaining,
        window: Duration::from_secs(window),
    })
}

fn x(headers: &HeaderMap, now: Duration) -> Option<Allowance> {
    let (remaining, reset) = (header_number(headers, &X.0)?, header_number(headers, &X.1)?);
    let window = match reset {
        MIN_UNIX_MILLIS.. => Duration::from_millis(reset).saturating_sub(now),
        MIN_UNIX_SECONDS.. => Duration::from_secs(reset).saturating_sub(now),
        _ => Duration::from_secs(reset),
    };
    Some(Allowance { remaining, window })
}

/// The field `RateLimit`: in drafts 8 to 11 an item for each policy, in draft 7 three numbers. Of
/// several policies the one with the least remaining, and of those the longest window.
fn ratelimit_field(headers: &HeaderMap) -> Option<Allowance> {
    let mut tightest: Option<Allowance> = None;
    let (mut draft_7_remaining, mut draft_7_reset) = (None, None);
    for line in headers.get_all(RATE_LIMIT) {
        for member in split(line.to_str().unwrap_or_default(), ',') {
            let mut parts = split(member, ';');
            let name = parts.next().unwrap_or_default().trim();
            let parameter = |part: &str, key: &str| part.trim().strip_prefix(key).and_then(number);
            let (mut remaining, mut window) = (None, None);
            for part in parts {
                remaining = remaining.or_else(|| parameter(part, "r="));
                window = window.or_else(|| parameter(part, "t="));
            }
            if let Some(remaining) = remaining {
                let window = window
                    .or_else(|| policy_window(headers, name))
                    .map_or(DEFAULT_PAUSE, Duration::from_secs);
                let allowance = Allowance { remaining, window };
                let tighter = tightest
                    .is_none_or(|known| (remaining, known.window) < (known.remaining, window));
                tightest = if tighter { Some(allowance) } else { tightest };
            }
            draft_7_remaining = draft_7_remaining.or_else(|| parameter(name, "remaining="));
            draft_7_reset = draft_7_reset.or_else(|| parameter(name, "reset="));
        }
    }
    tightest.or_else(|| {
        Some(Allowance {
            remaining: draft_7_remaining?,
            window: Duration::from_secs(draft_7_reset?),
        })
    })
}

/// The window of a policy: `w` in the field `RateLimit-Policy`.
fn policy_window(headers: &HeaderMap, name: &str) -> Option<u64> {
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

/// Splits a structured field at separators outside of quotes.
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

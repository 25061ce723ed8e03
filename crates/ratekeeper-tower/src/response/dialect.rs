//! Dialects of rate limit headers, and how they are written.

use super::escape::SfString;
use super::header_values::{insert, sf_integer, whole_seconds};
use super::limit_info::LimitInfo;
use crate::head::find_header;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use std::fmt::{self, Write as _};
use std::time::Duration;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The headers of a dialect, or of two that conflict.
static X: [HeaderName; 3] = [X_LIMIT, X_REMAINING, X_RESET];
static IETF: [HeaderName; 2] = [RATELIMIT_POLICY, RATELIMIT];
static DRAFT_06: [HeaderName; 3] = [RATELIMIT_LIMIT, RATELIMIT_REMAINING, RATELIMIT_RESET];

/// The two dialects with X-RateLimit headers.
const X_BITS: u8 = Dialect::XEpoch.bit() | Dialect::XDelta.bit();

/// The unit of a concurrency limit; the unit of all other limits is the default and is not written.
const IN_FLIGHT_UNIT: &str = "concurrent-requests";

/// Capacity for the fields of two policies with short names.
const TYPICAL_LENGTH: usize = 64;

/// A set of rate limit headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dialect {
    /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` as Unix time in seconds; for the tightest
    /// limit.
    XEpoch,
    /// The same with `-Reset` in seconds from now. It replaces [`XEpoch`](Self::XEpoch), which uses
    /// the same names.
    XDelta,
    /// draft-ietf-httpapi-ratelimit-headers-08 to -11: `RateLimit-Policy: "default";q=100;w=60` and
    /// `RateLimit: "default";r=57;t=35`, for every limit.
    Ietf,
    /// Draft 07: `RateLimit-Policy: 100;w=60` and `RateLimit: limit=100, remaining=57, reset=35`;
    /// for the tightest limit. It replaces [`Ietf`](Self::Ietf), which uses the same names.
    Draft07,
    /// Draft 06: `RateLimit-Limit`, `RateLimit-Remaining`, and `RateLimit-Reset` in seconds from
    /// now; for the tightest limit.
    Draft06,
}

impl Dialect {
    const ALL: [Self; 5] = [
        Self::XEpoch,
        Self::XDelta,
        Self::Ietf,
        Self::Draft07,
        Self::Draft06,
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The dialect that gives the same header names another meaning.
    const fn conflicting(self) -> u8 {
        match self {
            Self::XEpoch => Self::XDelta.bit(),
            Self::XDelta => Self::XEpoch.bit(),
            Self::Ietf => Self::Draft07.bit(),
            Self::Draft07 => Self::Ietf.bit(),
            Self::Draft06 => 0,
        }
    }

    /// The headers it writes.
    pub(super) fn names(self) -> &'static [HeaderName] {
        match self {
            Self::XEpoch | Self::XDelta => &X,
            Self::Ietf | Self::Draft07 => &IETF,
            Self::Draft06 => &DRAFT_06,
        }
    }
}

/// The rate limit headers of responses, allowed and denied alike: [`Dialect::XEpoch`] by default.
/// `Retry-After` is not a dialect; every denial has it.
///
/// ```
/// use ratekeeper_tower::{Dialect, Dialects};
///
/// let both = Dialects::default().and(Dialect::Ietf);
/// assert!(both.contains(Dialect::XEpoch) && both.contains(Dialect::Ietf));
///
/// // These two give the same names another sense: the last one counts.
/// let delta = both.and(Dialect::XDelta);
/// assert!(!delta.contains(Dialect::XEpoch));
/// ```
///
/// Headers that the inner service wrote stay. The `RateLimit` fields of [`Dialect::Ietf`] are
/// lists, to which ours are appended; the other dialects describe one limit and are not written if
/// one of their headers is present.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dialects(u8);

impl Default for Dialects {
    fn default() -> Self {
        Dialect::XEpoch.into()
    }
}

impl From<Dialect> for Dialects {
    fn from(dialect: Dialect) -> Self {
        Self::none().and(dialect)
    }
}

impl fmt::Debug for Dialects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Dialects {
    /// No headers but `Retry-After`.
    pub const fn none() -> Self {
        Self(0)
    }

    /// Adds a dialect.
    #[must_use]
    pub const fn and(self, dialect: Dialect) -> Self {
        Self(self.0 & !dialect.conflicting() | dialect.bit())
    }

    /// Whether it includes this dialect.
    pub const fn contains(self, dialect: Dialect) -> bool {
        self.0 & dialect.bit() != 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Dialect> {
        Dialect::ALL
            .into_iter()
            .filter(move |dialect| self.contains(*dialect))
    }

    /// Whether there is nothing to write.
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Writes all dialects. `retry_after` is the value of the response's Retry-After header, if it
    /// has one.
    pub(crate) fn write<'a>(
        self,
        headers: &mut HeaderMap,
        tightest: &LimitInfo<'_>,
        all: impl Iterator<Item = LimitInfo<'a>>,
        retry_after: Option<u64>,
        unix_now: Duration,
    ) {
        self.write_x(headers, tightest, retry_after, unix_now);
        if self.0 & !X_BITS != 0 {
            self.write_drafts(headers, tightest, all, retry_after);
        }
    }

    /// Whether only X-RateLimit headers are written.
    #[inline]
    pub(crate) const fn are_x(self) -> bool {
        self.0 == Dialect::XEpoch.bit() || self.0 == Dialect::XDelta.bit()
    }

    /// Writes the X-RateLimit headers, if they are included.
    #[inline]
    pub(crate) fn write_x(
        self,
        headers: &mut HeaderMap,
        info: &LimitInfo<'_>,
        retry_after: Option<u64>,
        unix_now: Duration,
    ) {
        if self.0 & X_BITS != 0 {
            let origin = if self.contains(Dialect::XEpoch) {
                unix_now
            } else {
                Duration::ZERO
            };
            let reset = info
                .resets_in(retry_after)
                .map(|reset| whole_seconds(origin.saturating_add(reset)));
            x(headers, info.capacity, info.remaining, reset);
        }
    }

    /// Not inlined: few use the drafts.
    #[inline(never)]
    fn write_drafts<'a>(
        self,
        headers: &mut HeaderMap,
        tightest: &LimitInfo<'_>,
        all: impl Iterator<Item = LimitInfo<'a>>,
        retry_after: Option<u64>,
    ) {
        if self.contains(Dialect::Ietf) {
            ietf(headers, all, retry_after);
        }
        if self.contains(Dialect::Draft07) && none_present(headers, &IETF) {
            draft_07(headers, tightest, retry_after);
        }
        if self.contains(Dialect::Draft06) && none_present(headers, &DRAFT_06) {
            draft_06(headers, tightest, retry_after);
        }
    }
}

/// Whether none of these headers is present.
fn none_present(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    find_header(headers.keys(), names).is_none()
}

/// A limit that never refills has no reset.
#[inline(never)]
fn x(headers: &mut HeaderMap, limit: u64, remaining: u64, reset: Option<u64>) {
    if none_present(headers, &X) {
        insert(headers, X_LIMIT, limit);
        insert(headers, X_REMAINING, remaining);
        if let Some(reset) = reset {
            insert(headers, X_RESET, reset);
        }
    }
}

/// A concurrency limit has neither `w` nor `t`; nor has a limit that never refills.
#[inline(never)]
fn ietf<'a>(
    headers: &mut HeaderMap,
    all: impl Iterator<Item = LimitInfo<'a>>,
    retry_after: Option<u64>,
) {
    let mut policies = String::with_capacity(TYPICAL_LENGTH);
    let mut limits = String::with_capacity(TYPICAL_LENGTH);
    for info in all {
        if !policies.is_empty() {
            policies.push_str(", ");
            limits.push_str(", ");
        }
        let name = SfString(info.name);
        // Writing to a string does not fail.
        let _ = write!(policies, "{name};q={}", sf_integer(info.capacity));
        if let Some(w) = info.w() {
            let _ = write!(policies, ";w={}", sf_integer(w));
        }
        if info.in_flight {
            let _ = write!(policies, ";qu=\"{IN_FLIGHT_UNIT}\"");
        }
        let _ = write!(limits, "{name};r={}", sf_integer(info.remaining));
        if let Some(t) = info.t(retry_after) {
            let _ = write!(limits, ";t={}", sf_integer(t));
        }
    }
    append(headers, RATELIMIT_POLICY, policies);
    append(headers, RATELIMIT, limits);
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // Names are printable once quoted. Without limits there is nothing to write.
    if let Some(value) = HeaderValue::try_from(value)
        .ok()
        .filter(|value| !value.is_empty())
    {
        headers.append(name, value);
    }
}

/// Reset is required: a limit that never refills is not written. A concurrency limit has no policy,
/// which requires a window.
#[inline(never)]
fn draft_07(headers: &mut HeaderMap, info: &LimitInfo<'_>, retry_after: Option<u64>) {
    let Some(reset) = draft_reset(info, retry_after) else {
        return;
    };
    let limit = sf_integer(info.capacity);
    if let Some(w) = info.w() {
        append(
            headers,
            RATELIMIT_POLICY,
            format!("{limit};w={}", sf_integer(w)),
        );
    }
    let (remaining, reset) = (sf_integer(info.remaining), sf_integer(reset));
    append(
        headers,
        RATELIMIT,
        format!("limit={limit}, remaining={remaining}, reset={reset}"),
    );
}

/// Reset is required: a limit that never refills is not written.
#[inline(never)]
fn draft_06(headers: &mut HeaderMap, info: &LimitInfo<'_>, retry_after: Option<u64>) {
    let Some(reset) = draft_reset(info, retry_after) else {
        return;
    };
    insert(headers, RATELIMIT_LIMIT, sf_integer(info.capacity));
    insert(headers, RATELIMIT_REMAINING, sf_integer(info.remaining));
    insert(headers, RATELIMIT_RESET, sf_integer(reset));
}

/// The reset of drafts 06 and 07. Clients spread what remains over it, as over `t`.
fn draft_reset(info: &LimitInfo<'_>, retry_after: Option<u64>) -> Option<u64> {
    if info.in_flight {
        info.resets_in(retry_after).map(whole_seconds)
    } else {
        info.t(retry_after)
    }
}

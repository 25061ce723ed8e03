//! In which words a response tells of limits.

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

/// The headers of one dialect, or of two that are rivals for them.
static X: [HeaderName; 3] = [X_LIMIT, X_REMAINING, X_RESET];
static IETF: [HeaderName; 2] = [RATELIMIT_POLICY, RATELIMIT];
static DRAFT_06: [HeaderName; 3] = [RATELIMIT_LIMIT, RATELIMIT_REMAINING, RATELIMIT_RESET];

/// One of the two is among them.
const X_BITS: u8 = Dialect::XEpoch.bit() | Dialect::XDelta.bit();

/// The unit of a limit on what is in flight; of every other it is the default and not said.
const IN_FLIGHT_UNIT: &str = "concurrent-requests";

/// Room for the fields of two policies with short names.
const TYPICAL_LENGTH: usize = 64;

/// One way to tell of limits in the headers of a response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dialect {
    /// `X-RateLimit-Limit`, `-Remaining`, and `-Reset` in seconds since 1970; of the tightest
    /// limit.
    XEpoch,
    /// The same with `-Reset` in seconds from now. It takes the place of [`XEpoch`](Self::XEpoch),
    /// having its names.
    XDelta,
    /// The syntax of draft-ietf-httpapi-ratelimit-headers-08 to -11: `RateLimit-Policy:
    /// "default";q=100;w=60` and `RateLimit: "default";r=57;t=35`, for every limit.
    Ietf,
    /// That of draft 07: `RateLimit-Policy: 100;w=60` and `RateLimit: limit=100, remaining=57,
    /// reset=35`; of the tightest limit. It takes the place of [`Ietf`](Self::Ietf), having its
    /// names.
    Draft07,
    /// That of draft 06: `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` in seconds
    /// from now; of the tightest limit.
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

    /// Which it cannot be told beside: the one that gives the same names another sense.
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

/// The ways in which responses tell of limits, on allowed and denied ones alike:
/// [`Dialect::XEpoch`] unless you say otherwise. `Retry-After` is no dialect; every denial has it.
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
/// What the service behind has said stays as it is. The `RateLimit` fields of [`Dialect::Ietf`] are
/// lists, to which ours are appended; the others hold one limit, and are left alone if any header
/// of theirs is there.
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
    /// Nothing but `Retry-After`.
    pub const fn none() -> Self {
        Self(0)
    }

    /// These and another one.
    #[must_use]
    pub const fn and(self, dialect: Dialect) -> Self {
        Self(self.0 & !dialect.conflicting() | dialect.bit())
    }

    /// Whether it is among them.
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

    /// Writes them all. `retry_after` is what the response says in Retry-After, if it does.
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

    /// Whether there is one of the X names to write, and nothing else.
    #[inline]
    pub(crate) const fn are_x(self) -> bool {
        self.0 == Dialect::XEpoch.bit() || self.0 == Dialect::XDelta.bit()
    }

    /// Writes the one of the X names, if it is among them.
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

    /// Apart: most speak none of them.
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

/// Whether nobody said any of these.
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

/// A limit in flight has no window and no t; nor has one that never refills.
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
    // It is printable: a name is, once quoted. Without limits there is nothing to say.
    if let Some(value) = HeaderValue::try_from(value)
        .ok()
        .filter(|value| !value.is_empty())
    {
        headers.append(name, value);
    }
}

/// It demands a reset: a limit that never refills is not told, and one in flight has no policy,
/// which demands a window.
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

/// It demands a reset: a limit that never refills is not told.
#[inline(never)]
fn draft_06(headers: &mut HeaderMap, info: &LimitInfo<'_>, retry_after: Option<u64>) {
    let Some(reset) = draft_reset(info, retry_after) else {
        return;
    };
    insert(headers, RATELIMIT_LIMIT, sf_integer(info.capacity));
    insert(headers, RATELIMIT_REMAINING, sf_integer(info.remaining));
    insert(headers, RATELIMIT_RESET, sf_integer(reset));
}

/// The reset of the drafts is for clients that spread what remains over it, as t is.
fn draft_reset(info: &LimitInfo<'_>, retry_after: Option<u64>) -> Option<u64> {
    if info.in_flight {
        info.resets_in(retry_after).map(whole_seconds)
    } else {
        info.t(retry_after)
    }
}

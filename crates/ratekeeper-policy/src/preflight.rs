//! How CORS preflight requests are counted.

use ratekeeper::{Limit, limit::ParseLimitError};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How CORS preflight requests are counted: `OPTIONS` with the headers `Origin` and
/// `Access-Control-Request-Method`.
///
/// Browsers send them without credentials before the actual request, so they are not counted like
/// it; anyone can send them, so they are not free either.
///
/// ```
/// use ratekeeper_policy::request::Preflight;
///
/// assert_eq!(Preflight::default(), "600/min burst 100".parse()?);
/// assert_eq!("count".parse(), Ok(Preflight::Count));
/// # Ok::<_, ratekeeper::limit::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Preflight {
    /// They have a limit of their own for each client address, independent of the policies.
    Limit(Limit),
    /// `count`: they are counted like any other request.
    Count,
    /// `exempt`: they are allowed and not counted.
    Exempt,
}

impl Preflight {
    pub(crate) const COUNT: &str = "count";
    pub(crate) const EXEMPT: &str = "exempt";
}

/// 600 a minute for each address, up to 100 at once.
impl Default for Preflight {
    fn default() -> Self {
        Self::Limit(Limit::of(600, Duration::from_secs(60)).burst(100))
    }
}

impl FromStr for Preflight {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        match text {
            Self::COUNT => Ok(Self::Count),
            Self::EXEMPT => Ok(Self::Exempt),
            limit => limit.parse().map(Self::Limit),
        }
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(limit) => limit.fmt(f),
            Self::Count => f.write_str(Self::COUNT),
            Self::Exempt => f.write_str(Self::EXEMPT),
        }
    }
}

//! A limit of a policy: a rate or a concurrency limit.

use ratekeeper::{Algorithm, Limit, limit::ParseLimitError};
use std::fmt;
use std::str::FromStr;

/// A limit of a policy: `100/min burst 20`, or `20 concurrent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyLimit {
    /// A rate.
    Rate(Limit),
    /// A maximum of requests in flight.
    Concurrent(u64),
}

impl PolicyLimit {
    /// Parses a limit with an algorithm that may be given beside it; one in the text wins.
    pub fn parse(text: &str, beside: Option<Algorithm>) -> Result<Self, ParsePolicyLimitError> {
        let mut words = text.split_ascii_whitespace();
        if let (Some(number), Some("concurrent"), None) = (words.next(), words.next(), words.next())
        {
            return match number.parse() {
                Ok(max) if max > 0 => Ok(Self::Concurrent(max)),
                _ => Err(ParsePolicyLimitError::Concurrent),
            };
        }
        let limit = |text: &str| text.parse::<Limit>().map_err(ParsePolicyLimitError::Limit);
        let alone = limit(text)?;
        let says_its_own = text
            .split(|c: char| !(c.is_ascii_alphabetic() || c == '_'))
            .any(|word| {
                Algorithm::from_name(word).is_some()
                    || matches!(word, "wait" | "queue" | "unlimited")
            });
        match beside {
            // Parsed as if it was in the text, so that the same rules of valid combinations hold.
            Some(algorithm) if !says_its_own => {
                limit(&format!("{text} {algorithm}")).map(Self::Rate)
            }
            _ => Ok(Self::Rate(alone)),
        }
    }

    /// The capacity: how much is allowed at once; [`u64::MAX`] when unlimited.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::Rate(limit) => limit.capacity(),
            Self::Concurrent(max) => *max,
        }
    }

    /// The rate; `None` for a concurrency limit.
    pub fn rate(&self) -> Option<&Limit> {
        match self {
            Self::Rate(limit) => Some(limit),
            Self::Concurrent(_) => None,
        }
    }
}

impl From<Limit> for PolicyLimit {
    fn from(limit: Limit) -> Self {
        Self::Rate(limit)
    }
}

impl fmt::Display for PolicyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(limit) => limit.fmt(f),
            Self::Concurrent(max) => write!(f, "{max} concurrent"),
        }
    }
}

impl FromStr for PolicyLimit {
    type Err = ParsePolicyLimitError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyLimitError> {
        Self::parse(text, None)
    }
}

/// Why a text is not a limit of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParsePolicyLimitError {
    /// It is not a rate.
    Limit(ParseLimitError),
    /// The number of a concurrency limit is not valid.
    Concurrent,
}

impl fmt::Display for ParsePolicyLimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(error) => error.fmt(f),
            Self::Concurrent => {
                f.write_str("a concurrency limit is a number above 0, as in `20 concurrent`")
            }
        }
    }
}

impl std::error::Error for ParsePolicyLimitError {}

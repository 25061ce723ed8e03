//! [`Class`]: the importance of a request: four classes, as text and in order.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The importance of a request. A greater class is shed later.
///
/// ```
/// use ratekeeper::adaptive::Class;
///
/// assert!(Class::Critical > Class::SheddablePlus);
/// assert_eq!("sheddable_plus".parse(), Ok(Class::SheddablePlus));
/// assert_eq!(Class::CriticalPlus.to_string(), "critical_plus");
/// assert_eq!(Class::default(), Class::Critical);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Class {
    /// May fail for a while without being noticed: background work, prefetching.
    Sheddable,
    /// May fail now and then: requests that are retried automatically, batches that someone waits
    /// for.
    SheddablePlus,
    /// A failure is visible to a user. The default.
    #[default]
    Critical,
    /// Nothing works without it: login, payment, health checks.
    CriticalPlus,
}

impl Class {
    /// All classes, the most important first.
    pub const ALL: [Self; 4] = [
        Self::CriticalPlus,
        Self::Critical,
        Self::SheddablePlus,
        Self::Sheddable,
    ];

    /// The name, as in configuration and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::SheddablePlus => "sheddable_plus",
            Self::Critical => "critical",
            Self::CriticalPlus => "critical_plus",
        }
    }

    /// 0 for the class that is shed first.
    #[cfg(feature = "std")]
    pub(super) const fn rank(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Class {
    type Err = ParseClassError;

    /// Parses the name, ignoring case.
    fn from_str(text: &str) -> Result<Self, ParseClassError> {
        let named = |class: &Self| class.name().eq_ignore_ascii_case(text);
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| ParseClassError(text.chars().take(40).collect()))
    }
}

/// Error: a text that is not the name of a [`Class`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseClassError(String);

impl fmt::Display for ParseClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a class; write critical_plus, critical, sheddable_plus or sheddable",
            self.0
        )
    }
}

impl core::error::Error for ParseClassError {}

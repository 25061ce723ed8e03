//! How important a request is: four classes, as text and in order.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// How important a request is. A greater class is shed later.
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
    /// May fail for a while and nobody minds: work in the background, what is fetched ahead.
    Sheddable,
    /// May fail now and then: what is tried again by itself, batches that somebody waits for.
    SheddablePlus,
    /// Somebody sees it fail. Whoever says nothing is this.
    #[default]
    Critical,
    /// Without it nothing works: logging in, paying, health.
    CriticalPlus,
}

impl Class {
    /// All of them, the most important first.
    pub const ALL: [Self; 4] = [
        Self::CriticalPlus,
        Self::Critical,
        Self::SheddablePlus,
        Self::Sheddable,
    ];

    /// The name, as configuration and headers have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::SheddablePlus => "sheddable_plus",
            Self::Critical => "critical",
            Self::CriticalPlus => "critical_plus",
        }
    }

    /// 0 for what goes first.
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

    /// By its name, in any case.
    fn from_str(text: &str) -> Result<Self, ParseClassError> {
        let named = |class: &Self| class.name().eq_ignore_ascii_case(text);
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| ParseClassError(text.chars().take(40).collect()))
    }
}

/// A text that is the name of no [`Class`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseClassError(String);

impl fmt::Display for ParseClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no class; write critical_plus, critical, sheddable_plus or sheddable",
            self.0
        )
    }
}

impl core::error::Error for ParseClassError {}

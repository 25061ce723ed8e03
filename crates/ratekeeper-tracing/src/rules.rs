//! [`Rules`]: which events are shown, by level and by target.

use ratekeeper::Limit;
use std::time::Duration;
use tracing_core::{Level, Metadata};

/// Which events of a callsite are shown.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sampling {
    /// All of them.
    All,
    /// The `first` ones, `every` n-th, and one if none was shown for an `interval`; the very first
    /// in any case. 0 removes a filter. See [`ratekeeper::Sometimes`].
    Sometimes {
        /// How many are shown at first.
        first: u32,
        /// Then every n-th is shown.
        every: u32,
        /// And one if none was shown for this long.
        interval: Duration,
    },
    /// As many as the limit allows.
    Limit(Limit),
}

impl From<Limit> for Sampling {
    fn from(limit: Limit) -> Self {
        Self::Limit(limit)
    }
}

/// The [`Sampling`] of each callsite.
///
/// Critical events are shown; else the longest target that matches decides, with its level before
/// without; else the level.
#[derive(Clone, Debug)]
pub struct Rules {
    levels: [Sampling; 5],
    targets: Vec<TargetRule>,
    critical: fn(&Metadata<'_>) -> bool,
}

#[derive(Clone, Debug)]
struct TargetRule {
    target: String,
    level: Option<Level>,
    sampling: Sampling,
}

const MINUTE: Duration = Duration::from_secs(60);
const DEBUG: Sampling = Sampling::Sometimes {
    first: 10,
    every: 1000,
    interval: MINUTE.saturating_mul(60),
};
const INFO: Sampling = Sampling::Sometimes {
    first: 100,
    every: 100,
    interval: MINUTE.saturating_mul(10),
};
const WARN: Sampling = Sampling::Sometimes {
    first: 1000,
    every: 10,
    interval: MINUTE,
};

impl Rules {
    /// The default rules, as listed in the crate's documentation.
    pub fn new() -> Self {
        let error = Sampling::Limit(Limit::per_second(10).burst(50));
        Self {
            levels: [error, WARN, INFO, DEBUG, DEBUG],
            targets: Vec::new(),
            critical: |event| event.fields().field("critical").is_some(),
        }
    }

    /// Sets the sampling of a level.
    #[must_use]
    pub fn level(mut self, level: Level, sampling: impl Into<Sampling>) -> Self {
        self.levels[index(level)] = sampling.into();
        self
    }

    /// Sets the sampling of a target and the modules inside it, at all levels: `hyper` includes
    /// `hyper::proto`.
    #[must_use]
    pub fn target(self, target: impl Into<String>, sampling: impl Into<Sampling>) -> Self {
        self.with(target.into(), None, sampling.into())
    }

    /// Sets the sampling of one level of a target.
    #[must_use]
    pub fn target_level(
        self,
        target: impl Into<String>,
        level: Level,
        sampling: impl Into<Sampling>,
    ) -> Self {
        self.with(target.into(), Some(level), sampling.into())
    }

    /// Sets which events are critical, and so always shown, instead of those with a field
    /// `critical`. The predicate is called once per callsite.
    ///
    /// ```
    /// use ratekeeper_tracing::Rules;
    ///
    /// let rules = Rules::new().critical(|event| event.target().starts_with("security"));
    /// ```
    #[must_use]
    pub fn critical(mut self, is_critical: fn(&Metadata<'_>) -> bool) -> Self {
        self.critical = is_critical;
        self
    }

    fn with(mut self, target: String, level: Option<Level>, sampling: Sampling) -> Self {
        self.targets
            .retain(|rule| (&rule.target, rule.level) != (&target, level));
        self.targets.push(TargetRule {
            target,
            level,
            sampling,
        });
        self
    }

    pub(crate) fn sampling_of(&self, event: &Metadata<'_>) -> &Sampling {
        if (self.critical)(event) {
            return &Sampling::All;
        }
        let matching = self.targets.iter().filter(|rule| rule.matches(event));
        match matching.max_by_key(|rule| (rule.target.len(), rule.level.is_some())) {
            Some(rule) => &rule.sampling,
            None => self.sampling_of_level(*event.level()),
        }
    }

    pub(crate) fn sampling_of_level(&self, level: Level) -> &Sampling {
        &self.levels[index(level)]
    }
}

impl TargetRule {
    fn matches(&self, event: &Metadata<'_>) -> bool {
        let inside = event.target().strip_prefix(&*self.target);
        inside.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            && self.level.is_none_or(|level| level == *event.level())
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::new()
    }
}

pub(crate) const LEVELS: [Level; 5] = [
    Level::ERROR,
    Level::WARN,
    Level::INFO,
    Level::DEBUG,
    Level::TRACE,
];

/// The index of a level in [`LEVELS`].
pub(crate) fn index(level: Level) -> usize {
    match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        Level::DEBUG => 3,
        Level::TRACE => 4,
    }
}

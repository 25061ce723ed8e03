//! What is wrong or doubtful, and where: one line each.

use crate::validate::Severity;
use std::fmt;

/// Something that is wrong with a configuration, or doubtful.
///
/// It prints as one line: ``ratekeeper.toml:12:9: error: unknown key `limt` in [[policy]] "login";
/// did you mean `limit`?``
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Where something is said.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Nowhere in particular.
    Nowhere,
    /// In a file.
    File {
        /// Its name as it was given.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
    },
    /// In an environment variable of that name.
    Variable(String),
}

impl Diagnostic {
    pub(crate) fn error(place: Place, message: String) -> Self {
        Self {
            severity: Severity::Error,
            place,
            message,
        }
    }

    /// A warning.
    pub fn warning(place: Place, message: String) -> Self {
        Self {
            severity: Severity::Warning,
            place,
            message,
        }
    }

    /// Whether it cannot be.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        match &self.place {
            Place::Nowhere => write!(f, "{severity}: {}", self.message),
            place => write!(f, "{place}: {severity}: {}", self.message),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => Ok(()),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Variable(name) => f.write_str(name),
        }
    }
}

//! Diagnostics: errors and warnings about a configuration, each with its location.

use crate::validate::Severity;
use std::fmt;

/// An error or a warning about a configuration.
///
/// It prints as one line: ``ratekeeper.toml:12:9: error: unknown key `limt` in [[policy]] "login";
/// did you mean `limit`?``
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Where the problem is.
    pub location: Location,
    /// What is wrong, and how to fix it.
    pub message: String,
}

/// The location of a value: in the file, or in an environment variable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Location {
    /// No particular location.
    Nowhere,
    /// A position in a file.
    File {
        /// The name of the file, as it was given.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
    },
    /// The environment variable of this name.
    Variable(String),
}

impl Diagnostic {
    /// An error.
    pub(crate) fn error(location: Location, message: String) -> Self {
        Self {
            severity: Severity::Error,
            location,
            message,
        }
    }

    /// A warning.
    pub fn warning(location: Location, message: String) -> Self {
        Self {
            severity: Severity::Warning,
            location,
            message,
        }
    }

    /// Whether it is an error: the configuration cannot be used.
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
        match &self.location {
            Location::Nowhere => write!(f, "{severity}: {}", self.message),
            location => write!(f, "{location}: {severity}: {}", self.message),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => Ok(()),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Variable(name) => f.write_str(name),
        }
    }
}

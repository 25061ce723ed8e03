//! Secrets, which are never printed.

use ratekeeper_policy::config::section::{KeyType, ReadError, Value, str_of, text};
use ratekeeper_policy::key_kind;
use std::fmt;

/// The replacement for a password.
pub(super) const HIDDEN: &str = "***";

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Wraps a string so that it is not printed.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The string itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

key_kind!(
    Secret as Self,
    KeyType::Secret { bytes: 16 },
    |key_type: &KeyType, value: &Value| {
        let text = str_of(value)?;
        let is_short = matches!(key_type, KeyType::Secret { bytes } if text.len() < *bytes);
        (!is_short)
            .then(|| Self::new(text))
            .ok_or(ReadError::WrongType)
    },
    |secret: &Self, hide| Some(text(if hide {
        "(hidden, 16 bytes or more)"
    } else {
        secret.reveal()
    })),
    secret
);

/// A secret of any length.
pub(crate) struct Password;

key_kind!(
    Password as Secret,
    KeyType::Secret { bytes: 1 },
    |_: &_, value: &Value| str_of(value).map(Secret::new),
    |secret: &Secret, hide| Some(text(if hide { "(hidden)" } else { secret.reveal() })),
    secret
);

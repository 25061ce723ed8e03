//! The type of a key of ratekeeper.toml, and how it is described to users.

use super::time::duration_text;
use ratekeeper::Algorithm;
use std::time::Duration;

/// A table of the file and its keys.
#[derive(Debug)]
pub struct TableSpec {
    /// The description, for the JSON Schema.
    pub doc: &'static str,
    /// The keys, in the order in which they are shown.
    pub keys: &'static [KeySpec],
}

/// A key of a table.
#[derive(Debug)]
pub struct KeySpec {
    /// The name in the file.
    pub name: &'static str,
    /// The type of its value.
    pub key_type: KeyType,
    /// The default in TOML syntax, if it has one.
    pub default: Option<&'static str>,
    /// Whether it must be written.
    pub required: bool,
    /// The description, for the JSON Schema.
    pub doc: &'static str,
    /// An example of a value, in TOML syntax.
    pub example: &'static str,
    /// Whether its value is hidden in messages.
    pub secret: bool,
    /// Whether `config show` leaves it out while it has its default.
    pub quiet: bool,
}

/// The type of a key.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum KeyType {
    Bool,
    Number {
        min: u64,
        max: u64,
    },
    /// 0 to 100, with a fraction or without.
    Percent,
    /// A number above 0, up to 1.
    Share,
    /// Units, or a percentage such as "50%".
    Reserve,
    /// A string that is not empty.
    Text {
        /// What it must be, phrased to follow "must be".
        expected: &'static str,
        /// A regular expression for the JSON Schema; empty if any string may be valid.
        pattern: &'static str,
    },
    /// A string of at least this many bytes, which is not shown.
    Secret {
        bytes: usize,
    },
    OneOf(&'static [&'static str]),
    /// One of these integers.
    OneOfNumbers(&'static [u16]),
    Algorithm,
    Duration,
    DurationWithin {
        min: Duration,
        max: Duration,
    },
    /// A date and time with offset.
    Time,
    /// An HTTP status, or several: 404, "500-599", "5xx".
    Status,
    /// `true`: the header must be present, with any value.
    True,
    OneOrMany(&'static KeyType),
    Either(&'static KeyType, &'static KeyType),
    /// `[name]` or `name = { … }`.
    Table(&'static TableSpec),
    /// `[[name]]`
    Tables(&'static TableSpec),
    /// A table whose keys are chosen by the user.
    Named(&'static KeyType),
    /// Not a key itself: these keys are in the same table.
    Flatten(&'static TableSpec),
}

/// The largest integer that every TOML parser accepts.
pub const MAX_INTEGER: u64 = i64::MAX as u64;

impl TableSpec {
    /// All keys; flattened ones in their place.
    pub fn keys(&self) -> Vec<&'static KeySpec> {
        let mut keys = Vec::new();
        for key in self.keys {
            match &key.key_type {
                KeyType::Flatten(table) => keys.extend(table.keys()),
                _ => keys.push(key),
            }
        }
        keys
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static KeySpec> {
        self.keys().into_iter().find(|key| key.name == name)
    }

    /// The table that a misplaced key belongs to if this is the file, phrased to follow "move it".
    pub(crate) fn table_of(&self, name: &str) -> Option<String> {
        self.keys().into_iter().find_map(|key| match &key.key_type {
            // In TOML what follows the header of a table is part of it.
            _ if key.name == name => Some("to the top level, above the first table".to_owned()),
            KeyType::Table(table) if table.key(name).is_some() => {
                Some(format!("to [{}]", key.name))
            }
            KeyType::Tables(table) if table.key(name).is_some() => {
                Some(format!("to a [[{}]]", key.name))
            }
            _ => None,
        })
    }
}

impl KeyType {
    /// A string that is not empty: what it must be, phrased to follow "must be", and a regular
    /// expression for the JSON Schema, empty if any string may be valid.
    pub const fn text(expected: &'static str, pattern: &'static str) -> Self {
        Self::Text { expected, pattern }
    }

    /// A number in this range.
    pub const fn number(min: u64, max: u64) -> Self {
        Self::Number { min, max }
    }

    /// A duration in this range, in milliseconds.
    pub const fn millis(min: u64, max: u64) -> Self {
        Self::DurationWithin {
            min: Duration::from_millis(min),
            max: Duration::from_millis(max),
        }
    }

    /// What a value must be, phrased to follow "must be".
    pub(crate) fn expected(&self) -> String {
        let text = match self {
            Self::Bool => "true or false",
            Self::Percent => "a number from 0 to 100",
            Self::Share => "a number above 0 and up to 1, such as 0.9",
            Self::Reserve => "a whole number, or a percentage such as \"20%\"",
            Self::Text { expected, .. } => expected,
            Self::Duration => "a duration, such as \"500ms\", \"2s\" or \"1h\"",
            Self::Time => {
                "a date and time with offset, without quotes, such as 2030-01-01T00:00:00Z"
            }
            Self::Status => {
                "a status from 100 to 999, such as 404, or a range such as \"500-599\" or \"5xx\""
            }
            Self::True => "true",
            Self::Tables(_) => "an array of tables, written as [[…]]",
            Self::Number {
                min,
                max: MAX_INTEGER,
            } => return format!("a whole number of at least {min}"),
            Self::Number { min, max } => return format!("a whole number from {min} to {max}"),
            Self::Secret { bytes } => return format!("a string of at least {bytes} bytes"),
            Self::OneOf(_) | Self::Algorithm => {
                let words = self.choices().unwrap_or_default();
                return join_or(words.iter().map(|word| format!("\"{word}\"")));
            }
            Self::OneOfNumbers(numbers) => return join_or(numbers.iter().map(ToString::to_string)),
            Self::DurationWithin { min, max } => {
                let (min, max) = (duration_text(*min), duration_text(*max));
                return format!("a duration from \"{min}\" to \"{max}\"");
            }
            Self::OneOrMany(one) => return format!("{}, or a list of these", one.expected()),
            Self::Either(one, other) => {
                return format!("{}, or {}", one.expected(), other.expected());
            }
            Self::Table(table) | Self::Flatten(table) => {
                let keys = table.keys();
                let required = keys.iter().filter(|key| key.required).count();
                // In every table the required keys come first.
                let shown = keys.iter().take(required.max(1));
                let shown = shown.map(|key| format!("{} = {}", key.name, key.example));
                let shown = shown.collect::<Vec<_>>().join(", ");
                return format!("a table, such as {{ {shown} }}");
            }
            Self::Named(one) => {
                return format!("a table in which each value is {}", one.expected());
            }
        };
        text.to_owned()
    }

    /// The accepted words, if it accepts only certain words.
    pub(crate) fn choices(&self) -> Option<Vec<&'static str>> {
        match self {
            Self::OneOf(words) => Some(words.to_vec()),
            Self::Algorithm => Some(Algorithm::ALL.map(Algorithm::name).to_vec()),
            _ => None,
        }
    }

    /// Whether it can be set by an environment variable: a single value, or a list of them.
    pub(crate) fn fits_variable(&self) -> bool {
        match self {
            Self::Table(_) | Self::Tables(_) | Self::Named(_) | Self::Either(..) => false,
            Self::OneOrMany(key_type) => key_type.fits_variable(),
            _ => true,
        }
    }
}

/// A list in English: `a, b or c`.
pub fn join_or(words: impl Iterator<Item = String>) -> String {
    let words = words.collect::<Vec<_>>();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

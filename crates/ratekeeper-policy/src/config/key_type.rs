//! The type of a key of ratekeeper.toml, its default, and how both are described to users.

use super::time::duration_text;
use ratekeeper::Algorithm;
use std::fmt;
use std::time::Duration;

/// A table of the file and its keys.
#[derive(Debug)]
pub(crate) struct TableSpec {
    /// The description, for the JSON Schema.
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [KeySpec],
    /// Another table whose keys this one also has.
    pub(crate) extends: Option<&'static TableSpec>,
}

/// A key of a table.
#[derive(Debug)]
pub(crate) struct KeySpec {
    pub(crate) name: &'static str,
    pub(crate) key_type: KeyType,
    pub(crate) default: DefaultValue,
    /// The description, for the JSON Schema.
    pub(crate) doc: &'static str,
    /// An example of a value, in TOML syntax.
    pub(crate) example: &'static str,
    /// Whether the value is hidden in `config show` and in messages.
    pub(crate) secret: bool,
}

/// The default of a key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum DefaultValue {
    /// No default: the key is optional.
    Unset,
    /// No default: the key is required.
    Required,
    Bool(bool),
    Number(u64),
    Text(&'static str),
    Empty,
}

/// The type of a key.
#[derive(Debug)]
pub(crate) enum KeyType {
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
    Text,
    /// A string of at least this many bytes.
    LongText {
        bytes: usize,
    },
    OneOf(&'static [&'static str]),
    /// One of these integers.
    OneOfNumbers(&'static [u16]),
    /// "IP:PORT", "unix:/PATH" or "off".
    Listener,
    /// An IP address or a network.
    Network,
    /// An IP address, a network, or "unix".
    Proxy,
    HeaderName,
    RedisUrl,
    /// The URL of an upstream.
    Upstream,
    /// A limit, "count" or "exempt".
    Preflight,
    /// A prefix of key names in Redis.
    Prefix,
    Method,
    Path,
    Host,
    Attribute,
    Algorithm,
    Limit,
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
}

/// The largest integer that every TOML parser accepts.
pub(crate) const MAX_INTEGER: u64 = i64::MAX as u64;

impl TableSpec {
    /// All keys, those of the extended table first.
    pub(crate) fn keys(&self) -> Vec<&'static KeySpec> {
        let mut keys = self.extends.map_or(Vec::new(), Self::keys);
        keys.extend(self.keys);
        keys
    }

    /// The key of this name.
    pub(crate) fn key(&self, name: &str) -> Option<&'static KeySpec> {
        let own = self.keys.iter().find(|key| key.name == name);
        own.or_else(|| self.extends.and_then(|also| also.key(name)))
    }
}

impl KeyType {
    /// What a value must be, phrased to follow "must be".
    pub(crate) fn expected(&self) -> String {
        let text = match self {
            Self::Bool => "true or false",
            Self::Percent => "a number from 0 to 100",
            Self::Share => "a number above 0 and up to 1, such as 0.9",
            Self::Reserve => "a whole number, or a percentage such as \"20%\"",
            Self::Text => "a string that is not empty",
            Self::Listener => {
                "an address and a port such as \"127.0.0.1:8080\", a Unix socket such as \
                 \"unix:/run/ratekeeper/http.sock\", or \"off\""
            }
            Self::Network => "an address, or a network such as \"10.0.0.0/8\"",
            Self::Proxy => {
                "an address, a network such as \"10.0.0.0/8\", or \"unix\" for Unix sockets"
            }
            Self::HeaderName => "the name of a header, such as \"x-user-id\"",
            Self::RedisUrl => "the URL of a Redis server, such as \"redis://127.0.0.1:6379\"",
            Self::Upstream => {
                "the URL of a service, such as \"http://127.0.0.1:3000\" or \
                 \"https://app.internal\""
            }
            Self::Preflight => "a limit such as \"600/min burst 100\", \"count\" or \"exempt\"",
            Self::Prefix => {
                "1 to 64 printable ASCII characters without spaces, `{` and `}`, such as \
                 \"ratekeeper\""
            }
            Self::Method => "an HTTP method, such as \"POST\"",
            Self::Path => "a path, such as \"/api/**\"",
            Self::Host => "a host, such as \"api.example.com\"",
            Self::Attribute => {
                "the name of an attribute, such as \"ip\", \"user\" or \"header:x-tenant\""
            }
            Self::Limit => "a limit, such as \"100/min burst 20\"",
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
            Self::LongText { bytes } => return format!("a string of at least {bytes} bytes"),
            Self::OneOf(words) => return join_or(words.iter().map(|word| format!("\"{word}\""))),
            Self::OneOfNumbers(numbers) => return join_or(numbers.iter().map(ToString::to_string)),
            Self::Algorithm => {
                return join_or(
                    Algorithm::ALL
                        .iter()
                        .map(|algorithm| format!("\"{algorithm}\"")),
                );
            }
            Self::DurationWithin { min, max } => {
                let (min, max) = (duration_text(*min), duration_text(*max));
                return format!("a duration from \"{min}\" to \"{max}\"");
            }
            Self::OneOrMany(one) => return format!("{}, or a list of these", one.expected()),
            Self::Either(one, other) => {
                return format!("{}, or {}", one.expected(), other.expected());
            }
            Self::Table(table) => {
                let keys = table.keys();
                let required = keys
                    .iter()
                    .filter(|key| key.default == DefaultValue::Required)
                    .count();
                // In every table the required keys come first.
                let shown = &keys[..required.max(1).min(keys.len())];
                let shown = shown
                    .iter()
                    .map(|key| format!("{} = {}", key.name, key.example))
                    .collect::<Vec<_>>();
                return format!("a table, such as {{ {} }}", shown.join(", "));
            }
            Self::Named(one) => {
                return format!("a table in which each value is {}", one.expected());
            }
        };
        text.to_owned()
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
pub(crate) fn join_or(words: impl Iterator<Item = String>) -> String {
    let words = words.collect::<Vec<_>>();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl fmt::Display for DefaultValue {
    /// The default in TOML syntax; empty if there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset | Self::Required => Ok(()),
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => write!(f, "\"{value}\""),
            Self::Empty => f.write_str("[]"),
        }
    }
}

impl KeyType {
    /// The accepted words, if it accepts only certain words.
    pub(crate) fn choices(&self) -> Option<Vec<&'static str>> {
        match self {
            Self::OneOf(words) => Some(words.to_vec()),
            Self::Algorithm => Some(
                Algorithm::ALL
                    .iter()
                    .map(|algorithm| algorithm.name())
                    .collect(),
            ),
            _ => None,
        }
    }

    /// The table, if it is one or may be one.
    pub(crate) fn table(&self) -> Option<&'static TableSpec> {
        match self {
            Self::Table(table) => Some(table),
            Self::Either(one, other) => one.table().or(other.table()),
            _ => None,
        }
    }
}

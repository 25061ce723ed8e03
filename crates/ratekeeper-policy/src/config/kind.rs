//! What a key of ratekeeper.toml is: its type, its default, and how both are said.

use super::time::duration_text;
use ratekeeper::Algorithm;
use std::fmt;
use std::time::Duration;

/// A table of the file and its keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// One line for a reader of the schema.
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [Key],
    /// Another table whose keys this one has too.
    pub(crate) also: Option<&'static Table>,
}

/// A key of a table.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default,
    /// One line.
    pub(crate) doc: &'static str,
    /// A value as it is written in a file.
    pub(crate) example: &'static str,
    /// Never shown, neither by `config show` nor in a message.
    pub(crate) secret: bool,
}

/// What holds where a key is not written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Default {
    /// Nothing, and nothing is missing.
    Unset,
    /// The key must be written.
    Required,
    Bool(bool),
    Number(u64),
    Text(&'static str),
    Empty,
}

/// The type of a key.
#[derive(Debug)]
pub(crate) enum Kind {
    Bool,
    Number {
        min: u64,
        max: u64,
    },
    /// 0 to 100, with a fraction or without.
    Percent,
    /// More than 0, up to 1.
    Share,
    /// Units, or a share as "50%".
    Reserve,
    Text,
    /// A text of at least so many bytes.
    LongText {
        bytes: usize,
    },
    OneOf(&'static [&'static str]),
    /// One of these numbers.
    OneOfNumbers(&'static [u16]),
    /// "IP:PORT", "unix:/PATH" or "off".
    Listener,
    /// An address or a network of them.
    Network,
    /// The same, or "unix".
    Proxy,
    HeaderName,
    RedisUrl,
    /// Where a service is that requests are sent on to.
    Upstream,
    /// A limit, "count" or "exempt".
    Preflight,
    /// The beginning of names in Redis.
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
    /// A date and time with its offset.
    Time,
    /// A status of HTTP, or several: 404, "500-599", "5xx".
    Status,
    /// True for a header that is there, whatever it says.
    True,
    OneOrMany(&'static Kind),
    Either(&'static Kind, &'static Kind),
    /// `[name]` or `name = { … }`.
    Table(&'static Table),
    /// `[[name]]`
    Tables(&'static Table),
    /// A table whose keys are names of the user's own.
    Named(&'static Kind),
}

/// The largest number that every reader of TOML takes.
pub(crate) const MOST: u64 = i64::MAX as u64;

impl Table {
    /// Its keys, those of the other table first.
    pub(crate) fn keys(&self) -> Vec<&'static Key> {
        let mut keys = self.also.map_or(Vec::new(), Self::keys);
        keys.extend(self.keys);
        keys
    }

    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        let own = self.keys.iter().find(|key| key.name == name);
        own.or_else(|| self.also.and_then(|also| also.key(name)))
    }
}

impl Kind {
    /// What a value must be, to stand behind "must be".
    pub(crate) fn wants(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Number { min, max: MOST } => format!("a whole number of at least {min}"),
            Self::Number { min, max } => format!("a whole number from {min} to {max}"),
            Self::Percent => "a number from 0 to 100".to_owned(),
            Self::Share => "a share above 0 and up to 1, as 0.9".to_owned(),
            Self::Reserve => "a whole number or a share as \"20%\"".to_owned(),
            Self::Text => "a text that is not empty".to_owned(),
            Self::LongText { bytes } => format!("a text of at least {bytes} bytes"),
            Self::OneOf([one]) => format!("\"{one}\""),
            Self::OneOf(words) => either(words.iter().map(|word| format!("\"{word}\""))),
            Self::OneOfNumbers(numbers) => either(numbers.iter().map(ToString::to_string)),
            Self::Listener => {
                "an address and a port as \"127.0.0.1:8080\", a Unix socket as \"unix:/run/ratekeeper/http.sock\", or \"off\""
                    .to_owned()
            }
            Self::Network => "an address or a network as \"10.0.0.0/8\"".to_owned(),
            Self::Proxy => "an address or a network as \"10.0.0.0/8\", or \"unix\" for Unix sockets".to_owned(),
            Self::HeaderName => "the name of a header, as \"x-user-id\"".to_owned(),
            Self::RedisUrl => "the url of a Redis server, as \"redis://127.0.0.1:6379\"".to_owned(),
            Self::Upstream => "where a service is, as \"http://127.0.0.1:3000\" or \"https://app.internal\"".to_owned(),
            Self::Preflight => "a limit as \"600/min burst 100\", \"count\" or \"exempt\"".to_owned(),
            Self::Prefix => {
                "1 to 64 printable characters of ASCII without spaces, `{` and `}`, as \"ratekeeper\"".to_owned()
            }
            Self::Method => "a method of HTTP, as \"POST\"".to_owned(),
            Self::Path => "a path, as \"/api/**\"".to_owned(),
            Self::Host => "a host, as \"api.example.com\"".to_owned(),
            Self::Attribute => "the name of an attribute, as \"ip\", \"user\" or \"header:x-tenant\"".to_owned(),
            Self::Algorithm => either(Algorithm::ALL.iter().map(|algorithm| format!("\"{algorithm}\""))),
            Self::Limit => "a limit, as \"100/min burst 20\"".to_owned(),
            Self::Duration => "a time, as \"500ms\", \"2s\" or \"1h\"".to_owned(),
            Self::DurationWithin { min, max } => {
                format!("a time from \"{}\" to \"{}\"", duration_text(*min), duration_text(*max))
            }
            Self::Time => "a date and time with its offset, without quotes, as 2030-01-01T00:00:00Z".to_owned(),
            Self::Status => "a status from 100 to 999, as 404, or several as \"500-599\" or \"5xx\"".to_owned(),
            Self::True => "true".to_owned(),
            Self::OneOrMany(kind) => format!("{}, or a list of such", kind.wants()),
            Self::Either(one, other) => format!("{}, or {}", one.wants(), other.wants()),
            Self::Table(table) => {
                let keys = table.keys();
                let required = keys.iter().filter(|key| key.default == Default::Required).count();
                // What must be written goes first in every table that has such keys.
                let shown = &keys[..required.max(1).min(keys.len())];
                let shown = shown.iter().map(|key| format!("{} = {}", key.name, key.example)).collect::<Vec<_>>();
                format!("a table, as {{ {} }}", shown.join(", "))
            }
            Self::Tables(_) => "written as [[…]], once for each".to_owned(),
            Self::Named(kind) => format!("a table of names, each {}", kind.wants()),
        }
    }

    /// Whether an environment variable can say it: one value, or a list of such.
    pub(crate) fn is_plain(&self) -> bool {
        match self {
            Self::Table(_) | Self::Tables(_) | Self::Named(_) | Self::Either(..) => false,
            Self::OneOrMany(kind) => kind.is_plain(),
            _ => true,
        }
    }
}

/// `a`, `b` or `c`.
pub(crate) fn either(words: impl Iterator<Item = String>) -> String {
    let words = words.collect::<Vec<_>>();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl fmt::Display for Default {
    /// As it is written in a file; nothing where there is none.
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

impl Kind {
    /// The words that it may be, where they are few.
    pub(crate) fn words(&self) -> Option<Vec<&'static str>> {
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

    /// The table that it is, or may be.
    pub(crate) fn table(&self) -> Option<&'static Table> {
        match self {
            Self::Table(table) => Some(table),
            Self::Either(one, other) => one.table().or(other.table()),
            _ => None,
        }
    }
}

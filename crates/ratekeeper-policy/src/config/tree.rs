//! What a file or a variable says, with where it says it: the values before anybody asked what they
//! mean.

use super::diagnostic::{Diagnostic, Place};
use super::kind::Default;
use std::borrow::Cow;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::value::Datetime;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) at: Spot,
    pub(crate) data: Data,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    Text(String),
    /// Saturated: what does not fit is out of every range.
    Whole(i128),
    Fraction(f64),
    Bool(bool),
    Time(Datetime),
    List(Vec<Value>),
    /// In the order of the file.
    Table(Vec<Entry>),
}

/// A name in a table and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) at: Spot,
    pub(crate) value: Value,
}

/// Where something stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spot {
    /// A byte of the file.
    File(usize),
    Variable(&'static str),
    /// Nobody wrote it.
    Nowhere,
}

/// The text of a file, for finding lines and columns in it.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(name: &'a str, text: &'a str) -> Self {
        // The mark that some editors put in front is no part of the first line.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Self { name, text, lines }
    }

    pub(crate) fn place(&self, spot: Spot) -> Place {
        match spot {
            Spot::Nowhere => Place::Nowhere,
            Spot::Variable(name) => Place::Variable(name.to_owned()),
            Spot::File(at) => {
                let line = self.lines.partition_point(|start| *start <= at).max(1);
                let before = self.text.get(self.lines[line - 1]..at).unwrap_or_default();
                Place::File {
                    file: self.name.to_owned(),
                    line,
                    column: before.chars().count() + 1,
                }
            }
        }
    }

    /// Where a file that is no TOML begins as YAML does; none if it does not.
    fn yaml(&self) -> Option<usize> {
        let mut lines = self.lines.iter().map(|start| {
            (
                *start,
                self.text[*start..].lines().next().unwrap_or_default(),
            )
        });
        let (at, line) = lines
            .find(|(_, line)| !matches!(line.trim_start().bytes().next(), None | Some(b'#')))?;
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-.\"'".contains(c))
        };
        let is_entry = |line: &str| {
            line.split_once(':').is_some_and(|(name, rest)| {
                is_name(name) && (rest.is_empty() || rest.starts_with([' ', '\t']))
            })
        };
        let is_yaml = line.starts_with("---")
            || line.starts_with("%YAML")
            || line.starts_with("- ")
            || is_entry(line);
        let is_named_so = [".yaml", ".yml"]
            .iter()
            .any(|ending| self.name.ends_with(ending));
        (is_yaml || is_named_so).then_some(at)
    }

    /// The file as a table; what is no TOML is told, one finding a line.
    pub(crate) fn parse(&self) -> Result<Vec<Entry>, Vec<Diagnostic>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Ok(entries(document.get_ref()));
        }
        if let Some(at) = self.yaml() {
            let message = "this is YAML, and the configuration is written in TOML, as in docs/policies.md; the limits of \
                           envoyproxy/ratelimit are read with --envoy-config";
            return Err(vec![Diagnostic::error(
                self.place(Spot::File(at)),
                message.to_owned(),
            )]);
        }
        let mut found = errors
            .iter()
            .map(|error| {
                let at = error
                    .span()
                    .map_or(0, |span| span.start.min(self.text.len()));
                let there = error
                    .span()
                    .and_then(|span| self.text.get(span))
                    .unwrap_or_default()
                    .escape_debug();
                let message = match error.message() {
                    "duplicate key" => {
                        format!("`{there}` is written twice; remove one, or put both together")
                    }
                    other => format!("this is not TOML: {}", other.replace(['\n', '\r'], " ")),
                };
                Diagnostic::error(self.place(Spot::File(at)), message)
            })
            .collect::<Vec<_>>();
        found.sort_by(|one, other| one.place.cmp(&other.place));
        // One mistake makes several errors; the first one of a line is the cause.
        found.dedup_by_key(|one| match one.place {
            Place::File { line, .. } => line,
            _ => 0,
        });
        Err(found)
    }
}

fn entries(table: &DeTable<'_>) -> Vec<Entry> {
    let mut entries = table
        .iter()
        .map(|(name, value)| Entry {
            name: name.get_ref().to_string(),
            at: Spot::File(name.span().start),
            value: Value::read(value),
        })
        .collect::<Vec<_>>();
    entries.sort_by_key(|entry| match entry.at {
        Spot::File(at) => at,
        _ => 0,
    });
    entries
}

impl Value {
    fn read(value: &Spanned<DeValue<'_>>) -> Self {
        let data = match value.get_ref() {
            DeValue::String(text) => Data::Text(text.to_string()),
            DeValue::Integer(number) => {
                let saturated = if number.as_str().starts_with('-') {
                    i128::MIN
                } else {
                    i128::MAX
                };
                Data::Whole(
                    i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(saturated),
                )
            }
            DeValue::Float(number) => Data::Fraction(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(value) => Data::Bool(*value),
            DeValue::Datetime(time) => Data::Time(*time),
            DeValue::Array(list) => Data::List(list.iter().map(Self::read).collect()),
            DeValue::Table(table) => Data::Table(entries(table)),
        };
        Self {
            at: Spot::File(value.span().start),
            data,
        }
    }

    /// A value alone, as it is written in a file.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        DeValue::parse(text).ok().map(|value| Self::read(&value))
    }

    /// What holds where nothing is written.
    pub(crate) fn by_default(default: Default) -> Option<Self> {
        let data = match default {
            Default::Unset | Default::Required => return None,
            Default::Bool(value) => Data::Bool(value),
            Default::Number(number) => Data::Whole(number.into()),
            Default::Text(text) => Data::Text(text.to_owned()),
            Default::Empty => Data::List(Vec::new()),
        };
        Some(Self {
            at: Spot::Nowhere,
            data,
        })
    }

    /// In a few words, for a message.
    pub(crate) fn in_words(&self) -> Cow<'static, str> {
        const LONGEST: usize = 40;
        match &self.data {
            Data::Text(text) if text.is_empty() => "an empty text".into(),
            Data::Text(text) if text.chars().count() <= LONGEST => {
                format!("\"{}\"", text.escape_debug()).into()
            }
            Data::Text(text) => {
                let start = text.chars().take(LONGEST).collect::<String>();
                format!("\"{}…\"", start.escape_debug()).into()
            }
            Data::Whole(i128::MIN | i128::MAX) => "a number that large".into(),
            Data::Whole(number) => number.to_string().into(),
            // So that 1e6 is not told as the whole number that it is not.
            Data::Fraction(number) => format!("{number:?}").into(),
            Data::Bool(value) => value.to_string().into(),
            Data::Time(time) => time.to_string().into(),
            Data::List(_) => "a list".into(),
            Data::Table(_) => "a table".into(),
        }
    }
}

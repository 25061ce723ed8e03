//! Untyped values of the file and the variables, each with its position.

use super::diagnostic::{Diagnostic, Location};
use super::env::Variable;
use std::borrow::Cow;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::value::Datetime;

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its position.
    pub at: Position,
    /// Its content.
    pub data: Data,
}

/// The content of a value, by the types of TOML.
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub enum Data {
    String(String),
    /// Saturated: a number that does not fit is out of every range.
    Integer(i128),
    Float(f64),
    Bool(bool),
    Datetime(Datetime),
    Array(Vec<Value>),
    /// In the order of the file.
    Table(Vec<Entry>),
}

/// A key of a table and its value.
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub struct Entry {
    pub(crate) name: String,
    pub(crate) at: Position,
    pub(crate) value: Value,
}

/// The position of a key or value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// A byte offset in the file.
    File(usize),
    /// An environment variable, by its index.
    Variable(usize),
    /// A default, or a table that is not written.
    Nowhere,
}

/// The text of a file, with its lines to look up positions.
pub(crate) struct FileText<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// The byte offset of each line.
    lines: Vec<usize>,
    /// The environment variables that override the file.
    pub(crate) variables: Vec<Variable>,
}

impl<'a> FileText<'a> {
    pub(crate) fn new(name: &'a str, text: &'a str) -> Self {
        // Some editors write a byte order mark, which is not part of the first line.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Self {
            name,
            text,
            lines,
            variables: Vec::new(),
        }
    }

    /// The line and column of a position, or its variable.
    pub(crate) fn location(&self, position: Position) -> Location {
        match position {
            Position::Nowhere => Location::Nowhere,
            Position::Variable(index) => self
                .variables
                .get(index)
                .map_or(Location::Nowhere, |variable| {
                    Location::Variable(variable.name.clone())
                }),
            Position::File(at) => {
                let line = self.lines.partition_point(|start| *start <= at).max(1);
                let before = self.text.get(self.lines[line - 1]..at).unwrap_or_default();
                Location::File {
                    file: self.name.to_owned(),
                    line,
                    column: before.chars().count() + 1,
                }
            }
        }
    }

    /// Where the content of a file begins, if it looks like YAML or is named so.
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
        let has_yaml_name = [".yaml", ".yml"]
            .iter()
            .any(|ending| self.name.ends_with(ending));
        (is_yaml || has_yaml_name).then_some(at)
    }

    /// Parses the file as TOML. There is at most one error per line.
    pub(crate) fn parse(&self) -> Result<Vec<Entry>, Vec<Diagnostic>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Ok(entries(document.get_ref()));
        }
        if let Some(at) = self.yaml() {
            let message = "this is YAML, but the configuration is TOML; see docs/policies.md. To \
                           read the limits of envoyproxy/ratelimit, use --envoy-config";
            return Err(vec![Diagnostic::error(
                self.location(Position::File(at)),
                message.to_owned(),
            )]);
        }
        let mut diagnostics = errors
            .iter()
            .map(|error| {
                let at = error
                    .span()
                    .map_or(0, |span| span.start.min(self.text.len()));
                let key = error
                    .span()
                    .and_then(|span| self.text.get(span))
                    .unwrap_or_default()
                    .escape_debug();
                let message = match error.message() {
                    "duplicate key" => {
                        format!("`{key}` is defined twice; remove one, or merge them")
                    }
                    other => format!("this is not TOML: {}", other.replace(['\n', '\r'], " ")),
                };
                Diagnostic::error(self.location(Position::File(at)), message)
            })
            .collect::<Vec<_>>();
        diagnostics.sort_by(|one, other| one.location.cmp(&other.location));
        // One mistake can cause several errors; the first of a line is the cause.
        diagnostics.dedup_by_key(|one| match one.location {
            Location::File { line, .. } => line,
            _ => 0,
        });
        Err(diagnostics)
    }
}

fn entries(table: &DeTable<'_>) -> Vec<Entry> {
    let mut entries = table
        .iter()
        .map(|(name, value)| Entry {
            name: name.get_ref().to_string(),
            at: Position::File(name.span().start),
            value: Value::read(value),
        })
        .collect::<Vec<_>>();
    entries.sort_by_key(|entry| match entry.at {
        Position::File(at) => at,
        _ => 0,
    });
    entries
}

impl Value {
    fn read(value: &Spanned<DeValue<'_>>) -> Self {
        let data = match value.get_ref() {
            DeValue::String(text) => Data::String(text.to_string()),
            DeValue::Integer(number) => {
                let saturated = if number.as_str().starts_with('-') {
                    i128::MIN
                } else {
                    i128::MAX
                };
                Data::Integer(
                    i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(saturated),
                )
            }
            DeValue::Float(number) => Data::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(value) => Data::Bool(*value),
            DeValue::Datetime(time) => Data::Datetime(*time),
            DeValue::Array(list) => Data::Array(list.iter().map(Self::read).collect()),
            DeValue::Table(table) => Data::Table(entries(table)),
        };
        Self {
            at: Position::File(value.span().start),
            data,
        }
    }

    /// Parses a single value in TOML syntax.
    pub fn parse(text: &str) -> Option<Self> {
        DeValue::parse(text).ok().map(|value| Self::read(&value))
    }

    /// The value in a few words, for messages.
    pub fn describe(&self) -> Cow<'static, str> {
        const MAX_CHARS: usize = 40;
        match &self.data {
            Data::String(text) if text.is_empty() => "an empty string".into(),
            Data::String(text) if text.chars().count() <= MAX_CHARS => {
                format!("\"{}\"", text.escape_debug()).into()
            }
            Data::String(text) => {
                let start = text.chars().take(MAX_CHARS).collect::<String>();
                format!("\"{}…\"", start.escape_debug()).into()
            }
            Data::Integer(i128::MIN | i128::MAX) => "a number out of range".into(),
            Data::Integer(number) => number.to_string().into(),
            // With a decimal point or an exponent, so that 1e6 does not look like an integer.
            Data::Float(number) => format!("{number:?}").into(),
            Data::Bool(value) => value.to_string().into(),
            Data::Datetime(time) => time.to_string().into(),
            Data::Array(_) => "a list".into(),
            Data::Table(_) => "a table".into(),
        }
    }
}

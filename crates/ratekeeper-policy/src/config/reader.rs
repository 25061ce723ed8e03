//! Reading of tables by their keys: unknown keys, wrong types and missing keys are reported here,
//! for all tables.

use super::attributes::known_attribute;
use super::diagnostic::Diagnostic;
use super::key_type::{KeySpec, KeyType, TableSpec};
use super::suggest::did_you_mean;
use super::value::{Data, Entry, FileText, Position, Value};
use crate::attribute::Attribute;
use std::cell::{Cell, RefCell};

/// Collects diagnostics while the file is read.
pub struct Reader<'a> {
    text: &'a FileText<'a>,
    /// All tables and keys of the file.
    file: &'static TableSpec,
    diagnostics: RefCell<Vec<Diagnostic>>,
    /// The attributes that `[identity]` declares; `None` if that has an error or is not read yet.
    pub(crate) declared: RefCell<Option<Vec<String>>>,
    /// Whether the counters are known to be in memory, where some keys have no effect.
    pub in_memory: Cell<bool>,
    /// The policies, plans and list entries that have errors, by their table and index.
    pub(crate) broken: RefCell<Vec<(&'static str, usize)>>,
}

/// Why a value is not valid for its key.
#[derive(Debug)]
pub enum ReadError {
    /// It has the wrong type or range; the message is made from the type of the key.
    WrongType,
    /// A specific message, about a byte offset in its text.
    Message {
        /// The byte offset.
        at: usize,
        /// The whole message.
        message: String,
    },
}

impl ReadError {
    /// A message about the whole value.
    pub fn message(message: impl Into<String>) -> Self {
        Self::Message {
            at: 0,
            message: message.into(),
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a FileText<'a>, file: &'static TableSpec) -> Self {
        Self {
            text,
            file,
            diagnostics: RefCell::default(),
            declared: RefCell::default(),
            in_memory: Cell::default(),
            broken: RefCell::default(),
        }
    }

    /// Checks that an attribute is known.
    pub(crate) fn known(&self, attribute: Attribute) -> Result<Attribute, ReadError> {
        match (&attribute, &*self.declared.borrow()) {
            (Attribute::Custom(name), Some(declared)) => known_attribute(name, declared)
                .map_err(|error| ReadError::message(error.to_string())),
            _ => Ok(attribute),
        }
    }

    /// Reports an error.
    pub fn error(&self, at: Position, message: impl Into<String>) {
        self.report(Diagnostic::error(self.text.location(at), message.into()));
    }

    /// Reports a warning.
    pub fn warn(&self, at: Position, message: impl Into<String>) {
        self.report(Diagnostic::warning(self.text.location(at), message.into()));
    }

    fn report(&self, diagnostic: Diagnostic) {
        self.diagnostics.borrow_mut().push(diagnostic);
    }

    /// The number of errors so far.
    pub(crate) fn error_count(&self) -> usize {
        let diagnostics = self.diagnostics.borrow();
        diagnostics.iter().filter(|one| one.is_error()).count()
    }

    /// All errors and warnings.
    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics.into_inner()
    }

    /// The position of a byte of a string value; that of the value if it is written with escapes.
    fn position_in(&self, value: &Value, at: usize) -> Position {
        let (Position::File(start), Data::String(text)) = (value.at, &value.data) else {
            return value.at;
        };
        let written = self
            .text
            .text
            .get(start + 1..)
            .is_some_and(|rest| rest.starts_with(text.as_str()));
        if written && text.is_char_boundary(at) {
            Position::File(start + 1 + at)
        } else {
            value.at
        }
    }
}

/// A key that is being read: what is needed to report about it.
pub struct Place<'a, 'v> {
    pub(crate) reader: &'a Reader<'a>,
    /// The table that it is in.
    pub section: &'a Section<'v>,
    /// The type of its values.
    pub key_type: &'a KeyType,
    spec: &'static KeySpec,
    /// The key in messages: `` `http` in [server]``.
    pub description: String,
    /// Whether its values are hidden in messages.
    pub secret: bool,
}

impl<'a, 'v> Place<'a, 'v> {
    /// A key of a table.
    pub fn new(section: &'a Section<'v>, spec: &'static KeySpec) -> Self {
        Self {
            reader: section.reader,
            section,
            key_type: &spec.key_type,
            spec,
            description: format!("`{}` {}", spec.name, section.describe()),
            secret: spec.secret,
        }
    }

    /// The result of converting a value; an error is reported.
    pub fn check<T>(&self, value: &Value, result: Result<T, ReadError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(ReadError::WrongType) => {
                let expected = self.key_type.expected();
                let mut message = format!("{} must be {expected}", self.description);
                if !self.secret {
                    message += &format!(", not {}", value.describe());
                }
                if let (Data::String(text), Some(words)) = (&value.data, self.key_type.choices())
                    && let Some(near) = did_you_mean(text, words)
                {
                    message += &format!("; did you mean \"{near}\"?");
                }
                self.reader.error(value.at, message);
            }
            Err(ReadError::Message { at, message }) => {
                let position = self.reader.position_in(value, at);
                self.reader.error(position, message);
            }
        }
        None
    }

    /// A part of the value of this key: one of a list, or of a table.
    pub(crate) fn part<'b>(&'b self, description: String, key_type: &'b KeyType) -> Place<'b, 'v> {
        Place {
            reader: self.reader,
            section: self.section,
            key_type,
            spec: self.spec,
            description,
            secret: self.secret,
        }
    }

    /// Reports that the key is missing.
    pub(crate) fn report_missing(&self) {
        let KeySpec { name, example, .. } = self.spec;
        let message = format!("{{key}} is missing {{in}}; add `{name} = {example}`");
        self.reader
            .error(self.section.at, self.section.fill(name, &message));
    }

    /// The entries of a value that must be a table.
    pub(crate) fn entries<'w>(&self, value: &'w Value) -> Option<&'w [Entry]> {
        let entries = match &value.data {
            Data::Table(entries) => Ok(&entries[..]),
            _ => Err(ReadError::WrongType),
        };
        self.check(value, entries)
    }

    /// Opens a value that must be a table.
    pub fn open<'b>(&'b self, value: &'b Value) -> Option<Section<'b>> {
        let entries = self.entries(value)?;
        self.open_entries((entries, value.at))
    }

    /// Opens an empty table, so that its keys are read for their defaults.
    pub fn open_empty(&self) -> Option<Section<'_>> {
        self.open_entries((&[], Position::Nowhere))
    }

    fn open_entries<'b>(&'b self, (entries, at): (&'b [Entry], Position)) -> Option<Section<'b>> {
        let (KeyType::Table(table) | KeyType::Either(_, KeyType::Table(table))) = self.key_type
        else {
            return None;
        };
        let Section { title, path, .. } = self.section;
        let name = self.spec.name;
        let (title, path) = match (title.is_empty(), path.is_empty()) {
            (true, _) => (format!("[{name}]"), String::new()),
            (false, true) => (title.clone(), name.to_owned()),
            (false, false) => (title.clone(), format!("{path}.{name}")),
        };
        Some(Section::open(
            self.section.reader,
            table,
            (entries, at),
            title,
            path,
        ))
    }
}

/// A table of the file that is being read.
pub struct Section<'v> {
    /// Collects the diagnostics.
    pub reader: &'v Reader<'v>,
    pub(crate) table: &'static TableSpec,
    pub(crate) entries: &'v [Entry],
    /// The position of the table.
    pub at: Position,
    /// The name in messages: `[server]`, `[[policy]] "login"`.
    title: String,
    /// The path of an inner table within it; empty if it is the table itself.
    path: String,
}

impl<'v> Section<'v> {
    /// Opens a table, and reports its unknown keys.
    pub(crate) fn open(
        reader: &'v Reader<'v>,
        table: &'static TableSpec,
        (entries, at): (&'v [Entry], Position),
        title: String,
        path: String,
    ) -> Self {
        let section = Self {
            reader,
            table,
            entries,
            at,
            title,
            path,
        };
        let names = table.keys().into_iter().map(|key| key.name);
        for entry in entries
            .iter()
            .filter(|entry| !names.clone().any(|name| name == entry.name))
        {
            // The keys of inner tables have other meanings.
            let other_table = reader
                .file
                .table_of(&entry.name)
                .filter(|_| section.path.is_empty());
            let help = match (did_you_mean(&entry.name, names.clone()), other_table) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(table)) => format!("move it {table}"),
                (None, None) => {
                    let names = names.clone().collect::<Vec<_>>();
                    format!("known keys are {}", names.join(", "))
                }
            };
            let name = entry.name.escape_debug();
            let place = section.describe();
            section
                .reader
                .error(entry.at, format!("unknown key `{name}` {place}; {help}"));
        }
        section
    }

    /// The location of its keys, in words: `in [server]`.
    pub fn describe(&self) -> String {
        match (self.title.is_empty(), self.path.is_empty()) {
            (true, _) => "at the top level".to_owned(),
            (false, true) => format!("in {}", self.title),
            (false, false) => format!("in `{}` of {}", self.path, self.title),
        }
    }

    /// The path of a key in the file: `gateway.route`.
    pub(crate) fn path_of(&self, key: &str) -> String {
        match self
            .title
            .strip_prefix('[')
            .and_then(|title| title.strip_suffix(']'))
        {
            Some(table) => format!("{table}.{key}"),
            None => key.to_owned(),
        }
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&'v Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The value of a key, if it is written.
    pub fn value(&self, name: &str) -> Option<&'v Value> {
        self.entry(name).map(|entry| &entry.value)
    }

    /// The string of a key, if it is written.
    pub fn text(&self, name: &str) -> Option<&'v str> {
        match &self.value(name)?.data {
            Data::String(text) => Some(text),
            _ => None,
        }
    }

    /// The string of a key, or its default.
    pub fn text_or_default(&self, name: &str) -> Option<&'v str> {
        match self.value(name) {
            Some(_) => self.text(name),
            None => Some(self.table.key(name)?.default?.trim_matches('"')),
        }
    }

    /// The position of a key; that of the table if it is not written.
    pub fn position(&self, name: &str) -> Position {
        self.entry(name).map_or(self.at, |entry| entry.at)
    }

    /// Whether a key is written.
    pub fn has(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Whether an array of tables is written.
    pub(crate) fn has_tables(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value { data: Data::Array(list), .. })
            if list.iter().any(|one| matches!(one.data, Data::Table(_))))
    }

    /// Whether a key is written as a table.
    pub(crate) fn has_table(&self, name: &str) -> bool {
        self.value(name)
            .is_some_and(|value| matches!(value.data, Data::Table(_)))
    }

    /// Warns that a key has no effect, with the reason and the remedy; `{key}` and `{in}` stand
    /// for it and its table.
    pub fn warn(&self, key: &str, message: &str) {
        self.reader
            .warn(self.position(key), self.fill(key, message));
    }

    /// Reports an error about a key, written as for [`warn`](Self::warn).
    pub fn error(&self, key: &str, message: &str) {
        self.reader
            .error(self.position(key), self.fill(key, message));
    }

    fn fill(&self, key: &str, message: &str) -> String {
        message
            .replace("{in}", &self.describe())
            .replace("{key}", &format!("`{key}`"))
    }
}

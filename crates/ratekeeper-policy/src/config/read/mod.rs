//! Reading of tables, driven by the table of keys: unknown keys, wrong types and missing keys are
//! reported here, for all tables.

pub(crate) mod file;
mod gateway;
mod matching;
mod overload;
mod policy;
mod scalar;
mod settings;
mod store;
mod tls;

pub(super) use scalar::is_header_name;

use super::attributes::known_attribute;
use super::diagnostic::Diagnostic;
use super::key_type::{DefaultValue, KeySpec, KeyType, TableSpec};
use super::keys;
use super::suggest::did_you_mean;
use super::value::{Data, Entry, FileText, Position, Value};
use crate::attribute::Attribute;

/// Collects diagnostics while the file is read.
pub(crate) struct Reader<'a> {
    text: &'a FileText<'a>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// The number of errors among them.
    errors: usize,
    /// The attributes that `[identity]` declares; `None` if that has an error or is not read yet.
    pub(crate) declared: Option<Vec<String>>,
}

/// Why a value is not valid for its key.
pub(crate) enum ReadError {
    /// It has the wrong type or range; the message is made from the type of the key.
    WrongType,
    /// A specific message, about a byte offset in its text.
    Message { at: usize, message: String },
}

impl ReadError {
    fn message(message: impl Into<String>) -> Self {
        Self::Message {
            at: 0,
            message: message.into(),
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a FileText<'a>) -> Self {
        Self {
            text,
            diagnostics: Vec::new(),
            errors: 0,
            declared: None,
        }
    }

    /// A reader of attribute names, which must be known.
    fn attribute(&self) -> impl Fn(&KeyType, &Value) -> Result<Attribute, ReadError> + use<> {
        let declared = self.declared.clone();
        move |key_type, value| match (scalar::attribute(key_type, value)?, &declared) {
            (Attribute::Custom(name), Some(declared)) => known_attribute(&name, declared)
                .map_err(|error| ReadError::message(error.to_string())),
            (attribute, _) => Ok(attribute),
        }
    }

    /// Reports an error.
    pub(crate) fn error(&mut self, at: Position, message: impl Into<String>) {
        self.errors += 1;
        self.diagnostics
            .push(Diagnostic::error(self.text.location(at), message.into()));
    }

    /// Reports a warning.
    pub(crate) fn warn(&mut self, at: Position, message: impl Into<String>) {
        self.diagnostics
            .push(Diagnostic::warning(self.text.location(at), message.into()));
    }

    /// The number of errors so far.
    pub(crate) fn error_count(&self) -> usize {
        self.errors
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

    /// Reads one value, and reports if it is invalid. `what` describes it in the message: its name
    /// and table.
    fn value<T>(
        &mut self,
        description: &str,
        (key_type, secret): (&KeyType, bool),
        value: &Value,
        read: impl FnOnce(&KeyType, &Value) -> Result<T, ReadError>,
    ) -> Option<T> {
        match read(key_type, value) {
            Ok(value) => Some(value),
            Err(ReadError::WrongType) => {
                let mut message = format!("{description} must be {}", key_type.expected());
                if !secret {
                    message += &format!(", not {}", value.describe());
                }
                if let (Data::String(text), Some(words)) = (&value.data, key_type.choices())
                    && let Some(near) = did_you_mean(text, words)
                {
                    message += &format!("; did you mean \"{near}\"?");
                }
                self.error(value.at, message);
                None
            }
            Err(ReadError::Message { at, message }) => {
                let position = self.position_in(value, at);
                self.error(position, message);
                None
            }
        }
    }
}

/// A table of the file that is being read.
pub(crate) struct Section<'v> {
    table: &'static TableSpec,
    entries: &'v [Entry],
    pub(crate) at: Position,
    /// The name in messages: `[server]`, `[[policy]] "login"`.
    title: String,
    /// The path of an inner table within it; empty if it is the table itself.
    path: String,
    /// The keys that have been read.
    read_keys: Vec<&'static str>,
}

impl<'v> Section<'v> {
    /// Opens a table, and reports its unknown keys.
    pub(crate) fn open(
        reader: &mut Reader<'_>,
        table: &'static TableSpec,
        (entries, at): (&'v [Entry], Position),
        title: String,
        path: String,
    ) -> Self {
        let section = Self {
            table,
            entries,
            at,
            title,
            path,
            read_keys: Vec::new(),
        };
        for entry in entries
            .iter()
            .filter(|entry| table.key(&entry.name).is_none())
        {
            let names = table.keys().into_iter().map(|key| key.name);
            let help = match (
                did_you_mean(&entry.name, names.clone()),
                section.suggested_table(&entry.name),
            ) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(table)) => format!("move it {table}"),
                (None, None) => format!("known keys are {}", names.collect::<Vec<_>>().join(", ")),
            };
            let name = entry.name.escape_debug();
            reader.error(
                entry.at,
                format!("unknown key `{name}` {}; {help}", section.describe()),
            );
        }
        section
    }

    /// The table that an unknown key belongs to. Not for inner tables, whose keys have other
    /// meanings.
    fn suggested_table(&self, name: &str) -> Option<String> {
        keys::table_of(name).filter(|_| self.path.is_empty())
    }

    /// The location of its keys, in words: `in [server]`.
    fn describe(&self) -> String {
        match (self.title.is_empty(), self.path.is_empty()) {
            (true, _) => "at the top level".to_owned(),
            (false, true) => format!("in {}", self.title),
            (false, false) => format!("in `{}` of {}", self.path, self.title),
        }
    }

    /// The key of this name, with its value if it is written.
    fn find(&mut self, name: &'static str) -> Option<(&'static KeySpec, Option<&'v Value>)> {
        let Some(key) = self.table.key(name) else {
            debug_assert!(
                false,
                "`{name}` {} is not in the table of keys",
                self.describe()
            );
            return None;
        };
        self.read_keys.push(key.name);
        Some((
            key,
            self.entries
                .iter()
                .find(|entry| entry.name == name)
                .map(|entry| &entry.value),
        ))
    }

    /// The position of a key; that of the table if it is not written.
    pub(crate) fn position(&self, name: &str) -> Position {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .map_or(self.at, |entry| entry.at)
    }

    /// Whether a key is written.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// The value of a key, or its default. `None` if there is neither, or if it is invalid, which
    /// is reported.
    pub(crate) fn get<T>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        read: impl FnOnce(&KeyType, &Value) -> Result<T, ReadError>,
    ) -> Option<T> {
        let (key, value) = self.find(name)?;
        match value {
            Some(value) => reader.value(
                &format!("`{name}` {}", self.describe()),
                (&key.key_type, key.secret),
                value,
                read,
            ),
            None => {
                if key.default == DefaultValue::Required {
                    reader.error(
                        self.at,
                        format!(
                            "`{name}` is missing {}; add `{name} = {}`",
                            self.describe(),
                            key.example
                        ),
                    );
                }
                read(&key.key_type, &Value::from_default(key.default)?).ok()
            }
        }
    }

    /// The values of a key that accepts a list.
    pub(crate) fn get_list<T>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        read: impl FnMut(&KeyType, &Value) -> Result<T, ReadError>,
    ) -> Option<Vec<T>> {
        let (key, value) = self.find(name)?;
        let by_default = Value::from_default(key.default);
        let value = value.or(by_default.as_ref())?;
        let description = format!("`{name}` {}", self.describe());
        each(
            reader,
            &description,
            (&key.key_type, key.secret),
            value,
            read,
        )
    }

    /// An inner table of this one.
    pub(crate) fn table(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Option<Section<'v>> {
        let (key, value) = self.find(name)?;
        let value = value?;
        let table = key.key_type.table()?;
        let entries = self.entries_of(reader, key, value)?;
        let (title, path) = match (self.title.is_empty(), self.path.is_empty()) {
            (true, _) => (format!("[{name}]"), String::new()),
            (false, true) => (self.title.clone(), name.to_owned()),
            (false, false) => (self.title.clone(), format!("{}.{name}", self.path)),
        };
        Some(Section::open(
            reader,
            table,
            (entries, value.at),
            title,
            path,
        ))
    }

    /// A table whose keys are chosen by the user: the type of each value, and the entries.
    pub(crate) fn named_entries(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Option<(&'static KeyType, &'v [Entry])> {
        let (key, value) = self.find(name)?;
        let KeyType::Named(key_type) = &key.key_type else {
            return None;
        };
        Some((key_type, self.entries_of(reader, key, value?)?))
    }

    /// The tables of an array of tables; entries of another type are reported and left out.
    pub(crate) fn tables(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Vec<(&'static TableSpec, &'v [Entry], Position)> {
        let Some((
            KeySpec {
                key_type: KeyType::Tables(table),
                ..
            },
            Some(value),
        )) = self.find(name)
        else {
            return Vec::new();
        };
        let message = format!(
            "`{name}` {} must be an array of tables, written as [[{name}]]",
            self.describe()
        );
        let Data::Array(list) = &value.data else {
            reader.error(value.at, message);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for value in list {
            match &value.data {
                Data::Table(entries) => tables.push((*table, &entries[..], value.at)),
                _ => reader.error(value.at, message.clone()),
            }
        }
        tables
    }

    /// The entries of a value that must be a table.
    fn entries_of(
        &self,
        reader: &mut Reader<'_>,
        key: &KeySpec,
        value: &'v Value,
    ) -> Option<&'v [Entry]> {
        let Data::Table(entries) = &value.data else {
            let description = format!("`{}` {}", key.name, self.describe());
            return reader.value(&description, (&key.key_type, key.secret), value, |_, _| {
                Err(ReadError::WrongType)
            });
        };
        Some(entries)
    }

    /// Ends the reading of this table. In debug builds it panics if a key of the table of keys was
    /// not read, because that key would silently have no effect.
    pub(crate) fn close(self) {
        let unread = || {
            self.table
                .keys()
                .into_iter()
                .find(|key| !self.read_keys.contains(&key.name))
        };
        debug_assert!(
            unread().is_none(),
            "{:?} {} is never read",
            unread().map(|key| key.name),
            self.describe()
        );
    }
}

/// Reads each value of a list; a single value counts as a list of one.
fn each<T>(
    reader: &mut Reader<'_>,
    description: &str,
    (key_type, secret): (&KeyType, bool),
    value: &Value,
    mut read: impl FnMut(&KeyType, &Value) -> Result<T, ReadError>,
) -> Option<Vec<T>> {
    let inner = match key_type {
        KeyType::OneOrMany(inner) => *inner,
        other => other,
    };
    match &value.data {
        Data::Array(values) => {
            let before = reader.error_count();
            let description = format!("each of {description}");
            let read = values
                .iter()
                .filter_map(|one| reader.value(&description, (inner, secret), one, &mut read))
                .collect();
            (reader.error_count() == before).then_some(read)
        }
        // The message is about the whole key, because a list would have been valid too.
        _ => reader
            .value(description, (key_type, secret), value, |_, value| {
                read(inner, value)
            })
            .map(|one| vec![one]),
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::config::keys::CONDITIONS;

    fn open(read: impl FnOnce(&mut Reader<'_>, Section<'_>)) {
        let text = FileText::new("", "");
        let mut reader = Reader::new(&text);
        let section = Section::open(
            &mut reader,
            &CONDITIONS,
            (&[], Position::Nowhere),
            "[x]".to_owned(),
            String::new(),
        );
        read(&mut reader, section);
    }

    #[test]
    #[should_panic = "`colour` in [x] is not in the table of keys"]
    fn reading_a_key_that_is_not_in_the_table_fails() {
        open(|reader, mut section| {
            section.get(reader, "colour", scalar::text);
        });
    }

    #[test]
    #[should_panic = "is never read"]
    fn leaving_a_key_of_the_table_unread_fails() {
        open(|reader, mut section| {
            section.get_list(reader, "method", scalar::method);
            section.close();
        });
    }
}

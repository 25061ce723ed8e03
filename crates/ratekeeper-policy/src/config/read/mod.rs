//! Reading tables by the table of keys: unknown keys, wrong types and missing keys are found here,
//! for all tables alike.

pub(crate) mod file;
mod gateway;
mod matching;
mod policy;
mod pressure;
mod scalar;
mod settings;
mod store;
mod tls;

pub(super) use scalar::is_header_name;

use super::attributes::known_attribute;
use super::diagnostic::Diagnostic;
use super::keys;
use super::kind::{Default, Key, Kind, Table};
use super::nearest::nearest;
use super::tree::{Data, Entry, Source, Spot, Value};
use crate::attribute::Attribute;

/// What was found so far, and where to look lines up.
pub(crate) struct Reader<'a> {
    source: &'a Source<'a>,
    pub(crate) found: Vec<Diagnostic>,
    /// How many of them are errors.
    errors: usize,
    /// The attributes that `[identity]` declares; none while that is not read, or if it is wrong.
    pub(crate) declared: Option<Vec<String>>,
}

/// Why a value is not what its key wants.
pub(crate) enum Wrong {
    /// It is something else altogether: what the key wants says all.
    Kind,
    /// Something of its own, at a byte of its text.
    Says { at: usize, message: String },
}

impl Wrong {
    fn says(message: impl Into<String>) -> Self {
        Self::Says {
            at: 0,
            message: message.into(),
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Source<'a>) -> Self {
        Self {
            source,
            found: Vec::new(),
            errors: 0,
            declared: None,
        }
    }

    /// Reads the name of an attribute that is known.
    fn attribute(&self) -> impl Fn(&Kind, &Value) -> Result<Attribute, Wrong> + use<> {
        let declared = self.declared.clone();
        move |kind, value| match (scalar::attribute(kind, value)?, &declared) {
            (Attribute::Custom(name), Some(declared)) => {
                known_attribute(&name, declared).map_err(|error| Wrong::says(error.to_string()))
            }
            (attribute, _) => Ok(attribute),
        }
    }

    pub(crate) fn error(&mut self, at: Spot, message: impl Into<String>) {
        self.errors += 1;
        self.found
            .push(Diagnostic::error(self.source.place(at), message.into()));
    }

    pub(crate) fn warn(&mut self, at: Spot, message: impl Into<String>) {
        self.found
            .push(Diagnostic::warning(self.source.place(at), message.into()));
    }

    pub(crate) fn errors(&self) -> usize {
        self.errors
    }

    /// Where a byte of a text stands in the file: known if it is written without escapes.
    fn inside(&self, value: &Value, at: usize) -> Spot {
        let (Spot::File(start), Data::Text(text)) = (value.at, &value.data) else {
            return value.at;
        };
        let written = self
            .source
            .text
            .get(start + 1..)
            .is_some_and(|rest| rest.starts_with(text.as_str()));
        if written && text.is_char_boundary(at) {
            Spot::File(start + 1 + at)
        } else {
            value.at
        }
    }

    /// Reads one value, and tells what is wrong with it. `what` is its name and where it stands,
    /// for the message.
    fn value<T>(
        &mut self,
        what: &str,
        (kind, secret): (&Kind, bool),
        value: &Value,
        read: impl FnOnce(&Kind, &Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        match read(kind, value) {
            Ok(value) => Some(value),
            Err(Wrong::Kind) => {
                let mut message = format!("{what} must be {}", kind.wants());
                if !secret {
                    message += &format!(", not {}", value.in_words());
                }
                if let (Data::Text(text), Some(words)) = (&value.data, kind.words())
                    && let Some(near) = nearest(text, words)
                {
                    message += &format!("; did you mean \"{near}\"?");
                }
                self.error(value.at, message);
                None
            }
            Err(Wrong::Says { at, message }) => {
                let spot = self.inside(value, at);
                self.error(spot, message);
                None
            }
        }
    }
}

/// A table that is being read.
pub(crate) struct Section<'v> {
    table: &'static Table,
    entries: &'v [Entry],
    pub(crate) at: Spot,
    /// What it is called in messages: `[server]`, `[[policy]] "login"`.
    title: String,
    /// Which table within that, if it is one.
    path: String,
    /// The keys that were asked for.
    asked: Vec<&'static str>,
}

impl<'v> Section<'v> {
    /// Opens a table; what is in it that is not known is told at once.
    pub(crate) fn open(
        reader: &mut Reader<'_>,
        table: &'static Table,
        (entries, at): (&'v [Entry], Spot),
        title: String,
        path: String,
    ) -> Self {
        let section = Self {
            table,
            entries,
            at,
            title,
            path,
            asked: Vec::new(),
        };
        for entry in entries
            .iter()
            .filter(|entry| table.key(&entry.name).is_none())
        {
            let names = table.keys().into_iter().map(|key| key.name);
            let help = match (
                nearest(&entry.name, names.clone()),
                section.home(&entry.name),
            ) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(home)) => format!("it belongs {home}"),
                (None, None) => format!("known here are {}", names.collect::<Vec<_>>().join(", ")),
            };
            let name = entry.name.escape_debug();
            reader.error(
                entry.at,
                format!("unknown key `{name}` {}; {help}", section.place()),
            );
        }
        section
    }

    /// Where a key is at home that is not known here. Tables within others have their own keys,
    /// that mean something else.
    fn home(&self, name: &str) -> Option<String> {
        keys::home(name).filter(|_| self.path.is_empty())
    }

    /// Where its keys are, in words.
    fn place(&self) -> String {
        match (self.title.is_empty(), self.path.is_empty()) {
            (true, _) => "at the top level".to_owned(),
            (false, true) => format!("in {}", self.title),
            (false, false) => format!("in `{}` of {}", self.path, self.title),
        }
    }

    /// A key by its name, with its value if it is written.
    fn find(&mut self, name: &'static str) -> Option<(&'static Key, Option<&'v Value>)> {
        let Some(key) = self.table.key(name) else {
            debug_assert!(
                false,
                "`{name}` {} is not in the table of keys",
                self.place()
            );
            return None;
        };
        self.asked.push(key.name);
        Some((
            key,
            self.entries
                .iter()
                .find(|entry| entry.name == name)
                .map(|entry| &entry.value),
        ))
    }

    /// Where a key is written; where the table is, if it is not.
    pub(crate) fn spot(&self, name: &str) -> Spot {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .map_or(self.at, |entry| entry.at)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// The value of a key, or its default. None if there is neither, or if it is wrong, which is
    /// told.
    pub(crate) fn get<T>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        read: impl FnOnce(&Kind, &Value) -> Result<T, Wrong>,
    ) -> Option<T> {
        let (key, value) = self.find(name)?;
        match value {
            Some(value) => reader.value(
                &format!("`{name}` {}", self.place()),
                (&key.kind, key.secret),
                value,
                read,
            ),
            None => {
                if key.default == Default::Required {
                    reader.error(
                        self.at,
                        format!(
                            "`{name}` is missing {}; add `{name} = {}`",
                            self.place(),
                            key.example
                        ),
                    );
                }
                read(&key.kind, &Value::by_default(key.default)?).ok()
            }
        }
    }

    /// The values of a key that has a list of them, or may have.
    pub(crate) fn many<T>(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
        read: impl FnMut(&Kind, &Value) -> Result<T, Wrong>,
    ) -> Option<Vec<T>> {
        let (key, value) = self.find(name)?;
        let by_default = Value::by_default(key.default);
        let value = value.or(by_default.as_ref())?;
        let what = format!("`{name}` {}", self.place());
        each(reader, &what, (&key.kind, key.secret), value, read)
    }

    /// A table within this one.
    pub(crate) fn table(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Option<Section<'v>> {
        let (key, value) = self.find(name)?;
        let (value, table) = (value?, key.kind.table()?);
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

    /// A table of names of the user's own: the kind of each, and what there is.
    pub(crate) fn named(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Option<(&'static Kind, &'v [Entry])> {
        let (key, value) = self.find(name)?;
        let Kind::Named(kind) = &key.kind else {
            return None;
        };
        Some((kind, self.entries_of(reader, key, value?)?))
    }

    /// Tables of which there may be several; none where one is something else.
    pub(crate) fn tables(
        &mut self,
        reader: &mut Reader<'_>,
        name: &'static str,
    ) -> Vec<(&'static Table, &'v [Entry], Spot)> {
        let Some((
            Key {
                kind: Kind::Tables(table),
                ..
            },
            Some(value),
        )) = self.find(name)
        else {
            return Vec::new();
        };
        let wrong = format!(
            "`{name}` {} must be written as [[{name}]], once for each",
            self.place()
        );
        let Data::List(list) = &value.data else {
            reader.error(value.at, wrong);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for value in list {
            match &value.data {
                Data::Table(entries) => tables.push((*table, &entries[..], value.at)),
                _ => reader.error(value.at, wrong.clone()),
            }
        }
        tables
    }

    fn entries_of(
        &self,
        reader: &mut Reader<'_>,
        key: &Key,
        value: &'v Value,
    ) -> Option<&'v [Entry]> {
        let Data::Table(entries) = &value.data else {
            let what = format!("`{}` {}", key.name, self.place());
            return reader.value(&what, (&key.kind, key.secret), value, |_, _| {
                Err(Wrong::Kind)
            });
        };
        Some(entries)
    }

    /// Done with it: a key in the table of keys that nobody asks for would do nothing, and nobody
    /// would be told.
    pub(crate) fn close(self) {
        let forgotten = || {
            self.table
                .keys()
                .into_iter()
                .find(|key| !self.asked.contains(&key.name))
        };
        debug_assert!(
            forgotten().is_none(),
            "{:?} {} is never read",
            forgotten().map(|key| key.name),
            self.place()
        );
    }
}

/// The values of a list, each read; or of one value, where one will do.
fn each<T>(
    reader: &mut Reader<'_>,
    what: &str,
    (kind, secret): (&Kind, bool),
    value: &Value,
    mut read: impl FnMut(&Kind, &Value) -> Result<T, Wrong>,
) -> Option<Vec<T>> {
    let inner = match kind {
        Kind::OneOrMany(inner) => *inner,
        other => other,
    };
    match &value.data {
        Data::List(values) => {
            let before = reader.errors();
            let what = format!("each of {what}");
            let read = values
                .iter()
                .filter_map(|one| reader.value(&what, (inner, secret), one, &mut read))
                .collect();
            (reader.errors() == before).then_some(read)
        }
        // The message is about the whole key: a list would have done too.
        _ => reader
            .value(what, (kind, secret), value, |_, value| read(inner, value))
            .map(|one| vec![one]),
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::config::keys::CONDITIONS;

    fn open(read: impl FnOnce(&mut Reader<'_>, Section<'_>)) {
        let source = Source::new("", "");
        let mut reader = Reader::new(&source);
        let section = Section::open(
            &mut reader,
            &CONDITIONS,
            (&[], Spot::Nowhere),
            "[x]".to_owned(),
            String::new(),
        );
        read(&mut reader, section);
    }

    #[test]
    #[should_panic = "`colour` in [x] is not in the table of keys"]
    fn to_ask_for_a_key_that_is_not_in_the_table_fails() {
        open(|reader, mut section| {
            section.get(reader, "colour", scalar::text);
        });
    }

    #[test]
    #[should_panic = "is never read"]
    fn to_forget_a_key_of_the_table_fails() {
        open(|reader, mut section| {
            section.many(reader, "method", scalar::method);
            section.close();
        });
    }
}

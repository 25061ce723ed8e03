//! `config show`: the configuration as TOML, with the provenance of each value.

use super::diagnostic::Location;
use super::provenance::Provenance;
use super::section::{KeySpec, Table};
use super::time::duration;
use std::fmt::{Display, Write as _};

/// The replacement for a secret.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Writes a table as TOML.
pub struct Writer<'a> {
    provenance: Option<&'a Provenance>,
    /// Whether secrets are replaced.
    pub hide: bool,
    /// The path of the table, as in the provenance; empty if it is the file.
    path: String,
    lines: Vec<Line>,
    /// The tables below this one, in TOML syntax.
    tables: String,
}

/// A key and its value in TOML syntax.
struct Line {
    key: String,
    value: String,
    is_default: bool,
}

impl<'a> Writer<'a> {
    fn new(provenance: Option<&'a Provenance>, hide: bool, path: String) -> Self {
        Self {
            provenance,
            hide,
            path,
            lines: Vec::new(),
            tables: String::new(),
        }
    }

    /// The whole file as TOML; with its provenance and without its secrets if it is for people.
    pub(crate) fn file(file: &impl Table, provenance: Option<&'a Provenance>) -> String {
        let mut writer = Self::new(provenance, provenance.is_some(), String::new());
        file.write_fields(&mut writer);
        writer.finish()
    }

    /// A table within a line: `{ key = value }`.
    pub fn inline(table: &impl Table, hide: bool) -> String {
        // Not the path of the file, whose tables have lines of their own.
        let mut writer = Self::new(None, hide, "inline".to_owned());
        table.write_fields(&mut writer);
        inline(writer.lines.into_iter().map(|line| (line.key, line.value)))
    }

    /// Writes a key and its value, unless it is a default that is left out.
    pub fn line(&mut self, spec: &KeySpec, value: &str) {
        let is_default = spec.default.is_some_and(|default| is_same(default, value));
        if !(spec.quiet && is_default) {
            self.lines.push(Line {
                key: spec.name.to_owned(),
                value: value.to_owned(),
                is_default,
            });
        }
    }

    /// Writes a table that is the value of a key: in the file with a header of its own, unless it
    /// is left out because it is all defaults.
    pub fn section(&mut self, spec: &KeySpec, table: &impl Table) {
        if self.path.is_empty() {
            self.table(&format!("[{}]", spec.name), spec.name, spec.quiet, table);
        } else {
            self.line(spec, &Self::inline(table, self.hide));
        }
    }

    /// The path of a key of this table.
    pub(crate) fn path_of(&self, key: &str) -> String {
        match &*self.path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// Writes a table with this header.
    pub(crate) fn table(&mut self, header: &str, path: &str, quiet: bool, table: &impl Table) {
        let mut writer = Writer::new(self.provenance, self.hide, path.to_owned());
        table.write_fields(&mut writer);
        let is_default = writer.lines.iter().all(|line| line.is_default);
        if !(quiet && is_default && writer.tables.is_empty()) {
            let _ = write!(self.tables, "\n{header}\n{}", writer.finish());
        }
    }

    /// The lines with their provenance, and the tables below.
    fn finish(self) -> String {
        let mut text = String::new();
        for Line {
            key,
            value,
            is_default,
        } in &self.lines
        {
            let path = self.path_of(key);
            let location = self
                .provenance
                .filter(|_| !is_default)
                .and_then(|provenance| {
                    provenance
                        .get(&path)
                        .or_else(|| provenance.get(&other_name(&path)?))
                });
            let _ = match location {
                Some(Location::File { file, line, .. }) => {
                    writeln!(text, "{key} = {value} # {}:{line}", file.escape_debug())
                }
                Some(Location::Variable(name)) => writeln!(text, "{key} = {value} # {name}"),
                _ => writeln!(text, "{key} = {value}"),
            };
        }
        text + &self.tables
    }
}

/// The other name of a key, if it may be written under one name and shown under another.
fn other_name(path: &str) -> Option<String> {
    let (table, key) = path.rsplit_once('.')?;
    match key {
        "limit" => Some(format!("{table}.limits")),
        "limits" => Some(format!("{table}.limit")),
        _ => None,
    }
}

/// Whether a value is the default, which may be written in another way: `1_000`, `"60s"`.
fn is_same(default: &str, value: &str) -> bool {
    let time = |text: &str| duration(text.trim_matches('"'));
    default.replace('_', "") == value.replace('_', "")
        || (time(value).is_some() && time(default) == time(value))
}

/// A string in TOML syntax.
pub fn text(value: impl Display) -> String {
    let mut text = "\"".to_owned();
    for c in value.to_string().chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text += "\\n",
            '\t' => text += "\\t",
            c if c.is_control() => {
                let _ = write!(text, "\\u{:04X}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text + "\""
}

/// The name of a key in TOML syntax, in quotes if it needs them.
pub(crate) fn name(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare { name.to_owned() } else { text(name) }
}

/// A list in TOML syntax.
pub(crate) fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// An inline table in TOML syntax.
pub(crate) fn inline(keys: impl Iterator<Item = (String, String)>) -> String {
    let keys = keys.map(|(key, value)| format!("{key} = {value}"));
    match keys.collect::<Vec<_>>() {
        keys if keys.is_empty() => "{}".to_owned(),
        keys => format!("{{ {} }}", keys.join(", ")),
    }
}

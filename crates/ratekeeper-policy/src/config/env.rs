//! Environment variables `RATEKEEPER_<SECTION>__<KEY>`: one for every key outside of the policies
//! that has a single value or a list of them.

use super::diagnostic::{Diagnostic, Location};
use super::key_type::{KeySpec, KeyType, TableSpec};
use super::suggest::did_you_mean;
use super::value::{Data, Entry, Position, Value};
use std::collections::BTreeMap;

/// The prefix of the variables.
pub(crate) const PREFIX: &str = "RATEKEEPER_";

/// The environment variables by name. Empty values are treated as absent.
pub(crate) type Variables = BTreeMap<String, String>;

/// A variable, and the key that it sets.
pub(crate) struct Variable {
    pub(crate) name: String,
    /// The tables that the key is in, outermost first.
    tables: Vec<&'static str>,
    key: &'static KeySpec,
}

/// All variables of a file with these keys.
pub(crate) fn variables_of(file: &'static TableSpec) -> Vec<Variable> {
    let mut known = Vec::new();
    collect(file, &[], &mut known);
    known
}

fn collect(table: &'static TableSpec, tables: &[&'static str], known: &mut Vec<Variable>) {
    for key in table.keys() {
        let path = [tables, &[key.name]].concat();
        match &key.key_type {
            KeyType::Table(inner) => collect(inner, &path, known),
            key_type if key_type.fits_variable() => {
                let name = format!("{PREFIX}{}", path.join("__").to_ascii_uppercase());
                known.push(Variable {
                    name,
                    tables: tables.to_vec(),
                    key,
                });
            }
            _ => {}
        }
    }
}

/// Applies the variables to the values of the file, which they override.
pub(crate) fn apply(tree: &mut Vec<Entry>, known: &[Variable], variables: &Variables) {
    for (index, variable) in known.iter().enumerate() {
        let Some(text) = variables.get(&variable.name) else {
            continue;
        };
        let at = Position::Variable(index);
        let value = value(&variable.key.key_type, at, text.trim());
        let mut table = Some(&mut *tree);
        for name in &variable.tables {
            table = table.and_then(|table| inner(table, name, at));
        }
        // If the file has another type there, the reader reports that.
        if let Some(table) = table {
            table.retain(|entry| entry.name != variable.key.name);
            table.push(Entry {
                name: variable.key.name.to_owned(),
                at,
                value,
            });
        }
    }
}

/// The table of this name in `table`, created if it is missing.
fn inner<'t>(table: &'t mut Vec<Entry>, name: &str, at: Position) -> Option<&'t mut Vec<Entry>> {
    let index = table
        .iter()
        .position(|entry| entry.name == name)
        .unwrap_or_else(|| {
            let value = Value {
                at,
                data: Data::Table(Vec::new()),
            };
            table.push(Entry {
                name: name.to_owned(),
                at,
                value,
            });
            table.len() - 1
        });
    match &mut table[index].value.data {
        Data::Table(entries) => Some(entries),
        _ => None,
    }
}

/// The value of a variable, parsed by the type of its key.
fn value(key_type: &KeyType, at: Position, text: &str) -> Value {
    let data = match key_type {
        KeyType::Bool => parse_bool(text).map(Data::Bool),
        KeyType::Percent => text.parse().ok().map(Data::Float),
        KeyType::Number { .. } => text.replace('_', "").parse().ok().map(Data::Integer),
        KeyType::Share => text.parse().ok().map(Data::Float),
        KeyType::OneOrMany(key_type) => {
            let parts = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            Some(Data::Array(
                parts.map(|part| value(key_type, at, part)).collect(),
            ))
        }
        _ => None,
    };
    // A value of the wrong type stays a string, which the reader reports as it does for files.
    Value {
        at,
        data: data.unwrap_or_else(|| Data::String(text.to_owned())),
    }
}

/// Parses a boolean as people write it in variables: `true`, `1`, `yes`, `on` and the opposites.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Warnings about unknown variables with our prefix. They are not errors, because other programs,
/// such as Kubernetes, set variables with this prefix too.
pub(crate) fn unknown(
    known: &[Variable],
    variables: &Variables,
) -> impl Iterator<Item = Diagnostic> {
    let names = || known.iter().map(|known| known.name.as_str());
    let is_unknown =
        move |name: &&String| name.starts_with(PREFIX) && !names().any(|known| known == **name);
    variables.keys().filter(is_unknown).map(move |name| {
        let message = match did_you_mean(name, names()) {
            Some(near) => format!("unknown variable, ignored; did you mean {near}?"),
            None => "unknown variable, ignored".to_owned(),
        };
        Diagnostic::warning(Location::Variable(name.clone()), message)
    })
}

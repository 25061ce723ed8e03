//! `RATEKEEPER_<SECTION>__<KEY>`: a variable for every key that has one value or a list of them,
//! outside of the policies.

use super::diagnostic::{Diagnostic, Place};
use super::keys::FILE;
use super::kind::{Key, Kind, Table};
use super::nearest::nearest;
use super::tree::{Data, Entry, Spot, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What the variables begin with.
pub(crate) const PREFIX: &str = "RATEKEEPER_";

/// The environment; what is empty counts as unset.
pub(crate) type Variables = BTreeMap<String, String>;

/// A variable, and the key that it stands for.
pub(crate) struct Variable {
    pub(crate) name: String,
    /// The tables round the key.
    within: Vec<&'static str>,
    key: &'static Key,
}

/// All of them, from the table of keys.
pub(crate) static KNOWN: LazyLock<Vec<Variable>> = LazyLock::new(|| {
    let mut known = Vec::new();
    collect(&FILE, &[], &mut known);
    known
});

fn collect(table: &'static Table, within: &[&'static str], known: &mut Vec<Variable>) {
    for key in table.keys() {
        let path = [within, &[key.name]].concat();
        match &key.kind {
            Kind::Table(inner) => collect(inner, &path, known),
            kind if kind.is_plain() => {
                let name = format!("{PREFIX}{}", path.join("__").to_ascii_uppercase());
                known.push(Variable {
                    name,
                    within: within.to_vec(),
                    key,
                });
            }
            _ => {}
        }
    }
}

/// Puts what the variables say into the tree, over what the file says.
pub(crate) fn apply(tree: &mut Vec<Entry>, variables: &Variables) {
    for variable in KNOWN.iter() {
        let Some(text) = variables.get(&variable.name) else {
            continue;
        };
        let at = Spot::Variable(&variable.name);
        let value = value(&variable.key.kind, at, text.trim());
        let mut table = Some(&mut *tree);
        for name in &variable.within {
            table = table.and_then(|table| inner(table, name, at));
        }
        // A table that is something else in the file is told as that.
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

fn inner<'t>(table: &'t mut Vec<Entry>, name: &str, at: Spot) -> Option<&'t mut Vec<Entry>> {
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

fn value(kind: &Kind, at: Spot, text: &str) -> Value {
    let data = match kind {
        Kind::Bool => truth(text).map(Data::Bool),
        Kind::Percent => text.parse().ok().map(Data::Fraction),
        Kind::Number { .. } => text.replace('_', "").parse().ok().map(Data::Whole),
        Kind::Share => text.parse().ok().map(Data::Fraction),
        Kind::OneOrMany(kind) => {
            let parts = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            Some(Data::List(
                parts.map(|part| value(kind, at, part)).collect(),
            ))
        }
        _ => None,
    };
    // What is not of its kind is told where the same is told of files.
    Value {
        at,
        data: data.unwrap_or_else(|| Data::Text(text.to_owned())),
    }
}

/// Yes or no, as people write it in variables.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Variables that look like ours and are not. Others set such too (Kubernetes does), so they never
/// fail.
pub(crate) fn unknown(variables: &Variables) -> impl Iterator<Item = Diagnostic> {
    let is_known = |name: &str| KNOWN.iter().any(|known| known.name == name);
    variables
        .keys()
        .filter(move |name| name.starts_with(PREFIX) && !is_known(name))
        .map(|name| {
            let message = match nearest(name, KNOWN.iter().map(|known| known.name.as_str())) {
                Some(near) => {
                    format!("no such variable is known, so it is ignored; did you mean {near}?")
                }
                None => "no such variable is known, so it is ignored".to_owned(),
            };
            Diagnostic::warning(Place::Variable(name.clone()), message)
        })
}

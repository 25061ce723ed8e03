//! Provenance: where each configuration value comes from, a line of the file or a variable.

use super::diagnostic::Location;
use super::value::{Data, Entry, FileText, Value};
use std::collections::BTreeMap;

/// The location of each value, by the path of its key: `server.http`, `policy.0.limit`.
///
/// Plans are numbered in their order instead of named, as policies are.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Provenance(BTreeMap<String, Location>);

impl Provenance {
    pub(crate) fn of(tree: &[Entry], text: &FileText<'_>) -> Self {
        let mut provenance = Self::default();
        for entry in tree {
            let named = entry.name == "plans";
            provenance.collect(&entry.name, &entry.value, named, text);
        }
        provenance
    }

    fn collect(&mut self, path: &str, value: &Value, named: bool, text: &FileText<'_>) {
        self.0.insert(path.to_owned(), text.location(value.at));
        match &value.data {
            Data::Table(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    let name = if named {
                        index.to_string()
                    } else {
                        entry.name.clone()
                    };
                    self.collect(&format!("{path}.{name}"), &entry.value, false, text);
                }
            }
            Data::Array(values) => {
                for (index, value) in values
                    .iter()
                    .enumerate()
                    .filter(|(_, value)| matches!(value.data, Data::Table(_)))
                {
                    self.collect(&format!("{path}.{index}"), value, false, text);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, path: &str, location: Location) {
        self.0.insert(path.to_owned(), location);
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Location> {
        self.0.get(path)
    }

    pub(crate) fn is_variable(&self, path: &str) -> bool {
        matches!(self.get(path), Some(Location::Variable(_)))
    }
}

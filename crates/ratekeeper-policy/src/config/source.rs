//! Where each value came from: a line of the file, or a variable.

use super::diagnostic::Place;
use super::tree::{Data, Entry, Source, Value};
use std::collections::BTreeMap;

/// By the path of the key: `server.http`, `policy.0.limit`. Names of the user's own are numbers in
/// it, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Sources(BTreeMap<String, Place>);

impl Sources {
    pub(crate) fn of(tree: &[Entry], source: &Source<'_>) -> Self {
        let mut sources = Self::default();
        for entry in tree {
            let named = entry.name == "plans";
            sources.collect(&entry.name, &entry.value, named, source);
        }
        sources
    }

    fn collect(&mut self, path: &str, value: &Value, named: bool, source: &Source<'_>) {
        self.0.insert(path.to_owned(), source.place(value.at));
        match &value.data {
            Data::Table(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    let name = if named {
                        index.to_string()
                    } else {
                        entry.name.clone()
                    };
                    self.collect(&format!("{path}.{name}"), &entry.value, false, source);
                }
            }
            Data::List(values) => {
                for (index, value) in values
                    .iter()
                    .enumerate()
                    .filter(|(_, value)| matches!(value.data, Data::Table(_)))
                {
                    self.collect(&format!("{path}.{index}"), value, false, source);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, path: &str, place: Place) {
        self.0.insert(path.to_owned(), place);
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Place> {
        self.0.get(path)
    }

    pub(crate) fn is_variable(&self, path: &str) -> bool {
        matches!(self.get(path), Some(Place::Variable(_)))
    }
}

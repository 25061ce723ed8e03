//! Matching of descriptors to limits: a tree with one level per entry. Pure, without allocations.
//!
//! Each level is searched by key and value, then by the values with a `*` in the order of the file,
//! then by the key alone, without backtracking. A limit applies only if the last entry reaches it.

use std::collections::HashMap;

/// Index of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleIndex(pub(crate) usize);

/// The descriptors of one level, by key.
#[derive(Default, Debug)]
pub(crate) struct Level {
    keys: HashMap<String, KeyNodes, foldhash::fast::RandomState>,
}

/// The descriptors of one level with the same key.
#[derive(Default, Debug)]
struct KeyNodes {
    values: HashMap<String, Node, foldhash::fast::RandomState>,
    /// In the order of the file.
    patterns: Vec<(Pattern, Node)>,
    any: Option<Box<Node>>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) rule: Option<RuleIndex>,
    pub(crate) level: Level,
}

/// The value of a descriptor in the configuration.
pub(crate) enum Value {
    Exact(String),
    Pattern(Pattern),
}

/// A value with wildcards: each `*` matches any text, also none.
#[derive(PartialEq, Debug)]
pub(crate) struct Pattern {
    text: String,
    /// Whether all matching values share one bucket.
    shared: bool,
}

impl Value {
    pub(crate) fn new(text: String, shared: bool) -> Self {
        if text.contains('*') {
            Self::Pattern(Pattern { text, shared })
        } else {
            Self::Exact(text)
        }
    }
}

impl Pattern {
    fn matches(&self, value: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else {
            return false;
        };
        let Some(mut value) = value.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*') {
            let Some(at) = value.find(part) else {
                return false;
            };
            value = &value[at + part.len()..];
        }
        value.ends_with(last)
    }
}

impl Level {
    /// Adds a descriptor; false if it is a duplicate.
    #[must_use]
    pub(crate) fn add(&mut self, key: String, value: Option<Value>, node: Node) -> bool {
        let key = self.keys.entry(key).or_default();
        match value {
            None => key.any.replace(Box::new(node)).is_none(),
            Some(Value::Exact(value)) => key.values.insert(value, node).is_none(),
            Some(Value::Pattern(pattern)) => {
                let known = key
                    .patterns
                    .iter()
                    .any(|(other, _)| other.text == pattern.text);
                key.patterns.push((pattern, node));
                !known
            }
        }
    }
}

/// Finds the rule of a descriptor, and appends the key of its bucket within the rule to `bucket`:
/// the values that the rule does not fix, each after its length, so keys are unambiguous.
pub(crate) fn find<'e>(
    mut level: &Level,
    entries: impl ExactSizeIterator<Item = (&'e str, &'e str)>,
    bucket: &mut Vec<u8>,
) -> Option<RuleIndex> {
    let mut rule = None;
    let mut left = entries.len();
    for (key, value) in entries {
        left -= 1;
        let key = level.keys.get(key)?;
        let (node, variable) = match key.values.get(value) {
            Some(node) => (node, None),
            None => match key
                .patterns
                .iter()
                .find(|(pattern, _)| pattern.matches(value))
            {
                Some((pattern, node)) => (node, (!pattern.shared).then_some(value)),
                None => (key.any.as_deref()?, Some(value)),
            },
        };
        if let Some(value) = variable {
            put(bucket, value);
        }
        rule = node.rule.filter(|_| left == 0);
        level = &node.level;
    }
    rule
}

/// Appends the bucket key of an override in a request: its domain and all its entries.
pub(crate) fn override_bucket<'e>(
    domain: &str,
    entries: impl ExactSizeIterator<Item = (&'e str, &'e str)>,
    bucket: &mut Vec<u8>,
) {
    put(bucket, domain);
    for (key, value) in entries {
        put(bucket, key);
        put(bucket, value);
    }
}

fn put(bucket: &mut Vec<u8>, text: &str) {
    bucket.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bucket.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;

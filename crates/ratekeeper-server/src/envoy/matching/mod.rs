//! Which limit a descriptor has: a walk down a tree, one entry a level. Pure, and it allocates
//! nothing.
//!
//! On each level an entry is looked for by key and value, then by the values with a `*` in the
//! order of the file, then by its key alone. There is no way back up. A limit applies only if it is
//! reached with the last entry.

use std::collections::HashMap;

/// The number of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleIndex(pub(crate) usize);

/// The descriptors of one level, by key.
#[derive(Default, Debug)]
pub(crate) struct Level {
    keys: HashMap<String, Key, foldhash::fast::RandomState>,
}

/// What a level has of one key.
#[derive(Default, Debug)]
struct Key {
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

/// The value that a descriptor asks for.
pub(crate) enum Value {
    Exact(String),
    Pattern(Pattern),
}

/// A value with a `*` or several, each of which is anything or nothing.
#[derive(PartialEq, Debug)]
pub(crate) struct Pattern {
    text: String,
    /// Whether all that match have one bucket.
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
    /// False if the same is there already.
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

/// The rule of a descriptor. What its bucket is known by within the rule is written behind
/// `bucket`, without ambiguity: the values that the rule leaves open, each behind its length.
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
        let (node, open) = match key.values.get(value) {
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
        if let Some(value) = open {
            put(bucket, value);
        }
        rule = node.rule.filter(|_| left == 0);
        level = &node.level;
    }
    rule
}

/// What names the bucket of a limit that a request brings along: its domain and all its entries.
pub(crate) fn whole<'e>(
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

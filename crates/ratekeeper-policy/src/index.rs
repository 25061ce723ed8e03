//! Path index: finds the policies for a path in a tree of segments, instead of trying each.

use crate::matching::Match;
use crate::path::{Path, PathCase};
use crate::pattern::{PathPattern, Segment};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Indexes of policies, in order; up to 32 are stored inline.
pub(crate) type PolicyNumbers = SmallVec<[u32; 32]>;

/// Policies by their path patterns.
#[derive(Default)]
pub(crate) struct Index {
    root: Node,
    /// Policies without a path condition.
    without_path: Vec<u32>,
}

#[derive(Default)]
struct Node {
    /// Keys come from the configuration, so a fast hash is safe.
    exactly: HashMap<Box<[u8]>, Node, RandomState>,
    any: Option<Box<Node>>,
    /// Policies whose pattern ends here.
    ends_here: Vec<u32>,
    /// Policies whose pattern ends in `**` here.
    prefix_of: Vec<u32>,
}

impl Index {
    pub(crate) fn new<'a>(matches: impl Iterator<Item = &'a Match>, case: PathCase) -> Self {
        let mut index = Self::default();
        for (number, matching) in (0..).zip(matches) {
            match &matching.paths {
                None => index.without_path.push(number),
                Some(paths) => paths
                    .iter()
                    .for_each(|pattern| index.root.insert(pattern, number, case)),
            }
        }
        index
    }

    /// The policies whose path condition holds, in order, without duplicates.
    pub(crate) fn find(&self, path: Option<&Path<'_>>) -> impl Iterator<Item = u32> {
        let mut found = PolicyNumbers::new();
        for reading in path.into_iter().flat_map(Path::readings) {
            self.root.collect(reading, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        // Merges both sorted lists, which are disjoint. Policies without a path may be many, so
        // they are not copied.
        let mut found = found.into_iter().peekable();
        let mut without_path = self.without_path.iter().copied().peekable();
        std::iter::from_fn(move || match (found.peek(), without_path.peek()) {
            (Some(by_path), Some(any)) if by_path > any => without_path.next(),
            (None, _) => without_path.next(),
            _ => found.next(),
        })
    }
}

impl Node {
    fn insert(&mut self, pattern: &PathPattern, number: u32, case: PathCase) {
        let mut node = self;
        for segment in &pattern.segments {
            node = match segment {
                Segment::Exactly(exactly) => {
                    let mut exactly = exactly.clone();
                    if case == PathCase::Insensitive {
                        exactly.make_ascii_lowercase();
                    }
                    node.exactly.entry(exactly).or_default()
                }
                Segment::Any => node.any.get_or_insert_default(),
            };
        }
        if pattern.matches_rest {
            node.prefix_of.push(number);
        } else {
            node.ends_here.push(number);
        }
    }

    fn collect(&self, path: &[std::borrow::Cow<'_, [u8]>], found: &mut PolicyNumbers) {
        add(found, &self.prefix_of);
        let Some((first, rest)) = path.split_first() else {
            add(found, &self.ends_here);
            return;
        };
        // The recursion is as deep as the longest pattern, however long the path is.
        if let Some(node) = self.exactly.get(&**first) {
            node.collect(rest, found);
        }
        if let Some(node) = &self.any {
            node.collect(rest, found);
        }
    }
}

/// The common case of an empty list is checked here, which is cheaper.
fn add(found: &mut PolicyNumbers, numbers: &[u32]) {
    if !numbers.is_empty() {
        found.extend_from_slice(numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern() -> impl Strategy<Value = String> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("*"), Just("%61")];
        (prop::collection::vec(segment, 0..4), any::<bool>()).prop_map(|(segments, open)| {
            let mut text: String = segments
                .iter()
                .map(|segment| format!("/{segment}"))
                .collect();
            text.push_str(if open { "/**" } else { "/" });
            text
        })
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_scan(
            policies in prop::collection::vec(prop::option::of(prop::collection::vec(pattern(), 0..3)), 0..20),
            path in prop::option::of("((/|%2f|\\\\)(a|B|c|%61|\\.\\.|\\.|)){0,6}"),
            case in prop::sample::select(vec![PathCase::Sensitive, PathCase::Insensitive]),
        ) {
            let matches: Vec<Match> = policies.iter().map(|paths| Match {
                paths: paths.as_ref().map(|paths| paths.iter().map(|path| path.parse().unwrap()).collect()),
                ..Match::new()
            }).collect();
            let path = path.as_ref().map(|path| Path::new(path.as_bytes(), case));
            let found: Vec<u32> = Index::new(matches.iter(), case).find(path.as_ref()).collect();
            let fits = |matching: &Match| match &matching.paths {
                None => true,
                Some(paths) => path.as_ref().is_some_and(|path| paths.iter().any(|pattern| pattern.matches_any(path))),
            };
            let scanned: Vec<u32> = (0..).zip(&matches).filter(|(_, matching)| fits(matching)).map(|(number, _)| number).collect();
            prop_assert_eq!(found, scanned);
        }
    }
}

//! Which policies a path can concern: a tree of segments instead of a look at every policy.

use crate::matching::Match;
use crate::path::{Path, PathCase};
use crate::pattern::{PathPattern, Segment};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::collections::HashMap;

/// The numbers of policies, in order. So many need no memory of their own.
pub(crate) type PolicyNumbers = SmallVec<[u32; 32]>;

/// Policies by their paths.
#[derive(Default)]
pub(crate) struct Index {
    root: Node,
    /// Those that ask for no path.
    without_path: Vec<u32>,
}

#[derive(Default)]
struct Node {
    /// What it holds comes from the configuration, so a quick hash will do.
    exactly: HashMap<Box<[u8]>, Node, RandomState>,
    any: Option<Box<Node>>,
    /// Whose pattern ends here.
    ends_here: Vec<u32>,
    /// Whose pattern ends in `**` here.
    prefix_of: Vec<u32>,
}

impl Index {
    pub(crate) fn new<'a>(matches: impl Iterator<Item = &'a Match>, case: PathCase) -> Self {
        let mut index = Self::default();
        for (number, when) in (0..).zip(matches) {
            match &when.paths {
                None => index.without_path.push(number),
                Some(paths) => paths
                    .iter()
                    .for_each(|pattern| index.root.insert(pattern, number, case)),
            }
        }
        index
    }

    /// Those whose path condition holds, each once and in order.
    pub(crate) fn find(&self, path: Option<&Path<'_>>) -> impl Iterator<Item = u32> {
        let mut found = PolicyNumbers::new();
        for reading in path.into_iter().flat_map(Path::readings) {
            self.root.collect(reading, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        // Both are in order, and none is in both. Those of any path may be many: they are not
        // copied.
        let (mut found, mut without_path) = (
            found.into_iter().peekable(),
            self.without_path.iter().copied().peekable(),
        );
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
            node.prefix_of.push(number)
        } else {
            node.ends_here.push(number)
        }
    }

    fn collect(&self, path: &[std::borrow::Cow<'_, [u8]>], found: &mut PolicyNumbers) {
        add(found, &self.prefix_of);
        let Some((first, rest)) = path.split_first() else {
            add(found, &self.ends_here);
            return;
        };
        // A tree is as deep as its longest pattern, however long the path is.
        if let Some(node) = self.exactly.get(&**first) {
            node.collect(rest, found);
        }
        if let Some(node) = &self.any {
            node.collect(rest, found);
        }
    }
}

/// Mostly there is none to add, which is known here at less cost.
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
        fn the_tree_finds_what_a_look_at_every_policy_finds(
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
            let fits = |when: &Match| match &when.paths {
                None => true,
                Some(paths) => path.as_ref().is_some_and(|path| paths.iter().any(|pattern| pattern.matches_any(path))),
            };
            let scanned: Vec<u32> = (0..).zip(&matches).filter(|(_, when)| fits(when)).map(|(number, _)| number).collect();
            prop_assert_eq!(found, scanned);
        }
    }
}

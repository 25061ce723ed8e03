//! [`SuffixTree`]: the largest of `value[i] + weight[i] + weight[i + 1] + …` over all i, while
//! values and weights are set one by one.
//!
//! A binary tree in which each node stores the sum of its weights and the best of the suffixes that
//! begin in it.

#[derive(Clone, Copy, Debug)]
struct Node {
    sum: i128,
    best: i128,
    at: usize,
}

/// A position without a value yet. Far below any value, and far enough from overflow.
const NOTHING: i128 = i128::MIN / 2;

#[derive(Debug)]
pub(super) struct SuffixTree {
    /// The root at 1, the children of k at 2k and 2k + 1, the leaves from `leaves` on.
    nodes: Vec<Node>,
    leaves: usize,
}

impl SuffixTree {
    pub(super) fn new(positions: usize) -> Self {
        let leaves = positions.next_power_of_two();
        Self {
            nodes: vec![
                Node {
                    sum: 0,
                    best: NOTHING,
                    at: 0
                };
                2 * leaves
            ],
            leaves,
        }
    }

    pub(super) fn set_value(&mut self, position: usize, value: i128) {
        let leaf = &mut self.nodes[self.leaves + position];
        (leaf.best, leaf.at) = (leaf.sum + value, position);
        self.renew(position);
    }

    /// Adds to the weight of a position that has a value.
    pub(super) fn add_weight(&mut self, position: usize, weight: i128) {
        let leaf = &mut self.nodes[self.leaves + position];
        leaf.sum += weight;
        leaf.best += weight;
        self.renew(position);
    }

    /// The largest sum, and where it begins.
    pub(super) fn best(&self) -> (i128, usize) {
        (self.nodes[1].best, self.nodes[1].at)
    }

    fn renew(&mut self, position: usize) {
        let mut at = (self.leaves + position) / 2;
        while at > 0 {
            let (left, right) = (self.nodes[2 * at], self.nodes[2 * at + 1]);
            let (best, begin) = (left.best + right.sum, left.at).max((right.best, right.at));
            self.nodes[at] = Node {
                sum: left.sum + right.sum,
                best,
                at: begin,
            };
            at /= 2;
        }
    }
}

//! [`FenwickTree`]: sums over a range of positions while values are added at any of them.

#[derive(Debug)]
pub(super) struct FenwickTree(Vec<u128>);

impl FenwickTree {
    pub(super) fn new(positions: usize) -> Self {
        Self(vec![0; positions + 1])
    }

    pub(super) fn add(&mut self, position: usize, value: u64) {
        let mut at = position + 1;
        while at < self.0.len() {
            self.0[at] += u128::from(value);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum at all positions below `end`.
    pub(super) fn below(&self, end: usize) -> u128 {
        let mut at = end;
        let mut sum = 0;
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

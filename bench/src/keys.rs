//! Keys by number, and the order in which they are called.

use std::hash::Hash;

pub(crate) trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn nth(n: u64) -> Self;

    /// Writes the key into an existing one, without an allocation.
    fn set(&mut self, n: u64) {
        *self = Self::nth(n);
    }
}

impl Key for u64 {
    const NAME: &'static str = "u64";

    fn nth(n: u64) -> Self {
        n
    }
}

/// "user:N".
impl Key for String {
    const NAME: &'static str = "String";

    fn nth(n: u64) -> Self {
        let mut key = Self::new();
        key.set(n);
        key
    }

    fn set(&mut self, n: u64) {
        let (mut digits, mut rest, mut first) = ([0; 20], n, 20);
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.clear();
        self.push_str("user:");
        self.push_str(std::str::from_utf8(&digits[first..]).expect("digits"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Uniform,
    /// Zipf's law with exponent 1: the key of rank k is called about 1/k as often as the first.
    Zipf,
}

impl Order {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "Zipf",
        }
    }
}

/// An endless sequence of numbers below `count`; computed, so that no list of them is in the
/// caches.
pub(crate) struct Draw {
    order: Order,
    count: u64,
    state: u64,
}

impl Draw {
    pub(crate) fn new(order: Order, count: u64, seed: u64) -> Self {
        Self {
            order,
            count,
            state: seed.wrapping_mul(0xd134_2543_de82_ef95),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        match self.order {
            Order::Uniform => ((u128::from(bits) * u128::from(self.count)) >> 64) as u64,
            Order::Zipf => {
                // The inverse of ln(1 + n) / ln(1 + count).
                let at = (bits >> 11) as f64 / (1_u64 << 53) as f64;
                ((at * ((self.count + 1) as f64).ln()).exp() as u64 - 1).min(self.count - 1)
            }
        }
    }
}

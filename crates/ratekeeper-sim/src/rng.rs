//! [`Rng`]: random numbers from a fixed seed, in integers and plain arithmetic only: the same on
//! every machine.

/// A random number generator: splitmix64.
pub struct Rng(u64);

impl Rng {
    /// Creates a generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to 1, excluding 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1, by von Neumann's method, which needs no logarithm:
    /// those of different C libraries differ in the last bit.
    pub fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut run) = (first, 1);
            loop {
                let next = self.unit();
                if next > last {
                    break;
                }
                (last, run) = (next, run + 1);
            }
            if run % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_has_its_mean_and_its_tail() {
        let mut rng = Rng::new(1);
        let drawn: Vec<f64> = (0..200_000).map(|_| rng.exponential()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let above_three = drawn.iter().filter(|x| **x > 3.0).count() as f64 / drawn.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((above_three - 0.049_787).abs() < 0.002, "{above_three}");
    }
}

//! Key hashing: a keyed hash with a secret per table, so that an attacker cannot aim at a
//! collision.
//!
//! With AES instructions: four rounds of AES for each 16 bytes, from a secret start and under a
//! secret round key, each block xored into the state before its rounds. Four rounds spread any
//! difference over the whole state, so that two keys collide by chance only: no difference between
//! them survives four rounds with a likelihood worth trying (2^-113 at most). Without them:
//! SipHash-1-3, as in std. The first takes a third of the time of the second, and the hash is the
//! longest part of a keyed decision.

use core::hash::{BuildHasher, Hash};
#[cfg(not(ratekeeper_loom))]
use std::hash::RandomState;

/// Every run of a model must be the same.
#[cfg(ratekeeper_loom)]
type RandomState = core::hash::BuildHasherDefault<std::hash::DefaultHasher>;

// In this order: the hash that is used where available comes first.
#[repr(C)]
pub(super) struct Secret {
    #[cfg(all(target_arch = "x86_64", not(ratekeeper_loom)))]
    aes: Option<aes::Keys>,
    sip: RandomState,
}

impl Secret {
    pub(super) fn new() -> Self {
        let sip = RandomState::default();
        Self {
            #[cfg(all(target_arch = "x86_64", not(ratekeeper_loom)))]
            aes: aes::Keys::new(&sip),
            sip,
        }
    }

    #[inline(always)]
    pub(super) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        #[cfg(all(target_arch = "x86_64", not(ratekeeper_loom)))]
        if let Some(aes) = &self.aes {
            return aes.hash_one(key);
        }
        self.sip(key)
    }

    #[cfg_attr(all(target_arch = "x86_64", not(ratekeeper_loom)), cold)]
    #[inline(never)]
    fn sip<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.sip.hash_one(key)
    }
}

#[cfg(all(target_arch = "x86_64", not(ratekeeper_loom)))]
mod aes {
    use core::hash::{BuildHasher, Hasher};
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_unpackhi_epi64,
    };

    /// The two AES keys. They exist only if the processor has AES instructions.
    #[derive(Clone, Copy)]
    pub(super) struct Keys {
        start: u128,
        round: u128,
    }

    impl Keys {
        pub(super) fn new(random: &impl BuildHasher) -> Option<Self> {
            let word =
                |at: u64| u128::from(random.hash_one(at)) << 64 | u128::from(random.hash_one(!at));
            std::arch::is_x86_feature_detected!("aes").then(|| Self {
                start: word(0),
                round: word(1),
            })
        }
    }

    impl BuildHasher for Keys {
        type Hasher = Aes;

        #[inline(always)]
        fn build_hasher(&self) -> Aes {
            Aes {
                keys: *self,
                state: self.start,
                block: 0,
                filled: 0,
            }
        }
    }

    pub(super) struct Aes {
        keys: Keys,
        state: u128,
        /// The bytes since the last whole block, and how many they are: 15 at most.
        block: u128,
        filled: u32,
    }

    impl Aes {
        /// Adds the lowest `bytes` bytes of `word`; the others must be zero.
        #[inline(always)]
        fn put(&mut self, word: u64, bytes: u32) {
            self.block |= u128::from(word) << (8 * self.filled);
            let room = 16 - self.filled;
            if bytes < room {
                self.filled += bytes;
                return;
            }
            self.state = self.absorb(self.block);
            self.block = if room < 8 {
                u128::from(word >> (8 * room))
            } else {
                0
            };
            self.filled = bytes - room;
        }

        #[inline(always)]
        #[allow(unsafe_code)]
        fn absorb(&self, block: u128) -> u128 {
            // SAFETY: it needs AES instructions, and there are no `Keys` without them.
            unsafe { four_rounds(self.state ^ block, self.keys.round) }
        }

        /// Returns half of what `absorb` returns, which is all that is needed at the end and fits a
        /// register.
        #[inline(always)]
        #[allow(unsafe_code)]
        fn absorb_last(&self, block: u128) -> u64 {
            // SAFETY: as above.
            unsafe { half_of_four_rounds(self.state ^ block, self.keys.round) }
        }
    }

    impl Hasher for Aes {
        #[inline(always)]
        fn write(&mut self, bytes: &[u8]) {
            // Most strings: one block, of two reads that may overlap.
            if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
                && self.filled == 0
                && bytes.len() < 16
            {
                let first = u64::from_le_bytes(*first);
                let last = u64::from_le_bytes(*last);
                self.block = u128::from(first) | u128::from(last) << (8 * (bytes.len() - 8));
                self.filled = bytes.len() as u32;
                return;
            }
            let (words, rest) = bytes.as_chunks::<8>();
            for word in words {
                self.put(u64::from_le_bytes(*word), 8);
            }
            if let Some(word) = short(rest) {
                self.put(word, rest.len() as u32);
            }
        }

        #[inline(always)]
        fn write_u8(&mut self, word: u8) {
            self.put(u64::from(word), 1);
        }

        #[inline(always)]
        fn write_u32(&mut self, word: u32) {
            self.put(u64::from(word), 4);
        }

        #[inline(always)]
        fn write_u64(&mut self, word: u64) {
            self.put(word, 8);
        }

        #[inline(always)]
        fn write_usize(&mut self, word: usize) {
            self.put(word as u64, 8);
        }

        /// The last block contains its length, so that no input is a prefix of another.
        #[inline(always)]
        fn finish(&self) -> u64 {
            self.absorb_last(self.block | u128::from(self.filled + 1) << 120)
        }
    }

    /// Returns up to seven bytes as a word; `None` if there are none.
    #[inline(always)]
    fn short(bytes: &[u8]) -> Option<u64> {
        // Two reads that may overlap, instead of one for each byte.
        if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            let first = u32::from_le_bytes(*first);
            let last = u32::from_le_bytes(*last);
            return Some(u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4)));
        }
        let first = bytes.first()?;
        let last = bytes.last()?;
        let middle = bytes.len() / 2;
        Some(
            u64::from(*first)
                | u64::from(bytes[middle]) << (8 * middle)
                | u64::from(*last) << (8 * (bytes.len() - 1)),
        )
    }

    #[target_feature(enable = "aes")]
    fn four_rounds(state: u128, round: u128) -> u128 {
        let state = rounds(state, round);
        let low = _mm_cvtsi128_si64(state);
        let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(state, state));
        u128::from(high as u64) << 64 | u128::from(low as u64)
    }

    #[target_feature(enable = "aes")]
    fn half_of_four_rounds(state: u128, round: u128) -> u64 {
        _mm_cvtsi128_si64(rounds(state, round)) as u64
    }

    #[target_feature(enable = "aes")]
    fn rounds(state: u128, round: u128) -> __m128i {
        let mut state = to_register(state);
        let round = to_register(round);
        for _ in 0..4 {
            state = _mm_aesenc_si128(state, round);
        }
        state
    }

    #[target_feature(enable = "sse2")]
    fn to_register(word: u128) -> __m128i {
        _mm_set_epi64x((word >> 64) as i64, word as i64)
    }
}

#[cfg(all(test, target_arch = "x86_64", not(ratekeeper_loom)))]
mod tests {
    use super::*;
    use core::hash::Hasher;
    use std::collections::HashSet;
    use std::vec::Vec;

    /// Fixed keys, so that a failure is reproducible.
    fn keys() -> aes::Keys {
        let fixed = core::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
        aes::Keys::new(&fixed).expect("a processor with AES instructions")
    }

    fn hash_of(parts: &[&[u8]]) -> u64 {
        let mut hasher = keys().build_hasher();
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    #[test]
    fn a_hash_does_not_depend_on_how_the_bytes_are_split() {
        let bytes: Vec<u8> = (1..=50).collect();
        for length in 0..=bytes.len() {
            let whole = hash_of(&[&bytes[..length]]);
            for cut in 0..=length {
                assert_eq!(
                    hash_of(&[&bytes[..cut], &bytes[cut..length]]),
                    whole,
                    "{length} cut at {cut}"
                );
            }
        }
        let mut words = keys().build_hasher();
        words.write_u64(u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        words.write_u32(u32::from_le_bytes([9, 10, 11, 12]));
        words.write_u8(13);
        words.write_usize(usize::from_le_bytes([14, 15, 16, 17, 18, 19, 20, 21]));
        assert_eq!(words.finish(), hash_of(&[&bytes[..21]]));
    }

    #[test]
    fn zeros_of_different_lengths_hash_differently() {
        let zeros = [0; 100];
        let hashes: HashSet<u64> = (0..=zeros.len())
            .map(|length| hash_of(&[&zeros[..length]]))
            .collect();
        assert_eq!(hashes.len(), zeros.len() + 1);
    }

    /// Each bit of the input flips each bit of the hash about half of the time, both in the tag and
    /// in the bits that choose the cache line.
    #[test]
    fn every_input_bit_affects_every_hash_bit() {
        const ROUNDS: u64 = 500;
        for length in [8, 15, 16, 24, 40] {
            let mut turned = vec![[0u32; 64]; length * 8];
            for round in 0..ROUNDS {
                let mut bytes: Vec<u8> = (0..length as u64)
                    .map(|at| (round.wrapping_mul(0x9e37_79b9) >> (at % 24)) as u8 ^ at as u8)
                    .collect();
                let before = hash_of(&[&bytes]);
                for bit in 0..length * 8 {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    let changed = before ^ hash_of(&[&bytes]);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    (0..64).for_each(|at| turned[bit][at] += (changed >> at & 1) as u32);
                }
            }
            // Six deviations: with fixed keys it is always the same.
            let (least, most) = (ROUNDS as u32 * 35 / 100, ROUNDS as u32 * 65 / 100);
            for (bit, counts) in turned.iter().enumerate() {
                assert!(
                    counts.iter().all(|count| (least..=most).contains(count)),
                    "{length} bytes, bit {bit}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn two_tables_hash_differently() {
        let (one, two) = (Secret::new(), Secret::new());
        assert_ne!(one.hash("ann"), two.hash("ann"));
        assert_eq!(one.hash("ann"), one.hash("ann"));
    }

    #[test]
    fn a_processor_without_aes_hashes_too() {
        let secret = Secret {
            aes: None,
            ..Secret::new()
        };
        assert_eq!(secret.hash(&7u64), secret.sip.hash_one(7u64));
    }
}

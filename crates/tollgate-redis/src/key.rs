//! The names of keys in Redis: the prefix, the limit, and a keyed hash of who it is about.
//!
//! `tollgate:login:b:3q2-7wAAAAAAAAAAAAAAAA`. What a limit is called is there to be read; whose bucket it is cannot be read
//! or guessed without the secret (P8).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::sync::Arc;
use tollgate::{Counting, InMicros};

/// What keys are hashed with. Never shown.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    pub(crate) fn new(secret: &[u8]) -> Self {
        match Hmac::new_from_slice(secret) {
            Ok(keyed) => Self(keyed),
            Err(_) => unreachable!("a key of any length is taken"),
        }
    }

    /// The name of a limit's bucket for `key`.
    pub(crate) fn name(&self, stem: &Stem, key: &[u8]) -> Arc<[u8]> {
        let mut mac = self.0.clone();
        mac.update(&stem.limit);
        mac.update(key);
        let hash = mac.finalize().into_bytes();
        let mut name = [0_u8; 256];
        let length = stem.text.len();
        name[..length].copy_from_slice(&stem.text);
        encode(&hash[..16], &mut name[length..]);
        name[..length + 22].into()
    }
}

/// The part of a name that all keys of a limit share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stem {
    text: Box<[u8]>,
    /// Which limit, for the hash: its length is in front, so that no limit and key are another's.
    limit: Box<[u8]>,
}

/// How much of a limit's name is shown; the hash knows all of it.
const SHOWN: usize = 96;

impl Stem {
    pub(crate) fn new(prefix: &str, name: &str, limit: &InMicros) -> Self {
        // Whatever is not plain could be taken for another part, or for the tag of a slot.
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_-./=,".contains(c) { c } else { '_' };
        let shown: String = name.chars().take(SHOWN).map(plain).collect();
        let text = format!("{prefix}:{shown}:{}:", tag(limit));
        let limit = [&(name.len() as u64).to_be_bytes(), name.as_bytes()].concat();
        Self { text: text.into_bytes().into(), limit: limit.into() }
    }
}

/// Algorithms keep different states, so each has keys of its own.
fn tag(limit: &InMicros) -> char {
    match limit {
        InMicros::Unlimited => 'u',
        InMicros::Bucket { .. } => 'b',
        InMicros::Pacing { .. } => 'p',
        InMicros::Window { count, .. } => match count {
            Counting::Fixed => 'f',
            Counting::FirstHit => 'h',
            Counting::Sliding { .. } => 'w',
            Counting::Strict { .. } => 's',
            Counting::Log => 'l',
        },
        InMicros::InFlight { .. } => 'c',
    }
}

/// Base64 for names: 16 bytes are 22 letters.
fn encode(bytes: &[u8], into: &mut [u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut letters = into.iter_mut();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for (shift, letter) in [18, 12, 6, 0].into_iter().zip(&mut letters).take(chunk.len() + 1) {
            *letter = LETTERS[(word >> shift & 63) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Limit;

    fn name(secret: &[u8], limit: &str, key: &[u8]) -> String {
        let stem = Stem::new("tollgate", limit, &Limit::per_second(1).in_micros());
        String::from_utf8(Secret::new(secret).name(&stem, key).to_vec()).unwrap()
    }

    #[test]
    fn a_name_tells_the_limit_and_not_the_key() {
        let ann = name(b"secret", "login", b"ann");
        assert!(ann.starts_with("tollgate:login:b:") && ann.len() == "tollgate:login:b:".len() + 22, "{ann}");
        assert!(!ann.contains("ann"));
        assert_eq!(ann, name(b"secret", "login", b"ann"));
        assert_ne!(ann, name(b"another", "login", b"ann"));
        assert_ne!(ann, name(b"secret", "login", b"bob"));
    }

    #[test]
    fn the_same_letters_divided_otherwise_are_other_keys() {
        let hash = |limit, key| name(b"secret", limit, key).rsplit(':').next().unwrap().to_owned();
        assert_ne!(hash("a", b"bc"), hash("ab", b"c"));
        // Names that are shown alike are not alike.
        assert_ne!(name(b"secret", "a{b}", b""), name(b"secret", "a_b_", b""));
    }

    #[test]
    fn long_names_fit() {
        assert!(name(b"secret", &"ä".repeat(500), b"x").len() < 256);
    }
}

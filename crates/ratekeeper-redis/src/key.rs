//! The names of keys in Redis: the prefix, the limit, and a keyed hash of who it is about.
//!
//! `ratekeeper:login:b:3q2-7wAAAAAAAAAAAAAAAA`. What a limit is called is there to be read; whose
//! bucket it is cannot be read or guessed without the secret (P8).
//!
//! In a Cluster it is `ratekeeper:login:b:{Zm9v}3q2-7wAAAAAAAAAAAAAAAA`: what stands in braces says
//! which slot it is in, and is a hash of the key alone, or of its tag, so that limits on the same
//! key lie in one slot. It is short, which is enough to spread them and tells less.

use hmac::{Hmac, KeyInit, Mac};
use ratekeeper::{limit::MicrosLimit, limit::WindowCounter, store::ShardPrefix};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

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

    /// Another secret, for a purpose of its own. No name is made of such a length of a limit's.
    pub(crate) fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut mac = self.0.clone();
        mac.update(&[0xff; 8]);
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// The name of a limit's bucket for `key`.
    pub(crate) fn name(&self, stem: &Stem, key: &[u8]) -> Arc<[u8]> {
        let mut mac = self.0.clone();
        mac.update(&stem.limit);
        mac.update(key);
        let hash = mac.finalize().into_bytes();
        let mut name = [0_u8; 256];
        let mut length = stem.text.len();
        name[..length].copy_from_slice(&stem.text);
        if let Some(tag) = &stem.tag {
            let mut mac = self.0.clone();
            mac.update(tag.of(key));
            let hash = mac.finalize().into_bytes();
            name[length] = b'{';
            encode(&hash[..3], &mut name[length + 1..]);
            name[length + 5] = b'}';
            length += 6;
        }
        encode(&hash[..16], &mut name[length..]);
        name[..length + 22].into()
    }
}

/// The secret that [`shared_secret`](crate::RedisStore::shared_secret) tells for a purpose where
/// [`key_secret`](crate::RedisStoreBuilder::key_secret) is this one, for those who have no Redis.
pub fn derived_secret(key_secret: &str, purpose: &str) -> [u8; 32] {
    Secret::new(key_secret.as_bytes()).derived(purpose)
}

/// The part of a name that all keys of a limit share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stem {
    text: Box<[u8]>,
    /// Which limit, for the hash: its length is in front, so that no limit and key are another's.
    limit: Box<[u8]>,
    /// Which limit and algorithm, in short: the same on every node.
    pub(crate) id: u64,
    /// In a Cluster: by what a key lies with others.
    tag: Option<Tag>,
}

/// Which part of a key says with what others it lies.
#[derive(Clone, Default)]
pub(crate) struct Tag(Option<ShardPrefix>);

impl Tag {
    pub(crate) fn by(tag: ShardPrefix) -> Self {
        Self(Some(tag))
    }

    fn of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let length = self.0.as_ref().map_or(key.len(), |tag| tag(key));
        key.get(..length).unwrap_or(key)
    }
}

impl PartialEq for Tag {
    /// The same function; others may do the same, and are not known to.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl Eq for Tag {}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "a part of the key"
        } else {
            "the key"
        })
    }
}

/// How much of a limit's name is shown; the hash knows all of it.
const SHOWN: usize = 96;

impl Stem {
    pub(crate) fn new(prefix: &str, name: &str, limit: &MicrosLimit, tag: Option<Tag>) -> Self {
        // Whatever is not plain could be taken for another part, or for the tag of a slot.
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "_-./=,".contains(c) {
                c
            } else {
                '_'
            }
        };
        let shown: String = name.chars().take(SHOWN).map(plain).collect();
        let text = format!("{prefix}:{shown}:{}:", letter(limit));
        let hash = Sha256::new()
            .chain_update(name)
            .chain_update([letter(limit) as u8])
            .finalize();
        let id = hash
            .iter()
            .take(8)
            .fold(0, |id, byte| id << 8 | u64::from(*byte));
        let limit = [&(name.len() as u64).to_be_bytes(), name.as_bytes()].concat();
        Self {
            text: text.into_bytes().into(),
            limit: limit.into(),
            id,
            tag,
        }
    }
}

/// Algorithms keep different states, so each has keys of its own.
fn letter(limit: &MicrosLimit) -> char {
    match limit {
        MicrosLimit::Unlimited => 'u',
        MicrosLimit::Bucket {
            refundable: false, ..
        } => 'b',
        MicrosLimit::Bucket {
            refundable: true, ..
        } => 'r',
        MicrosLimit::Pacing { .. } => 'p',
        MicrosLimit::Window { count, .. } => match count {
            WindowCounter::Fixed => 'f',
            WindowCounter::FirstHit => 'h',
            WindowCounter::Sliding { .. } => 'w',
            WindowCounter::Strict { .. } => 's',
            WindowCounter::Log => 'l',
        },
        MicrosLimit::InFlight { .. } => 'c',
    }
}

/// Base64 for names: 16 bytes are 22 letters.
fn encode(bytes: &[u8], into: &mut [u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut letters = into.iter_mut();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for (shift, letter) in [18, 12, 6, 0]
            .into_iter()
            .zip(&mut letters)
            .take(chunk.len() + 1)
        {
            *letter = LETTERS[(word >> shift & 63) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::Limit;

    fn name(secret: &[u8], limit: &str, key: &[u8]) -> String {
        let stem = Stem::new("ratekeeper", limit, &Limit::per_second(1).in_micros(), None);
        String::from_utf8(Secret::new(secret).name(&stem, key).to_vec()).unwrap()
    }

    #[test]
    fn a_name_tells_the_limit_and_not_the_key() {
        let ann = name(b"secret", "login", b"ann");
        assert!(
            ann.starts_with("ratekeeper:login:b:") && ann.len() == "ratekeeper:login:b:".len() + 22,
            "{ann}"
        );
        assert!(!ann.contains("ann"));
        assert_eq!(ann, name(b"secret", "login", b"ann"));
        assert_ne!(ann, name(b"another", "login", b"ann"));
        assert_ne!(ann, name(b"secret", "login", b"bob"));
    }

    #[test]
    fn the_same_letters_divided_otherwise_are_other_keys() {
        let hash = |limit, key| {
            name(b"secret", limit, key)
                .rsplit(':')
                .next()
                .unwrap()
                .to_owned()
        };
        assert_ne!(hash("a", b"bc"), hash("ab", b"c"));
        // Names that are shown alike are not alike.
        assert_ne!(name(b"secret", "a{b}", b""), name(b"secret", "a_b_", b""));
    }

    #[test]
    fn long_names_fit() {
        assert!(name(b"secret", &"ä".repeat(500), b"x").len() < 256);
    }

    #[test]
    fn in_a_cluster_limits_on_the_same_key_or_tag_lie_together() {
        let secret = Secret::new(b"secret");
        let name = |limit: &str, tag: Tag, key: &[u8]| {
            let stem = Stem::new(
                &"p".repeat(64),
                limit,
                &Limit::per_second(1).in_micros(),
                Some(tag),
            );
            secret.name(&stem, key)
        };
        let slot = |name: &[u8]| crate::cluster::slot(name);
        let (minute, day) = (
            name("minute", Tag::default(), b"ann"),
            name("day", Tag::default(), b"ann"),
        );
        assert_ne!(minute, day);
        assert_eq!(slot(&minute), slot(&day));
        let others = (0..100_u8)
            .filter(|key| slot(&name("day", Tag::default(), &[*key])) != slot(&day))
            .count();
        assert!(others > 90, "they are not spread: {others}");
        let first = |length: usize| Tag::by(Arc::new(move |_| length));
        assert_eq!(
            slot(&name("day", first(3), b"ann:1")),
            slot(&name("hour", first(3), b"ann:2"))
        );
        assert_eq!(slot(&name("day", first(3), b"ann:1")), slot(&day));
        // What is longer than the key is all of it.
        assert_eq!(name("day", first(99), b"ann"), day);
        assert!(!String::from_utf8_lossy(&day).contains("ann"));
        assert!(name(&"x".repeat(500), Tag::default(), b"ann").len() < 256);
    }
}

//! Key names in Redis: the prefix, the limit, and a keyed hash of the caller's key.
//!
//! `ratekeeper:login:b:3q2-7wAAAAAAAAAAAAAAAA`. The name of the limit is readable; the caller's key
//! cannot be read or guessed without the secret (P8).
//!
//! In a Cluster it is `ratekeeper:login:b:{Zm9v}3q2-7wAAAAAAAAAAAAAAAA`: the hash tag in braces
//! decides the slot. It is a hash of the caller's key alone, or of a part of it, so that limits on
//! the same key are in one slot. It is short: long enough to spread the keys, and it reveals
//! little.

use hmac::{Hmac, KeyInit, Mac};
use ratekeeper::{store::ShardPrefix, store::backend::MicrosLimit, store::backend::WindowCounter};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// The secret that keys are hashed with. It is never shown.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    pub(crate) fn new(secret: &[u8]) -> Self {
        match Hmac::new_from_slice(secret) {
            Ok(keyed) => Self(keyed),
            Err(_) => unreachable!("a key of any length is taken"),
        }
    }

    /// Derives a secret for another purpose. No key name is made from a limit name of this length.
    pub(crate) fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut mac = self.0.clone();
        mac.update(&[0xff; 8]);
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// The name of the bucket of `key` under a limit.
    pub(crate) fn name(&self, key_prefix: &KeyPrefix, key: &[u8]) -> Arc<[u8]> {
        let mut mac = self.0.clone();
        mac.update(&key_prefix.limit);
        mac.update(key);
        let hash = mac.finalize().into_bytes();
        let mut name = [0_u8; 256];
        let mut length = key_prefix.text.len();
        name[..length].copy_from_slice(&key_prefix.text);
        if let Some(tag) = &key_prefix.tag {
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

/// The secret that [`shared_secret`](crate::RedisStore::shared_secret) returns for a purpose if
/// [`key_secret`](crate::RedisStoreBuilder::key_secret) is set to this one; for programs without
/// Redis.
pub fn derived_secret(key_secret: &str, purpose: &str) -> [u8; 32] {
    Secret::new(key_secret.as_bytes()).derived(purpose)
}

/// The part of a key name that all keys of a limit share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyPrefix {
    text: Box<[u8]>,
    /// The limit's name for the hash, preceded by its length, so that no other limit and key hash
    /// the same bytes.
    limit: Box<[u8]>,
    /// A short hash of the limit's name and algorithm: the same on every node.
    pub(crate) id: u64,
    /// In a Cluster: what the hash tag of a key is made of.
    tag: Option<SlotTag>,
}

/// The function that returns the part of a key that decides its Cluster slot; the whole key by
/// default.
#[derive(Clone, Default)]
pub(crate) struct SlotTag(Option<ShardPrefix>);

impl SlotTag {
    pub(crate) fn by_prefix(tag: ShardPrefix) -> Self {
        Self(Some(tag))
    }

    fn of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let length = self.0.as_ref().map_or(key.len(), |tag| tag(key));
        key.get(..length).unwrap_or(key)
    }
}

impl PartialEq for SlotTag {
    /// The same function object. Two functions may do the same; they count as different.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl Eq for SlotTag {}

impl fmt::Debug for SlotTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "a part of the key"
        } else {
            "the key"
        })
    }
}

/// Characters shown of a limit's name. The hash covers all of it.
const MAX_SHOWN_CHARS: usize = 96;

impl KeyPrefix {
    pub(crate) fn new(prefix: &str, name: &str, limit: &MicrosLimit, tag: Option<SlotTag>) -> Self {
        // Other characters could be mistaken for a separator, or for a hash tag.
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "_-./=,".contains(c) {
                c
            } else {
                '_'
            }
        };
        let shown: String = name.chars().take(MAX_SHOWN_CHARS).map(plain).collect();
        let text = format!("{prefix}:{shown}:{}:", algorithm_letter(limit));
        let hash = Sha256::new()
            .chain_update(name)
            .chain_update([algorithm_letter(limit) as u8])
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

/// A letter for each algorithm, since each stores another state and so needs its own keys.
fn algorithm_letter(limit: &MicrosLimit) -> char {
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

/// Base64 for names: 16 bytes become 22 letters.
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
        let key_prefix =
            KeyPrefix::new("ratekeeper", limit, &Limit::per_second(1).in_micros(), None);
        String::from_utf8(Secret::new(secret).name(&key_prefix, key).to_vec()).unwrap()
    }

    #[test]
    fn a_name_shows_the_limit_and_not_the_key() {
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
    fn names_and_keys_of_the_same_letters_do_not_collide() {
        let hash = |limit, key| {
            name(b"secret", limit, key)
                .rsplit(':')
                .next()
                .unwrap()
                .to_owned()
        };
        assert_ne!(hash("a", b"bc"), hash("ab", b"c"));
        // Limits whose names are shown alike have different keys.
        assert_ne!(name(b"secret", "a{b}", b""), name(b"secret", "a_b_", b""));
    }

    #[test]
    fn long_names_fit() {
        assert!(name(b"secret", &"ä".repeat(500), b"x").len() < 256);
    }

    #[test]
    fn in_a_cluster_limits_on_the_same_key_or_tag_share_a_slot() {
        let secret = Secret::new(b"secret");
        let name = |limit: &str, tag: SlotTag, key: &[u8]| {
            let key_prefix = KeyPrefix::new(
                &"p".repeat(64),
                limit,
                &Limit::per_second(1).in_micros(),
                Some(tag),
            );
            secret.name(&key_prefix, key)
        };
        let slot = |name: &[u8]| crate::cluster::slot(name);
        let minute = name("minute", SlotTag::default(), b"ann");
        let day = name("day", SlotTag::default(), b"ann");
        assert_ne!(minute, day);
        assert_eq!(slot(&minute), slot(&day));
        let others = (0..100_u8)
            .filter(|key| slot(&name("day", SlotTag::default(), &[*key])) != slot(&day))
            .count();
        assert!(others > 90, "they are not spread: {others}");
        let first = |length: usize| SlotTag::by_prefix(Arc::new(move |_| length));
        assert_eq!(
            slot(&name("day", first(3), b"ann:1")),
            slot(&name("hour", first(3), b"ann:2"))
        );
        assert_eq!(slot(&name("day", first(3), b"ann:1")), slot(&day));
        // A length beyond the key means the whole key.
        assert_eq!(name("day", first(99), b"ann"), day);
        assert!(!String::from_utf8_lossy(&day).contains("ann"));
        assert!(name(&"x".repeat(500), SlotTag::default(), b"ann").len() < 256);
    }
}

//! Fingerprints: keyed hashes (SipHash-2-4) that are shown instead of values, so that values can be
//! compared but not recovered.

use crate::attribute::Attribute;
use crate::random::random_bytes;
use std::fmt;
use std::str::FromStr;

/// The name of a key among nodes: a hash of policy and key, with a shared secret.
pub type KeyName = [u8; 16];

/// Number of digits after the `#`.
const DIGITS: usize = 16;

/// A fingerprint of the value of an attribute, written `#` and 16 hexadecimal digits.
///
/// ```
/// use ratekeeper_policy::fingerprint::Fingerprint;
///
/// let fingerprint: Fingerprint = "#f8c0a1b2c3d4e5f6".parse()?;
/// assert_eq!(fingerprint.to_string(), "#f8c0a1b2c3d4e5f6");
/// assert!("#f8c0".parse::<Fingerprint>().is_err());
/// # Ok::<_, ratekeeper_policy::fingerprint::FingerprintError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Whether a text looks like a fingerprint: `#` and hexadecimal digits, of any number, maybe
    /// cut off with dots.
    pub fn is_meant_by(text: &str) -> bool {
        text.strip_prefix('#').is_some_and(|rest| {
            let digits = rest.trim_end_matches(['.', '…']);
            !rest.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:016x}", self.0)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits = text
            .strip_prefix('#')
            .filter(|digits| digits.len() == DIGITS)
            .ok_or(FingerprintError)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(FingerprintError);
        }
        u64::from_str_radix(digits, 16)
            .map(Self)
            .map_err(|_| FingerprintError)
    }
}

/// Error: the text is not a fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FingerprintError;

impl fmt::Display for FingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a fingerprint is `#` and {DIGITS} hexadecimal digits, as in #f8c0a1b2c3d4e5f6"
        )
    }
}

impl std::error::Error for FingerprintError {}

/// The secret that fingerprints are made with. Nodes with the same secret show the same
/// fingerprints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FingerprintSecret {
    values: [u64; 2],
    names: [u64; 2],
}

impl FingerprintSecret {
    /// A secret that can be shared. It should be random, or derived from a random value.
    pub fn new(bytes: &[u8; 32]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let [a, b, c, d] = [0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word]));
        Self {
            values: [a, b],
            names: [c, d],
        }
    }

    /// A random secret of this process.
    pub(crate) fn random() -> Self {
        Self::new(&random_bytes())
    }

    /// The fingerprint of the value of an attribute. The same value of another attribute has
    /// another one.
    pub(crate) fn of(&self, attribute: &Attribute, value: &[u8]) -> Fingerprint {
        self.of_kind(
            u8::from(matches!(attribute, Attribute::Header(_))),
            attribute,
            value,
        )
    }

    /// The fingerprint of the substitute for an attribute, distinct from that of any value of the
    /// attribute.
    pub(crate) fn of_substitute(&self, attribute: &Attribute, value: &[u8]) -> Fingerprint {
        self.of_kind(
            2 + u8::from(matches!(attribute, Attribute::Header(_))),
            attribute,
            value,
        )
    }

    fn of_kind(&self, kind: u8, attribute: &Attribute, value: &[u8]) -> Fingerprint {
        let mut hash = Sip::new(self.values);
        let name = attribute.name().as_bytes();
        // Prefixed by its length, so that two pairs of name and value never hash the same bytes.
        hash.write(&(name.len() as u64).to_le_bytes());
        hash.write(&[kind]);
        hash.write(name);
        hash.write(value);
        Fingerprint(hash.finish()[0])
    }

    /// The name of a key, from the fingerprints of its values.
    pub(crate) fn name(&self, policy: &str, values: impl Iterator<Item = Fingerprint>) -> KeyName {
        let mut hash = Sip::new(self.names);
        hash.write(&(policy.len() as u64).to_le_bytes());
        hash.write(policy.as_bytes());
        values.for_each(|value| hash.write(&value.0.to_le_bytes()));
        let [a, b] = hash.finish().map(u64::to_le_bytes);
        let mut name = KeyName::default();
        name[..8].copy_from_slice(&a);
        name[8..].copy_from_slice(&b);
        name
    }
}

impl fmt::Debug for FingerprintSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintSecret(***)")
    }
}

/// SipHash-2-4 of 128 bits.
struct Sip {
    state: [u64; 4],
    tail: [u8; 8],
    length: usize,
}

impl Sip {
    fn new([k0, k1]: [u64; 2]) -> Self {
        let state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self {
            state,
            tail: [0; 8],
            length: 0,
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        let filled = self.length % 8;
        self.length += bytes.len();
        if filled > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(8 - filled));
            self.tail[filled..filled + first.len()].copy_from_slice(first);
            if filled + first.len() < 8 {
                return;
            }
            self.block(u64::from_le_bytes(self.tail));
            bytes = rest;
        }
        let (blocks, rest) = bytes.as_chunks::<8>();
        blocks
            .iter()
            .for_each(|block| self.block(u64::from_le_bytes(*block)));
        self.tail[..rest.len()].copy_from_slice(rest);
    }

    fn finish(mut self) -> [u64; 2] {
        self.tail[self.length % 8..].fill(0);
        self.block(u64::from_le_bytes(self.tail) | (self.length as u64) << 56);
        self.state[2] ^= 0xee;
        self.rounds(4);
        let first = self.state.iter().fold(0, |all, word| all ^ word);
        self.state[1] ^= 0xdd;
        self.rounds(4);
        [first, self.state.iter().fold(0, |all, word| all ^ word)]
    }

    #[inline]
    fn block(&mut self, word: u64) {
        self.state[3] ^= word;
        self.rounds(2);
        self.state[0] ^= word;
    }

    #[inline]
    fn rounds(&mut self, count: u32) {
        let [mut a, mut b, mut c, mut d] = self.state;
        for _ in 0..count {
            a = a.wrapping_add(b);
            b = b.rotate_left(13) ^ a;
            a = a.rotate_left(32);
            c = c.wrapping_add(d);
            d = d.rotate_left(16) ^ c;
            a = a.wrapping_add(d);
            d = d.rotate_left(21) ^ a;
            c = c.wrapping_add(b);
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.state = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation: the key is 0, 1, … 15, the messages are nothing, 0, 0 1,
    /// and so on.
    #[test]
    fn the_hash_is_siphash() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let bytes: Vec<u8> = (0..64).collect();
        let hex = |length: usize, chunk: usize| {
            let mut hash = Sip::new(key);
            bytes[..length]
                .chunks(chunk)
                .for_each(|chunk| hash.write(chunk));
            hash.finish()
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        for (length, expected) in [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (2, "8177228da4a45dc7fca38bdef60affe4"),
            (3, "9c70b60c5267a94e5f33b6b02985ed51"),
        ] {
            assert_eq!(hex(length, 64), expected);
        }
        for length in 0..64 {
            for chunk in 1..20 {
                assert_eq!(
                    hex(length, chunk),
                    hex(length, 64),
                    "{length} in chunks of {chunk}"
                );
            }
        }
    }

    #[test]
    fn a_fingerprint_parses_as_displayed_and_not_shorter() {
        let secret = FingerprintSecret::new(&[7; 32]);
        for value in ["", "ann", "s3cret", "a value that is longer than a block"] {
            let fingerprint = secret.of(&Attribute::User, value.as_bytes());
            let text = fingerprint.to_string();
            assert_eq!((text.len(), text.parse()), (17, Ok(fingerprint)));
            assert_eq!(text.to_uppercase().parse(), Ok(fingerprint));
        }
        for invalid in [
            "",
            "#",
            "f8c0a1b2c3d4e5f6",
            "#f8c0",
            "#f8c0…",
            "#f8c0a1b2c3d4e5f",
            "#+8c0a1b2c3d4e5f6",
            "#f8c0a1b2c3d4e5f6a",
            "#ä8c0a1b2c3d4e5f",
        ] {
            assert_eq!(
                invalid.parse::<Fingerprint>(),
                Err(FingerprintError),
                "{invalid}"
            );
        }
        for meant in [
            "#f8c0",
            "#f8c0…",
            "#F8C0...",
            "#…",
            "#f8c0a1b2c3d4e5f6",
            "#f8c0a1b2c3d4e5f6a",
        ] {
            assert!(Fingerprint::is_meant_by(meant), "{meant}");
        }
        for other in ["", "#", "f8c0", "#general", "#f8c0x"] {
            assert!(!Fingerprint::is_meant_by(other), "{other}");
        }
    }

    #[test]
    fn fingerprints_depend_on_attribute_policy_and_secret() {
        let secret = FingerprintSecret::new(&[7; 32]);
        let of = |name: &str, value: &str| secret.of(&Attribute::named(name), value.as_bytes());
        assert_ne!(of("user", "ann"), of("tenant", "ann"));
        assert_ne!(of("x-user", "ann"), of("header:x-user", "ann"));
        assert_ne!(of("a", "bc"), of("ab", "c"));
        assert_ne!(
            of("user", "ann"),
            FingerprintSecret::new(&[8; 32]).of(&Attribute::User, b"ann")
        );
        assert_ne!(FingerprintSecret::random(), FingerprintSecret::random());
        let name =
            |policy: &str, values: &[Fingerprint]| secret.name(policy, values.iter().copied());
        let ann = of("user", "ann");
        let bob = of("user", "bob");
        assert_ne!(name("a", &[ann]), name("b", &[ann]));
        assert_ne!(name("a", &[ann, bob]), name("a", &[bob, ann]));
        assert_eq!(name("a", &[ann, bob]), name("a", &[ann, bob]));
    }

    /// They are in the logs of users, and in Redis: they must not change.
    #[test]
    fn fingerprints_are_stable() {
        let secret = FingerprintSecret::new(&[7; 32]);
        assert_eq!(
            secret.of(&Attribute::User, b"ann").to_string(),
            "#c4ba22e17c764b8a"
        );
    }
}

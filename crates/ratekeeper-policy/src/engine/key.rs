//! Keys: what a policy counts a request by, as bytes. Two requests share a bucket if and only if
//! these are equal.

use crate::address;
use crate::attribute::{Attribute, credentials};
use crate::fingerprint::{Fingerprint, FingerprintSecret, KeyName};
use crate::path::Path;
use crate::policy::Missing;
use crate::subject::Subject;
use smallvec::SmallVec;
use std::fmt;
use std::net::IpAddr;

/// The keys of one request, concatenated. Up to 256 bytes are stored inline.
pub(crate) type KeyBuffer = SmallVec<[u8; 256]>;

/// Flag in the length of a part: the part replaces an attribute that the request lacks.
const SUBSTITUTE: u32 = 1 << 31;

/// The substitute where the request has no address either.
const UNKNOWN: &[u8] = b"unknown";

/// The substitute of `missing = "shared"`.
const SHARED: &[u8] = b"shared";

/// The first attribute of a key that a request lacks.
#[derive(Clone, Copy)]
pub(crate) struct MissingKeyPart<'a> {
    pub(crate) attribute: &'a Attribute,
    /// Whether the request has no address either, where the address would be counted instead.
    pub(crate) is_unknown: bool,
}

/// Appends the key. Returns the attribute that the request lacks, if any: as an error with `missing
/// = "skip"`, otherwise with a substitute in the key. For `"deny"` the substitute is the address:
/// the key is not counted, but it can be banned, and belongs to a rollout or not.
///
/// Each part is prefixed by its length: `a` and `bc` are not `ab` and `c`. What servers treat as
/// equal (case of hosts and methods, spellings of a path, addresses of one IPv6 prefix) is equal
/// here.
pub(crate) fn write<'a>(
    keys: &mut KeyBuffer,
    (key, missing): (&'a [Attribute], Missing),
    subject: &Subject<'_>,
    path: Option<&Path<'_>>,
    ipv6_prefix: u8,
) -> Result<Option<MissingKeyPart<'a>>, &'a Attribute> {
    let mut missing_part = None;
    for attribute in key {
        let start = keys.len();
        // Fast path for the most common key.
        if let (Attribute::Ip, Some(IpAddr::V4(v4))) = (attribute, subject.address()) {
            let [a, b, c, d] = v4.octets();
            keys.extend_from_slice(&[4, 0, 0, 0, a, b, c, d]);
            continue;
        }
        keys.extend_from_slice(&[0; 4]);
        let mark = match write_value(keys, attribute, subject, path, ipv6_prefix) {
            Some(()) => 0,
            None => {
                keys.truncate(start + 4);
                let is_unknown =
                    substitute(keys, missing, subject, ipv6_prefix).ok_or(attribute)?;
                missing_part.get_or_insert(MissingKeyPart {
                    attribute,
                    is_unknown,
                });
                SUBSTITUTE
            }
        };
        let length = u32::try_from(keys.len() - start - 4).unwrap_or(u32::MAX) & !SUBSTITUTE;
        keys[start..start + 4].copy_from_slice(&(length | mark).to_le_bytes());
    }
    Ok(missing_part)
}

/// Appends the value of an attribute; `None` if the request does not have it.
#[inline(always)]
fn write_value(
    keys: &mut KeyBuffer,
    attribute: &Attribute,
    subject: &Subject<'_>,
    path: Option<&Path<'_>>,
    ipv6_prefix: u8,
) -> Option<()> {
    match attribute {
        Attribute::Ip => write_address(keys, subject.address()?, ipv6_prefix),
        Attribute::Endpoint => {
            let (method, route) = subject.route()?;
            keys.extend(method.iter().map(u8::to_ascii_uppercase));
            keys.push(b' ');
            if subject.has_named_endpoint() {
                keys.extend_from_slice(route);
            } else {
                write_path(keys, path);
            }
        }
        Attribute::Path => {
            path?;
            write_path(keys, path);
        }
        Attribute::Method => {
            keys.extend(subject.bytes(attribute)?.iter().map(u8::to_ascii_uppercase));
        }
        Attribute::Host => {
            keys.extend(subject.bytes(attribute)?.iter().map(u8::to_ascii_lowercase));
        }
        other if other.has_scheme() => keys.extend_from_slice(credentials(subject.bytes(other)?)),
        other => keys.extend_from_slice(subject.bytes(other)?),
    }
    Some(())
}

/// Appends the substitute of an attribute that the request lacks, and returns whether it is
/// [`UNKNOWN`]; `None` if there is no substitute.
#[cold]
fn substitute(
    keys: &mut KeyBuffer,
    missing: Missing,
    subject: &Subject<'_>,
    ipv6_prefix: u8,
) -> Option<bool> {
    match (missing, subject.address()) {
        (Missing::Skip, _) => return None,
        (Missing::Shared, _) => keys.extend_from_slice(SHARED),
        (Missing::Address | Missing::Deny, Some(address)) => {
            write_address(keys, address, ipv6_prefix);
        }
        (Missing::Address, None) => {
            keys.extend_from_slice(UNKNOWN);
            return Some(true);
        }
        (Missing::Deny, None) => keys.extend_from_slice(UNKNOWN),
    }
    Some(false)
}

fn write_address(keys: &mut KeyBuffer, address: IpAddr, ipv6_prefix: u8) {
    match address::client(address, ipv6_prefix) {
        IpAddr::V4(v4) => keys.extend_from_slice(&v4.octets()),
        IpAddr::V6(v6) => keys.extend_from_slice(&v6.octets()),
    }
}

/// The length in bytes of the first `parts` parts of a key.
pub(crate) fn prefix_len(key: &[u8], parts: usize) -> usize {
    let mut at = 0;
    for _ in 0..parts {
        let Some((length, _)) = key[at..].split_first_chunk::<4>() else {
            return key.len();
        };
        at = (at + 4)
            .saturating_add((u32::from_le_bytes(*length) & !SUBSTITUTE) as usize)
            .min(key.len());
    }
    at
}

fn write_path(keys: &mut KeyBuffer, path: Option<&Path<'_>>) {
    for segment in path.into_iter().flat_map(Path::key) {
        keys.push(b'/');
        // An escaped slash inside a segment stays distinct from a separator.
        for byte in segment.iter() {
            match byte {
                b'/' | b'%' => keys.extend_from_slice(&[b'%', *byte]),
                _ => keys.push(*byte),
            }
        }
    }
}

/// One attribute and its value in a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyPart<'a> {
    pub(crate) attribute: &'a Attribute,
    pub(crate) value: &'a [u8],
    /// Whether the value replaces an attribute that the request lacks.
    pub(crate) is_substitute: bool,
}

/// The parts of a key.
pub(crate) fn parts<'a>(
    key: &'a [Attribute],
    bytes: &'a [u8],
) -> impl Iterator<Item = KeyPart<'a>> {
    let mut rest = bytes;
    key.iter().map_while(move |attribute| {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let (value, after) = after.split_at(((length & !SUBSTITUTE) as usize).min(after.len()));
        rest = after;
        Some(KeyPart {
            attribute,
            value,
            is_substitute: length & SUBSTITUTE != 0,
        })
    })
}

impl KeyPart<'_> {
    pub(crate) fn fingerprint(&self, secret: &FingerprintSecret) -> Fingerprint {
        if self.is_substitute {
            secret.of_substitute(self.attribute, self.value)
        } else {
            secret.of(self.attribute, self.value)
        }
    }

    /// The address that the value is, if it has as many bytes as one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address_in(self.value)
    }

    /// The part in plain text: `user=42`, or the substitute of a user: `ip=203.0.113.7`, `unknown`,
    /// `shared`.
    pub(crate) fn display(&self, secret: &FingerprintSecret) -> String {
        match (self.is_substitute, self.address()) {
            (true, Some(address)) => format!("{}={address}", Attribute::Ip),
            (true, None) => String::from_utf8_lossy(self.value).into_owned(),
            (false, _) => format!(
                "{}={}",
                self.attribute,
                display_value(self.attribute, self.value, secret)
            ),
        }
    }
}

/// The fingerprints of the parts of a key.
pub(crate) fn fingerprints<'a>(
    key: &'a [Attribute],
    bytes: &'a [u8],
    secret: &FingerprintSecret,
) -> impl Iterator<Item = Fingerprint> {
    parts(key, bytes).map(|part| part.fingerprint(secret))
}

/// The name of a key among nodes.
pub(crate) fn name(
    policy: &str,
    key: &[Attribute],
    bytes: &[u8],
    secret: &FingerprintSecret,
) -> KeyName {
    secret.name(policy, fingerprints(key, bytes, secret))
}

/// A key by its fingerprints: `ip=#f8c0a1b2c3d4e5f6 user=#0123456789abcdef`.
pub(crate) fn fingerprint(key: &[Attribute], bytes: &[u8], secret: &FingerprintSecret) -> String {
    join_attributes(key.iter().zip(fingerprints(key, bytes, secret)))
}

/// Joins attributes with values: `ip=… user=…`.
pub(crate) fn join_attributes<'a>(
    parts: impl Iterator<Item = (&'a Attribute, impl fmt::Display)>,
) -> String {
    join_parts(parts.map(|(attribute, value)| format!("{attribute}={value}")))
}

/// Joins the parts of a key, without duplicates: an address that replaces several attributes is
/// there once.
pub(crate) fn join_parts(parts: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for part in parts {
        if !all.contains(&part) {
            all.push(part);
        }
    }
    all.join(" ")
}

/// The key in plain text: `ip=1.2.3.4 user=42`. Secrets are shown as fingerprints.
pub(crate) fn display(key: &[Attribute], bytes: &[u8], secret: &FingerprintSecret) -> String {
    join_parts(parts(key, bytes).map(|part| part.display(secret)))
}

/// The value of an attribute in plain text.
fn display_value(attribute: &Attribute, value: &[u8], secret: &FingerprintSecret) -> String {
    const MAX_SHOWN_CHARS: usize = 64;
    match address_in(value).filter(|_| *attribute == Attribute::Ip) {
        Some(ip) => ip.to_string(),
        None if attribute.is_secret() => secret.of(attribute, value).to_string(),
        None => {
            let value = String::from_utf8_lossy(value);
            match value.char_indices().nth(MAX_SHOWN_CHARS) {
                None => value.escape_debug().to_string(),
                Some((end, _)) => format!("{}…", value[..end].escape_debug()),
            }
        }
    }
}

/// The address with these bytes, if their number is that of one.
fn address_in(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).map(IpAddr::from).ok(),
        16 => <[u8; 16]>::try_from(value).map(IpAddr::from).ok(),
        _ => None,
    }
}

/// A hash of a key that is the same on every node and after every restart: a key stays in a
/// rollout.
pub(crate) fn stable_hash(policy: &str, key: &[u8]) -> u64 {
    // FNV-1a, finished by SplitMix64 so that the top bits are mixed: the rollout share is taken
    // from them.
    let bytes = policy.bytes().chain([0]).chain(key.iter().copied());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::PathCase;
    use crate::policy::Rollout;

    fn key_of(key: &[&str], subject: &Subject<'_>) -> Option<Vec<u8>> {
        let key: Vec<Attribute> = key.iter().map(|name| Attribute::named(name)).collect();
        let path = subject
            .raw_path()
            .map(|path| Path::new(path, PathCase::Sensitive));
        let mut keys = KeyBuffer::new();
        write(&mut keys, (&key, Missing::Skip), subject, path.as_ref(), 56)
            .ok()
            .map(|_| keys.to_vec())
    }

    #[test]
    fn parts_do_not_run_together() {
        let two = |a: &str, b: &str| {
            key_of(
                &["one", "other"],
                &Subject::new().with("one", a).with("other", b),
            )
        };
        assert_ne!(two("a", "bc"), two("ab", "c"));
        assert_ne!(two("a", ""), two("", "a"));
        assert_eq!(key_of(&["user"], &Subject::new()), None);
        assert_eq!(
            key_of(&["user"], &Subject::new().user("")),
            None,
            "empty values are absent"
        );
        let empty = vec![("x-api-key", "")];
        let (name, subject) = ("header:x-api-key", Subject::new().headers(&empty));
        assert_eq!(key_of(&[name], &subject), None, "an empty header");
        assert_eq!(key_of(&[], &Subject::new()), Some(Vec::new()));
    }

    #[test]
    fn the_prefix_of_a_key_is_its_first_parts() {
        let subject = Subject::new().with("one", "a").with("other", "bc");
        let both = key_of(&["one", "other"], &subject).unwrap();
        let one = key_of(&["one"], &subject).unwrap();
        assert_eq!(both[..prefix_len(&both, 1)], one);
        assert_eq!(
            (
                prefix_len(&both, 0),
                prefix_len(&both, 2),
                prefix_len(&both, 9)
            ),
            (0, both.len(), both.len())
        );
        assert_eq!(prefix_len(&[255, 255, 255, 255, 1], 1), 5);
    }

    #[test]
    fn spellings_of_one_value_share_a_bucket() {
        let path = |path: &str| key_of(&["path"], &Subject::new().path(path));
        for spelling in [
            "/a/b/",
            "//a//b",
            "/a/./b",
            "/a/x/../b",
            "/%61/b",
            "/a/b?c=d",
            "/a;x=1/b;y",
            "http://example.com/a/b",
            "http://u@h:80/a/b?c",
        ] {
            assert_eq!(path(spelling), path("/a/b"), "{spelling}");
        }
        assert_eq!(path("/a%2Fb"), path("/a/b"));
        assert_ne!(path("/a%2Fb"), path("/a%252Fb"));
        let endpoint = |method: &str, path: &str| {
            key_of(&["endpoint"], &Subject::new().method(method).path(path))
        };
        assert_eq!(endpoint("get", "/a/"), endpoint("GET", "/a"));
        assert_ne!(endpoint("POST", "/a"), endpoint("GET", "/a"));
        let host = |host: &str| key_of(&["host"], &Subject::new().host(host));
        assert_eq!(host("A.example:80"), host("a.example."));
        let authorization = |value: &'static str| {
            let headers = vec![("Authorization", value)];
            key_of(&["header:authorization"], &Subject::new().headers(&headers))
        };
        for spelling in ["bearer s3cret", "BEARER   s3cret", " Bearer\ts3cret "] {
            assert_eq!(
                authorization(spelling),
                authorization("Bearer s3cret"),
                "{spelling}"
            );
        }
        assert_ne!(
            authorization("Bearer s3cret"),
            authorization("Bearer S3cret")
        );
        let ip = |ip: &str| key_of(&["ip"], &Subject::new().ip(ip.parse().unwrap()));
        assert_eq!(ip("::ffff:1.2.3.4"), ip("1.2.3.4"));
        assert_eq!(ip("2001:db8::1"), ip("2001:db8:0:ff::2"));
        assert_ne!(ip("2001:db8::1"), ip("2001:db8:0:100::1"));
    }

    #[test]
    fn a_named_endpoint_replaces_its_paths() {
        let route = |path: &str| {
            key_of(
                &["endpoint"],
                &Subject::new().path(path).endpoint("/users/{id}"),
            )
        };
        assert_eq!(route("/users/1"), route("/users/2"));
    }

    #[test]
    fn a_key_is_shown_in_plain_text_except_secrets() {
        let headers = vec![("Authorization", "Bearer s3cret"), ("x-tenant", "acme\n")];
        let subject = Subject::new()
            .ip("10.0.0.1".parse().unwrap())
            .api_key("s3cret")
            .headers(&headers);
        let names = ["ip", "api_key", "header:authorization", "header:x-tenant"];
        let key: Vec<Attribute> = names.map(Attribute::named).to_vec();
        let bytes = key_of(&names, &subject).unwrap();
        let secret = FingerprintSecret::new(&[7; 32]);
        let shown = display(&key, &bytes, &secret);
        let [api_key, authorization] =
            [&key[1], &key[2]].map(|attribute| secret.of(attribute, b"s3cret"));
        for telling in [
            "access_token",
            "Session-Id",
            "password",
            "header:x-session",
            "header:x-access-key",
        ] {
            assert!(Attribute::named(telling).is_secret(), "{telling}");
        }
        assert_eq!(
            shown,
            format!(
                "ip=10.0.0.1 api_key={api_key} header:authorization={authorization} header:x-tenant=acme\\n"
            )
        );
        // The same letters are in its fingerprint.
        let all = fingerprint(&key, &bytes, &secret);
        assert!(
            all.contains(&format!(
                " api_key={api_key} header:authorization={authorization} header:x-tenant=#"
            )),
            "{all}"
        );
        assert!(all.starts_with("ip=#") && !all.contains("acme"), "{all}");
    }

    #[test]
    fn a_rollout_takes_its_share_and_grows_without_losing_keys() {
        let keys: Vec<u64> = (0..20_000u32)
            .map(|user| stable_hash("api", &user.to_le_bytes()))
            .collect();
        let among = |percent: f64| {
            keys.iter()
                .filter(|key| Rollout::percent(percent).unwrap().includes(**key))
                .count()
        };
        assert_eq!((among(0.0), among(100.0)), (0, 20_000));
        for percent in [1.0, 10.0, 50.0, 90.0] {
            let share = among(percent) as f64 / 200.0;
            assert!((share - percent).abs() < 2.0, "{percent}: {share}");
        }
        let few = Rollout::percent(10.0).unwrap();
        let more = Rollout::percent(11.0).unwrap();
        assert!(
            keys.iter()
                .all(|key| !few.includes(*key) || more.includes(*key))
        );
        // Rollouts of users depend on these numbers: they must not change.
        assert_eq!(stable_hash("", b""), 0x25fc_6dd3_6ce0_4b20);
    }
}

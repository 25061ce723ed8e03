//! Matching and keys on plain strings, policy by policy.

use super::spec::{Caller, Conditions};
use ratekeeper_policy::Missing;

/// All readings of a path, the one to count by last: with escaped slashes as separators or not,
/// with dots resolved or not. First split, then decode the parts.
pub(crate) fn readings(raw: &[u8]) -> Vec<Vec<Vec<u8>>> {
    [(false, false), (false, true), (true, false), (true, true)]
        .map(|(splits, follows)| reading(raw, splits, follows))
        .to_vec()
}

/// The last of them.
pub(crate) fn path(raw: &[u8]) -> Vec<Vec<u8>> {
    reading(raw, true, true)
}

fn reading(raw: &[u8], splits: bool, follows: bool) -> Vec<Vec<u8>> {
    let end = raw
        .iter()
        .position(|byte| *byte == b'?' || *byte == b'#')
        .unwrap_or(raw.len());
    let mut read: Vec<Vec<u8>> = vec![Vec::new()];
    let mut rest = &raw[..end];
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let mut byte = *first;
        if byte == b'%' && after.len() >= 2 && after[..2].iter().all(u8::is_ascii_hexdigit) {
            let text = std::str::from_utf8(&after[..2]).expect("digits");
            byte = u8::from_str_radix(text, 16).expect("digits");
            rest = &after[2..];
        }
        match (first, byte) {
            (b'/', _) => read.push(Vec::new()),
            (_, b'/' | b'\\') if splits => read.push(Vec::new()),
            _ => read.last_mut().expect("never empty").push(byte),
        }
    }
    let mut followed = Vec::new();
    for segment in read {
        match &segment[..] {
            b"" => {}
            b"." if follows => {}
            b".." if follows => _ = followed.pop(),
            _ => followed.push(segment),
        }
    }
    followed
}

/// Whether a path matches a pattern such as `/users/*/orders` or `/api/**`.
pub(crate) fn path_fits(pattern: &str, segments: &[Vec<u8>]) -> bool {
    let wanted: Vec<&str> = pattern
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    let (wanted, rest) = match wanted.split_last() {
        Some((&"**", before)) => (before, true),
        _ => (&wanted[..], false),
    };
    if segments.len() < wanted.len() || (!rest && segments.len() != wanted.len()) {
        return false;
    }
    wanted
        .iter()
        .zip(segments)
        .all(|(wanted, there)| *wanted == "*" || wanted.as_bytes() == there)
}

/// The host in lower case, without port and trailing dot.
pub(crate) fn host(raw: &str) -> String {
    let name = match raw.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.contains(':') =>
        {
            name
        }
        _ => raw,
    };
    name.trim_end_matches('.').to_lowercase()
}

fn host_fits(pattern: &str, there: &str) -> bool {
    let pattern = pattern.to_lowercase();
    let there = host(there);
    match pattern.strip_prefix('*') {
        Some(end) => there.len() > end.len() && there.ends_with(end),
        None => pattern == there,
    }
}

/// The bits of an address, with IPv4 in IPv6 form converted.
pub(crate) fn bits(address: &str) -> String {
    if let Some(v4) = address
        .strip_prefix("::ffff:")
        .unwrap_or(address)
        .split('.')
        .map(|part| part.parse::<u8>().ok())
        .collect::<Option<Vec<_>>>()
    {
        return v4.iter().map(|byte| format!("{byte:08b}")).collect();
    }
    let (before, after) = address.split_once("::").unwrap_or((address, ""));
    let groups = |text: &str| -> Vec<u16> {
        text.split(':')
            .filter(|group| !group.is_empty())
            .map(|group| u16::from_str_radix(group, 16).expect("hex"))
            .collect()
    };
    let before = groups(before);
    let after = groups(after);
    let zeros = vec![0; 8 - before.len() - after.len()];
    before
        .iter()
        .chain(&zeros)
        .chain(&after)
        .map(|group| format!("{group:016b}"))
        .collect()
}

fn in_network(network: &str, address: &str) -> bool {
    let (base, prefix) = network.split_once('/').expect("a prefix");
    let base = bits(base);
    let address = bits(address);
    let prefix: usize = prefix.parse().expect("a number");
    base.len() == address.len() && base[..prefix] == address[..prefix]
}

pub(crate) fn value(caller: &Caller, name: &str) -> Option<String> {
    if let Some(header) = name.strip_prefix("header:") {
        return caller
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(header))
            .map(|(_, value)| value.clone());
    }
    match name {
        "ip" => caller.ip.clone(),
        "method" => caller.method.clone(),
        "path" => caller.path.clone(),
        "host" => caller.host.clone(),
        other => caller
            .others
            .iter()
            .find(|(known, _)| *known == other)
            .map(|(_, value)| value.clone()),
    }
}

/// Whether the conditions hold in some reading of the path; with `every`, in each.
pub(crate) fn holds(conditions: &Conditions, caller: &Caller, every: bool) -> bool {
    let Conditions {
        methods,
        paths,
        hosts,
        ips,
        headers,
        attributes,
        not,
    } = conditions;
    let any = |list: &Option<Vec<String>>,
               there: Option<&String>,
               fits: &dyn Fn(&str, &str) -> bool| match list {
        None => true,
        Some(list) => there.is_some_and(|there| list.iter().any(|one| fits(one, there))),
    };
    any(methods, caller.method.as_ref(), &|one, there| {
        one.eq_ignore_ascii_case(there)
    }) && any(paths, caller.path.as_ref(), &|_, _| true)
        && paths.as_ref().is_none_or(|patterns| {
            let readings = readings(
                caller
                    .path
                    .as_ref()
                    .map_or(&b""[..], |path| path.as_bytes()),
            );
            let fits =
                |reading: &Vec<Vec<u8>>| patterns.iter().any(|pattern| path_fits(pattern, reading));
            if every {
                readings.iter().all(fits)
            } else {
                readings.iter().any(fits)
            }
        })
        && any(hosts, caller.host.as_ref(), &host_fits)
        && any(ips, caller.ip.as_ref(), &in_network)
        && headers.iter().all(|(name, values)| {
            let mut there = caller
                .headers
                .iter()
                .filter(|(known, _)| known.eq_ignore_ascii_case(name));
            match values {
                None => there.next().is_some(),
                Some(values) => there.any(|(_, value)| values.contains(value)),
            }
        })
        && attributes
            .iter()
            .all(|(name, values)| value(caller, name).is_some_and(|there| values.contains(&there)))
        && !not.as_ref().is_some_and(|not| holds(not, caller, !every))
}

/// The key of a request: for each attribute the words that identify its value; and whether an
/// attribute is missing, so that a substitute is counted.
pub(crate) fn key(
    names: &[&str],
    missing: Missing,
    caller: &Caller,
) -> Option<(Vec<Vec<Vec<u8>>>, bool)> {
    let mut lacks = false;
    let words = |name: &str| -> Option<Vec<Vec<u8>>> {
        Some(match name {
            "ip" => {
                vec![client(caller.ip.as_ref()?)]
            }
            "path" => path(caller.path.as_ref()?.as_bytes()),
            "endpoint" => {
                let mut words = path(caller.path.as_ref()?.as_bytes());
                words.insert(
                    0,
                    caller
                        .method
                        .clone()
                        .unwrap_or_default()
                        .to_uppercase()
                        .into_bytes(),
                );
                words
            }
            "method" => vec![caller.method.as_ref()?.to_uppercase().into_bytes()],
            "host" => vec![host(caller.host.as_ref()?).into_bytes()],
            other => vec![value(caller, other)?.into_bytes()],
        })
    };
    let mut key = Vec::new();
    for name in names {
        let Some(words) = words(name) else {
            let replacement = match missing {
                Missing::Skip => return None,
                Missing::Shared => b"shared".to_vec(),
                Missing::Address | Missing::Deny => caller
                    .ip
                    .as_ref()
                    .map_or(b"unknown".to_vec(), |ip| client(ip)),
            };
            lacks = true;
            // No real value has two words of which the first is empty.
            key.push(vec![Vec::new(), replacement]);
            continue;
        };
        key.push(words);
    }
    Some((key, lacks))
}

/// The prefix that identifies a client.
fn client(address: &str) -> Vec<u8> {
    let bits = bits(address);
    if bits.len() == 128 {
        bits[..56].to_owned()
    } else {
        bits
    }
    .into_bytes()
}

//! Parses one hop of a forwarding header: a node identifier as in RFC 7239.

use super::Forwarding;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a hop of this header names. `None` for `unknown`, `_hidden` and anything
/// malformed.
pub(super) fn address(header: &Forwarding, hop: &[u8]) -> Option<IpAddr> {
    match header {
        Forwarding::Forwarded => node(&forwarded_for(hop)?),
        Forwarding::XForwardedFor | Forwarding::Header(_) => node(hop.trim_ascii()),
    }
}

/// `1.2.3.4`, `1.2.3.4:55`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:55`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, port) = rest.split_once(']')?;
        let ip = ip.parse::<Ipv6Addr>().ok()?;
        return (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(ip.into());
    }
    // IPv6 without brackets has no port: its last group would be taken for one.
    text.parse().ok().or_else(|| {
        let (ip, port) = text.split_once(':')?;
        let ip = ip.parse::<Ipv4Addr>().ok()?;
        is_port(port).then_some(ip.into())
    })
}

/// A port number, or an obfuscated port of RFC 7239, `_p7`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => {
            !hidden.is_empty()
                && hidden
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// The value of `for` in `for="[2001:db8::1]:4711";proto=https;by=10.0.0.1`.
///
/// Proxies do not always quote a value that contains a colon or a bracket, and some put spaces
/// after semicolons: both are read. An element without `for`, with two of them, or with malformed
/// pairs has no value.
fn forwarded_for(element: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut found = None;
    let mut rest = element.trim_ascii();
    while !rest.is_empty() {
        // Pairs may be empty.
        if let Some(after) = rest.strip_prefix(b";") {
            rest = after.trim_ascii_start();
            continue;
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let (value, after) = match value.strip_prefix(b"\"") {
            Some(quoted) => unquote(quoted)?,
            None => plain(value)?,
        };
        rest = after.trim_ascii_start();
        if !is_token(name) || !(rest.is_empty() || rest.starts_with(b";")) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    found
}

/// An unquoted value, and the text after it.
fn plain(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let end = text
        .iter()
        .position(|byte| b"; \t".contains(byte))
        .unwrap_or(text.len());
    let (value, after) = text.split_at(end);
    let good = !value.is_empty() && !value.iter().any(|byte| b"\",\\".contains(byte));
    good.then_some((Cow::Borrowed(value), after))
}

/// A quoted value whose opening quote was removed already, and the text after it.
fn unquote(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let special = text.iter().position(|byte| b"\"\\".contains(byte))?;
    if text[special] == b'"' {
        return Some((Cow::Borrowed(&text[..special]), &text[special + 1..]));
    }
    let mut value = text[..special].to_vec();
    let mut bytes = text[special..].iter();
    loop {
        match bytes.next()? {
            b'"' => return Some((Cow::Owned(value), bytes.as_slice())),
            b'\\' => value.push(*bytes.next()?),
            byte => value.push(*byte),
        }
    }
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

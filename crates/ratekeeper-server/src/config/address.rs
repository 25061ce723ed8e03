//! Hosts and ports in URLs.

use std::net::Ipv6Addr;

/// The host, without the brackets of an IPv6 address, and the port if there is one.
pub(super) fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let Some(rest) = authority.strip_prefix('[') else {
        return Some(match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        });
    };
    let (address, port) = rest.split_once(']')?;
    address.parse::<Ipv6Addr>().ok()?;
    match port {
        "" => Some((address, None)),
        port => Some((address, Some(port.strip_prefix(':')?))),
    }
}

/// A port: a number from 1 to 65535.
pub(super) fn port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port > 0)
}

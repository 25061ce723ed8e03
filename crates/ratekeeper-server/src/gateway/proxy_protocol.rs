//! The PROXY protocol, versions 1 and 2: the client address that a trusted proxy announces. A pure
//! function of the bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest accepted head: version 2, with the data after the addresses.
pub(super) const MAX_BYTES: usize = 16 + 1024;

/// The longest head of version 1.
const MAX_V1_BYTES: usize = 107;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ParsedHeader {
    /// More bytes are needed.
    Partial,
    /// A head of this length, with the client's address, or `None` for a connection of the proxy
    /// itself.
    Complete(usize, Option<SocketAddr>),
    /// Not a valid head.
    Invalid,
}

/// Parses the head of either version at the start of a connection.
pub(super) fn parse(bytes: &[u8]) -> ParsedHeader {
    let starts = |known: &[u8]| bytes.iter().zip(known).all(|(byte, known)| byte == known);
    match bytes {
        _ if starts(SIGNATURE) => parse_v2(bytes),
        _ if starts(b"PROXY ") => parse_v1(bytes),
        _ => ParsedHeader::Invalid,
    }
}

fn parse_v1(bytes: &[u8]) -> ParsedHeader {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() < MAX_V1_BYTES {
            ParsedHeader::Partial
        } else {
            ParsedHeader::Invalid
        };
    };
    let line = bytes[..end]
        .strip_suffix(b"\r")
        .and_then(|line| std::str::from_utf8(line).ok());
    let Some(line) = line.filter(|_| end < MAX_V1_BYTES) else {
        return ParsedHeader::Invalid;
    };
    let mut fields = line.split(' ').skip(1);
    let family = fields.next();
    if family == Some("UNKNOWN") {
        return ParsedHeader::Complete(end + 1, None);
    }
    let (source, target) = (fields.next(), fields.next());
    let (source_port, target_port, more) = (fields.next(), fields.next(), fields.next());
    let address = |text: Option<&str>| match family? {
        "TCP4" => text?.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        "TCP6" => text?.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        _ => None,
    };
    let port = |text: Option<&str>| text?.parse::<u16>().ok();
    match (
        address(source),
        address(target),
        port(source_port),
        port(target_port),
        more,
    ) {
        (Some(source), Some(_), Some(port), Some(_), None) => {
            ParsedHeader::Complete(end + 1, Some((source, port).into()))
        }
        _ => ParsedHeader::Invalid,
    }
}

fn parse_v2(bytes: &[u8]) -> ParsedHeader {
    let Some((head, rest)) = bytes.split_at_checked(16) else {
        return ParsedHeader::Partial;
    };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let (version, command, family) = (head[12] >> 4, head[12] & 0xf, head[13]);
    if version != 2 || command > 1 || 16 + length > MAX_BYTES {
        return ParsedHeader::Invalid;
    }
    let Some(rest) = rest.get(..length) else {
        return ParsedHeader::Partial;
    };
    let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
    let source = match (command, family) {
        // LOCAL: the proxy's own connection, such as a health check.
        (0, _) => return ParsedHeader::Complete(16 + length, None),
        (_, 0x11) => rest
            .first_chunk::<4>()
            .map(|ip| IpAddr::from(*ip))
            .zip(port(8)),
        (_, 0x21) => rest
            .first_chunk::<16>()
            .map(|ip| IpAddr::from(*ip))
            .zip(port(32)),
        // Neither TCP over IPv4 nor over IPv6: there is no address to use.
        _ => return ParsedHeader::Complete(16 + length, None),
    };
    source.map_or(ParsedHeader::Invalid, |source| {
        ParsedHeader::Complete(16 + length, Some(source.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_parsed_in_parts_too() {
        let one = b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 80\r\nGET";
        let address = Some("203.0.113.7:4711".parse().unwrap());
        assert_eq!(parse(one), ParsedHeader::Complete(one.len() - 3, address));
        assert_eq!(
            parse(b"PROXY UNKNOWN whatever\r\n"),
            ParsedHeader::Complete(24, None)
        );
        let six = b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n";
        assert_eq!(
            parse(six),
            ParsedHeader::Complete(six.len(), Some("[2001:db8::7]:1".parse().unwrap()))
        );
        let mut two = SIGNATURE.to_vec();
        two.extend([
            0x21, 0x11, 0, 15, 203, 0, 113, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80, 4, 0, 0,
        ]);
        assert_eq!(parse(&two), ParsedHeader::Complete(31, address));
        for whole in [&one[..one.len() - 3], &two[..]] {
            for end in 0..whole.len() {
                assert_eq!(parse(&whole[..end]), ParsedHeader::Partial, "{end}");
            }
        }
        two[12] = 0x20;
        assert_eq!(parse(&two), ParsedHeader::Complete(31, None));
    }

    #[test]
    fn invalid_headers_are_rejected() {
        let mut short = SIGNATURE.to_vec();
        short.extend([0x21, 0x11, 0, 3, 1, 2, 3]);
        let mut other = SIGNATURE.to_vec();
        other.extend([0x31, 0x11, 0, 0]);
        for bad in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 99999\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
            &[b"PROXY TCP4 ", &[b'1'; 120][..]].concat(),
            &short,
            &other,
        ] {
            assert_eq!(parse(bad), ParsedHeader::Invalid, "{}", bad.escape_ascii());
        }
    }
}

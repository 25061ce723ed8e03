//! The walk against a naive reference: split everything into a Vec, then walk it.

use super::{ip, lines, trusting};
use proptest::prelude::*;
use std::net::IpAddr;

const TRUSTED: &[&str] = &["10.0.0.0/8", "fd00::/8"];

fn trusted(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] == 10,
        IpAddr::V6(v6) => v6.octets()[0] == 0xfd,
    }
}

/// Converts addresses by their text, where the code works on bits.
fn one_form(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    match (
        v6.to_ipv4_mapped(),
        u128::from(v6) >> 32 == 0x0064_ff9b << 64,
    ) {
        (Some(v4), _) => v4.into(),
        (None, true) => std::net::Ipv4Addr::from(u128::from(v6) as u32).into(),
        (None, false) => address,
    }
}

/// Parses an address by trying every form.
fn address(text: &str) -> Option<IpAddr> {
    let good_port = |port: &str| match port.strip_prefix('_') {
        Some(hidden) => {
            !hidden.is_empty()
                && hidden
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        }
        None => !port.is_empty() && port.len() <= 5 && port.chars().all(|c| c.is_ascii_digit()),
    };
    let bracketed = |text: &str| {
        text.strip_prefix('[')?
            .strip_suffix(']')?
            .parse()
            .ok()
            .map(IpAddr::V6)
    };
    if let Some(address) = text.parse().ok().or_else(|| bracketed(text)) {
        return Some(address);
    }
    let (host, port) = text.rsplit_once(':')?;
    let address = host
        .parse()
        .ok()
        .map(IpAddr::V4)
        .or_else(|| bracketed(host))?;
    good_port(port).then_some(address)
}

/// Every `name=value` of an element of `Forwarded`, if it is well-formed from end to end.
fn pairs(element: &str) -> Option<Vec<(String, String)>> {
    // Splits at the semicolons outside of quotes, from the left.
    let (mut parts, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in element.chars() {
        let escapes = quoted && !escaped && c == '\\';
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        match c {
            ';' if !quoted => parts.push(String::new()),
            c => parts.last_mut().unwrap().push(c),
        }
        escaped = escapes;
    }
    if quoted {
        return None;
    }
    let mut pairs = Vec::new();
    for part in parts
        .iter()
        .map(|part| part.trim_matches([' ', '\t']))
        .filter(|part| !part.is_empty())
    {
        let (name, value) = part.split_once('=')?;
        if name.is_empty()
            || !name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
        {
            return None;
        }
        let value = if value.len() >= 2 && value.starts_with('"') && value.ends_with('"') {
            let (mut text, mut escaped) = (String::new(), false);
            for c in value[1..value.len() - 1].chars() {
                match (escaped, c) {
                    (false, '\\') => escaped = true,
                    (false, '"') => return None,
                    _ => {
                        text.push(c);
                        escaped = false;
                    }
                }
            }
            if escaped {
                return None;
            }
            text
        } else if value.is_empty() || value.contains([' ', '\t', '"', ',', '\\']) {
            return None;
        } else {
            value.to_owned()
        };
        pairs.push((name.to_ascii_lowercase(), value));
    }
    Some(pairs)
}

/// All hops from the right, each with its address and its length in bytes.
fn places(header: &str, lines: &[String]) -> Vec<(Option<IpAddr>, usize)> {
    let mut places = Vec::new();
    for line in lines.iter().rev() {
        if header != "forwarded" {
            places.extend(
                line.split(',')
                    .rev()
                    .map(|place| (address(place.trim_matches([' ', '\t'])), place.len())),
            );
            continue;
        }
        let mut rest = Some(line.as_str());
        while let Some(line) = rest {
            // The last hop begins after the rightmost comma from which on the text is a well-formed
            // hop.
            let commas = line
                .match_indices(',')
                .map(|(at, _)| at + 1)
                .rev()
                .chain([0]);
            let Some((start, pairs)) = commas
                .filter_map(|at| Some((at, pairs(&line[at..])?)))
                .next()
            else {
                places.push((None, 0));
                break;
            };
            let mut of: Vec<_> = pairs.iter().filter(|(name, _)| name == "for").collect();
            let last = of.pop().filter(|_| of.is_empty());
            places.push((
                last.and_then(|(_, value)| address(value)),
                line.len() - start,
            ));
            rest = start.checked_sub(1).map(|comma| &line[..comma]);
        }
    }
    places
}

fn reference(header: &str, peer: IpAddr, lines: &[String]) -> IpAddr {
    let peer = one_form(peer);
    if !trusted(peer) {
        return peer;
    }
    let places = places(header, lines);
    let (mut last, mut bytes) = (peer, 0);
    for (index, (address, length)) in places.into_iter().enumerate().take(32) {
        bytes += length + usize::from(index > 0);
        match address.map(one_form) {
            Some(address) if bytes <= 2048 => last = address,
            _ => return last,
        }
        if !trusted(last) {
            return last;
        }
    }
    last
}

/// Header parts, malformed and well-formed, so that walks go far.
fn part() -> impl Strategy<Value = String> {
    let nasty = [
        "",
        " ",
        "\t",
        ",",
        ";",
        "=",
        "\"",
        "\\",
        "\\\"",
        "\\\\",
        "[",
        "]",
        ":",
        "%",
        "for",
        "For=",
        "for=\"",
        "unknown",
        "_hidden",
        "\u{e9}",
        "proto=https",
        "for=",
        "x=\"a,b\"",
        "x=\"a\\\",b\"",
        ":80",
        ":_p",
        "fe80::1%eth0",
        "010.0.0.1",
        "1.2.3",
        "::",
        "::ffff:",
        "1.1.1.1",
        "10.0.0.9",
        "; ",
        ", ",
        "by=\"\"",
        "host=\"for=1.1.1.1, \"",
    ];
    prop_oneof![
        4 => prop::sample::select(nasty.to_vec()).prop_map(str::to_owned),
        12 => (hop(), any::<bool>()).prop_map(|(hop, comma)| if comma { format!(", {hop}") } else { format!("{hop},") }),
        1 => (1..700_usize).prop_map(|spaces| " ".repeat(spaces)),
    ]
}

/// A hop as proxies write it.
fn hop() -> impl Strategy<Value = String> {
    let nodes = [
        "10.0.0.2",
        "10.0.0.3:80",
        "[fd00::1]:55",
        "fd00::2",
        "::ffff:10.0.0.4",
        "[::ffff:10.0.0.5]",
        "64:ff9b::a00:6",
        "10.0.0.7",
        "10.0.0.8",
        "203.0.113.7",
        "2001:db8::7",
        "[2001:db8::8]:4711",
        "unknown",
    ];
    let shapes = [
        "NODE",
        "NODE",
        "NODE",
        "for=NODE",
        "for=\"NODE\"",
        "FOR=NODE;proto=https",
        "host=\"a, \\\"b\";for=\"NODE\"",
        "for=NODE; by=_x",
        ";for=\"NODE\";",
    ];
    (
        prop::sample::select(nodes.to_vec()),
        prop::sample::select(shapes.to_vec()),
    )
        .prop_map(|(node, shape)| shape.replace("NODE", node))
}

/// Lines of many parts, most of which are hops of the given header.
fn header_lines(header: &'static str) -> impl Strategy<Value = Vec<String>> {
    let clean = hop().prop_map(move |hop| match (header, hop.contains('=')) {
        ("forwarded", false) => format!("for=\"{hop}\""),
        ("forwarded", true) => hop,
        (_, true) => "10.0.0.2".to_owned(),
        (_, false) => hop,
    });
    let tidy = prop::collection::vec(clean, 0..20).prop_map(|hops| hops.join(", "));
    let trusted = (0..40_usize).prop_map(move |hops| {
        let hop = if header == "forwarded" {
            "for=10.0.0.2"
        } else {
            "10.0.0.2"
        };
        vec![hop; hops.max(1)].join(",")
    });
    let messy = prop::collection::vec(part(), 0..16).prop_map(|parts| parts.concat());
    // HeaderValue does not trim either: whitespace at the ends of a line is part of it.
    prop::collection::vec(prop_oneof![2 => messy, 2 => tidy, 1 => trusted], 0..4)
}

fn peers() -> impl Strategy<Value = IpAddr> {
    let peers = [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "fd00::9",
        "198.51.100.9",
        "::ffff:198.51.100.9",
    ];
    prop::sample::select(peers.map(ip).to_vec())
}

fn cases() -> impl Strategy<Value = (&'static str, IpAddr, Vec<String>)> {
    prop::sample::select(vec!["x-forwarded-for", "forwarded", "x-real-ip"])
        .prop_flat_map(|header| (Just(header), peers(), header_lines(header)))
}

fn client(header: &str, peer: IpAddr, values: &[String]) -> IpAddr {
    let headers = lines(values.iter().map(|value| (header, value.as_bytes())));
    trusting(header, TRUSTED)
        .client(Some(peer), &headers)
        .ip()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn the_walk_is_that_of_the_reference((header, peer, values) in cases()) {
        prop_assert_eq!(client(header, peer, &values), reference(header, peer, &values));
    }

    /// Whatever a client writes, in a line of its own or in the one that the proxies append to, the
    /// client is the one that the proxies name.
    #[test]
    fn hops_left_of_the_client_have_no_effect(
        header in prop::sample::select(vec!["x-forwarded-for", "forwarded", "x-real-ip"]),
        parts in prop::collection::vec(prop::collection::vec(part(), 0..8), 1..3),
        node in prop::sample::select(vec!["203.0.113.7", "203.0.113.7:80", "[::ffff:203.0.113.7]:80"]),
        shape in prop::sample::select(vec!["for=NODE", "for=\"NODE\"", "host=\"a, \\\"b\";for=\"NODE\"; by=_x"]),
        proxies in 0..3_usize,
        in_line in any::<bool>(),
    ) {
        let shape = if header == "forwarded" { shape } else { "NODE" };
        let mut values: Vec<String> = parts.iter().map(|parts| parts.concat()).collect();
        for node in [node].into_iter().chain(["10.0.0.2", "[fd00::1]:55"].into_iter().take(proxies)) {
            let hop = shape.replace("NODE", node);
            match values.last_mut().filter(|_| in_line) {
                Some(last) => *last = format!("{last}, {hop}"),
                None => values.push(hop),
            }
        }
        prop_assert_eq!(client(header, ip("10.0.0.1"), &values), ip("203.0.113.7"), "{:?}", values);
    }
}

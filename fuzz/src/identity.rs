//! The fuzz target of `ratekeeper-tower`.

use http::{HeaderMap, HeaderValue};
use ratekeeper_tower::{Identity, identity::Forwarding};
use std::net::IpAddr;

/// Reads any header lines: the client is the peer or an address in them, an untrusted peer is
/// always the client, and text before what the proxies append is not read.
pub fn identity(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let header =
        Forwarding::named(["x-forwarded-for", "forwarded", "x-real-ip"][usize::from(choice % 3)])
            .unwrap();
    let mut lines: Vec<_> = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    let identity = Identity::direct()
        .trust_all(["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().unwrap()));
    let identity = identity.header(header.clone());
    let client = |peer: IpAddr, lines: &[HeaderValue]| {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header.name(), line.clone());
        }
        identity
            .client(Some(peer), &headers)
            .ip()
            .expect("there is a peer")
    };

    let untrusted = IpAddr::from([198, 51, 100, 9]);
    assert_eq!(client(untrusted, &lines), untrusted);

    let proxy = IpAddr::from([10, 0, 0, 1]);
    let found = client(proxy, &lines);
    assert_eq!(found, ratekeeper_policy::address::canonical(found));
    assert!(
        found == proxy
            || lines
                .iter()
                .any(|line| contains_address(found, line.as_bytes())),
        "{found} in {lines:?}"
    );

    // The nearest proxy appends its peer, to the last line or as a new line.
    let caller = IpAddr::from([203, 0, 113, 7]);
    let hop = match header {
        Forwarding::Forwarded => r#"for="203.0.113.7:80";host="a,b""#,
        _ => "203.0.113.7:80",
    };
    let own_line = [&lines[..], &[HeaderValue::from_static(hop)]].concat();
    assert_eq!(client(proxy, &own_line), caller, "{own_line:?}");
    if let Some(last) = lines.last_mut() {
        *last =
            HeaderValue::from_bytes(&[last.as_bytes(), b", ", hop.as_bytes()].concat()).unwrap();
        assert_eq!(client(proxy, &lines), caller, "{lines:?}");
    }
}

/// Whether the line contains this address, with or without a port.
fn contains_address(ip: IpAddr, line: &[u8]) -> bool {
    let text: String = line
        .iter()
        .filter(|byte| **byte != b'\\')
        .map(|byte| char::from(*byte))
        .collect();
    let is = |text: &str| {
        text.parse()
            .is_ok_and(|address| ratekeeper_policy::address::canonical(address) == ip)
    };
    let mut runs = text.split(|c: char| !(c.is_ascii_hexdigit() || c == ':' || c == '.'));
    runs.any(|run| is(run) || run.rsplit_once(':').is_some_and(|(host, _)| is(host)))
}

//! A table of attacks and of real proxy chains.

use super::{ip, lines, trusting};
use http::header::FORWARDED;
use ratekeeper_tower::{Identity, identity::Forwarding};

/// The default peer of the cases: a trusted proxy.
const PROXY: &str = "10.0.0.1";
const TRUSTED: &[&str] = &["10.0.0.0/8", "fd00::/8"];

/// Each case: description, header lines, client.
#[track_caller]
fn check(header: &str, cases: &[(&str, &[&str], &str)]) {
    let identity = trusting(header, TRUSTED);
    for (what, values, client) in cases {
        let headers = lines(values.iter().map(|value| (header, value.as_bytes())));
        assert_eq!(
            identity.client(Some(ip(PROXY)), &headers).ip(),
            Some(ip(client)),
            "{what}: {values:?}"
        );
    }
}

#[test]
fn x_forwarded_for_is_walked_from_the_right() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("one hop", &["203.0.113.7"], "203.0.113.7"),
        ("no header", &[], PROXY),
        (
            "the left-most is made up (tower_governor, echo, Litestar)",
            &["1.1.1.1, 203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "a trusted address is made up",
            &["10.9.9.9, 203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "proxies behind one another",
            &["1.1.1.1, 203.0.113.7, 10.0.0.3, 10.0.0.2"],
            "203.0.113.7",
        ),
        ("everybody is trusted", &["10.0.0.9, 10.0.0.3"], "10.0.0.9"),
        (
            "the proxy's own line is the last",
            &["1.1.1.1", "203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "many lines",
            &[
                "1.1.1.1, 2.2.2.2",
                "203.0.113.7, 10.0.0.4",
                "10.0.0.3",
                "10.0.0.2",
            ],
            "203.0.113.7",
        ),
        (
            "all trusted over many lines",
            &["10.0.0.5, 10.0.0.4", "10.0.0.3"],
            "10.0.0.5",
        ),
        (
            "spaces and tabs",
            &["1.1.1.1\t,\t 203.0.113.7 \t, \t10.0.0.2\t"],
            "203.0.113.7",
        ),
        (
            "no spaces",
            &["1.1.1.1,203.0.113.7,10.0.0.2"],
            "203.0.113.7",
        ),
        ("a port", &["1.1.1.1, 203.0.113.7:4711"], "203.0.113.7"),
        (
            "a trusted port",
            &["203.0.113.7:1, 10.0.0.2:65535"],
            "203.0.113.7",
        ),
        ("IPv6", &["1.1.1.1, 2001:db8::7"], "2001:db8::7"),
        ("IPv6 in brackets", &["[2001:db8::7]"], "2001:db8::7"),
        (
            "IPv6 with a port",
            &["1.1.1.1, [2001:db8::7]:55"],
            "2001:db8::7",
        ),
        (
            "trusted IPv6",
            &["2001:DB8::7, [fd00::1]:55"],
            "2001:db8::7",
        ),
        (
            "bare IPv6 has no port",
            &["2001:db8::7:4711"],
            "2001:db8::7:4711",
        ),
        ("mapped, by text", &["::ffff:203.0.113.7"], "203.0.113.7"),
        (
            "mapped, by bits",
            &["0:0:0:0:0:FFFF:CB00:7107"],
            "203.0.113.7",
        ),
        (
            "mapped, with a port",
            &["[::ffff:203.0.113.7]:80"],
            "203.0.113.7",
        ),
        ("NAT64", &["64:ff9b::203.0.113.7"], "203.0.113.7"),
        (
            "a trusted proxy, mapped",
            &["1.1.1.1, 203.0.113.7, ::ffff:10.0.0.2"],
            "203.0.113.7",
        ),
    ];
    check("x-forwarded-for", cases);
}

#[test]
fn a_malformed_address_ends_the_walk() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("unknown", &["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
        (
            "hidden (axum-client-ip #32)",
            &["203.0.113.7, _hidden, 10.0.0.2"],
            "10.0.0.2",
        ),
        ("unknown at the end", &["203.0.113.7, unknown"], PROXY),
        ("empty in between", &["203.0.113.7, , 10.0.0.2"], "10.0.0.2"),
        ("empty at the end", &["203.0.113.7,"], PROXY),
        ("an empty line at the end", &["203.0.113.7", ""], PROXY),
        ("an empty line before", &["", "203.0.113.7"], "203.0.113.7"),
        (
            "an empty line before the trusted",
            &["203.0.113.7", "", "10.0.0.2"],
            "10.0.0.2",
        ),
        ("nothing but commas", &[",,,,"], PROXY),
        ("a name", &["203.0.113.7, localhost"], PROXY),
        (
            "a zone",
            &["203.0.113.7, fe80::1%eth0, 10.0.0.2"],
            "10.0.0.2",
        ),
        (
            "a zone in brackets",
            &["203.0.113.7, [fe80::1%25eth0]:80"],
            PROXY,
        ),
        ("octal", &["203.0.113.7, 010.0.0.2"], PROXY),
        ("short", &["203.0.113.7, 10.2"], PROXY),
        ("a number", &["203.0.113.7, 167772162"], PROXY),
        ("hexadecimal", &["203.0.113.7, 0x0a.0.0.2"], PROXY),
        ("too large", &["203.0.113.7, 10.0.0.256"], PROXY),
        ("a network", &["203.0.113.7, 10.0.0.0/8"], PROXY),
        (
            "no port behind the colon",
            &["203.0.113.7, 10.0.0.2:"],
            PROXY,
        ),
        (
            "a port that is none",
            &["203.0.113.7, 10.0.0.2:http"],
            PROXY,
        ),
        ("a port too long", &["203.0.113.7, 10.0.0.2:000080"], PROXY),
        ("two ports", &["203.0.113.7, 10.0.0.2:80:80"], PROXY),
        ("an open bracket", &["203.0.113.7, [fd00::1"], PROXY),
        ("a bracket too many", &["203.0.113.7, [[fd00::1]]"], PROXY),
        (
            "text behind the bracket",
            &["203.0.113.7, [fd00::1]80"],
            PROXY,
        ),
        ("IPv4 in brackets", &["203.0.113.7, [10.0.0.2]:80"], PROXY),
        ("quotes", &["203.0.113.7, \"10.0.0.2\""], PROXY),
        (
            "two addresses in a place",
            &["203.0.113.7, 10.0.0.3 10.0.0.2"],
            PROXY,
        ),
        ("a semicolon", &["203.0.113.7; 10.0.0.2"], PROXY),
        ("of RFC 7239", &["for=203.0.113.7"], PROXY),
        (
            "digits that are not ASCII",
            &["203.0.113.7, 10.0.0.٢"],
            PROXY,
        ),
    ];
    check("x-forwarded-for", cases);
}

#[test]
fn non_text_bytes_end_the_walk() {
    let identity = trusting("x-forwarded-for", TRUSTED);
    for garbage in [
        &b"203.0.113.7, \xff\xfe"[..],
        b"203.0.113.7, 10.0.0.2\xa0",
        b"203.0.113.7, \xc3",
    ] {
        let headers = lines([("x-forwarded-for", garbage)]);
        assert_eq!(
            identity.client(Some(ip(PROXY)), &headers).ip(),
            Some(ip(PROXY)),
            "{garbage:?}"
        );
    }
    // Left of the client they do not matter.
    let headers = lines([("x-forwarded-for", &b"\xff\xfe, 203.0.113.7, 10.0.0.2"[..])]);
    assert_eq!(
        identity.client(Some(ip(PROXY)), &headers).ip(),
        Some(ip("203.0.113.7"))
    );
}

#[test]
fn forwarded_is_read_by_rfc_7239() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("one hop", &["for=203.0.113.7"], "203.0.113.7"),
        (
            "the left-most is made up",
            &["for=1.1.1.1, for=203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "pairs",
            &["for=203.0.113.7;proto=https;by=10.0.0.1, for=10.0.0.2"],
            "203.0.113.7",
        ),
        (
            "for is not first",
            &["proto=http;by=10.0.0.1;for=203.0.113.7"],
            "203.0.113.7",
        ),
        (
            "any case",
            &["FOR=203.0.113.7;Proto=http, For=10.0.0.2"],
            "203.0.113.7",
        ),
        (
            "quoted IPv6 with a port",
            &[r#"For="[2001:db8:cafe::17]:4711""#],
            "2001:db8:cafe::17",
        ),
        (
            "quoted IPv4 with a port",
            &[r#"for="203.0.113.7:47011""#],
            "203.0.113.7",
        ),
        (
            "a hidden port",
            &[r#"for="203.0.113.7:_p7""#],
            "203.0.113.7",
        ),
        (
            "not quoted although it should be",
            &["for=[2001:db8::7]:4711, for=10.0.0.2:80"],
            "2001:db8::7",
        ),
        (
            "IPv6 without brackets",
            &[r#"for="2001:db8::7""#],
            "2001:db8::7",
        ),
        (
            "mapped",
            &[r#"for=1.1.1.1, for="[::ffff:203.0.113.7]""#],
            "203.0.113.7",
        ),
        ("escapes", &[r#"for="\2\03.0.113.7""#], "203.0.113.7"),
        (
            "spaces behind semicolons",
            &["for=203.0.113.7; proto=https ;\tby=10.0.0.1"],
            "203.0.113.7",
        ),
        (
            "empty pairs",
            &[";for=203.0.113.7;;proto=https;"],
            "203.0.113.7",
        ),
        (
            "commas in quotes",
            &[r#"for=203.0.113.7;host="a, for=1.1.1.1, b", for=10.0.0.2"#],
            "203.0.113.7",
        ),
        (
            "escaped quotes",
            &[r#"for=203.0.113.7;host="a\", for=1.1.1.1, \\", for=10.0.0.2"#],
            "203.0.113.7",
        ),
        (
            "one escaped quote",
            &[r#"for=1.1.1.1, for=203.0.113.7;host="a\",b""#],
            "203.0.113.7",
        ),
        (
            "an extension",
            &[r#"secret=egah2CGj55fSJFs;for=203.0.113.7;x="";y="\"""#],
            "203.0.113.7",
        ),
        (
            "many lines",
            &[
                "for=1.1.1.1",
                "for=203.0.113.7, for=10.0.0.3",
                "for=10.0.0.2",
            ],
            "203.0.113.7",
        ),
        (
            "all trusted",
            &[r#"for="[fd00::1]:1", for=10.0.0.2"#],
            "fd00::1",
        ),
        // What a client wrote cannot swallow what the proxy appended.
        (
            "an open quote before",
            &[r#"for=", for=203.0.113.7"#],
            "203.0.113.7",
        ),
        (
            "an open quote, and the proxy quotes",
            &[r#"for=1.1.1.1;x=", for="[2001:db8::7]:4711""#],
            "2001:db8::7",
        ),
        (
            "an open quote and a backslash",
            &[r#"for="\, for=203.0.113.7"#],
            "203.0.113.7",
        ),
        (
            "an open quote on a line before",
            &[r#"for=1.1.1.1;x=""#, r#"for="203.0.113.7""#],
            "203.0.113.7",
        ),
        (
            "no address, and it ends the walk",
            &["for=203.0.113.7, for=unknown, for=10.0.0.2"],
            "10.0.0.2",
        ),
        (
            "hidden (axum-client-ip #32)",
            &["for=203.0.113.7, for=_hidden, for=10.0.0.2"],
            "10.0.0.2",
        ),
        (
            "quoted and hidden",
            &[r#"for=203.0.113.7, for="_SEVKISEK", for=10.0.0.2"#],
            "10.0.0.2",
        ),
        (
            "a place without for",
            &["for=203.0.113.7, proto=https;by=10.0.0.2"],
            PROXY,
        ),
        (
            "two for in a place",
            &["for=203.0.113.7, for=10.0.0.2;for=10.0.0.3"],
            PROXY,
        ),
        (
            "an empty place",
            &["for=203.0.113.7, , for=10.0.0.2"],
            "10.0.0.2",
        ),
        ("an empty value", &["for=203.0.113.7, for="], PROXY),
        ("empty in quotes", &[r#"for=203.0.113.7, for="""#], PROXY),
        (
            "spaces round the equals sign",
            &["for=203.0.113.7, for = 10.0.0.2"],
            PROXY,
        ),
        ("a bare address", &["for=203.0.113.7, 10.0.0.2"], PROXY),
        (
            "an open quote at the end",
            &[r#"for=203.0.113.7, for="10.0.0.2"#],
            PROXY,
        ),
        (
            "text behind the quotes",
            &[r#"for=203.0.113.7, for="10.0.0.2"x"#],
            PROXY,
        ),
        (
            "a quote in the middle",
            &[r#"for=203.0.113.7, for=10.0.0".2"#],
            PROXY,
        ),
        (
            "a quote in a name",
            &[r#"for=203.0.113.7, fo"r=10.0.0.2""#],
            PROXY,
        ),
        (
            "the last quote is escaped",
            &[r#"for=203.0.113.7, for="10.0.0.2\""#],
            PROXY,
        ),
        (
            "quotes do not go over lines",
            &[r#"for=203.0.113.7, for=10.0.0.2;x="a"#, r#"b""#],
            PROXY,
        ),
        (
            "something like for",
            &["for=203.0.113.7, fork=10.0.0.2, xfor=10.0.0.3"],
            PROXY,
        ),
    ];
    check("forwarded", cases);
}

#[test]
fn headers_of_one_address_give_the_same_client() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("one", &["203.0.113.7"], "203.0.113.7"),
        ("with a port", &["203.0.113.7:80"], "203.0.113.7"),
        (
            "the client sent one too, and the proxy appended",
            &["1.1.1.1", "203.0.113.7"],
            "203.0.113.7",
        ),
        ("joined", &["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
        ("of RFC 7239", &["for=203.0.113.7"], PROXY),
        ("none", &[], PROXY),
    ];
    for header in [
        "x-real-ip",
        "cf-connecting-ip",
        "true-client-ip",
        "fastly-client-ip",
    ] {
        check(header, cases);
    }
}

#[test]
fn real_chains() {
    // (description, the header that is read, trusted networks, the peer, all headers, the client)
    type Chain<'a> = (
        &'a str,
        &'a str,
        &'a [&'a str],
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a str,
    );
    let cloudflare = [
        "173.245.48.0/20",
        "162.158.0.0/15",
        "172.64.0.0/13",
        "2400:cb00::/32",
    ];
    let fastly = ["23.235.32.0/20", "151.101.0.0/16", "2a04:4e40::/32"];
    let chains: &[Chain] = &[
        (
            "Cloudflare, by X-Forwarded-For",
            "x-forwarded-for",
            &cloudflare,
            "162.158.90.3",
            &[
                ("x-forwarded-for", "1.1.1.1,203.0.113.7"),
                ("cf-connecting-ip", "203.0.113.7"),
            ],
            "203.0.113.7",
        ),
        (
            "Cloudflare, by its own header",
            "cf-connecting-ip",
            &cloudflare,
            "2400:cb00:31::9",
            &[
                ("cf-connecting-ip", "2001:db8::7"),
                ("x-forwarded-for", "1.1.1.1,2001:db8::7"),
            ],
            "2001:db8::7",
        ),
        (
            "round Cloudflare, straight to the origin",
            "cf-connecting-ip",
            &cloudflare,
            "198.51.100.9",
            &[
                ("cf-connecting-ip", "203.0.113.7"),
                ("x-forwarded-for", "203.0.113.7"),
            ],
            "198.51.100.9",
        ),
        (
            "Cloudflare, then nginx here",
            "x-forwarded-for",
            &["173.245.48.0/20", "162.158.0.0/15", "127.0.0.0/8"],
            "127.0.0.1",
            &[
                ("x-forwarded-for", "1.1.1.1,203.0.113.7, 162.158.90.3"),
                ("x-real-ip", "162.158.90.3"),
            ],
            "203.0.113.7",
        ),
        (
            "AWS ALB appends",
            "x-forwarded-for",
            &["172.31.0.0/16"],
            "172.31.4.2",
            &[
                ("x-forwarded-for", "1.1.1.1, 203.0.113.7"),
                ("x-forwarded-port", "443"),
            ],
            "203.0.113.7",
        ),
        (
            "AWS ALB that keeps the client's port",
            "x-forwarded-for",
            &["172.31.0.0/16"],
            "172.31.4.2",
            &[("x-forwarded-for", "[2001:db8::7]:51234")],
            "2001:db8::7",
        ),
        (
            "CloudFront before an ALB",
            "x-forwarded-for",
            &["172.31.0.0/16", "130.176.0.0/16"],
            "172.31.4.2",
            &[("x-forwarded-for", "1.1.1.1, 203.0.113.7, 130.176.10.2")],
            "203.0.113.7",
        ),
        (
            "nginx, $proxy_add_x_forwarded_for",
            "x-forwarded-for",
            &["127.0.0.1/32"],
            "127.0.0.1",
            &[("x-forwarded-for", "_hidden, unknown, 203.0.113.7")],
            "203.0.113.7",
        ),
        (
            "nginx, X-Real-IP, on a socket of both families",
            "x-real-ip",
            &["127.0.0.1/32"],
            "::ffff:127.0.0.1",
            &[("x-real-ip", "203.0.113.7"), ("x-forwarded-for", "1.1.1.1")],
            "203.0.113.7",
        ),
        (
            "nginx on a unix socket behind nginx",
            "x-forwarded-for",
            &["127.0.0.1/32"],
            "127.0.0.1",
            &[("x-forwarded-for", "203.0.113.7, unix:")],
            "127.0.0.1",
        ),
        (
            "Fastly, shielded",
            "x-forwarded-for",
            &fastly,
            "151.101.1.6",
            &[
                ("x-forwarded-for", "1.1.1.1, 203.0.113.7, 23.235.40.1"),
                ("fastly-client-ip", "1.1.1.1"),
            ],
            "203.0.113.7",
        ),
        (
            "Akamai, True-Client-IP",
            "true-client-ip",
            &["23.32.0.0/11"],
            "23.40.1.2",
            &[
                ("true-client-ip", "203.0.113.7"),
                ("x-forwarded-for", "1.1.1.1, 203.0.113.7, 23.50.3.4"),
            ],
            "203.0.113.7",
        ),
        (
            "Akamai, edge and parent",
            "x-forwarded-for",
            &["23.32.0.0/11"],
            "23.40.1.2",
            &[("x-forwarded-for", "1.1.1.1, 203.0.113.7, 23.50.3.4")],
            "203.0.113.7",
        ),
        (
            "GCP: client, load balancer",
            "x-forwarded-for",
            &["35.191.0.0/16", "130.211.0.0/22", "34.120.5.6/32"],
            "35.191.8.1",
            &[("x-forwarded-for", "1.1.1.1,203.0.113.7,34.120.5.6")],
            "203.0.113.7",
        ),
        (
            "GCP, the load balancer's own address forgotten: one client for all, none made up",
            "x-forwarded-for",
            &["35.191.0.0/16", "130.211.0.0/22"],
            "35.191.8.1",
            &[("x-forwarded-for", "1.1.1.1,203.0.113.7,34.120.5.6")],
            "34.120.5.6",
        ),
        (
            "HAProxy, option forwardfor: a line of its own",
            "x-forwarded-for",
            &["10.0.0.0/8"],
            "10.0.0.1",
            &[
                ("x-forwarded-for", "1.1.1.1"),
                ("host", "a"),
                ("x-forwarded-for", "203.0.113.7"),
            ],
            "203.0.113.7",
        ),
        (
            "HAProxy, option forwarded",
            "forwarded",
            &["10.0.0.0/8"],
            "10.0.0.1",
            &[
                ("forwarded", "for=1.1.1.1"),
                (
                    "forwarded",
                    r#"proto=http;for="[2001:db8::7]:4711";host="a.example:80""#,
                ),
                ("x-forwarded-for", "1.1.1.1"),
            ],
            "2001:db8::7",
        ),
        (
            "the header that the proxy does not write is not read",
            "forwarded",
            &["10.0.0.0/8"],
            "10.0.0.1",
            &[
                ("x-forwarded-for", "203.0.113.7"),
                ("x-real-ip", "203.0.113.7"),
            ],
            "10.0.0.1",
        ),
    ];
    for (who, header, trusted, peer, headers, client) in chains {
        let headers = lines(
            headers
                .iter()
                .map(|(name, value)| (*name, value.as_bytes())),
        );
        assert_eq!(
            trusting(header, trusted)
                .client(Some(ip(peer)), &headers)
                .ip(),
            Some(ip(client)),
            "{who}"
        );
    }
}

#[test]
fn headers_of_untrusted_peers_are_ignored() {
    let headers = lines([
        ("x-forwarded-for", &b"203.0.113.7"[..]),
        ("forwarded", b"for=203.0.113.7"),
        ("x-real-ip", b"203.0.113.7"),
        ("cf-connecting-ip", b"203.0.113.7"),
    ]);
    for header in [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "cf-connecting-ip",
    ] {
        for identity in [trusting(header, TRUSTED), trusting(header, &[])] {
            for untrusted in ["198.51.100.9", "2001:db8::9", "::1", "127.0.0.1"] {
                assert_eq!(
                    identity.client(Some(ip(untrusted)), &headers).ip(),
                    Some(ip(untrusted)),
                    "{header}"
                );
            }
        }
    }
    let direct = Identity::direct();
    assert_eq!(
        direct.client(Some(ip(PROXY)), &headers).ip(),
        Some(ip(PROXY))
    );
}

#[test]
fn without_a_peer_no_header_is_believed() {
    let headers = lines([("x-forwarded-for", &b"203.0.113.7"[..])]);
    assert_eq!(
        trusting("x-forwarded-for", &["0.0.0.0/0", "::/0"])
            .client(None, &headers)
            .ip(),
        None
    );
}

/// express-rate-limit CVE-2026-30827: all of IPv4 as one client, and its opposite, one client as
/// two.
#[test]
fn ipv4_in_ipv6_is_ipv4() {
    let none = lines([]);
    let client = |peer: &str| {
        Identity::direct()
            .client(Some(ip(peer)), &none)
            .ip()
            .unwrap()
    };
    assert_eq!(client("::ffff:1.2.3.4"), ip("1.2.3.4"));
    assert_eq!(client("64:ff9b::102:304"), ip("1.2.3.4"));
    assert_ne!(client("::ffff:1.2.3.4"), client("::ffff:1.2.3.5"));
    // A whole IPv6 address: it is cut to a prefix only when it is counted.
    assert_eq!(client("2001:db8:1:2:3:4:5:6"), ip("2001:db8:1:2:3:4:5:6"));
}

#[test]
fn a_network_is_trusted_in_either_form() {
    let headers = lines([("x-forwarded-for", &b"203.0.113.7"[..])]);
    for network in ["10.0.0.0/8", "::ffff:10.0.0.0/104", "64:ff9b::10.0.0.0/104"] {
        for peer in ["10.0.0.1", "::ffff:10.0.0.1"] {
            let client = trusting("x-forwarded-for", &[network]).client(Some(ip(peer)), &headers);
            assert_eq!(client.ip(), Some(ip("203.0.113.7")), "{peer} by {network}");
        }
    }
}

#[test]
fn at_most_32_hops_are_read() {
    let identity = trusting("x-forwarded-for", TRUSTED);
    let client = |hops: u8, in_lines: bool| {
        let mut values = vec!["203.0.113.7".to_owned()];
        values.extend((1..hops).rev().map(|hop| format!("10.0.1.{hop}")));
        let values = if in_lines {
            values
        } else {
            vec![values.join(", ")]
        };
        let headers = lines(
            values
                .iter()
                .map(|value| ("x-forwarded-for", value.as_bytes())),
        );
        identity.client(Some(ip(PROXY)), &headers).ip().unwrap()
    };
    for in_lines in [false, true] {
        assert_eq!(client(31, in_lines), ip("203.0.113.7"));
        assert_eq!(client(32, in_lines), ip("203.0.113.7"));
        assert_eq!(client(33, in_lines), ip("10.0.1.32"));
        assert_eq!(client(200, in_lines), ip("10.0.1.32"));
    }
}

#[test]
fn at_most_2_kib_are_read() {
    for (header, far, near) in [
        ("x-forwarded-for", "203.0.113.7", "10.0.0.2"),
        ("forwarded", "for=203.0.113.7", "for=10.0.0.2"),
    ] {
        let identity = trusting(header, TRUSTED);
        // Padded so that the far hop begins this many bytes before the end.
        let client = |bytes: usize, before: &str| {
            let padded = format!(
                "{before}{far}{:pad$},{near}",
                "",
                pad = bytes - far.len() - near.len() - 1
            );
            let one = lines([(header, padded.as_bytes())]);
            let (first, last) = padded.rsplit_once(',').unwrap();
            let two = lines([(header, first.as_bytes()), (header, last.as_bytes())]);
            let [one, two] =
                [one, two].map(|headers| identity.client(Some(ip(PROXY)), &headers).ip().unwrap());
            assert_eq!(one, two, "a line's end counts like a comma");
            one
        };
        for before in ["", ",", "1.1.1.1,"] {
            assert_eq!(client(2047, before), ip("203.0.113.7"), "{header} {before}");
            assert_eq!(client(2048, before), ip("203.0.113.7"), "{header} {before}");
            assert_eq!(client(2049, before), ip("10.0.0.2"), "{header} {before}");
            assert_eq!(client(60_000, before), ip("10.0.0.2"), "{header} {before}");
        }
        // Text of any length left of the client does not matter.
        let long = format!("{},{far},{near}", "x".repeat(60_000));
        let headers = lines([(header, long.as_bytes())]);
        assert_eq!(
            identity.client(Some(ip(PROXY)), &headers).ip(),
            Some(ip("203.0.113.7"))
        );
        // And one hop of any length is not an address.
        let headers = lines([(header, &[b'1'; 60_000][..])]);
        assert_eq!(
            identity.client(Some(ip(PROXY)), &headers).ip(),
            Some(ip(PROXY))
        );
    }
}

#[test]
fn headers_have_names_in_any_case() {
    assert_eq!(
        Forwarding::named("X-FORWARDED-FOR").unwrap(),
        Forwarding::XForwardedFor
    );
    assert_eq!(
        Forwarding::named("Forwarded").unwrap(),
        Forwarding::Forwarded
    );
    assert_eq!(
        Forwarding::named("CF-Connecting-IP").unwrap().name(),
        "cf-connecting-ip"
    );
    assert_eq!(Forwarding::default().name(), "x-forwarded-for");
    for name in ["", "x forwarded for", "x-real-ip:", "ü"] {
        assert!(Forwarding::named(name).is_err(), "{name}");
    }
}

#[test]
fn forwarded_is_itself_however_it_was_named() {
    let identity = Identity::direct()
        .trust("10.0.0.0/8".parse().unwrap())
        .header(Forwarding::Header(FORWARDED));
    let headers = lines([("forwarded", &b"for=203.0.113.7"[..])]);
    assert_eq!(
        identity.client(Some(ip(PROXY)), &headers).ip(),
        Some(ip("203.0.113.7"))
    );
}

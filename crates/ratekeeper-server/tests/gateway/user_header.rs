//! The user header: accepted and forwarded from its configured peers, removed from all other
//! connections.

use crate::service::echo;
use crate::{gateway, support::Connection};

/// (peers that may set the header, more of `[gateway]`, bytes before the request, whether the
/// header is accepted)
const TABLE: [(&str, &str, &str, bool); 6] = [
    ("[\"127.0.0.0/8\"]", "", "", true),
    ("[\"::ffff:127.0.0.0/104\"]", "", "", true),
    ("[\"10.0.0.0/8\"]", "", "", false),
    ("[\"unix\"]", "", "", false),
    // With the PROXY protocol the peer is the client of the load balancer, which forwards bytes and
    // sets no header.
    (
        "[\"127.0.0.0/8\"]",
        "proxy_protocol = true\n",
        "PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n",
        false,
    ),
    (
        "[\"203.0.113.0/24\"]",
        "proxy_protocol = true\n",
        "PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n",
        true,
    ),
];

fn config(from: &str, gateway: &str) -> String {
    format!(
        "{gateway}[identity]\ntrusted_proxies = \"127.0.0.0/8\"\nuser = {{ header = \"x-user-id\", from = {from} }}\n\
         [[policy]]\nname = \"user\"\nkey = \"user\"\nmissing = \"skip\"\nlimit = \"1/min\"\n"
    )
}

/// What the upstream got of two requests, and their statuses.
fn ask(connection: &mut Connection, before: &str, headers: &str) -> (String, Vec<u16>) {
    let request =
        format!("GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 127.0.0.1\r\n{headers}\r\n\r\n");
    connection.write(&format!("{before}{request}"));
    let first = connection.answer();
    connection.write(&request);
    let second = connection.answer();
    (first.body.clone(), vec![first.status(), second.status()])
}

#[test]
fn the_gateway_strips_the_user_header_of_connections_that_may_not_set_it() {
    for (from, more, before, is_believed) in TABLE {
        let (upstream, _requests) = echo();
        let server = gateway(&[upstream], &config(from, more));
        let (seen, statuses) = ask(
            &mut server.connect(),
            before,
            "X-User-Id: ann\r\nX-Other: 1",
        );
        assert_eq!(
            seen.contains("x-user-id: ann"),
            is_believed,
            "from {from}: {seen}"
        );
        assert!(seen.contains("x-other: 1"), "{seen}");
        assert_eq!(
            statuses,
            [200, if is_believed { 429 } else { 200 }],
            "from {from}"
        );
    }
}

/// Whether class and start headers count depends on `trusted_proxies`.
#[test]
fn class_and_start_headers_count_from_trusted_proxies_only() {
    for (trusted, is_believed) in [("127.0.0.0/8", true), ("10.0.0.0/8", false)] {
        let (upstream, _requests) = echo();
        let more = format!(
            "[identity]\ntrusted_proxies = \"{trusted}\"\n[shed]\nheader = \"x-class\"\nstart_header = \"x-start\"\n\
             patience = \"1h\"\n[[policy]]\nname = \"critical\"\nmatch = {{ attribute = {{ class = \"critical\" }} }}\n\
             limit = \"1/min\"\n"
        );
        let server = gateway(&[upstream], &more);
        let (_, statuses) = ask(&mut server.connect(), "", "X-Class: critical");
        assert_eq!(
            statuses,
            [200, if is_believed { 429 } else { 200 }],
            "{trusted}"
        );
        let (_, statuses) = ask(&mut server.connect(), "", "X-Start: t=1.0");
        let status = if is_believed { 504 } else { 200 };
        assert_eq!(statuses, [status, status], "{trusted}");
    }
}

/// Services that read headers as CGI does take `X_User_Id` for `X-User-Id`.
#[test]
fn no_other_spelling_and_no_trailer_reaches_the_upstream() {
    for from in ["[\"127.0.0.0/8\"]", "[\"10.0.0.0/8\"]"] {
        let (upstream, _requests) = echo();
        let server = gateway(&[upstream], &config(from, ""));
        for spelling in ["X_User_Id", "x-user_id", "X_USER-ID"] {
            let (seen, statuses) = ask(&mut server.connect(), "", &format!("{spelling}: ann"));
            assert!(!seen.contains("ann"), "{spelling}: {seen}");
            assert_eq!(statuses, [200, 200], "{spelling}");
        }
        let mut connection = server.connect();
        connection.write(
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-User-Id, X-Sum\r\n\r\n\
             3\r\nabc\r\n0\r\nX-User-Id: ann\r\nX-Sum: 7\r\n\r\n",
        );
        let seen = connection.answer().body.to_lowercase();
        assert!(seen.contains("x-sum: 7") && !seen.contains("ann"), "{seen}");
    }
}

//! The PROXY protocol, accepted from trusted proxies only.

use crate::gateway;
use crate::service::echo;

#[test]
fn a_trusted_proxy_announces_the_client() {
    let (upstream, _requests) = echo();
    let trusted = "proxy_protocol = true\n[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let server = gateway(&[upstream], trusted);
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
    let two = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &[203, 0, 113, 8, 127, 0, 0, 1, 0x12, 0x67, 0, 80],
    ]
    .concat();
    for (head, client) in [
        (
            &b"PROXY TCP4 203.0.113.7 127.0.0.1 4711 80\r\n"[..],
            "203.0.113.7",
        ),
        (&two, "203.0.113.8"),
    ] {
        let mut connection = server.connect();
        connection.write_bytes(&[head, request].concat());
        let seen = connection.answer().body;
        // The peer is not a trusted proxy, so its forwarding headers are not forwarded.
        assert!(
            seen.contains(&format!("x-forwarded-for: {client}\r\n")) && !seen.contains("1.2.3.4"),
            "{seen}"
        );
    }
    // A trusted proxy that does not send the header is not served.
    let mut connection = server.connect();
    connection.write_bytes(request);
    connection.closed();
}

#[test]
fn only_trusted_proxies_may_use_the_proxy_protocol() {
    let (upstream, requests) = echo();
    for more in [
        "proxy_protocol = true\n",
        "[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n",
    ] {
        let server = gateway(&[upstream], more);
        let mut connection = server.connect();
        connection
            .write("PROXY TCP4 203.0.113.7 127.0.0.1 4711 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(connection.rest().starts_with("HTTP/1.1 400 "));
        assert_eq!(server.request("GET", "/", "").status(), 200);
        assert!(
            requests
                .recv()
                .unwrap()
                .contains("x-forwarded-for: 127.0.0.1\r\n")
        );
    }
}

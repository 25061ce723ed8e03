//! Web pages of other origins cannot use up limits.

use crate::support::{Server, config_file, ratekeeper};

const HEADERS: [&str; 5] = [
    "Origin: http://evil.example\r\n",
    "Origin: null\r\n",
    "Sec-Fetch-Site: cross-site\r\n",
    "Sec-Fetch-Site: same-site\r\n",
    "Origin: http://127.0.0.1:1\r\nSec-Fetch-Site: same-site\r\n",
];

const CALLS: [(&str, &str); 6] = [
    ("/v1/check", r#"{"subject":{"ip":"192.0.2.1"}}"#),
    ("/v1/throttle", r#"{"key":"a","limit":"1/d"}"#),
    ("/v1/reserve", r#"{"subject":{"ip":"192.0.2.1"}}"#),
    ("/v1/settle", "{}"),
    ("/v1/cancel", "{}"),
    (
        "/json",
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}"#,
    ),
];

#[test]
fn cross_site_requests_are_rejected_everywhere() {
    let mut command = ratekeeper();
    command.arg("serve").arg("--config").arg(config_file(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"ip\"\nkey = \"ip\"\nlimit = \"1/d\"\n",
    ));
    let server = Server::run(command);
    let ask = |path: &str, host: &str, headers: &str, body: &str| {
        let mut connection = server.connect();
        let length = body.len();
        connection.write(&format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        connection.answer()
    };
    let own = server.address.to_string();
    for (path, body) in CALLS {
        for headers in HEADERS {
            let detail = ask(path, &own, headers, body).problem(403, "forbidden");
            assert!(
                detail.contains("cross-origin"),
                "{path} {headers}: {detail}"
            );
        }
        // A foreign name that resolves to this server is not an allowed origin.
        let rebound = ask(
            path,
            "evil.example:8080",
            "Origin: http://evil.example:8080\r\n",
            body,
        );
        assert!(
            rebound
                .problem(403, "forbidden")
                .contains("for a loopback listener"),
            "{path}"
        );
    }
    // Nothing was counted, and programs may send requests under any name.
    let allowed = ask("/v1/check", "ratekeeper.internal", "", CALLS[0].1);
    assert_eq!(
        (allowed.status(), &allowed.json()["allowed"]),
        (200, &true.into()),
        "{allowed:?}"
    );
    let own_page = format!("Origin: http://{own}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(
        ask("/v1/throttle", &own, &own_page, CALLS[1].1).status(),
        200
    );
}

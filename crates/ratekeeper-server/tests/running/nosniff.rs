//! `X-Content-Type-Options: nosniff` on every response of the server's own.

use crate::support::{Answer, Connection, Server, config_file, ratekeeper, service};

fn nosniff(answer: &Answer) -> Option<&str> {
    answer.header("x-content-type-options")
}

fn ask(connection: &mut Connection, method: &str, path: &str, body: &str) -> Answer {
    connection.send(method, path, body);
    connection.answer()
}

/// Success and errors, of routes, fallbacks and middleware, with text, JSON, pages and no body.
#[test]
fn every_response_of_the_api_and_the_admin_listener_has_it() {
    let server = Server::with_config(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"one\"\nlimit = \"1/d\"\n",
    );
    let check = r#"{"subject":{"ip":"203.0.113.7"}}"#;
    let api = [
        ("POST", "/v1/check", check, 200),
        ("POST", "/v1/check", check, 429),
        ("POST", "/v1/check", "{", 400),
        (
            "POST",
            "/v1/throttle",
            r#"{"key":"a","limit":"5/min"}"#,
            200,
        ),
        ("POST", "/v1/reserve", check, 429),
        ("POST", "/v1/settle", r#"{"id":"x"}"#, 400),
        ("POST", "/json", "{}", 400),
        ("GET", "/auth/traefik", "", 400),
        ("GET", "/livez", "", 200),
        ("GET", "/readyz", "", 200),
        ("GET", "/openapi.json", "", 200),
        ("GET", "/v1/check", "", 405),
        ("GET", "/not-there", "", 404),
    ];
    let admin = [
        ("GET", "/", "", 200),
        ("GET", "/assets/app.js", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/admin/status", "", 200),
        ("GET", "/admin/top?n=x", "", 400),
        ("POST", "/admin/explain", check, 200),
        ("POST", "/admin/ban", "{}", 400),
        ("POST", "/admin/playground", "{}", 400),
        ("POST", "/admin/reload", "{}", 200),
        ("PUT", "/metrics", "", 405),
        ("GET", "/livez", "", 200),
        ("GET", "/not-there", "", 404),
    ];
    for (address, table) in [(server.address, &api[..]), (server.admin, &admin)] {
        let mut connection = Server::connect_to(address);
        for (method, path, body, status) in table {
            let answer = ask(&mut connection, method, path, body);
            assert_eq!(
                (answer.status(), nosniff(&answer)),
                (*status, Some("nosniff")),
                "{method} {path}: {answer:?}"
            );
        }
    }
}

#[test]
fn the_gateways_own_responses_have_it_and_those_of_upstreams_are_unchanged() {
    let config = format!(
        "[gateway]\nupstreams = [\"http://{}\"]\nhosts = [\"localhost\"]\nmax_body = 10\n\
         [[policy]]\nname = \"limited\"\nmatch = {{ path = \"/limited\" }}\nlimit = \"0\"\n\
         [[policy]]\nname = \"rest\"\nlimit = \"unlimited\"\n",
        service()
    );
    let gateway = |config: &str| {
        let mut command = ratekeeper();
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
            .arg(config_file(config));
        Server::run(command)
    };
    let server = gateway(&config);
    let answer = server.request("GET", "/", "");
    assert_eq!(
        (answer.status(), nosniff(&answer)),
        (200, None),
        "{answer:?}"
    );
    for (path, body, status) in [
        ("/limited", "", 429),
        ("/a/../b", "", 400),
        ("/", "more than ten", 413),
    ] {
        let answer = server.request("POST", path, body);
        assert_eq!(
            (answer.status(), nosniff(&answer)),
            (status, Some("nosniff")),
            "{path}: {answer:?}"
        );
    }
    for (text, status) in [
        ("GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n", 421),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
            400,
        ),
        ("no request\r\n\r\n", 400),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        (
            "GET /limited HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n",
            429,
        ),
        (
            "GET /limited HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n",
            429,
        ),
    ] {
        let mut connection = server.connect();
        connection.write(text);
        let answer = connection.answer();
        assert_eq!(
            (answer.status(), nosniff(&answer)),
            (status, Some("nosniff")),
            "{text}: {answer:?}"
        );
    }
    let unreachable = gateway(
        "[gateway]\nupstreams = [\"http://127.0.0.1:1\"]\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n",
    );
    let answer = unreachable.request("GET", "/", "");
    assert_eq!(
        (answer.status(), nosniff(&answer)),
        (502, Some("nosniff")),
        "{answer:?}"
    );
}

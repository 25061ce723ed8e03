//! `[[gateway.route]]`: upstreams by host and path, changed by a reload. The upstreams are nginx.

use crate::support::{Server, config_file, eventually, failed_start, ratekeeper};
use crate::upstreams::Nginx;
use std::fs;
use std::path::Path;

const UNLIMITED: &str = "[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n";

fn proxy(file: &Path) -> Server {
    let mut command = ratekeeper();
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(file);
    Server::run(command)
}

/// The status and body of a request for this host and path.
fn get(server: &Server, host: &str, path: &str) -> (u16, String) {
    let mut connection = server.connect();
    connection.write(&format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    ));
    let answer = connection.answer();
    (answer.status(), answer.body)
}

#[test]
fn the_first_route_that_matches_host_and_path_gets_a_request() {
    let [api, both, web, rest] =
        ["api", "both", "web", "rest"].map(|name| Nginx::start(name, None));
    let file = config_file(&format!(
        "[gateway]\nupstreams = [\"http://{}\"]\n\
         [[gateway.route]]\nhosts = [\"shop.example.com\"]\npath = \"/api/**\"\nupstreams = [\"http://{}\"]\n\
         [[gateway.route]]\npath = \"/api/**\"\nupstreams = [\"http://{}\"]\n\
         [[gateway.route]]\nhosts = [\"*.example.com\"]\nupstreams = [\"http://{}\"]\n{UNLIMITED}",
        rest.at, both.at, api.at, web.at
    ));
    let server = proxy(&file);
    for (host, path, name) in [
        ("shop.example.com", "/api/v1?q=1", "both"),
        ("SHOP.example.com:8080", "/api", "both"),
        ("shop.example.com", "/apis", "web"),
        ("other.example.com", "/api/v1", "api"),
        ("other.example.com", "/%61pi/v1", "api"),
        ("example.org", "/api/", "api"),
        ("example.com", "/", "rest"),
        ("example.org", "/", "rest"),
    ] {
        let expected = (200, name.to_owned());
        assert_eq!(get(&server, host, path), expected, "{host}{path}");
    }
    // Over HTTP/2 the host is the authority.
    let url = format!("http://{}/api/v2", server.address);
    let output = crate::curl(&[
        "--http2-prior-knowledge",
        "-H",
        "Host: shop.example.com",
        &url,
    ]);
    assert_eq!(output, "both");
}

#[test]
fn a_request_without_a_route_is_not_found_and_not_counted() {
    let api = Nginx::start("api", None);
    let file = config_file(&format!(
        "[[gateway.route]]\npath = \"/api/**\"\nupstreams = [\"http://{}\"]\n\
         [[policy]]\nname = \"all\"\nlimit = \"2/d\"\n",
        api.at
    ));
    let server = proxy(&file);
    for _ in 0..3 {
        let answer = server.request("GET", "/other", "");
        assert_eq!(answer.status(), 404, "{answer:?}");
        assert!(answer.body.contains("no route"), "{answer:?}");
    }
    assert_eq!(server.request("GET", "/api", "").status(), 200);
    assert_eq!(server.request("GET", "/api", "").status(), 200);
    assert_eq!(server.request("GET", "/api", "").status(), 429);
}

#[test]
fn a_reload_changes_routes_and_keeps_the_upstreams_that_stay() {
    let [one, two] = ["one", "two"].map(|name| Nginx::start(name, None));
    let config = |route: &Nginx| {
        format!(
            "[gateway]\nupstreams = [\"http://{}\"]\n\
             [[gateway.route]]\npath = \"/moved\"\nupstreams = [\"http://{}\"]\n{UNLIMITED}",
            one.at, route.at
        )
    };
    let file = config_file(&config(&one));
    let server = proxy(&file);
    let answered = |at| {
        let name = "ratekeeper_upstream_requests_total";
        server.metric(&format!(
            "{name}{{upstream=\"http://{at}\",outcome=\"answered\"}}"
        ))
    };
    assert_eq!(get(&server, "a", "/moved").1, "one");
    assert_eq!(get(&server, "a", "/").1, "one");
    fs::write(&file, config(&two)).unwrap();
    eventually("the new route", || get(&server, "a", "/moved").1 == "two");
    assert_eq!(get(&server, "a", "/").1, "one");
    // It was there before, with its counters, and both are shown.
    assert!(answered(one.at) >= 3.0);
    assert!(answered(two.at) >= 1.0);
    // A reload that leaves no upstream is rejected.
    fs::write(&file, UNLIMITED).unwrap();
    let answer = server.admin("POST", "/admin/reload");
    assert_eq!(answer.status(), 422);
    assert!(answer.body.contains("no upstream"), "{answer:?}");
    assert_eq!(get(&server, "a", "/moved").1, "two");
}

#[test]
fn requests_go_on_while_routes_are_reloaded() {
    let [one, two] = ["one", "two"].map(|name| Nginx::start(name, None));
    let config = |at| format!("[gateway]\nupstreams = [\"http://{at}\"]\n{UNLIMITED}");
    let file = config_file(&config(one.at));
    let server = proxy(&file);
    let mut connection = server.connect();
    let mut seen = Vec::new();
    for round in 0..40 {
        let at = if round % 2 == 0 { two.at } else { one.at };
        fs::write(&file, config(at)).unwrap();
        assert_eq!(server.admin("POST", "/admin/reload").status(), 200);
        for _ in 0..5 {
            connection.send("GET", "/", "");
            let answer = connection.answer();
            assert_eq!(answer.status(), 200, "{answer:?}");
            seen.push(answer.body);
        }
        let expected = if round % 2 == 0 { "two" } else { "one" };
        assert_eq!(seen.last().map(String::as_str), Some(expected));
    }
}

#[test]
fn a_route_needs_upstreams_and_one_for_everything_comes_last() {
    let (code, error) = failed_start("[[gateway.route]]\npath = \"/api\"\nupstreams = []\n");
    assert_eq!(code, Some(2));
    assert!(
        error.contains("`upstreams` in [[gateway.route]] number 1 must name a service"),
        "{error}"
    );
    let file = config_file(&format!(
        "[[gateway.route]]\nupstreams = [\"http://127.0.0.1:1\"]\n\
         [[gateway.route]]\npath = \"/api\"\nupstreams = [\"http://127.0.0.1:2\"]\n{UNLIMITED}"
    ));
    let output = ratekeeper()
        .args(["config", "check"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let warnings = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        warnings
            .contains("number 1 has neither hosts nor a path, so the 1 after it get no requests"),
        "{warnings}"
    );
    let shown = ratekeeper()
        .args(["config", "show"])
        .arg(&file)
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("[[gateway.route]]\n"), "{shown}");
    assert!(
        shown.contains("upstreams = [\"http://127.0.0.1:2\"] # "),
        "{shown}"
    );
}

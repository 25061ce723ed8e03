//! A real Envoy that asks `/auth` before it passes a request on, with the filter that docs/deploy ships.

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use support::envoy::{Envoy, cluster, program};
use support::{Server, eventually, service};
use tollgate_testkit::free_port;

const CONFIG: &str = r#"
[server]
http = "127.0.0.1:0"

[identity]
api_key = { header = "x-api-key" }

[[policy]]
name = "ip"
key = ["ip"]
limit = "2/d"
match = { path = "/api/**" }

[[policy]]
name = "posts"
key = ["ip"]
limit = "1/d"
match = { method = "POST" }

[[policy]]
name = "keys"
key = ["api_key"]
limit = "2/d"
match = { path = "/keys" }
"#;

/// The very file, with another port.
fn shipped(tollgate: SocketAddr) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy/envoy-ext-authz.yaml");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(text.contains("http://127.0.0.1:8080"));
    text.replace("http://127.0.0.1:8080", &format!("http://{tollgate}"))
}

fn start(program: &Path, tollgate: SocketAddr) -> (Envoy, SocketAddr) {
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    // An entry of the list of filters: the first line behind the dash, the others as far in.
    let filter = shipped(tollgate);
    let lines: Vec<&str> = filter.lines().filter(|line| !line.starts_with('#')).collect();
    let filter = lines.join("\n            ");
    let listener = format!(
        "
  - name: edge
    address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: service }} }}]
          http_filters:
          - {filter}
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}",
        ip = at.ip(),
        port = at.port(),
    );
    let clusters = [cluster("service", service(), ""), cluster("tollgate", tollgate, "")].concat();
    (Envoy::start(program, &listener, &clusters, &[at]), at)
}

/// What curl gets there, in small letters.
fn curl(at: SocketAddr, path: &str, more: &[&str]) -> String {
    let url = format!("http://{at}{path}");
    let output = Command::new("curl").args(["-s", "-i", &url]).args(more).output().unwrap();
    String::from_utf8_lossy(&output.stdout).to_ascii_lowercase()
}

/// The status.
fn status(at: SocketAddr, path: &str, more: &[&str]) -> u16 {
    let told = curl(at, path, more);
    told.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{told:?}"))
}

#[test]
fn envoy_asks_and_goes_on_without_us() {
    let Some(program) = program() else { return };
    let server = Server::with_config(CONFIG);
    let (_envoy, at) = start(&program, server.address);

    // Two pass, with what they are told; the third is a 429 as tollgate words it.
    for remaining in ["1", "0"] {
        let passed = curl(at, "/api/x?y=1", &[]);
        assert!(passed.starts_with("http/1.1 200") && passed.ends_with("service"), "{passed}");
        assert!(passed.contains(&format!("\r\nx-ratelimit-remaining: {remaining}\r\n")), "{passed}");
    }
    let denied = curl(at, "/api/x", &[]);
    assert!(denied.starts_with("http/1.1 429"), "{denied}");
    assert!(denied.contains("\r\nretry-after: ") && denied.contains("\r\nx-ratelimit-limit: 2\r\n"), "{denied}");
    assert!(denied.contains("\r\ncontent-type: application/problem+json\r\n"), "{denied}");
    assert!(denied.contains("\"violated-policies\""), "{denied}");

    // It is the client that is counted, not Envoy, and not what a client says of itself.
    let other = ["--interface", "127.0.0.2"];
    assert_eq!([(); 3].map(|()| status(at, "/api/x", &other)), [200, 200, 429]);
    assert_eq!(status(at, "/api/x", &["-H", "X-Forwarded-For: 203.0.113.9"]), 429);
    assert_eq!(status(at, "/api/x", &["-H", "X-Forwarded-For: 127.0.0.3", "--interface", "127.0.0.2"]), 429);

    // Its key, its method and its path come through.
    let key = |key: &str| status(at, "/keys", &["-H", &format!("X-Api-Key: {key}")]);
    assert_eq!([key("a"), key("a"), key("a"), key("b")], [200, 200, 429, 200]);
    let post = || status(at, "/free", &["-d", "hello"]);
    assert_eq!([post(), post()], [200, 429]);
    assert_eq!(status(at, "/free", &[]), 200);

    // Slow, then gone: the filter says failure_mode_allow.
    server.freeze();
    assert_eq!(status(at, "/api/x", &[]), 200);
    server.signal("CONT");
    eventually("Envoy asks again", || status(at, "/api/x", &[]) == 429);
    drop(server);
    assert_eq!(status(at, "/api/x", &[]), 200);
}

//! A real Envoy in front of a real service, with ratekeeper as its rate limit service.

mod support;

use ratekeeper_testkit::free_port;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};
use support::envoy::{Envoy, cluster, program};
use support::{Answer, Server, directory, eventually, for_envoy};

const LIMITS: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 3 }
  - key: user
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: generic_key
    value: everybody
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: generic_key
    value: tokens
    rate_limit: { unit: year, requests_per_unit: 50 }
";

/// An upstream that responds 200 until the test ends.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line == "\r\n" {
                        let _ = reader
                            .get_mut()
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi\n");
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

/// Envoy with three listeners.
struct Edge {
    _envoy: Envoy,
    /// Denies requests if ratekeeper is unavailable.
    deny: SocketAddr,
    /// Allows requests then.
    allow: SocketAddr,
    /// Like `deny`, with a short timeout.
    hurried: SocketAddr,
}

impl Edge {
    fn start(program: &Path, ratekeeper: SocketAddr) -> Self {
        let [deny, allow, hurried] =
            [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let listeners = [
            listener("deny", deny, true, "10s"),
            listener("allow", allow, false, "10s"),
            listener("hurried", hurried, true, "0.1s"),
        ];
        let http2 = "
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }";
        let clusters = [
            cluster("service", upstream(), ""),
            cluster("ratekeeper", ratekeeper, http2),
        ]
        .concat();
        let envoy = Envoy::start(
            program,
            &listeners.concat(),
            &clusters,
            &[deny, allow, hurried],
        );
        Self {
            _envoy: envoy,
            deny,
            allow,
            hurried,
        }
    }
}

fn listener(name: &str, at: SocketAddr, deny: bool, timeout: &str) -> String {
    let route = |path: &str, actions: &str| {
        format!(
            "
              - match: {{ path: {path} }}
                route: {{ cluster: service, rate_limits: [{{ actions: [{actions}] }}] }}"
        )
    };
    let routes = [
        route("/address", "{ remote_address: {} }"),
        route("/user", "{ request_headers: { header_name: x-user, descriptor_key: user } }"),
        route("/all", "{ generic_key: { descriptor_value: everybody } }"),
        // A check before the request, and the charge after the response.
        "
              - match: { path: /tokens }
                route: { cluster: service }
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{ generic_key: { descriptor_value: tokens } }]
                      hits_addend: { number: 0 }
                    - actions: [{ generic_key: { descriptor_value: tokens } }]
                      hits_addend: { number: 20 }
                      apply_on_stream_done: true"
            .to_owned(),
        "
              - match: { prefix: / }
                route: { cluster: service }"
            .to_owned(),
    ];
    format!(
        "
  - name: {name}
    address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:{routes}
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              failure_mode_deny: {deny}
              timeout: {timeout}
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{ envoy_grpc: {{ cluster_name: ratekeeper }} }}
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}",
        ip = at.ip(),
        port = at.port(),
        routes = routes.concat()
    )
}

fn get(at: SocketAddr, path: &str, header: &str) -> Answer {
    let mut connection = Server::connect_to(at);
    connection.write(&format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
    ));
    connection.answer()
}

fn status(at: SocketAddr, path: &str) -> u16 {
    get(at, path, "").status()
}

#[test]
fn envoy_enforces_limits_and_uses_its_failure_mode_without_ratekeeper() {
    let Some(program) = program() else { return };
    let server = Server::run(for_envoy(&directory(&[("edge.yaml", LIMITS)])));
    let envoy = Edge::start(&program, server.grpc.unwrap());

    // By address, with the headers.
    for remaining in ["2", "1", "0"] {
        let answer = get(envoy.deny, "/address", "");
        assert_eq!(
            (answer.status(), &*answer.body),
            (200, "hi\n"),
            "{answer:?}"
        );
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3, 3;w=86400"));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
        let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!((1..=86_400).contains(&reset), "{reset}");
    }
    let answer = get(envoy.deny, "/address", "");
    assert_eq!(answer.status(), 429, "{answer:?}");
    assert_eq!(answer.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&retry), "{retry}");

    // By header: one bucket per user, root unlimited, no limit without a user.
    let user = |name: &str| get(envoy.deny, "/user", &format!("x-user: {name}\r\n")).status();
    assert_eq!(
        [user("ann"), user("ann"), user("ann"), user("bob")],
        [200, 200, 429, 200]
    );
    assert!((0..5).all(|_| user("root") == 200));
    assert!((0..5).all(|_| status(envoy.deny, "/user") == 200));

    // By a generic key, through another listener: one bucket for all.
    let everybody: Vec<u16> = (0..6)
        .map(|turn| status([envoy.deny, envoy.allow][turn % 2], "/all"))
        .collect();
    assert_eq!(everybody, [200, 200, 200, 200, 429, 429]);
    assert_eq!(status(envoy.deny, "/elsewhere"), 200);

    // Charged after the response: 20, 40, and the third uses up the rest.
    let asked = || server.metric("ratelimit_requests_total");
    for _ in 0..3 {
        let before = asked();
        assert_eq!(status(envoy.deny, "/tokens"), 200);
        eventually("the charge after the response", || asked() >= before + 2.0);
    }
    assert_eq!(status(envoy.deny, "/tokens"), 429);

    // Slow: Envoy times out, and recovers afterwards.
    server.freeze();
    let start = Instant::now();
    assert_eq!(status(envoy.hurried, "/address"), 500);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    server.signal("CONT");
    let start = Instant::now();
    while status(envoy.hurried, "/address") != 429 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "Envoy does not come back"
        );
    }

    // Unavailable: each listener uses its failure mode.
    drop(server);
    assert_eq!(status(envoy.deny, "/address"), 500);
    assert_eq!(status(envoy.allow, "/address"), 200);
    assert_eq!(status(envoy.deny, "/elsewhere"), 200);
}

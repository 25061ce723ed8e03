//! Every known bypass of a limit, tried at the gateway over HTTP/1.1 and HTTP/2, at `/auth` and at
//! the layer. A new one is a line of [`table::GROUPS`].
//!
//! Each group has policies and an honest request that uses up their only token. After it every
//! attempt must be rejected or denied, and must not reach the service; requests that are no
//! attempts must still be allowed.

#[allow(dead_code, unused_imports)]
#[path = "../../src/config/mod.rs"]
mod config;
mod cross_site;
mod layer;
mod preflights;
#[path = "../../proto/mod.rs"]
mod proto;
mod resp;
mod rls;
#[path = "../gateway/service.rs"]
mod service;
#[path = "../support/mod.rs"]
mod support;
mod table;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::server::conn as server;
use hyper_util::rt::{TokioExecutor, TokioIo};
use service::echo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use support::{Connection, Server, config_file, ratekeeper};
use table::{EntryPoint, GROUPS, Group, TestRequest};

/// A gateway in front of an upstream that reports every request that reaches it.
struct Gateway {
    server: Server,
    requests: Receiver<String>,
}

impl Gateway {
    fn start(group: &Group) -> Self {
        let (upstream, requests) = echo();
        let mut command = ratekeeper();
        let text = group.file(&format!("upstreams = [\"http://{upstream}\"]\n"));
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
            .arg(config_file(&text));
        Self {
            server: Server::run(command),
            requests,
        }
    }

    /// The status of a request. Checks that it agrees with whether the upstream got the request.
    fn status(&self, entry_point: EntryPoint, sent: &TestRequest) -> u16 {
        let status = match entry_point {
            EntryPoint::Http2 => http2_status(self.server.address, sent),
            _ => http1_status(&mut self.server.connect(), sent),
        };
        let has_reached = self.requests.try_iter().count() > 0;
        let is_answered = (200..300).contains(&status);
        assert_eq!(
            has_reached, is_answered,
            "{sent:?} at {entry_point:?} is answered with {status}"
        );
        status
    }
}

fn http1_status(connection: &mut Connection, sent: &TestRequest) -> u16 {
    let lines: String = sent
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let target = sent.absolute.map_or(sent.path.to_owned(), |authority| {
        format!("http://{authority}{}", sent.path)
    });
    let host = sent.host.or(sent.absolute).unwrap_or("localhost");
    connection.write(&format!(
        "{} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n",
        sent.method
    ));
    connection.answer().status()
}

/// Its authority is the one in the target, or else the host.
fn http2_status(address: SocketAddr, sent: &TestRequest) -> u16 {
    let authority = sent.absolute.or(sent.host).unwrap_or("localhost");
    let mut request = hyper::Request::builder()
        .method(sent.method)
        .uri(format!("http://{authority}{}", sent.path));
    if let (Some(_), Some(host)) = (sent.absolute, sent.host) {
        request = request.header("host", host);
    }
    for (name, value) in sent.headers {
        request = request.header(*name, *value);
    }
    // A request that no client can write counts as rejected.
    let Ok(request) = request.body(Empty::<Bytes>::new()) else {
        return 400;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let response = client.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        connection.abort();
        status
    })
}

/// The status when a proxy describes the request to `/auth`.
fn auth_status(server: &Server, entry_point: EntryPoint, sent: &TestRequest) -> u16 {
    let target = sent.absolute.map_or(sent.path.to_owned(), |authority| {
        format!("http://{authority}{}", sent.path)
    });
    let host = sent.host.or(sent.absolute).unwrap_or("localhost");
    let (path, forwarded) = match entry_point {
        EntryPoint::Nginx => (
            "/auth/nginx".to_owned(),
            format!(
                "X-Original-Method: {}\r\nX-Original-URI: {target}\r\nX-Real-IP: 203.0.113.7\r\nHost: {host}\r\n",
                sent.method
            ),
        ),
        EntryPoint::Envoy => (
            format!("/auth/envoy{}", sent.path),
            format!("X-Forwarded-For: 203.0.113.7\r\nHost: {host}\r\n"),
        ),
        _ => (
            if entry_point == EntryPoint::Caddy {
                "/auth/caddy"
            } else {
                "/auth/traefik"
            }
            .to_owned(),
            format!(
                "X-Forwarded-Method: {}\r\nX-Forwarded-Uri: {target}\r\nX-Forwarded-For: 203.0.113.7\r\n\
                 X-Forwarded-Host: {host}\r\nHost: ratekeeper\r\n",
                sent.method
            ),
        ),
    };
    let lines: String = sent
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let mut connection = server.connect();
    let method = if entry_point == EntryPoint::Envoy {
        sent.method
    } else {
        "GET"
    };
    connection.write(&format!(
        "{method} {path} HTTP/1.1\r\n{forwarded}{lines}\r\n"
    ));
    let answer = connection.answer();
    if entry_point == EntryPoint::Nginx && answer.status() != 200 {
        // nginx supports no other status for a denial.
        assert_eq!(answer.status(), 403, "{answer:?}");
        return answer
            .header("x-ratelimit-status")
            .unwrap()
            .parse()
            .unwrap();
    }
    answer.status()
}

/// Runs a group at an entry point: returns a line for each attempt that was allowed. `status` sends a
/// request to a fresh server, whose tokens are all available.
fn run(group: &Group, entry_point: EntryPoint, status: impl Fn(&TestRequest) -> u16) -> String {
    let name = group.name;
    for passes in group
        .passes
        .iter()
        .filter(|sent| sent.applies_at(entry_point))
    {
        assert_eq!(
            status(passes),
            200,
            "{name}: {passes:?} at {entry_point:?} is not allowed"
        );
    }
    assert_eq!(
        status(&group.honest),
        200,
        "{name}: {:?} at {entry_point:?}",
        group.honest
    );
    assert_eq!(
        status(&group.honest),
        429,
        "{name}: {:?} at {entry_point:?} again",
        group.honest
    );
    let attempts = group
        .attempts
        .iter()
        .filter(|sent| sent.applies_at(entry_point));
    let statuses = attempts
        .map(|sent| (sent, status(sent)))
        .filter(|(_, status)| ![400, 429].contains(status));
    statuses
        .map(|(sent, status)| format!("{name} at {entry_point:?}: {status} for {sent:?}\n"))
        .collect()
}

#[track_caller]
fn run_all(entry_points: &[EntryPoint], run: impl Fn(&Group, EntryPoint) -> String) {
    let passed: String = GROUPS
        .iter()
        .flat_map(|group| {
            entry_points
                .iter()
                .map(|entry_point| run(group, *entry_point))
        })
        .collect();
    assert!(passed.is_empty(), "these bypass the limit:\n{passed}");
}

#[test]
fn the_gateway_stops_every_bypass() {
    run_all(
        &[EntryPoint::Http1, EntryPoint::Http2],
        |group, entry_point| {
            let gateway = Gateway::start(group);
            run(group, entry_point, |sent| gateway.status(entry_point, sent))
        },
    );
}

#[test]
fn auth_stops_every_bypass() {
    run_all(
        &[
            EntryPoint::Nginx,
            EntryPoint::Caddy,
            EntryPoint::Traefik,
            EntryPoint::Envoy,
        ],
        |group, entry_point| {
            let server =
                Server::with_config(&(group.file("") + "[server]\nhttp = \"127.0.0.1:0\"\n"));
            run(group, entry_point, |sent| {
                auth_status(&server, entry_point, sent)
            })
        },
    );
}

#[test]
fn the_layer_stops_every_bypass() {
    run_all(&[EntryPoint::Layer], |group, entry_point| {
        let layer = layer::of(group);
        run(group, entry_point, |sent| layer::status(&layer, sent))
    });
}

#[test]
fn a_layer_counted_by_a_cookie_stops_every_bypass() {
    let layer = layer::by_cookie("sid");
    let passed = run(&table::COOKIE, EntryPoint::Layer, |asked| {
        layer::status(&layer, asked)
    });
    assert!(passed.is_empty(), "these pass:\n{passed}");
}

/// A signed URL is valid for the path that was signed, so the path is forwarded unchanged.
#[test]
fn paths_are_forwarded_as_they_were_sent() {
    let (upstream, requests) = echo();
    let mut command = ratekeeper();
    command.args([
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--limit",
        "1000/min",
        "--upstream",
        &format!("http://{upstream}"),
    ]);
    let server = Server::run(command);
    for path in [
        "/a//b/;x=1/%7e%2F~?q=../..",
        "/.well-known/...",
        "/%252e%252e/",
        "/a%20b;v=..",
        "/\"{}|",
    ] {
        let sent = TestRequest {
            path,
            ..TestRequest::GET
        };
        assert_eq!(http1_status(&mut server.connect(), &sent), 200, "{path}");
        let seen = requests.recv().unwrap();
        assert!(
            seen.starts_with(&format!("get {} http/1.1\r\n", path.to_ascii_lowercase())),
            "{path}: {seen}"
        );
    }
}

/// The detail says what is wrong and what to do.
#[test]
fn a_rejection_names_the_problem_and_the_remedy() {
    let (upstream, _requests) = echo();
    let mut command = ratekeeper();
    let text = format!(
        "[gateway]\nupstreams = [\"http://{upstream}\"]\n[[policy]]\nname = \"key\"\nkey = \"header:x-key\"\nlimit = \"9/d\"\n"
    );
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&text));
    let server = Server::run(command);
    let detail = |request: &str, code: &str| {
        let mut connection = server.connect();
        connection.write(request);
        connection.answer().problem(400, code)
    };
    let dots = detail("GET /a/../b HTTP/1.1\r\nHost: x\r\n\r\n", "bad_target");
    assert!(
        dots.contains("`..`") && dots.contains("send the resolved path"),
        "{dots}"
    );
    let user = detail("GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n", "bad_host");
    assert!(
        user.contains("user information") && user.contains("Authorization"),
        "{user}"
    );
    let two = detail(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Key: a\r\nX-Key: b\r\n\r\n",
        "repeated_header",
    );
    assert!(
        two.contains("x-key") && two.contains("send it once"),
        "{two}"
    );
}

/// `GET http://h?q=1` requests the root, over HTTP/1.1 and HTTP/2.
#[test]
fn a_target_without_a_path_is_the_root() {
    let (upstream, requests) = echo();
    let (upstream2, requests2) = http2_service();
    for (upstream, http2) in [(upstream, false), (upstream2, true)] {
        let mut command = ratekeeper();
        let text = format!(
            "[gateway]\nupstreams = [\"http://{upstream}\"]\nhttp2 = {http2}\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
        );
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
            .arg(config_file(&text));
        let sent = TestRequest {
            absolute: Some("h"),
            path: "?q=1",
            ..TestRequest::GET
        };
        assert_eq!(
            http1_status(&mut Server::run(command).connect(), &sent),
            200
        );
    }
    let seen = requests.recv().unwrap();
    assert!(seen.starts_with("get /?q=1 http/1.1\r\n"), "{seen}");
    assert_eq!(requests2.recv().unwrap(), "/?q=1");
}

/// An HTTP/2 upstream that answers 200 and reports `:path` of each request.
fn http2_service() -> (SocketAddr, Receiver<String>) {
    let (paths_seen, paths) = channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let paths_seen = paths_seen.clone();
                let service = hyper::service::service_fn(
                    move |request: hyper::Request<hyper::body::Incoming>| {
                        let path = request
                            .uri()
                            .path_and_query()
                            .map_or("", |path| path.as_str())
                            .to_owned();
                        let _ = paths_seen.send(path);
                        std::future::ready(Ok::<_, Infallible>(hyper::Response::new(
                            Empty::<Bytes>::new(),
                        )))
                    },
                );
                let connection = server::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
    });
    (address, paths)
}

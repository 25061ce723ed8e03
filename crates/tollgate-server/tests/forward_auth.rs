//! `/auth`, asked by curl as each proxy would, and by a real nginx, Caddy and Traefik with the snippets we ship. A real Envoy
//! asks in ext_authz.rs.

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{Answer, Server, eventually, service};

const BY_IP: &str = "[server]\nhttp = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"ip\"\nkey = [\"ip\"]\nlimit = \"2/d\"\nmatch = { path = \"/api/**\" }\n\
    [[policy]]\nname = \"posts\"\nkey = [\"ip\"]\nlimit = \"1/d\"\nmatch = { method = \"POST\" }\n";

/// Asks with these headers.
fn ask(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut connection = server.connect();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    connection.write(&format!("GET {path} HTTP/1.1\r\nHost: tollgate\r\n{lines}\r\n"));
    connection.answer()
}

#[test]
fn traefik_and_caddy_tell_the_request_in_forwarded_headers() {
    let server = Server::with_config(BY_IP);
    let from = |ip: &str, uri: &str, method: &str| {
        ask(&server, "/auth", &[("X-Forwarded-For", ip), ("X-Forwarded-Uri", uri), ("X-Forwarded-Method", method)])
    };
    let first = from("192.0.2.1", "/api/x?y=1", "GET");
    assert_eq!((first.status(), first.header("x-ratelimit-remaining"), &*first.body), (200, Some("1"), ""));
    assert_eq!(from("192.0.2.1", "/api/z", "GET").status(), 200);
    let third = from("192.0.2.1", "/api/z", "GET");
    assert_eq!(third.status(), 429);
    assert!(third.header("retry-after").is_some() && third.header("x-ratelimit-status").is_none(), "{third:?}");
    // Another client, another path, another method.
    assert_eq!(from("192.0.2.2", "/api/z", "GET").status(), 200);
    assert_eq!(from("192.0.2.1", "/other", "GET").status(), 200);
    assert_eq!(
        [from("192.0.2.1", "/other", "POST").status(), from("192.0.2.1", "/other", "POST").status()],
        [200, 429]
    );
    // The last hop is the proxy's own word; what a client wrote before it is not believed.
    assert_eq!(from("203.0.113.9, 192.0.2.1", "/api/z", "GET").status(), 429);
    // Nor is the other family of headers.
    let spoofed = [
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Uri", "/api/z"),
        ("X-Real-IP", "203.0.113.9"),
        ("X-Original-URI", "/free"),
    ];
    assert_eq!(ask(&server, "/auth", &spoofed).status(), 429);
}

#[test]
fn nginx_tells_it_in_original_headers_and_gets_403() {
    let server = Server::with_config(BY_IP);
    let headers = [("X-Original-URI", "/api/x"), ("X-Original-Method", "GET"), ("X-Real-IP", "192.0.2.1")];
    let statuses: Vec<u16> = (0..3).map(|_| ask(&server, "/auth?deny=403", &headers).status()).collect();
    assert_eq!(statuses, [200, 200, 403]);
    let denied = ask(&server, "/auth?deny=403", &headers);
    assert_eq!(denied.header("x-ratelimit-status"), Some("429"));
    assert!(denied.header("retry-after").is_some());
    // What a client sends through nginx counts for nothing.
    let spoofed = [&headers[..], &[("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-Uri", "/free")]].concat();
    assert_eq!(ask(&server, "/auth?deny=403", &spoofed).status(), 403);
}

#[test]
fn envoy_puts_the_path_behind_a_prefix() {
    let server = Server::with_config(BY_IP);
    let statuses: Vec<u16> =
        (0..3).map(|_| ask(&server, "/auth/api/x?y=/auth", &[("X-Forwarded-For", "192.0.2.1")]).status()).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(ask(&server, "/auth/other", &[("X-Forwarded-For", "192.0.2.1")]).status(), 200);
}

#[test]
fn a_proxy_that_does_not_say_what_it_asks_about_is_told() {
    let server = Server::with_config(BY_IP);
    let detail = |path: &str, headers: &[(&str, &str)]| ask(&server, path, headers).problem(400, "bad_target");
    assert!(detail("/auth", &[]).contains("X-Forwarded-Uri"));
    assert!(detail("/auth?deny=403", &[]).contains("X-Original-URI $request_uri"));
    assert!(detail("/auth?deny=403", &[("X-Original-URI", "/")]).contains("X-Real-IP $remote_addr"));
    assert!(detail("/auth?deny=500", &[]).contains("?deny=403"));
    detail("/auth", &[("X-Forwarded-Uri", "not a path")]);
    detail("/auth", &[("X-Forwarded-Uri", "/"), ("X-Forwarded-Method", "no method")]);
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port nobody listens on, as far as that can be known.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn shipped(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy").join(name);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Starts it and waits until it takes connections.
fn start(mut command: Command, port: u16) -> Running {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let running = Running(child.unwrap_or_else(|error| panic!("{name}: {error}; make tools installs it")));
    eventually(&format!("{name} listens"), || TcpStream::connect(("127.0.0.1", port)).is_ok());
    running
}

/// What curl gets there, three times: two pass, the third is a 429 with Retry-After. Others pass, and nobody can say to be
/// another.
#[track_caller]
fn two_pass_and_then_429(port: u16) {
    let curl = |path: &str, more: &[&str]| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let output = Command::new("curl").args(["-s", "-i", &url]).args(more).output().unwrap();
        String::from_utf8_lossy(&output.stdout).to_ascii_lowercase()
    };
    for _ in 0..2 {
        let passed = curl("/api/x", &[]);
        assert!(passed.starts_with("http/1.1 200") && passed.ends_with("service"), "{passed}");
    }
    let denied = curl("/api/x", &[]);
    assert!(denied.starts_with("http/1.1 429"), "{denied}");
    assert!(denied.contains("\r\nretry-after: ") && denied.contains("\r\nx-ratelimit-limit: 2\r\n"), "{denied}");
    assert!(curl("/free", &[]).starts_with("http/1.1 200"));
    assert!(curl("/api/x", &["--interface", "127.0.0.2"]).starts_with("http/1.1 200"));
    let spoofed =
        ["-H", "X-Forwarded-For: 203.0.113.9", "-H", "X-Real-IP: 203.0.113.9", "-H", "X-Forwarded-Uri: /free"];
    assert!(curl("/api/x", &spoofed).starts_with("http/1.1 429"));
}

#[test]
fn a_real_nginx_turns_it_into_429() {
    let (server, service, port) = (Server::with_config(BY_IP), service(), free_port());
    let (place, snippet) =
        (directory("nginx"), shipped("nginx.conf").replace("127.0.0.1:8080", &server.address.to_string()));
    let own = place.display();
    let config = format!(
        "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\nevents {{}}\nhttp {{ access_log off; \
         client_body_temp_path {own}; proxy_temp_path {own}; fastcgi_temp_path {own}; uwsgi_temp_path {own}; scgi_temp_path {own};\n\
         server {{ listen 127.0.0.1:{port};\n{snippet}\nlocation / {{ auth_request /_tollgate; proxy_pass http://{service}; }} }} }}"
    );
    fs::write(place.join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(place.join("nginx.conf")).arg("-e").arg(place.join("error.log"));
    let _nginx = start(command, port);
    two_pass_and_then_429(port);
}

#[test]
fn a_real_caddy_passes_it_on() {
    let (server, service, port) = (Server::with_config(BY_IP), service(), free_port());
    let place = directory("caddy");
    let snippet = shipped("Caddyfile").replace("127.0.0.1:8080", &server.address.to_string());
    let snippet =
        snippet.replace(":8000", &format!("http://127.0.0.1:{port}")).replace("127.0.0.1:3000", &service.to_string());
    fs::write(place.join("Caddyfile"), format!("{{\n\tadmin off\n\tauto_https off\n}}\n{snippet}")).unwrap();
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(place.join("Caddyfile")).env("HOME", &place);
    let _caddy = start(command, port);
    two_pass_and_then_429(port);
}

#[test]
fn a_real_traefik_passes_it_on() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/traefik");
    if !program.exists() {
        eprintln!("skipped: there is no {}; scripts/venv installs it", program.display());
        return;
    }
    let (server, service, port) = (Server::with_config(BY_IP), service(), free_port());
    let place = directory("traefik");
    let snippet = shipped("traefik.yml").replace("127.0.0.1:8080", &server.address.to_string());
    // A traefik.yml where it is started would be its static configuration.
    let file = place.join("dynamic.yml");
    fs::write(&file, snippet.replace("127.0.0.1:3000", &service.to_string())).unwrap();
    let mut command = Command::new(program);
    command.arg(format!("--entryPoints.web.address=127.0.0.1:{port}"));
    command.arg(format!("--providers.file.filename={}", file.display()));
    command.args(["--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"]).current_dir(&place);
    let _traefik = start(command, port);
    // It listens before it has read the file, and answers 404 until then; the path is one that nobody counts.
    eventually("Traefik routes", || {
        let mut connection = Server::connect_to(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        connection.write("GET /free HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.answer().status() == 200
    });
    two_pass_and_then_429(port);
}

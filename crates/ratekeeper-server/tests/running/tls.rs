//! TLS on every listener, and client certificates.

use crate::authority::Authority;
use crate::support::{config_file, directory, eventually, exit_output};
use crate::{
    ENVOY, HEALTH, RunningServer, TempDir, curl, health_request, plain, run_program, serve,
};
use std::fs;
use std::path::{Path, PathBuf};

const LISTENERS: &str = "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";

fn tls((cert, key): &(PathBuf, PathBuf)) -> String {
    format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n")
}

/// Requests a path by the name in the certificate.
fn get(ca: &str, port: u16, path: &str, more: &[&str]) -> (bool, String) {
    let url = format!("https://localhost:{port}{path}");
    let resolve = format!("localhost:{port}:127.0.0.1");
    curl(
        &[
            &[
                "--cacert",
                ca,
                "--resolve",
                &resolve,
                "-w",
                " %{http_version}",
                &url,
            ],
            more,
        ]
        .concat(),
    )
}

#[test]
fn every_listener_speaks_tls_with_one_certificate() {
    let (authority, dir) = (Authority::new("an authority"), TempDir::new("tls"));
    let (ca, limits) = (authority.ca(), directory(&[("a.yaml", ENVOY)]));
    let mut command = serve(&(LISTENERS.to_owned() + &tls(&authority.sign("localhost", 2100))));
    command.arg("--envoy-config").arg(limits);
    let server = RunningServer::run(command);

    let http = server.port(": HTTP listening on https://");
    // The listener speaks only HTTP/1.1, and does not negotiate HTTP/2.
    assert_eq!(
        get(&ca, http, "/livez", &["--http2"]),
        (true, "ok\n 1.1".to_owned())
    );
    let admin = server.port("Live page: https://");
    let (_, metrics) = get(&ca, admin, "/metrics", &[]);
    assert!(metrics.contains("ratekeeper_build_info"), "{metrics}");

    let grpc = server.port("service: grpcs://");
    let request = format!("@{}", health_request(&dir));
    let ask = [
        "--http2",
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
        "--data-binary",
        &request,
    ];
    let (_, answer) = get(&ca, grpc, HEALTH, &ask);
    assert!(
        answer.contains("\u{8}\u{1}") && answer.ends_with(" 2"),
        "{answer:?}"
    );
    let (success, output) = get(&ca, grpc, HEALTH, &["--http1.1"]);
    assert!(
        !success && output.contains("no application protocol"),
        "{output}"
    );

    let resp = server.port("RESP: ").to_string();
    let cli = |more: &[&str]| {
        run_program(
            "redis-cli",
            &[&["-h", "127.0.0.1", "-p", &resp], more].concat(),
        )
        .1
    };
    assert_eq!(cli(&["--tls", "--cacert", &ca, "PING"]), "PONG\n");
    assert_ne!(
        cli(&["PING"]),
        "PONG\n",
        "a client without TLS is not served"
    );
    let (_, plain) = curl(&[&format!("http://127.0.0.1:{http}/livez")]);
    assert!(!plain.contains("ok\n"), "{plain}");

    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(status.success() && !log.contains("cut off"), "{log}");
}

/// A client that connects and never starts a handshake does not delay a stop.
#[test]
fn a_client_that_never_starts_a_handshake_does_not_delay_a_stop() {
    let authority = Authority::new("an authority");
    let server =
        RunningServer::serve(&(LISTENERS.to_owned() + &tls(&authority.sign("localhost", 2100))));
    let addresses = [
        ": HTTP listening on https://",
        "RESP: ",
        "Live page: https://",
    ]
    .map(|words| server.text_after(words));
    let silent: Vec<_> = addresses
        .iter()
        .map(|at| std::net::TcpStream::connect(at).unwrap())
        .collect();
    // A later request is served, so these have been accepted.
    assert!(
        get(
            &authority.ca(),
            server.port("HTTP listening on https://"),
            "/livez",
            &[]
        )
        .0
    );
    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(status.success() && !log.contains("cut off"), "{log}");
    drop(silent);
}

#[test]
fn one_listener_may_require_client_certificates() {
    let (authority, operators) = (Authority::new("an authority"), Authority::new("operators"));
    let config = format!(
        "{LISTENERS}{}[server.tls.admin]\nclient_ca = {:?}\n[server.tls.resp]\noff = true\n",
        tls(&authority.sign("localhost", 2100)),
        operators.ca()
    );
    let server = RunningServer::serve(&config);
    let ca = authority.ca();
    let (http, admin) = (
        server.port(": HTTP listening on https://"),
        server.port("Live page: https://"),
    );
    assert!(
        get(&ca, http, "/livez", &[]).0,
        "other listeners require none"
    );
    assert!(
        run_program(
            "redis-cli",
            &["-p", &server.port("RESP: ").to_string(), "PING"]
        )
        .1
        .contains("PONG")
    );
    let (success, output) = get(&ca, admin, "/metrics", &[]);
    assert!(
        !success && output.contains("certificate required"),
        "{output}"
    );
    let get_with = |(cert, key): (PathBuf, PathBuf)| {
        get(
            &ca,
            admin,
            "/metrics",
            &[
                "--cert",
                cert.to_str().unwrap(),
                "--key",
                key.to_str().unwrap(),
            ],
        )
    };
    assert!(
        get_with(operators.sign("ann", 2100))
            .1
            .contains("ratekeeper_build_info")
    );
    for certificate in [authority.sign("bob", 2100), operators.sign("ann", 2001)] {
        assert!(!get_with(certificate).0);
    }
}

#[test]
fn changed_certificates_and_client_cas_are_reloaded() {
    let (old, new) = (Authority::new("an authority"), Authority::new("another"));
    let files = old.sign("localhost", 2100);
    let clients = PathBuf::from(old.ca());
    let config = format!("{LISTENERS}{}client_ca = {clients:?}\n", tls(&files));
    let server = RunningServer::serve(&config);
    let admin = server.port("Live page: https://");
    let get = |ca: &Authority, by: &Authority| {
        let (cert, key) = by.sign("ann", 2100);
        get(
            &ca.ca(),
            admin,
            "/livez",
            &[
                "--cert",
                cert.to_str().unwrap(),
                "--key",
                key.to_str().unwrap(),
            ],
        )
        .0
    };
    let pem = fs::read_to_string(&clients).unwrap();
    assert!(get(&old, &old));
    fs::write(&files.0, "nonsense").unwrap();
    fs::write(&files.1, "nonsense").unwrap();
    for _ in 0..3 {
        assert!(get(&old, &old), "the previous one stays");
    }
    let (cert, key) = old.sign("localhost", 2100);
    fs::copy(key, &files.1).unwrap();
    fs::copy(cert, &files.0).unwrap();
    // Clients of another authority are accepted once the file has it.
    assert!(!get(&old, &new));
    fs::write(
        &clients,
        pem.clone() + &fs::read_to_string(new.ca()).unwrap(),
    )
    .unwrap();
    // The client uses the same file as its CA, so it trusts both authorities.
    eventually("the new clients", || get(&old, &new));
}

#[test]
fn invalid_files_are_one_sentence() {
    let authority = Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let other = authority.sign("localhost", 2100).1;
    let missing = Path::new("/nowhere/cert.pem").to_owned();
    let with_ca = |ca: &Path| format!("{}client_ca = {ca:?}\n", tls(&(cert.clone(), key.clone())));
    for (tls, message) in [
        (
            tls(&(missing.clone(), key.clone())),
            "/nowhere/cert.pem contains no certificate in PEM form",
        ),
        (tls(&(cert.clone(), other)), "cannot be used together"),
        (
            tls(&(cert.clone(), cert.clone())),
            "contains no private key in PEM form",
        ),
        (
            with_ca(&missing),
            "/nowhere/cert.pem contains no certificate in PEM form",
        ),
        (with_ca(&key), "contains no certificate in PEM form"),
    ] {
        let mut command = plain();
        command
            .arg("serve")
            .arg("--config")
            .arg(config_file(&(LISTENERS.to_owned() + &tls)));
        let (code, error) = exit_output(&command.output().unwrap());
        assert_eq!(code, Some(2), "{error}");
        let error = error.lines().last().unwrap();
        assert!(
            error.contains(message) && error.contains("[server.tls] in the file of --config"),
            "{error}"
        );
    }
}

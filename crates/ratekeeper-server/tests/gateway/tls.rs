//! TLS on both sides, with test certificates.

use crate::authority::Authority;
use crate::service::echo;
use crate::support::{Server, config_file, eventually, ratekeeper};
use crate::{command, curl, gateway, vias};
use std::fs;
use std::path::{Path, PathBuf};

fn tls(upstream: std::net::SocketAddr, (cert, key): &(PathBuf, PathBuf)) -> Server {
    gateway(
        &[upstream],
        &format!("tls = {{ cert = {cert:?}, key = {key:?} }}\n"),
    )
}

fn get(server: &Server, authority: &Authority, more: &[&str]) -> String {
    let port = server.address.port();
    let (resolve, ca) = (format!("localhost:{port}:127.0.0.1"), authority.ca());
    let url = format!("https://localhost:{port}/x");
    curl(
        &[
            &[
                "--cacert",
                &ca,
                "--resolve",
                &resolve,
                "-w",
                " %{http_version} %{ssl_verify_result}",
                &url,
            ],
            more,
        ]
        .concat(),
    )
}

#[test]
fn clients_use_tls_and_negotiate_the_version() {
    let (upstream, _requests) = echo();
    let authority = Authority::new("an authority");
    let server = tls(upstream, &authority.sign("localhost", 2100));
    for (flag, version) in [("--http1.1", " 1.1 0"), ("--http2", " 2 0")] {
        let text = get(&server, &authority, &[flag]);
        assert!(
            text.ends_with(version) && text.contains("x-forwarded-proto: https\r\n"),
            "{text}"
        );
        assert!(
            text.contains(&format!("host=\"localhost:{}\"", server.address.port())),
            "{text}"
        );
    }
    // A client without TLS is not served, and a silent one runs into the handshake timeout.
    let mut plain = server.connect();
    plain.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(!plain.rest().contains("HTTP/1.1 200"));
}

#[test]
fn changed_certificates_are_reloaded_and_broken_ones_rejected() {
    let (upstream, _requests) = echo();
    let (old, new) = (Authority::new("an authority"), Authority::new("another"));
    let files = old.sign("localhost", 2100);
    let server = tls(upstream, &files);
    assert!(get(&server, &old, &[]).ends_with(" 0"));
    fs::write(&files.0, "nonsense").unwrap();
    for _ in 0..5 {
        assert!(
            get(&server, &old, &[]).ends_with(" 0"),
            "the one from before stays"
        );
    }
    let (cert, key) = new.sign("localhost", 2100);
    fs::copy(key, &files.1).unwrap();
    fs::copy(cert, &files.0).unwrap();
    eventually("the new certificate", || {
        get(&server, &new, &[]).contains("get /x")
    });
}

#[test]
fn an_invalid_certificate_fails_the_start() {
    let authority = Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let other = authority.sign("localhost", 2100).1;
    let missing = Path::new("/nowhere/cert.pem").to_owned();
    for (cert, key, says) in [
        (&missing, &key, "contains no certificate in PEM form"),
        (&cert, &other, "cannot be used together"),
        (&cert, &cert, "contains no private key"),
    ] {
        let output = command(
            &["127.0.0.1:1".parse().unwrap()],
            &format!("tls = {{ cert = {cert:?}, key = {key:?} }}\n"),
        )
        .output()
        .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && stderr.contains(says),
            "{stderr}"
        );
    }
}

/// A client without a certificate, or with one of another CA, is not served.
#[test]
fn client_certificates_can_be_required() {
    let (upstream, _requests) = echo();
    let (authority, clients, stranger) = (
        Authority::new("an authority"),
        Authority::new("ours"),
        Authority::new("no"),
    );
    let (cert, key) = authority.sign("localhost", 2100);
    let more = format!(
        "tls = {{ cert = {cert:?}, key = {key:?}, client_ca = {:?} }}\n",
        clients.ca()
    );
    let server = gateway(&[upstream], &more);
    let with = |(cert, key): (std::path::PathBuf, std::path::PathBuf)| {
        get(
            &server,
            &authority,
            &[
                "--cert",
                cert.to_str().unwrap(),
                "--key",
                key.to_str().unwrap(),
            ],
        )
    };
    assert!(with(clients.sign("somebody", 2100)).contains("get /x"));
    for rejected in [
        get(&server, &authority, &[]),
        with(stranger.sign("somebody", 2100)),
        with(clients.sign("old", 2001)),
    ] {
        assert!(!rejected.contains("get /x"), "{rejected}");
    }
}

/// A gateway in front of another one, to which it connects over TLS.
fn in_front_of(url: &str, authority: &Authority, more: &str) -> Server {
    let ca = authority.ca();
    let text = format!(
        "[gateway]\nupstreams = [\"{url}\"]\nca_file = {ca:?}\nbreaker = false\n{more}\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
    );
    let mut command = ratekeeper();
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&text));
    Server::run(command)
}

#[test]
fn upstream_certificates_are_verified() {
    let (upstream, _requests) = echo();
    let (authority, stranger) = (Authority::new("an authority"), Authority::new("another"));
    let good = tls(upstream, &authority.sign("localhost", 2100));
    let expired = tls(upstream, &authority.sign("localhost", 2001));
    let url = |server: &Server, host: &str| format!("https://{host}:{}", server.address.port());
    for (more, second) in [("", "1.1 ratekeeper"), ("http2 = true", "2.0 ratekeeper")] {
        let server = in_front_of(&url(&good, "localhost"), &authority, more);
        assert_eq!(
            vias(&server.request("GET", "/", "").body),
            ["1.1 ratekeeper", second]
        );
    }
    for (url, authority, says) in [
        (url(&good, "127.0.0.1"), &authority, "not valid for name"),
        (url(&expired, "localhost"), &authority, "expired"),
        (url(&good, "localhost"), &stranger, "UnknownIssuer"),
    ] {
        let server = in_front_of(&url, authority, "");
        let detail = server.request("GET", "/", "").problem(502, "bad_upstream");
        assert!(detail.contains("certificate"), "{detail}");
        server.signal("TERM");
        let (_, log) = server.ended();
        assert!(
            log.contains("TLS handshake failed: ") && log.contains(says),
            "{log}"
        );
    }
}

//! TLS on every listener, and clients that must show a certificate.

use crate::authority::Authority;
use crate::support::{config_file, directory, eventually, told};
use crate::{ENVOY, HEALTH, Place, Started, curl, health_question, plain, ran, serve};
use std::fs;
use std::path::{Path, PathBuf};

const LISTENERS: &str = "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";

fn tls((cert, key): &(PathBuf, PathBuf)) -> String {
    format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n")
}

/// By the name in the certificate.
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
    let (authority, place) = (Authority::new("an authority"), Place::new("tls"));
    let (ca, limits) = (authority.ca(), directory(&[("a.yaml", ENVOY)]));
    let mut command = serve(&(LISTENERS.to_owned() + &tls(&authority.sign("localhost", 2100))));
    command.arg("--envoy-config").arg(limits);
    let server = Started::run(command);

    let http = server.port("serves HTTP on https://");
    // More than HTTP/1.1 is not spoken there, and nobody is told so who asks for it.
    assert_eq!(
        get(&ca, http, "/livez", &["--http2"]),
        (true, "ok\n 1.1".to_owned())
    );
    let admin = server.port("Live page: https://");
    let (_, figures) = get(&ca, admin, "/metrics", &[]);
    assert!(figures.contains("ratekeeper_build_info"), "{figures}");

    let grpc = server.port("service: grpcs://");
    let question = format!("@{}", health_question(&place));
    let ask = [
        "--http2",
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
        "--data-binary",
        &question,
    ];
    let (_, answer) = get(&ca, grpc, HEALTH, &ask);
    assert!(
        answer.contains("\u{8}\u{1}") && answer.ends_with(" 2"),
        "{answer:?}"
    );
    let (well, refused) = get(&ca, grpc, HEALTH, &["--http1.1"]);
    assert!(
        !well && refused.contains("no application protocol"),
        "{refused}"
    );

    let resp = server.port("RESP: ").to_string();
    let cli = |more: &[&str]| {
        ran(
            "redis-cli",
            &[&["-h", "127.0.0.1", "-p", &resp], more].concat(),
        )
        .1
    };
    assert_eq!(cli(&["--tls", "--cacert", &ca, "PING"]), "PONG\n");
    assert_ne!(cli(&["PING"]), "PONG\n", "who speaks no TLS is not served");
    let (_, plain) = curl(&[&format!("http://127.0.0.1:{http}/livez")]);
    assert!(!plain.contains("ok\n"), "{plain}");

    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(status.success() && !log.contains("cut off"), "{log}");
}

/// A client that has begun to connect, and says nothing, holds up no stop.
#[test]
fn who_never_greets_holds_up_no_stop() {
    let authority = Authority::new("an authority");
    let server = Started::serve(&(LISTENERS.to_owned() + &tls(&authority.sign("localhost", 2100))));
    let addresses = ["serves HTTP on https://", "RESP: ", "Live page: https://"]
        .map(|words| server.behind(words));
    let silent: Vec<_> = addresses
        .iter()
        .map(|at| std::net::TcpStream::connect(at).unwrap())
        .collect();
    // Who comes later is served, so these have been accepted.
    assert!(
        get(
            &authority.ca(),
            server.port("HTTP on https://"),
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
fn one_listener_may_want_certificates_of_clients() {
    let (authority, operators) = (Authority::new("an authority"), Authority::new("operators"));
    let config = format!(
        "{LISTENERS}{}[server.tls.admin]\nclient_ca = {:?}\n[server.tls.resp]\noff = true\n",
        tls(&authority.sign("localhost", 2100)),
        operators.ca()
    );
    let server = Started::serve(&config);
    let ca = authority.ca();
    let (http, admin) = (
        server.port("serves HTTP on https://"),
        server.port("Live page: https://"),
    );
    assert!(get(&ca, http, "/livez", &[]).0, "others need none");
    assert!(
        ran(
            "redis-cli",
            &["-p", &server.port("RESP: ").to_string(), "PING"]
        )
        .1
        .contains("PONG")
    );
    let (well, refused) = get(&ca, admin, "/metrics", &[]);
    assert!(
        !well && refused.contains("certificate required"),
        "{refused}"
    );
    let as_who = |(cert, key): (PathBuf, PathBuf)| {
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
        as_who(operators.sign("ann", 2100))
            .1
            .contains("ratekeeper_build_info")
    );
    for stranger in [authority.sign("bob", 2100), operators.sign("ann", 2001)] {
        assert!(!as_who(stranger).0);
    }
}

#[test]
fn a_new_certificate_and_new_clients_are_taken_when_their_files_change() {
    let (old, new) = (Authority::new("an authority"), Authority::new("another"));
    let files = old.sign("localhost", 2100);
    let clients = PathBuf::from(old.ca());
    let config = format!("{LISTENERS}{}client_ca = {clients:?}\n", tls(&files));
    let server = Started::serve(&config);
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
        assert!(get(&old, &old), "the one from before stays");
    }
    let (cert, key) = old.sign("localhost", 2100);
    fs::copy(key, &files.1).unwrap();
    fs::copy(cert, &files.0).unwrap();
    // Asked for by another's clients, it lets them in once the file has them.
    assert!(!get(&old, &new));
    fs::write(
        &clients,
        pem.clone() + &fs::read_to_string(new.ca()).unwrap(),
    )
    .unwrap();
    // The file is that of the authority too, so whoever asks goes by both.
    eventually("the new clients", || get(&old, &new));
}

#[test]
fn what_is_wrong_with_the_files_is_one_sentence() {
    let authority = Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let other = authority.sign("localhost", 2100).1;
    let missing = Path::new("/nowhere/cert.pem").to_owned();
    let with_ca = |ca: &Path| format!("{}client_ca = {ca:?}\n", tls(&(cert.clone(), key.clone())));
    for (tls, says) in [
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
        let (code, said) = told(&command.output().unwrap());
        assert_eq!(code, Some(2), "{said}");
        let said = said.lines().last().unwrap();
        assert!(
            said.contains(says) && said.contains("[server.tls] in the file of --config"),
            "{said}"
        );
    }
}

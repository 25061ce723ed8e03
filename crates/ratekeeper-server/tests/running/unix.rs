//! Unix sockets for any listener.

use crate::support::{config_file, directory, eventually, exit_output, service};
use crate::{
    ENVOY, HEALTH, RunningServer, TempDir, curl, health_request, plain, run_program, serve,
};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

const NAMES: [&str; 4] = ["http", "grpc", "resp", "admin"];

fn listeners(dir: &TempDir) -> String {
    let lines =
        NAMES.map(|name| format!("{name} = \"unix:{}\"\n", dir.file(&format!("{name}.sock"))));
    format!("[server]\n{}", lines.concat())
}

#[test]
fn every_listener_may_be_a_unix_socket() {
    let dir = TempDir::new("unix");
    let mut command = serve(&listeners(&dir));
    command
        .arg("--envoy-config")
        .arg(directory(&[("a.yaml", ENVOY)]));
    let server = RunningServer::run(command);
    for name in NAMES {
        let file = fs::metadata(dir.file(&format!("{name}.sock"))).unwrap();
        assert!(file.file_type().is_socket());
        assert_eq!(file.permissions().mode() & 0o777, 0o660, "{name}");
    }
    let on =
        |name: &str, more: &[&str]| curl(&[&["--unix-socket", &dir.file(name)], more].concat()).1;
    let check = |ip: &str| {
        let body = format!(r#"{{"subject":{{"ip":"{ip}","path":"/"}}}}"#);
        on("http.sock", &["http://localhost/v1/check", "-d", &body])
    };
    assert!(check("203.0.113.7").contains(r#""remaining":19"#));
    // Several workers accept from one queue.
    assert!(check("203.0.113.7").contains(r#""remaining":18"#));
    assert!(
        on("admin.sock", &["http://localhost/metrics"]).contains("ratelimit_requests_allowed 2\n")
    );
    let request = format!("@{}", health_request(&dir));
    let ask = [
        "--http2-prior-knowledge",
        "-H",
        "content-type: application/grpc",
        "--data-binary",
        &request,
    ];
    let answer = on(
        "grpc.sock",
        &[&ask[..], &[&format!("http://localhost{HEALTH}")]].concat(),
    );
    assert!(answer.contains("\u{8}\u{1}"), "{answer:?}");
    assert_eq!(
        run_program("redis-cli", &["-s", &dir.file("resp.sock"), "PING"]).1,
        "PONG\n"
    );

    server.signal("TERM");
    let (status, log) = server.ended();
    assert!(status.success() && !log.contains("cut off"), "{log}");
    for name in NAMES {
        assert!(
            !Path::new(&dir.file(&format!("{name}.sock"))).exists(),
            "{name} is removed"
        );
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_in_use() {
    let dir = TempDir::new("stale");
    let config = listeners(&dir);
    let server = RunningServer::serve(&config);
    let second = || {
        let mut command = plain();
        command
            .arg("serve")
            .arg("--config")
            .arg(config_file(&config));
        exit_output(&command.output().unwrap())
    };
    let (code, error) = second();
    assert_eq!(code, Some(2));
    let sock = dir.file("http.sock");
    assert!(
        error.contains(&format!("cannot listen on unix:{sock}: ")),
        "{error}"
    );
    assert!(
        error.contains("stop the program that listens there, or choose another path"),
        "{error}"
    );
    let probe = || curl(&["--unix-socket", &sock, "http://localhost/livez"]).1;
    assert_eq!(probe(), "ok\n", "the first server still runs");
    server.signal("KILL");
    server.ended();
    assert!(Path::new(&sock).exists());
    let _again = RunningServer::serve(&config);
    assert_eq!(probe(), "ok\n");
}

#[test]
fn a_file_that_is_not_a_socket_is_kept() {
    let dir = TempDir::new("file");
    fs::write(dir.file("http.sock"), "mine").unwrap();
    let mut command = plain();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(&listeners(&dir)));
    let (code, error) = exit_output(&command.output().unwrap());
    assert_eq!(code, Some(2));
    assert!(
        error.contains("the file is not a socket; remove it, or choose another path"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(dir.file("http.sock")).unwrap(), "mine");
    let config = format!("[server]\nhttp = \"unix:{}\"\n", dir.file("no/http.sock"));
    let mut command = plain();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(&config));
    let (_, error) = exit_output(&command.output().unwrap());
    assert!(error.contains("create its directory first"), "{error}");
}

/// A process that took over the path keeps its socket when the previous one ends.
#[test]
fn the_socket_of_another_process_is_not_removed() {
    let dir = TempDir::new("moved");
    let server = RunningServer::serve(&listeners(&dir));
    let sock = dir.file("http.sock");
    fs::remove_file(&sock).unwrap();
    let _other = UnixListener::bind(&sock).unwrap();
    server.signal("TERM");
    assert!(server.ended().0.success());
    assert!(Path::new(&sock).exists());
}

/// Clients of a Unix socket have no address and share one bucket, unless a trusted proxy sends
/// their addresses.
#[test]
fn a_gateway_on_a_unix_socket_can_trust_its_proxy() {
    let upstream = service();
    for (trusted, statuses) in [
        ("", ["200", "429", "429"]),
        ("\"unix\"", ["200", "200", "429"]),
    ] {
        let dir = TempDir::new("gateway");
        let sock = dir.file("http.sock");
        let config = format!(
            "[server]\nadmin = \"127.0.0.1:0\"\n[identity]\ntrusted_proxies = [{trusted}]\n[gateway]\nupstreams = \"http://{upstream}\"\n\
             [[policy]]\nname = \"each\"\nkey = \"ip\"\nlimit = \"1/d\"\n"
        );
        let mut command = plain();
        command
            .args(["proxy", "--listen", &format!("unix:{sock}"), "--config"])
            .arg(config_file(&config));
        let server = RunningServer::run(command);
        let ask = |ip: &str| {
            let header = format!("X-Forwarded-For: {ip}");
            curl(&[
                "--unix-socket",
                &sock,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-H",
                &header,
                "http://localhost/",
            ])
            .1
        };
        assert_eq!(
            ["203.0.113.1", "203.0.113.2", "203.0.113.1"].map(ask),
            statuses,
            "{trusted}"
        );
        server.signal("TERM");
        assert!(server.ended().0.success());
        assert!(!Path::new(&sock).exists());
    }
}

#[test]
fn a_real_nginx_asks_over_a_unix_socket() {
    let (dir, upstream) = (TempDir::new("nginx"), service());
    let config = format!(
        "{}[[policy]]\nname = \"api\"\nmatch = {{ path = \"/api/**\" }}\nkey = \"ip\"\nlimit = \"2/d\"\n",
        listeners(&dir)
    );
    let _server = RunningServer::serve(&config);
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy/nginx.conf");
    let ratekeeper = format!("http://unix:{}:/auth/nginx", dir.file("http.sock"));
    let snippet = fs::read_to_string(shipped)
        .unwrap()
        .replace("http://127.0.0.1:8080/auth/nginx", &ratekeeper);
    assert!(snippet.contains(&ratekeeper));
    let (own, front) = (dir.path().display(), dir.file("front.sock"));
    // Only the server's user and group may connect to its socket; nginx's workers run as that user
    // here.
    let config = format!(
        "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\nevents {{}}\nhttp {{ access_log off; \
         client_body_temp_path {own}; proxy_temp_path {own}; fastcgi_temp_path {own}; uwsgi_temp_path {own}; scgi_temp_path {own};\n\
         server {{ listen unix:{front}; set_real_ip_from unix:; real_ip_header X-Test;\n{snippet}\n\
         location / {{ auth_request /_ratekeeper; proxy_pass http://{upstream}; }} }} }}"
    );
    fs::write(dir.file("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(dir.file("nginx.conf"))
        .arg("-e")
        .arg(dir.file("error.log"));
    let mut nginx = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nginx; make tools installs it");
    eventually("nginx listens", || Path::new(&front).exists());
    let ask = |ip: &str| {
        let header = format!("X-Test: {ip}");
        curl(&[
            "--unix-socket",
            &front,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            &header,
            "http://localhost/api/x",
        ])
        .1
    };
    let asked = ["203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"].map(ask);
    nginx.kill().unwrap();
    nginx.wait().unwrap();
    assert_eq!(asked, ["200", "200", "429", "200"]);
}

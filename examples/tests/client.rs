//! The client example against the gateway: without the layer many requests are denied, with it
//! none. And the layer around a tonic channel, against a tonic server with a limit.

use ratekeeper::Limit;
use ratekeeper_tower::RateLimitLayer;
use ratekeeper_tower::client::ClientLayer;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

/// The directory of cargo's build output.
fn built() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// The client example, which cargo builds before the tests.
fn example() -> Command {
    let program = built().join("examples").join("client");
    assert!(
        program.exists(),
        "{} is not there; `cargo test -p ratekeeper-examples` builds it",
        program.display()
    );
    Command::new(program)
}

/// The gateway's program. Tests of the whole workspace build it; tests of this package alone do
/// not.
fn ratekeeper() -> Command {
    let program = built().join("ratekeeper");
    if !program.exists() {
        let target = built().parent().unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "-q", "-p", "ratekeeper-server", "--target-dir"])
            .arg(target);
        build.args(if cfg!(debug_assertions) {
            &[][..]
        } else {
            &["--release"]
        });
        assert!(build.status().unwrap().success());
    }
    Command::new(program)
}

/// A web service that responds `hello`, on a free port.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                // One request after the other, each up to its empty line.
                while lines.by_ref().take_while(|line| !line.is_empty()).count() > 0 {
                    if stream
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                        .is_err()
                    {
                        break;
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

struct Gateway {
    child: Child,
    url: String,
}

impl Gateway {
    fn in_front_of(upstream: &str, limit: &str) -> Self {
        let mut command = ratekeeper();
        command.args([
            "proxy",
            "--upstream",
            upstream,
            "--limit",
            limit,
            "--listen",
            "127.0.0.1:0",
        ]);
        command.env("RATEKEEPER_SERVER__ADMIN", "127.0.0.1:0");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut url = String::new();
        while url.is_empty() {
            let mut line = String::new();
            assert!(
                stdout.read_line(&mut line).unwrap() > 0,
                "the gateway ended"
            );
            url = line
                .split_whitespace()
                .find(|word| word.starts_with("http://127.0.0.1:"))
                .unwrap_or_default()
                .into();
            url = url.trim_end_matches([',', '.', ';', '/']).to_owned();
            if url == upstream {
                url.clear();
            }
        }
        // Drains the output, so that the gateway does not block on a full pipe.
        thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        Self { child, url }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The last line of the example's output.
fn last_line(arguments: &[&str]) -> String {
    let output = example().args(arguments).output().unwrap();
    let (printed, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{printed}{errors}");
    assert_eq!(printed.lines().count(), 26, "{printed}");
    printed.lines().last().unwrap().to_owned()
}

fn denied(line: &str) -> u32 {
    line.rsplit(", ")
        .next()
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn with_the_layer_no_request_is_denied() {
    let upstream = upstream();
    let limited = Gateway::in_front_of(&upstream, "10/s burst 5");
    let line = last_line(&[&limited.url]);
    assert_eq!(denied(&line), 0, "{line}");
    // A limit by the hour, so that this holds however slow the machine is.
    let plain = Gateway::in_front_of(&upstream, "5/h");
    let line = last_line(&[&plain.url, "plain"]);
    assert_eq!(denied(&line), 20, "{line}");
}

#[test]
fn without_a_gateway_the_error_is_one_sentence() {
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = example().arg(format!("http://{unused}")).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && errors.contains("is the gateway running?"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[tokio::test]
async fn a_tonic_channel_waits_before_the_limit_of_a_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(RateLimitLayer::per_ip(Limit::per_hour(3)))
        .add_service(health);
    let server = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{at}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut client = HealthClient::new(ClientLayer::new().layer(channel));
    for _ in 0..3 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    // The third response said that nothing remains: the fourth call is not sent.
    let status = client
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_ne!(status.code(), tonic::Code::ResourceExhausted);
    assert!(format!("{status:?}").contains("Paused"), "{status:?}");
    server.abort();
}

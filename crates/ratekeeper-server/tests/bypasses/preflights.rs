//! CORS preflight requests are counted by address, by a limit of their own.

use crate::layer;
use crate::service::echo;
use crate::support::{Server, config_file, directory, eventually, ratekeeper};
use crate::table::{EntryPoint, Group, TestRequest};
use crate::{auth_status, http1_status};
use ratekeeper_policy::request::Preflight;
use std::fs;

const PREFLIGHT: TestRequest = TestRequest {
    method: "OPTIONS",
    headers: &[
        ("Origin", "https://a.example"),
        ("Access-Control-Request-Method", "POST"),
    ],
    ..TestRequest::GET
};

fn gateway(more: &str) -> Server {
    let (upstream, _) = echo();
    let mut command = ratekeeper();
    let text = format!(
        "[gateway]\nupstreams = [\"http://{upstream}\"]\n{more}[[policy]]\nname = \"all\"\nlimit = \"1/d\"\n"
    );
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&text));
    Server::run(command)
}

#[test]
fn preflights_are_counted_by_address_apart_from_the_policies() {
    let log = directory(&[]).join("access.log");
    let server = gateway(&format!(
        "preflight = \"2/d\"\naccess_log = {:?}\n",
        log.display().to_string()
    ));
    let mut connection = server.connect();
    let status = |sent: &TestRequest| http1_status(&mut server.connect(), sent);
    assert_eq!(
        [status(&TestRequest::GET), status(&TestRequest::GET)],
        [200, 429],
        "the policy is used up"
    );
    assert_eq!(
        [status(&PREFLIGHT), status(&PREFLIGHT), status(&PREFLIGHT)],
        [200, 200, 429]
    );
    connection.write(
        "OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    );
    let denied = connection.answer();
    assert_eq!(
        (denied.status(), denied.header("x-ratelimit-limit")),
        (429, Some("2")),
        "{denied:?}"
    );
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(
        server.metric("ratekeeper_preflights_total{outcome=\"allowed\"}"),
        2.0
    );
    assert_eq!(
        server.metric("ratekeeper_preflights_total{outcome=\"denied\"}"),
        2.0
    );
    eventually("a line of each", || {
        fs::read_to_string(&log).unwrap().lines().count() == 6
    });
    let lines = fs::read_to_string(&log).unwrap();
    let denials = lines
        .lines()
        .filter(|line| line.contains("\"preflight\"") && line.contains("\"denied\""))
        .count();
    assert_eq!(denials, 2, "{lines}");
}

#[test]
fn the_gateway_may_count_or_exempt_preflights() {
    let count = gateway("preflight = \"count\"\n");
    let statuses = [&PREFLIGHT, &PREFLIGHT].map(|sent| http1_status(&mut count.connect(), sent));
    assert_eq!(statuses, [200, 429]);
    let exempt = gateway("preflight = \"exempt\"\n");
    assert!((0..200).all(|_| http1_status(&mut exempt.connect(), &PREFLIGHT) == 200));
}

#[test]
fn by_default_a_client_has_a_hundred_preflights_at_once() {
    let server = gateway("");
    let mut connection = server.connect();
    let passed = (0..150)
        .filter(|_| http1_status(&mut connection, &PREFLIGHT) == 200)
        .count();
    // A few tokens are refilled during the test.
    assert!((100..150).contains(&passed), "{passed}");
}

const ALL: Group = Group {
    name: "all",
    before: "",
    gateway: "",
    config: "[[policy]]\nname = \"all\"\nlimit = \"1/d\"\n",
    honest: TestRequest::GET,
    attempts: &[],
    passes: &[],
};

/// Also where nothing says how preflights are counted.
#[test]
fn so_does_auth() {
    for entry_point in [
        EntryPoint::Nginx,
        EntryPoint::Caddy,
        EntryPoint::Traefik,
        EntryPoint::Envoy,
    ] {
        let server =
            Server::with_config(&format!("{}[server]\nhttp = \"127.0.0.1:0\"\n", ALL.config));
        let status = |asked: &TestRequest| auth_status(&server, entry_point, asked);
        let statuses: Vec<u16> = (0..150).map(|_| status(&PREFLIGHT)).collect();
        let passed = statuses.iter().filter(|status| **status == 200).count();
        assert!((100..150).contains(&passed), "{entry_point:?}: {passed}");
        assert!(
            statuses.iter().all(|status| [200, 429].contains(status)),
            "{entry_point:?}: {statuses:?}"
        );
        // Apart from the policies, both ways.
        assert_eq!(
            [status(&TestRequest::GET), status(&TestRequest::GET)],
            [200, 429],
            "{entry_point:?}"
        );
        assert_eq!(
            server.metric("ratekeeper_preflights_total{outcome=\"allowed\"}"),
            passed as f64,
            "{entry_point:?}"
        );
    }
}

#[test]
fn the_layer_counts_preflights_too() {
    let layer = layer::of(&ALL);
    let passed = (0..150)
        .filter(|_| layer::status(&layer, &PREFLIGHT) == 200)
        .count();
    assert!((100..150).contains(&passed), "{passed}");
    let counted = layer::of(&ALL).preflight(Preflight::Count);
    assert_eq!(
        [&PREFLIGHT, &PREFLIGHT].map(|sent| layer::status(&counted, sent)),
        [200, 429]
    );
}

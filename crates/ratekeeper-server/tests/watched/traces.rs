//! Spans as a collector receives them, parsed with OpenTelemetry's protobuf messages.

use crate::support::{Server, config_file, eventually, ratekeeper};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

/// The head of a request, in lower case, and its body.
type Sent = (String, Vec<u8>);

type Attributes = BTreeMap<String, String>;

/// A service that stores requests and answers 200.
#[derive(Clone)]
struct Receiver {
    at: SocketAddr,
    got: Arc<Mutex<Vec<Sent>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            at: listener.local_addr().unwrap(),
            got: Arc::default(),
        };
        let got = Arc::clone(&this.got);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
                let head = head.to_ascii_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                if reader.read_exact(&mut body).is_ok() && !head.is_empty() {
                    got.lock().unwrap().push((head, body));
                    let _ = stream.write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    );
                }
            }
        });
        this
    }

    fn requests(&self) -> Vec<Sent> {
        self.got.lock().unwrap().clone()
    }

    /// All spans, each with its attributes and those of its resource.
    fn spans(&self) -> Vec<(Span, Attributes, Attributes)> {
        let mut spans = Vec::new();
        for (head, body) in self.requests() {
            assert!(
                head.starts_with("post /v1/traces ")
                    && head.contains("content-type: application/x-protobuf"),
                "{head}"
            );
            for of_resource in ExportTraceServiceRequest::decode(&*body)
                .unwrap()
                .resource_spans
            {
                let resource = attributes(&of_resource.resource.unwrap().attributes);
                for span in of_resource
                    .scope_spans
                    .into_iter()
                    .flat_map(|scope| scope.spans)
                {
                    let of_span = attributes(&span.attributes);
                    spans.push((span, of_span, resource.clone()));
                }
            }
        }
        spans
    }
}

fn attributes(list: &[KeyValue]) -> Attributes {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let one = |one: &KeyValue| {
        (
            one.key.clone(),
            one.value
                .as_ref()
                .and_then(|value| value.value.as_ref())
                .map(text)
                .unwrap(),
        )
    };
    list.iter().map(one).collect()
}

fn expected(pairs: &[(&str, &str)]) -> Attributes {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn gateway(upstream: SocketAddr, traces: &str) -> Server {
    let file = config_file(&format!(
        "[traces]\n{traces}\n[[policy]]\nname = \"all\"\nkey = [\"header:x-who\"]\nlimit = \"1/d\"\n"
    ));
    let mut command = ratekeeper();
    command
        .args([
            "proxy",
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            &format!("http://{upstream}"),
            "--config",
        ])
        .arg(file);
    Server::run(command)
}

/// Sends a request with headers. Returns the status.
fn ask(server: &Server, headers: &str) -> u16 {
    let mut connection = server.connect();
    connection.write(&format!(
        "GET /secret-path HTTP/1.1\r\nHost: a\r\n{headers}\r\n"
    ));
    connection.answer().status()
}

#[test]
fn a_request_of_the_gateway_is_a_span_between_its_caller_and_the_upstream() {
    let (collector, upstream) = (Receiver::start(), Receiver::start());
    let server = gateway(
        upstream.at,
        &format!("endpoint = \"http://{}\"\npercent = 0", collector.at),
    );
    let caller = format!("x-who: somebody\r\ntraceparent: 00-{TRACE}-{CALLER}-01\r\n");
    assert_eq!((ask(&server, &caller), ask(&server, &caller)), (200, 429));
    eventually("both spans", || collector.spans().len() == 2);
    let spans = collector.spans();
    let (span, attributes, resource) = &spans[0];
    assert_eq!(
        (hex(&span.trace_id), hex(&span.parent_span_id)),
        (TRACE.to_owned(), CALLER.to_owned())
    );
    assert!(
        (&*span.name, span.kind) == ("GET", 2)
            && span.start_time_unix_nano <= span.end_time_unix_nano
    );
    let at = format!("http://{}", upstream.at);
    let passes = [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("ratekeeper.outcome", "allowed"),
        ("ratekeeper.upstream", &at),
    ];
    assert_eq!(*attributes, expected(&passes));
    assert_eq!(
        *resource,
        expected(&[
            ("service.name", "ratekeeper"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("ratekeeper.store", "memory")
        ])
    );
    let denied = [
        ("http.request.method", "GET"),
        ("http.response.status_code", "429"),
        ("ratekeeper.outcome", "denied"),
        ("ratekeeper.policy", "all"),
    ];
    assert_eq!(spans[1].1, expected(&denied));
    // The upstream's spans are children of the gateway's.
    let (head, _) = &upstream.requests()[0];
    assert!(
        head.contains(&format!(
            "traceparent: 00-{TRACE}-{}-01\r\n",
            hex(&span.span_id)
        )),
        "{head}"
    );
    // No key, path or address is sent.
    let sent = collector
        .requests()
        .into_iter()
        .flat_map(|(_, body)| body)
        .collect::<Vec<u8>>();
    let sent = String::from_utf8_lossy(&sent).into_owned();
    assert!(
        !sent.contains("somebody")
            && !sent.contains("secret-path")
            && !sent.contains("127.0.0.1\0"),
        "{sent}"
    );
    eventually("they are counted", || {
        server.metric("ratekeeper_traces_sent_total") == 2.0
    });
    assert_eq!(server.metric("ratekeeper_traces_lost_total"), 0.0);
}

#[test]
fn the_sampling_decision_of_the_caller_applies_and_is_forwarded() {
    let (collector, upstream) = (Receiver::start(), Receiver::start());
    let server = gateway(
        upstream.at,
        &format!("endpoint = \"http://{}\"\npercent = 100", collector.at),
    );
    let unsampled = format!("traceparent: 00-{TRACE}-{CALLER}-00\r\n");
    ask(&server, &format!("x-who: a\r\n{unsampled}"));
    // The next request has no traceparent and starts a trace.
    ask(&server, "x-who: b\r\n");
    eventually("a span", || !collector.spans().is_empty());
    let spans = collector.spans();
    assert_eq!(spans.len(), 1);
    assert!(spans[0].0.parent_span_id.is_empty() && hex(&spans[0].0.trace_id) != TRACE);
    assert!(
        upstream.requests()[0].0.contains(&unsampled),
        "{:?}",
        upstream.requests()
    );
}

#[test]
fn a_decision_is_a_span_with_policy_outcome_and_source() {
    let collector = Receiver::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[traces]\nendpoint = \"http://{}\"\npercent = 100\n\
         [[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"1/d\"\n",
        collector.at
    ));
    let body = json!({"subject": {"user": "somebody"}}).to_string();
    for status in [200, 429] {
        assert_eq!(server.check(&body).status(), status);
    }
    eventually("both spans", || collector.spans().len() == 2);
    let common = [
        ("http.request.method", "POST"),
        ("http.route", "/v1/check"),
        ("ratekeeper.source", "memory"),
    ];
    let allowed = [
        ("http.response.status_code", "200"),
        ("ratekeeper.outcome", "allowed"),
    ];
    let denied = [
        ("http.response.status_code", "429"),
        ("ratekeeper.outcome", "denied"),
        ("ratekeeper.policy", "user"),
    ];
    let spans = collector.spans();
    assert_eq!(spans[0].1, expected(&[&common[..], &allowed].concat()));
    assert_eq!(spans[1].1, expected(&[&common[..], &denied].concat()));
    assert_eq!(
        (
            &*spans[0].0.name,
            spans[0].0.trace_id.len(),
            spans[0].0.span_id.len()
        ),
        ("POST /v1/check", 16, 8)
    );
}

/// The last spans are sent before the process ends.
#[test]
fn a_shutdown_loses_no_span() {
    let collector = Receiver::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[traces]\nendpoint = \"http://{}\"\npercent = 100\n",
        collector.at
    ));
    server.throttle(r#"{"key":"a","limit":"1/d"}"#);
    server.signal("TERM");
    server.ended();
    assert_eq!(collector.spans().len(), 1);
}

#[test]
fn an_unavailable_collector_is_logged_and_delays_no_request() {
    let (upstream, gone) = (
        Receiver::start(),
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap(),
    );
    let server = gateway(
        upstream.at,
        &format!("endpoint = \"http://{gone}\"\npercent = 100"),
    );
    for who in 0..20 {
        assert_eq!(ask(&server, &format!("x-who: {who}\r\n")), 200);
    }
    eventually("the spans are counted as lost", || {
        server.metric("ratekeeper_traces_lost_total") == 20.0
    });
    server.signal("TERM");
    let (_, log) = server.ended();
    let lines = log
        .matches(&format!(
            "spans dropped: collector http://{gone}: cannot connect"
        ))
        .count();
    assert!((1..=12).contains(&lines), "{log}");
}

/// Without [traces], `traceparent` is forwarded unchanged.
#[test]
fn without_traces_requests_are_unchanged() {
    let upstream = Receiver::start();
    let server = gateway(upstream.at, "");
    let caller = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
    assert_eq!(ask(&server, &format!("x-who: a\r\n{caller}")), 200);
    assert!(
        upstream.requests()[0].0.contains(&caller),
        "{:?}",
        upstream.requests()
    );
    assert!(
        !server
            .admin("GET", "/metrics")
            .body
            .contains("ratekeeper_traces")
    );
}

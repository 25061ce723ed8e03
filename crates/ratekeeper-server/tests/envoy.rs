//! Envoy's rate limit service, called by tonic's gRPC client.

#[path = "../proto/mod.rs"]
mod proto;
mod support;

use prost::Message;
use prost_types::FileDescriptorProto;
use proto::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use support::{Server, directory, eventually, exit_output, for_envoy};
use tokio::runtime::Runtime;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const OK: i32 = 1;
const OVER: i32 = 2;

const EDGE: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 3 }
";

/// A client that blocks.
struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    fn of(server: &Server) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let url = format!("http://{}", server.grpc.unwrap());
        let channel = runtime
            .block_on(Channel::from_shared(url).unwrap().connect())
            .unwrap();
        Self { runtime, channel }
    }

    fn ask(&self, domain: &str, descriptors: &[(&str, &str)]) -> Result<RateLimitResponse, Status> {
        self.send(Request::new(request(domain, descriptors)))
    }

    fn send(&self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.runtime
            .block_on(client.should_rate_limit(request))
            .map(tonic::Response::into_inner)
    }

    fn code(&self, value: &str) -> i32 {
        self.ask("edge", &[("remote_address", value)])
            .unwrap()
            .overall_code
    }

    fn health(&self, service: &str) -> Result<ServingStatus, Status> {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let mut client = HealthClient::new(self.channel.clone());
        self.runtime
            .block_on(client.check(request))
            .map(|response| response.into_inner().status())
    }

    fn reflect(&self, message: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message),
        };
        let mut client = ServerReflectionClient::new(self.channel.clone());
        let answer: ServerReflectionResponse = self.runtime.block_on(async {
            let stream = client
                .server_reflection_info(tokio_stream::iter([request]))
                .await
                .unwrap();
            stream.into_inner().next().await.unwrap().unwrap()
        });
        answer.message_response.unwrap()
    }

    /// A file that reflection describes, and all that it needs.
    fn files(&self, name: &str) -> BTreeSet<String> {
        let answer = self.reflect(MessageRequest::FileByFilename(name.into()));
        let MessageResponse::FileDescriptorResponse(answer) = answer else {
            panic!("{name}: {answer:?}")
        };
        let mut files = BTreeSet::from([name.to_owned()]);
        for bytes in &answer.file_descriptor_proto {
            let file = FileDescriptorProto::decode(&**bytes).unwrap();
            for needed in &file.dependency {
                files.extend(self.files(needed));
            }
        }
        files
    }
}

fn request(domain: &str, descriptors: &[(&str, &str)]) -> RateLimitRequest {
    let descriptor = |(key, value): &(&str, &str)| RateLimitDescriptor {
        entries: vec![Entry {
            key: (*key).into(),
            value: (*value).into(),
        }],
        limit: None,
        hits_addend: None,
        is_negative_hits: false,
    };
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

fn serving(config: &Path) -> Server {
    Server::run(for_envoy(config))
}

#[test]
fn a_directory_of_envoyproxy_ratelimit_is_loaded() {
    // As deployed: in `config`, beside other files.
    let root = directory(&[("README.md", "not YAML: {")]);
    fs::create_dir(root.join("config")).unwrap();
    fs::write(root.join("config/edge.yaml"), EDGE).unwrap();
    fs::write(root.join("config/.hidden.yaml"), "not YAML: {").unwrap();
    let server = serving(&root);
    let client = Client::of(&server);
    for remaining in [2, 1, 0] {
        let response = client
            .ask("edge", &[("remote_address", "a"), ("other", "b")])
            .unwrap();
        let [limited, free] = &response.statuses[..] else {
            panic!("{response:?}")
        };
        assert_eq!(
            (response.overall_code, limited.code, limited.limit_remaining),
            (OK, OK, remaining)
        );
        assert_eq!(
            limited
                .current_limit
                .as_ref()
                .map(|limit| (limit.requests_per_unit, limit.unit)),
            Some((3, 4))
        );
        assert!((1..=86_400).contains(&limited.duration_until_reset.unwrap().seconds));
        assert_eq!((free.code, &free.current_limit), (OK, &None));
    }
    assert_eq!(client.code("a"), OVER);
    assert_eq!(client.code("b"), OK);
    assert_eq!(
        client
            .ask("elsewhere", &[("remote_address", "a")])
            .unwrap()
            .overall_code,
        OK
    );
    for (domain, descriptors) in [("", &[("remote_address", "a")][..]), ("edge", &[])] {
        assert_eq!(
            client.ask(domain, descriptors).unwrap_err().code(),
            Code::InvalidArgument
        );
    }
    assert_eq!(server.metric("ratelimit_requests_blocked"), 1.0);
    assert_eq!(server.metric("ratelimit_requests_allowed"), 5.0);
    assert_eq!(
        server.metric(
            "ratekeeper_decisions_total{policy=\"envoy edge.remote_address\",outcome=\"denied\"}"
        ),
        1.0
    );
}

#[test]
fn health_and_reflection_report_the_state() {
    let server = serving(&directory(&[("edge.yaml", EDGE)]));
    let client = Client::of(&server);
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(client.health(service).unwrap(), ServingStatus::Serving);
    }
    assert_eq!(client.health("nobody").unwrap_err().code(), Code::NotFound);
    let MessageResponse::ListServicesResponse(services) =
        client.reflect(MessageRequest::ListServices("".into()))
    else {
        panic!("no services")
    };
    let names: Vec<String> = services
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(
        names.contains(&"envoy.service.ratelimit.v3.RateLimitService".to_owned()),
        "{names:?}"
    );
    assert!(
        names.contains(&"grpc.health.v1.Health".to_owned()),
        "{names:?}"
    );
    let symbol = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor".to_owned();
    let described = client.reflect(MessageRequest::FileContainingSymbol(symbol));
    assert!(
        matches!(described, MessageResponse::FileDescriptorResponse(_)),
        "{described:?}"
    );
    let files = client.files("envoy/service/ratelimit/v3/rls.proto");
    for file in [
        "envoy/config/core/v3/base.proto",
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy/type/v3/ratelimit_unit.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/timestamp.proto",
        "google/protobuf/wrappers.proto",
    ] {
        assert!(files.contains(file), "{file} is not in {files:?}");
    }
    // A watch gets one status, and another one when the server stops.
    let statuses: Vec<HealthCheckResponse> = client.runtime.block_on(async {
        let mut client = HealthClient::new(client.channel.clone());
        let stream = client
            .watch(HealthCheckRequest::default())
            .await
            .unwrap()
            .into_inner();
        let mut seen = Vec::new();
        let mut stream = std::pin::pin!(stream);
        seen.push(stream.next().await.unwrap().unwrap());
        server.signal("TERM");
        seen.push(stream.next().await.unwrap().unwrap());
        assert!(stream.next().await.is_none());
        seen
    });
    let statuses: Vec<ServingStatus> = statuses.iter().map(HealthCheckResponse::status).collect();
    assert_eq!(
        statuses,
        [ServingStatus::Serving, ServingStatus::NotServing]
    );
    let (status, log) = server.ended();
    assert!(status.success(), "{log}");
}

#[test]
fn a_changed_file_is_loaded_and_an_invalid_one_reported() {
    let limits = directory(&[("edge.yaml", EDGE)]);
    let server = serving(&limits);
    let client = Client::of(&server);
    assert_eq!([(); 4].map(|()| client.code("a")), [OK, OK, OK, OVER]);
    // Invalid: the old one stays.
    fs::write(limits.join("more.yaml"), "domain: more\ndescriptor: []\n").unwrap();
    eventually("a refusal", || {
        server.metric("ratekeeper_config_reloads_total{result=\"rejected\"}") >= 1.0
    });
    assert_eq!((client.code("a"), client.code("b")), (OVER, OK));
    // Valid: both are in force.
    fs::write(
        limits.join("more.yaml"),
        EDGE.replace("edge", "more").replace("3 }", "1 }"),
    )
    .unwrap();
    eventually("a reload", || {
        server.metric("ratekeeper_config_stale") == 0.0
    });
    let more = || {
        client
            .ask("more", &[("remote_address", "a")])
            .unwrap()
            .overall_code
    };
    assert_eq!((more(), more(), client.code("a")), (OK, OVER, OVER));
    fs::write(limits.join("edge.yaml"), EDGE.replace("3 }", "5 }")).unwrap();
    server.signal("HUP");
    eventually("the new limit", || {
        let status = client
            .ask("edge", &[("remote_address", "a")])
            .unwrap()
            .statuses
            .remove(0);
        status.current_limit.unwrap().requests_per_unit == 5
    });
    // An open connection would delay the stop.
    drop(client);
    server.signal("TERM");
    let (_, log) = server.ended();
    let expected =
        "more.yaml:2:1: error: unknown key `descriptor`, expected one of domain, descriptors";
    assert!(log.contains(expected), "{log}");
}

#[test]
fn errors_at_the_start_are_printed_and_end_the_process() {
    let limits = directory(&[
        ("a.yaml", "domain: a\nx: 1\n"),
        ("b.yaml", "domain: b\ndescriptors: 3\n"),
        ("c.yaml", EDGE),
    ]);
    let failed_start = |limits: &Path| exit_output(&for_envoy(limits).output().unwrap());
    let (code, said) = failed_start(&limits);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((code, lines.len()), (Some(2), 2), "{said}");
    assert!(
        lines[0]
            .ends_with("a.yaml:2:1: error: unknown key `x`, expected one of domain, descriptors"),
        "{said}"
    );
    assert!(lines[1].contains("b.yaml:2:14: error: "), "{said}");
    let (code, said) = failed_start(&directory(&[]));
    assert!(
        code == Some(2) && said.contains("no .yaml or .yml file"),
        "{said}"
    );
    let (code, said) = failed_start(Path::new("/nowhere"));
    assert!(code == Some(2) && said.contains("cannot be read"), "{said}");
}

#[test]
fn the_same_as_json() {
    let limits = directory(&[("edge.yaml", EDGE)]);
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n[envoy]\nconfig = {:?}\nresponse_headers = true\ndynamic_metadata = true\n",
        limits.display().to_string()
    );
    let server = Server::with_config(&config);
    let ask = |body: &str| server.request("POST", "/json", body);
    let body = r#"{"domain":"edge","hitsAddend":"2","descriptors":[{"entries":[{"key":"remote_address","value":"a"}]}]}"#;
    let answer = ask(body);
    let json = answer.json();
    assert_eq!(answer.status(), 200);
    assert_eq!(json["overallCode"], "OK");
    assert_eq!(
        json["statuses"][0]["currentLimit"],
        json!({ "requestsPerUnit": 3, "unit": "DAY" })
    );
    assert_eq!(json["statuses"][0]["limitRemaining"], 1);
    assert!(
        json["statuses"][0]["durationUntilReset"]
            .as_str()
            .unwrap()
            .ends_with('s')
    );
    assert_eq!(
        json["responseHeadersToAdd"][0],
        json!({ "key": "RateLimit-Limit", "value": "3" })
    );
    assert_eq!(json["dynamicMetadata"]["domain"], "edge");
    let answer = ask(body);
    assert_eq!(
        (answer.status(), &answer.json()["overallCode"]),
        (429, &json!("OVER_LIMIT"))
    );
    assert!(
        answer.header("retry-after").is_some()
            && answer.header("cache-control") == Some("no-store")
    );
    // A peek, an override, a refund.
    let one = |rest: &str| {
        format!(
            r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"remote_address","value":"a"}}],{rest}}}]}}"#
        )
    };
    let peek = || ask(&one(r#""hits_addend":0"#));
    // Denied hits used up the last one.
    assert_eq!(
        (
            peek().status(),
            &peek().json()["statuses"][0]["limitRemaining"]
        ),
        (429, &json!(null))
    );
    let brought = ask(&one(r#""limit":{"requestsPerUnit":9,"unit":"YEAR"}"#)).json();
    assert_eq!(
        brought["statuses"][0]["currentLimit"],
        json!({ "requestsPerUnit": 9, "unit": "YEAR" })
    );
    assert_eq!(
        ask(&one(r#""hitsAddend":1,"isNegativeHits":true"#)).json()["statuses"][0]["limitRemaining"],
        1
    );
    assert_eq!(
        (
            peek().status(),
            &peek().json()["statuses"][0]["limitRemaining"]
        ),
        (200, &json!(1))
    );
    for bad in [
        "",
        "{",
        "[]",
        r#"{"domain":"edge","x":1}"#,
        &one(r#""limit":{"unit":"EON"}"#),
        &one(r#""hitsAddend":"x""#),
    ] {
        ask(bad).problem(400, "invalid_json");
    }
    for bad in [
        r#"{"domain":"","descriptors":[{}]}"#,
        r#"{"domain":"edge","descriptors":[]}"#,
    ] {
        ask(bad).problem(400, "invalid_field");
    }
    let many = |descriptors: usize, entries: usize| {
        let entries = vec![r#"{"key":"x","value":"y"}"#; entries].join(",");
        let descriptors = vec![format!(r#"{{"entries":[{entries}]}}"#); descriptors].join(",");
        format!(r#"{{"domain":"edge","descriptors":[{descriptors}]}}"#)
    };
    assert_eq!(
        [ask(&many(128, 1)).status(), ask(&many(1, 64)).status()],
        [200, 200]
    );
    assert!(
        ask(&many(129, 1))
            .problem(400, "invalid_field")
            .contains("more than 128 descriptors")
    );
    assert!(
        ask(&many(1, 65))
            .problem(400, "invalid_field")
            .contains("more than 64 entries")
    );
    // The same over gRPC.
    let client = Client::of(&server);
    assert!(client.ask("edge", &[("x", "y"); 128]).is_ok());
    let refused = client.ask("edge", &[("x", "y"); 129]).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("more than 128 descriptors"),
        "{refused}"
    );
    assert_eq!(server.request("GET", "/json", "").status(), 405);
}

#[test]
fn an_unavailable_store_is_an_error_and_never_hangs() {
    let redis = RedisServer::start();
    let limits = directory(&[("edge.yaml", EDGE)]);
    let on = |on_failure: &str| {
        Server::with_config(&format!(
            "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n[envoy]\nconfig = {:?}\n\
             [store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\non_failure = \"{on_failure}\"\n",
            limits.display().to_string(),
            redis.url()
        ))
    };
    let nodes = [on("closed"), on("closed"), on("open")];
    let clients = nodes.each_ref().map(Client::of);
    // All hold one limit.
    let codes: Vec<i32> = (0..4).map(|turn| clients[turn % 3].code("a")).collect();
    assert_eq!(codes, [OK, OK, OK, OVER]);
    drop(redis);
    let mut soon = Request::new(request("edge", &[("remote_address", "b")]));
    // Earlier than the store's timeout, which would be DEADLINE_EXCEEDED and not UNAVAILABLE.
    soon.set_timeout(Duration::from_secs(4));
    let refused = clients[0].send(soon).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    eventually("NOT_SERVING", || {
        let _ = clients[0].ask("edge", &[("remote_address", "b")]);
        clients[0].health("").unwrap() == ServingStatus::NotServing
    });
    let body =
        r#"{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"b"}]}]}"#;
    nodes[1]
        .request("POST", "/json", body)
        .problem(503, "unavailable");
    assert_eq!(clients[2].code("a"), OK);
    assert_eq!(clients[2].health("").unwrap(), ServingStatus::Serving);
}

/// Hits charged after the response, by several nodes concurrently: no more is charged than the
/// limit has, and hits that are denied use up the rest.
#[test]
fn hits_charged_after_the_response_limit_the_next_request_on_every_node() {
    let redis = RedisServer::start();
    let limits = directory(&[("edge.yaml", &EDGE.replace("3 }", "50 }"))]);
    let node = |store: &str| {
        Server::with_config(&format!(
            "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n[envoy]\nconfig = {:?}\n{store}",
            limits.display().to_string(),
        ))
    };
    let on_redis = || {
        node(&format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
            redis.url()
        ))
    };
    for nodes in [vec![node("")], vec![on_redis(), on_redis()]] {
        let clients: Vec<Client> = nodes.iter().map(Client::of).collect();
        let status = |turn: usize, value: &str, hits: u64| {
            let mut request = request("edge", &[("remote_address", value)]);
            request.descriptors[0].hits_addend = Some(hits);
            let response = clients[turn % clients.len()]
                .send(Request::new(request))
                .unwrap();
            (response.overall_code, response.statuses[0].limit_remaining)
        };
        let passed = (0..30).filter(|turn| {
            let passes = status(*turn, "a", 0).0 == OK;
            if passes {
                status(turn + 1, "a", 20);
            }
            passes
        });
        assert_eq!(passed.count(), 3);
        // Concurrently: 7 times 7 are allowed, and another one uses up the last hit.
        let charged: usize = std::thread::scope(|scope| {
            let charging: Vec<_> = (0..8)
                .map(|turn| {
                    let node = &nodes[turn % nodes.len()];
                    scope.spawn(move || {
                        let client = Client::of(node);
                        let charge = || {
                            let mut request = request("edge", &[("remote_address", "b")]);
                            request.descriptors[0].hits_addend = Some(7);
                            client.send(Request::new(request)).unwrap().overall_code == OK
                        };
                        (0..10).filter(|_| charge()).count()
                    })
                })
                .collect();
            charging
                .into_iter()
                .map(|charging| charging.join().unwrap())
                .sum()
        });
        assert_eq!(charged, 7);
        assert_eq!(status(0, "b", 0), (OVER, 0));
    }
}

#[test]
fn without_limits_there_is_no_listener() {
    assert_eq!(Server::start().grpc, None);
}

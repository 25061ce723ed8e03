//! A client for each protocol, each with its own connection.

use crate::proto::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use crate::support::{Connection, Server};
use crate::tally::Answer;
use ratekeeper_testkit::resp;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

pub(crate) trait DecisionClient {
    fn request(&mut self, key: usize) -> Answer;
}

fn answer_of(status: u16) -> Answer {
    match status {
        200 => Answer::Allowed,
        429 => Answer::Denied,
        503 => Answer::Undecided,
        status => panic!("unexpected status {status}"),
    }
}

/// `POST /v1/check`.
pub(crate) struct Check {
    connection: Connection,
    path: &'static str,
}

impl Check {
    pub(crate) fn new(address: SocketAddr, path: &'static str) -> Self {
        Self {
            connection: Server::connect_to(address),
            path,
        }
    }
}

impl DecisionClient for Check {
    fn request(&mut self, key: usize) -> Answer {
        let body = json!({"subject": {"user": format!("u{key}"), "path": self.path}});
        self.connection.send("POST", "/v1/check", &body.to_string());
        answer_of(self.connection.answer().status())
    }
}

/// The remaining units of a key.
pub(crate) fn remaining(server: &Server, path: &str, key: usize) -> u64 {
    let body =
        json!({"subject": {"user": format!("u{key}"), "path": path}, "cost": 0, "peek": true});
    let answer = server.check(&body.to_string()).json();
    answer["limits"][0]["remaining"]
        .as_u64()
        .unwrap_or_else(|| panic!("{answer}"))
}

/// `GET /auth/traefik`.
pub(crate) struct Auth(Connection);

impl Auth {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(Server::connect_to(address))
    }
}

impl DecisionClient for Auth {
    fn request(&mut self, key: usize) -> Answer {
        let ip = format!("10.0.{}.{}", key / 256, key % 256);
        self.0.write(&format!(
            "GET /auth/traefik HTTP/1.1\r\nHost: ratekeeper\r\nX-Forwarded-For: {ip}\r\nX-Forwarded-Uri: /auth\r\nX-Forwarded-Method: GET\r\n\r\n"
        ));
        answer_of(self.0.answer().status())
    }
}

/// `POST /v1/throttle`.
pub(crate) struct Throttle(Connection);

impl Throttle {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(Server::connect_to(address))
    }
}

impl DecisionClient for Throttle {
    fn request(&mut self, key: usize) -> Answer {
        let body = json!({"key": format!("u{key}"), "limit": format!("{}/d", crate::CAPACITY)});
        self.0.send("POST", "/v1/throttle", &body.to_string());
        answer_of(self.0.answer().status())
    }
}

/// `POST /v1/reserve`, then `/v1/cancel`.
pub(crate) struct Reserve(Connection);

impl Reserve {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(Server::connect_to(address))
    }

    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.0.send("POST", path, &body.to_string());
        let answer = self.0.answer();
        (answer.status(), answer.json())
    }
}

impl DecisionClient for Reserve {
    fn request(&mut self, key: usize) -> Answer {
        let subject = json!({"user": format!("u{key}"), "path": "/reserve"});
        let (status, answer) = self.post("/v1/reserve", &json!({"subject": subject}));
        if status == 200 {
            let (status, settled) = self.post("/v1/cancel", &json!({"id": answer["id"]}));
            assert_eq!(status, 200, "{settled}");
        }
        answer_of(status)
    }
}

/// `ShouldRateLimit`.
pub(crate) struct Envoy {
    runtime: Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Envoy {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let client = RateLimitServiceClient::new(runtime.block_on(channel.connect()).unwrap());
        Self { runtime, client }
    }
}

impl DecisionClient for Envoy {
    fn request(&mut self, key: usize) -> Answer {
        let entries = vec![Entry {
            key: "user".to_owned(),
            value: format!("u{key}"),
        }];
        let descriptors = vec![RateLimitDescriptor {
            entries,
            ..Default::default()
        }];
        let request = RateLimitRequest {
            domain: "soak".to_owned(),
            descriptors,
            hits_addend: 0,
        };
        let answer = self
            .runtime
            .block_on(self.client.should_rate_limit(request))
            .unwrap();
        match answer.into_inner().overall_code {
            1 => Answer::Allowed,
            2 => Answer::Denied,
            code => panic!("unexpected code {code}"),
        }
    }
}

/// `CL.THROTTLE`.
pub(crate) struct Resp(resp::Connection);

impl Resp {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(resp::Connection::tcp(address.port()).unwrap())
    }
}

impl DecisionClient for Resp {
    fn request(&mut self, key: usize) -> Answer {
        let (key, burst, day) = (
            format!("u{key}"),
            (crate::CAPACITY - 1).to_string(),
            "86400",
        );
        let count = crate::CAPACITY.to_string();
        let reply = self
            .0
            .command(&["CL.THROTTLE", &key, &burst, &count, day])
            .unwrap();
        match reply.items().first().and_then(resp::Reply::int) {
            Some(0) => Answer::Allowed,
            Some(1) => Answer::Denied,
            _ => panic!("{reply:?}"),
        }
    }
}

/// A request through the gateway.
pub(crate) struct Forwarded(Connection);

impl Forwarded {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self(Server::connect_to(address))
    }
}

impl DecisionClient for Forwarded {
    fn request(&mut self, key: usize) -> Answer {
        self.0.write(&format!(
            "GET / HTTP/1.1\r\nHost: service\r\nX-User: u{key}\r\n\r\n"
        ));
        answer_of(self.0.answer().status())
    }
}

/// A service that answers 200 and counts its requests.
pub(crate) fn counting_service() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), Arc::clone(&counted));
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap_or(0) > 0 {
                    if line == "\r\n" {
                        count.fetch_add(1, Relaxed);
                        if stream
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                            .is_err()
                        {
                            return;
                        }
                    }
                    line.clear();
                }
            });
        }
    });
    (address, count)
}

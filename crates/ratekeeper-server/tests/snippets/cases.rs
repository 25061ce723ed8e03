//! The table of requests. A new case is one line.

use crate::proxies::Proxy;

/// The policies of the server: the first match decides how many requests of a client are allowed.
pub(crate) const POLICIES: &str = r#"
[server]
http = "127.0.0.1:0"

[identity]
user = { header = "x-user-id", from = ["127.0.0.1"] }
api_key = { header = "x-api-key" }

[[policy]]
name = "users"
match = { path = "/**" }
key = "user"
missing = "skip"
limit = "100/d"
final = true

[[policy]]
name = "encoded"
match = { path = "/caf%C3%A9/**" }
key = "ip"
limit = "3/d"
final = true

[[policy]]
name = "posts"
match = { method = "POST" }
key = "ip"
limit = "4/d"
final = true

[[policy]]
name = "heads"
match = { method = "HEAD" }
key = "ip"
limit = "5/d"
final = true

[[policy]]
name = "tenant"
match = { host = "tenant.example" }
key = "ip"
limit = "6/d"
final = true

[[policy]]
name = "all together"
match = { path = "/shared" }
key = "ip"
limit = "7/d"
status = 503
final = true

[[policy]]
name = "keys"
match = { path = "/keys" }
key = "api_key"
limit = "8/d"
final = true

[[policy]]
name = "everything else"
key = "ip"
limit = "2/d"
"#;

/// A request that is sent until it is denied.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    /// The target that the service gets from a proxy that normalizes paths, as Traefik does before
    /// it calls ratekeeper.
    pub(crate) normalized: &'static str,
    /// An additional header, with `{n}` for the number of the attempt; more header lines may follow
    /// in the value.
    header: Option<(&'static str, &'static [u8])>,
    /// Whether only an attacker sends it.
    pub(crate) forged: bool,
    pub(crate) body: Body,
    /// How many are allowed.
    pub(crate) limit: u16,
    /// The status of a denial. Envoy would take a 503 for a failure, and gets a 429.
    pub(crate) denied: u16,
    /// The proxies where it gets a 400, from the proxy itself or from ratekeeper.
    pub(crate) refused_by: &'static [Proxy],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    None,
    Sized(usize),
    Chunked(usize),
}

impl Body {
    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            Self::None => Vec::new(),
            Self::Sized(length) | Self::Chunked(length) => {
                (0..=u8::MAX).cycle().take(length).collect()
            }
        }
    }
}

/// An ordinary request.
const fn ask(
    name: &'static str,
    method: &'static str,
    target: &'static str,
    body: Body,
    limit: u16,
) -> Case {
    Case {
        name,
        method,
        target,
        normalized: target,
        header: None,
        forged: false,
        body,
        limit,
        denied: 429,
        refused_by: &[],
    }
}

const fn get(name: &'static str, target: &'static str, limit: u16) -> Case {
    ask(name, "GET", target, Body::None, limit)
}

/// A request with a header that the client should not have sent.
const fn forged(header: &'static str, value: &'static [u8]) -> Case {
    Case {
        header: Some((header, value)),
        forged: true,
        ..get(header, "/api/x", 2)
    }
}

/// A path that services read in different ways. Traefik resolves some dot segments before it calls
/// ratekeeper, and forwards the same path.
const fn dots(name: &'static str, target: &'static str, normalized: &'static str) -> Case {
    Case {
        normalized,
        refused_by: &[Proxy::Nginx, Proxy::Caddy, Proxy::Envoy],
        ..get(name, target, 2)
    }
}

/// All headers with which nginx describes a request, as a client would write them.
const FORGED_ORIGINAL: &[u8] =
    b"203.0.113.{n}\r\nX-Original-Method: POST\r\nX-Original-URI: /caf%C3%A9/x";

pub(crate) const CASES: &[Case] = &[
    get("root", "/", 2),
    get("path", "/api/x", 2),
    get("query", "/api/x?y=1&z=%20", 2),
    get("query of the root", "/?y=1", 2),
    get("query that named the mode", "/?deny=403", 2),
    get("query that names a mode", "/api/x?uri=/auth/nginx", 2),
    get("empty query", "/api/x?", 2),
    get("path of a mode", "/auth/nginx", 2),
    get("path of Envoy's mode", "/auth/envoy/x", 2),
    Case {
        normalized: "/auth/nginx",
        ..get("slashes before a mode", "//auth/nginx", 2)
    },
    Case {
        normalized: "/nginx",
        ..get("slashes", "//nginx", 2)
    },
    get("encoded path", "/caf%C3%A9/x", 3),
    Case {
        normalized: "/caf%C3%A9/x",
        ..get("encoded path in lower case", "/caf%c3%a9/x", 3)
    },
    get("encoded space", "/a%20b", 2),
    dots("dots", "/api/../x", "/x"),
    dots("dots before a mode", "/../nginx", "/nginx"),
    dots("encoded dots", "/api/%2e%2e/x", "/x"),
    Case {
        refused_by: &Proxy::ALL,
        ..get("dots with parameters", "/api/..;/x", 2)
    },
    Case {
        denied: 503,
        ..get("denied with 503", "/shared", 7)
    },
    Case {
        header: Some(("X-Api-Key", b"k")),
        ..get("API key", "/keys", 8)
    },
    ask("HEAD", "HEAD", "/", Body::None, 5),
    ask("DELETE", "DELETE", "/api/x", Body::None, 2),
    ask("POST without a body", "POST", "/api/x", Body::Sized(0), 4),
    ask("POST", "POST", "/api/x?y=1", Body::Sized(10), 4),
    ask("large POST", "POST", "/", Body::Sized(200_000), 4),
    ask("chunked POST", "POST", "/api/x", Body::Chunked(10), 4),
    ask(
        "large chunked POST",
        "POST",
        "/api/x",
        Body::Chunked(200_000),
        4,
    ),
    ask("PUT", "PUT", "/api/x", Body::Sized(10), 2),
    forged("X-Forwarded-For", b"203.0.113.{n}"),
    forged("X-Forwarded-For", b"203.0.113.{n}, 127.0.0.1"),
    forged("X-Forwarded-For", b"\xff, 203.0.113.{n}"),
    forged("X-Forwarded-For", b"203.0.113.{n}, \xff"),
    forged("X-Forwarded-For", b"203.0.113.{n},"),
    forged("X-Forwarded-For", b""),
    forged("X-Real-IP", FORGED_ORIGINAL),
    Case {
        target: "/?deny=403",
        normalized: "/?deny=403",
        ..forged("X-Real-IP", FORGED_ORIGINAL)
    },
    Case {
        target: "/auth/nginx",
        normalized: "/auth/nginx",
        ..forged("X-Real-IP", FORGED_ORIGINAL)
    },
    forged("X-Forwarded-Method", b"POST"),
    forged("X-Forwarded-Method", b"\xff"),
    forged("X-Forwarded-Uri", b"/caf%C3%A9/x"),
    forged("X-Forwarded-Uri", b"\xff"),
    forged("X-Forwarded-Host", b"tenant.example"),
    forged("X-Forwarded-Host", b"tenant.example\xff"),
    forged("X-Forwarded-Proto", b"{n}"),
    forged("X-Forwarded-Port", b"{n}"),
    forged("X-Real-IP", b"203.0.113.{n}"),
    forged("X-Real-IP", b"\xff{n}"),
    forged("X-Original-Method", b"POST"),
    forged("X-Original-Method", b"\xff"),
    forged("X-Original-URI", b"/caf%C3%A9/x"),
    forged("X-Original-URI", b"\xff"),
    forged("X-Original-URL", b"http://tenant.example/caf%C3%A9/x"),
    forged("Forwarded", b"for=203.0.113.{n};host=tenant.example"),
    forged("Forwarded", b"for=\xff{n}"),
    forged("CF-Connecting-IP", b"203.0.113.{n}"),
    forged("CF-Connecting-IP", b"\xff"),
    forged("X-Envoy-Original-Path", b"/caf%C3%A9/x"),
    forged("X-Envoy-External-Address", b"203.0.113.{n}"),
    forged("X-RateLimit-Status", b"200"),
    forged("X-RateLimit-Limit", b"1000"),
    forged("X-RateLimit-Remaining", b"\xff"),
    forged("X-User-Id", b"user {n}"),
    forged("X-User-Id", b"user \xff{n}"),
    forged("x-user-id", b"user {n}"),
    forged("X-Http-Method-Override", b"POST"),
    forged("Content-Type", b"application/grpc"),
    forged("Connection", b"X-Real-IP, X-Forwarded-Uri, X-Original-URI"),
    Case {
        refused_by: &[Proxy::Envoy],
        ..forged("Connection", b"X-Forwarded-For")
    },
];

impl Case {
    /// Whether every proxy serves it without ratekeeper too: a few are enough there.
    pub(crate) fn ordinary(&self) -> bool {
        ["root", "query", "POST", "chunked POST"].contains(&self.name)
    }

    /// Whether Envoy takes it for a call of gRPC, which it denies in the headers of a 200.
    pub(crate) fn is_grpc(&self) -> bool {
        matches!(self.header, Some((_, b"application/grpc")))
    }

    pub(crate) fn request(&self, attempt: u16) -> Vec<u8> {
        let mut request = format!(
            "{} {} HTTP/1.1\r\nHost: service.example\r\n",
            self.method, self.target
        )
        .into_bytes();
        match self.header {
            Some(("Connection", value)) => {
                request.extend([b"Connection: close, ", value, b"\r\n"].concat());
            }
            _ => request.extend_from_slice(b"Connection: close\r\n"),
        }
        if let Some((name, value)) = self.header.filter(|(name, _)| *name != "Connection") {
            request.extend([name.as_bytes(), b": "].concat());
            for part in numbered(value, attempt) {
                request.push(part);
            }
            request.extend_from_slice(b"\r\n");
        }
        let body = self.body.bytes();
        match self.body {
            Body::None => request.extend_from_slice(b"\r\n"),
            Body::Sized(length) => {
                request.extend(format!("Content-Length: {length}\r\n\r\n").into_bytes());
                request.extend(body);
            }
            Body::Chunked(_) => {
                request.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for chunk in body.chunks(3_000) {
                    request.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
                    request.extend([chunk, b"\r\n"].concat());
                }
                request.extend_from_slice(b"0\r\n\r\n");
            }
        }
        request
    }
}

/// The value of a header, with the number of the attempt.
fn numbered(value: &[u8], attempt: u16) -> Vec<u8> {
    let Some(at) = value.windows(3).position(|part| part == b"{n}") else {
        return value.to_vec();
    };
    [
        &value[..at],
        attempt.to_string().as_bytes(),
        &value[at + 3..],
    ]
    .concat()
}

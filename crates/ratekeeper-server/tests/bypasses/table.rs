//! The known bypasses of a limit. Envoy's rate limit service has none of these lines: rls.rs says why,
//! and what holds there.

/// Where a request is decided on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryPoint {
    /// The gateway over HTTP/1.1.
    Http1,
    /// The gateway over HTTP/2.
    Http2,
    /// `/auth`, in the forms of these proxies.
    Nginx,
    Caddy,
    Traefik,
    Envoy,
    /// The layer of ratekeeper-tower.
    Layer,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRequest {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) host: Option<&'static str>,
    /// The authority of a target in absolute form, or `:authority` of HTTP/2.
    pub(crate) absolute: Option<&'static str>,
    pub(crate) headers: &'static [(&'static str, &'static str)],
    /// Where to try it; everywhere if empty.
    pub(crate) entry_points: &'static [EntryPoint],
}

impl TestRequest {
    pub(crate) const GET: Self = Self {
        method: "GET",
        path: "/",
        host: None,
        absolute: None,
        headers: &[],
        entry_points: &[],
    };

    pub(crate) fn applies_at(&self, entry_point: EntryPoint) -> bool {
        // Envoy has no form for a target with an authority.
        let has_form = entry_point != EntryPoint::Envoy || self.absolute.is_none();
        has_form && (self.entry_points.is_empty() || self.entry_points.contains(&entry_point))
    }
}

/// Attempts to bypass one limit.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// Lines at the top of the file.
    pub(crate) before: &'static str,
    /// Lines of `[gateway]`.
    pub(crate) gateway: &'static str,
    /// The rest of the file.
    pub(crate) config: &'static str,
    /// Uses up the only token.
    pub(crate) honest: TestRequest,
    /// Bypass the limit if they are allowed.
    pub(crate) attempts: &'static [TestRequest],
    /// Must be allowed: they have nothing to do with the limit.
    pub(crate) passes: &'static [TestRequest],
}

impl Group {
    /// The whole file, with more lines of `[gateway]`.
    pub(crate) fn file(&self, gateway: &str) -> String {
        format!(
            "{}[gateway]\n{gateway}{}{}",
            self.before, self.gateway, self.config
        )
    }
}

const fn path(path: &'static str) -> TestRequest {
    TestRequest {
        path,
        ..TestRequest::GET
    }
}

const fn host(host: &'static str) -> TestRequest {
    TestRequest {
        host: Some(host),
        ..TestRequest::GET
    }
}

const fn absolute(authority: &'static str) -> TestRequest {
    TestRequest {
        absolute: Some(authority),
        ..TestRequest::GET
    }
}

const fn headers(headers: &'static [(&'static str, &'static str)]) -> TestRequest {
    TestRequest {
        headers,
        ..TestRequest::GET
    }
}

/// Only where the client's own connection is visible.
const fn at(entry_points: &'static [EntryPoint], sent: TestRequest) -> TestRequest {
    TestRequest {
        entry_points,
        ..sent
    }
}

/// Places where a target in absolute form comes with another Host.
const TARGETS: &[EntryPoint] = &[EntryPoint::Http1, EntryPoint::Http2, EntryPoint::Layer];
/// HTTP/2 has no Connection header, and a proxy in front does not forward it.
const CONNECTIONS: &[EntryPoint] = &[EntryPoint::Http1];
const AUTH: &[EntryPoint] = &[
    EntryPoint::Nginx,
    EntryPoint::Caddy,
    EntryPoint::Traefik,
    EntryPoint::Envoy,
];

pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "path",
        before: "",
        gateway: "",
        config: "[[policy]]\nname = \"api\"\nmatch = { path = \"/api/**\" }\nlimit = \"1/d\"\n",
        honest: path("/api/x"),
        attempts: &[
            // Services that do not resolve dot segments still route these to /api.
            path("/api/../x"),
            path("/api/x/../../y"),
            path("/api/.."),
            path("/api/%2e%2e/x"),
            path("/api/%2E%2e/x"),
            path("/api/.%2e/x"),
            path("/api/%2e./x"),
            path("/api/..;/x"),
            path("/api/..;a=b/x"),
            path("/api/%2e%2e;/x"),
            path("/api/..%2fx"),
            path("/api%2f..%2fx"),
            path("/api/..%5cx"),
            path("/api/..\\x"),
            path("/api\\..\\x"),
            // Services that resolve them route these to /api.
            path("/x/../api/y"),
            path("/./api/x"),
            path("/%2e/api/x"),
            path("/x/..;/api/y"),
            path("/x/%2e%2e/api/y"),
            path("/x/..%2fapi/y"),
            path("/x\\..\\api/y"),
            path("/../api/x"),
            // Spellings of one path.
            path("/api"),
            path("/api/"),
            path("/api//x"),
            path("//api/x"),
            // Services that decode a path before routing take these for slashes.
            path("/api%2Fx"),
            path("/api%2f"),
            path("/api%5Cx"),
            path("/api\\x"),
            path("/%61pi/x"),
            path("/%61%70%69/x"),
            path("/api;a=b/x"),
            path("/api/x;a"),
            path("/api/x?y=/../z"),
            path("/api?x"),
            TestRequest {
                method: "POST",
                ..path("/api/x")
            },
        ],
        passes: &[
            path("/x"),
            path("/apis"),
            path("/..api/x"),
            path("/...x/y"),
            path("/x/v1.2.3/"),
            path("/.well-known/x"),
            path("/x;v=../y"),
            path("/x?y=/../api"),
            path("/x/%252e%252e/y"),
        ],
    },
    Group {
        name: "case of a path",
        before: "path_case = \"insensitive\"\n",
        gateway: "",
        config: "[[policy]]\nname = \"login\"\nmatch = { path = \"/Login/*\" }\nkey = \"path\"\nlimit = \"1/d\"\n",
        honest: path("/login/x"),
        attempts: &[
            path("/LOGIN/x"),
            path("/Login/X"),
            path("/%4cogin/%58"),
            path("/LOGIN%2fX"),
        ],
        passes: &[path("/Logins/x"), path("/Login")],
    },
    Group {
        name: "host",
        before: "",
        gateway: "",
        config: "[[policy]]\nname = \"host\"\nmatch = { host = \"api.example.com\" }\nkey = \"host\"\nlimit = \"1/d\"\n",
        honest: host("api.example.com"),
        attempts: &[
            host("API.example.com"),
            host("Api.Example.Com:443"),
            host("api.example.com."),
            host("api.example.com.:80"),
            host("api.example.com:"),
            host("u@api.example.com"),
            host("u:p@api.example.com"),
            host("api.example.com:80:80"),
            host("api.example.com:x"),
            host("ap%69.example.com"),
            absolute("u@api.example.com"),
            absolute("u:p@api.example.com"),
            absolute("@api.example.com"),
            absolute("API.example.com."),
            at(
                TARGETS,
                TestRequest {
                    host: Some("other.example.com"),
                    ..absolute("api.example.com")
                },
            ),
            at(
                TARGETS,
                TestRequest {
                    host: Some("api.example.com"),
                    ..absolute("other.example.com")
                },
            ),
            at(
                TARGETS,
                TestRequest {
                    host: Some("api.example.com"),
                    ..absolute("u@other.example.com")
                },
            ),
        ],
        passes: &[
            host("other.example.com"),
            host("other.example.com:8080"),
            host("[::1]:8080"),
            host("xapi.example.com"),
        ],
    },
    Group {
        name: "key of a header",
        before: "",
        gateway: "",
        config: "[identity]\napi_key = { header = \"x-api-key\" }\n\
                 [[policy]]\nname = \"tenant\"\nkey = \"header:x-tenant\"\nmissing = \"skip\"\nlimit = \"1/d\"\n\
                 [[policy]]\nname = \"api key\"\nkey = \"api_key\"\nmissing = \"skip\"\nlimit = \"1/d\"\n\
                 [[policy]]\nname = \"authorization\"\nkey = \"header:authorization\"\nmissing = \"skip\"\nlimit = \"1/d\"\n",
        honest: headers(&[
            ("x-api-key", "a"),
            ("x-tenant", "a"),
            ("authorization", "Bearer a"),
        ]),
        attempts: &[
            headers(&[("x-api-key", "b"), ("x-api-key", "a")]),
            headers(&[("x-api-key", "a"), ("x-api-key", "b")]),
            headers(&[("X-API-KEY", "b"), ("x-api-key", "a")]),
            headers(&[("x-api-key", "b"), ("x_api_key", "a")]),
            headers(&[("x-api_key", "a")]),
            headers(&[("x-tenant", "b"), ("accept", "*/*"), ("x-tenant", "a")]),
            headers(&[("x-tenant", ""), ("x-tenant", "a")]),
            headers(&[("authorization", "Bearer b"), ("authorization", "Bearer a")]),
            headers(&[("authorization", "bearer   a")]),
            headers(&[("x-tenant", "a"), ("x-tenant", "a")]),
        ],
        passes: &[
            headers(&[("x-api-key", "c"), ("accept", "a"), ("accept", "b")]),
            headers(&[("x-tenant", "d"), ("x-other", "a"), ("x-other", "b")]),
            headers(&[("x-tenant", "e"), ("x-tenant", "e")]),
        ],
    },
    Group {
        name: "user",
        before: "",
        gateway: "",
        // The peers here are trusted to name clients; none of them may name users.
        config: "[identity]\ntrusted_proxies = [\"127.0.0.0/8\", \"203.0.113.0/24\"]\n\
                 user = { header = \"x-user-id\", from = [\"10.0.0.0/8\", \"unix\"] }\n\
                 [[policy]]\nname = \"not vip\"\nmatch = { not = { user = \"vip\" } }\nlimit = \"1/d\"\n",
        honest: TestRequest::GET,
        attempts: &[
            headers(&[("x-user-id", "vip")]),
            headers(&[("X-USER-ID", "vip")]),
            headers(&[("x_user_id", "vip")]),
            headers(&[("x-user_id", "vip")]),
            headers(&[("x-user-id", "vip"), ("x-user-id", "vip")]),
            headers(&[("x-user-id", ""), ("x-user-id", "vip")]),
            headers(&[("x-user-id", "vip"), ("forwarded", "for=10.0.0.1")]),
            at(
                TARGETS,
                headers(&[("x-user-id", "vip"), ("x-forwarded-for", "10.0.0.1")]),
            ),
            at(
                CONNECTIONS,
                headers(&[("x-user-id", "vip"), ("connection", "x-user-id")]),
            ),
        ],
        passes: &[],
    },
    Group {
        name: "header that a policy matches",
        before: "",
        gateway: "",
        config: "[[policy]]\nname = \"anonymous\"\nmatch = { not = { header = { authorization = true } } }\nlimit = \"1/d\"\n\
                 [[policy]]\nname = \"not beta\"\nmatch = { not = { header = { x-beta = \"yes\" } } }\nlimit = \"1/d\"\n",
        honest: TestRequest::GET,
        attempts: &[
            // Not forwarded, so they may not count.
            at(
                CONNECTIONS,
                headers(&[
                    ("authorization", "Bearer a"),
                    ("x-beta", "yes"),
                    ("connection", "authorization"),
                ]),
            ),
            at(
                CONNECTIONS,
                headers(&[
                    ("authorization", "a"),
                    ("x-beta", "yes"),
                    ("Connection", "close, Authorization"),
                ]),
            ),
            at(
                CONNECTIONS,
                headers(&[
                    ("authorization", "a"),
                    ("x-beta", "yes"),
                    ("connection", "X-Beta , te"),
                ]),
            ),
            headers(&[
                ("authorization", "Bearer a"),
                ("x-beta", "yes"),
                ("x-beta", "no"),
            ]),
            headers(&[
                ("authorization", "Bearer a"),
                ("x-beta", "no"),
                ("x-beta", "yes"),
            ]),
        ],
        passes: &[headers(&[("authorization", "Bearer a"), ("x-beta", "yes")])],
    },
    Group {
        name: "upgrade",
        before: "",
        gateway: "",
        config: "[[policy]]\nname = \"no upgrade\"\nmatch = { not = { header = { upgrade = \"websocket\" } } }\nlimit = \"1/d\"\n",
        honest: TestRequest::GET,
        attempts: &[
            // Without Connection it is no upgrade, and is not forwarded.
            at(CONNECTIONS, headers(&[("upgrade", "websocket")])),
            at(
                CONNECTIONS,
                headers(&[("upgrade", "websocket"), ("connection", "close")]),
            ),
        ],
        passes: &[],
    },
    Group {
        name: "everything",
        before: "",
        gateway: "preflight = \"count\"\n",
        config: "[[policy]]\nname = \"all\"\nlimit = \"1/d\"\n",
        honest: TestRequest::GET,
        attempts: &[
            TestRequest {
                method: "OPTIONS",
                ..TestRequest::GET
            },
            TestRequest {
                method: "OPTIONS",
                ..headers(&[("origin", "https://a.example")])
            },
            TestRequest {
                method: "OPTIONS",
                ..headers(&[
                    ("origin", "https://a.example"),
                    ("access-control-request-method", "POST"),
                ])
            },
            // A gRPC status in a 200 allows the request for an asking proxy; the gateway and the
            // layer answer the caller themselves.
            at(AUTH, headers(&[("content-type", "application/grpc")])),
            at(
                AUTH,
                headers(&[("content-type", "application/grpc-web-text")]),
            ),
            at(
                &[EntryPoint::Http1],
                headers(&[
                    ("x-forwarded-for", "192.0.2.1"),
                    ("forwarded", "for=192.0.2.1"),
                ]),
            ),
        ],
        passes: &[],
    },
];

/// Attempts at a layer of one limit, counted by the cookie `sid`. Policies have no attribute for a
/// cookie: the gateway and `/auth` have nothing to go round here.
pub(crate) const COOKIE: Group = Group {
    name: "key of a cookie",
    before: "",
    gateway: "",
    config: "",
    honest: headers(&[("cookie", "sid=a")]),
    attempts: &[
        headers(&[("cookie", "sid=b; sid=a")]),
        headers(&[("cookie", "sid=a; sid=b")]),
        headers(&[("cookie", "sid=b; other=c; sid=a")]),
        headers(&[("cookie", "sid=b;sid=a")]),
        headers(&[("cookie", "sid=; sid=a")]),
        headers(&[("cookie", "sid=b; sid =a")]),
        headers(&[("cookie", "sid=b; sid= a")]),
        headers(&[("cookie", "sid =a")]),
        headers(&[("cookie", "sid=\"a\"")]),
        headers(&[("cookie", "sid=%61")]),
        headers(&[("cookie", "sid=\"%61\"")]),
        headers(&[("cookie", "sid=a; sid=%61")]),
        headers(&[("cookie", "sid= a")]),
        headers(&[("cookie", "sid=b"), ("cookie", "sid=a")]),
        headers(&[("cookie", "sid=a"), ("cookie", "sid=b")]),
        headers(&[("cookie", "sid=a; sid=a")]),
        headers(&[("cookie", "other=b; sid=a")]),
        headers(&[("cookie", "other=b"), ("cookie", "sid=a")]),
    ],
    passes: &[
        headers(&[("cookie", "sid=c; sid=c")]),
        headers(&[("cookie", "sid=d; other=a; other=b; xsid=a")]),
        headers(&[("cookie", "sid=e"), ("cookie", "other=a")]),
        headers(&[("cookie", "sid=%6")]),
        headers(&[("cookie", "sid=%ga")]),
        headers(&[("cookie", "sid=\"")]),
    ],
};

//! Every table and key of ratekeeper.toml, written once: what is read, checked, shown, put into the
//! schema and taken from the environment goes by this.

mod gateway;
mod pressure;
mod tls;
mod watch;

use super::kind::{Default, Key, Kind, MOST, Table};
use crate::validate::MOST_DENIALS;
use gateway::GATEWAY;
use pressure::{ADAPTIVE, PRIORITY, SHED};
use ratekeeper::store::OnFailure;
use std::time::Duration;
use tls::SERVER_TLS;
use watch::{LOG, TRACES};

/// A key without a default that need not be written.
const fn key(name: &'static str, kind: Kind, doc: &'static str, example: &'static str) -> Key {
    Key {
        name,
        kind,
        default: Default::Unset,
        doc,
        example,
        secret: false,
    }
}

impl Key {
    const fn or(mut self, default: Default) -> Self {
        self.default = default;
        self
    }

    const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

const TEXTS: Kind = Kind::OneOrMany(&Kind::Text);
const ANY: Kind = Kind::Number { min: 0, max: MOST };
const ON_FAILURE: Kind = Kind::OneOf(&[
    OnFailure::LocalShare.name(),
    OnFailure::Open.name(),
    OnFailure::Closed.name(),
]);

/// The file.
pub(crate) static FILE: Table = Table {
    doc: "ratekeeper.toml: who may do what, and how the service runs.",
    keys: &[
        key("enabled", Kind::Bool, "Off, everything passes, and verdicts say so.", "true").or(Default::Bool(true)),
        key(
            "path_case",
            Kind::OneOf(&["sensitive", "insensitive"]),
            "Whether upper and lower case in paths are different; \"insensitive\" where the services ignore case.",
            "\"insensitive\"",
        )
        .or(Default::Text("sensitive")),
        key("server", Kind::Table(&SERVER), "Where the service listens.", ""),
        key("store", Kind::Table(&STORE), "Where the counters are.", ""),
        key("identity", Kind::Table(&IDENTITY), "Who is calling.", ""),
        key("stats", Kind::Table(&STATS), "What is remembered of the heaviest callers.", ""),
        key("log", Kind::Table(&LOG), "What the service says on standard error.", ""),
        key("traces", Kind::Table(&TRACES), "Spans of requests, for a collector of OpenTelemetry.", ""),
        key("envoy", Kind::Table(&ENVOY), "Envoy's rate limit service.", ""),
        key("gateway", Kind::Table(&GATEWAY), "What `ratekeeper proxy` stands in front of, and how.", ""),
        key("shed", Kind::Table(&SHED), "Who is turned away first when there is too much.", ""),
        key("plans", Kind::Named(&Kind::Table(&PLAN)), "Limits with a name, chosen by an attribute.", ""),
        key("policy", Kind::Tables(&POLICY), "Which requests, counted by what, how many of them.", ""),
        key("allow", Kind::Tables(&LISTED), "Who passes whatever the limits say.", ""),
        key("deny", Kind::Tables(&LISTED), "Who never passes, unless it is on the allow list.", ""),
    ],
    also: None,
};

static SERVER: Table = Table {
    doc: "Where the service listens.",
    keys: &[
        key("http", Kind::Listener, "HTTP: checks, forward-auth, health.", "\"127.0.0.1:8080\"")
            .or(Default::Text("127.0.0.1:8080")),
        key("grpc", Kind::Listener, "gRPC: the rate limit service of Envoy.", "\"127.0.0.1:8081\"")
            .or(Default::Text("127.0.0.1:8081")),
        key("resp", Kind::Listener, "RESP: CL.THROTTLE as redis-cell has it.", "\"127.0.0.1:6380\"")
            .or(Default::Text("127.0.0.1:6380")),
        key("admin", Kind::Listener, "Metrics and administration; keep it private.", "\"127.0.0.1:9090\"")
            .or(Default::Text("127.0.0.1:9090")),
        key(
            "tls",
            Kind::Table(&SERVER_TLS),
            "The certificate of the listeners: with it they speak TLS.",
            "{ cert = \"cert.pem\", key = \"key.pem\" }",
        ),
        key(
            "id_secret",
            Kind::LongText { bytes: 16 },
            "Signs the ids of POST /v1/reserve; the same on every node. By default agreed on through Redis, or made at the start.",
            "\"…\"",
        )
        .secret(),
        key(
            "admin_token",
            Kind::LongText { bytes: 16 },
            "What operators must have who change something; without one only this machine may, on loopback.",
            "\"…\"",
        )
        .secret(),
        key(
            "audit_log",
            Kind::Text,
            "A file to which what operators did, or tried to, is appended as lines of JSON.",
            "\"/var/log/ratekeeper/audit.jsonl\"",
        ),
    ],
    also: None,
};

static STORE: Table = Table {
    doc: "Where the counters are.",
    keys: &[
        key("kind", Kind::OneOf(&["memory", "redis"]), "The kind of store.", "\"memory\"").or(Default::Text("memory")),
        key(
            "max_keys",
            Kind::Number { min: 1, max: 1 << 32 },
            "How many keys are held in memory at most; with Redis, while it is gone.",
            "1_000_000",
        )
        .or(Default::Number(1_000_000)),
        key(
            "max_bytes",
            Kind::Number { min: 1, max: MOST },
            "How much memory the states beyond one word take at most; by default 512 bytes a key.",
            "512_000_000",
        ),
        key(
            "url",
            Kind::RedisUrl,
            "Where Redis is, as redis://127.0.0.1:6379; the kind redis needs it. redis+sentinel:// and redis+cluster:// name several hosts.",
            "\"redis://127.0.0.1:6379\"",
        )
        .secret(),
        key(
            "timeout",
            Kind::DurationWithin { min: Duration::from_millis(1), max: Duration::from_secs(10) },
            "How long Redis is waited for.",
            "\"10ms\"",
        )
        .or(Default::Text("10ms")),
        key(
            "on_failure",
            ON_FAILURE,
            "What becomes of requests while Redis is gone: each node its share, all pass, or none.",
            "\"local_share\"",
        )
        .or(Default::Text(OnFailure::LocalShare.name())),
        key("prefix", Kind::Prefix, "What the names of the keys in Redis begin with.", "\"ratekeeper\"")
            .or(Default::Text("ratekeeper")),
        key(
            "nodes",
            Kind::Number { min: 1, max: 10_000 },
            "How many nodes share the limits, as long as Redis was never there to tell.",
            "3",
        )
        .or(Default::Number(1)),
        key(
            "rollout_grace",
            Kind::DurationWithin { min: Duration::ZERO, max: Duration::from_secs(86_400) },
            "How long nodes of one prefix may have different limits, such as while a change reaches one after the other, before it is reported.",
            "\"5m\"",
        )
        .or(Default::Text("1m")),
        key(
            "key_secret",
            Kind::LongText { bytes: 16 },
            "What names of keys in Redis and fingerprints are hashed with; the same on every node. By default agreed on through Redis, or new at every start.",
            "\"…\"",
        )
        .secret(),
        key("connections", Kind::Number { min: 1, max: 64 }, "How many connections to Redis there are; in a Cluster to each primary.", "2")
            .or(Default::Number(2)),
        key("ca_file", Kind::Text, "Who signs for a rediss:// server: a file in PEM form.", "\"/etc/ratekeeper/ca.pem\""),
        key("sentinel_user", Kind::Text, "The user of the sentinels; the one in the url is for the server.", "\"ratekeeper\""),
        key(
            "sentinel_password",
            Kind::LongText { bytes: 1 },
            "The password of the sentinels; the one in the url is for the server.",
            "\"…\"",
        )
        .secret(),
    ],
    also: None,
};

static IDENTITY: Table = Table {
    doc: "Who is calling. No header is believed unless it is named here.",
    keys: &[
        key(
            "trusted_proxies",
            Kind::OneOrMany(&Kind::Proxy),
            "Proxies whose forwarding header is believed; \"unix\" for those on a Unix socket.",
            "[\"10.0.0.0/8\"]",
        )
        .or(Default::Empty),
        key(
            "header",
            Kind::HeaderName,
            "The forwarding header that trusted proxies set.",
            "\"x-forwarded-for\"",
        )
        .or(Default::Text("x-forwarded-for")),
        key(
            "ipv6_prefix",
            Kind::Number { min: 32, max: 128 },
            "How many bits of an IPv6 address name a client.",
            "56",
        )
        .or(Default::Number(crate::address::IPV6_PREFIX as u64)),
        key(
            "user",
            Kind::Table(&USER_HEADER),
            "The header that names the user, and the peers that may set it.",
            "{ header = \"x-user-id\", from = [\"10.0.0.0/8\"] }",
        ),
        key(
            "api_key",
            Kind::Table(&FROM_HEADER),
            "Where the API key is.",
            "{ header = \"authorization\" }",
        ),
        key(
            "attributes",
            Kind::OneOrMany(&Kind::Text),
            "Names of your own attributes, which callers of the APIs send.",
            "[\"region\", \"tokens\"]",
        )
        .or(Default::Empty),
    ],
    also: None,
};

static USER_HEADER: Table = Table {
    doc: "The header that names the user, and the peers that may set it.",
    keys: &[
        key("header", Kind::HeaderName, "The name of the header.", "\"x-user-id\"").or(Default::Required),
        key(
            "from",
            Kind::OneOrMany(&Kind::Proxy),
            "Peers that set the header; \"unix\" for those on a Unix socket. It is ignored and stripped on other connections.",
            "[\"10.0.0.0/8\"]",
        )
        .or(Default::Required),
    ],
    also: None,
};

static FROM_HEADER: Table = Table {
    doc: "A header of the request.",
    keys: &[key(
        "header",
        Kind::HeaderName,
        "The name of the header.",
        "\"x-user-id\"",
    )
    .or(Default::Required)],
    also: None,
};

static STATS: Table = Table {
    doc: "What is remembered of the heaviest callers.",
    keys: &[
        key(
            "keys",
            Kind::OneOf(&["fingerprint", "plain"]),
            "How their keys are shown.",
            "\"fingerprint\"",
        )
        .or(Default::Text("fingerprint")),
        key(
            "top",
            Kind::Number {
                min: 64,
                max: 1 << 20,
            },
            "How many of them are counted.",
            "1024",
        )
        .or(Default::Number(1024)),
    ],
    also: None,
};

static ENVOY: Table = Table {
    doc: "Envoy's rate limit service: limits by the descriptors that Envoy sends, beside the policies.",
    keys: &[
        key(
            "config",
            Kind::Text,
            "The configuration files of envoyproxy/ratelimit: their directory, or one of them.",
            "\"/etc/ratelimit/config\"",
        ),
        key(
            "denied_hits",
            Kind::OneOf(&["free", "consume"]),
            "Whether a request that is turned away uses up what is left, as it does in envoyproxy/ratelimit.",
            "\"consume\"",
        )
        .or(Default::Text("free")),
        key(
            "response_headers",
            Kind::Bool,
            "Whether Envoy is told to add RateLimit-Limit, -Remaining and -Reset.",
            "true",
        )
        .or(Default::Bool(false)),
        key("dynamic_metadata", Kind::Bool, "Whether Envoy's later filters are told of the descriptors.", "true")
            .or(Default::Bool(false)),
    ],
    also: None,
};

static PLAN: Table = Table {
    doc: "Limits with a name.",
    keys: &[
        key(
            "limit",
            Kind::Limit,
            "The only limit.",
            "\"60/min burst 10\"",
        ),
        key(
            "limits",
            Kind::OneOrMany(&Kind::Limit),
            "The limits, all of which must have room.",
            "[\"60/min\", \"1000/d\"]",
        ),
        key(
            "algorithm",
            Kind::Algorithm,
            "Of the limits that do not say their own.",
            "\"sliding_window\"",
        ),
        key(
            "class",
            PRIORITY,
            "How important its requests are, when there is too much.",
            "\"sheddable\"",
        ),
    ],
    also: None,
};

static POLICY: Table = Table {
    doc: "Which requests, counted by what, how many of them.",
    keys: &[
        key("name", Kind::Text, "Its name in verdicts, metrics and headers.", "\"login\"").or(Default::Required),
        key(
            "match",
            Kind::Table(&MATCH),
            "Which requests it is about; all if nothing is said.",
            "{ path = \"/login\" }",
        ),
        key("key", Kind::OneOrMany(&Kind::Attribute), "By what it counts; one bucket for all if empty.", "[\"ip\"]")
            .or(Default::Empty),
        key(
            "missing",
            Kind::OneOf(&["address", "skip", "shared", "deny"]),
            "A request that lacks an attribute of the key is counted by its address, not counted, counted in one shared bucket, or denied.",
            "\"skip\"",
        )
        .or(Default::Text("address")),
        key(
            "tag",
            Kind::OneOrMany(&Kind::Attribute),
            "In Redis Cluster, the first attributes of the key: what shares them is kept on one node.",
            "[\"header:x-tenant\"]",
        ),
        key("limit", Kind::Limit, "How much passes.", "\"100/min burst 20\""),
        key(
            "limits",
            Kind::OneOrMany(&Kind::Limit),
            "How much passes, by several limits.",
            "[\"10/s\", \"20 concurrent\"]",
        ),
        key("plan", Kind::Table(&PLAN_OF), "Limits by the plan of the caller.", "{ attribute = \"plan\" }"),
        key("algorithm", Kind::Algorithm, "Of the limits that do not say their own.", "\"sliding_log\""),
        key("cost", Kind::Either(&ANY, &Kind::Table(&COST)), "How many units a request takes.", "5")
            .or(Default::Number(1)),
        key("count", Kind::OneOf(&["all", "failures", "successes"]), "Which requests count.", "\"failures\"")
            .or(Default::Text("all")),
        key(
            "failure_status",
            Kind::OneOrMany(&Kind::Status),
            "Which statuses are failures; those from 400 to 599 if nothing is said.",
            "[401, \"5xx\"]",
        ),
        key(
            "action",
            Kind::OneOf(&["enforce", "shadow", "delay"]),
            "What becomes of a request that is over the limit.",
            "\"shadow\"",
        )
        .or(Default::Text("enforce")),
        key("max_delay", Kind::Duration, "The longest wait of `action = \"delay\"`.", "\"2s\""),
        key("status", Kind::OneOfNumbers(&[429, 503]), "The status of who is turned away.", "503")
            .or(Default::Number(429)),
        key(
            "adaptive",
            Kind::Table(&ADAPTIVE),
            "How many of its requests may be in flight, found out.",
            "{ min = 5, max = 200 }",
        ),
        key(
            "class",
            Kind::Either(&PRIORITY, &Kind::Table(&CLASS)),
            "How important its requests are, when there is too much; or classes of requests, and what each leaves to others.",
            "\"sheddable\"",
        ),
        key("rollout", Kind::Percent, "The share of keys it is enforced for, in percent.", "10")
            .or(Default::Number(100)),
        key("final", Kind::Bool, "No policy after it applies.", "true").or(Default::Bool(false)),
        key("penalty", Kind::Table(&PENALTY), "Who is turned away too often is banned for a while.", ""),
        key(
            "on_failure",
            ON_FAILURE,
            "What becomes of its requests while Redis is gone; what [store] says if nothing is said.",
            "\"closed\"",
        ),
        key(
            "mode",
            Kind::OneOf(&["exact", "leased"]),
            "Whether Redis is asked for every decision, or nodes decide by tokens they take on lease.",
            "\"leased\"",
        )
        .or(Default::Text("exact")),
        key(
            "staleness",
            Kind::DurationWithin { min: Duration::from_millis(20), max: Duration::from_secs(60) },
            "How long a lease lives at most: shorter is fairer between nodes, longer asks Redis less.",
            "\"100ms\"",
        )
        .or(Default::Text("100ms")),
    ],
    also: None,
};

static PLAN_OF: Table = Table {
    doc: "Which plan a request has.",
    keys: &[
        key(
            "attribute",
            Kind::Attribute,
            "What names the plan.",
            "\"plan\"",
        )
        .or(Default::Text("plan")),
        key(
            "default",
            Kind::Text,
            "The plan of requests that name none that is known.",
            "\"free\"",
        ),
    ],
    also: None,
};

static COST: Table = Table {
    doc: "A cost that the request says itself.",
    keys: &[
        key(
            "attribute",
            Kind::Attribute,
            "What names the cost.",
            "\"tokens\"",
        )
        .or(Default::Required),
        key("default", ANY, "The cost of requests that say none.", "1").or(Default::Number(1)),
    ],
    also: None,
};

static CLASS: Table = Table {
    doc: "Classes of requests, and what each leaves to others.",
    keys: &[
        key(
            "attribute",
            Kind::Attribute,
            "What names the class.",
            "\"class\"",
        )
        .or(Default::Text("class")),
        key(
            "default",
            Kind::Text,
            "The class of requests that name none that is known.",
            "\"batch\"",
        ),
        key(
            "reserve",
            Kind::Named(&Kind::Reserve),
            "What each class leaves to others.",
            "{ batch = 20, crawler = \"50%\" }",
        ),
    ],
    also: None,
};

static PENALTY: Table = Table {
    doc: "Who is turned away too often is banned for a while.",
    keys: &[
        key(
            "denials",
            Kind::Number {
                min: 1,
                max: MOST_DENIALS,
            },
            "So many denials …",
            "20",
        )
        .or(Default::Required),
        key("within", Kind::Duration, "… within this time …", "\"10m\"").or(Default::Required),
        key("ban", Kind::Duration, "… are a ban for so long.", "\"1h\"").or(Default::Required),
    ],
    also: None,
};

/// The conditions of a request, without what must not hold.
pub(crate) static CONDITIONS: Table = Table {
    doc: "Conditions on a request, all of which must hold.",
    keys: &[
        key(
            "method",
            Kind::OneOrMany(&Kind::Method),
            "One of these methods.",
            "[\"POST\", \"PUT\"]",
        ),
        key(
            "path",
            Kind::OneOrMany(&Kind::Path),
            "One of these paths; `*` is one segment, `**` the rest.",
            "\"/api/**\"",
        ),
        key(
            "host",
            Kind::OneOrMany(&Kind::Host),
            "One of these hosts; `*.` is all under one.",
            "\"api.example.com\"",
        ),
        key(
            "ip",
            Kind::OneOrMany(&Kind::Network),
            "An address in one of these networks.",
            "\"203.0.113.0/24\"",
        ),
        key("user", TEXTS, "One of these users.", "\"42\""),
        key("api_key", TEXTS, "One of these API keys.", "\"…\"").secret(),
        key("plan", TEXTS, "One of these plans.", "\"free\""),
        key("tenant", TEXTS, "One of these tenants.", "\"acme\""),
        key(
            "header",
            Kind::Named(&Kind::Either(&Kind::True, &TEXTS)),
            "Headers that are there, or say one of these.",
            "{ \"x-debug\" = true }",
        ),
        key(
            "attribute",
            Kind::Named(&TEXTS),
            "Attributes of your own that are one of these.",
            "{ region = \"eu\" }",
        ),
    ],
    also: None,
};

static MATCH: Table = Table {
    doc: "Conditions on a request, all of which must hold.",
    keys: &[key(
        "not",
        Kind::Table(&CONDITIONS),
        "Conditions that must not all hold.",
        "{ method = \"GET\" }",
    )],
    also: Some(&CONDITIONS),
};

static LISTED: Table = Table {
    doc: "An entry of a list: conditions, and until when.",
    keys: &[
        key(
            "until",
            Kind::Time,
            "Until then; for ever if nothing is said.",
            "2030-01-01T00:00:00Z",
        ),
        key(
            "reason",
            Kind::Text,
            "Why, for whoever asks.",
            "\"our own monitoring\"",
        ),
    ],
    also: Some(&MATCH),
};

/// Where a key is at home that is written elsewhere, to stand behind "belongs".
pub(crate) fn home(name: &str) -> Option<String> {
    FILE.keys().into_iter().find_map(|key| match &key.kind {
        // In TOML what follows the header of a table is part of it.
        _ if key.name == name => Some("at the top level, above the first table".to_owned()),
        Kind::Table(table) if table.key(name).is_some() => Some(format!("into [{}]", key.name)),
        Kind::Tables(table) if table.key(name).is_some() => {
            Some(format!("into a [[{}]]", key.name))
        }
        _ => None,
    })
}

//! The table of keys: every table and key of ratekeeper.toml, with type, default and description.
//!
//! The reader, `config show`, the JSON Schema and the environment variables are all driven by it.

mod gateway;
mod observability;
mod overload;
mod tls;

use super::key_type::{DefaultValue, KeySpec, KeyType, MAX_INTEGER, TableSpec};
use crate::validate::MAX_DENIALS;
use gateway::GATEWAY;
use observability::{LOG, TRACES};
use overload::{ADAPTIVE, PRIORITY, SHED};
use ratekeeper::store::OnFailure;
use std::time::Duration;
use tls::SERVER_TLS;

/// An optional key without a default.
const fn key(
    name: &'static str,
    key_type: KeyType,
    doc: &'static str,
    example: &'static str,
) -> KeySpec {
    KeySpec {
        name,
        key_type,
        default: DefaultValue::Unset,
        doc,
        example,
        secret: false,
    }
}

impl KeySpec {
    const fn or(mut self, default: DefaultValue) -> Self {
        self.default = default;
        self
    }

    const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

const TEXTS: KeyType = KeyType::OneOrMany(&KeyType::Text);
const ANY: KeyType = KeyType::Number {
    min: 0,
    max: MAX_INTEGER,
};
const ON_FAILURE: KeyType = KeyType::OneOf(&[
    OnFailure::LocalShare.name(),
    OnFailure::Open.name(),
    OnFailure::Closed.name(),
]);

/// The file.
pub(crate) static FILE: TableSpec = TableSpec {
    doc: "ratekeeper.toml: the limits of requests, and the settings of the service.",
    keys: &[
        key(
            "enabled",
            KeyType::Bool,
            "Whether limits are enforced. If false, every request is allowed, and responses have \
             the source \"off\".",
            "true",
        )
        .or(DefaultValue::Bool(true)),
        key(
            "path_case",
            KeyType::OneOf(&["sensitive", "insensitive"]),
            "Whether upper and lower case in paths differ. Use \"insensitive\" if your services \
             ignore case: then a policy for /login applies to /LOGIN too.",
            "\"insensitive\"",
        )
        .or(DefaultValue::Text("sensitive")),
        key(
            "server",
            KeyType::Table(&SERVER),
            "Listeners of the service, their TLS, and access for operators.",
            "",
        ),
        key(
            "store",
            KeyType::Table(&STORE),
            "The store of the counters: in memory, or in Redis.",
            "",
        ),
        key(
            "identity",
            KeyType::Table(&IDENTITY),
            "How callers are identified.",
            "",
        ),
        key(
            "stats",
            KeyType::Table(&STATS),
            "Statistics of the heaviest callers.",
            "",
        ),
        key(
            "log",
            KeyType::Table(&LOG),
            "The log on standard error.",
            "",
        ),
        key(
            "traces",
            KeyType::Table(&TRACES),
            "Traces of requests, sent to an OpenTelemetry collector.",
            "",
        ),
        key(
            "envoy",
            KeyType::Table(&ENVOY),
            "Envoy's rate limit service, beside the policies.",
            "",
        ),
        key(
            "gateway",
            KeyType::Table(&GATEWAY),
            "Upstreams and settings of `ratekeeper proxy`.",
            "",
        ),
        key(
            "shed",
            KeyType::Table(&SHED),
            "Load shedding: under overload, the least important requests are denied first. Off \
             unless this table is written.",
            "",
        ),
        key(
            "plans",
            KeyType::Named(&KeyType::Table(&PLAN)),
            "Named sets of limits. A policy chooses one by an attribute of the request.",
            "",
        ),
        key(
            "policy",
            KeyType::Tables(&POLICY),
            "A policy: which requests it applies to, by what they are counted, and how many are \
             allowed. Without any policy: 100/min burst 20 per address.",
            "",
        ),
        key(
            "allow",
            KeyType::Tables(&LIST_ENTRY),
            "Allow list: requests that are allowed whatever the limits say.",
            "",
        ),
        key(
            "deny",
            KeyType::Tables(&LIST_ENTRY),
            "Deny list: requests that are always denied, unless they are on the allow list.",
            "",
        ),
    ],
    extends: None,
};

static SERVER: TableSpec = TableSpec {
    doc: "Listeners of the service, their TLS, and access for operators.",
    keys: &[
        key(
            "http",
            KeyType::Listener,
            "Listener for HTTP: checks, forward-auth and health. \"off\" disables it.",
            "\"127.0.0.1:8080\"",
        )
        .or(DefaultValue::Text("127.0.0.1:8080")),
        key(
            "grpc",
            KeyType::Listener,
            "Listener for gRPC: Envoy's rate limit service. \"off\" disables it.",
            "\"127.0.0.1:8081\"",
        )
        .or(DefaultValue::Text("127.0.0.1:8081")),
        key(
            "resp",
            KeyType::Listener,
            "Listener for RESP, the protocol of Redis: CL.THROTTLE as in redis-cell, and policies \
             by name. \"off\" disables it.",
            "\"127.0.0.1:6380\"",
        )
        .or(DefaultValue::Text("127.0.0.1:6380")),
        key(
            "admin",
            KeyType::Listener,
            "Listener for metrics and administration; keep it private. \"off\" disables it.",
            "\"127.0.0.1:9090\"",
        )
        .or(DefaultValue::Text("127.0.0.1:9090")),
        key(
            "tls",
            KeyType::Table(&SERVER_TLS),
            "Certificate of the listeners. If set, they use TLS.",
            "{ cert = \"cert.pem\", key = \"key.pem\" }",
        ),
        key(
            "id_secret",
            KeyType::LongText { bytes: 16 },
            "Secret that signs the ids of POST /v1/reserve; the same on every node. If not set, \
             the nodes agree on one through Redis, or one is generated at startup.",
            "\"…\"",
        )
        .secret(),
        key(
            "admin_token",
            KeyType::LongText { bytes: 16 },
            "Token that operators must send with changes. If not set, changes are accepted only \
             from this machine, and only while `admin` listens on loopback.",
            "\"…\"",
        )
        .secret(),
        key(
            "audit_log",
            KeyType::Text,
            "File to which changes by operators, and rejected attempts, are appended as lines of \
             JSON. If not set, there is none.",
            "\"/var/log/ratekeeper/audit.jsonl\"",
        ),
    ],
    extends: None,
};

static STORE: TableSpec = TableSpec {
    doc: "The store of the counters: in memory, or in Redis.",
    keys: &[
        key(
            "kind",
            KeyType::OneOf(&["memory", "redis"]),
            "The store: \"memory\" counts in each process alone, \"redis\" counts together with \
             all nodes that share the Redis.",
            "\"memory\"",
        )
        .or(DefaultValue::Text("memory")),
        key(
            "max_keys",
            KeyType::Number {
                min: 1,
                max: 1 << 32,
            },
            "Maximum number of keys in memory. With Redis, of those that are counted here while it \
             is unavailable.",
            "1_000_000",
        )
        .or(DefaultValue::Number(1_000_000)),
        key(
            "max_bytes",
            KeyType::Number {
                min: 1,
                max: MAX_INTEGER,
            },
            "Maximum memory, in bytes, of states that are larger than one word, such as logs. If \
             not set, 512 bytes per key of `max_keys`.",
            "512_000_000",
        ),
        key(
            "url",
            KeyType::RedisUrl,
            "URL of Redis, such as redis://127.0.0.1:6379. Required for `kind = \"redis\"`. \
             redis+sentinel:// and redis+cluster:// take several hosts.",
            "\"redis://127.0.0.1:6379\"",
        )
        .secret(),
        key(
            "timeout",
            KeyType::DurationWithin {
                min: Duration::from_millis(1),
                max: Duration::from_secs(10),
            },
            "Timeout of a request to Redis.",
            "\"10ms\"",
        )
        .or(DefaultValue::Text("10ms")),
        key(
            "on_failure",
            ON_FAILURE,
            "Fallback while Redis is unavailable: \"local_share\" lets each node allow its share \
             of every limit, \"open\" allows all requests, \"closed\" denies all.",
            "\"local_share\"",
        )
        .or(DefaultValue::Text(OnFailure::LocalShare.name())),
        key(
            "prefix",
            KeyType::Prefix,
            "Prefix of the key names in Redis.",
            "\"ratekeeper\"",
        )
        .or(DefaultValue::Text("ratekeeper")),
        key(
            "nodes",
            KeyType::Number {
                min: 1,
                max: 10_000,
            },
            "Number of nodes that share the limits, used until Redis has answered once.",
            "3",
        )
        .or(DefaultValue::Number(1)),
        key(
            "rollout_grace",
            KeyType::DurationWithin {
                min: Duration::ZERO,
                max: Duration::from_secs(86_400),
            },
            "How long nodes with the same prefix may have different limits, as during a rollout, \
             before this is reported.",
            "\"5m\"",
        )
        .or(DefaultValue::Text("1m")),
        key(
            "key_secret",
            KeyType::LongText { bytes: 16 },
            "Secret with which key names in Redis and fingerprints are hashed; the same on every \
             node. If not set, the nodes agree on one through Redis; without Redis, a new one is \
             generated at every start.",
            "\"…\"",
        )
        .secret(),
        key(
            "connections",
            KeyType::Number { min: 1, max: 64 },
            "Number of connections to Redis; in a Cluster, to each primary.",
            "2",
        )
        .or(DefaultValue::Number(2)),
        key(
            "ca_file",
            KeyType::Text,
            "File with the CA certificates (PEM) for a rediss:// server. If not set, those of the \
             system.",
            "\"/etc/ratekeeper/ca.pem\"",
        ),
        key(
            "sentinel_user",
            KeyType::Text,
            "User name for the sentinels; the one in `url` is for the server.",
            "\"ratekeeper\"",
        ),
        key(
            "sentinel_password",
            KeyType::LongText { bytes: 1 },
            "Password for the sentinels; the one in `url` is for the server.",
            "\"…\"",
        )
        .secret(),
    ],
    extends: None,
};

static IDENTITY: TableSpec = TableSpec {
    doc: "How callers are identified. A header is trusted only if it is named here.",
    keys: &[
        key(
            "trusted_proxies",
            KeyType::OneOrMany(&KeyType::Proxy),
            "Proxies whose forwarding header is trusted: addresses, networks, or \"unix\" for \
             peers on a Unix socket.",
            "[\"10.0.0.0/8\"]",
        )
        .or(DefaultValue::Empty),
        key(
            "header",
            KeyType::HeaderName,
            "Forwarding header that the trusted proxies set.",
            "\"x-forwarded-for\"",
        )
        .or(DefaultValue::Text("x-forwarded-for")),
        key(
            "ipv6_prefix",
            KeyType::Number { min: 32, max: 128 },
            "Number of leading bits of an IPv6 address that identify a client.",
            "56",
        )
        .or(DefaultValue::Number(crate::address::IPV6_PREFIX as u64)),
        key(
            "user",
            KeyType::Table(&USER_HEADER),
            "Header that names the user, and the peers that may set it.",
            "{ header = \"x-user-id\", from = [\"10.0.0.0/8\"] }",
        ),
        key(
            "api_key",
            KeyType::Table(&FROM_HEADER),
            "Header with the API key.",
            "{ header = \"authorization\" }",
        ),
        key(
            "attributes",
            KeyType::OneOrMany(&KeyType::Text),
            "Names of your own attributes, which callers of the APIs send. A policy that uses an \
             undeclared name is an error.",
            "[\"region\", \"tokens\"]",
        )
        .or(DefaultValue::Empty),
    ],
    extends: None,
};

static USER_HEADER: TableSpec = TableSpec {
    doc: "Header that names the user, and the peers that may set it.",
    keys: &[
        key(
            "header",
            KeyType::HeaderName,
            "Name of the header.",
            "\"x-user-id\"",
        )
        .or(DefaultValue::Required),
        key(
            "from",
            KeyType::OneOrMany(&KeyType::Proxy),
            "Peers that set the header: addresses, networks, or \"unix\" for peers on a Unix \
             socket. From other peers the header is ignored and removed.",
            "[\"10.0.0.0/8\"]",
        )
        .or(DefaultValue::Required),
    ],
    extends: None,
};

static FROM_HEADER: TableSpec = TableSpec {
    doc: "A header of the request.",
    keys: &[key(
        "header",
        KeyType::HeaderName,
        "Name of the header.",
        "\"x-user-id\"",
    )
    .or(DefaultValue::Required)],
    extends: None,
};

static STATS: TableSpec = TableSpec {
    doc: "Statistics of the heaviest callers.",
    keys: &[
        key(
            "keys",
            KeyType::OneOf(&["fingerprint", "plain"]),
            "How keys are shown to operators: \"fingerprint\" shows a hash, \"plain\" the key \
             itself, except for secrets.",
            "\"fingerprint\"",
        )
        .or(DefaultValue::Text("fingerprint")),
        key(
            "top",
            KeyType::Number {
                min: 64,
                max: 1 << 20,
            },
            "Number of keys that are counted.",
            "1024",
        )
        .or(DefaultValue::Number(1024)),
    ],
    extends: None,
};

static ENVOY: TableSpec = TableSpec {
    doc: "Envoy's rate limit service: limits by the descriptors that Envoy sends, beside the \
          policies.",
    keys: &[
        key(
            "config",
            KeyType::Text,
            "Configuration of envoyproxy/ratelimit: a directory of YAML files, or one file. If not \
             set, here or by --envoy-config, the service is off.",
            "\"/etc/ratelimit/config\"",
        ),
        key(
            "denied_hits",
            KeyType::OneOf(&["free", "consume"]),
            "Whether a denied request uses up what is left of its limits: \"consume\" as in \
             envoyproxy/ratelimit, \"free\" if not.",
            "\"consume\"",
        )
        .or(DefaultValue::Text("free")),
        key(
            "response_headers",
            KeyType::Bool,
            "Whether Envoy adds the headers RateLimit-Limit, -Remaining and -Reset to responses.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
        key(
            "dynamic_metadata",
            KeyType::Bool,
            "Whether the descriptors are passed to Envoy's later filters as dynamic metadata.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
    ],
    extends: None,
};

static PLAN: TableSpec = TableSpec {
    doc: "A plan: a named set of limits.",
    keys: &[
        key(
            "limit",
            KeyType::Limit,
            "The limit of the plan, if it has one only.",
            "\"60/min burst 10\"",
        ),
        key(
            "limits",
            KeyType::OneOrMany(&KeyType::Limit),
            "The limits of the plan, all of which must allow a request.",
            "[\"60/min\", \"1000/d\"]",
        ),
        key(
            "algorithm",
            KeyType::Algorithm,
            "Algorithm of the limits that do not name one.",
            "\"sliding_window\"",
        ),
        key(
            "class",
            PRIORITY,
            "Priority of its requests under overload.",
            "\"sheddable\"",
        ),
    ],
    extends: None,
};

static POLICY: TableSpec = TableSpec {
    doc: "A policy: which requests it applies to, by what they are counted, and how many are \
          allowed. Without any policy: 100/min burst 20 per address.",
    keys: &[
        key(
            "name",
            KeyType::Text,
            "Name of the policy in responses, metrics and the log. Its counters are stored under \
             it.",
            "\"login\"",
        )
        .or(DefaultValue::Required),
        key(
            "match",
            KeyType::Table(&MATCH),
            "Conditions of the requests it applies to. If not set, all requests.",
            "{ path = \"/login\" }",
        ),
        key(
            "key",
            KeyType::OneOrMany(&KeyType::Attribute),
            "Attributes that requests are counted by. If empty, all requests share one bucket.",
            "[\"ip\"]",
        )
        .or(DefaultValue::Empty),
        key(
            "missing",
            KeyType::OneOf(&["address", "skip", "shared", "deny"]),
            "What happens to a request that lacks an attribute of the key: \"address\" counts it \
             by its address, \"skip\" does not apply the policy, \"shared\" counts it in one \
             shared bucket, \"deny\" denies it.",
            "\"skip\"",
        )
        .or(DefaultValue::Text("address")),
        key(
            "tag",
            KeyType::OneOrMany(&KeyType::Attribute),
            "In Redis Cluster, the leading attributes of the key that choose the node: keys that \
             share them are on one node. If not set, the whole key.",
            "[\"header:x-tenant\"]",
        ),
        key(
            "limit",
            KeyType::Limit,
            "The limit, such as \"100/min burst 20\".",
            "\"100/min burst 20\"",
        ),
        key(
            "limits",
            KeyType::OneOrMany(&KeyType::Limit),
            "Several limits, all of which must allow a request.",
            "[\"10/s\", \"20 concurrent\"]",
        ),
        key(
            "plan",
            KeyType::Table(&PLAN_OF),
            "Limits by the plan of the caller, instead of `limit` or `limits`.",
            "{ attribute = \"plan\" }",
        ),
        key(
            "algorithm",
            KeyType::Algorithm,
            "Algorithm of the limits that do not name one.",
            "\"sliding_log\"",
        ),
        key(
            "cost",
            KeyType::Either(&ANY, &KeyType::Table(&COST)),
            "Units that a request takes, or the attribute that holds them.",
            "5",
        )
        .or(DefaultValue::Number(1)),
        key(
            "count",
            KeyType::OneOf(&["all", "failures", "successes"]),
            "Which requests count. A request that does not count is refunded when it ends.",
            "\"failures\"",
        )
        .or(DefaultValue::Text("all")),
        key(
            "failure_status",
            KeyType::OneOrMany(&KeyType::Status),
            "Status codes that are failures. If not set, 400 to 599.",
            "[401, \"5xx\"]",
        ),
        key(
            "action",
            KeyType::OneOf(&["enforce", "shadow", "delay"]),
            "What happens to a request over the limit: \"enforce\" denies it, \"shadow\" only \
             counts it, \"delay\" makes the caller wait.",
            "\"shadow\"",
        )
        .or(DefaultValue::Text("enforce")),
        key(
            "max_delay",
            KeyType::Duration,
            "Maximum wait with `action = \"delay\"`, which requires it.",
            "\"2s\"",
        ),
        key(
            "status",
            KeyType::OneOfNumbers(&[429, 503]),
            "HTTP status of denials.",
            "503",
        )
        .or(DefaultValue::Number(429)),
        key(
            "adaptive",
            KeyType::Table(&ADAPTIVE),
            "Adaptive limit on its requests in flight.",
            "{ min = 5, max = 200 }",
        ),
        key(
            "class",
            KeyType::Either(&PRIORITY, &KeyType::Table(&CLASS)),
            "Priority of its requests under overload; or a table of classes, each of which leaves \
             a reserve to the others.",
            "\"sheddable\"",
        ),
        key(
            "rollout",
            KeyType::Percent,
            "Percentage of keys that the policy is enforced for.",
            "10",
        )
        .or(DefaultValue::Number(100)),
        key(
            "final",
            KeyType::Bool,
            "If true, later policies do not apply to a request that this one applies to.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
        key(
            "penalty",
            KeyType::Table(&PENALTY),
            "Ban for keys that are denied too often.",
            "",
        ),
        key(
            "on_failure",
            ON_FAILURE,
            "Fallback for its requests while Redis is unavailable. If not set, that of [store].",
            "\"closed\"",
        ),
        key(
            "mode",
            KeyType::OneOf(&["exact", "leased"]),
            "How decisions are made with Redis: \"exact\" asks Redis for each, \"leased\" decides \
             by tokens that the node leases from it.",
            "\"leased\"",
        )
        .or(DefaultValue::Text("exact")),
        key(
            "staleness",
            KeyType::DurationWithin {
                min: Duration::from_millis(20),
                max: Duration::from_secs(60),
            },
            "Maximum lifetime of a lease. Shorter is fairer between nodes, longer asks Redis less \
             often.",
            "\"100ms\"",
        )
        .or(DefaultValue::Text("100ms")),
    ],
    extends: None,
};

static PLAN_OF: TableSpec = TableSpec {
    doc: "How the plan of a request is chosen.",
    keys: &[
        key(
            "attribute",
            KeyType::Attribute,
            "Attribute that names the plan.",
            "\"plan\"",
        )
        .or(DefaultValue::Text("plan")),
        key(
            "default",
            KeyType::Text,
            "Plan of requests without a known one. If not set, the policy does not apply to them.",
            "\"free\"",
        ),
    ],
    extends: None,
};

static COST: TableSpec = TableSpec {
    doc: "A cost that is an attribute of the request.",
    keys: &[
        key(
            "attribute",
            KeyType::Attribute,
            "Attribute that holds the cost.",
            "\"tokens\"",
        )
        .or(DefaultValue::Required),
        key(
            "default",
            ANY,
            "Cost of requests in which the attribute is missing or not a whole number.",
            "1",
        )
        .or(DefaultValue::Number(1)),
    ],
    extends: None,
};

static CLASS: TableSpec = TableSpec {
    doc: "Classes of requests, each of which leaves a reserve to the others.",
    keys: &[
        key(
            "attribute",
            KeyType::Attribute,
            "Attribute that names the class.",
            "\"class\"",
        )
        .or(DefaultValue::Text("class")),
        key(
            "default",
            KeyType::Text,
            "Class of requests without a known one. If not set, they leave no reserve.",
            "\"batch\"",
        ),
        key(
            "reserve",
            KeyType::Named(&KeyType::Reserve),
            "Reserve that each class leaves to the others: units, or a percentage of the limit.",
            "{ batch = 20, crawler = \"50%\" }",
        ),
    ],
    extends: None,
};

static PENALTY: TableSpec = TableSpec {
    doc: "Ban for keys that are denied too often.",
    keys: &[
        key(
            "denials",
            KeyType::Number {
                min: 1,
                max: MAX_DENIALS,
            },
            "Number of denials that leads to a ban.",
            "20",
        )
        .or(DefaultValue::Required),
        key(
            "within",
            KeyType::Duration,
            "Time within which the denials are counted.",
            "\"10m\"",
        )
        .or(DefaultValue::Required),
        key("ban", KeyType::Duration, "Duration of the ban.", "\"1h\"").or(DefaultValue::Required),
    ],
    extends: None,
};

/// The conditions of a request, without `not`.
pub(crate) static CONDITIONS: TableSpec = TableSpec {
    doc: "Conditions on a request, all of which must hold.",
    keys: &[
        key(
            "method",
            KeyType::OneOrMany(&KeyType::Method),
            "One of these methods.",
            "[\"POST\", \"PUT\"]",
        ),
        key(
            "path",
            KeyType::OneOrMany(&KeyType::Path),
            "One of these paths. `*` stands for one segment, `**` for the rest of the path.",
            "\"/api/**\"",
        ),
        key(
            "host",
            KeyType::OneOrMany(&KeyType::Host),
            "One of these hosts. `*.example.com` stands for every host below example.com, not for \
             itself.",
            "\"api.example.com\"",
        ),
        key(
            "ip",
            KeyType::OneOrMany(&KeyType::Network),
            "An address in one of these networks.",
            "\"203.0.113.0/24\"",
        ),
        key("user", TEXTS, "One of these users.", "\"42\""),
        key("api_key", TEXTS, "One of these API keys.", "\"…\"").secret(),
        key("plan", TEXTS, "One of these plans.", "\"free\""),
        key("tenant", TEXTS, "One of these tenants.", "\"acme\""),
        key(
            "header",
            KeyType::Named(&KeyType::Either(&KeyType::True, &TEXTS)),
            "Headers: true if the header must be present, or the values of which it must have one.",
            "{ \"x-debug\" = true }",
        ),
        key(
            "attribute",
            KeyType::Named(&TEXTS),
            "Attributes of your own, each with the values of which it must have one.",
            "{ region = \"eu\" }",
        ),
    ],
    extends: None,
};

static MATCH: TableSpec = TableSpec {
    doc: "Conditions on a request, all of which must hold.",
    keys: &[key(
        "not",
        KeyType::Table(&CONDITIONS),
        "Conditions that must not all hold.",
        "{ method = \"GET\" }",
    )],
    extends: Some(&CONDITIONS),
};

static LIST_ENTRY: TableSpec = TableSpec {
    doc: "An entry of the allow or deny list: conditions, all of which must hold, and its end.",
    keys: &[
        key(
            "until",
            KeyType::Time,
            "End of the entry: a date and time with offset. If not set, it never ends.",
            "2030-01-01T00:00:00Z",
        ),
        key(
            "reason",
            KeyType::Text,
            "Reason of the entry, shown to operators.",
            "\"our own monitoring\"",
        ),
    ],
    extends: Some(&MATCH),
};

/// The table that a misplaced key belongs to, phrased to follow "move it".
pub(crate) fn table_of(name: &str) -> Option<String> {
    FILE.keys().into_iter().find_map(|key| match &key.key_type {
        // In TOML what follows the header of a table is part of it.
        _ if key.name == name => Some("to the top level, above the first table".to_owned()),
        KeyType::Table(table) if table.key(name).is_some() => Some(format!("to [{}]", key.name)),
        KeyType::Tables(table) if table.key(name).is_some() => {
            Some(format!("to a [[{}]]", key.name))
        }
        _ => None,
    })
}

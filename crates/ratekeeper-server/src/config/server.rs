//! `[server]`, `[log]`, `[traces]` and `[envoy]`: the settings of the service.

use super::listen::{Listen, Listener};
use super::secret::Secret;
use super::tls::{ListenerTls, ServerTlsTable};
use super::upstream::Upstream;
use ratekeeper_policy::config::section::{KeyType, Section, TableForm};
use ratekeeper_policy::policy::Rollout;
use ratekeeper_policy::{section, words};
use std::path::PathBuf;

section! {
    /// `[server]`: the listeners of the service, each of which may be off, and access for operators.
    pub(crate) struct ServerConfig, check = check_listeners {
        /// Listener for HTTP: checks, forward-auth and health. "off" disables it.
        http: Option<Listen> as Listener = "127.0.0.1:8080" => "127.0.0.1:8080";
        /// Listener for gRPC: Envoy's rate limit service. "off" disables it.
        grpc: Option<Listen> as Listener = "127.0.0.1:8081" => "127.0.0.1:8081";
        /// Listener for RESP, the protocol of Redis: CL.THROTTLE as in redis-cell, and policies by
        /// name. "off" disables it.
        resp: Option<Listen> as Listener = "127.0.0.1:6380" => "127.0.0.1:6380";
        /// Listener for metrics and administration; keep it private. "off" disables it.
        admin: Option<Listen> as Listener = "127.0.0.1:9090" => "127.0.0.1:9090";
        /// Certificate of the listeners. If set, they use TLS.
        tls: ListenerTls as TableForm<ServerTlsTable> => { cert = "cert.pem", key = "key.pem" };
        /// Secret that signs the ids of POST /v1/reserve; the same on every node. If not set, the
        /// nodes agree on one through Redis, or one is generated at startup.
        id_secret: Option<Secret> => "…";
        /// Token that operators must send with changes. If not set, changes are accepted only from
        /// this machine, and only while `admin` listens on loopback.
        admin_token: Option<Secret> => "…";
        /// File to which changes by operators, and rejected attempts, are appended as lines of JSON.
        /// If not set, there is none.
        audit_log: Option<PathBuf> => "/var/log/ratekeeper/audit.jsonl";
    }
}

section! {
    /// `[log]`: the log on standard error.
    pub(crate) struct LogConfig {
        /// Format of lines: "text" for people, "json" for programs, one object per line.
        format: LogFormat = "text" => "text";
        /// Lowest level that is logged. The variable RUST_LOG takes precedence.
        level: &'static str [KeyType::OneOf(&["error", "warn", "info", "debug", "trace"])]
            = "info" => "info";
        /// Whether repeated lines are sampled: of each line of code ten, then one a minute with the
        /// number left out.
        sample: bool = true => true;
    }
}

section! {
    /// `[traces]`: traces of requests, sent to an OpenTelemetry collector.
    pub(crate) struct TracesConfig {
        /// OTLP/HTTP address of the collector. If not set, nothing is traced.
        endpoint: Option<Upstream> => "http://127.0.0.1:4318";
        /// Percentage of requests that are traced, of those whose caller has made no sampling
        /// decision.
        share("percent"): Rollout = 1 => 1;
    }
}

section! {
    /// `[envoy]`: Envoy's rate limit service, its configuration files and its responses.
    pub(crate) struct EnvoyConfig {
        /// Configuration of envoyproxy/ratelimit: a directory of YAML files, or one file. If not
        /// set, here or by --envoy-config, the service is off.
        config: Option<PathBuf> => "/etc/ratelimit/config";
        /// Whether a denied request uses up what is left of its limits: "consume" as in
        /// envoyproxy/ratelimit, "free" if not.
        denied_hits: DeniedHits = "free" => "consume";
        /// Whether Envoy adds the headers RateLimit-Limit, -Remaining and -Reset to responses.
        response_headers: bool = false => true;
        /// Whether the descriptors are passed to Envoy's later filters as dynamic metadata.
        dynamic_metadata: bool = false => true;
    }
}

/// The format of lines of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    /// `text`: for people.
    Text,
    /// `json`: one object per line.
    Json,
}

/// Whether a request that Envoy's rate limit service denies uses up what is left of its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeniedHits {
    /// `free`: no.
    Free,
    /// `consume`: yes.
    Consume,
}

words! {
    LogFormat { "text" => LogFormat::Text, "json" => LogFormat::Json }
    DeniedHits { "free" => DeniedHits::Free, "consume" => DeniedHits::Consume }
}

/// Reports listeners with the same address.
fn check_listeners(section: &Section<'_>, _: Option<&ServerConfig>) {
    let mut listeners: Vec<(&str, Listen)> = Vec::new();
    for name in ["http", "grpc", "resp", "admin"] {
        let address = section
            .text_or_default(name)
            .and_then(|text| text.parse::<Listen>().ok());
        let has_fixed_port =
            |address: &Listen| address.tcp().is_none_or(|address| address.port() != 0);
        let Some(address) = address.filter(has_fixed_port) else {
            continue;
        };
        if let Some((other, _)) = listeners.iter().find(|(_, known)| *known == address) {
            let at = if section.has(name) { name } else { other };
            let message = format!(
                "`{other}` and `{name}` {{in}} both listen on {address}; give each its own address"
            );
            section.error(at, &message);
        }
        listeners.push((name, address));
    }
}

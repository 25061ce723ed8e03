//! Configuration: ratekeeper.toml, the environment variables that override it, and diagnostics.
//!
//! ```
//! use ratekeeper_policy::config::Config;
//!
//! let text = "
//! [[policy]]
//! name = \"login\"
//! match = { method = \"POST\", path = \"/login\" }
//! key = \"ip\"
//! limt = \"5/min\"
//! ";
//! let loaded = Config::parse("ratekeeper.toml", text, []);
//! assert!(loaded.config.is_none());
//! assert_eq!(
//!     loaded.diagnostics[0].to_string(),
//!     "ratekeeper.toml:6:1: error: unknown key `limt` in [[policy]] \"login\"; did you mean `limit`?"
//! );
//! ```

mod attributes;
mod diagnostic;
mod env;
mod file_watcher;
mod gateway;
mod key_type;
mod keys;
mod listen;
mod markdown;
mod observability;
mod provenance;
mod read;
mod redis;
mod schema;
mod show;
mod simple_env;
mod suggest;
mod time;
mod unprovided;
mod value;

pub use attributes::{UnknownAttributeError, known_attribute};
pub use diagnostic::{Diagnostic, Location};
pub use file_watcher::{FileWatcher, yaml_files};
pub use gateway::{AccessLog, Balance, Certificate, GatewayConfig, Upstream, UpstreamUrlError};
pub use listen::{Listen, ListenError, ListenerTls};
pub use observability::{LogConfig, LogFormat, TracesConfig};
pub use redis::{RedisConfig, RedisUrl, RedisUrlError, Secret};
pub use schema::schema;
pub use time::{duration, duration_text, timestamp_text};

use crate::policies::Policies;
use crate::trusted_peers::TrustedPeers;
use env::Variables;
use ipnet::IpNet;
use provenance::Provenance;
use std::io;
#[cfg(unix)]
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use value::{FileText, Position};

/// The configuration of the service and its policies.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The listeners, and access for operators.
    pub server: ServerConfig,
    /// The store of the counters.
    pub store: StoreConfig,
    /// How callers are identified.
    pub identity: IdentityConfig,
    /// Statistics of the heaviest callers.
    pub stats: StatsConfig,
    /// The log on standard error.
    pub log: LogConfig,
    /// Traces of requests.
    pub traces: TracesConfig,
    /// Envoy's rate limit service.
    pub envoy: EnvoyConfig,
    /// The upstreams and settings of the gateway.
    pub gateway: GatewayConfig,
    /// The limits.
    pub policies: Policies,
}

/// `[server]`: the listeners of the service, each of which may be off, and access for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// HTTP: checks, forward-auth and health.
    pub http: Option<Listen>,
    /// gRPC.
    pub grpc: Option<Listen>,
    /// RESP.
    pub resp: Option<Listen>,
    /// Metrics and administration.
    pub admin: Option<Listen>,
    /// The certificates of the listeners.
    pub tls: ListenerTls,
    /// The secret that signs the ids of reservations, if it is configured.
    pub id_secret: Option<Secret>,
    /// The token that operators must send with changes; without one, changes are accepted only from
    /// this machine, on loopback.
    pub admin_token: Option<Secret>,
    /// The file to which changes by operators, and rejected attempts, are appended.
    pub audit_log: Option<PathBuf>,
}

/// `[store]`: where the counters are, and how much memory they may use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The maximum number of keys in memory; with Redis, of those that are counted here while it is
    /// unavailable.
    pub max_keys: u64,
    /// The maximum memory, in bytes, of states larger than one word; by default the store decides.
    pub max_bytes: Option<u64>,
    /// The secret with which key names and fingerprints are hashed, the same on every node. By
    /// default the nodes agree on one through Redis; without Redis, every process generates its
    /// own.
    pub key_secret: Option<Secret>,
    /// The Redis that a fleet shares; `None` if the counters are in memory. The fallback while it
    /// is unavailable is part of the [policies](Policies::default_on_failure), because it may
    /// change while the service runs.
    pub redis: Option<RedisConfig>,
}

/// `[identity]`: how callers are identified, and which headers are trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct IdentityConfig {
    /// The proxies whose forwarding header is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether peers on a Unix socket are trusted proxies too: `unix` in the list.
    pub trusts_unix: bool,
    /// The forwarding header, in lower case.
    pub header: String,
    /// The number of leading bits of an IPv6 address that identify a client; the policies have it
    /// too.
    pub ipv6_prefix: u8,
    /// The header that names the user, and the peers that may set it.
    pub user: Option<UserHeader>,
    /// The header with the API key, in lower case.
    pub api_key: Option<String>,
    /// The declared attributes: those that callers of the APIs send, or a program adds.
    pub attributes: Vec<String>,
    /// The header in which trusted proxies set the priority class, in lower case: `header` of
    /// `[shed]`.
    pub class: Option<String>,
    /// The header in which they set the start time of a request, in lower case: `start_header` of
    /// `[shed]`.
    pub start: Option<String>,
}

/// The header that names the user, and the peers from which it is trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UserHeader {
    /// The header, in lower case.
    pub header: String,
    /// The peers that may set it. From other peers the header is ignored, and the gateway does not
    /// forward it.
    pub from: TrustedPeers,
}

/// `[stats]`: statistics of the heaviest callers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StatsConfig {
    /// How keys are shown to operators.
    pub keys: KeyDisplay,
    /// The number of keys that are counted.
    pub top: usize,
}

/// `[envoy]`: Envoy's rate limit service, its configuration files and its responses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct EnvoyConfig {
    /// The configuration files of envoyproxy/ratelimit: their directory, or one of them.
    pub config: Option<PathBuf>,
    /// Whether a denied request uses up what is left of its limits.
    pub denied_hits_consume: bool,
    /// Whether Envoy adds rate limit headers to responses.
    pub response_headers: bool,
    /// Whether the descriptors are passed to Envoy's later filters as dynamic metadata.
    pub dynamic_metadata: bool,
}

/// How keys are shown to operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyDisplay {
    /// `fingerprint`: a hash, the same for the same key, which reveals no more than that.
    Fingerprint,
    /// `plain`: the key itself.
    Plain,
}

/// The result of loading a configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadedConfig {
    /// The configuration; `None` if there are errors.
    pub config: Option<Config>,
    /// All errors and warnings, in the order of the file, then those about variables.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the file could not be read at all.
    pub unreadable: bool,
    provenance: Provenance,
}

impl LoadedConfig {
    /// Whether there are errors, so that there is no configuration.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(Diagnostic::is_error)
    }
}

impl Config {
    /// Reads the file, if there is one, and the variables, which override it.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        let Some(path) = file else {
            return Self::parse("", "", env);
        };
        let name = path.display().to_string();
        let bytes = match read_regular_file(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let mut loaded = failed(Diagnostic::error(
                    Location::Nowhere,
                    format!("cannot read {name}: {error}"),
                ));
                loaded.unreadable = true;
                return loaded;
            }
        };
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&name, &text, env),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(&error.as_bytes()[..valid]);
                let location = FileText::new(&name, &text).location(Position::File(text.len()));
                failed(Diagnostic::error(
                    location,
                    "the file is not valid UTF-8; save it as UTF-8 text".to_owned(),
                ))
            }
        }
    }

    /// Reads `text` as if it were a file of this name, and the variables, which override it.
    pub fn parse(
        name: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        let variables = env
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .collect::<Variables>();
        let file = FileText::new(name, text);
        let mut tree = match file.parse() {
            Ok(tree) => tree,
            Err(diagnostics) => {
                return LoadedConfig {
                    config: None,
                    diagnostics,
                    unreadable: false,
                    provenance: Provenance::default(),
                };
            }
        };
        env::apply(&mut tree, &variables);
        let mut provenance = Provenance::of(&tree, &file);
        let mut reader = read::Reader::new(&file);
        let mut parsed = read::file::read(&mut reader, &tree);
        let mut diagnostics = reader.diagnostics;

        let mut policies = std::mem::take(&mut parsed.policies);
        if parsed.has_policies {
            diagnostics.extend(simple_env::ignored_warning(&variables));
        } else {
            let simple = simple_env::read(&variables, &mut diagnostics);
            if let Some(enabled) = simple
                .enabled
                .filter(|_| !provenance.is_variable("enabled"))
            {
                provenance.add(
                    "enabled",
                    Location::Variable("RATE_LIMIT_ENABLED".to_owned()),
                );
                parsed.enabled = Some(enabled);
            }
            let (own, from) = simple
                .policies
                .unwrap_or_else(|| (Policies::built_in(), Vec::new()));
            policies.policies = own.policies;
            for (index, name) in from.into_iter().enumerate() {
                provenance.add(
                    &format!("policy.{index}.limit"),
                    Location::Variable(name.to_owned()),
                );
            }
        }
        diagnostics.extend(env::unknown(&variables));
        diagnostics.sort_by(|one, other| one.location.cmp(&other.location));
        let has_errors = diagnostics.iter().any(Diagnostic::is_error);
        let config = parsed.config(policies).filter(|_| !has_errors);
        LoadedConfig {
            config,
            diagnostics,
            unreadable: false,
            provenance,
        }
    }
}

/// Reads a regular file. A pipe or a device is an error: reading it may block forever, and it
/// cannot be read again.
fn read_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    let file_type = std::fs::metadata(path)?.file_type();
    let name = match file_type {
        _ if file_type.is_file() => return std::fs::read(path),
        _ if file_type.is_dir() => "a directory",
        #[cfg(unix)]
        _ if file_type.is_fifo() => "a pipe",
        #[cfg(unix)]
        _ if file_type.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!(
        "it is {name}; name a regular file"
    )))
}

/// The result of loading with one error only.
fn failed(diagnostic: Diagnostic) -> LoadedConfig {
    LoadedConfig {
        config: None,
        diagnostics: vec![diagnostic],
        unreadable: false,
        provenance: Provenance::default(),
    }
}

/// The environment variables of this process, for [`Config::load`]. Those that are not UTF-8 are
/// left out.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

impl Default for Config {
    fn default() -> Self {
        Self::parse("", "", [])
            .config
            .expect("an empty file is valid")
    }
}

//! The configuration: ratekeeper.toml, the environment over it, and what is wrong with either.
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
mod docs;
mod env;
mod gateway;
mod keys;
mod kind;
mod listen;
mod nearest;
mod plain;
mod read;
mod redis;
mod schema;
mod show;
mod source;
mod time;
mod tree;
mod unprovided;
mod watch;
mod watched;

pub use attributes::{UnknownAttributeError, known_attribute};
pub use diagnostic::{Diagnostic, Place};
pub use gateway::{AccessLog, Balance, Certificate, Gateway, Upstream, UpstreamError};
pub use listen::{Listen, ListenError, ListenerTls};
pub use redis::{RedisConfig, RedisUrl, RedisUrlError, Secret};
pub use schema::schema;
pub use time::{duration, duration_text, instant_text};
pub use watch::{Watch, yaml_files};
pub use watched::{LogConfig, LogFormat, TracesConfig};

use crate::policies::Policies;
use crate::trusted_peers::TrustedPeers;
use env::Variables;
use ipnet::IpNet;
use source::Sources;
use std::io;
#[cfg(unix)]
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tree::{Source, Spot};

/// How the service runs, and who may do what.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where it listens.
    pub server: Server,
    /// Where the counters are.
    pub store: StoreConfig,
    /// Who is calling.
    pub identity: Identity,
    /// What is remembered of the heaviest callers.
    pub stats: StatsConfig,
    /// What it says on standard error.
    pub log: LogConfig,
    /// Spans of requests.
    pub traces: TracesConfig,
    /// Envoy's rate limit service.
    pub envoy: EnvoyService,
    /// What the gateway stands in front of.
    pub gateway: Gateway,
    /// Which limits apply.
    pub policies: Policies,
}

/// Where the service listens; none where it does not.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Server {
    /// HTTP: checks, forward-auth, health.
    pub http: Option<Listen>,
    /// gRPC.
    pub grpc: Option<Listen>,
    /// RESP.
    pub resp: Option<Listen>,
    /// Metrics and administration.
    pub admin: Option<Listen>,
    /// Their certificates.
    pub tls: ListenerTls,
    /// What signs the ids of reservations, where the operator chose it.
    pub id_secret: Option<Secret>,
    /// What operators must have who change something; without one only this machine may, on
    /// loopback.
    pub admin_token: Option<Secret>,
    /// The file to which what operators did, or tried to, is appended.
    pub audit_log: Option<PathBuf>,
}

/// Where the counters are, and how much of them is held in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// How many keys at most; with Redis, of those that are counted here while it is gone.
    pub max_keys: u64,
    /// How many bytes the states take that are more than a word; if nothing is said the store
    /// decides.
    pub max_bytes: Option<u64>,
    /// What names of keys and their fingerprints are hashed with, the same on every node; if
    /// nothing is said the nodes agree on one through Redis, and without Redis it is another in
    /// every process.
    pub key_secret: Option<Secret>,
    /// The Redis that a fleet shares; none if the counters are in memory. What becomes of requests
    /// while it is gone is with the [policies](Policies::default_on_failure), because it may change
    /// while they run.
    pub redis: Option<RedisConfig>,
}

/// Who is calling, and which headers are believed about it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Identity {
    /// Proxies whose forwarding header is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether that of whoever comes over a Unix socket is: `unix` among the proxies.
    pub trusts_unix: bool,
    /// The one forwarding header, in lower case.
    pub header: String,
    /// How many bits of an IPv6 address name a client; the policies have it too.
    pub ipv6_prefix: u8,
    /// The header that names the user, and who is believed about it.
    pub user: Option<UserHeader>,
    /// The header that has the API key, in lower case.
    pub api_key: Option<String>,
    /// The attributes of the user's own: those that callers of the APIs send, or a program adds.
    pub attributes: Vec<String>,
    /// The header in which trusted proxies say how important a request is, in lower case: that of
    /// `[shed]`.
    pub class: Option<String>,
    /// The header in which they say when a request began, in lower case: the `start_header` of
    /// `[shed]`.
    pub start: Option<String>,
}

/// The header that names the user, and the peers whose connections it is believed on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UserHeader {
    /// The header, in lower case.
    pub header: String,
    /// The peers that are believed: on all other connections the header is ignored, and the gateway
    /// does not forward it.
    pub from: TrustedPeers,
}

/// What is remembered of the heaviest callers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StatsConfig {
    /// How their keys are shown.
    pub keys: KeysShown,
    /// How many counters there are for them.
    pub top: usize,
}

/// Envoy's rate limit service: where its limits are written, and what it answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct EnvoyService {
    /// The configuration files of envoyproxy/ratelimit: their directory, or one of them.
    pub config: Option<PathBuf>,
    /// Whether a request that is turned away uses up what is left.
    pub denied_hits_consume: bool,
    /// Whether Envoy is told to add headers to responses.
    pub response_headers: bool,
    /// Whether Envoy's later filters are told of the descriptors.
    pub dynamic_metadata: bool,
}

/// How keys are shown to an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysShown {
    /// `fingerprint`: the same key is the same letters, and they say nothing else.
    Fingerprint,
    /// `plain`: as it is.
    Plain,
}

/// What became of loading.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The configuration; none if there are errors.
    pub config: Option<Config>,
    /// Everything that is wrong or doubtful, in the order of the file, then the variables.
    pub diagnostics: Vec<Diagnostic>,
    /// The file could not be read at all.
    pub unreadable: bool,
    sources: Sources,
}

impl Loaded {
    /// Whether something cannot be.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(Diagnostic::is_error)
    }
}

impl Config {
    /// Reads the file, if there is one, and the environment over it.
    pub fn load(file: Option<&Path>, env: impl IntoIterator<Item = (String, String)>) -> Loaded {
        let Some(path) = file else {
            return Self::parse("", "", env);
        };
        let name = path.display().to_string();
        let bytes = match read_regular_file(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let mut loaded = failed(Diagnostic::error(
                    Place::Nowhere,
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
                let place = Source::new(&name, &text).place(Spot::File(text.len()));
                failed(Diagnostic::error(
                    place,
                    "this is not text in UTF-8; save the file as such".to_owned(),
                ))
            }
        }
    }

    /// Reads a text as if it were a file of that name, and the environment over it.
    pub fn parse(
        name: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Loaded {
        let variables = env
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .collect::<Variables>();
        let source = Source::new(name, text);
        let mut tree = match source.parse() {
            Ok(tree) => tree,
            Err(diagnostics) => {
                return Loaded {
                    config: None,
                    diagnostics,
                    unreadable: false,
                    sources: Sources::default(),
                };
            }
        };
        env::apply(&mut tree, &variables);
        let mut sources = Sources::of(&tree, &source);
        let mut reader = read::Reader::new(&source);
        let mut read = read::file::read(&mut reader, &tree);
        let mut found = reader.found;

        let mut policies = std::mem::take(&mut read.policies);
        if read.has_policies {
            found.extend(plain::ignored(&variables));
        } else {
            let plain = plain::read(&variables, &mut found);
            if let Some(enabled) = plain.enabled.filter(|_| !sources.is_variable("enabled")) {
                sources.add("enabled", Place::Variable("RATE_LIMIT_ENABLED".to_owned()));
                read.enabled = Some(enabled);
            }
            let (own, from) = plain
                .policies
                .unwrap_or_else(|| (Policies::built_in(), Vec::new()));
            policies.policies = own.policies;
            for (index, name) in from.into_iter().enumerate() {
                sources.add(
                    &format!("policy.{index}.limit"),
                    Place::Variable(name.to_owned()),
                );
            }
        }
        found.extend(env::unknown(&variables));
        found.sort_by(|one, other| one.place.cmp(&other.place));
        let has_errors = found.iter().any(Diagnostic::is_error);
        let config = read.config(policies).filter(|_| !has_errors);
        Loaded {
            config,
            diagnostics: found,
            unreadable: false,
            sources,
        }
    }
}

/// Reads a file. A pipe or a device is not opened: to read it may take for ever, and a second time
/// there is nothing.
fn read_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    let kind = std::fs::metadata(path)?.file_type();
    let what = match kind {
        _ if kind.is_file() => return std::fs::read(path),
        _ if kind.is_dir() => "a directory",
        #[cfg(unix)]
        _ if kind.is_fifo() => "a pipe",
        #[cfg(unix)]
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!(
        "it is {what}; name a regular file"
    )))
}

fn failed(diagnostic: Diagnostic) -> Loaded {
    Loaded {
        config: None,
        diagnostics: vec![diagnostic],
        unreadable: false,
        sources: Sources::default(),
    }
}

/// The environment of this process, for [`Config::load`]. What is not text is left out.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
impl Default for Config {
    fn default() -> Self {
        Self::parse("", "", [])
            .config
            .expect("nothing said is nothing wrong")
    }
}

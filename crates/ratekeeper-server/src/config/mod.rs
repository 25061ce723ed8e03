//! The configuration of the service: the policies of [`ratekeeper_policy::config`], and the tables
//! that only the service has.

mod address;
mod gateway;
mod listen;
pub(crate) mod redis_url;
mod secret;
mod server;
mod store;
mod tls;
mod upstream;

pub(crate) use gateway::{AccessLog, Balance, GatewayConfig, Route};
pub(crate) use listen::Listen;
pub(crate) use secret::Secret;
pub(crate) use server::{
    DeniedHits, EnvoyConfig, LogConfig, LogFormat, ServerConfig, TracesConfig,
};
pub(crate) use store::{RedisConfig, StoreConfig};
pub(crate) use tls::{Certificate, ListenerTls};
pub(crate) use upstream::Upstream;

pub(crate) use ratekeeper_policy::config::{
    Diagnostic, FileWatcher, IdentityConfig, KeyDisplay, Location, UnknownAttributeError,
    UserHeader, duration, duration_text, environment, known_attribute, timestamp_text,
};

use ratekeeper_policy::config::section::Flatten;
use ratekeeper_policy::config::{
    self as policy_config, Callers, Configuration, Rules, StatsConfig, Switches,
};
use ratekeeper_policy::{Policies, section};
use std::path::Path;

/// The result of loading a configuration.
pub(crate) type LoadedConfig = policy_config::LoadedConfig<Config>;

/// The configuration of the service and its policies.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Config {
    /// The listeners, and access for operators.
    pub(crate) server: ServerConfig,
    /// The store of the counters.
    pub(crate) store: StoreConfig,
    /// How callers are identified.
    pub(crate) identity: IdentityConfig,
    /// Statistics of the heaviest callers.
    pub(crate) stats: StatsConfig,
    /// The log on standard error.
    pub(crate) log: LogConfig,
    /// Traces of requests.
    pub(crate) traces: TracesConfig,
    /// Envoy's rate limit service.
    pub(crate) envoy: EnvoyConfig,
    /// The upstreams and settings of the gateway.
    pub(crate) gateway: GatewayConfig,
    /// The limits.
    pub(crate) policies: Policies,
}

section! {
    /// ratekeeper.toml: the limits of requests, and the settings of the service.
    pub(crate) struct File {
        /// Settings of all policies.
        switches: Switches as Flatten<Switches> => ();
        /// Listeners of the service, their TLS, and access for operators.
        server: ServerConfig => ();
        /// The store of the counters: in memory, or in Redis.
        store: StoreConfig => ();
        /// Who is calling.
        callers: Callers as Flatten<Callers> => ();
        /// The log on standard error.
        log: LogConfig => ();
        /// Traces of requests, sent to an OpenTelemetry collector.
        traces: TracesConfig => (), quiet;
        /// Envoy's rate limit service, beside the policies.
        envoy: EnvoyConfig => (), quiet;
        /// Upstreams and settings of `ratekeeper proxy`.
        gateway: GatewayConfig => (), quiet;
        /// The limits.
        rules: Rules as Flatten<Rules> => ();
    }
}

impl Configuration for Config {
    type File = File;

    fn rules(file: &mut File) -> (&mut Switches, &mut Rules) {
        (&mut file.switches, &mut file.rules)
    }

    fn from_file(file: File) -> Self {
        let on_failure = file.store.redis.as_ref().map(|redis| redis.on_failure);
        let policy_config::Config {
            identity,
            stats,
            policies,
            ..
        } = policy_config::Config::of(
            file.switches,
            file.callers,
            file.rules,
            on_failure.unwrap_or_default(),
        );
        Self {
            server: file.server,
            store: file.store,
            identity,
            stats,
            log: file.log,
            traces: file.traces,
            envoy: file.envoy,
            gateway: file.gateway,
            policies,
        }
    }

    fn to_file(&self, hide: bool) -> File {
        let (switches, callers, rules) = self.policy_config().tables(hide);
        File {
            switches,
            server: self.server.clone(),
            store: self.store.clone(),
            callers,
            log: self.log.clone(),
            traces: self.traces.clone(),
            envoy: self.envoy.clone(),
            gateway: self.gateway.clone(),
            rules,
        }
    }
}

impl Config {
    /// Reads the file, if there is one, and the variables, which override it.
    pub(crate) fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        Self::load_file(file, env)
    }

    /// Reads `text` as if it were a file of this name, and the variables, which override it.
    pub(crate) fn parse(
        name: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> LoadedConfig {
        Self::parse_file(name, text, env)
    }

    /// The limits as Markdown tables, for the documentation of an API.
    pub(crate) fn to_markdown(&self) -> String {
        self.policy_config().to_markdown()
    }

    fn policy_config(&self) -> policy_config::Config {
        let (identity, stats) = (self.identity.clone(), self.stats.clone());
        policy_config::Config::new(identity, stats, self.policies.clone())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::parse("", "", [])
            .config
            .expect("an empty file is valid")
    }
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Config::default().gateway
    }
}

//! `ratekeeper proxy`: a reverse proxy that forwards the requests which the policies allow.

mod access_log;
mod address_limit;
mod body;
mod body_rate;
mod client;
mod drain;
mod forward;
mod headers;
mod proxy_protocol;
mod tunnel;
mod upstream;

pub(crate) use access_log::RequestRecord;
pub(crate) use body_rate::{BodyRate, BodyTimer};
pub(crate) use client::{StreamExecutor, StreamProgress, serve};
pub(crate) use drain::{Drain, Stage};
pub(crate) use upstream::{Connector, Peer};

use crate::api::user_header::UserHeader;
use crate::app::App;
use crate::cli::ProxyArgs;
use crate::config;
use crate::config::{Config, FileWatcher, GatewayConfig};
use crate::net::tls::{Protocols, ServerCertificate};
use crate::observe::traces::Tracer;
use crate::run::serve::{Flags, Start};
use crate::store::AnyStore;
use access_log::{AccessLog, WriterThread};
use address_limit::AddressLimit;
use arc_swap::ArcSwap;
use axum::http::HeaderName;
use ratekeeper::{Clock, clock::SystemClock};
use ratekeeper_policy::{Attribute, Engine, Policies, Policy, request::TrustedPeers};
use ratekeeper_tower::{
    Identity, RateLimitLayer, decider::PolicyDecider, identity::Forwarding, rate_limit::DelayStats,
};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use upstream::Routes;

/// The value of `--by` that counts all requests in one bucket.
const ALL_REQUESTS: &str = "all";

/// The decider of the gateway's rate limit layer.
type GatewayDecider = PolicyDecider<AnyStore<SystemClock>>;

/// Turns the arguments of `ratekeeper proxy` into what the server starts with. Errors are
/// sentences.
pub(crate) fn start(args: ProxyArgs) -> Result<Start, String> {
    let ProxyArgs {
        upstream,
        limit,
        by,
        missing,
        listen,
        tls_cert,
        tls_key,
        tls_client_ca,
        config,
    } = args;
    let upstreams = upstream
        .iter()
        .map(|text| {
            text.parse()
                .map_err(|error| format!("--upstream {text} {error}"))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let by = parse_by(&by)?;
    let policies = limit.map(|limit| {
        let policy = Policy::new("limit").limit(limit);
        Policies::new().policy(match by {
            Some(attribute) => policy.key(attribute).missing(missing),
            None => policy,
        })
    });
    let tls = tls_cert.zip(tls_key).map(|(cert, key)| {
        let mut tls = config::Certificate::new(cert, key);
        tls.client_ca = tls_client_ca;
        tls
    });
    let flags = Flags {
        listen,
        policies,
        upstreams,
        tls,
        ..Flags::default()
    };
    Ok(Start {
        file: config,
        flags,
        gateway: true,
    })
}

/// The attribute that `--by` names, or `None` for one bucket. Errors are sentences.
fn parse_by(by: &str) -> Result<Option<Attribute>, String> {
    const NAMES: &str = "ip, header:NAME, user, api_key, host, method, path, endpoint or all";
    match config::known_attribute(by, &[ALL_REQUESTS.to_owned()]) {
        Ok(Attribute::Custom(all)) if *all == *ALL_REQUESTS => Ok(None),
        Ok(Attribute::Header(name)) if HeaderName::try_from(&*name).is_err() => Err(format!(
            "--by {by}: write the name of a header, as in header:x-api-key"
        )),
        Ok(attribute) => Ok(Some(attribute)),
        Err(unknown) => {
            let suggestion = unknown
                .suggestion()
                .map(|suggestion| format!("did you mean `{suggestion}`? "));
            Err(format!(
                "--by {by}: not a known attribute; {}use {NAMES}",
                suggestion.unwrap_or_default()
            ))
        }
    }
}

/// The state that all workers of a gateway share.
pub(crate) struct GatewayState {
    gateway: GatewayConfig,
    layer: RateLimitLayer<GatewayDecider>,
    identity: Identity,
    forwarding: Forwarding,
    user: Option<Arc<UserHeader>>,
    /// Changed by a reload.
    routes: ArcSwap<Routes>,
    /// The number of workers, each with connections of its own.
    workers: usize,
    /// Where health checks run.
    runtime: OnceLock<Handle>,
    certificate: Option<Arc<ServerCertificate>>,
    log: Option<AccessLog>,
    traces: Option<Tracer>,
    /// The lowest rate at which request bodies may come.
    body_rate: Option<BodyRate>,
    /// The limit on connections per client address.
    address_limit: Option<Arc<AddressLimit>>,
    pub(crate) drain: Arc<Drain>,
}

/// The state of one worker.
pub(crate) struct WorkerState {
    shared: Arc<GatewayState>,
    /// Which of the pools of an upstream are those of this worker.
    number: usize,
}

/// Guard for the gateway's file watchers and log thread. Keep it for as long as the gateway runs.
pub(crate) struct GatewayGuard {
    _watches: Vec<FileWatcher>,
    _writing: Option<WriterThread>,
}

impl GatewayState {
    /// Builds the state from the configuration. Errors are sentences.
    pub(crate) fn new(
        app: &App<SystemClock>,
        config: &Config,
        workers: usize,
    ) -> Result<(Arc<Self>, GatewayGuard), String> {
        let gateway = config.gateway.clone();
        let log = AccessLog::open(&gateway.access_log, gateway.access_log_every);
        let log = log.map_err(|error| {
            format!("cannot open the access log {}: {error}", gateway.access_log)
        })?;
        let (log, log_writer) = log.unzip();
        let mut layer = layer(
            &app.engine,
            &config.identity,
            &app.base_identity,
            &app.waits,
        )
        .preflight(gateway.preflight)
        .preflight_stats(&app.preflights);
        let traces = app.traces.get().cloned();
        if log.is_some() || traces.is_some() {
            layer = layer.on_verdict(RequestRecord::verdict);
        }
        if log.is_some() {
            let engine = app.engine.clone();
            layer = layer
                .on_decision(move |head, verdict| RequestRecord::decision(head, &engine, verdict));
        }
        let files = gateway.tls.as_ref().or(config.server.tls.http.as_ref());
        let certificate = files
            .map(|files| ServerCertificate::load(files, Protocols::Both))
            .transpose()?;
        let watches = certificate
            .as_ref()
            .map(ServerCertificate::watch)
            .unwrap_or_default();
        let shared = Self {
            layer,
            identity: identity(&config.identity, &Identity::direct()),
            forwarding: forwarding(&config.identity),
            user: UserHeader::of(&config.identity).map(Arc::new),
            routes: ArcSwap::from_pointee(Routes::new(&gateway, workers, None)?),
            workers,
            runtime: OnceLock::new(),
            certificate,
            log,
            traces,
            body_rate: gateway.min_body_rate.map(|min_rate| BodyRate {
                timeout: gateway.body_timeout,
                min_rate,
            }),
            address_limit: gateway
                .max_connections_per_address
                .map(|max| Arc::new(AddressLimit::new(max, config.identity.ipv6_prefix))),
            drain: Arc::default(),
            gateway,
        };
        Ok((
            Arc::new(shared),
            GatewayGuard {
                _watches: watches,
                _writing: log_writer,
            },
        ))
    }

    /// Whether clients connect over TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.certificate.is_some()
    }

    /// The header in which trusted proxies name the client.
    fn trusted_header(&self) -> &HeaderName {
        self.forwarding.name()
    }

    /// The number of connections closed because their address had too many.
    pub(crate) fn refused_connections(&self) -> u64 {
        self.address_limit
            .as_ref()
            .map_or(0, |limit| limit.rejected())
    }

    /// The number of access log lines that were lost.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.log.as_ref().map_or(0, AccessLog::lost)
    }

    /// Opens the access log file again, after a rename.
    pub(crate) fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    /// Starts the health checks of the upstreams, if configured, on this runtime.
    pub(crate) fn run_health_checks(&self, runtime: Handle) {
        let routes = self.routes.load();
        routes.run_health_checks(&self.gateway, None, &runtime);
        // It is set once.
        let _ = self.runtime.set(runtime);
    }

    /// The routes of another configuration, for [`set_routes`](Self::set_routes). Its other settings
    /// are those of the start. Errors are sentences.
    pub(crate) fn new_routes(&self, config: &GatewayConfig) -> Result<Routes, String> {
        let config = GatewayConfig {
            upstreams: config.upstreams.clone(),
            route: config.route.clone(),
            ..self.gateway.clone()
        };
        Routes::new(&config, self.workers, Some(&self.routes.load()))
    }

    /// Replaces the routes, from the next request on.
    pub(crate) fn set_routes(&self, routes: Routes) {
        if let Some(runtime) = self.runtime.get() {
            routes.run_health_checks(&self.gateway, Some(&self.routes.load()), runtime);
        }
        self.routes.store(Arc::new(routes));
    }

    /// The upstreams of all routes.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.routes.load().peers().to_vec()
    }
}

/// The rate limit layer for an engine and an identity configuration. `seen` counts the clients it
/// identifies.
pub(crate) fn layer<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    config: &config::IdentityConfig,
    seen: &Identity,
    waits: &DelayStats,
) -> RateLimitLayer<PolicyDecider<AnyStore<C>>> {
    let mut layer = RateLimitLayer::new(engine.clone())
        .identity(identity(config, seen))
        .delay_stats(waits)
        .strict();
    let name = |name: &Option<String>| {
        name.as_ref()
            .and_then(|name| HeaderName::try_from(name).ok())
    };
    if let Some(user) = config
        .user
        .as_ref()
        .and_then(|user| HeaderName::try_from(&user.header).ok())
    {
        // `UserHeader::strip` has already removed the header where the peer may not set it. The
        // layer could not decide that: for /auth it sees the client that a proxy asks about, not
        // the proxy itself.
        layer = layer.user_header(user, TrustedPeers::everyone());
    }
    if let Some(api_key) = name(&config.api_key) {
        layer = layer.api_key_header(api_key);
    }
    if let Some(class) = name(&config.class) {
        layer = layer.class_header(class);
    }
    if let Some(start) = name(&config.start) {
        layer = layer.start_header(start);
    }
    layer
}

/// The configured identity, built on `direct`, which trusts no proxy.
fn identity(config: &config::IdentityConfig, direct: &Identity) -> Identity {
    let proxies = config.trusted_proxies.as_networks().iter().copied();
    let identity = direct.clone().trust_all(proxies).header(forwarding(config));
    if config.trusted_proxies.has_unix() {
        identity.trust_unix()
    } else {
        identity
    }
}

fn forwarding(config: &config::IdentityConfig) -> Forwarding {
    // The configuration only accepts valid header names.
    Forwarding::named(&config.header).unwrap_or_default()
}

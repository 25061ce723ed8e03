//! `ratekeeper proxy`: stands in front of a service, and lets through what the policies do.

mod access_log;
mod address_limit;
mod body;
mod body_rate;
mod client;
mod drain;
mod forward;
mod guard;
mod headers;
mod http1;
mod proxy_protocol;
mod tunnel;
mod upstream;

pub(crate) use access_log::RequestRecord;
pub(crate) use body_rate::{BodyRate, BodyTimer};
pub(crate) use client::{StreamProgress, Streams};
pub(crate) use drain::{Drain, Stage};
pub(crate) use upstream::{Connector, Peer};

use crate::api::user_header::UserHeader;
use crate::app::App;
use crate::cli::ProxyArgs;
use crate::net::listen::Listener;
use crate::net::stream::write_batches;
use crate::net::tls::{self, OwnCertificate, Protocols};
use crate::observe::traces::Tracer;
use crate::run::serve::{Flags, Start};
use crate::store::AnyStore;
use access_log::{AccessLog, WriterThread};
use address_limit::AddressLimit;
use axum::http::HeaderName;
use ratekeeper::{Clock, clock::SystemClock};
use ratekeeper_policy::config::{Config, FileWatcher, GatewayConfig};
use ratekeeper_policy::{Attribute, Engine, Policies, Policy, config, request::TrustedPeers};
use ratekeeper_tower::{
    Identity, RateLimitLayer, decider::PolicyDecider, identity::Forwarding, rate_limit::DelayStats,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};
use upstream::{Check, Http2Pool, Pool, TIDY_INTERVAL, Upstreams, watch_health};

/// What `--by` says for one bucket.
const ALL: &str = "all";

/// How long those who have begun to connect may take to be there.
const LAST_ARRIVALS: Duration = Duration::from_millis(100);

/// Who decides on requests.
type GatewayDecider = PolicyDecider<AnyStore<SystemClock>>;

/// What is to be started; an error is a sentence.
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
    let by = counted_by(&by)?;
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

/// The attribute that `--by` names; none for one bucket. An error is a sentence.
fn counted_by(by: &str) -> Result<Option<Attribute>, String> {
    const NAMES: &str = "ip, header:NAME, user, api_key, host, method, path, endpoint or all";
    match config::known_attribute(by, &[ALL.to_owned()]) {
        Ok(Attribute::Custom(all)) if *all == *ALL => Ok(None),
        Ok(Attribute::Header(name)) if HeaderName::try_from(&*name).is_err() => Err(format!(
            "--by {by}: write the name of a header, as in header:x-api-key"
        )),
        Ok(attribute) => Ok(Some(attribute)),
        Err(unknown) => {
            let meant = unknown
                .suggestion()
                .map(|meant| format!("did you mean `{meant}`? "));
            Err(format!(
                "--by {by}: not a known attribute; {}use {NAMES}",
                meant.unwrap_or_default()
            ))
        }
    }
}

/// What all workers of a gateway share.
pub(crate) struct Shared {
    gateway: GatewayConfig,
    layer: RateLimitLayer<GatewayDecider>,
    identity: Identity,
    forwarding: Forwarding,
    user: Option<Arc<UserHeader>>,
    pub(crate) upstreams: Upstreams,
    connector: Connector,
    certificate: Option<Arc<OwnCertificate>>,
    log: Option<AccessLog>,
    traces: Option<Tracer>,
    /// How slowly bodies of requests may come.
    body_rate: Option<BodyRate>,
    /// How many connections an address may have.
    address_limit: Option<Arc<AddressLimit>>,
    pub(crate) drain: Arc<Drain>,
}

/// What one worker has of its own.
pub(crate) struct WorkerState {
    shared: Arc<Shared>,
    /// Its connections to each upstream.
    pools: Vec<Arc<Pool>>,
    /// The same in HTTP/2.
    http2_pools: Vec<Arc<Http2Pool>>,
}

/// What must be held on to as long as the gateway runs.
pub(crate) struct GatewayGuard {
    _watches: Vec<FileWatcher>,
    _writing: Option<WriterThread>,
}

impl Shared {
    /// An error is a sentence.
    pub(crate) fn new(
        app: &App<SystemClock>,
        config: &Config,
    ) -> Result<(Arc<Self>, GatewayGuard), String> {
        let gateway = config.gateway.clone();
        let log = AccessLog::open(&gateway.access_log, gateway.access_log_every);
        let log = log.map_err(|error| {
            format!(
                "the access log {} cannot be opened: {error}",
                gateway.access_log
            )
        })?;
        let (log, writing) = log.unzip();
        let mut layer = layer(&app.engine, &config.identity, &app.seen, &app.waits)
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
            .map(|files| OwnCertificate::load(files, Protocols::Both))
            .transpose()?;
        let watches = certificate
            .as_ref()
            .map(OwnCertificate::watch)
            .unwrap_or_default();
        let shared = Self {
            layer,
            identity: identity(&config.identity, &Identity::direct()),
            forwarding: forwarding(&config.identity),
            user: UserHeader::of(&config.identity).map(Arc::new),
            upstreams: Upstreams::new(&gateway),
            connector: Connector {
                tls: tls::connector(&gateway)?,
                within: gateway.connect_timeout,
            },
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
                _writing: writing,
            },
        ))
    }

    /// Whether clients are spoken to in TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.certificate.is_some()
    }

    /// The header that trusted proxies tell clients in.
    fn identity_header(&self) -> &HeaderName {
        self.forwarding.name()
    }

    /// Connections that were refused because their address had too many.
    pub(crate) fn refused_connections(&self) -> u64 {
        self.address_limit
            .as_ref()
            .map_or(0, |limit| limit.refused())
    }

    /// Lines of the access log that were lost.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.log.as_ref().map_or(0, AccessLog::lost)
    }

    /// Opens the file of the access log again, after it was renamed.
    pub(crate) fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    /// Asks the upstreams whether they are well, if that is wanted; in the runtime that this is
    /// called in.
    pub(crate) fn watch_health(&self) {
        let Some(path) = &self.gateway.health_path else {
            return;
        };
        for peer in &self.upstreams.peers {
            let check = Check {
                path: path.clone(),
                every: self.gateway.health_interval,
                http2: self.gateway.http2,
                connector: self.connector.clone(),
            };
            tokio::spawn(watch_health(Arc::clone(peer), check));
        }
    }
}

/// Serves on one listener until the gateway stops, and then what is under way.
pub(crate) async fn serve(listener: Listener, shared: Arc<Shared>, workers: usize) {
    let most = shared.gateway.max_connections.div_ceil(workers).max(1);
    let (drain, last_call) = (Arc::clone(&shared.drain), shared.gateway.drain_timeout);
    let pools: Vec<Arc<Pool>> = shared
        .upstreams
        .peers
        .iter()
        .map(|_| Arc::default())
        .collect();
    let http2_pools: Vec<Arc<Http2Pool>> = shared
        .upstreams
        .peers
        .iter()
        .map(|_| Arc::default())
        .collect();
    let local = Arc::new(WorkerState {
        shared,
        pools: pools.clone(),
        http2_pools: http2_pools.clone(),
    });
    tokio::spawn(async move {
        let mut ticks = interval(TIDY_INTERVAL);
        // Ticks are the clock of the pools: those that were missed are not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            pools.iter().for_each(|pool| pool.tidy());
            http2_pools.iter().for_each(|pool| pool.tidy(now));
        }
    });
    tokio::spawn(write_batches());
    let room = Arc::new(Semaphore::new(most));
    loop {
        let changed = drain.changed();
        if drain.stage() == Stage::Stopping {
            break;
        }
        let place = Arc::clone(&room).acquire_owned();
        tokio::select! {
            biased;
            () = changed => {}
            (place, (stream, peer)) = async { (place.await, listener.accept().await) } => {
                // The semaphore is never closed.
                let Ok(place) = place else { break };
                tokio::spawn(client::serve(Arc::clone(&local), stream, peer, place));
            }
        }
    }
    // Who has connected already is served, and who is about to.
    if let Err(error) = listener.close_door() {
        tracing::debug!(%error, "connections that come now may be reset");
    }
    let rest = async {
        loop {
            let (stream, peer) = listener.accept().await;
            let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
                return;
            };
            tokio::spawn(client::serve(Arc::clone(&local), stream, peer, place));
        }
    };
    let _ = timeout(LAST_ARRIVALS, rest).await;
    drop(listener);
    // When all places are free nobody is left.
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    if timeout(last_call, room.acquire_many(all)).await.is_err() {
        tracing::warn!("requests still in flight after {last_call:?} were cut off");
    }
}

/// The limits of the engine, by whom the configuration believes. What it sees is counted by `seen`.
pub(crate) fn layer<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    believed: &config::IdentityConfig,
    seen: &Identity,
    waits: &DelayStats,
) -> RateLimitLayer<PolicyDecider<AnyStore<C>>> {
    let mut layer = RateLimitLayer::new(engine.clone())
        .identity(identity(believed, seen))
        .delay_stats(waits)
        .strict();
    let name = |name: &Option<String>| {
        name.as_ref()
            .and_then(|name| HeaderName::try_from(name).ok())
    };
    if let Some(user) = believed
        .user
        .as_ref()
        .and_then(|user| HeaderName::try_from(&user.header).ok())
    {
        // `UserHeader::strip` has removed it where the peer may not set it. The layer could not
        // tell: it is told of the client that a proxy at /auth asks about, and not of that proxy.
        layer = layer.user_header(user, TrustedPeers::everyone());
    }
    if let Some(api_key) = name(&believed.api_key) {
        layer = layer.api_key_header(api_key);
    }
    if let Some(class) = name(&believed.class) {
        layer = layer.class_header(class);
    }
    if let Some(start) = name(&believed.start) {
        layer = layer.start_header(start);
    }
    layer
}

/// Whom the configuration believes, as a clone of one that believes nobody.
fn identity(believed: &config::IdentityConfig, nobody: &Identity) -> Identity {
    let proxies = believed.trusted_proxies.iter().copied();
    let identity = nobody
        .clone()
        .trust_all(proxies)
        .header(forwarding(believed));
    if believed.trusts_unix {
        identity.trust_unix()
    } else {
        identity
    }
}

fn forwarding(believed: &config::IdentityConfig) -> Forwarding {
    // The configuration has names of headers only.
    Forwarding::named(&believed.header).unwrap_or_default()
}

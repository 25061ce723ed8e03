//! What all listeners share: the engine, the buckets of `/v1/throttle`, who is believed.

use crate::admin::audit::Audit;
use crate::api::ids::Ids;
use crate::api::throttle_buckets::{Buckets, MAX_LIMITS};
use crate::api::unknown_attributes::UnknownAttributes;
use crate::envoy::Envoy;
use crate::gateway;
use crate::net::worker_health::WorkerHealth;
use crate::observe::traces::Tracer;
use crate::resp::Totals;
use crate::run::log;
use crate::store::{self, AnyStore};
use arc_swap::ArcSwap;
use ratekeeper::{Clock, store::OnFailure};
use ratekeeper_policy::config::{Config, IdentityConfig, KeyDisplay};
use ratekeeper_policy::{Engine, EngineError, EngineOptions};
use ratekeeper_tower::{
    self as tower, Preflight, RateLimitLayer, decider::PolicyDecider, identity::IdentityHints,
    rate_limit::DelayStats, rate_limit::PreflightStats,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// What warnings about callers advise: settings of the configuration, not methods.
const HINTS: IdentityHints = IdentityHints {
    untrusted: "add its address to trusted_proxies under [identity]",
    no_peer: "if a proxy sends them over a Unix socket, add \"unix\" to trusted_proxies under [identity]",
};

pub(crate) struct App<C: Clock> {
    /// When it began to serve.
    pub(crate) started: SystemTime,
    pub(crate) engine: Engine<AnyStore<C>>,
    pub(crate) buckets: Buckets<C>,
    pub(crate) envoy: Envoy<C>,
    /// Of reservations.
    pub(crate) ids: Ids,
    pub(crate) identity: ArcSwap<IdentityConfig>,
    /// The same limits for whole requests: what `/auth` asks.
    pub(crate) layer: ArcSwap<RateLimitLayer<PolicyDecider<AnyStore<C>>>>,
    /// Whether `/auth` has been asked by this configuration.
    pub(crate) forward_auth_asked: AtomicBool,
    /// What callers of the APIs send and no policy can use.
    pub(crate) unknown_attributes: UnknownAttributes,
    /// Who waits where a policy delays: at `/auth`, or in the gateway.
    pub(crate) waits: DelayStats,
    /// How preflight requests are counted, at `/auth` or in the gateway.
    pub(crate) preflight: Preflight,
    pub(crate) preflights: PreflightStats,
    /// What it and the layer of the gateway have seen of callers, whoever is believed meanwhile.
    pub(crate) seen: tower::Identity,
    pub(crate) reloads: Reloads,
    /// What operators did.
    pub(crate) audit: Audit,
    /// Whether it is about to stop: it says that it is not ready, so that nobody new is sent here.
    pub(crate) leaving: AtomicBool,
    /// What traces requests, if that is wanted.
    pub(crate) traces: OnceLock<Tracer>,
    /// The gateway, if this is one.
    pub(crate) gateway: OnceLock<Arc<gateway::GatewayState>>,
    /// Whether the workers run.
    pub(crate) health: Arc<WorkerHealth>,
    /// Calls of `CL.THROTTLE` that passed, and that were turned away.
    pub(crate) throttled: [AtomicU64; 2],
}

/// How often the configuration was loaded again.
#[derive(Default)]
pub(crate) struct Reloads {
    pub(crate) taken: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Whether the file as it is now was refused.
    pub(crate) stale: AtomicBool,
}

impl<C: Clock> App<C> {
    /// One store holds the keys of both, under one cap.
    pub(crate) fn new(config: &Config, store: AnyStore<C>) -> Result<Self, EngineError> {
        let mut options = EngineOptions::default();
        // A request over the network costs far more than a look at the clock.
        options.timed_every = 1;
        options.top = config.stats.top;
        options.load = Some(crate::observe::load::source());
        options.plain_keys = config.stats.keys == KeyDisplay::Plain;
        options.fingerprints = store::fingerprint_secret(&config.store);
        let engine = Engine::with_options(store.clone(), config.policies.clone(), options)?;
        let (seen, waits) = (tower::Identity::direct().hints(HINTS), DelayStats::new());
        let preflights = PreflightStats::default();
        Ok(Self {
            layer: ArcSwap::from_pointee(auth_layer(
                &engine,
                config.gateway.preflight,
                &config.identity,
                (&seen, &waits, &preflights),
            )),
            forward_auth_asked: AtomicBool::new(false),
            unknown_attributes: UnknownAttributes::default(),
            seen,
            waits,
            preflight: config.gateway.preflight,
            preflights,
            started: SystemTime::now(),
            engine,
            buckets: Buckets::new(store.clone(), MAX_LIMITS, &config.store),
            envoy: Envoy::new(store),
            ids: Ids::new(config.server.id_secret.as_ref()),
            identity: ArcSwap::from_pointee(config.identity.clone()),
            reloads: Reloads::default(),
            audit: Audit::default(),
            leaving: AtomicBool::new(false),
            traces: OnceLock::new(),
            gateway: OnceLock::new(),
            health: Arc::default(),
            throttled: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Tells the other nodes of a fleet which limits are in force here.
    pub(crate) fn declare_limits(&self) {
        if let AnyStore::Redis(redis) = self.engine.store() {
            redis.declare_limits(
                self.engine
                    .shared_limits()
                    .into_iter()
                    .chain(self.envoy.shared_limits()),
            );
        }
    }

    /// Believes others from now on.
    pub(crate) fn believe(&self, identity: IdentityConfig) {
        if **self.identity.load() != identity {
            let seen = (&self.seen, &self.waits, &self.preflights);
            self.layer.store(Arc::new(auth_layer(
                &self.engine,
                self.preflight,
                &identity,
                seen,
            )));
            self.identity.store(Arc::new(identity));
        }
    }

    /// Logs, at the first request to `/auth`, which attributes no request there can have.
    #[inline]
    pub(crate) fn forward_auth_is_asked(&self) {
        if !self.forward_auth_asked.load(Relaxed) {
            self.warn_unprovided();
        }
    }

    #[cold]
    fn warn_unprovided(&self) {
        if self.forward_auth_asked.swap(true, Relaxed) {
            return;
        }
        let identity = self.identity.load();
        for warning in identity.unprovided(&self.engine.policies()) {
            tracing::warn!(target: log::EACH, "{warning}");
        }
    }

    /// The configuration is another one: what no request to `/auth` has, and which attributes are
    /// not known, may be others.
    pub(crate) fn configuration_changed(&self) {
        self.forward_auth_asked.store(false, Relaxed);
        self.unknown_attributes.clear();
    }

    /// Whether nobody is let in, because the store is gone.
    pub(crate) fn is_closed(&self) -> bool {
        let gone = match self.engine.store() {
            AnyStore::Memory(_) => false,
            AnyStore::Redis(redis) => redis.status().error.is_some(),
        };
        gone && self.engine.policies().default_on_failure() == OnFailure::Closed
    }

    /// Counts some calls of `CL.THROTTLE`.
    pub(crate) fn count(&self, totals: Totals) {
        let Totals { allowed, denied } = totals;
        for (count, many) in self.throttled.iter().zip([allowed, denied]) {
            if many > 0 {
                count.fetch_add(many, Relaxed);
            }
        }
    }

    /// How many requests passed and how many were turned away, whichever way they were asked.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let ways = [
            self.engine.totals(),
            self.buckets.totals(),
            self.envoy.totals(),
        ];
        let [allowed, denied] = self.throttled.each_ref().map(|count| count.load(Relaxed));
        ways.iter()
            .fold((allowed, denied), |sum, way| (sum.0 + way.0, sum.1 + way.1))
    }
}

/// The limits as `/auth` asks them: it only answers whether a request may pass, and 200 is yes.
fn auth_layer<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    preflight: Preflight,
    believed: &IdentityConfig,
    (seen, waits, preflights): (&tower::Identity, &DelayStats, &PreflightStats),
) -> RateLimitLayer<PolicyDecider<AnyStore<C>>> {
    let layer = gateway::layer(engine, believed, seen, waits)
        .no_wait()
        .http_status();
    layer.preflight(preflight).preflight_stats(preflights)
}

//! State shared by all listeners: the engine, the buckets of `/v1/throttle`, the identity
//! configuration.

use crate::admin::audit::Audit;
use crate::api::ids::Ids;
use crate::api::throttle_buckets::{Buckets, MAX_LIMITS};
use crate::api::unknown_attributes::UnknownAttributes;
use crate::config::{Config, IdentityConfig, KeyDisplay};
use crate::envoy::Envoy;
use crate::gateway;
use crate::net::worker_health::WorkerHealth;
use crate::observe::traces::Tracer;
use crate::resp::Totals;
use crate::run::log;
use crate::store::{self, AnyStore};
use arc_swap::ArcSwap;
use ratekeeper::{Clock, store::OnFailure};
use ratekeeper_policy::{Engine, EngineError, EngineOptions};
use ratekeeper_tower::{
    self as tower, Preflight, RateLimitLayer, decider::PolicyDecider, identity::IdentityHints,
    rate_limit::DelayStats, rate_limit::PreflightStats,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Advice in warnings about callers; it names settings of the configuration, not methods.
const HINTS: IdentityHints = IdentityHints {
    untrusted: "add its address to trusted_proxies under [identity]",
    no_peer: "if a proxy sends them over a Unix socket, add \"unix\" to trusted_proxies under \
         [identity]",
};

pub(crate) struct App<C: Clock> {
    /// Start time.
    pub(crate) started: SystemTime,
    pub(crate) engine: Engine<AnyStore<C>>,
    pub(crate) buckets: Buckets<C>,
    pub(crate) envoy: Envoy<C>,
    /// Reservation ids.
    pub(crate) ids: Ids,
    pub(crate) identity: ArcSwap<IdentityConfig>,
    /// The limits as a layer for whole requests, which `/auth` uses.
    pub(crate) layer: ArcSwap<RateLimitLayer<PolicyDecider<AnyStore<C>>>>,
    /// Whether `/auth` has had a request since the configuration was loaded.
    pub(crate) forward_auth_used: AtomicBool,
    /// Attributes that callers of the APIs send and no policy can use.
    pub(crate) unknown_attributes: UnknownAttributes,
    /// Requests delayed by a policy, at `/auth` or in the gateway.
    pub(crate) waits: DelayStats,
    /// How preflight requests are counted, at `/auth` or in the gateway.
    pub(crate) preflight: Preflight,
    pub(crate) preflights: PreflightStats,
    /// Warnings and counts about callers, shared by the layers of `/auth` and the gateway. They
    /// survive a change of the identity configuration.
    pub(crate) base_identity: tower::Identity,
    pub(crate) reloads: ReloadStats,
    /// The operators' changes and attempts.
    pub(crate) audit: Audit,
    /// Whether the server is shutting down. `/readyz` then reports not ready, so that load
    /// balancers send no new traffic.
    pub(crate) shutting_down: AtomicBool,
    /// The tracer, if traces are configured.
    pub(crate) traces: OnceLock<Tracer>,
    /// The gateway, under `ratekeeper proxy`.
    pub(crate) gateway: OnceLock<Arc<gateway::GatewayState>>,
    /// Heartbeats of the workers.
    pub(crate) health: Arc<WorkerHealth>,
    /// Allowed and denied calls of `CL.THROTTLE`.
    pub(crate) throttle_totals: [AtomicU64; 2],
}

/// Reloads of the configuration.
#[derive(Default)]
pub(crate) struct ReloadStats {
    pub(crate) succeeded: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// Whether the current file was rejected.
    pub(crate) stale: AtomicBool,
}

impl<C: Clock> App<C> {
    /// The engine and `/v1/throttle` share one store, and so one `max_keys`.
    pub(crate) fn new(config: &Config, store: AnyStore<C>) -> Result<Self, EngineError> {
        let mut options = EngineOptions::default();
        // A request over the network costs far more than reading the clock.
        options.timed_every = 1;
        options.top = config.stats.top;
        options.load = Some(crate::observe::load::source());
        options.plain_keys = config.stats.keys == KeyDisplay::Plain;
        options.fingerprints = store::fingerprint_secret(&config.store);
        let engine = Engine::with_options(store.clone(), config.policies.clone(), options)?;
        let base_identity = tower::Identity::direct().hints(HINTS);
        let waits = DelayStats::new();
        let preflights = PreflightStats::default();
        Ok(Self {
            layer: ArcSwap::from_pointee(auth_layer(
                &engine,
                config.gateway.preflight,
                &config.identity,
                (&base_identity, &waits, &preflights),
            )),
            forward_auth_used: AtomicBool::new(false),
            unknown_attributes: UnknownAttributes::default(),
            base_identity,
            waits,
            preflight: config.gateway.preflight,
            preflights,
            started: SystemTime::now(),
            engine,
            buckets: Buckets::new(store.clone(), MAX_LIMITS, &config.store),
            envoy: Envoy::new(store),
            ids: Ids::new(config.server.id_secret.as_ref()),
            identity: ArcSwap::from_pointee(config.identity.clone()),
            reloads: ReloadStats::default(),
            audit: Audit::default(),
            shutting_down: AtomicBool::new(false),
            traces: OnceLock::new(),
            gateway: OnceLock::new(),
            health: Arc::default(),
            throttle_totals: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Publishes the limits in force here to the other nodes of the fleet.
    pub(crate) fn declare_limits(&self) {
        if let AnyStore::Redis(redis) = self.engine.store() {
            redis.declare_limits(
                self.engine
                    .operator()
                    .shared_limits()
                    .into_iter()
                    .chain(self.envoy.shared_limits()),
            );
        }
    }

    /// Replaces the identity configuration.
    pub(crate) fn set_identity(&self, identity: IdentityConfig) {
        if **self.identity.load() != identity {
            let shared = (&self.base_identity, &self.waits, &self.preflights);
            self.layer.store(Arc::new(auth_layer(
                &self.engine,
                self.preflight,
                &identity,
                shared,
            )));
            self.identity.store(Arc::new(identity));
        }
    }

    /// Logs, at the first request to `/auth`, the attributes that no request there can have.
    #[inline]
    pub(crate) fn note_forward_auth(&self) {
        if !self.forward_auth_used.load(Relaxed) {
            self.warn_unprovided();
        }
    }

    #[cold]
    fn warn_unprovided(&self) {
        if self.forward_auth_used.swap(true, Relaxed) {
            return;
        }
        let identity = self.identity.load();
        for warning in identity.unprovided(&self.engine.policies()) {
            tracing::warn!(target: log::EACH, "{warning}");
        }
    }

    /// Repeats the warnings about attributes after a reload: those that no request to `/auth` has,
    /// and unknown ones.
    pub(crate) fn configuration_changed(&self) {
        self.forward_auth_used.store(false, Relaxed);
        self.unknown_attributes.clear();
    }

    /// Whether every request is denied because the store is unavailable.
    pub(crate) fn is_closed(&self) -> bool {
        let is_unavailable = match self.engine.store() {
            AnyStore::Memory(_) => false,
            AnyStore::Redis(redis) => redis.status().error.is_some(),
        };
        is_unavailable && self.engine.policies().default_on_failure() == OnFailure::Closed
    }

    /// Adds to the totals of `CL.THROTTLE`.
    pub(crate) fn add_throttle_totals(&self, totals: Totals) {
        let Totals { allowed, denied } = totals;
        for (total, count) in self.throttle_totals.iter().zip([allowed, denied]) {
            if count > 0 {
                total.fetch_add(count, Relaxed);
            }
        }
    }

    /// Allowed and denied requests of all APIs.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let apis = [
            self.engine.stats().totals(),
            self.buckets.totals(),
            self.envoy.totals(),
        ];
        let [allowed, denied] = self
            .throttle_totals
            .each_ref()
            .map(|total| total.load(Relaxed));
        apis.iter()
            .fold((allowed, denied), |sum, api| (sum.0 + api.0, sum.1 + api.1))
    }
}

/// The layer of `/auth`, which only answers whether a request is allowed: 200 is yes.
fn auth_layer<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    preflight: Preflight,
    identity: &IdentityConfig,
    (base_identity, waits, preflights): (&tower::Identity, &DelayStats, &PreflightStats),
) -> RateLimitLayer<PolicyDecider<AnyStore<C>>> {
    let layer = gateway::layer(engine, identity, base_identity, waits)
        .no_wait()
        .http_status();
    layer.preflight(preflight).preflight_stats(preflights)
}

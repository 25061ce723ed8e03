//! `tollgate proxy`: stands in front of a service, and lets through what the policies do.

mod forward;
mod headers;

use crate::app::App;
use crate::cli::ProxyArgs;
use crate::serve::{Flags, Start};
use crate::store::AnyStore;
use axum::Router;
use axum::http::{HeaderName, Uri};
use forward::Forward;
use std::sync::Arc;
use tollgate::Clock;
use tollgate_policy::{Engine, Policies, Policy, config};
use tollgate_tower::{ByPolicies, Forwarding, Identity, RateLimitLayer};
use tower_layer::Layer;

/// What `--by` says for one bucket.
const ALL: &str = "all";

/// What is to be started; an error is a sentence.
pub(crate) fn start(args: ProxyArgs) -> Result<Start, String> {
    let ProxyArgs { upstream, limit, by, listen, config } = args;
    if !headers::is_upstream(&upstream) {
        return Err(format!(
            "--upstream {upstream} is not where a service can be; write it as in http://127.0.0.1:3000"
        ));
    }
    let policies = limit.map(|limit| {
        let policy = Policy::new("limit").limit(limit);
        Policies::new().policy(if by == ALL { policy } else { policy.per(&*by) })
    });
    Ok(Start { file: config, flags: Flags { listen, policies, envoy_config: None }, upstream: Some(upstream) })
}

/// Everything that comes is judged, and sent on if it passes.
pub(crate) fn router<C: Clock>(app: &Arc<App<C>>, believed: &config::Identity, upstream: &Uri) -> Router {
    Router::new()
        .fallback_service(layer(&app.engine, believed).layer(Forward::new(upstream.clone(), identity(believed))))
}

/// The limits of the engine, by whom the configuration believes.
pub(crate) fn layer<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    believed: &config::Identity,
) -> RateLimitLayer<ByPolicies<AnyStore<C>>> {
    let mut layer = RateLimitLayer::new(engine.clone()).identity(identity(believed));
    let name = |name: &Option<String>| name.as_ref().and_then(|name| HeaderName::try_from(name).ok());
    if let Some(user) = name(&believed.user) {
        layer = layer.user_header(user);
    }
    if let Some(api_key) = name(&believed.api_key) {
        layer = layer.api_key_header(api_key);
    }
    layer
}

/// Whom the configuration believes.
fn identity(believed: &config::Identity) -> Identity {
    // The configuration has names of headers only.
    let header = Forwarding::named(&believed.header).unwrap_or_default();
    Identity::direct().trust_all(believed.trusted_proxies.iter().copied()).header(header)
}

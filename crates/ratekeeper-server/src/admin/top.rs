//! `GET /admin/top`: the most active and the most denied keys.

use super::{Admin, no_store_json, query};
use crate::api::Problem;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::engine::TopKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Keys in each list by default, and at most.
const DEFAULT_COUNT: usize = 20;
const MAX_COUNT: usize = 1_000;

/// The lists of top keys.
#[derive(Serialize, Deserialize)]
pub(crate) struct Top {
    pub(crate) most_active: Vec<Key>,
    pub(crate) most_denied: Vec<Key>,
}

/// A key with its number of requests.
#[derive(Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) policy: String,
    /// The fingerprint of the key, or its values with `[stats] keys = "plain"`.
    pub(crate) key: String,
    /// The fingerprint, which requests may use as its name. `None` if the key is too long to be
    /// stored.
    pub(crate) fingerprint: Option<String>,
    /// Upper bound of the number of requests.
    pub(crate) count: u64,
    /// Lower bound of the number of requests.
    pub(crate) at_least: u64,
}

impl From<TopKey> for Key {
    fn from(
        TopKey {
            policy,
            key,
            fingerprint,
            count,
            at_least,
            ..
        }: TopKey,
    ) -> Self {
        Self {
            policy,
            key,
            fingerprint,
            count,
            at_least,
        }
    }
}

pub(super) async fn top<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let count = query::count(&uri, DEFAULT_COUNT, MAX_COUNT)?;
    let engine = &admin.app().engine;
    let most_active = engine
        .stats()
        .most_active(count)
        .into_iter()
        .map(Key::from)
        .collect();
    let most_denied = engine
        .stats()
        .most_denied(count)
        .into_iter()
        .map(Key::from)
        .collect();
    Ok(no_store_json(&Top {
        most_active,
        most_denied,
    }))
}

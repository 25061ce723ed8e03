//! `GET /admin/top`: the keys that ask most, and those that are turned away most.

use super::{Admin, query, told};
use crate::api::Problem;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::engine::TopKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How many keys each list shows unless it is said, and at most.
const SHOWN: usize = 20;
const MOST: usize = 1_000;

/// Both lists.
#[derive(Serialize, Deserialize)]
pub(crate) struct Top {
    pub(crate) heaviest: Vec<Key>,
    pub(crate) most_denied: Vec<Key>,
}

/// A key by its fingerprint, or as it is where `[stats] keys` says so.
#[derive(Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) policy: String,
    pub(crate) key: String,
    /// By its fingerprint, which names it in any request; none where the key is too long to be
    /// kept.
    pub(crate) fingerprint: Option<String>,
    /// At most so many requests, and at least so many.
    pub(crate) count: u64,
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
    let many = query::how_many(&uri, SHOWN, MOST)?;
    let engine = &admin.app().engine;
    let heaviest = engine
        .most_active(many)
        .into_iter()
        .map(Key::from)
        .collect();
    let most_denied = engine
        .most_denied(many)
        .into_iter()
        .map(Key::from)
        .collect();
    Ok(told(&Top {
        heaviest,
        most_denied,
    }))
}

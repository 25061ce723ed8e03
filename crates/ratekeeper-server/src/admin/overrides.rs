//! `GET /admin/overrides`: bans and overrides in force.

use super::{Admin, no_store_json};
use crate::config::KeyDisplay;
use axum::extract::State;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::engine::Override;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A ban or override.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) policy: String,
    /// The fingerprint of the key, or its values with `[stats] keys = "plain"`.
    pub(crate) key: String,
    /// The fingerprint of the key, which requests may use as its name.
    pub(crate) fingerprint: String,
    /// `ban` or `override`.
    pub(crate) kind: String,
    pub(crate) limits: Vec<String>,
    pub(crate) until_ms: u64,
    pub(crate) reason: Option<String>,
    /// The node that set it, if the store is shared.
    pub(crate) node: Option<String>,
}

impl Row {
    pub(super) fn of(entry: &Override, keys: KeyDisplay) -> Self {
        let key = if keys == KeyDisplay::Plain {
            entry.key()
        } else {
            entry.fingerprint()
        };
        Self {
            policy: entry.policy().to_owned(),
            key: key.to_owned(),
            fingerprint: entry.fingerprint().to_owned(),
            kind: if entry.limits().is_some() {
                "override"
            } else {
                "ban"
            }
            .to_owned(),
            limits: entry
                .limits()
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect(),
            until_ms: entry.until().as_unix_nanos() / 1_000_000,
            reason: entry.reason().map(ToOwned::to_owned),
            node: entry.node().map(ToOwned::to_owned),
        }
    }

    pub(super) fn is_ban(&self) -> bool {
        self.kind == "ban"
    }
}

pub(super) async fn overrides<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    let rows: Vec<Row> = admin
        .app()
        .engine
        .operator()
        .overrides()
        .iter()
        .map(|entry| Row::of(entry, admin.options.keys))
        .collect();
    no_store_json(&rows)
}

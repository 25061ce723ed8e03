//! Changes by operators: authorization, and an audit entry for every attempt.

use super::audit::{AuditOutcome, Entry};
use super::{Admin, key_actions, no_store_json};
use crate::api::token;
use crate::api::{Code, Problem, body};
use axum::body::Body;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Request};
use axum::response::{IntoResponse, Response};
use ratekeeper::{Clock, Store};
use ratekeeper_tower::identity::PeerAddr;
use serde::Serialize;
use std::sync::Arc;

/// An operator action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Ban,
    Override,
    Lift,
    Grant,
    Reset,
    Reload,
}

impl Verb {
    pub(super) const ALL: [Self; 6] = [
        Self::Ban,
        Self::Override,
        Self::Lift,
        Self::Grant,
        Self::Reset,
        Self::Reload,
    ];

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Ban => "/admin/ban",
            Self::Override => "/admin/override",
            Self::Lift => "/admin/lift",
            Self::Grant => "/admin/grant",
            Self::Reset => "/admin/reset",
            Self::Reload => "/admin/reload",
        }
    }

    /// The last segment of its path.
    fn name(self) -> &'static str {
        self.path().trim_start_matches("/admin/")
    }

    /// The action of a request.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|verb| method == Method::POST && verb.path() == path)
    }
}

pub(super) async fn write<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    verb: Verb,
    request: Request<Body>,
) -> Response {
    if let Err(problem) = authorize(&admin, request.headers()) {
        record_rejected(&admin, verb, &request, &problem);
        return problem.into_response();
    }
    let mut entry = entry(&admin, verb, &request);
    let result = perform(&admin, verb, request, &mut entry).await;
    if let Err(problem) = &result {
        entry.outcome = if problem.status().is_server_error() {
            AuditOutcome::Failed
        } else {
            AuditOutcome::Rejected
        };
        let request = entry
            .detail
            .take()
            .map(|request| format!("{request}: "))
            .unwrap_or_default();
        entry.detail = Some(format!("{request}{}", problem.detail()));
    }
    admin.app().audit.add(entry);
    result.unwrap_or_else(Problem::into_response)
}

/// Records a rejected attempt.
pub(super) fn record_rejected<C: Clock>(
    admin: &Admin<C>,
    verb: Verb,
    request: &Request<Body>,
    problem: &Problem,
) {
    let mut entry = entry(admin, verb, request);
    entry.outcome = AuditOutcome::Rejected;
    entry.detail = Some(problem.detail().to_owned());
    admin.app().audit.add(entry);
}

fn entry<C: Clock>(admin: &Admin<C>, verb: Verb, request: &Request<Body>) -> Entry {
    let who = request
        .extensions()
        .get::<PeerAddr>()
        .map(|peer| peer.0.ip().to_string());
    Entry {
        at_ms: admin.app().engine.store().now().as_unix_nanos() / 1_000_000,
        who: who.unwrap_or_else(|| "unknown".to_owned()),
        action: verb.name().to_owned(),
        policy: None,
        key: None,
        detail: None,
        outcome: AuditOutcome::Done,
    }
}

/// Checks the token; without one configured, changes are allowed on loopback only.
fn authorize<C: Clock>(admin: &Admin<C>, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(expected) = &admin.options.token else {
        if admin.options.on_loopback {
            return Ok(());
        }
        let detail = "changes are disabled: not on loopback and no admin_token; set `admin_token` in [server] and send it as \
                      `Authorization: Bearer …`";
        return Err(Problem::new(Code::Forbidden, detail));
    };
    let sent = headers
        .get(AUTHORIZATION)
        .and_then(|found| found.as_bytes().strip_prefix(b"Bearer "));
    let detail = match sent {
        Some(sent) if token::matches(expected.reveal().as_bytes(), sent) => return Ok(()),
        Some(_) => "wrong admin_token; send the one of [server] as `Authorization: Bearer …`",
        None => "admin_token required; send the one of [server] as `Authorization: Bearer …`",
    };
    Err(Problem::new(Code::Unauthorized, detail))
}

async fn perform<C: Clock>(
    admin: &Arc<Admin<C>>,
    verb: Verb,
    request: Request<Body>,
    entry: &mut Entry,
) -> Result<Response, Problem> {
    if verb == Verb::Reload {
        return reload(admin).await;
    }
    let body = body::read(request.into_body()).await?;
    key_actions::perform(admin, verb, &body, entry).await
}

#[derive(Serialize)]
struct ReloadResult {
    policies: usize,
    warnings: Vec<String>,
}

async fn reload<C: Clock>(admin: &Arc<Admin<C>>) -> Result<Response, Problem> {
    // Off the runtime: a large file takes time, and probes must be answered meanwhile.
    let loading = Arc::clone(&admin.reload);
    let loaded = tokio::task::spawn_blocking(move || loading.now("on request")).await;
    match loaded.unwrap_or_else(|_| Err(vec!["reload panicked; see the log".to_owned()])) {
        Ok(warnings) => {
            let policies = admin.app().engine.policies().iter().len();
            Ok(no_store_json(&ReloadResult { policies, warnings }))
        }
        Err(problems) => Err(Problem::new(Code::InvalidConfig, problems.join("; "))),
    }
}

//! What changes something: who may, and that it is remembered, whether it was done or not.

use super::audit::{Entry, Outcome};
use super::{Admin, one_key, told};
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

/// What can be done.
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

    /// The last word of its path.
    fn name(self) -> &'static str {
        self.path().trim_start_matches("/admin/")
    }

    /// What a request is after.
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
    if let Err(problem) = may_write(&admin, request.headers()) {
        turned_away(&admin, verb, &request, &problem);
        return problem.into_response();
    }
    let mut entry = entry(&admin, verb, &request);
    let done = perform(&admin, verb, request, &mut entry).await;
    if let Err(problem) = &done {
        entry.outcome = if problem.status().is_server_error() {
            Outcome::Failed
        } else {
            Outcome::Refused
        };
        let wanted = entry
            .detail
            .take()
            .map(|wanted| format!("{wanted}: "))
            .unwrap_or_default();
        entry.detail = Some(format!("{wanted}{}", problem.detail()));
    }
    admin.app().audit.add(entry);
    done.unwrap_or_else(Problem::into_response)
}

/// Remembers that somebody tried.
pub(super) fn turned_away<C: Clock>(
    admin: &Admin<C>,
    verb: Verb,
    request: &Request<Body>,
    problem: &Problem,
) {
    let mut entry = entry(admin, verb, request);
    entry.outcome = Outcome::Refused;
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
        outcome: Outcome::Done,
    }
}

/// Whoever has the token; where there is none, whoever is on this machine.
fn may_write<C: Clock>(admin: &Admin<C>, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(ours) = &admin.options.token else {
        if admin.options.on_loopback {
            return Ok(());
        }
        let detail = "nothing is changed from here: this listener is not on loopback and has no token; set `admin_token` in \
                      [server] and send it as `Authorization: Bearer …`";
        return Err(Problem::new(Code::Forbidden, detail));
    };
    let theirs = headers
        .get(AUTHORIZATION)
        .and_then(|found| found.as_bytes().strip_prefix(b"Bearer "));
    let detail = match theirs {
        Some(theirs) if token::matches(ours.reveal().as_bytes(), theirs) => return Ok(()),
        Some(_) => {
            "this is not the `admin_token` of [server]; send that one as `Authorization: Bearer …`"
        }
        None => {
            "only who has the `admin_token` of [server] may change something; send it as `Authorization: Bearer …`"
        }
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
    one_key::perform(admin, verb, &body, entry).await
}

#[derive(Serialize)]
struct Reloaded {
    policies: usize,
    warnings: Vec<String>,
}

async fn reload<C: Clock>(admin: &Arc<Admin<C>>) -> Result<Response, Problem> {
    // It takes its time with a large file, and probes of this listener must be answered meanwhile.
    let loading = Arc::clone(&admin.reload);
    let loaded = tokio::task::spawn_blocking(move || loading.now("on request")).await;
    match loaded.unwrap_or_else(|_| {
        Err(vec![
            "loading it ended in a panic; the log says why".to_owned(),
        ])
    }) {
        Ok(warnings) => {
            let policies = admin.app().engine.policies().iter().len();
            Ok(told(&Reloaded { policies, warnings }))
        }
        Err(problems) => Err(Problem::new(Code::InvalidConfig, problems.join("; "))),
    }
}

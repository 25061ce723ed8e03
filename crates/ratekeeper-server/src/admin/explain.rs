//! `POST /admin/explain`: what `ratekeeper explain` says, on the counters of this service. Nothing
//! is charged.

use super::selected::Selected;
use super::{Admin, told};
use crate::api::check_request::HeaderTrust;
use crate::api::json::Fields;
use crate::api::{Problem, body};
use crate::commands::explain::ExplainAnswer;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use ratekeeper::Clock;
use std::sync::Arc;

const EXAMPLE: &str = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;

pub(super) async fn explain<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let mut fields = Fields::from_body(&body, &["subject", "cost"], EXAMPLE)?;
    let selected = Selected::read(&mut fields)?;
    let cost = fields.whole_number("cost")?.unwrap_or(1);
    let app = admin.app();
    selected.check_is_known(&app.engine.policies().attributes())?;
    let who = selected.with_values(&admin)?;
    let identity = app.identity.load_full();
    let explanation = app
        .engine
        .explain(&who.subject(&identity, HeaderTrust::Operator), cost)
        .await;
    Ok(told(&ExplainAnswer::new(&explanation)))
}

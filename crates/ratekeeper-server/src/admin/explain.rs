//! `POST /admin/explain`: `ratekeeper explain` on the counters of this service. Nothing is charged.

use super::key_selection::KeySelection;
use super::{Admin, no_store_json};
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
    let selection = KeySelection::read(&mut fields)?;
    let cost = fields.whole_number("cost")?.unwrap_or(1);
    let app = admin.app();
    selection.check_is_known(&app.engine.policies().attributes())?;
    let subject = selection.with_values(&admin)?;
    let identity = app.identity.load_full();
    let explanation = app
        .engine
        .explain(&subject.subject(&identity, HeaderTrust::Operator).cost(cost))
        .await;
    Ok(no_store_json(&ExplainAnswer::new(&explanation)))
}

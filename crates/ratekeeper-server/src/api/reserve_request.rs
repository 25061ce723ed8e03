//! The bodies of `POST /v1/reserve`, `/v1/settle` and `/v1/cancel`.

use super::check_request::CheckSubject;
use super::json::{Fields, invalid};
use super::problem::Problem;
use ratekeeper_policy::Completion;
use std::time::Duration;

const EXAMPLE: &str =
    r#"{"subject":{"ip":"203.0.113.7"},"cost":5,"max_wait_ms":2000,"ttl_ms":60000}"#;
const SETTLE_EXAMPLE: &str = r#"{"id":"…","cost":3,"status":200}"#;
const CANCEL_EXAMPLE: &str = r#"{"id":"…"}"#;

/// Maximum `max_wait_ms` and `ttl_ms`: an hour.
const MAX_TTL_MS: u64 = 3_600_000;

/// Default lifetime of an id.
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// The body of `POST /v1/reserve`.
#[derive(PartialEq, Debug)]
pub(super) struct ReserveRequest<'a> {
    pub(super) subject: CheckSubject<'a>,
    pub(super) cost: Option<u64>,
    pub(super) max_wait: Option<Duration>,
    pub(super) ttl: Duration,
}

impl<'a> ReserveRequest<'a> {
    pub(super) fn from_json(body: &'a [u8]) -> Result<Self, Problem> {
        let mut fields =
            Fields::from_body(body, &["subject", "cost", "max_wait_ms", "ttl_ms"], EXAMPLE)?;
        let subject = CheckSubject::read(&mut fields)?;
        let cost = fields.whole_number("cost")?;
        let max_wait = fields
            .whole_number_within("max_wait_ms", 0..=MAX_TTL_MS)?
            .map(Duration::from_millis);
        let ttl = fields
            .whole_number_within("ttl_ms", 1..=MAX_TTL_MS)?
            .map_or(DEFAULT_TTL, Duration::from_millis);
        Ok(Self {
            subject,
            cost,
            max_wait,
            ttl,
        })
    }
}

/// The body of `POST /v1/settle`.
#[derive(PartialEq, Debug)]
pub(super) struct SettleRequest {
    pub(super) id: String,
    pub(super) completion: Completion,
}

impl SettleRequest {
    pub(super) fn from_json(body: &[u8]) -> Result<Self, Problem> {
        let mut fields =
            Fields::from_body(body, &["id", "cost", "status", "failed"], SETTLE_EXAMPLE)?;
        let id = fields.required_text("id", SETTLE_EXAMPLE)?;
        let cost = fields.whole_number("cost")?;
        let status = fields
            .whole_number_within("status", 100..=999)?
            .and_then(|status| u16::try_from(status).ok());
        let completion = match (status, fields.boolean("failed")?) {
            (None, None) => Completion::unknown(),
            (Some(status), None) => Completion::status(status),
            (None, Some(true)) => Completion::failed(),
            (None, Some(false)) => Completion::succeeded(),
            (Some(_), Some(_)) => {
                let detail = "`status` and `failed` are alternatives; send one of them";
                return Err(invalid(detail.to_owned()));
            }
        };
        Ok(Self {
            id,
            completion: cost.map_or(completion, |cost| completion.cost(cost)),
        })
    }
}

/// The id in the body of `POST /v1/cancel`.
pub(super) fn id_from_json(body: &[u8]) -> Result<String, Problem> {
    Fields::from_body(body, &["id"], CANCEL_EXAMPLE)?.required_text("id", CANCEL_EXAMPLE)
}

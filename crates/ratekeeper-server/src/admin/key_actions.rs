//! Actions on one key: ban, override, lift, grant, reset.

use super::audit::Entry;
use super::fleet::OverrideNotice;
use super::key_selection::KeySelection;
use super::overrides::Row;
use super::writes::Verb;
use super::{Admin, no_store_json};
use crate::api::check_request::HeaderTrust;
use crate::api::json::{Fields, Json, invalid, missing};
use crate::api::{Code, Problem, quoted};
use crate::config::{self, KeyDisplay};
use crate::store::AnyStore;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::{
    PolicyLimit, engine::KeySelector, engine::OverrideError, engine::PolicyKey,
};
use ratekeeper_redis::StoreError;
use serde::Serialize;
use std::time::Duration;

/// Longest reason, in characters.
const MAX_REASON_CHARS: usize = 200;

/// Limits of an override.
const MAX_LIMITS: usize = 8;

/// Policy names in the error for an unknown policy.
const MAX_NAMES: usize = 20;

/// The body of a request for an action.
struct KeyRequest<'a> {
    policy: String,
    selection: KeySelection<'a>,
    duration: Option<Duration>,
    reason: Option<String>,
    limits: Option<Vec<PolicyLimit>>,
    tokens: Option<u64>,
}

impl Verb {
    fn example(self) -> &'static str {
        match self {
            Self::Ban => {
                r#"{"policy":"login","subject":{"ip":"203.0.113.7"},"for":"1h","reason":"scraping"}"#
            }
            Self::Override => {
                r#"{"policy":"api","subject":{"user":"42"},"limits":["200/min"],"for":"1d"}"#
            }
            Self::Grant => r#"{"policy":"api","subject":{"user":"42"},"tokens":100}"#,
            Self::Lift | Self::Reset | Self::Reload => {
                r#"{"policy":"api","subject":{"user":"42"}}"#
            }
        }
    }

    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Ban => &["policy", "subject", "for", "reason"],
            Self::Override => &["policy", "subject", "limits", "for", "reason"],
            Self::Grant => &["policy", "subject", "tokens"],
            Self::Lift | Self::Reset | Self::Reload => &["policy", "subject"],
        }
    }
}

impl<'a> KeyRequest<'a> {
    fn read(verb: Verb, body: &'a [u8]) -> Result<Self, Problem> {
        let mut fields = Fields::from_body(body, verb.fields(), verb.example())?;
        let policy = fields.required_text("policy", verb.example())?;
        let selection = KeySelection::read(&mut fields)?;
        let duration = match fields.text("for")? {
            None if matches!(verb, Verb::Ban | Verb::Override) => {
                return Err(missing("for", verb.example()));
            }
            None => None,
            Some(text) => Some(config::duration(&text).ok_or_else(|| {
                invalid(format!(
                    "`for`: {} is not a duration; use \"15min\", \"1h\" or \"7d\"",
                    quoted(&text)
                ))
            })?),
        };
        let reason = fields
            .text("reason")?
            .filter(|reason| !reason.trim().is_empty());
        if reason
            .as_ref()
            .is_some_and(|reason| reason.chars().count() > MAX_REASON_CHARS)
        {
            return Err(invalid(format!(
                "`reason` is longer than {MAX_REASON_CHARS} characters; shorten it"
            )));
        }
        let limits = match (verb, fields.take("limits")) {
            (Verb::Override, None) => return Err(missing("limits", verb.example())),
            (_, limits) => limits.map(read_limits).transpose()?,
        };
        let tokens = fields.whole_number_within("tokens", 1..=u64::MAX)?;
        if verb == Verb::Grant && tokens.is_none() {
            return Err(missing("tokens", verb.example()));
        }
        Ok(Self {
            policy,
            selection,
            duration,
            reason,
            limits,
            tokens,
        })
    }
}

fn read_limits(limits: Json<'_>) -> Result<Vec<PolicyLimit>, Problem> {
    let list = match limits {
        Json::List(list) => list,
        one => vec![one],
    };
    if list.is_empty() || list.len() > MAX_LIMITS {
        return Err(invalid(format!(
            "`limits` has {} entries; send 1 to {MAX_LIMITS}, as in [\"200/min\"]",
            list.len()
        )));
    }
    let read = |limit| match limit {
        Json::Text(text) => PolicyLimit::parse(&text, None).map_err(|error| {
            Problem::new(
                Code::InvalidLimit,
                format!("`limits`: {}: {error}", quoted(&text)),
            )
        }),
        other => Err(invalid(format!(
            "`limits` must be a list of texts, as in [\"200/min\"], not {}",
            other.shown()
        ))),
    };
    list.into_iter().map(read).collect()
}

#[derive(Serialize)]
struct KeyAction<'a> {
    policy: &'a str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
}

/// Performs an action, and adds its policy, key and details to the audit entry.
pub(super) async fn perform<C: Clock>(
    admin: &Admin<C>,
    verb: Verb,
    body: &[u8],
    entry: &mut Entry,
) -> Result<Response, Problem> {
    let request = KeyRequest::read(verb, body)?;
    entry.policy = Some(truncated(&request.policy));
    let identity = admin.app().identity.load_full();
    let subject = request
        .selection
        .subject
        .subject(&identity, HeaderTrust::Operator);
    let selector = KeySelector::new(&subject, &request.selection.fingerprints);
    let engine = &admin.app().engine;
    if let Some(fleet) = admin
        .fleet
        .as_ref()
        .filter(|_| !request.selection.fingerprints.is_empty())
    {
        let advice = "name the key by its values instead of fingerprints";
        fleet
            .check_secret()
            .map_err(|error| unavailable(&error, advice))?;
        fleet.catch_up();
    }
    let key = match request.duration {
        Some(duration) => engine.operator().check_override(
            &request.policy,
            selector,
            request.limits.as_deref(),
            duration,
        ),
        None => engine.operator().key_of(&request.policy, selector),
    };
    let key = key.map_err(|error| admin.problem(&request.policy, &error))?;
    request.selection.check_is_key(&key, &identity)?;
    let displayed = admin.display(&key);
    entry.key = Some(displayed.clone());
    entry.detail = detail(&request);
    if matches!(verb, Verb::Grant | Verb::Reset) && !key.is_seen {
        return Err(admin.problem(&request.policy, &OverrideError::NotSeen(key.fingerprint)));
    }
    match (verb, request.duration) {
        (Verb::Ban | Verb::Override, Some(duration)) => {
            let notice = OverrideNotice {
                key: &key,
                limits: request.limits.as_deref(),
                duration,
                reason: request.reason.as_deref(),
            };
            admin.set_override(selector, &notice).await
        }
        (Verb::Grant, _) => {
            let tokens = request.tokens.unwrap_or_default();
            admin.check_store("nothing was granted")?;
            engine
                .operator()
                .grant(&request.policy, selector, tokens)
                .await
                .map_err(|error| admin.problem(&request.policy, &error))?;
            admin.check_store("the grant may be lost")?;
            Ok(no_store_json(&KeyAction {
                policy: &key.policy,
                key: displayed,
                tokens: Some(tokens),
            }))
        }
        (Verb::Reset, _) => {
            admin.check_store("nothing was reset")?;
            if let Some(fleet) = &admin.fleet {
                fleet
                    .lift(&key)
                    .await
                    .map_err(|error| unavailable(&error, "nothing was reset"))?;
            }
            engine
                .operator()
                .reset_key(&request.policy, selector)
                .await
                .map_err(|error| admin.problem(&request.policy, &error))?;
            admin.check_store("the reset may be incomplete")?;
            Ok(no_store_json(&KeyAction {
                policy: &key.policy,
                key: displayed,
                tokens: None,
            }))
        }
        _ => {
            admin.lift(selector, &key).await?;
            Ok(no_store_json(&KeyAction {
                policy: &key.policy,
                key: displayed,
                tokens: None,
            }))
        }
    }
}

impl<C: Clock> Admin<C> {
    /// The fingerprint of a key, or its values with `[stats] keys = "plain"`.
    fn display(&self, key: &PolicyKey) -> String {
        if self.options.keys == KeyDisplay::Plain {
            key.words.clone()
        } else {
            key.fingerprint.clone()
        }
    }

    /// Sets a ban or override on all nodes; without Redis on this node only, with an error.
    async fn set_override(
        &self,
        selector: KeySelector<'_>,
        notice: &OverrideNotice<'_>,
    ) -> Result<Response, Problem> {
        let engine = &self.app().engine;
        let policy = notice.key.policy.as_str();
        let set_locally = || match notice.limits {
            None => engine
                .operator()
                .ban(policy, selector, notice.duration, notice.reason),
            Some(limits) => engine.operator().override_limits(
                policy,
                selector,
                limits,
                notice.duration,
                notice.reason,
            ),
        };
        let Some(fleet) = &self.fleet else {
            let entry = set_locally().map_err(|error| self.problem(policy, &error))?;
            return Ok(no_store_json(&Row::of(&entry, self.options.keys)));
        };
        if let Err(error) = fleet.publish(notice).await {
            let effect = match set_locally() {
                Ok(_) => "set on this node only; repeat when Redis is back".to_owned(),
                Err(error) => format!("not set here either: {error}"),
            };
            return Err(unavailable(&error, &effect));
        }
        let fingerprint = &notice.key.fingerprint;
        let matches = |row: &Row| {
            row.policy == policy
                && row.fingerprint == *fingerprint
                && row.is_ban() == notice.limits.is_none()
        };
        let rows = engine
            .operator()
            .overrides()
            .iter()
            .map(|entry| Row::of(entry, self.options.keys))
            .collect::<Vec<_>>();
        match rows.iter().find(|row| matches(row)) {
            Some(row) => Ok(no_store_json(row)),
            None => {
                let detail =
                    "set on all nodes, not yet active on this one; see GET /admin/overrides";
                Err(Problem::new(Code::Unavailable, detail))
            }
        }
    }

    async fn lift(&self, selector: KeySelector<'_>, key: &PolicyKey) -> Result<(), Problem> {
        let lifted_here = self
            .app()
            .engine
            .operator()
            .lift(&key.policy, selector)
            .map_err(|error| self.problem(&key.policy, &error))?;
        let lifted_on_fleet = match &self.fleet {
            None => false,
            Some(fleet) => fleet.lift(key).await.map_err(|error| {
                let effect = if lifted_here {
                    "lifted on this node only"
                } else {
                    "nothing was lifted"
                };
                unavailable(&error, effect)
            })?,
        };
        if lifted_here || lifted_on_fleet {
            return Ok(());
        }
        let policy = quoted(&key.policy);
        let detail = format!(
            "no ban or override for this key under {policy}; GET /admin/overrides lists all; POST /admin/reset ends a ban by a \
             penalty"
        );
        Err(Problem::new(Code::NotFound, detail))
    }

    fn problem(&self, policy: &str, error: &OverrideError) -> Problem {
        match error {
            OverrideError::NoPolicy => {
                let policies = self.app().engine.policies();
                let mut names: Vec<String> = policies
                    .iter()
                    .map(|policy| quoted(policy.name()))
                    .collect();
                let more = if names.len() > MAX_NAMES { ", …" } else { "" };
                names.truncate(MAX_NAMES);
                let detail = format!(
                    "no policy named {}; policies: {}{more}",
                    quoted(policy),
                    names.join(", ")
                );
                Problem::new(Code::NotFound, detail)
            }
            OverrideError::NoKey(attribute) => invalid(format!(
                "the policy {} counts by {attribute}, and `subject` lacks it; add it",
                quoted(policy)
            )),
            OverrideError::NotSeen(_) => Problem::new(Code::NotFound, error.to_string()),
            OverrideError::TooMany | OverrideError::TooManyLimits => {
                Problem::new(Code::Unavailable, error.to_string())
            }
            other => invalid(other.to_string()),
        }
    }

    /// Fails if the store is Redis and unavailable; `effect` says what happened instead.
    fn check_store(&self, effect: &str) -> Result<(), Problem> {
        let AnyStore::Redis(redis) = self.app().engine.store() else {
            return Ok(());
        };
        match redis.status().error {
            None => Ok(()),
            Some((_, error)) => Err(unavailable(&error, effect)),
        }
    }
}

fn unavailable(error: &StoreError, effect: &str) -> Problem {
    Problem::new(Code::Unavailable, format!("{error}; {effect}"))
}

/// The detail of the audit entry.
fn detail(request: &KeyRequest) -> Option<String> {
    let limits = request
        .limits
        .iter()
        .flatten()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    let parts = [
        Some(limits).filter(|limits| !limits.is_empty()),
        request
            .duration
            .map(|duration| format!("for {}", config::duration_text(duration))),
        request.tokens.map(|tokens| format!("{tokens} tokens")),
        request
            .reason
            .as_ref()
            .map(|reason| format!("\"{reason}\"")),
    ];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}

/// The first 128 characters of a text.
fn truncated(text: &str) -> String {
    text.chars().take(128).collect()
}

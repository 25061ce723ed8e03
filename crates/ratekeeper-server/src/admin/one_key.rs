//! What is said of one key, and done to it: ban, override, lift, grant, reset.

use super::audit::Entry;
use super::fleet::SharedText;
use super::overrides::Row;
use super::selected::Selected;
use super::writes::Verb;
use super::{Admin, told};
use crate::api::check_request::HeaderTrust;
use crate::api::json::{Fields, Json, invalid, missing};
use crate::api::{Code, Problem, quoted};
use crate::store::AnyStore;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::config::{self, KeyDisplay};
use ratekeeper_policy::{
    PolicyLimit, engine::KeySelector, engine::OverrideError, engine::PolicyKey,
};
use ratekeeper_redis::StoreError;
use serde::Serialize;
use std::time::Duration;

/// What an operator may write as the reason.
const LONGEST_REASON: usize = 200;

/// More than anybody needs.
const MOST_LIMITS: usize = 8;

/// Names of policies that are told when one is not known.
const MOST_NAMES: usize = 20;

/// The body of a request.
struct KeyRequest<'a> {
    policy: String,
    selected: Selected<'a>,
    lasts: Option<Duration>,
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
        let selected = Selected::read(&mut fields)?;
        let lasts = match fields.text("for")? {
            None if matches!(verb, Verb::Ban | Verb::Override) => {
                return Err(missing("for", verb.example()));
            }
            None => None,
            Some(text) => Some(config::duration(&text).ok_or_else(|| {
                invalid(format!(
                    "`for` is {}, which is no time; write one as \"15min\", \"1h\" or \"7d\"",
                    quoted(&text)
                ))
            })?),
        };
        let reason = fields
            .text("reason")?
            .filter(|reason| !reason.trim().is_empty());
        if reason
            .as_ref()
            .is_some_and(|reason| reason.chars().count() > LONGEST_REASON)
        {
            return Err(invalid(format!(
                "`reason` is longer than {LONGEST_REASON} letters; write a shorter one"
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
            selected,
            lasts,
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
    if list.is_empty() || list.len() > MOST_LIMITS {
        return Err(invalid(format!(
            "`limits` has {}; name 1 to {MOST_LIMITS}, as in [\"200/min\"]",
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

/// Does it, and notes in the entry what it was about.
pub(super) async fn perform<C: Clock>(
    admin: &Admin<C>,
    verb: Verb,
    body: &[u8],
    entry: &mut Entry,
) -> Result<Response, Problem> {
    let asked = KeyRequest::read(verb, body)?;
    entry.policy = Some(shortened(&asked.policy));
    let identity = admin.app().identity.load_full();
    let subject = asked.selected.who.subject(&identity, HeaderTrust::Operator);
    let selector = KeySelector::new(&subject, &asked.selected.fingerprints);
    let engine = &admin.app().engine;
    if let Some(fleet) = admin
        .fleet
        .as_ref()
        .filter(|_| !asked.selected.fingerprints.is_empty())
    {
        let unknown = "fingerprints are not known here until it does; name the key itself";
        fleet
            .has_secret()
            .map_err(|trouble| unavailable(&trouble, unknown))?;
        fleet.catch_up();
    }
    let key = match asked.lasts {
        Some(lasts) => {
            engine.check_override(&asked.policy, selector, asked.limits.as_deref(), lasts)
        }
        None => engine.key_of(&asked.policy, selector),
    };
    let key = key.map_err(|error| admin.refused(&asked.policy, &error))?;
    asked.selected.check_is_key(&key, &identity)?;
    let shown = admin.shown(&key);
    entry.key = Some(shown.clone());
    entry.detail = detail(&asked);
    if matches!(verb, Verb::Grant | Verb::Reset) && !key.is_seen {
        return Err(admin.refused(&asked.policy, &OverrideError::NotSeen(key.fingerprint)));
    }
    match (verb, asked.lasts) {
        (Verb::Ban | Verb::Override, Some(lasts)) => {
            let (limits, reason) = (asked.limits.as_deref(), asked.reason.as_deref());
            admin
                .say(
                    selector,
                    &SharedText {
                        key: &key,
                        limits,
                        lasts,
                        reason,
                    },
                )
                .await
        }
        (Verb::Grant, _) => {
            let tokens = asked.tokens.unwrap_or_default();
            admin.reachable("nothing was granted")?;
            engine
                .grant(&asked.policy, selector, tokens)
                .await
                .map_err(|error| admin.refused(&asked.policy, &error))?;
            admin.reachable("what was to be granted may be lost")?;
            Ok(told(&KeyAction {
                policy: &key.policy,
                key: shown,
                tokens: Some(tokens),
            }))
        }
        (Verb::Reset, _) => {
            admin.reachable("nothing was reset")?;
            if let Some(fleet) = &admin.fleet {
                fleet
                    .lift(&key)
                    .await
                    .map_err(|trouble| unavailable(&trouble, "nothing was reset"))?;
            }
            engine
                .reset_key(&asked.policy, selector)
                .await
                .map_err(|error| admin.refused(&asked.policy, &error))?;
            admin.reachable("not all of it may be reset")?;
            Ok(told(&KeyAction {
                policy: &key.policy,
                key: shown,
                tokens: None,
            }))
        }
        _ => {
            admin.lift(selector, &key).await?;
            Ok(told(&KeyAction {
                policy: &key.policy,
                key: shown,
                tokens: None,
            }))
        }
    }
}

impl<C: Clock> Admin<C> {
    /// A key by its fingerprint, or as it is where `[stats] keys` says so.
    fn shown(&self, key: &PolicyKey) -> String {
        if self.options.keys == KeyDisplay::Plain {
            key.words.clone()
        } else {
            key.fingerprint.clone()
        }
    }

    /// Says it on all nodes; without Redis on this one, and that it is so.
    async fn say(
        &self,
        selector: KeySelector<'_>,
        saying: &SharedText<'_>,
    ) -> Result<Response, Problem> {
        let engine = &self.app().engine;
        let policy = saying.key.policy.as_str();
        let here = || match saying.limits {
            None => engine.ban(policy, selector, saying.lasts, saying.reason),
            Some(limits) => {
                engine.override_limits(policy, selector, limits, saying.lasts, saying.reason)
            }
        };
        let Some(fleet) = &self.fleet else {
            let entry = here().map_err(|error| self.refused(policy, &error))?;
            return Ok(told(&Row::of(&entry, self.options.keys)));
        };
        if let Err(trouble) = fleet.say(saying).await {
            let holds = match here() {
                Ok(_) => "it holds on this node alone; say it again when Redis answers".to_owned(),
                Err(error) => format!("it does not hold here either: {error}"),
            };
            return Err(unavailable(&trouble, &holds));
        }
        let fingerprint = &saying.key.fingerprint;
        let is_it = |row: &Row| {
            row.policy == policy
                && row.fingerprint == *fingerprint
                && row.is_ban() == saying.limits.is_none()
        };
        let rows = engine
            .overrides()
            .iter()
            .map(|entry| Row::of(entry, self.options.keys))
            .collect::<Vec<_>>();
        match rows.iter().find(|row| is_it(row)) {
            Some(row) => Ok(told(row)),
            None => {
                let detail = "it was told to all nodes and does not hold on this one yet; see GET /admin/overrides";
                Err(Problem::new(Code::Unavailable, detail))
            }
        }
    }

    async fn lift(&self, selector: KeySelector<'_>, key: &PolicyKey) -> Result<(), Problem> {
        let here = self
            .app()
            .engine
            .lift(&key.policy, selector)
            .map_err(|error| self.refused(&key.policy, &error))?;
        let everywhere = match &self.fleet {
            None => false,
            Some(fleet) => fleet.lift(key).await.map_err(|trouble| {
                unavailable(
                    &trouble,
                    if here {
                        "it was lifted on this node alone"
                    } else {
                        "nothing was lifted"
                    },
                )
            })?,
        };
        if here || everywhere {
            return Ok(());
        }
        let policy = quoted(&key.policy);
        let detail = format!(
            "there is no ban and no override of this key under {policy}; GET /admin/overrides lists those there are, and a ban \
             by a penalty ends with POST /admin/reset"
        );
        Err(Problem::new(Code::NotFound, detail))
    }

    fn refused(&self, policy: &str, error: &OverrideError) -> Problem {
        match error {
            OverrideError::NoPolicy => {
                let policies = self.app().engine.policies();
                let mut names: Vec<String> = policies
                    .iter()
                    .map(|policy| quoted(policy.name()))
                    .collect();
                let more = if names.len() > MOST_NAMES {
                    " and others"
                } else {
                    ""
                };
                names.truncate(MOST_NAMES);
                let detail = format!(
                    "no policy is called {}; there are {}{more}",
                    quoted(policy),
                    names.join(", ")
                );
                Problem::new(Code::NotFound, detail)
            }
            OverrideError::NoKey(attribute) => invalid(format!(
                "the policy {} counts by {attribute}, and `subject` has none; add it",
                quoted(policy)
            )),
            OverrideError::NotSeen(_) => Problem::new(Code::NotFound, error.to_string()),
            OverrideError::TooMany | OverrideError::TooManyLimits => {
                Problem::new(Code::Unavailable, error.to_string())
            }
            other => invalid(other.to_string()),
        }
    }

    /// An error if Redis is where it would have to be done, and does not answer.
    fn reachable(&self, else_: &str) -> Result<(), Problem> {
        let AnyStore::Redis(redis) = self.app().engine.store() else {
            return Ok(());
        };
        match redis.status().error {
            None => Ok(()),
            Some((_, trouble)) => Err(unavailable(&trouble, else_)),
        }
    }
}

fn unavailable(trouble: &StoreError, then: &str) -> Problem {
    Problem::new(Code::Unavailable, format!("{trouble}; {then}"))
}

/// What is remembered beside policy and key.
fn detail(asked: &KeyRequest) -> Option<String> {
    let limits = asked
        .limits
        .iter()
        .flatten()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    let parts = [
        Some(limits).filter(|limits| !limits.is_empty()),
        asked
            .lasts
            .map(|lasts| format!("for {}", config::duration_text(lasts))),
        asked.tokens.map(|tokens| format!("{tokens} tokens")),
        asked.reason.as_ref().map(|reason| format!("\"{reason}\"")),
    ];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}

/// What somebody wrote, which may be long.
fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

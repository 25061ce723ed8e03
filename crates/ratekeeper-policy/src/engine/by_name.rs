//! Decisions by one policy, chosen by name, on a plain key value: for callers without a request.

use super::open_verdict::{OpenVerdict, Purpose};
use super::query::{ApplyError, Query, RequestContext};
use super::reason::Reason;
use super::rules::Rules;
use super::{Engine, KeySelector, Operator, OverrideError, PolicyKey, PolicyVerdict};
use crate::attribute::Attribute;
use crate::fingerprint::{Fingerprint, FingerprintError};
use crate::subject::{Headers, Subject};
use ratekeeper::{Store, Timestamp};
use std::fmt;

/// Why a decision by name was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ByNameError {
    /// No policy has that name.
    NoPolicy,
    /// The policy counts by several attributes, but only one value was given.
    ManyKeys(Vec<Attribute>),
    /// The value is not valid for that attribute: an `ip` that is not an address, or an empty text.
    NotA(Attribute),
    /// The limits depend on the plan of the subject, and there is no default plan.
    NoPlan(Attribute),
    /// The key was meant as a fingerprint of that attribute, and is not one.
    Fingerprint(Attribute, FingerprintError),
    /// No key with this fingerprint was seen here lately.
    NotSeen(String),
}

impl fmt::Display for ByNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy has that name"),
            Self::ManyKeys(keys) => {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "the policy counts by {}, which is more than one value; send a request with all of them instead",
                    keys.join(" and ")
                )
            }
            Self::NotA(Attribute::Ip) => {
                f.write_str("the policy counts by ip, but the key is not an IP address")
            }
            Self::NotA(attribute) => {
                write!(
                    f,
                    "the policy counts by {attribute}, but the key is empty or invalid"
                )
            }
            Self::NoPlan(attribute) => {
                write!(
                    f,
                    "the limits of the policy depend on {attribute}; give the policy a default plan"
                )
            }
            Self::Fingerprint(attribute, error) => {
                write!(f, "the key is not a fingerprint of {attribute}: {error}")
            }
            Self::NotSeen(key) => OverrideError::NotSeen(key.clone()).fmt(f),
        }
    }
}

impl std::error::Error for ByNameError {}

/// # Decisions by policy name
///
/// The conditions of the policy are not checked. A policy without a key has one bucket, whatever
/// the value. Lists, bans and overrides hold as for any request.
impl<S: Store> Engine<S> {
    /// Decides by one policy alone, and charges it unless `peek` is set.
    pub async fn decide_by(
        &self,
        policy: &str,
        value: &[u8],
        cost: u64,
        peek: bool,
    ) -> Result<PolicyVerdict, ByNameError> {
        let purpose = if peek { Purpose::Peek } else { Purpose::Charge };
        let open = {
            let _no_reload = self.inner.reload_lock.read();
            let mut open = OpenVerdict::new(self.begin_by(policy, value, cost)?, purpose, None);
            open.advance(self);
            open
        };
        Ok(self.complete(open).await)
    }

    fn begin_by(
        &self,
        policy: &str,
        value: &[u8],
        cost: u64,
    ) -> Result<PolicyVerdict, ByNameError> {
        let now = self.inner.store.now();
        let mut verdict = PolicyVerdict::new(self.inner.rules.load(), now);
        let (rules, query) = verdict.state.rules_and_query();
        // A caller by name holds no permit, so it does not queue for one.
        query.no_wait = true;
        verdict.state.reason = self.gather_by(rules, query, policy, value, cost, now)?;
        Ok(verdict)
    }

    /// Builds the query for the store; returns the reason if it need not be asked.
    fn gather_by(
        &self,
        rules: &Rules,
        query: &mut Query,
        policy: &str,
        value: &[u8],
        cost: u64,
        now: Timestamp,
    ) -> Result<Reason, ByNameError> {
        let mut named = (0..)
            .zip(&rules.policies)
            .filter(|(_, rule)| rule.policy.name == policy);
        let (number, rule) = named.next().ok_or(ByNameError::NoPolicy)?;
        let attribute = only(&rule.policy.key)?;
        let header = OneHeader::new(attribute, value);
        let subject = subject(attribute, value, &header);
        // There is only the value: no attribute can replace it.
        if let Some(attribute) = attribute.filter(|attribute| !subject.has(attribute)) {
            return Err(ByNameError::NotA(attribute.clone()));
        }
        let path = rules.path_of(&subject);
        if let Some(reason) = rules.without_limits(&subject, path.as_ref(), now) {
            return Ok(reason);
        }
        let request = RequestContext {
            subject: &subject,
            path: path.as_ref(),
            cost,
            now,
        };
        let applied = query.apply(
            rules,
            number,
            rule,
            &self.inner.overrides.in_force(),
            &request,
        );
        applied.map_err(|error| match error {
            ApplyError::MissingKey(attribute) => ByNameError::NotA(attribute.clone()),
            ApplyError::MissingPlan(attribute) => ByNameError::NoPlan(attribute.clone()),
        })?;
        Ok(match query.denied_without_limits(rules) {
            Some(reason) => reason,
            None if !query.limits_something() => Reason::NoPolicy,
            None => Reason::Limits,
        })
    }
}

/// The only attribute of a key, if it has one.
fn only(key: &[Attribute]) -> Result<Option<&Attribute>, ByNameError> {
    match key {
        [] => Ok(None),
        [attribute] => Ok(Some(attribute)),
        several => Err(ByNameError::ManyKeys(several.to_vec())),
    }
}

/// The fingerprint that a value is, alone or behind the attribute's name: `#f8c0…`, `user=#f8c0…`.
fn fingerprint(
    attribute: &Attribute,
    value: &[u8],
) -> Result<Option<(Attribute, Fingerprint)>, ByNameError> {
    let Ok(text) = std::str::from_utf8(value) else {
        return Ok(None);
    };
    let named = text
        .split_once("=#")
        .filter(|(name, _)| *name == attribute.to_string());
    let text = named.map_or(text, |(name, _)| &text[name.len() + 1..]);
    match text.parse() {
        Ok(fingerprint) => Ok(Some((attribute.clone(), fingerprint))),
        Err(error) if Fingerprint::is_meant_by(text) => {
            Err(ByNameError::Fingerprint(attribute.clone(), error))
        }
        Err(_) => Ok(None),
    }
}

/// A subject with only this attribute.
fn subject<'a>(
    attribute: Option<&'a Attribute>,
    value: &'a [u8],
    header: &'a OneHeader<'a>,
) -> Subject<'a> {
    match attribute {
        None => Subject::new(),
        Some(Attribute::Header(_)) => Subject::new().headers(header),
        // A request without a named endpoint has `GET /x`.
        Some(Attribute::Endpoint) => match value.iter().position(|byte| *byte == b' ') {
            Some(space) => Subject::new()
                .method(&value[..space])
                .path(&value[space + 1..]),
            None => Subject::new().endpoint(value),
        },
        Some(attribute) => Subject::new().with(attribute.name(), value),
    }
}

struct OneHeader<'a> {
    name: &'a str,
    value: &'a [u8],
}

impl<'a> OneHeader<'a> {
    fn new(attribute: Option<&'a Attribute>, value: &'a [u8]) -> Self {
        Self {
            name: attribute.map_or("", Attribute::name),
            value,
        }
    }
}

impl Headers for OneHeader<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == self.name && !self.value.is_empty()).then_some(self.value)
    }
}

impl<S: Store> Operator<'_, S> {
    /// Resets the limits of a key, as [`reset_limits`](Self::reset_limits) does, and
    /// returns the key. The key may be named by the [fingerprint](Fingerprint) that was shown of it,
    /// `#f8c0…` or `user=#f8c0…`, while it is in one of the
    /// [lists](super::EngineStats::most_active) of keys.
    pub async fn reset_by(&self, policy: &str, value: &[u8]) -> Result<PolicyKey, ByNameError> {
        let rules = self.engine.inner.rules.load_full();
        let rule = rules
            .policies
            .iter()
            .find(|rule| rule.policy.name == policy)
            .ok_or(ByNameError::NoPolicy)?;
        let attribute = only(&rule.policy.key)?;
        let fingerprint = match attribute {
            Some(attribute) => fingerprint(attribute, value)?,
            None => None,
        };
        let value = if fingerprint.is_some() { &[] } else { value };
        let header = OneHeader::new(attribute, value);
        let subject = subject(attribute, value, &header);
        let selector = KeySelector::new(&subject, fingerprint.as_slice());
        let to_by_name_error = |error| match error {
            OverrideError::NoKey(attribute) => ByNameError::NotA(attribute),
            OverrideError::NotSeen(key) => ByNameError::NotSeen(key),
            // The policy may have been removed in between.
            _ => ByNameError::NoPolicy,
        };
        let key = self.key_of(policy, selector).map_err(to_by_name_error)?;
        self.reset_limits(policy, selector)
            .await
            .map_err(to_by_name_error)?;
        Ok(key)
    }
}

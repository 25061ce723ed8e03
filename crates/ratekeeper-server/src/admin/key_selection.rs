//! Key selection: the field `subject` of operator requests, by values or fingerprints.

use super::Admin;
use crate::api::check_request::CheckSubject;
use crate::api::json::{Fields, invalid};
use crate::api::{Code, Problem, quoted};
use crate::config::IdentityConfig;
use ratekeeper::Clock;
use ratekeeper_policy::{
    Attribute, engine::OverrideError, engine::PolicyKey, engine::SeenValue,
    fingerprint::Fingerprint,
};

/// The field `subject` of an operator request.
pub(super) struct KeySelection<'a> {
    pub(super) subject: CheckSubject<'a>,
    pub(super) fingerprints: Vec<(Attribute, Fingerprint)>,
}

impl<'a> KeySelection<'a> {
    pub(super) fn read(fields: &mut Fields<'a>) -> Result<Self, Problem> {
        let mut fingerprints: Vec<(Attribute, Fingerprint)> = Vec::new();
        let subject = CheckSubject::read_except(fields, |attribute, text| match text.parse() {
            Ok(fingerprint) => {
                fingerprints.push((attribute, fingerprint));
                Ok(true)
            }
            Err(error)
                if Fingerprint::is_meant_by(text)
                    || attribute.is_secret() && text.starts_with('#') =>
            {
                let detail = format!(
                    "`{attribute}`: {} is not a fingerprint: {error}",
                    quoted(text)
                );
                Err(invalid(detail))
            }
            Err(_) => Ok(false),
        })?;
        Ok(Self {
            subject,
            fingerprints,
        })
    }

    fn attributes(&self) -> impl Iterator<Item = Attribute> {
        self.subject.attributes().chain(
            self.fingerprints
                .iter()
                .map(|(attribute, _)| attribute.clone()),
        )
    }

    /// Fails if an attribute is not part of the key, because it would have no effect.
    pub(super) fn check_is_key(
        &self,
        key: &PolicyKey,
        identity: &IdentityConfig,
    ) -> Result<(), Problem> {
        let is_part = |given: &Attribute| {
            key.by.iter().any(|part| makes_part(given, part, identity))
                || key.is_by_address && *given == Attribute::Ip
        };
        let Some(other) = self.attributes().find(|given| !is_part(given)) else {
            return Ok(());
        };
        let policy = quoted(&key.policy);
        let other = quoted(&other.to_string());
        let detail = match &*key.by {
            [] => format!("the policy {policy} has one bucket for all requests; remove {other}"),
            by => format!(
                "the policy {policy} counts by {}, and {other} is not in its key; remove it",
                by.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" and ")
            ),
        };
        Err(invalid(detail))
    }

    /// Fails if no policy uses an attribute.
    pub(super) fn check_is_known(&self, known: &[&Attribute]) -> Result<(), Problem> {
        let is_known = |given: &Attribute| given.is_built_in() || known.contains(&given);
        let Some(other) = self.attributes().find(|given| !is_known(given)) else {
            return Ok(());
        };
        let known: Vec<String> = known
            .iter()
            .map(|known| quoted(&known.to_string()))
            .collect();
        Err(invalid(format!(
            "no policy uses {}; attributes in use: {}",
            quoted(&other.to_string()),
            known.join(", ")
        )))
    }

    /// Replaces fingerprints by values seen here recently.
    pub(super) fn with_values<C: Clock>(
        self,
        admin: &Admin<C>,
    ) -> Result<CheckSubject<'a>, Problem> {
        let Self {
            mut subject,
            fingerprints,
        } = self;
        for (attribute, fingerprint) in fingerprints {
            let is_added = match admin
                .app()
                .engine
                .operator()
                .value_seen(&attribute, fingerprint)
            {
                Some(SeenValue::Value(value)) => subject.add(&attribute, &value),
                // Requests without the attribute are counted by their address.
                Some(SeenValue::Address(address)) => {
                    subject.add_address(address).map_err(|other| {
                    invalid(format!(
                        "`{attribute}` is {fingerprint}, a key counted by an address instead of {attribute}, and `ip` is \
                         another address, {other}; remove `ip`"
                    ))
                })?;
                    true
                }
                Some(SeenValue::Missing) => true,
                _ => false,
            };
            if !is_added {
                let not_seen = OverrideError::NotSeen(format!("{attribute}={fingerprint}"));
                return Err(Problem::new(Code::NotFound, not_seen.to_string()));
            }
        }
        Ok(subject)
    }
}

/// Whether an attribute is a part of a key, or needed for one.
fn makes_part(given: &Attribute, part: &Attribute, identity: &IdentityConfig) -> bool {
    let is_header = |name: Option<&str>| name.is_some_and(|name| *given == Attribute::header(name));
    given == part
        || match part {
            Attribute::Endpoint => matches!(given, Attribute::Method | Attribute::Path),
            Attribute::User => is_header(identity.user.as_ref().map(|user| &*user.header)),
            Attribute::ApiKey => is_header(identity.api_key.as_deref()),
            _ => false,
        }
}

//! Who an operator means: by values, and by fingerprints of what the operator was shown.

use super::Admin;
use crate::api::check_request::CheckSubject;
use crate::api::json::{Fields, invalid};
use crate::api::{Code, Problem, quoted};
use ratekeeper::Clock;
use ratekeeper_policy::config::IdentityConfig;
use ratekeeper_policy::{
    Attribute, engine::OverrideError, engine::PolicyKey, engine::SeenValue,
    fingerprint::Fingerprint,
};

/// The field `subject` of a request of an operator.
pub(super) struct Selected<'a> {
    pub(super) who: CheckSubject<'a>,
    pub(super) fingerprints: Vec<(Attribute, Fingerprint)>,
}

impl<'a> Selected<'a> {
    pub(super) fn read(fields: &mut Fields<'a>) -> Result<Self, Problem> {
        let mut fingerprints: Vec<(Attribute, Fingerprint)> = Vec::new();
        let who = CheckSubject::read_except(fields, |attribute, text| match text.parse() {
            Ok(fingerprint) => {
                fingerprints.push((attribute, fingerprint));
                Ok(true)
            }
            Err(error)
                if Fingerprint::is_meant_by(text)
                    || attribute.is_secret() && text.starts_with('#') =>
            {
                let detail = format!(
                    "`{attribute}` is {}, which is no fingerprint: {error}",
                    quoted(text)
                );
                Err(invalid(detail))
            }
            Err(_) => Ok(false),
        })?;
        Ok(Self { who, fingerprints })
    }

    fn attributes(&self) -> impl Iterator<Item = Attribute> {
        self.who.attributes().chain(
            self.fingerprints
                .iter()
                .map(|(attribute, _)| attribute.clone()),
        )
    }

    /// An error if something is said that is no part of the key: what is done would not depend on
    /// it.
    pub(super) fn check_is_key(
        &self,
        key: &PolicyKey,
        identity: &IdentityConfig,
    ) -> Result<(), Problem> {
        let is_part = |given: &Attribute| {
            key.by.iter().any(|part| makes(given, part, identity))
                || key.is_by_address && *given == Attribute::Ip
        };
        let Some(other) = self.attributes().find(|given| !is_part(given)) else {
            return Ok(());
        };
        let (policy, other, by) = (quoted(&key.policy), quoted(&other.to_string()), &*key.by);
        let detail = match by {
            [] => format!(
                "the policy {policy} has one bucket for all, which {other} is no part of; leave it out"
            ),
            by => format!(
                "the policy {policy} counts by {}, and {other} is no part of its key; leave it out",
                by.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" and ")
            ),
        };
        Err(invalid(detail))
    }

    /// An error if something is said that no policy looks at.
    pub(super) fn check_is_known(&self, known: &[&Attribute]) -> Result<(), Problem> {
        let is_known = |given: &Attribute| given.is_built_in() || known.contains(&given);
        let Some(other) = self.attributes().find(|given| !is_known(given)) else {
            return Ok(());
        };
        let known: Vec<String> = known
            .iter()
            .map(|known| quoted(&known.to_string()))
            .collect();
        let (other, known) = (quoted(&other.to_string()), known.join(", "));
        Err(invalid(format!(
            "no policy counts by {other} or looks at it; they do at {known}"
        )))
    }

    /// The values in place of the fingerprints, where they were seen here lately.
    pub(super) fn with_values<C: Clock>(
        self,
        admin: &Admin<C>,
    ) -> Result<CheckSubject<'a>, Problem> {
        let Self {
            mut who,
            fingerprints,
        } = self;
        for (attribute, fingerprint) in fingerprints {
            let is_added = match admin.app().engine.value_seen(&attribute, fingerprint) {
                Some(SeenValue::Value(value)) => who.add(&attribute, &value),
                // Requests without the attribute are counted by it: one with this address is one
                // of them.
                Some(SeenValue::Address(address)) => {
                    who.add_address(address).map_err(|other| {
                    invalid(format!(
                        "`{attribute}` is {fingerprint}, a key counted by an address in place of {attribute}, and `ip` is \
                         {other}, another address; leave `ip` out"
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
        Ok(who)
    }
}

/// Whether what is given makes a part of a key, or a half of it.
fn makes(given: &Attribute, part: &Attribute, identity: &IdentityConfig) -> bool {
    let is_header = |name: Option<&str>| name.is_some_and(|name| *given == Attribute::header(name));
    given == part
        || match part {
            Attribute::Endpoint => matches!(given, Attribute::Method | Attribute::Path),
            Attribute::User => is_header(identity.user.as_ref().map(|user| &*user.header)),
            Attribute::ApiKey => is_header(identity.api_key.as_deref()),
            _ => false,
        }
}

//! Warnings about attributes that policies use, but neither `ratekeeper proxy` nor forward-auth
//! provides.

use super::IdentityConfig;
use crate::attribute::Attribute;
use crate::matching::Match;
use crate::policies::Policies;
use crate::policy::{Cost, Limits, Missing, Policy};

impl IdentityConfig {
    /// Whether requests in `ratekeeper proxy` and at `/auth` can have this attribute: every request
    /// has it, or a header is configured for it.
    pub fn provides(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::User => self.user.is_some(),
            Attribute::ApiKey => self.api_key.is_some(),
            Attribute::Plan | Attribute::Tenant => false,
            Attribute::Custom(name) => match &**name {
                "class" => self.class.is_some(),
                "start" => self.start.is_some(),
                _ => false,
            },
            Attribute::Ip
            | Attribute::Method
            | Attribute::Path
            | Attribute::Host
            | Attribute::Endpoint
            | Attribute::Header(_) => true,
        }
    }

    /// Warnings about attributes that policies use, but no request in `ratekeeper proxy` or at
    /// `/auth` has: one sentence each, with the consequence.
    pub fn unprovided(&self, policies: &Policies) -> Vec<String> {
        let mut warnings = Vec::new();
        for policy in &policies.policies {
            self.unprovided_by(policy, &mut warnings);
        }
        for (list, entries) in [("allow", &policies.allow), ("deny", &policies.deny)] {
            for attribute in entries
                .iter()
                .filter_map(|entry| self.unmatched(&entry.matching))
            {
                warnings.push(self.warning(
                    &format!("an entry of [[{list}]] matches"),
                    attribute,
                    "the entry never matches",
                ));
            }
        }
        warnings
    }

    /// Adds the warnings about one policy.
    fn unprovided_by(&self, policy: &Policy, warnings: &mut Vec<String>) {
        let lacks = |attribute: &&Attribute| !self.provides(attribute);
        let name = &policy.name;
        if let Some(attribute) = self.unmatched(&policy.matching) {
            let usage = format!("the policy `{name}` matches");
            warnings.push(self.warning(&usage, attribute, "the policy never applies"));
            return;
        }
        if let Some(attribute) = policy.key.iter().find(lacks) {
            let then = match policy.missing {
                Missing::Address => "requests are counted by their address instead",
                Missing::Skip => "the policy never applies",
                Missing::Shared => "all requests share one bucket",
                Missing::Deny => "every request is denied",
            };
            warnings.push(self.warning(&format!("the policy `{name}` counts"), attribute, then));
        }
        if let Limits::Plan { attribute, default } = &policy.limits
            && lacks(&attribute)
        {
            let then = match default {
                Some(plan) => format!("every request has the plan `{plan}`"),
                None => "the policy never applies".to_owned(),
            };
            warnings.push(self.warning(
                &format!("the policy `{name}` chooses the plan"),
                attribute,
                &then,
            ));
        }
        if let Cost::Attribute { attribute, default } = &policy.cost
            && lacks(&attribute)
        {
            let then = format!("every request costs {default}");
            warnings.push(self.warning(
                &format!("the policy `{name}` takes the cost"),
                attribute,
                &then,
            ));
        }
        if let Some(class) = policy
            .reserves
            .as_ref()
            .filter(|class| lacks(&&class.attribute))
        {
            let then = match &class.default {
                Some(class) => format!("every request has the class `{class}`"),
                None => "no request leaves a reserve to others".to_owned(),
            };
            warnings.push(self.warning(
                &format!("the policy `{name}` chooses the class"),
                &class.attribute,
                &then,
            ));
        }
    }

    /// An attribute without which the conditions never hold. Conditions under `not` may hold.
    fn unmatched<'a>(&self, matching: &'a Match) -> Option<&'a Attribute> {
        matching
            .attributes
            .iter()
            .map(|(attribute, _)| attribute)
            .find(|attribute| !self.provides(attribute))
    }

    /// The warning for one attribute.
    fn warning(&self, usage: &str, attribute: &Attribute, then: &str) -> String {
        let fix = match attribute {
            Attribute::User | Attribute::ApiKey => {
                format!("name its header as `{attribute}` in [identity]")
            }
            Attribute::Custom(name) if **name == *"class" => {
                "name its header as `header` in [shed]".to_owned()
            }
            _ => "only callers of POST /v1/check and similar APIs can send it".to_owned(),
        };
        format!(
            "{usage} by `{attribute}`, but no request in `ratekeeper proxy` or at /auth/* has this \
             attribute, so {then}; {fix}"
        )
    }
}

//! Attributes that policies use and neither `ratekeeper proxy` nor forward-auth provides.

use super::Identity;
use crate::attribute::Attribute;
use crate::matching::Match;
use crate::policies::Policies;
use crate::policy::{Cost, Limits, Missing, Policy};

impl Identity {
    /// Whether requests in `ratekeeper proxy` and at `/auth` can have this attribute: a header names it, or every
    /// request has it.
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

    /// What happens in `ratekeeper proxy` and at `/auth` for lack of attributes that policies use
    /// and no request there has; a sentence each.
    pub fn unprovided(&self, policies: &Policies) -> Vec<String> {
        let mut found = Vec::new();
        for policy in &policies.policies {
            self.unprovided_by(policy, &mut found);
        }
        for (list, entries) in [("allow", &policies.allow), ("deny", &policies.deny)] {
            for attribute in entries
                .iter()
                .filter_map(|entry| self.unmatched(&entry.matching))
            {
                found.push(self.sentence(
                    &format!("an entry of [[{list}]] matches"),
                    attribute,
                    "it never matches",
                ));
            }
        }
        found
    }

    fn unprovided_by(&self, policy: &Policy, found: &mut Vec<String>) {
        let lacks = |attribute: &&Attribute| !self.provides(attribute);
        let name = &policy.name;
        if let Some(attribute) = self.unmatched(&policy.matching) {
            let what = format!("the policy `{name}` matches");
            found.push(self.sentence(&what, attribute, "it applies to no request"));
            return;
        }
        if let Some(attribute) = policy.key.iter().find(lacks) {
            let then = match policy.missing {
                Missing::Address => "requests are counted by their address instead",
                Missing::Skip => "it applies to no request",
                Missing::Shared => "all requests share one bucket",
                Missing::Deny => "it denies every request",
            };
            found.push(self.sentence(&format!("the policy `{name}` counts"), attribute, then));
        }
        if let Limits::Plan { attribute, default } = &policy.limits
            && lacks(&attribute)
        {
            let then = match default {
                Some(plan) => format!("every request has the plan `{plan}`"),
                None => "it applies to no request".to_owned(),
            };
            found.push(self.sentence(
                &format!("the policy `{name}` chooses the plan"),
                attribute,
                &then,
            ));
        }
        if let Cost::Attribute { attribute, default } = &policy.cost
            && lacks(&attribute)
        {
            let then = format!("every request costs {default}");
            found.push(self.sentence(
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
                Some(class) => format!("every request is of the class `{class}`"),
                None => "no request leaves anything to others".to_owned(),
            };
            found.push(self.sentence(
                &format!("the policy `{name}` tells classes"),
                &class.attribute,
                &then,
            ));
        }
    }

    /// An attribute for lack of which conditions never hold. Those under `not` may.
    fn unmatched<'a>(&self, when: &'a Match) -> Option<&'a Attribute> {
        when.attributes
            .iter()
            .map(|(attribute, _)| attribute)
            .find(|attribute| !self.provides(attribute))
    }

    fn sentence(&self, what: &str, attribute: &Attribute, then: &str) -> String {
        let mend = match attribute {
            Attribute::User | Attribute::ApiKey => {
                format!("name its header as `{attribute}` in [identity]")
            }
            Attribute::Custom(name) if **name == *"class" => {
                "name its header as `header` in [shed]".to_owned()
            }
            _ => "only callers of POST /v1/check and the like send it".to_owned(),
        };
        format!(
            "{what} by {attribute}, which no request has in `ratekeeper proxy` or at /auth/*, so {then}; {mend}"
        )
    }
}

//! Unknown attributes in requests: most often misspelled names, which count as if the right
//! attribute was missing.

use crate::config::{IdentityConfig, UnknownAttributeError, known_attribute};
use arc_swap::ArcSwap;
use std::sync::Arc;

/// Number of names that are remembered: callers choose them.
const MAX_NAMES: usize = 16;

/// The unknown attributes in requests since the configuration was loaded.
#[derive(Default)]
pub(crate) struct UnknownAttributes(ArcSwap<Vec<(String, UnknownAttributeError)>>);

impl UnknownAttributes {
    /// Logs the names that are neither built in nor declared, each once.
    #[inline]
    pub(crate) fn note<'a>(&self, names: impl Iterator<Item = &'a str>, identity: &IdentityConfig) {
        for name in names {
            let is_declared = || identity.attributes.iter().any(|known| known == name);
            if !is_built_in(name) && !is_declared() {
                self.add(name, identity);
            }
        }
    }

    #[cold]
    fn add(&self, name: &str, identity: &IdentityConfig) {
        let is_noted = |noted: &[(String, UnknownAttributeError)]| {
            noted.len() >= MAX_NAMES || noted.iter().any(|(known, _)| known == name)
        };
        if is_noted(&self.0.load()) {
            return;
        }
        let Err(error) = known_attribute(name, &identity.attributes) else {
            return;
        };
        let noted = self.0.rcu(|noted| {
            let mut noted = Vec::clone(noted);
            if !is_noted(&noted) {
                noted.push((name.to_owned(), error.clone()));
            }
            noted
        });
        // Only the thread that added it logs it.
        if !is_noted(&noted) {
            tracing::warn!("{}", sentence(&error));
        }
    }

    /// A sentence for each, for the log and the admin page.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let noted = self.0.load();
        noted.iter().map(|(_, error)| sentence(error)).collect()
    }

    /// Forgets all names, after the configuration has changed.
    pub(crate) fn clear(&self) {
        self.0.store(Arc::default());
    }
}

fn is_built_in(name: &str) -> bool {
    matches!(
        name,
        "user" | "method" | "path" | "api_key" | "plan" | "tenant" | "host" | "endpoint" | "ip"
    ) || matches!(name, "class" | "start" | "deadline")
}

fn sentence(error: &UnknownAttributeError) -> String {
    format!("requests with an unknown attribute: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn names_are_noted_once_and_their_number_is_limited() {
        let noted = UnknownAttributes::default();
        let file = "[identity]\nattributes = [\"region\"]\n";
        let identity = Config::parse("ratekeeper.toml", file, [])
            .config
            .unwrap()
            .identity;
        noted.note(
            ["user", "region", "class", "usr", "usr"].into_iter(),
            &identity,
        );
        assert_eq!(
            noted.sentences(),
            [
                "requests with an unknown attribute: unknown attribute `usr`; did you mean `user`? If it is one of your \
                 own, add attributes = [\"usr\"] in [identity]"
            ]
        );
        for number in 0..100 {
            noted.note([&*format!("own{number}")].into_iter(), &identity);
        }
        assert_eq!(noted.sentences().len(), MAX_NAMES);
        noted.clear();
        assert!(noted.sentences().is_empty());
    }

    #[test]
    fn built_in_names_are_those_of_the_policies() {
        for name in [
            "user", "api_key", "class", "start", "deadline", "ip", "usr", "tenants",
        ] {
            assert_eq!(
                is_built_in(name),
                known_attribute(name, &[]).is_ok(),
                "{name}"
            );
        }
    }
}

//! The secret that keys are named by: the operator's, or one that the nodes agree on through Redis.
//!
//! Whoever comes first leaves its own; the others take that. Where the operator chose one, only its
//! hash is left, so that a node with another is noticed.

use crate::key::Secret;
use crate::random::random_bytes;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::{PoisonError, RwLock};

pub(crate) struct FleetSecret {
    /// What this node would have it be, as it is left in Redis.
    offer: String,
    chosen: bool,
    inner: RwLock<State>,
}

struct State {
    secret: Option<Secret>,
    /// What it was made of, if it was agreed on.
    agreed: Option<String>,
    /// What was seen in Redis last.
    seen: Vec<u8>,
}

/// What the fleet's secret is to this node.
pub(crate) enum SecretKnowledge {
    Same,
    /// It is another, and there is nothing this node can do about it; what to do.
    Differs(&'static str),
    /// What is there is nobody's secret.
    Spoilt,
}

const PLAIN: &str = "plain:";
const HASH: &str = "hash:";

impl FleetSecret {
    /// The operator's own, or one to agree on.
    pub(crate) fn new(chosen: Option<&str>) -> Self {
        let (offer, secret) = match chosen {
            Some(chosen) => (
                format!("{HASH}{}", hex(&Sha256::digest(chosen.as_bytes()))),
                Some(Secret::new(chosen.as_bytes())),
            ),
            None => (format!("{PLAIN}{}", hex(&random_bytes::<32>())), None),
        };
        Self {
            offer,
            chosen: chosen.is_some(),
            inner: RwLock::new(State {
                secret,
                agreed: None,
                seen: Vec::new(),
            }),
        }
    }

    pub(crate) fn offer(&self) -> String {
        // What was agreed on once is offered again, should Redis have lost it.
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.agreed.as_ref().unwrap_or(&self.offer).clone()
    }

    pub(crate) fn get(&self) -> Option<Secret> {
        self.inner
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .secret
            .clone()
    }

    /// What Redis says it is.
    pub(crate) fn seen(&self, stored: &[u8]) -> SecretKnowledge {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if ![PLAIN, HASH]
            .iter()
            .any(|kind| stored.starts_with(kind.as_bytes()))
        {
            return SecretKnowledge::Spoilt;
        }
        if inner.seen == stored {
            return SecretKnowledge::Same;
        }
        inner.seen = stored.to_vec();
        match (self.chosen, stored.starts_with(PLAIN.as_bytes())) {
            (true, _) if stored == self.offer.as_bytes() => SecretKnowledge::Same,
            (true, _) => SecretKnowledge::Differs(
                "another node of this prefix goes by another key_secret, so their buckets are not shared; give all nodes \
                 the same one, or another prefix, and DEL the key that ends in :secret",
            ),
            (false, true) => {
                inner.secret = Some(Secret::new(stored));
                inner.agreed = Some(String::from_utf8_lossy(stored).into_owned());
                SecretKnowledge::Same
            }
            (false, false) => {
                // Those who have agreed on one stay together.
                inner
                    .secret
                    .get_or_insert_with(|| Secret::new(self.offer.as_bytes()));
                SecretKnowledge::Differs(
                    "other nodes of this prefix go by a key_secret and this one has none, so their buckets are not shared; \
                     set [store] key_secret here too",
                )
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

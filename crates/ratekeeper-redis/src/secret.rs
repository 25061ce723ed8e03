//! The secret that keys are hashed with: the operator's, or one that the nodes agree on through
//! Redis.
//!
//! The first node stores its own secret and the others adopt it. If the operator chose one, only
//! its hash is stored, so that a node with another one is noticed.

use crate::key::Secret;
use crate::random::random_bytes;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::{PoisonError, RwLock};

/// The secret that the nodes of a fleet share.
pub(crate) struct FleetSecret {
    /// What this node offers to store in Redis.
    offer: String,
    chosen: bool,
    state: RwLock<SecretState>,
}

/// What is known of the secret.
struct SecretState {
    secret: Option<Secret>,
    /// The stored text of the secret that the nodes agreed on.
    agreed: Option<String>,
    /// What Redis had at the last check.
    last_stored: Vec<u8>,
}

/// How the stored secret compares with this node's.
pub(crate) enum SecretCheck {
    Same,
    /// It differs, and the operator has to act; what to do.
    Differs(&'static str),
    /// The stored value is not a secret.
    Invalid,
}

/// The stored value is the secret itself, or with `HASH` the hash of the operator's.
const PLAIN: &str = "plain:";
const HASH: &str = "hash:";

impl FleetSecret {
    /// With the operator's secret, or with a random one to agree on.
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
            state: RwLock::new(SecretState {
                secret,
                agreed: None,
                last_stored: Vec::new(),
            }),
        }
    }

    pub(crate) fn offer(&self) -> String {
        // The agreed secret is offered again, in case Redis has lost it.
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.agreed.as_ref().unwrap_or(&self.offer).clone()
    }

    pub(crate) fn get(&self) -> Option<Secret> {
        self.state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .secret
            .clone()
    }

    /// Compares the secret stored in Redis with this node's, and adopts it if this node has none of
    /// the operator's.
    pub(crate) fn check(&self, stored: &[u8]) -> SecretCheck {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if ![PLAIN, HASH]
            .iter()
            .any(|kind| stored.starts_with(kind.as_bytes()))
        {
            return SecretCheck::Invalid;
        }
        if state.last_stored == stored {
            return SecretCheck::Same;
        }
        state.last_stored = stored.to_vec();
        match (self.chosen, stored.starts_with(PLAIN.as_bytes())) {
            (true, _) if stored == self.offer.as_bytes() => SecretCheck::Same,
            (true, _) => SecretCheck::Differs(
                "another node of this prefix uses another key_secret, so their buckets are not shared; give all nodes \
                 the same one, or another prefix, and DEL the key that ends in :secret",
            ),
            (false, true) => {
                state.secret = Some(Secret::new(stored));
                state.agreed = Some(String::from_utf8_lossy(stored).into_owned());
                SecretCheck::Same
            }
            (false, false) => {
                // Nodes that have agreed on a secret keep it.
                state
                    .secret
                    .get_or_insert_with(|| Secret::new(self.offer.as_bytes()));
                SecretCheck::Differs(
                    "other nodes of this prefix use a key_secret and this one has none, so their buckets are not shared; \
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

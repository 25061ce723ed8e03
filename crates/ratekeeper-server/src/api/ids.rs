//! Reservation ids: a receipt, its expiry, and a signature over both.
//!
//! Any node with the same secret accepts them: the operator's, or one that the nodes share through
//! Redis. A store in memory accepts only its own. Ids are signed, not encrypted: a client can read
//! the names of limits and the hashes of keys in them.

use crate::config::Secret;
use crate::store::AnyStore;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ratekeeper::{Clock, Store, Timestamp};
use ratekeeper_policy::random::random_bytes;
use sha2::Sha256;

/// Domain separation: the derived secret differs from those for other purposes.
const PURPOSE: &str = "ratekeeper ids 1";

/// Version of the layout, in the first byte.
const VERSION: u8 = 1;

/// Length of the signature: 128 bits cannot be guessed.
const SIGNATURE_BYTES: usize = 16;

/// Length of the header before the receipt: the version, and the expiry in nanoseconds.
const HEADER_BYTES: usize = 9;

/// Length limit of an id, more than any receipt needs. Longer ids are not decoded.
const MAX_ID_BYTES: usize = 16 * 1024;

/// Signs and verifies reservation ids.
pub(crate) struct Ids {
    /// The secret from the configuration.
    configured: Option<[u8; 32]>,
    /// A random secret of this process, used while there is no other.
    own: [u8; 32],
}

/// The reason why an id is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdError {
    Malformed,
    Forged,
    Expired,
}

impl Ids {
    pub(crate) fn new(configured: Option<&Secret>) -> Self {
        let configured = configured.map(|secret| {
            let mut mac = keyed(secret.reveal().as_bytes());
            mac.update(PURPOSE.as_bytes());
            mac.finalize().into_bytes().into()
        });
        Self {
            configured,
            own: random_bytes(),
        }
    }

    /// Secrets in order of preference: the configured one, the fleet's, this process's own.
    fn secrets<C: Clock>(&self, store: &AnyStore<C>) -> impl Iterator<Item = [u8; 32]> {
        let shared = match store {
            AnyStore::Redis(redis) if self.configured.is_none() => redis.shared_secret(PURPOSE),
            _ => None,
        };
        [self.configured, shared, Some(self.own)]
            .into_iter()
            .flatten()
    }

    pub(crate) fn sign<C: Clock>(
        &self,
        store: &AnyStore<C>,
        until: Timestamp,
        receipt: &[u8],
    ) -> String {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + receipt.len() + SIGNATURE_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&until.as_unix_nanos().to_be_bytes());
        bytes.extend_from_slice(receipt);
        let mut mac = keyed(&self.secrets(store).next().unwrap_or(self.own));
        mac.update(&bytes);
        bytes.extend_from_slice(&mac.finalize().into_bytes()[..SIGNATURE_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Verifies an id and its expiry, and returns the receipt.
    pub(crate) fn open<C: Clock>(&self, store: &AnyStore<C>, id: &str) -> Result<Vec<u8>, IdError> {
        if id.len() > MAX_ID_BYTES {
            return Err(IdError::Malformed);
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(id).map_err(|_| IdError::Malformed)?;
        if bytes.len() < HEADER_BYTES + SIGNATURE_BYTES || bytes[0] != VERSION {
            return Err(IdError::Malformed);
        }
        let signature = bytes.split_off(bytes.len() - SIGNATURE_BYTES);
        let is_by = |secret: [u8; 32]| {
            let mut mac = keyed(&secret);
            mac.update(&bytes);
            // In constant time.
            mac.verify_truncated_left(&signature).is_ok()
        };
        if !self.secrets(store).any(is_by) {
            return Err(IdError::Forged);
        }
        let until = bytes[1..HEADER_BYTES]
            .iter()
            .fold(0, |until, byte| until << 8 | u64::from(*byte));
        if store.now() >= Timestamp::from_unix_nanos(until) {
            return Err(IdError::Expired);
        }
        Ok(bytes.split_off(HEADER_BYTES))
    }
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(secret) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC accepts a key of any length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ratekeeper::{ManualClock, MemoryStore};
    use std::time::Duration;

    fn store() -> (AnyStore<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        (
            AnyStore::Memory(
                MemoryStore::builder()
                    .max_keys(10)
                    .clock(clock.clone())
                    .build(),
            ),
            clock,
        )
    }

    #[test]
    fn an_id_is_valid_until_it_expires() {
        let ((store, clock), ids) = (store(), Ids::new(None));
        let id = ids.sign(&store, clock.now() + Duration::from_secs(1), b"receipt");
        clock.advance(Duration::from_nanos(999_999_999));
        assert_eq!(ids.open(&store, &id).as_deref(), Ok(&b"receipt"[..]));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(ids.open(&store, &id), Err(IdError::Expired));
    }

    #[test]
    fn nodes_with_the_same_secret_accept_it() {
        let (store, clock) = store();
        let [mine, same, other] = ["0123456789abcdef", "0123456789abcdef", "0123456789abcdeg"]
            .map(|secret| Ids::new(Some(&Secret::new(secret))));
        let id = mine.sign(&store, clock.now() + Duration::from_secs(1), b"receipt");
        assert_eq!(same.open(&store, &id).as_deref(), Ok(&b"receipt"[..]));
        for stranger in [other, Ids::new(None), Ids::new(None)] {
            assert_eq!(stranger.open(&store, &id), Err(IdError::Forged));
        }
    }

    proptest! {
        #[test]
        fn only_unchanged_signed_ids_are_accepted(
            receipt in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let ((store, clock), ids) = (store(), Ids::new(None));
            let id = ids.sign(&store, clock.now() + Duration::from_secs(1), &receipt);
            prop_assert_eq!(ids.open(&store, &id), Ok(receipt));
            prop_assert!(ids.open(&store, &id[..cut.index(id.len())]).is_err());
            for longer in [id.clone() + "A", id.clone() + "="] {
                prop_assert!(ids.open(&store, &longer).is_err());
            }
            let mut bytes = URL_SAFE_NO_PAD.decode(&id).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(ids.open(&store, &URL_SAFE_NO_PAD.encode(bytes)).is_err());
        }

        #[test]
        fn arbitrary_text_is_rejected(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let ((store, _), ids) = (store(), Ids::new(None));
            prop_assert!(ids.open(&store, &text).is_err());
            prop_assert!(ids.open(&store, &URL_SAFE_NO_PAD.encode(&bytes)).is_err());
        }
    }
}

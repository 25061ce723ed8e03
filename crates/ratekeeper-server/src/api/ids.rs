//! The ids of reservations: a receipt, until when it can be settled, and a signature over both.
//!
//! Any node that knows the secret takes them: the operator's, or one that the nodes share through
//! Redis. A store in memory knows its own receipts only, and so does its secret. They are signed,
//! not sealed: who has one can read what it says, which is the names of limits and hashes of keys.

use crate::store::AnyStore;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ratekeeper::{Clock, Store, Timestamp};
use ratekeeper_policy::config::Secret;
use ratekeeper_policy::random::random_bytes;
use sha2::Sha256;

/// What the secret is for, so that it is none that signs or hashes anything else.
const PURPOSE: &str = "ratekeeper ids 1";

/// The first byte: what follows is laid out so.
const VERSION: u8 = 1;

/// The bytes of a signature: nobody guesses 128 bits.
const SIGNATURE: usize = 16;

/// The bytes before the receipt: the version, and until when, in nanoseconds.
const HEAD: usize = 9;

/// Longer than any receipt: what is longer is not even looked at.
const LONGEST: usize = 16 * 1024;

/// Signs ids, and knows its own.
pub(crate) struct Ids {
    /// The operator's secret.
    chosen: Option<[u8; 32]>,
    /// This process's own, while there is no other.
    own: [u8; 32],
}

/// Why an id is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdError {
    Unreadable,
    Forged,
    Expired,
}

impl Ids {
    pub(crate) fn new(chosen: Option<&Secret>) -> Self {
        let chosen = chosen.map(|secret| {
            let mut mac = keyed(secret.reveal().as_bytes());
            mac.update(PURPOSE.as_bytes());
            mac.finalize().into_bytes().into()
        });
        Self {
            chosen,
            own: random_bytes(),
        }
    }

    /// What signs: the operator's, the fleet's, or this process's own, in this order.
    fn secrets<C: Clock>(&self, store: &AnyStore<C>) -> impl Iterator<Item = [u8; 32]> {
        let shared = match store {
            AnyStore::Redis(redis) if self.chosen.is_none() => redis.shared_secret(PURPOSE),
            _ => None,
        };
        [self.chosen, shared, Some(self.own)].into_iter().flatten()
    }

    pub(crate) fn sign<C: Clock>(
        &self,
        store: &AnyStore<C>,
        until: Timestamp,
        receipt: &[u8],
    ) -> String {
        let mut bytes = Vec::with_capacity(HEAD + receipt.len() + SIGNATURE);
        bytes.push(VERSION);
        bytes.extend_from_slice(&until.as_unix_nanos().to_be_bytes());
        bytes.extend_from_slice(receipt);
        let mut mac = keyed(&self.secrets(store).next().unwrap_or(self.own));
        mac.update(&bytes);
        bytes.extend_from_slice(&mac.finalize().into_bytes()[..SIGNATURE]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The receipt of an id that was signed by this service and has not expired.
    pub(crate) fn open<C: Clock>(&self, store: &AnyStore<C>, id: &str) -> Result<Vec<u8>, IdError> {
        if id.len() > LONGEST {
            return Err(IdError::Unreadable);
        }
        let mut bytes = URL_SAFE_NO_PAD
            .decode(id)
            .map_err(|_| IdError::Unreadable)?;
        if bytes.len() < HEAD + SIGNATURE || bytes[0] != VERSION {
            return Err(IdError::Unreadable);
        }
        let signature = bytes.split_off(bytes.len() - SIGNATURE);
        let is_by = |secret: [u8; 32]| {
            let mut mac = keyed(&secret);
            mac.update(&bytes);
            // In the same time, whatever is different.
            mac.verify_truncated_left(&signature).is_ok()
        };
        if !self.secrets(store).any(is_by) {
            return Err(IdError::Forged);
        }
        let until = bytes[1..HEAD]
            .iter()
            .fold(0, |until, byte| until << 8 | u64::from(*byte));
        if store.now() >= Timestamp::from_unix_nanos(until) {
            return Err(IdError::Expired);
        }
        Ok(bytes.split_off(HEAD))
    }
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(secret) {
        Ok(mac) => mac,
        Err(_) => unreachable!("a key of any length is taken"),
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
    fn an_id_is_good_until_its_time_is_over() {
        let ((store, clock), ids) = (store(), Ids::new(None));
        let id = ids.sign(&store, clock.now() + Duration::from_secs(1), b"receipt");
        clock.advance(Duration::from_nanos(999_999_999));
        assert_eq!(ids.open(&store, &id).as_deref(), Ok(&b"receipt"[..]));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(ids.open(&store, &id), Err(IdError::Expired));
    }

    #[test]
    fn who_has_the_secret_takes_it() {
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
        fn what_is_signed_is_opened_and_nothing_else_is(
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
        fn no_text_is_an_id_by_chance(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let ((store, _), ids) = (store(), Ids::new(None));
            prop_assert!(ids.open(&store, &text).is_err());
            prop_assert!(ids.open(&store, &URL_SAFE_NO_PAD.encode(&bytes)).is_err());
        }
    }
}

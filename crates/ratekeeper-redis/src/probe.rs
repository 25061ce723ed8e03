//! Probes: decisions that nobody asked for, which tell whether Redis decides, and in time.
//!
//! A heartbeat tells less: it has more time, is another script, and goes over a connection of its
//! own. So a server that failed decisions is well again only when it has made some.

use crate::batched_connection::BatchHandle;
use crate::health::Health;
use crate::script::amend::{Amend, Amendment};
use crate::script::decide::{Question, Questions};
use crate::store_error::StoreError;
use ratekeeper::{Mode, limit::MicrosLimit};
use std::sync::Arc;
use std::time::Duration;

/// How long the first of them may take: a connection may have to be made for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// So many in a row must be made in time where the server has failed.
const IN_A_ROW: u32 = 3;
/// Of so many.
const TRIES: u32 = 6;

/// The key that is asked about: of its own, and gone within milliseconds.
pub(crate) fn key(prefix: &str, number: u32) -> String {
    format!("{prefix}:probe:b:{{{number}}}")
}

/// A question like that of any caller. It is charged, since a server that cannot write decides
/// nothing.
pub(crate) fn questions(key: &str) -> Questions {
    let limit = MicrosLimit::Bucket {
        per_micro: 1,
        token: 1,
        capacity: 1_000_000,
        refundable: false,
    };
    let (key, mode) = (Arc::from(key.as_bytes()), Mode::Enforce);
    Arc::new([Question {
        key,
        limit,
        cost: 1,
        reserve: 0,
        mode,
        wait: None,
        permits: Vec::new(),
        lease: None,
    }])
}

/// Looks whether decisions are made on each of these connections within the time that callers give
/// them, and notes it.
pub(crate) async fn run(
    health: &Health,
    doors: impl Iterator<Item = &BatchHandle>,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
) -> Result<(), StoreError> {
    let is_well = health.is_well_itself();
    let in_a_row = if is_well { 1 } else { IN_A_ROW };
    for door in doors {
        if let Err(trouble) = ask(door, questions, slot, timeout.min(PATIENCE), in_a_row).await {
            health.broke(&trouble);
            return Err(trouble);
        }
    }
    if !is_well {
        health.well_again();
    }
    Ok(())
}

/// A busy machine may miss some of them.
async fn ask(
    door: &BatchHandle,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
    in_a_row: u32,
) -> Result<(), StoreError> {
    once(door, questions, slot, PATIENCE).await?;
    amend(door, &questions[0], slot).await?;
    let mut made = 0;
    for tried in 1..=TRIES {
        match once(door, questions, slot, timeout).await {
            Ok(()) => made += 1,
            Err(StoreError::TimedOut) if tried + in_a_row <= TRIES => made = 0,
            Err(trouble) => return Err(trouble),
        }
        if made == in_a_row {
            break;
        }
    }
    Ok(())
}

/// An amendment that changes nothing. Without the right to run that script refunds are lost. And
/// once the server knows it, a refund is never sent a second time, with its text, behind decisions
/// that were queued after it.
async fn amend(door: &BatchHandle, question: &Question, slot: u16) -> Result<(), StoreError> {
    let amendment = Amendment {
        key: Arc::clone(&question.key),
        limit: question.limit,
        what: Amend::ChargeMore(0),
    };
    door.probe_amendment(amendment, slot, PATIENCE)?
        .await
        .unwrap_or(Err(StoreError::Broken))
        .map(drop)
}

async fn once(
    door: &BatchHandle,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
) -> Result<(), StoreError> {
    door.probe(Arc::clone(questions), slot, timeout)?
        .await
        .unwrap_or(Err(StoreError::Broken))
        .map(drop)
}

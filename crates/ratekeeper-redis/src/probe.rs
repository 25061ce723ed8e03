//! Probes: decisions made by the store itself, to find out whether Redis decides in time.
//!
//! A heartbeat does not prove that: it has a longer timeout, runs another script, and uses another
//! connection. So a server that failed decisions is healthy again only when it has made some.

use crate::batched_connection::BatchHandle;
use crate::health::Health;
use crate::script::amend::{Amend, Amendment};
use crate::script::decide::{Question, Questions};
use crate::store_error::StoreError;
use ratekeeper::{Mode, store::backend::MicrosLimit};
use std::sync::Arc;
use std::time::Duration;

/// How long the first probe may take: it may have to open a connection.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Consecutive probes that must be answered in time after a failure.
const RECOVERY_SUCCESSES: u32 = 3;
/// Probes made to reach that.
const MAX_ATTEMPTS: u32 = 6;

/// The key that is probed. It expires within milliseconds.
pub(crate) fn key(prefix: &str, number: u32) -> String {
    format!("{prefix}:probe:b:{{{number}}}")
}

/// A question like that of a caller. It is charged, because a server that cannot write cannot
/// decide.
pub(crate) fn questions(key: &str) -> Questions {
    let limit = MicrosLimit::Bucket {
        per_micro: 1,
        token: 1,
        capacity: 1_000_000,
        refundable: false,
    };
    Arc::new([Question {
        key: Arc::from(key.as_bytes()),
        limit,
        cost: 1,
        reserve: 0,
        mode: Mode::Enforce,
        wait: None,
        permits: Vec::new(),
        lease: None,
    }])
}

/// Probes each connection with the timeout of callers, and records the outcome.
pub(crate) async fn run(
    health: &Health,
    handles: impl Iterator<Item = &BatchHandle>,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
) -> Result<(), StoreError> {
    let is_healthy = health.is_own_state_healthy();
    let in_a_row = if is_healthy { 1 } else { RECOVERY_SUCCESSES };
    for handle in handles {
        if let Err(error) = ask(
            handle,
            questions,
            slot,
            timeout.min(FIRST_PROBE_TIMEOUT),
            in_a_row,
        )
        .await
        {
            health.open_breaker(&error);
            return Err(error);
        }
    }
    if !is_healthy {
        health.record_recovery();
    }
    Ok(())
}

/// Probes one connection. Some probes may time out, as on a busy machine.
async fn ask(
    handle: &BatchHandle,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
    in_a_row: u32,
) -> Result<(), StoreError> {
    once(handle, questions, slot, FIRST_PROBE_TIMEOUT).await?;
    amend(handle, &questions[0], slot).await?;
    let mut successes = 0;
    for attempt in 1..=MAX_ATTEMPTS {
        match once(handle, questions, slot, timeout).await {
            Ok(()) => successes += 1,
            Err(StoreError::TimedOut) if attempt + in_a_row <= MAX_ATTEMPTS => successes = 0,
            Err(error) => return Err(error),
        }
        if successes == in_a_row {
            break;
        }
    }
    Ok(())
}

/// Sends an amendment that changes nothing. A user without the right to run that script would lose
/// refunds. And once the server has loaded the script, a refund never has to be sent again, with
/// the script's text, behind decisions that were queued after it.
async fn amend(handle: &BatchHandle, question: &Question, slot: u16) -> Result<(), StoreError> {
    let amendment = Amendment {
        key: Arc::clone(&question.key),
        limit: question.limit,
        change: Amend::ChargeMore(0),
    };
    handle
        .probe_amendment(amendment, slot, FIRST_PROBE_TIMEOUT)?
        .await
        .unwrap_or(Err(StoreError::Broken))
        .map(drop)
}

async fn once(
    handle: &BatchHandle,
    questions: &Questions,
    slot: u16,
    timeout: Duration,
) -> Result<(), StoreError> {
    handle
        .probe(Arc::clone(questions), slot, timeout)?
        .await
        .unwrap_or(Err(StoreError::Broken))
        .map(drop)
}

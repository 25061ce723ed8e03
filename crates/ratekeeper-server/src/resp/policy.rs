//! `RATEKEEPER.CHECK` and `RATEKEEPER.PEEK`: decisions of a policy by name.

use super::session::{Arguments, QuotedBytes, Reply, fields, integer, seconds, signed};
use crate::store::AnyStore;
use ratekeeper::Clock;
use ratekeeper_policy::{Engine, PolicyVerdict};

/// Decides by the policy and replies.
pub(super) async fn check<C: Clock>(
    engine: &Engine<AnyStore<C>>,
    peek: bool,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
) {
    let name = arguments.get(1).unwrap_or_default();
    let key = arguments.get(2).unwrap_or_default();
    let cost = match arguments.get(3).map(integer) {
        None => 1,
        Some(Some(cost @ 0..)) => cost.unsigned_abs(),
        Some(_) => return reply.error("ERR cost must be a whole number from 0 on"),
    };
    // Names of policies are UTF-8.
    let policy = std::str::from_utf8(name).unwrap_or_default();
    match engine.decide_by(policy, key, cost, peek).await {
        Ok(verdict) => reply.five(verdict_fields(&verdict)),
        Err(error) => reply.error(format_args!("ERR policy '{}': {error}", QuotedBytes(name))),
    }
}

/// The five numbers of `CL.THROTTLE` for the limit that denied it, else for the one with the least
/// left.
fn verdict_fields(verdict: &PolicyVerdict) -> [i64; 5] {
    let denied = i64::from(verdict.is_denied());
    let retry = verdict.retry_after().map_or(-1, seconds);
    match verdict.tightest() {
        Some(limit) => {
            let decision = limit.decision();
            let [_, limit, remaining, _, reset] = fields(&decision, decision.capacity());
            [denied, limit, remaining, retry, reset]
        }
        // Denied by a list or a ban, which have no numbers.
        None if verdict.is_denied() => [denied, 0, 0, retry, retry.max(0)],
        None => [denied, signed(u64::MAX), signed(u64::MAX), retry, 0],
    }
}

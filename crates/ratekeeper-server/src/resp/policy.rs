//! `RATEKEEPER.CHECK` and `RATEKEEPER.PEEK`: a policy by its name.

use super::session::{Arguments, QuotedBytes, Reply, figures, integer, seconds, signed};
use crate::store::AnyStore;
use ratekeeper::Clock;
use ratekeeper_policy::{Engine, PolicyVerdict};

/// Asks the policy and answers.
pub(super) async fn answer<C: Clock>(
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
        Some(_) => return reply.error("ERR cost must be a whole number, not negative"),
    };
    // A name that is no text is that of no policy.
    let policy = std::str::from_utf8(name).unwrap_or_default();
    match engine.decide_by(policy, key, cost, peek).await {
        Ok(verdict) => reply.five(told(&verdict)),
        Err(wrong) => reply.error(format_args!("ERR policy '{}': {wrong}", QuotedBytes(name))),
    }
}

/// The five numbers of `CL.THROTTLE`, of the limit that turned it away, else of the one with the
/// least left.
fn told(verdict: &PolicyVerdict) -> [i64; 5] {
    let denied = i64::from(verdict.is_denied());
    let retry = verdict.retry_after().map_or(-1, seconds);
    match verdict.tightest() {
        Some(limit) => {
            let decision = limit.decision();
            let [_, limit, remaining, _, reset] = figures(&decision, decision.capacity());
            [denied, limit, remaining, retry, reset]
        }
        // A list or a ban says no; nobody is looked for who would say how much.
        None if verdict.is_denied() => [denied, 0, 0, retry, retry.max(0)],
        None => [denied, signed(u64::MAX), signed(u64::MAX), retry, 0],
    }
}

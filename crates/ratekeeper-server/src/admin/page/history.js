// Rates over time: differences of counters divided by the time between them.

/** Age of the oldest point, in milliseconds. */
const MAX_AGE = 15 * 60_000;
/** The same for points of policies: as long as their sparklines show. */
const MAX_POLICY_AGE = 5 * 60_000;
const MAX_POLICIES = 100;

/** All allowed requests of a policy; each request is counted under one outcome. */
export const allowedOf = (policy) => policy.allowed + policy.delayed + policy.shadow_denied;

export class History {
  points = [];
  #last = null;

  push(status) {
    const last = this.#last;
    this.#last = status;
    if (!last) return;
    const elapsed = status.now_ms - last.now_ms;
    if (elapsed <= 0) return;
    // A restarted process counts from zero.
    const restarted = status.uptime_ms < last.uptime_ms;
    const since = (now, before) => Math.max(0, now - (restarted ? 0 : (before ?? 0))) * (1000 / elapsed);
    const before = new Map(last.policies.map((policy) => [policy.policy, policy]));
    const policies = new Map();
    for (const policy of status.policies.slice(0, MAX_POLICIES)) {
      const was = before.get(policy.policy) ?? policy;
      policies.set(policy.policy, {
        allowed: since(allowedOf(policy), allowedOf(was)),
        denied: since(policy.denied, was.denied),
        shadow: since(policy.shadow_denied, was.shadow_denied),
      });
    }
    this.points.push({
      at: status.now_ms,
      elapsed,
      allowed: since(status.totals.allowed, last.totals.allowed),
      denied: since(status.totals.denied, last.totals.denied),
      policies,
    });
    while (this.points[0].at < status.now_ms - MAX_AGE) this.points.shift();
    for (const point of this.points) {
      if (point.at >= status.now_ms - MAX_POLICY_AGE) break;
      point.policies = null;
    }
  }

  get newest() {
    return this.points.at(-1);
  }

  /** The points of the last `millis` milliseconds. */
  since(millis) {
    const from = (this.newest?.at ?? 0) - millis;
    return this.points.filter((point) => point.at > from);
  }

  /** How many were allowed and denied in that time. */
  sums(millis) {
    const sum = { allowed: 0, denied: 0 };
    for (const { allowed, denied, elapsed } of this.since(millis)) {
      sum.allowed += (allowed * elapsed) / 1000;
      sum.denied += (denied * elapsed) / 1000;
    }
    return sum;
  }

  /** The points of one policy. */
  of(policy, millis) {
    const none = { allowed: 0, denied: 0, shadow: 0 };
    return this.since(millis).filter((point) => point.policies).map((point) => ({ at: point.at, ...(point.policies.get(policy) ?? none) }));
  }
}

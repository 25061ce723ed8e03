// What was counted, as rates over time: the difference of two figures by the time between them.

/** Kept this long, in milliseconds. */
const KEPT = 15 * 60_000;
/** Policies have theirs for as long as their small charts show, and not more of them than anybody looks at. */
const KEPT_POLICIES = 5 * 60_000;
const MOST_POLICIES = 100;

/** Who passed, whatever else is said of them: a request is counted under one outcome. */
export const passed = (policy) => policy.allowed + policy.delayed + policy.shadow_denied;

export class History {
  points = [];
  #last = null;

  push(status) {
    const last = this.#last;
    this.#last = status;
    if (!last) return;
    const lasted = status.now_ms - last.now_ms;
    if (lasted <= 0) return;
    // A process that began again counts from zero.
    const again = status.uptime_ms < last.uptime_ms;
    const since = (now, before) => Math.max(0, now - (again ? 0 : (before ?? 0))) * (1000 / lasted);
    const before = new Map(last.policies.map((policy) => [policy.policy, policy]));
    const policies = new Map();
    for (const policy of status.policies.slice(0, MOST_POLICIES)) {
      const was = before.get(policy.policy) ?? policy;
      policies.set(policy.policy, {
        allowed: since(passed(policy), passed(was)),
        denied: since(policy.denied, was.denied),
        shadow: since(policy.shadow_denied, was.shadow_denied),
      });
    }
    this.points.push({
      at: status.now_ms,
      lasted,
      allowed: since(status.totals.allowed, last.totals.allowed),
      denied: since(status.totals.blocked, last.totals.blocked),
      policies,
    });
    while (this.points[0].at < status.now_ms - KEPT) this.points.shift();
    for (const point of this.points) {
      if (point.at >= status.now_ms - KEPT_POLICIES) break;
      point.policies = null;
    }
  }

  get newest() {
    return this.points.at(-1);
  }

  /** The points of the last so many milliseconds. */
  since(millis) {
    const from = (this.newest?.at ?? 0) - millis;
    return this.points.filter((point) => point.at > from);
  }

  /** How many were allowed and denied in that time. */
  sums(millis) {
    const sum = { allowed: 0, denied: 0 };
    for (const { allowed, denied, lasted } of this.since(millis)) {
      sum.allowed += (allowed * lasted) / 1000;
      sum.denied += (denied * lasted) / 1000;
    }
    return sum;
  }

  /** Of one policy, as points of their own. */
  of(policy, millis) {
    const none = { allowed: 0, denied: 0, shadow: 0 };
    return this.since(millis).filter((point) => point.policies).map((point) => ({ at: point.at, ...(point.policies.get(policy) ?? none) }));
  }
}

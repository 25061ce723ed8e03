//! The leases that a node holds of one key, as a pure function: what it may spend, its demand, and
//! when it asks Redis for more.
//!
//! Times are nanoseconds of the node's own monotonic clock. A lease is spent until 0.98 of its TTL
//! has passed since just before it was requested; nothing is returned or reported to Redis.

/// How leases of a limit are requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseSettings {
    /// The TTL of a lease, in microseconds.
    pub(crate) ttl: u64,
    /// Tokens in a full bucket, or the count of a window.
    pub(crate) burst: u64,
}

/// What a node asks for in one lease request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseDemand {
    /// The fewest tokens that are of use.
    pub(crate) min: u64,
    pub(crate) want: u64,
    /// The TTL of the lease, in microseconds.
    pub(crate) ttl: u64,
    /// The request is void after this time of the server, in microseconds.
    pub(crate) expires: u64,
}

/// The longest time whose demand is leased at once, whatever the TTL.
const MAX_HORIZON_NANOS: u64 = 100_000_000;

impl LeaseSettings {
    /// The highest cost of an ask that is decided from leases.
    pub(crate) fn max_cost(&self) -> u64 {
        self.burst / 8
    }

    /// The time whose demand is leased at once, in nanoseconds.
    fn horizon(&self) -> u64 {
        (self.ttl * 500).clamp(1, MAX_HORIZON_NANOS)
    }

    /// The pause after Redis granted less than was wanted, in nanoseconds.
    fn pause(&self) -> u64 {
        self.ttl * 125
    }
}

/// Tokens, and until when they may be spent. A default lease is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lease {
    pub(crate) left: u64,
    pub(crate) until: u64,
}

/// The leases that one node holds of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyLeases {
    /// The first is the one that ends first.
    leases: [Lease; 2],
    /// Tokens that were asked for since `since`, and in the span before.
    recent_demand: u64,
    since: u64,
    demand_before: u64,
    span_before: u64,
    /// With fewer tokens left than `low`, more are requested. Leases that end within `soon` do not
    /// count.
    low: u64,
    soon: u64,
    /// No request before this time: Redis had little to grant.
    pause_until: u64,
    /// Redis has denied this cost, and would until `denied_until`.
    denied: u64,
    denied_until: u64,
    /// Whether a request is in flight.
    pub(crate) is_requesting: bool,
    /// Tokens that Redis had left at its last answer.
    pub(crate) redis_remaining: u64,
    /// Tokens that expired unspent since this was last read.
    pub(crate) expired: u64,
}

/// The outcome of one ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpendOutcome {
    /// Paid by a lease. `mark` is the end of that lease, to give tokens back to it.
    Paid { mark: u64 },
    /// Denied until this time.
    Denied { until: u64 },
    /// Redis must decide.
    Unknown,
}

impl KeyLeases {
    /// A key that was asked for once, for `cost`.
    pub(crate) fn first_ask(now: u64, cost: u64) -> Self {
        Self {
            recent_demand: cost,
            since: now,
            ..Self::default()
        }
    }

    /// Takes `cost` from the leases, or denies it if Redis is known to deny it.
    #[inline]
    pub(crate) fn spend(&mut self, now: u64, cost: u64) -> SpendOutcome {
        self.recent_demand = self.recent_demand.saturating_add(cost);
        if let Some(mark) = self.take(now, cost) {
            return SpendOutcome::Paid { mark };
        }
        let scarce = if cost >= self.denied {
            self.denied_until
        } else {
            0
        };
        let until = scarce.max(self.pause_until);
        if now < until {
            SpendOutcome::Denied { until }
        } else {
            SpendOutcome::Unknown
        }
    }

    #[inline]
    fn take(&mut self, now: u64, cost: u64) -> Option<u64> {
        // The fast path: the first lease is live and has enough.
        let first = &mut self.leases[0];
        if now < first.until && first.left >= cost {
            first.left -= cost;
            return Some(first.until);
        }
        self.expire(now);
        if self.left(now) < cost {
            return None;
        }
        let [first, second] = &mut self.leases;
        let from_first = first.left.min(cost);
        first.left -= from_first;
        second.left -= cost - from_first;
        Some(if from_first > 0 {
            first.until
        } else {
            second.until
        })
    }

    /// Removes leases that have ended or are used up.
    fn expire(&mut self, now: u64) {
        for lease in &mut self.leases {
            if now >= lease.until {
                self.expired += lease.left;
                *lease = Lease::default();
            }
        }
        if self.leases[0].left == 0 {
            self.leases.swap(0, 1);
        }
    }

    /// Tokens that may be spent at `now`.
    pub(crate) fn left(&self, now: u64) -> u64 {
        self.leases
            .iter()
            .filter(|lease| now < lease.until)
            .map(|lease| lease.left)
            .sum()
    }

    /// Whether it is time to request more: few tokens are left, or they end soon.
    #[inline]
    pub(crate) fn is_low(&self, now: u64) -> bool {
        if self.is_requesting || now < self.pause_until {
            return false;
        }
        let soon = now + self.soon;
        let lasting = |lease: &Lease| if soon < lease.until { lease.left } else { 0 };
        lasting(&self.leases[0]) + lasting(&self.leases[1]) < self.low
    }

    /// The demand to send to Redis, if a lease is worth it: for a key that is rarely asked for,
    /// single decisions are better. A request then counts as in flight until
    /// [`granted`](Self::granted), [`denied`](Self::denied) or [`failed`](Self::failed).
    pub(crate) fn demand(
        &mut self,
        now: u64,
        cost: u64,
        settings: &LeaseSettings,
    ) -> Option<LeaseDemand> {
        if self.is_requesting || now < self.pause_until {
            return None;
        }
        let horizon = settings.horizon();
        let span = now.saturating_sub(self.since);
        let requested = self.recent_demand.saturating_add(self.demand_before);
        let over = (span + self.span_before).max(horizon / 4).max(1);
        let want = (u128::from(requested) * u128::from(horizon) / u128::from(over))
            .min(u128::from(settings.max_cost())) as u64;
        if span >= horizon {
            (self.demand_before, self.span_before) = (self.recent_demand, span);
            (self.recent_demand, self.since) = (0, now);
        }
        if requested < 2 * cost || want < 2 * cost {
            self.low = 0;
            return None;
        }
        self.is_requesting = true;
        self.low = want / 2;
        Some(LeaseDemand {
            min: cost.max(1),
            want,
            ttl: settings.ttl,
            expires: u64::MAX,
        })
    }

    /// Redis granted tokens for `ttl` microseconds, to a demand made at `sent`.
    pub(crate) fn granted(
        &mut self,
        sent: u64,
        now: u64,
        tokens: u64,
        ttl: u64,
        demand: &LeaseDemand,
        settings: &LeaseSettings,
    ) {
        self.is_requesting = false;
        self.denied_until = 0;
        if tokens < demand.want.min(settings.max_cost()) {
            self.pause_until = sent + settings.pause();
        }
        let until = sent.saturating_add(ttl.saturating_mul(980));
        // An eighth of the lease's own TTL, which is shorter near the end of a window.
        self.soon = ttl.saturating_mul(125);
        self.expire(now);
        if now >= until {
            self.expired += tokens;
            return;
        }
        let lease = Lease {
            left: tokens,
            until,
        };
        let [first, second] = &mut self.leases;
        if first.left == 0 {
            *first = lease;
        } else if second.left == 0 {
            *second = lease;
        } else {
            // Three leases are stored as two: the two that end first are merged, with the earlier
            // end.
            let mut all = [*first, *second, lease];
            all.sort_unstable_by_key(|lease| lease.until);
            all[1].left += all[0].left;
            all[1].until = all[0].until;
            (*first, *second) = (all[1], all[2]);
        }
        if second.left > 0 && second.until < first.until {
            self.leases.swap(0, 1);
        }
    }

    /// Redis denied `cost`, and will for `retry_after` nanoseconds from `sent`.
    pub(crate) fn denied(
        &mut self,
        sent: u64,
        cost: u64,
        retry_after: u64,
        settings: &LeaseSettings,
    ) {
        self.is_requesting = false;
        (self.denied, self.denied_until) = (cost, sent + retry_after.min(settings.ttl * 1_000));
        self.pause_until = sent + settings.pause();
    }

    /// Forgets that Redis denied anything.
    pub(crate) fn clear_denial(&mut self) {
        (self.denied_until, self.pause_until) = (0, 0);
    }

    /// It is not known what Redis did: tokens that it may have leased are not spent.
    pub(crate) fn failed(&mut self) {
        self.is_requesting = false;
    }

    /// Puts back tokens that were taken and not used. Returns whether their lease is still live.
    pub(crate) fn give_back(&mut self, now: u64, mark: u64, tokens: u64) -> bool {
        let live = self
            .leases
            .iter_mut()
            .find(|lease| lease.until == mark && now < lease.until);
        live.map(|lease| lease.left += tokens).is_some()
    }

    /// Whether removing the key changes no decision: it has no tokens, no request in flight and no
    /// denial.
    pub(crate) fn is_idle(&self, now: u64, settings: &LeaseSettings) -> bool {
        !self.is_requesting
            && self.left(now) == 0
            && now >= self.denied_until.max(self.pause_until)
            && now.saturating_sub(self.since) > 4 * settings.horizon()
    }
}

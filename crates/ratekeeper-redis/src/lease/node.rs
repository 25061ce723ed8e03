//! What a node holds of one key, as a pure function: its leases, how much it is asked for, and when
//! it asks Redis for more.
//!
//! Times are nanoseconds of the node's own monotonic clock. A lease is spent until 0.98 of its life
//! has passed since before it was asked for; nothing is returned or reported.

/// How leases of a limit are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseSettings {
    /// How long a lease lives, in microseconds.
    pub(crate) lives: u64,
    /// Tokens in a full bucket, or the count of a window.
    pub(crate) burst: u64,
}

/// What a lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseDemand {
    /// Not worth it with fewer tokens.
    pub(crate) least: u64,
    pub(crate) want: u64,
    /// How long it lives, in microseconds.
    pub(crate) lives: u64,
    /// Nobody waits for it after this time of the server, in microseconds.
    pub(crate) expires: u64,
}

/// As much as this is asked for, however long a lease lives.
const MOST_AHEAD: u64 = 100_000_000;

impl LeaseSettings {
    /// The most that one ask may cost to be decided here.
    pub(crate) fn most(&self) -> u64 {
        self.burst / 8
    }

    /// The time whose demand is leased at once.
    fn horizon(&self) -> u64 {
        (self.lives * 500).clamp(1, MOST_AHEAD)
    }

    /// The pause after Redis had less to spare than was wanted.
    fn pause(&self) -> u64 {
        self.lives * 125
    }
}

/// Tokens, and until when they may be spent. What is not live has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lease {
    pub(crate) left: u64,
    pub(crate) until: u64,
}

/// What one node holds of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HeldLease {
    /// The one that ends first comes first.
    leases: [Lease; 2],
    /// Tokens that were asked for since then, and in the span before.
    asked: u64,
    since: u64,
    asked_before: u64,
    span_before: u64,
    /// With less than this left, more is asked for; what ends this soon does not count.
    low: u64,
    soon: u64,
    /// Not to be asked for more until then: Redis had little to spare.
    pause_until: u64,
    /// Redis has turned away so much, and will until then.
    denied: u64,
    denied_until: u64,
    /// Whether more is being asked for.
    pub(crate) fetching: bool,
    /// Tokens that Redis had left when it was last asked.
    pub(crate) elsewhere: u64,
    /// Tokens that ended before they were spent, since somebody last looked.
    pub(crate) expired: u64,
}

/// What becomes of one ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpendOutcome {
    /// It is paid for. `mark` names the lease, to give back to.
    Paid { mark: u64 },
    /// It is turned away until then.
    Denied { until: u64 },
    /// Redis must be asked.
    Unknown,
}

impl HeldLease {
    /// Of a key that was asked for once, for `cost`.
    pub(crate) fn asked_first(now: u64, cost: u64) -> Self {
        Self {
            asked: cost,
            since: now,
            ..Self::default()
        }
    }

    /// Takes `cost` from what is held, or knows that it cannot be had.
    #[inline]
    pub(crate) fn spend(&mut self, now: u64, cost: u64) -> SpendOutcome {
        self.asked = self.asked.saturating_add(cost);
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
        // Most of the time there is one that lives and has enough.
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

    /// Forgets what has ended or is used up.
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

    /// Whether it is time to ask for more: little is left, or it ends soon.
    #[inline]
    pub(crate) fn is_low(&self, now: u64) -> bool {
        if self.fetching || now < self.pause_until {
            return false;
        }
        let soon = now + self.soon;
        let lasting = |lease: &Lease| if soon < lease.until { lease.left } else { 0 };
        lasting(&self.leases[0]) + lasting(&self.leases[1]) < self.low
    }

    /// What to ask Redis for, if it is worth it: a key that is asked for now and then is better
    /// asked about each time. From here on it is being asked for, until [`granted`](Self::granted)
    /// or [`failed`](Self::failed).
    pub(crate) fn wish(
        &mut self,
        now: u64,
        cost: u64,
        manner: &LeaseSettings,
    ) -> Option<LeaseDemand> {
        if self.fetching || now < self.pause_until {
            return None;
        }
        let horizon = manner.horizon();
        let span = now.saturating_sub(self.since);
        let asked = self.asked.saturating_add(self.asked_before);
        let over = (span + self.span_before).max(horizon / 4).max(1);
        let want = (u128::from(asked) * u128::from(horizon) / u128::from(over))
            .min(u128::from(manner.most())) as u64;
        if span >= horizon {
            (self.asked_before, self.span_before) = (self.asked, span);
            (self.asked, self.since) = (0, now);
        }
        if asked < 2 * cost || want < 2 * cost {
            self.low = 0;
            return None;
        }
        self.fetching = true;
        self.low = want / 2;
        Some(LeaseDemand {
            least: cost.max(1),
            want,
            lives: manner.lives,
            expires: u64::MAX,
        })
    }

    /// Redis leased tokens for `lives` microseconds, to a wish that was made at `sent`.
    pub(crate) fn granted(
        &mut self,
        sent: u64,
        now: u64,
        tokens: u64,
        lives: u64,
        wish: &LeaseDemand,
        manner: &LeaseSettings,
    ) {
        self.fetching = false;
        self.denied_until = 0;
        if tokens < wish.want.min(manner.most()) {
            self.pause_until = sent + manner.pause();
        }
        let until = sent.saturating_add(lives.saturating_mul(980));
        // An eighth of its own life: that of a window's lease is short where the window ends.
        self.soon = lives.saturating_mul(125);
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
            // Three are held as two: those that end first end together.
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

    /// Redis has nothing to spare for `cost`, and will not for so many nanoseconds since `sent`.
    pub(crate) fn denied(
        &mut self,
        sent: u64,
        cost: u64,
        retry_after: u64,
        manner: &LeaseSettings,
    ) {
        self.fetching = false;
        (self.denied, self.denied_until) = (cost, sent + retry_after.min(manner.lives * 1_000));
        self.pause_until = sent + manner.pause();
    }

    /// Forgets that anything was denied.
    pub(crate) fn forgive(&mut self) {
        (self.denied_until, self.pause_until) = (0, 0);
    }

    /// Nobody knows what Redis did: what it may have leased nobody spends.
    pub(crate) fn failed(&mut self) {
        self.fetching = false;
    }

    /// Puts tokens back that were taken and not used; whether their lease still lives.
    pub(crate) fn give_back(&mut self, now: u64, mark: u64, tokens: u64) -> bool {
        let live = self
            .leases
            .iter_mut()
            .find(|lease| lease.until == mark && now < lease.until);
        live.map(|lease| lease.left += tokens).is_some()
    }

    /// Whether forgetting it changes no decision: nothing is held, awaited or remembered.
    pub(crate) fn is_idle(&self, now: u64, manner: &LeaseSettings) -> bool {
        !self.fetching
            && self.left(now) == 0
            && now >= self.denied_until.max(self.pause_until)
            && now.saturating_sub(self.since) > 4 * manner.horizon()
    }
}

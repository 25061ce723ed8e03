//! A model of what Redis keeps of a leased bucket, as a pure function: integers in, integers out,
//! with the time as an argument.
//!
//! Outstanding leases occupy the bucket: `level + out ≤ capacity` at every instant, and refill
//! beyond that is lost. Two groups are enough to know when leases have ended: the newest, and all
//! before it. The script does exactly this; the tests run both on the same traces.

use super::node::LeaseDemand;

/// A bucket's numbers: units a microsecond, units a token, units in a full bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketParams {
    pub(crate) per_micro: u64,
    pub(crate) token: u64,
    pub(crate) capacity: u64,
}

impl BucketParams {
    /// Tokens in a full bucket.
    pub(crate) fn burst(&self) -> u64 {
        self.capacity / self.token
    }
}

/// Tokens out on lease, and when the last of these leases ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OutstandingLeases {
    pub(crate) tokens: u64,
    pub(crate) until: u64,
}

/// The bucket of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CentralBucket {
    /// Available units; negative if in debt.
    pub(crate) level: i64,
    /// The time of the level, in microseconds.
    pub(crate) last: u64,
    /// The units a token that the level is counted in.
    pub(crate) token: u64,
    /// The newest group of leases, and all before it.
    pub(crate) out: [OutstandingLeases; 2],
}

impl CentralBucket {
    pub(crate) fn fresh(params: &BucketParams, now: u64) -> Self {
        Self {
            level: params.capacity as i64,
            last: now,
            token: params.token,
            out: [OutstandingLeases::default(); 2],
        }
    }

    /// Tokens out on lease.
    pub(crate) fn out(&self) -> u64 {
        self.out[0].tokens + self.out[1].tokens
    }

    /// The capacity that leases do not occupy, in units.
    fn available_capacity(&self, params: &BucketParams) -> i64 {
        (params.capacity as i64 - (self.out() * params.token) as i64).max(0)
    }

    /// Advances to `now`: leases that have ended free their capacity, each at its time, and refill
    /// beyond the free capacity is lost.
    pub(crate) fn advance(&mut self, now: u64, params: &BucketParams) {
        if self.token != params.token {
            let scaled = i128::from(self.level) * i128::from(params.token);
            self.level = scaled.div_euclid(i128::from(self.token)) as i64;
            self.token = params.token;
        }
        let now = now.max(self.last);
        for which in [1, 0] {
            let OutstandingLeases { tokens, until } = self.out[which];
            if tokens > 0 && now >= until {
                self.refill(until.max(self.last), params);
                self.out[which].tokens = 0;
            }
        }
        self.refill(now, params);
    }

    fn refill(&mut self, until: u64, params: &BucketParams) {
        let available_capacity = self.available_capacity(params);
        if params.per_micro > 0 && self.level < available_capacity {
            let full_in = ((available_capacity - self.level) as u64).div_ceil(params.per_micro);
            self.level += ((until - self.last).min(full_in) * params.per_micro) as i64;
        }
        self.level = self.level.min(available_capacity);
        self.last = until;
    }

    /// Takes `cost` tokens if they are available.
    pub(crate) fn take(&mut self, now: u64, params: &BucketParams, cost: u64) -> bool {
        self.advance(now, params);
        let need = cost
            .checked_mul(params.token)
            .and_then(|need| i64::try_from(need).ok());
        match need {
            Some(need) if need <= self.level => {
                self.level -= need;
                true
            }
            _ => false,
        }
    }

    /// Leases as many tokens as may be granted; 0 if there are none, or the demand has expired.
    pub(crate) fn lease(&mut self, now: u64, params: &BucketParams, demand: &LeaseDemand) -> u64 {
        self.advance(now, params);
        if now > demand.expires {
            return 0;
        }
        let free = self.level.max(0) as u64 / params.token;
        let granted = grantable(free, params.burst(), demand);
        if granted > 0 {
            let now = self.last;
            let [newest, before] = &mut self.out;
            if newest.tokens == 0 || newest.until < now + demand.ttl {
                if newest.tokens > 0 {
                    *before = OutstandingLeases {
                        tokens: before.tokens + newest.tokens,
                        until: newest.until,
                    };
                }
                let until = now + 2 * demand.ttl;
                *newest = OutstandingLeases {
                    tokens: 0,
                    until: if before.tokens > 0 {
                        until.max(before.until)
                    } else {
                        until
                    },
                };
            }
            newest.tokens += granted;
            self.level -= (granted * params.token) as i64;
        }
        granted
    }
}

/// How many of the free tokens one node is granted: at most half of them or an eighth of the burst,
/// so that other nodes get some too, but at least its minimum.
pub(crate) fn grantable(free: u64, burst: u64, demand: &LeaseDemand) -> u64 {
    if free < demand.min.max(1) {
        return 0;
    }
    demand
        .want
        .min(free / 2)
        .min(burst / 8)
        .max(demand.min)
        .min(free)
}

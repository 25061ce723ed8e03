//! What Redis keeps of a bucket that is leased, as a pure function: integers in, integers out, time
//! an argument.
//!
//! What is out on lease still occupies the bucket: `level + out ≤ capacity` at every instant, and
//! refill that finds no room is lost. Two groups are enough to know when what is out can be out no
//! longer: the newest, and all before it. The script does exactly this; the tests run both on the
//! same traces.

use super::node::LeaseDemand;

/// The integers of a bucket: units a microsecond, units a token, units in a full one.
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

/// Tokens that are out on lease, and when the last of them is out no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OutstandingLeases {
    pub(crate) tokens: u64,
    pub(crate) until: u64,
}

/// The bucket of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CentralBucket {
    /// Units that are there to be had; below zero a debt.
    pub(crate) level: i64,
    /// The time of that, in microseconds.
    pub(crate) last: u64,
    /// The units a token that the level is counted in.
    pub(crate) token: u64,
    /// The newest, and all before it.
    pub(crate) out: [OutstandingLeases; 2],
}

impl CentralBucket {
    pub(crate) fn fresh(terms: &BucketParams, now: u64) -> Self {
        Self {
            level: terms.capacity as i64,
            last: now,
            token: terms.token,
            out: [OutstandingLeases::default(); 2],
        }
    }

    /// Tokens that are out.
    pub(crate) fn out(&self) -> u64 {
        self.out[0].tokens + self.out[1].tokens
    }

    /// Units that there is room for.
    fn room(&self, terms: &BucketParams) -> i64 {
        (terms.capacity as i64 - (self.out() * terms.token) as i64).max(0)
    }

    /// As of `now`: leases that have ended give their room back, each at its time, and what arrives
    /// finds room or is lost.
    pub(crate) fn advance(&mut self, now: u64, terms: &BucketParams) {
        if self.token != terms.token {
            let scaled = i128::from(self.level) * i128::from(terms.token);
            self.level = scaled.div_euclid(i128::from(self.token)) as i64;
            self.token = terms.token;
        }
        let now = now.max(self.last);
        for which in [1, 0] {
            let OutstandingLeases { tokens, until } = self.out[which];
            if tokens > 0 && now >= until {
                self.refill(until.max(self.last), terms);
                self.out[which].tokens = 0;
            }
        }
        self.refill(now, terms);
    }

    fn refill(&mut self, until: u64, terms: &BucketParams) {
        let room = self.room(terms);
        if terms.per_micro > 0 && self.level < room {
            let full_in = ((room - self.level) as u64).div_ceil(terms.per_micro);
            self.level += ((until - self.last).min(full_in) * terms.per_micro) as i64;
        }
        self.level = self.level.min(room);
        self.last = until;
    }

    /// Takes `cost` tokens if they are there.
    pub(crate) fn take(&mut self, now: u64, terms: &BucketParams, cost: u64) -> bool {
        self.advance(now, terms);
        let need = cost
            .checked_mul(terms.token)
            .and_then(|need| i64::try_from(need).ok());
        match need {
            Some(need) if need <= self.level => {
                self.level -= need;
                true
            }
            _ => false,
        }
    }

    /// Leases as many tokens as can be spared; 0 if none, or if nobody waits for them any more.
    pub(crate) fn lease(&mut self, now: u64, terms: &BucketParams, wish: &LeaseDemand) -> u64 {
        self.advance(now, terms);
        if now > wish.expires {
            return 0;
        }
        let free = self.level.max(0) as u64 / terms.token;
        let granted = spared(free, terms.burst(), wish);
        if granted > 0 {
            let now = self.last;
            let [newest, before] = &mut self.out;
            if newest.tokens == 0 || newest.until < now + wish.lives {
                if newest.tokens > 0 {
                    *before = OutstandingLeases {
                        tokens: before.tokens + newest.tokens,
                        until: newest.until,
                    };
                }
                let until = now + 2 * wish.lives;
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
            self.level -= (granted * terms.token) as i64;
        }
        granted
    }
}

/// How many of the tokens that are free one node is given: not more than half of them or an eighth
/// of all, so that there is something for the others, but what it needs now.
pub(crate) fn spared(free: u64, burst: u64, wish: &LeaseDemand) -> u64 {
    if free < wish.least.max(1) {
        return 0;
    }
    wish.want
        .min(free / 2)
        .min(burst / 8)
        .max(wish.least)
        .min(free)
}

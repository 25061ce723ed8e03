//! One limit of one key, decided from the history of allowed requests.

use ratekeeper::Outcome;

/// A limit by its definition. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bucket {
        count: u64,
        period: u64,
        burst: u64,
    },
    Queue {
        count: u64,
        period: u64,
        longest: u64,
    },
    Log {
        most: u64,
        window: u64,
    },
    Fixed {
        most: u64,
        window: u64,
    },
    FirstHit {
        most: u64,
        window: u64,
    },
    Sliding {
        most: u64,
        window: u64,
    },
    Strict {
        most: u64,
        window: u64,
    },
    Permits {
        most: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// All requests ever allowed, and the number in flight.
#[derive(Clone, Default, Debug)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) in_flight: u64,
    /// Number of resets: charges before the last one cannot be refunded.
    pub(crate) resets: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExpectedLimit {
    pub(crate) outcome: Outcome,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<u64>,
    pub(crate) delay: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) now: u64,
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) longest_wait: u64,
}

fn ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}

impl Kind {
    pub(crate) fn capacity(&self) -> u64 {
        match *self {
            Self::Bucket { burst, .. } => burst,
            Self::Queue { longest, .. } => longest + 1,
            Self::Log { most, .. } | Self::Fixed { most, .. } | Self::FirstHit { most, .. } => most,
            Self::Sliding { most, .. } | Self::Strict { most, .. } | Self::Permits { most } => most,
        }
    }

    pub(crate) fn look(&self, past: &History, request: Request) -> ExpectedLimit {
        match *self {
            Self::Bucket {
                count,
                period,
                burst,
            } => bucket(past, request, count, period, burst),
            Self::Queue {
                count,
                period,
                longest,
            } => queue(past, request, count, period, longest),
            Self::Permits { most } => {
                let most = most.saturating_sub(request.reserve);
                let outcome = match past.in_flight + request.cost {
                    _ if request.cost > most => Outcome::Never,
                    together if together <= most => Outcome::Allowed,
                    _ => Outcome::Denied,
                };
                let remaining = most.saturating_sub(past.in_flight);
                ExpectedLimit {
                    outcome,
                    limit: most,
                    remaining,
                    retry_after: None,
                    delay: 0,
                }
            }
            _ => self.window(past, request),
        }
    }

    /// Whether the outcome is unspecified: for a request that takes nothing from a window in which
    /// others left less than its reserve.
    pub(crate) fn is_unspecified(&self, limit_values: &ExpectedLimit, cost: u64) -> bool {
        let window = !matches!(
            self,
            Self::Bucket { .. } | Self::Queue { .. } | Self::Permits { .. }
        );
        window && cost == 0 && limit_values.outcome == Outcome::Denied
    }

    /// The values reported for an allowed request: those after it.
    pub(crate) fn after(
        &self,
        past: &History,
        request: Request,
        before: ExpectedLimit,
    ) -> ExpectedLimit {
        let now = self.look(
            past,
            Request {
                cost: 0,
                longest_wait: u64::MAX,
                ..request
            },
        );
        ExpectedLimit {
            remaining: now.remaining,
            ..before
        }
    }

    fn window(
        &self,
        past: &History,
        Request {
            now, cost, reserve, ..
        }: Request,
    ) -> ExpectedLimit {
        let (most, window) = match *self {
            Self::Log { most, window }
            | Self::Fixed { most, window }
            | Self::FirstHit { most, window } => (most, window),
            Self::Sliding { most, window } | Self::Strict { most, window } => (most, window),
            _ => unreachable!("no window"),
        };
        let most = most.saturating_sub(reserve);
        let whole = u128::from(window);
        let fits = |t: u64| {
            self.counted(past, t, window) + u128::from(cost) * whole <= u128::from(most) * whole
        };
        let outcome = match cost {
            _ if cost > most => Outcome::Never,
            _ if fits(now) => Outcome::Allowed,
            _ => Outcome::Denied,
        };
        let retry_after = (outcome == Outcome::Denied).then(|| {
            let mut low = now;
            let mut high = now + 3 * window;
            while low < high {
                let middle = low + (high - low) / 2;
                if fits(middle) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            low - now
        });
        let room = (u128::from(most) * whole).saturating_sub(self.counted(past, now, window));
        ExpectedLimit {
            outcome,
            limit: most,
            remaining: (room / whole) as u64,
            retry_after,
            delay: 0,
        }
    }

    /// The count at `t`, in parts of one unit over the window.
    fn counted(&self, past: &History, t: u64, window: u64) -> u128 {
        let sum = |inside: &dyn Fn(u64) -> bool| -> u128 {
            past.events
                .iter()
                .filter(|event| inside(event.at))
                .map(|event| u128::from(event.cost))
                .sum()
        };
        let whole = u128::from(window);
        match self {
            Self::Log { .. } => sum(&|at| at + window > t) * whole,
            Self::Fixed { .. } => sum(&|at| at / window == t / window) * whole,
            Self::Sliding { .. } => {
                let this = t / window;
                let before = sum(&|at| at / window + 1 == this) * u128::from(window - t % window);
                before + sum(&|at| at / window == this) * whole
            }
            Self::Strict { .. } => {
                let parts = (1..=10)
                    .rev()
                    .find(|parts| window.is_multiple_of(*parts))
                    .expect("1 divides");
                let number = |at: u64| at / (window / parts);
                sum(&|at| number(at) + parts >= number(t)) * whole
            }
            Self::FirstHit { .. } => {
                let mut open: Option<(u64, u128)> = None;
                for event in past.events.iter().filter(|event| event.cost > 0) {
                    let cost = u128::from(event.cost);
                    open = match open {
                        Some((began, count)) if event.at - began < window => {
                            Some((began, count + cost))
                        }
                        _ => Some((event.at, cost)),
                    };
                }
                open.filter(|(began, _)| t - began < window)
                    .map_or(0, |(_, count)| count * whole)
            }
            _ => unreachable!("no window"),
        }
    }
}

/// TB2: tokens(t) = min(B, min over allowed s of (B + r·(t − s) − all that was allowed from s on)),
/// in parts of which a nanosecond brings `count` and a token takes `period`.
fn bucket(past: &History, request: Request, count: u64, period: u64, burst: u64) -> ExpectedLimit {
    let count = i128::from(count);
    let period = i128::from(period);
    let burst = i128::from(burst);
    let mut tokens = burst * period;
    let mut later = 0;
    for event in past.events.iter().rev() {
        later += i128::from(event.cost);
        if event.cost > 0 {
            tokens = tokens
                .min(burst * period + count * i128::from(request.now - event.at) - later * period);
        }
    }
    // A class sees the same distance from full, of a smaller bucket.
    let smaller = (burst - i128::from(request.reserve)).max(0);
    tokens -= (burst - smaller) * period;
    let missing = i128::from(request.cost) * period - tokens;
    let wait = if missing > 0 { ceil(missing, count) } else { 0 };
    let patience = if request.reserve > 0 {
        0
    } else {
        i128::from(request.longest_wait)
    };
    let (outcome, retry_after, delay) = match wait {
        _ if i128::from(request.cost) > smaller => (Outcome::Never, None, 0),
        _ if wait > patience => (Outcome::Denied, Some((wait - patience) as u64), 0),
        _ => (Outcome::Allowed, None, wait as u64),
    };
    ExpectedLimit {
        outcome,
        limit: smaller as u64,
        remaining: (tokens.max(0) / period) as u64,
        retry_after,
        delay,
    }
}

/// start = max(t, F); allowed iff start − t ≤ M; F = start + c·T.
fn queue(past: &History, request: Request, count: u64, period: u64, longest: u64) -> ExpectedLimit {
    let count = i128::from(count);
    let period = i128::from(period);
    let now = i128::from(request.now) * count;
    let most = i128::from(longest) * period;
    let free = past
        .events
        .iter()
        .filter(|event| event.cost > 0)
        .fold(0, |free: i128, event| {
            free.max(i128::from(event.at) * count) + i128::from(event.cost) * period
        });
    let ahead = (free - now).max(0);
    let over = ahead - most;
    let (outcome, retry_after, delay) = match over {
        _ if request.cost > longest + 1 => (Outcome::Never, None, 0),
        1.. => (Outcome::Denied, Some(ceil(over, count) as u64), 0),
        _ => (Outcome::Allowed, None, ceil(ahead, count) as u64),
    };
    let remaining = if over > 0 {
        0
    } else {
        (-over / period + 1) as u64
    };
    ExpectedLimit {
        outcome,
        limit: longest + 1,
        remaining,
        retry_after,
        delay,
    }
}

//! [`Model`]: one key under one limit, decided from its whole history as docs/spec/algorithms.md
//! defines it. It shares no code with ratekeeper, forgets nothing, and can be cloned: what would have
//! happened is asked of a clone.

use crate::bucket_rule::{BucketRule, Event, ceil};
use ratekeeper::{Algorithm, Decision, Limit, Outcome};
use std::time::Duration;

/// The numbers of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecisionInfo {
    /// Allowed, denied or never.
    pub outcome: Outcome,
    /// The units that the caller can have at most.
    pub capacity: u64,
    /// The units that are left.
    pub remaining: u64,
    /// When the same call is allowed, if it is denied now.
    pub retry_after: Option<Duration>,
    /// When nothing of the past counts any more.
    pub reset_after: Duration,
    /// The wait of a call that is allowed.
    pub delay: Duration,
}

impl From<Decision> for DecisionInfo {
    fn from(decision: Decision) -> Self {
        Self {
            outcome: decision.outcome(),
            capacity: decision.capacity(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            delay: decision.delay(),
        }
    }
}

/// A call on a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    /// The cost.
    pub cost: u64,
    /// The units it must leave.
    pub reserve: u64,
    /// The longest wait, in nanoseconds.
    pub max_wait: u64,
}

impl Call {
    /// A call without a reserve that does not wait.
    pub fn of(cost: u64) -> Self {
        Self {
            cost,
            ..Self::default()
        }
    }
}

/// One key under one limit, with its whole history. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Model {
    limit: Limit,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Unlimited,
    Bucket(Bucket),
    Queue(Queue),
    Window(Window),
}

impl Model {
    /// A fresh key.
    ///
    /// # Panics
    ///
    /// If the limit is a queue whose longest wait is written as a time: see
    /// [`Model::paced_max_wait`].
    pub fn new(limit: Limit) -> Self {
        let state = match limit.algorithm_kind() {
            _ if limit.is_unlimited() => State::Unlimited,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Bucket(Bucket {
                rule: BucketRule::decided(&limit),
                start: None,
                events: Vec::new(),
            }),
            Algorithm::Pacing => {
                let text = limit.to_string();
                assert!(!text.contains(" wait "), "{text}: the wait must be given");
                // A queue of Q + 1 waits for Q intervals.
                let rule = exact_rule(&limit);
                State::Queue(Queue {
                    rule,
                    max_wait: rule.capacity() - rule.token,
                    events: Vec::new(),
                })
            }
            algorithm => {
                let rate = limit.rate().expect("a finite rate");
                let window = rate.period().as_nanos() as u64;
                State::Window(Window {
                    algorithm,
                    most: rate.count(),
                    window,
                    events: Vec::new(),
                })
            }
        };
        Self { limit, state }
    }

    /// A fresh key of a queue whose longest wait is `max_wait` nanoseconds.
    pub fn paced_max_wait(limit: Limit, max_wait: u64) -> Self {
        let rule = exact_rule(&limit);
        let state = State::Queue(Queue {
            rule,
            max_wait: i128::from(max_wait) * rule.per_nano,
            events: Vec::new(),
        });
        Self { limit, state }
    }

    /// The limit.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// The decision on a call at `now`, without charging.
    pub fn peek(&self, now: u64, cost: u64) -> DecisionInfo {
        self.look(now, Call::of(cost))
    }

    /// The decision on a call at `now`, which is charged if it is allowed.
    pub fn check(&mut self, now: u64, cost: u64) -> DecisionInfo {
        self.call(now, Call::of(cost))
    }

    /// The same with a reserve or a wait.
    pub fn call(&mut self, now: u64, call: Call) -> DecisionInfo {
        let before = self.look(now, call);
        if before.outcome != Outcome::Allowed {
            return before;
        }
        self.charge(now, call.cost);
        let after = self.look(
            now,
            Call {
                cost: 0,
                max_wait: u64::MAX,
                ..call
            },
        );
        DecisionInfo {
            outcome: Outcome::Allowed,
            retry_after: None,
            delay: before.delay,
            ..after
        }
    }

    /// Adds an admission to the history; returns its number for [`Model::settle`]. A cost of 0
    /// leaves no trace.
    pub fn charge(&mut self, now: u64, cost: u64) -> Option<usize> {
        let at = match &self.state {
            State::Window(window) => window.judged_at(now),
            _ => now,
        };
        let events = self.events().filter(|_| cost > 0)?;
        events.push(Event { at, cost });
        Some(events.len() - 1)
    }

    /// Replaces the cost of an admission, at the time of the admission.
    pub fn settle(&mut self, number: usize, cost: u64) {
        if let Some(events) = self.events() {
            events[number].cost = cost;
        }
    }

    /// Everything that was charged, in the order of the calls, at the times at which it counts.
    fn events(&mut self) -> Option<&mut Vec<Event>> {
        match &mut self.state {
            State::Unlimited => None,
            State::Bucket(Bucket { events, .. })
            | State::Queue(Queue { events, .. })
            | State::Window(Window { events, .. }) => Some(events),
        }
    }

    /// The decision on a call with a reserve or a wait at `now`, without charging.
    pub fn look(&self, now: u64, call: Call) -> DecisionInfo {
        match &self.state {
            State::Unlimited => DecisionInfo {
                outcome: Outcome::Allowed,
                capacity: u64::MAX,
                remaining: u64::MAX,
                retry_after: None,
                reset_after: Duration::ZERO,
                delay: Duration::ZERO,
            },
            State::Bucket(bucket) => bucket.look(now, call),
            State::Queue(queue) => queue.look(now, call),
            State::Window(window) => window.look(now, call),
        }
    }

    /// Whether nothing of its past counts at `now`.
    pub fn is_fresh(&self, now: u64) -> bool {
        self.peek(now, 0).reset_after == Duration::ZERO
    }

    /// Whether the result of a call is unspecified: one of cost 0 after a change, or at a stale
    /// instant, that finds more in a window than fits.
    pub fn is_silent_on(&self, now: u64, cost: u64) -> bool {
        self.is_silent_on_call(now, Call::of(cost))
    }

    /// The same of a call with a reserve.
    pub fn is_silent_on_call(&self, now: u64, call: Call) -> bool {
        matches!(self.state, State::Window(_))
            && call.cost == 0
            && self.look(now, call).outcome == Outcome::Denied
    }

    /// A live change that keeps the level, as far as docs/spec/algorithms.md specifies it: between
    /// buckets, and between windows of which only the count changes.
    pub fn keep(&mut self, limit: Limit, now: u64) {
        if limit == self.limit {
            return;
        }
        let mut next = Self::new(limit);
        match (&self.state, &mut next.state) {
            (State::Bucket(old), State::Bucket(new)) => {
                let level = old.tokens(now) * new.rule.token;
                new.start = Some((now, level.div_euclid(old.rule.token)));
            }
            (State::Window(old), State::Window(new)) => {
                assert_eq!((old.algorithm, old.window), (new.algorithm, new.window));
                new.events = old.events.clone();
            }
            (old, new) => panic!("{old:?} to {new:?}"),
        }
        *self = next;
    }
}

/// The rule of a queue, which the model knows only if nothing of it is rounded.
fn exact_rule(limit: &Limit) -> BucketRule {
    assert!(limit.effective().is_none(), "{limit} is rounded");
    BucketRule::written(limit)
}

/// Nanoseconds as reported; never is the longest duration.
fn duration(nanos: Option<i128>) -> Duration {
    nanos.map_or(Duration::MAX, |nanos| {
        Duration::from_nanos(nanos.try_into().expect("a time that 64 bits can tell"))
    })
}

#[derive(Clone, Debug)]
struct Bucket {
    rule: BucketRule,
    /// The level in parts that a change left, and when.
    start: Option<(u64, i128)>,
    events: Vec<Event>,
}

impl Bucket {
    /// In parts; negative while there is debt.
    fn tokens(&self, t: u64) -> i128 {
        let all = self.rule.tokens(&self.events, t);
        let Some((at, level)) = self.start else {
            return all;
        };
        let costs = self.events.iter().map(|event| i128::from(event.cost));
        let spent = costs.sum::<i128>() * self.rule.token;
        all.min(level + self.rule.per_nano * (i128::from(t) - i128::from(at)) - spent)
    }

    fn look(
        &self,
        now: u64,
        Call {
            cost,
            reserve,
            max_wait,
        }: Call,
    ) -> DecisionInfo {
        let burst = (self.rule.burst - i128::from(reserve)).max(0);
        // A call with a reserve sees the same distance from full, of a smaller bucket.
        let tokens = self.tokens(now) - (self.rule.burst - burst) * self.rule.token;
        let wait = self
            .rule
            .nanos_for(i128::from(cost).saturating_mul(self.rule.token) - tokens);
        let patience = if reserve > 0 { 0 } else { i128::from(max_wait) };
        let (outcome, retry_after, delay) = match wait {
            _ if i128::from(cost) > burst => (Outcome::Never, None, Duration::ZERO),
            None => (Outcome::Never, None, Duration::ZERO),
            Some(wait) if wait > patience => (
                Outcome::Denied,
                Some(duration(Some(wait - patience))),
                Duration::ZERO,
            ),
            wait => (Outcome::Allowed, None, duration(wait)),
        };
        DecisionInfo {
            outcome,
            capacity: burst as u64,
            remaining: self.rule.whole(tokens),
            retry_after,
            reset_after: duration(self.rule.nanos_for(burst * self.rule.token - tokens)),
            delay,
        }
    }
}

#[derive(Clone, Debug)]
struct Queue {
    /// A nanosecond is `per_nano` parts, an interval `token` parts.
    rule: BucketRule,
    /// M in parts.
    max_wait: i128,
    events: Vec<Event>,
}

impl Queue {
    /// F in parts, from every call that was admitted.
    fn free(&self) -> i128 {
        self.events.iter().fold(i128::MIN, |free, event| {
            free.max(i128::from(event.at) * self.rule.per_nano)
                + i128::from(event.cost) * self.rule.token
        })
    }

    fn look(&self, now: u64, Call { cost, reserve, .. }: Call) -> DecisionInfo {
        assert_eq!(reserve, 0, "what a reserve is to a queue is not said");
        let clock = i128::from(now) * self.rule.per_nano;
        let nanos = |parts: i128| duration(Some(ceil(parts, self.rule.per_nano)));
        let ahead = self.free().saturating_sub(clock).max(0);
        let capacity = self.max_wait / self.rule.token + 1;
        let over = ahead - self.max_wait;
        let (outcome, retry_after, delay) = match over {
            _ if i128::from(cost) > capacity => (Outcome::Never, None, Duration::ZERO),
            1.. => (Outcome::Denied, Some(nanos(over)), Duration::ZERO),
            _ => (Outcome::Allowed, None, nanos(ahead)),
        };
        let remaining = if over > 0 {
            0
        } else {
            -over / self.rule.token + 1
        };
        DecisionInfo {
            outcome,
            capacity: capacity as u64,
            remaining: remaining as u64,
            retry_after,
            reset_after: nanos(ahead),
            delay,
        }
    }
}

#[derive(Clone, Debug)]
struct Window {
    algorithm: Algorithm,
    most: u64,
    window: u64,
    /// What was admitted, at the times it was judged at.
    events: Vec<Event>,
}

impl Window {
    /// The window that the first hit opened last: its start and what is in it.
    fn first_hit(&self) -> Option<(u64, u64)> {
        let paid = self.events.iter().filter(|event| event.cost > 0);
        paid.fold(None, |open, event| match open {
            Some((began, count)) if event.at - began < self.window => {
                Some((began, count + event.cost))
            }
            _ => Some((event.at, event.cost)),
        })
    }

    /// An instant before the stored state is judged there: at the start of the stored window, or at
    /// the newest entry.
    fn judged_at(&self, now: u64) -> u64 {
        let Some(last) = self.events.last() else {
            return now;
        };
        let start_of = |length: u64| last.at - last.at % length;
        now.max(match self.algorithm {
            Algorithm::SlidingLog => last.at,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => start_of(self.window),
            Algorithm::SlidingWindowStrict => start_of(self.window / strict_steps(self.window)),
            Algorithm::FixedWindowFirstHit => self.first_hit().map_or(0, |(began, _)| began),
            other => panic!("{other}"),
        })
    }

    fn admitted(&self, inside: impl Fn(u64) -> bool) -> u128 {
        self.events
            .iter()
            .filter(|event| inside(event.at))
            .map(|event| u128::from(event.cost))
            .sum()
    }

    /// What is counted at `now`, in parts of 1/window so that the weighted counter is whole too.
    fn counted(&self, now: u64) -> u128 {
        let (window, whole, now) = (self.window, u128::from(self.window), self.judged_at(now));
        match self.algorithm {
            Algorithm::SlidingLog => self.admitted(|at| at + window > now) * whole,
            Algorithm::FixedWindow => self.admitted(|at| at / window == now / window) * whole,
            Algorithm::FixedWindowFirstHit => match self.first_hit() {
                Some((began, count)) if now - began < window => u128::from(count) * whole,
                _ => 0,
            },
            Algorithm::SlidingWindow => {
                let (index, inside) = (now / window, window - now % window);
                let before = self.admitted(|at| at / window + 1 == index);
                before * u128::from(inside) + self.admitted(|at| at / window == index) * whole
            }
            Algorithm::SlidingWindowStrict => {
                let steps = strict_steps(window);
                let step = |at: u64| at / (window / steps);
                self.admitted(|at| step(at) + steps >= step(now)) * whole
            }
            other => panic!("{other}"),
        }
    }

    /// The first instant from `now` on for which `yes` holds; it holds from there on.
    fn first(&self, now: u64, yes: impl Fn(u64) -> bool) -> u64 {
        let (mut low, mut high) = (now, self.judged_at(now) + 3 * self.window);
        while low < high {
            let middle = low + (high - low) / 2;
            if yes(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn look(&self, now: u64, Call { cost, reserve, .. }: Call) -> DecisionInfo {
        let (whole, most) = (u128::from(self.window), self.most.saturating_sub(reserve));
        let room = u128::from(most) * whole;
        let fits = |at: u64| self.counted(at) + u128::from(cost) * whole <= room;
        let outcome = match cost {
            _ if cost > most => Outcome::Never,
            _ if fits(now) => Outcome::Allowed,
            _ => Outcome::Denied,
        };
        let after = |instant: u64| Duration::from_nanos(instant - now);
        DecisionInfo {
            outcome,
            capacity: most,
            remaining: (room.saturating_sub(self.counted(now)) / whole) as u64,
            retry_after: (outcome == Outcome::Denied).then(|| after(self.first(now, fits))),
            reset_after: after(self.first(now, |at| self.counted(at) == 0)),
            delay: Duration::ZERO,
        }
    }
}

/// The number of steps of the strict sliding window: the largest up to ten that divides the window,
/// in whole microseconds if it is whole microseconds.
pub(crate) fn strict_steps(window: u64) -> u64 {
    let divided = if window.is_multiple_of(1_000) {
        window / 1_000
    } else {
        window
    };
    (1..=10)
        .rev()
        .find(|steps| divided.is_multiple_of(*steps))
        .expect("1 divides")
}

//! A model of one subject under one limit, decided from its whole history as
//! docs/spec/algorithms.md defines it. It shares no code with the crate, forgets nothing, and can
//! be cloned: what would have happened is asked of a clone.

use super::oracle::{Event, Rule, ceil, tokens_in_call_order};
use ratekeeper::{Algorithm, Decision, Limit, Outcome};
use std::time::Duration;

/// The decision that a caller gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) outcome: Outcome,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) reset_after: Duration,
    pub(crate) delay: Duration,
}

impl From<Decision> for Told {
    fn from(decision: Decision) -> Self {
        Self {
            outcome: decision.outcome(),
            limit: decision.capacity(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            delay: decision.delay(),
        }
    }
}

/// A call: its cost, the reserve it must leave, and its longest wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Call {
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) max_wait: u64,
}

impl Call {
    pub(crate) fn of(cost: u64) -> Self {
        Self {
            cost,
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
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
    pub(crate) fn new(limit: Limit) -> Self {
        let state = match limit.algorithm_kind() {
            _ if limit.is_unlimited() => State::Unlimited,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => State::Bucket(Bucket {
                rule: Rule::decided(&limit),
                start: None,
                calls: Vec::new(),
            }),
            Algorithm::Pacing => {
                assert!(limit.effective().is_none(), "{limit} is rounded");
                State::Queue(Queue {
                    rule: Rule::written(&limit),
                    longest: longest_wait(&limit),
                    calls: Vec::new(),
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

    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    /// The decision on a call at `now`, without charging.
    pub(crate) fn peek(&self, now: u64, cost: u64) -> Told {
        self.look(now, Call::of(cost))
    }

    /// The decision on a call at `now`, which is charged if it is allowed.
    pub(crate) fn check(&mut self, now: u64, cost: u64) -> Told {
        self.call(now, Call::of(cost))
    }

    pub(crate) fn call(&mut self, now: u64, call: Call) -> Told {
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
        Told {
            outcome: Outcome::Allowed,
            retry_after: None,
            delay: before.delay,
            ..after
        }
    }

    /// Writes an admission.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) {
        match &mut self.state {
            State::Unlimited => {}
            _ if cost == 0 => {}
            State::Bucket(bucket) => bucket.calls.push(Event { at: now, cost }),
            State::Queue(queue) => queue.calls.push(Event { at: now, cost }),
            State::Window(window) => {
                let at = window.judged_at(now);
                window.events.push(Event { at, cost });
            }
        }
    }

    pub(crate) fn look(&self, now: u64, call: Call) -> Told {
        match &self.state {
            State::Unlimited => Told {
                outcome: Outcome::Allowed,
                limit: u64::MAX,
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
    pub(crate) fn is_fresh(&self, now: u64) -> bool {
        self.peek(now, 0).reset_after == Duration::ZERO
    }

    /// Whether the result of a call is unspecified: one of cost 0 after a change, or at a stale
    /// instant, that finds more in a window than fits.
    pub(crate) fn is_silent_on(&self, now: u64, cost: u64) -> bool {
        self.is_silent_on_call(now, Call::of(cost))
    }

    pub(crate) fn is_silent_on_call(&self, now: u64, call: Call) -> bool {
        matches!(self.state, State::Window(_))
            && call.cost == 0
            && self.look(now, call).outcome == Outcome::Denied
    }

    /// A live change that keeps the level, as far as docs/spec/algorithms.md specifies it: between
    /// buckets, and between windows of which only the count changes.
    pub(crate) fn keep(&mut self, limit: Limit, now: u64) {
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

/// M, in nanoseconds, of a limit that is exact.
fn longest_wait(limit: &Limit) -> i128 {
    // A queue of Q + 1 waits for Q intervals; a longest wait is read from the text.
    let text = limit.to_string();
    let rule = Rule::written(limit);
    match text.split_once(" wait ") {
        None => (i128::from(limit.capacity()) - 1) * rule.token,
        Some(_) => panic!("{text}: tell the model a queue"),
    }
}

/// Nanoseconds as reported; never is the longest duration.
fn told(nanos: Option<i128>) -> Duration {
    nanos.map_or(Duration::MAX, |nanos| {
        Duration::from_nanos(nanos.try_into().expect("a time that 64 bits can tell"))
    })
}

#[derive(Clone, Debug)]
struct Bucket {
    rule: Rule,
    /// The level in parts that a change left, and when.
    start: Option<(u64, i128)>,
    /// In the order of the calls.
    calls: Vec<Event>,
}

impl Bucket {
    /// In parts; negative while there is debt.
    fn tokens(&self, t: u64) -> i128 {
        let all = tokens_in_call_order(&self.rule, &self.calls, t);
        let Some((at, level)) = self.start else {
            return all;
        };
        let spent = self
            .calls
            .iter()
            .map(|call| i128::from(call.cost))
            .sum::<i128>()
            * self.rule.token;
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
    ) -> Told {
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
                Some(told(Some(wait - patience))),
                Duration::ZERO,
            ),
            wait => (Outcome::Allowed, None, told(wait)),
        };
        Told {
            outcome,
            limit: burst as u64,
            remaining: self.rule.whole(tokens),
            retry_after,
            reset_after: told(self.rule.nanos_for(burst * self.rule.token - tokens)),
            delay,
        }
    }
}

#[derive(Clone, Debug)]
struct Queue {
    /// A nanosecond is `per_nano` parts, an interval `token` parts.
    rule: Rule,
    /// M in parts.
    longest: i128,
    calls: Vec<Event>,
}

impl Queue {
    /// F in parts, from every call that was admitted.
    fn free(&self) -> i128 {
        self.calls.iter().fold(i128::MIN, |free, call| {
            free.max(i128::from(call.at) * self.rule.per_nano)
                + i128::from(call.cost) * self.rule.token
        })
    }

    fn look(&self, now: u64, Call { cost, reserve, .. }: Call) -> Told {
        assert_eq!(reserve, 0, "what a reserve is to a queue is not said");
        let clock = i128::from(now) * self.rule.per_nano;
        let nanos = |parts: i128| told(Some(ceil(parts, self.rule.per_nano)));
        let ahead = self.free().saturating_sub(clock).max(0);
        let limit = self.longest / self.rule.token + 1;
        let over = ahead - self.longest;
        let (outcome, retry_after, delay) = match over {
            _ if i128::from(cost) > limit => (Outcome::Never, None, Duration::ZERO),
            1.. => (Outcome::Denied, Some(nanos(over)), Duration::ZERO),
            _ => (Outcome::Allowed, None, nanos(ahead)),
        };
        let remaining = if over > 0 {
            0
        } else {
            -over / self.rule.token + 1
        };
        Told {
            outcome,
            limit: limit as u64,
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
    fn steps(&self) -> u64 {
        super::bounds::steps(self.window)
    }

    /// The window that the first hit opened last: its start and what is in it.
    fn first_hit(&self) -> Option<(u64, u64)> {
        self.events.iter().fold(None, |open, event| match open {
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
            Algorithm::SlidingWindowStrict => start_of(self.window / self.steps()),
            Algorithm::FixedWindowFirstHit => self.first_hit().expect("an event").0,
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
                let steps = self.steps();
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

    fn look(&self, now: u64, Call { cost, reserve, .. }: Call) -> Told {
        let (whole, most) = (u128::from(self.window), self.most.saturating_sub(reserve));
        let room = u128::from(most) * whole;
        let fits = |at: u64| self.counted(at) + u128::from(cost) * whole <= room;
        let outcome = match cost {
            _ if cost > most => Outcome::Never,
            _ if fits(now) => Outcome::Allowed,
            _ => Outcome::Denied,
        };
        let after = |instant: u64| Duration::from_nanos(instant - now);
        Told {
            outcome,
            limit: most,
            remaining: (room.saturating_sub(self.counted(now)) / whole) as u64,
            retry_after: (outcome == Outcome::Denied).then(|| after(self.first(now, fits))),
            reset_after: after(self.first(now, |at| self.counted(at) == 0)),
            delay: Duration::ZERO,
        }
    }
}

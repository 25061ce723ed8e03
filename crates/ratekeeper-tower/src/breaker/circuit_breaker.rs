//! The circuit breaker's state machine: when it opens, which calls it allows, when it closes. It
//! uses no mutex, no timer and no tower types.

use super::builder::CircuitBreakerBuilder;
use super::guard::{CallGuard, CallOrigin, CircuitOpenError};
use super::packed_state::{Kind, PackedState};
use super::probes::{ProbeAttempt, Probes, Slot};
use super::state::{Force, State};
use super::window::{Window, WindowStats};
use ratekeeper::{Clock, Timestamp, clock::SystemClock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Stops calls to a service that keeps failing, and finds out with a few probes when it has
/// recovered.
///
/// - **Closed**: calls are allowed. It opens when, of at least 20 calls in the last 10 seconds,
///   half have failed or 80 % were slow.
/// - **Open**: no call is allowed, for 5 seconds and up to 10 % more.
/// - **Half-open**: 3 probes are allowed. If all succeed it closes; if one fails it opens again for
///   twice as long, up to a minute. A probe that is dropped, or has no outcome within 10 seconds,
///   frees its slot for another.
///
/// All of these numbers can be set with the [builder](CircuitBreaker::builder). A handle: clones
/// share the state.
///
/// ```
/// use ratekeeper_tower::CircuitBreaker;
/// # fn query() -> Result<u32, std::io::Error> { Ok(1) }
///
/// let breaker = CircuitBreaker::new();
/// match breaker.try_acquire() {
///     Ok(call) => match query() {
///         Ok(_) => call.success(),
///         Err(_) => call.failure(),
///     },
///     Err(open) => println!("circuit open; retry after {:?}", open.retry_after()),
/// }
/// ```
pub struct CircuitBreaker<C: Clock = SystemClock> {
    shared: Arc<BreakerShared<C>>,
}

struct BreakerShared<C: Clock> {
    /// A [`PackedState`].
    state: AtomicU64,
    window: Window,
    probes: Probes,
    counters: Counters,
    /// The origin of all times in this module.
    created: Timestamp,
    settings: CircuitBreakerBuilder<C>,
}

#[derive(Default)]
struct Counters {
    calls: AtomicU64,
    failures: AtomicU64,
    slow: AtomicU64,
    rejected: AtomicU64,
    opened: AtomicU64,
}

/// Counters of a [`CircuitBreaker`] since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CircuitBreakerStats {
    /// Calls that succeeded or failed, without those that were ignored.
    pub calls: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that were slow, whether they failed or not.
    pub slow: u64,
    /// Calls that were rejected.
    pub rejected: u64,
    /// How often it has opened, not counting when it was forced open.
    pub opened: u64,
}

impl CircuitBreaker {
    /// A breaker with the default settings.
    pub fn new() -> Self {
        Self::from_builder(Self::builder())
    }

    /// A builder, to change settings.
    pub fn builder() -> CircuitBreakerBuilder {
        CircuitBreakerBuilder::default()
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> CircuitBreaker<C> {
    pub(super) fn from_builder(settings: CircuitBreakerBuilder<C>) -> Self {
        let shared = BreakerShared {
            state: AtomicU64::new(PackedState::FIRST.bits()),
            window: Window::new(settings.buckets, nanos(settings.bucket_length)),
            probes: Probes::new(settings.probes),
            counters: Counters::default(),
            created: settings.clock.now(),
            settings,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Requests permission to make a call. Report its outcome to the guard.
    pub fn try_acquire(&self) -> Result<CallGuard<C>, CircuitOpenError> {
        let shared = &*self.shared;
        loop {
            let state = shared.load();
            let generation = state.generation();
            match state.kind() {
                Kind::Closed | Kind::ForcedClosed | Kind::MetricsOnly => {
                    let started = shared
                        .settings
                        .slow_after
                        .map(|_| shared.settings.clock.now());
                    return Ok(CallGuard::new(
                        self.clone(),
                        started,
                        CallOrigin {
                            generation,
                            slot: None,
                        },
                    ));
                }
                Kind::ForcedOpen => return Err(shared.reject(shared.settings.open_for)),
                Kind::Open => {
                    let left = shared.time_left(state.until(), shared.settings.clock.now());
                    if !left.is_zero() {
                        return Err(shared.reject(left));
                    }
                    shared.swap(state, state.to_half_open());
                }
                Kind::HalfOpen => {
                    let now = shared.settings.clock.now();
                    let since = shared.since_created(now);
                    let until = ms_up(since.saturating_add(nanos(shared.settings.probe_timeout)));
                    match shared
                        .probes
                        .take(generation, ms_down(since), until, || shared.load() == state)
                    {
                        ProbeAttempt::Slot(slot) if shared.load() == state => {
                            return Ok(CallGuard::new(
                                self.clone(),
                                Some(now),
                                CallOrigin {
                                    generation,
                                    slot: Some(slot),
                                },
                            ));
                        }
                        // Half-open has ended in between: this is not a probe of it.
                        ProbeAttempt::Slot(slot) => shared.probes.free(slot),
                        ProbeAttempt::AllTaken { soonest } => {
                            return Err(
                                shared.reject(shared.time_left(soonest, now).min(MAX_PROBE_WAIT))
                            );
                        }
                        // The thread that saw the last success has not closed it yet.
                        ProbeAttempt::AllSucceeded => {
                            _ = shared.swap(state, state.to(Kind::Closed));
                        }
                        ProbeAttempt::Stale => {}
                    }
                }
            }
        }
    }

    /// The current state.
    pub fn state(&self) -> State {
        let state = self.shared.load();
        match state.kind() {
            Kind::Closed => State::Closed,
            Kind::Open
                if self
                    .shared
                    .time_left(state.until(), self.shared.settings.clock.now())
                    .is_zero() =>
            {
                State::HalfOpen
            }
            Kind::Open => State::Open,
            Kind::HalfOpen => State::HalfOpen,
            Kind::ForcedOpen => State::ForcedOpen,
            Kind::ForcedClosed => State::ForcedClosed,
            Kind::MetricsOnly => State::MetricsOnly,
        }
    }

    /// Forces a state, or returns to automatic. Calls in progress do not affect the new state.
    pub fn force(&self, force: Force) {
        loop {
            let state = self.shared.load();
            let kind = match force {
                Force::Open => Kind::ForcedOpen,
                Force::Closed => Kind::ForcedClosed,
                Force::MetricsOnly => Kind::MetricsOnly,
                Force::Auto
                    if matches!(state.kind(), Kind::Closed | Kind::Open | Kind::HalfOpen) =>
                {
                    return;
                }
                Force::Auto => Kind::Closed,
            };
            if state.kind() == kind || self.shared.swap(state, state.to(kind)) {
                return;
            }
        }
    }

    /// Counters since it was made.
    pub fn stats(&self) -> CircuitBreakerStats {
        let Counters {
            calls,
            failures,
            slow,
            rejected,
            opened,
        } = &self.shared.counters;
        let [calls, failures, slow, rejected, opened] =
            [calls, failures, slow, rejected, opened].map(|count| count.load(Relaxed));
        CircuitBreakerStats {
            calls,
            failures,
            slow,
            rejected,
            opened,
        }
    }

    /// The calls in its window: those of the last 10 seconds since it was closed or set to count
    /// only; all zero while it is open or half-open.
    pub fn recent(&self) -> WindowStats {
        let shared = &*self.shared;
        let now = shared.since_created(shared.settings.clock.now());
        shared.window.sums(shared.load().generation(), now)
    }

    pub(super) fn record(&self, origin: CallOrigin, started: Option<Timestamp>, failed: bool) {
        self.shared.record(origin, started, failed);
    }

    pub(super) fn free(&self, slot: Slot) {
        self.shared.probes.free(slot);
    }
}

/// The maximum Retry-After of rejections while probes are in flight: their outcome may come at any
/// moment.
const MAX_PROBE_WAIT: Duration = Duration::from_secs(1);

impl<C: Clock> BreakerShared<C> {
    fn record(&self, origin: CallOrigin, started: Option<Timestamp>, failed: bool) {
        let instant = self.settings.clock.now();
        let now = self.since_created(instant);
        let took = started.map(|started| instant.saturating_since(started));
        let slow = took
            .zip(self.settings.slow_after)
            .is_some_and(|(took, slow_after)| took > slow_after);
        self.counters.calls.fetch_add(1, Relaxed);
        self.counters.failures.fetch_add(failed.into(), Relaxed);
        self.counters.slow.fetch_add(slow.into(), Relaxed);

        let state = self.load();
        if state.generation() != origin.generation {
            return;
        }
        match (state.kind(), origin.slot) {
            (Kind::HalfOpen, Some(_)) if failed || slow => {
                self.open(state, state.streak() + 1, now);
            }
            (Kind::HalfOpen, Some(slot)) => self.succeed(state, slot),
            (Kind::MetricsOnly, _) => self.window.add(state.generation(), now, failed, slow),
            (Kind::Closed, _) => {
                self.window.add(state.generation(), now, failed, slow);
                if self.should_open(self.window.sums(state.generation(), now)) {
                    self.open(state, 0, now);
                }
            }
            _ => {}
        }
    }

    /// Records the success of a probe, and closes the breaker if it was the last one missing.
    fn succeed(&self, state: PackedState, slot: Slot) {
        if self.probes.succeed(slot, || self.load() == state) {
            self.swap(state, state.to(Kind::Closed));
        }
    }

    fn should_open(&self, recent: WindowStats) -> bool {
        let reaches = |part: u64, percent: u32| part * 100 >= recent.calls * u64::from(percent);
        recent.calls >= self.settings.min_calls
            && (reaches(recent.failures, self.settings.failure_percent)
                || reaches(recent.slow, self.settings.slow_percent))
    }

    /// Opens it, unless its state was changed concurrently.
    fn open(&self, state: PackedState, streak: u8, now: u64) {
        let time = self.open_time(state.generation(), streak);
        if self.swap(
            state,
            state.to_open(streak, ms_up(now.saturating_add(time))),
        ) {
            self.counters.opened.fetch_add(1, Relaxed);
        }
    }

    /// How long it stays open after this many failed recoveries in a row. The generation is the
    /// step of the jitter's random generator.
    fn open_time(&self, generation: u16, streak: u8) -> u64 {
        let doubled = u128::from(nanos(self.settings.open_for)) << streak;
        let time = doubled.min(u128::from(nanos(self.settings.max_open_for))) as u64;
        let max = u128::from(time) * u128::from(self.settings.jitter_percent) / 100;
        let jitter = (max * u128::from(split_mix(self.settings.seed, generation))) >> 64;
        time.saturating_add(jitter as u64)
    }

    fn load(&self) -> PackedState {
        PackedState::from_bits(self.state.load(SeqCst))
    }

    fn swap(&self, from: PackedState, to: PackedState) -> bool {
        self.state
            .compare_exchange(from.bits(), to.bits(), SeqCst, SeqCst)
            .is_ok()
    }

    fn reject(&self, retry_after: Duration) -> CircuitOpenError {
        self.counters.rejected.fetch_add(1, Relaxed);
        CircuitOpenError { retry_after }
    }

    fn since_created(&self, now: Timestamp) -> u64 {
        nanos(now.saturating_since(self.created))
    }

    /// The time from `now` until a time in milliseconds.
    fn time_left(&self, until: u64, now: Timestamp) -> Duration {
        Duration::from_nanos(
            until
                .saturating_mul(NANOS_PER_MS)
                .saturating_sub(self.since_created(now)),
        )
    }
}

const NANOS_PER_MS: u64 = 1_000_000;

fn ms_up(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_MS)
}

fn ms_down(nanos: u64) -> u64 {
    nanos / NANOS_PER_MS
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The random generator SplitMix64 at one of its steps.
fn split_mix(seed: u64, step: u16) -> u64 {
    let z = seed.wrapping_add((u64::from(step) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl<C: Clock> Clone for CircuitBreaker<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for CircuitBreaker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("state", &self.state())
            .field("stats", &self.stats())
            .finish()
    }
}

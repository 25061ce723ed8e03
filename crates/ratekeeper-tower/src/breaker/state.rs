//! The circuit breaker itself: when it opens, whom it lets through, when it closes. No mutex, no
//! timer, no tower.

use super::builder::CircuitBreakerBuilder;
use super::call::{Call, CircuitOpenError, Pass};
use super::mode::{Force, State};
use super::probes::{Probes, Slot, Taken};
use super::window::{Recent, Window};
use super::word::{Kind, Word};
use ratekeeper::{Clock, Timestamp, clock::SystemClock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Stops calling what keeps failing, and finds out by a few probes when it is well again.
///
/// - **Closed**: calls pass. It opens when of the last 10 seconds' calls, at least 20, half have
///   failed or 80 % were slow.
/// - **Open**: no call passes, for 5 seconds and a little more.
/// - **Half-open**: 3 probes pass. If all succeed it closes; if one fails it is open again, for
///   twice as long, up to a minute. A probe that is dropped, or not answered within 10 seconds,
///   makes room for another.
///
/// Each of these numbers is the [builder's](CircuitBreaker::builder). A handle: clones share the
/// state.
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
///     Err(open) => println!("not now; again in {:?}", open.retry_after()),
/// }
/// ```
pub struct CircuitBreaker<C: Clock = SystemClock> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: Clock> {
    /// A [`Word`].
    state: AtomicU64,
    window: Window,
    probes: Probes,
    totals: Totals,
    /// The zero of all times in here.
    born: Timestamp,
    settings: CircuitBreakerBuilder<C>,
}

#[derive(Default)]
struct Totals {
    calls: AtomicU64,
    failures: AtomicU64,
    slow: AtomicU64,
    rejected: AtomicU64,
    opened: AtomicU64,
}

/// What has happened to a [`CircuitBreaker`] since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CircuitBreakerStats {
    /// Calls that succeeded or failed; those that were ignored are not among them.
    pub calls: u64,
    /// Those that failed.
    pub failures: u64,
    /// Those that were slow, whether they failed or not.
    pub slow: u64,
    /// Calls that were not let through.
    pub rejected: u64,
    /// How often it has opened by itself.
    pub opened: u64,
}

impl CircuitBreaker {
    /// With the numbers above.
    pub fn new() -> Self {
        Self::from_builder(Self::builder())
    }

    /// To choose the numbers.
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
        let shared = Shared {
            state: AtomicU64::new(Word::FIRST.bits()),
            window: Window::new(settings.buckets, nanos(settings.bucket_length)),
            probes: Probes::new(settings.probes),
            totals: Totals::default(),
            born: settings.clock.now(),
            settings,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Asks whether to call. Say afterwards how it went.
    pub fn try_acquire(&self) -> Result<Call<C>, CircuitOpenError> {
        let shared = &*self.shared;
        loop {
            let word = shared.load();
            let generation = word.generation();
            match word.kind() {
                Kind::Closed | Kind::ForcedClosed | Kind::MetricsOnly => {
                    let started = shared
                        .settings
                        .slow_after
                        .map(|_| shared.settings.clock.now());
                    return Ok(Call::new(
                        self.clone(),
                        started,
                        Pass {
                            generation,
                            slot: None,
                        },
                    ));
                }
                Kind::ForcedOpen => return Err(shared.reject(shared.settings.open_for)),
                Kind::Open => {
                    let left = shared.left(word.until(), shared.settings.clock.now());
                    if !left.is_zero() {
                        return Err(shared.reject(left));
                    }
                    shared.swap(word, word.to_half_open());
                }
                Kind::HalfOpen => {
                    let now = shared.settings.clock.now();
                    let since = shared.since_born(now);
                    let until = ms_up(since.saturating_add(nanos(shared.settings.probe_deadline)));
                    match shared
                        .probes
                        .take(generation, ms_down(since), until, || shared.load() == word)
                    {
                        Taken::Slot(slot) if shared.load() == word => {
                            return Ok(Call::new(
                                self.clone(),
                                Some(now),
                                Pass {
                                    generation,
                                    slot: Some(slot),
                                },
                            ));
                        }
                        // Half-open has ended in between: this is no probe of it.
                        Taken::Slot(slot) => shared.probes.free(slot),
                        Taken::None { soonest } => {
                            return Err(
                                shared.reject(shared.left(soonest, now).min(PROBES_ARE_OUT))
                            );
                        }
                        // Whoever saw the last success has yet to close it.
                        Taken::AllSucceeded => _ = shared.swap(word, word.to(Kind::Closed)),
                        Taken::TooLate => {}
                    }
                }
            }
        }
    }

    /// What it is doing now.
    pub fn state(&self) -> State {
        let word = self.shared.load();
        match word.kind() {
            Kind::Closed => State::Closed,
            Kind::Open
                if self
                    .shared
                    .left(word.until(), self.shared.settings.clock.now())
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

    /// Takes it out of its own hands, or gives it back. Calls that are under way have no say in
    /// what comes after.
    pub fn force(&self, force: Force) {
        loop {
            let word = self.shared.load();
            let kind = match force {
                Force::Open => Kind::ForcedOpen,
                Force::Closed => Kind::ForcedClosed,
                Force::MetricsOnly => Kind::MetricsOnly,
                Force::Auto
                    if matches!(word.kind(), Kind::Closed | Kind::Open | Kind::HalfOpen) =>
                {
                    return;
                }
                Force::Auto => Kind::Closed,
            };
            if word.kind() == kind || self.shared.swap(word, word.to(kind)) {
                return;
            }
        }
    }

    /// What it has seen since it was made.
    pub fn stats(&self) -> CircuitBreakerStats {
        let Totals {
            calls,
            failures,
            slow,
            rejected,
            opened,
        } = &self.shared.totals;
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

    /// The calls it judges by: those of the last 10 seconds since it was closed (or only counts);
    /// none while it is open or half-open.
    pub fn recent(&self) -> Recent {
        let shared = &*self.shared;
        let now = shared.since_born(shared.settings.clock.now());
        shared.window.sums(shared.load().generation(), now)
    }

    pub(super) fn judge(&self, pass: Pass, started: Option<Timestamp>, failed: bool) {
        self.shared.judge(pass, started, failed);
    }

    pub(super) fn free(&self, slot: Slot) {
        self.shared.probes.free(slot);
    }
}

/// What the rejected are told at most while the probes are out: their answers may come at any
/// moment.
const PROBES_ARE_OUT: Duration = Duration::from_secs(1);

impl<C: Clock> Shared<C> {
    fn judge(&self, pass: Pass, started: Option<Timestamp>, failed: bool) {
        let instant = self.settings.clock.now();
        let now = self.since_born(instant);
        let took = started.map(|started| instant.saturating_since(started));
        let slow = took
            .zip(self.settings.slow_after)
            .is_some_and(|(took, longest)| took > longest);
        self.totals.calls.fetch_add(1, Relaxed);
        self.totals.failures.fetch_add(failed.into(), Relaxed);
        self.totals.slow.fetch_add(slow.into(), Relaxed);

        let word = self.load();
        if word.generation() != pass.generation {
            return;
        }
        match (word.kind(), pass.slot) {
            (Kind::HalfOpen, Some(_)) if failed || slow => self.open(word, word.streak() + 1, now),
            (Kind::HalfOpen, Some(slot)) => self.succeed(word, slot),
            (Kind::MetricsOnly, _) => self.window.add(word.generation(), now, failed, slow),
            (Kind::Closed, _) => {
                self.window.add(word.generation(), now, failed, slow);
                if self.is_too_bad(self.window.sums(word.generation(), now)) {
                    self.open(word, 0, now);
                }
            }
            _ => {}
        }
    }

    /// Notes the success of a probe, and closes if it was the last that was missing.
    fn succeed(&self, word: Word, slot: Slot) {
        if self.probes.succeed(slot, || self.load() == word) {
            self.swap(word, word.to(Kind::Closed));
        }
    }

    fn is_too_bad(&self, recent: Recent) -> bool {
        let reaches = |part: u64, percent: u32| part * 100 >= recent.calls * u64::from(percent);
        recent.calls >= self.settings.min_calls
            && (reaches(recent.failures, self.settings.failure_percent)
                || reaches(recent.slow, self.settings.slow_percent))
    }

    /// Opens it, unless somebody else has changed its state.
    fn open(&self, word: Word, streak: u8, now: u64) {
        let time = self.open_time(word.generation(), streak);
        if self.swap(word, word.to_open(streak, ms_up(now.saturating_add(time)))) {
            self.totals.opened.fetch_add(1, Relaxed);
        }
    }

    /// How long it is open after so many failed recoveries. The generation is the step of the
    /// jitter's generator.
    fn open_time(&self, generation: u16, streak: u8) -> u64 {
        let doubled = u128::from(nanos(self.settings.open_for)) << streak;
        let time = doubled.min(u128::from(nanos(self.settings.open_at_most))) as u64;
        let most = u128::from(time) * u128::from(self.settings.jitter_percent) / 100;
        let jitter = (most * u128::from(split_mix(self.settings.seed, generation))) >> 64;
        time.saturating_add(jitter as u64)
    }

    fn load(&self) -> Word {
        Word::from_bits(self.state.load(SeqCst))
    }

    fn swap(&self, from: Word, to: Word) -> bool {
        self.state
            .compare_exchange(from.bits(), to.bits(), SeqCst, SeqCst)
            .is_ok()
    }

    fn reject(&self, retry_after: Duration) -> CircuitOpenError {
        self.totals.rejected.fetch_add(1, Relaxed);
        CircuitOpenError { retry_after }
    }

    fn since_born(&self, now: Timestamp) -> u64 {
        nanos(now.saturating_since(self.born))
    }

    /// How long from `now` to a time in milliseconds.
    fn left(&self, until: u64, now: Timestamp) -> Duration {
        Duration::from_nanos(
            until
                .saturating_mul(NANOS_PER_MS)
                .saturating_sub(self.since_born(now)),
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

/// The generator SplitMix64 at one of its steps.
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
            .field("figures", &self.stats())
            .finish()
    }
}

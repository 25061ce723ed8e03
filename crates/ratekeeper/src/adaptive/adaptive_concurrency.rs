//! [`AdaptiveConcurrency`]: a concurrency limit that follows how the service responds.

use super::builder::AdaptiveConcurrencyBuilder;
use super::control::{Control, Controller, ControllerState, Sample, duration};
use super::partitions::{Partition, Partitions, PermitSource};
use super::permit::{AdaptivePermit, RequestOutcome};
use super::shed::Class;
use super::window::{Measurement, RequestEnd, Window};
use crate::clock::{Clock, SystemClock, Timestamp, nanos};
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use core::fmt;
use core::time::Duration;

/// A concurrency limit that adapts to how the service responds.
///
/// This is a handle: clones share the permits. Nothing blocks, nothing runs in the background, and
/// a permit costs no lock and no allocation.
///
/// ```
/// use ratekeeper::adaptive::{AdaptiveConcurrency, Control, RequestOutcome};
///
/// let limit = AdaptiveConcurrency::builder().min(5).max(200).start(20).control(Control::gradient2()).build();
/// match limit.try_acquire() {
///     Ok(permit) => {
///         // serve the request to its very end, then report its outcome
///         permit.finish(RequestOutcome::Success);
///     }
///     Err(at_capacity) => println!("denied: {at_capacity}"),
/// }
/// ```
///
/// Partitions of the callers can be guaranteed a share of the limit ([how
/// exactly](AdaptiveConcurrencyBuilder::partition)):
///
/// ```
/// use ratekeeper::adaptive::AdaptiveConcurrency;
///
/// let limit = AdaptiveConcurrency::builder().start(20).partition("live", 0.6)?.partition("batch", 0.1)?.build();
/// let (live, batch) = (limit.partition("live").unwrap(), limit.partition("batch").unwrap());
/// let held: Vec<_> = std::iter::from_fn(|| limit.try_acquire_in(batch).ok()).collect();
/// assert_eq!(held.len(), 8); // its own 2, and the 6 that are guaranteed to none
/// assert_eq!(std::iter::from_fn(|| limit.try_acquire_in(live).ok()).take(12).count(), 12);
/// # Ok::<_, ratekeeper::adaptive::PartitionShareError>(())
/// ```
pub struct AdaptiveConcurrency<C: Clock = SystemClock> {
    shared: Arc<AdaptiveConcurrencyState<C>>,
}

struct AdaptiveConcurrencyState<C> {
    in_flight: AtomicU64,
    /// The current limit, which a probe lowers.
    limit: AtomicU64,
    window: Window,
    partitions: Partitions,
    /// 1 while a thread takes a step.
    stepping: AtomicU32,
    /// The state of the controller, written by the thread that takes a step.
    state: [AtomicU64; ControllerState::WORDS],
    /// When the current probe expires, in nanoseconds since 1970; `NO_PROBE` if there is none.
    probe_until: AtomicU64,
    drops: AtomicU64,
    /// The latency from which a request counts as dropped.
    drops_after: Duration,
    settings: AdaptiveConcurrencyBuilder,
    clock: C,
}

/// How many of `limit` may be in flight including a request of this class. At least one: a class
/// that is never admitted is never measured.
fn class_limit(class: Class, limit: u64) -> u64 {
    let percent = match class {
        Class::Sheddable => 30,
        Class::SheddablePlus => 50,
        Class::Critical => 80,
        Class::CriticalPlus => return limit,
    };
    (limit * percent / 100).max(1)
}

const NO_PROBE: u64 = u64::MAX;
/// Slow requests make windows no longer than this.
const MAX_WINDOW: Duration = Duration::from_secs(1);

impl AdaptiveConcurrency {
    /// Returns a builder with default settings.
    pub fn builder() -> AdaptiveConcurrencyBuilder {
        AdaptiveConcurrencyBuilder::default()
    }
}

impl<C: Clock> AdaptiveConcurrency<C> {
    pub(super) fn new(
        settings: AdaptiveConcurrencyBuilder,
        partitions: Partitions,
        clock: C,
    ) -> Self {
        let controller = settings.controller();
        let shared = AdaptiveConcurrencyState {
            in_flight: AtomicU64::new(0),
            limit: AtomicU64::new(controller.limit()),
            window: Window::new(),
            partitions,
            stepping: AtomicU32::new(0),
            state: controller.state.to_words().map(AtomicU64::new),
            probe_until: AtomicU64::new(NO_PROBE),
            drops: AtomicU64::new(0),
            drops_after: settings.control.drops_after().unwrap_or(Duration::MAX),
            settings,
            clock,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Takes a permit if the limit allows it beside what is guaranteed to partitions.
    #[inline]
    pub fn try_acquire(&self) -> Result<AdaptivePermit<C>, AtCapacityError> {
        self.acquire(None, Class::CriticalPlus, None)
    }

    /// [`try_acquire`](Self::try_acquire) at a time that you have already read from the same clock:
    /// [finish](AdaptivePermit::finish_at) the permit with a time as well.
    pub fn try_acquire_at(&self, now: Timestamp) -> Result<AdaptivePermit<C>, AtCapacityError> {
        self.acquire(None, Class::CriticalPlus, Some(now))
    }

    /// Takes a permit of a partition: under its guarantee, or else as
    /// [`try_acquire`](Self::try_acquire) does.
    pub fn try_acquire_in(
        &self,
        partition: Partition,
    ) -> Result<AdaptivePermit<C>, AtCapacityError> {
        self.acquire(Some(partition), Class::CriticalPlus, None)
    }

    /// Takes a permit for a request of this class, in a partition or in none, if the part of the
    /// limit that is open to the class allows it: `sheddable` may use 30 % of the limit,
    /// `sheddable_plus` 50 %, `critical` 80 %, `critical_plus` all.
    ///
    /// The total in flight counts, not that of each class: while 80 % are in use, only
    /// `critical_plus` is allowed, and requests within the guarantee of their partition. No
    /// capacity lies idle for that, since the limit follows how the service responds: with
    /// sheddable requests alone it grows until 30 % of it is what the service can serve.
    ///
    /// ```
    /// use ratekeeper::{adaptive::AdaptiveConcurrency, adaptive::Class};
    ///
    /// let limit = AdaptiveConcurrency::builder().start(20).build();
    /// let held: Vec<_> = std::iter::from_fn(|| limit.try_acquire_as(Class::Sheddable, None).ok()).collect();
    /// assert_eq!(held.len(), 6);
    /// assert!(limit.try_acquire_as(Class::Critical, None).is_ok());
    /// ```
    #[inline]
    pub fn try_acquire_as(
        &self,
        class: Class,
        partition: Option<Partition>,
    ) -> Result<AdaptivePermit<C>, AtCapacityError> {
        self.acquire(partition, class, None)
    }

    /// [`try_acquire_as`](Self::try_acquire_as) at a time that you have already read, as in
    /// [`try_acquire_at`](Self::try_acquire_at).
    pub fn try_acquire_as_at(
        &self,
        class: Class,
        partition: Option<Partition>,
        now: Timestamp,
    ) -> Result<AdaptivePermit<C>, AtCapacityError> {
        self.acquire(partition, class, Some(now))
    }

    /// The partition with this name.
    pub fn partition(&self, name: &str) -> Option<Partition> {
        self.shared.partitions.find(name)
    }

    /// How many permits are in flight in a partition, and how many are guaranteed to it at the
    /// current limit.
    pub fn in_flight_in(&self, partition: Partition) -> (u64, u64) {
        let partitions = &self.shared.partitions;
        (
            partitions.in_flight(partition),
            partitions.guaranteed(partition, self.limit()),
        )
    }

    /// The current limit.
    pub fn limit(&self) -> u64 {
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// How many permits are in flight.
    pub fn in_flight(&self) -> u64 {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the limit is lowered for a moment, to measure the latency without a queue.
    pub fn is_probing(&self) -> bool {
        self.shared.probe_until.load(Ordering::Relaxed) != NO_PROBE
    }

    /// The algorithm that moves the limit.
    pub fn control(&self) -> Control {
        self.shared.settings.control
    }

    /// The current state.
    pub fn snapshot(&self) -> Snapshot {
        let shared = &*self.shared;
        let bounds = shared.settings.bounds();
        let latency =
            |word: usize| duration(f64::from_bits(shared.state[word].load(Ordering::Relaxed)));
        Snapshot {
            limit: self.limit(),
            min: bounds.min,
            max: bounds.max,
            in_flight: self.in_flight(),
            short: latency(ControllerState::SHORT),
            long: latency(ControllerState::LONG),
            drops: shared.drops.load(Ordering::Relaxed),
            probing: self.is_probing(),
        }
    }

    /// The clock by which latency is measured.
    pub fn clock(&self) -> &C {
        &self.shared.clock
    }

    // Always inlined: a permit is slow to move.
    #[inline(always)]
    fn acquire(
        &self,
        partition: Option<Partition>,
        class: Class,
        now: Option<Timestamp>,
    ) -> Result<AdaptivePermit<C>, AtCapacityError> {
        let shared = &*self.shared;
        let Some(in_flight) = shared.take(partition, class) else {
            return Err(self.at_capacity(now));
        };
        let measured = shared
            .window
            .sample_next()
            .map(|sampling_shift| Measurement {
                start: now.unwrap_or_else(|| shared.clock.now()),
                sampling_shift,
            });
        Ok(AdaptivePermit::new(
            self.clone(),
            partition,
            in_flight,
            measured,
        ))
    }

    #[cold]
    fn at_capacity(&self, now: Option<Timestamp>) -> AtCapacityError {
        // If all requests are denied, the limit is in use, though part of it may be reserved for
        // other classes.
        self.shared.window.record_peak(self.limit());
        self.shared
            .end_probe(|| now.unwrap_or_else(|| self.shared.clock.now()));
        AtCapacityError {
            in_flight: self.in_flight(),
            limit: self.limit(),
        }
    }

    pub(super) fn give_back(&self, partition: Option<Partition>) {
        self.shared.in_flight.fetch_sub(1, Ordering::SeqCst);
        if !self.shared.partitions.is_empty() {
            self.shared.partitions.give_back(partition);
        }
    }

    /// Records a request that was served but not measured.
    pub(super) fn record_unmeasured(&self, in_flight: u64) {
        self.shared.window.record_peak(in_flight);
    }

    pub(super) fn record(
        &self,
        outcome: RequestOutcome,
        in_flight: u64,
        measured: Option<Measurement>,
        now: Timestamp,
    ) {
        let shared = &*self.shared;
        let seen = match (outcome, measured) {
            (RequestOutcome::Success, None) => return self.record_unmeasured(in_flight),
            (
                RequestOutcome::Success,
                Some(Measurement {
                    start,
                    sampling_shift,
                }),
            ) => match now - start {
                took if took < shared.drops_after => RequestEnd::In(took, 1 << sampling_shift),
                _ => RequestEnd::TooLate(1 << sampling_shift),
            },
            _ => RequestEnd::Dropped,
        };
        match seen {
            RequestEnd::In(..) => {}
            RequestEnd::TooLate(many) => shared.count_drops(many),
            RequestEnd::Dropped => shared.count_drops(1),
        }
        if shared.window.add(seen, in_flight, now.as_unix_nanos()) {
            shared.step(|controller| shared.close_window(controller, now));
        }
    }
}

impl<C: Clock> AdaptiveConcurrencyState<C> {
    /// Takes one permit; returns how many are then in flight.
    #[inline]
    fn take(&self, partition: Option<Partition>, class: Class) -> Option<u64> {
        let limit = self.limit.load(Ordering::SeqCst);
        // The partition's share first: a request that finds none has then not blocked others from
        // the rest.
        let taken = if self.partitions.is_empty() {
            PermitSource::Shared
        } else {
            self.partitions.take(partition, limit)?
        };
        // A guarantee holds for every class.
        let available = if taken == PermitSource::Guaranteed {
            limit
        } else {
            class_limit(class, limit)
        };
        let fits = |in_flight: u64| (in_flight < available).then_some(in_flight + 1);
        match self
            .in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits)
        {
            Ok(before) => Some(before + 1),
            Err(_) => {
                if !self.partitions.is_empty() {
                    self.partitions.give_back(partition);
                }
                None
            }
        }
    }

    fn count_drops(&self, many: u64) {
        self.drops.fetch_add(many, Ordering::Relaxed);
    }

    /// Ends an expired probe, when the limit is found in use while nothing finishes.
    fn end_probe(&self, now: impl FnOnce() -> Timestamp) {
        let until = self.probe_until.load(Ordering::Relaxed);
        if until == NO_PROBE {
            return;
        }
        let now = now();
        if now.as_unix_nanos() >= until {
            self.step(|controller| controller.tick(now));
        }
    }

    /// Lets the controller take a step, unless another thread does so already. Never waits.
    #[cold]
    fn step(&self, take: impl FnOnce(&mut Controller) -> u64) {
        if self
            .stepping
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let mut controller = self.settings.controller();
        let words = core::array::from_fn(|i| self.state[i].load(Ordering::Relaxed));
        controller.state = ControllerState::from_words(words);
        let limit = take(&mut controller);
        for (word, value) in self.state.iter().zip(controller.state.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        let probe_until = controller
            .probing_until()
            .map_or(NO_PROBE, Timestamp::as_unix_nanos);
        self.probe_until.store(probe_until, Ordering::Relaxed);
        self.limit.store(limit, Ordering::SeqCst);
        self.stepping.store(0, Ordering::Release);
    }

    fn close_window(&self, controller: &mut Controller, now: Timestamp) -> u64 {
        // Another thread may have closed it since it was found due.
        if !self.window.is_due(now.as_unix_nanos()) {
            return controller.limit();
        }
        let seen = self.window.take(now.as_unix_nanos());
        let length = (seen.latency * 2).min(MAX_WINDOW).max(self.settings.window);
        self.window
            .set_due(now.as_unix_nanos().saturating_add(nanos(length)));
        let dropped = seen.dropped as f64 > seen.all as f64 * self.settings.tolerated;
        controller.sample(Sample {
            latency: seen.latency,
            in_flight: seen.peak,
            dropped,
            now,
        })
    }
}

impl<C: Clock> Clone for AdaptiveConcurrency<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for AdaptiveConcurrency<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrency")
            .field("in_flight", &self.in_flight())
            .field("limit", &self.limit())
            .finish()
    }
}

/// The current state of an adaptive concurrency limit.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The current limit.
    pub limit: u64,
    /// The minimum of the limit.
    pub min: u64,
    /// The maximum of the limit.
    pub max: u64,
    /// How many permits are in flight.
    pub in_flight: u64,
    /// The average latency of the last window.
    pub short: Option<Duration>,
    /// The baseline that latency is compared with; none with AIMD, and before the first window.
    pub long: Option<Duration>,
    /// How many requests were dropped since the start. A measured one that was too late counts for
    /// the unmeasured ones it stands for.
    pub drops: u64,
    /// Whether the limit is lowered for a moment, to measure the latency without a queue.
    pub probing: bool,
}

/// Error: the limit is reached, or all that is left of it is reserved for other partitions or
/// classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtCapacityError {
    in_flight: u64,
    limit: u64,
}

impl AtCapacityError {
    /// How many were in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The limit at that time.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

impl fmt::Display for AtCapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_flight, limit } = self;
        if in_flight < limit {
            write!(
                f,
                "adaptive concurrency limit reached ({in_flight} of {limit} in flight, the rest is reserved)"
            )
        } else {
            write!(
                f,
                "adaptive concurrency limit reached ({in_flight} of {limit} in flight)"
            )
        }
    }
}

impl core::error::Error for AtCapacityError {}

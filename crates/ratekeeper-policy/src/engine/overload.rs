//! Overload handling: expired deadlines, load shedding, adaptive concurrency. All of it is decided
//! in this process, before the store is asked, so a denial here is cheap.

use super::Engine;
use super::permits::{QueuedRequest, RejectionStats};
use super::reason::Reason;
use super::rules::{Registry, Rule, Rules};
use super::stats::EngineStats;
use super::verdict::PolicyVerdict;
use crate::deadline::grpc_timeout;
use crate::overload::Shed;
use crate::subject::Subject;
use ratekeeper::adaptive::{AdaptiveConcurrency, Snapshot};
use ratekeeper::{
    Clock, Store, Timestamp, adaptive::Class, adaptive::Load, adaptive::Shedder,
    adaptive::ShedderStats,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Utilization of an adaptive limit above which there is pressure: a full one already denies some
/// requests.
const TARGET_UTILIZATION: f64 = 0.85;

/// The attribute with the importance of a request.
const CLASS: &str = "class";

/// The header with the timeout of gRPC clients.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// A load shedder, with its settings.
pub(crate) struct LoadShedder {
    settings: Shed,
    shedder: Shedder<SharedClock>,
    clock: SharedClock,
}

/// A clock that shows the last time read from the clock of the store.
#[derive(Clone, Default)]
pub(crate) struct SharedClock(Arc<AtomicU64>);

impl SharedClock {
    pub(super) fn set(&self, now: Timestamp) {
        self.0.store(now.as_unix_nanos(), Ordering::Relaxed);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl LoadShedder {
    fn new(settings: Shed, load: Option<&LoadSource>, now: Timestamp) -> Self {
        let clock = SharedClock::default();
        clock.set(now);
        let mut builder = settings.builder();
        if let Some(load) = load
            .filter(|_| settings.cpu.is_some() || settings.memory.is_some())
            .cloned()
        {
            builder = builder.pressure(move || {
                let load = load.read();
                // `f64::max` ignores NaN, so an unknown load or an unset threshold adds no
                // pressure.
                let ratio = |share: f64, threshold: Option<f64>| {
                    threshold.map_or(f64::NAN, |threshold| share / threshold)
                };
                ratio(load.cpu, settings.cpu).max(ratio(load.memory, settings.memory))
            });
        }
        Self {
            settings,
            shedder: builder.build_with_clock(clock.clone()),
            clock,
        }
    }

    fn check(&self, class: Option<Class>, now: Timestamp) -> Result<(), Class> {
        let class = class.unwrap_or(self.settings.default);
        self.clock.set(now);
        if self.shedder.admit(class) {
            Ok(())
        } else {
            Err(class)
        }
    }

    /// Reports the utilization of an adaptive limit as pressure. Denials are not used: less
    /// important requests are denied while capacity is held back for others. Nothing is reported
    /// while the limit is probing: it is lowered on purpose, and so looks full.
    pub(super) fn report(&self, concurrency: &AdaptiveConcurrency<SharedClock>) {
        if !concurrency.is_probing() {
            self.shedder.report(
                concurrency.in_flight() as f64
                    / concurrency.limit().max(1) as f64
                    / TARGET_UTILIZATION,
            );
        }
    }
}

impl Registry {
    /// The shedder for these settings: the existing one if they are unchanged.
    pub(super) fn load_shedder(
        &mut self,
        settings: Option<Shed>,
        now: Timestamp,
    ) -> Option<Arc<LoadShedder>> {
        let settings = settings?;
        match &self.load_shedder {
            Some(known) if known.settings == settings => {}
            _ => {
                self.load_shedder = Some(Arc::new(LoadShedder::new(
                    settings,
                    self.load.as_ref(),
                    now,
                )));
            }
        }
        self.load_shedder.clone()
    }
}

impl<S: Store> Engine<S> {
    /// Denies a request that is past its deadline, is shed, or finds no permit; otherwise acquires
    /// its permits. If there is no permit but it may wait in a queue, returns its ticket there.
    pub(super) fn check_overload(
        &self,
        verdict: &mut PolicyVerdict,
        may_wait: bool,
    ) -> Option<QueuedRequest> {
        let state = &mut *verdict.state;
        let rules = state.rules.as_deref().expect("a verdict has rules");
        let query = &state.query;
        let has_nothing_to_check = rules.shedder.is_none()
            && query.adaptive_policies.is_empty()
            && query.deadline.is_none();
        if has_nothing_to_check || !matches!(state.reason, Reason::Limits | Reason::NoPolicy) {
            return None;
        }
        if query.deadline.is_some_and(|deadline| deadline <= state.now) {
            state.reason = Reason::TooLate;
            return None;
        }
        if let Some(Err(class)) = rules
            .shedder
            .as_ref()
            .map(|shedder| shedder.check(query.class, state.now))
        {
            state.reason = Reason::Shed(class);
            return None;
        }
        // A reservation ends elsewhere, so it holds no permit here.
        if query.is_reservation {
            None
        } else {
            self.acquire_permits(verdict, 0, may_wait)
        }
    }
}

impl Rules {
    /// The class of requests that have none; `None` without load shedding.
    pub(super) fn default_class(&self) -> Option<Class> {
        self.shedder
            .as_ref()
            .map(|shedder| shedder.settings.default)
    }

    /// The deadline of a request that came at `now`, if there is one.
    pub(super) fn deadline_of(&self, subject: &Subject<'_>, now: Timestamp) -> Option<Timestamp> {
        let (start, deadline) = subject.times();
        let Some(shedder) = &self.shedder else {
            return deadline;
        };
        // A client can only shorten its own time.
        let timeout = subject.header(GRPC_TIMEOUT).and_then(grpc_timeout);
        let longest = [shedder.settings.patience, timeout]
            .into_iter()
            .flatten()
            .min();
        // Clocks of machines differ: a start in the future counts as now.
        let ends = longest.map(|longest| start.map_or(now, |start| start.min(now)) + longest);
        [deadline, ends].into_iter().flatten().min()
    }

    /// The importance that the request names in its attribute.
    pub(super) fn class_of(&self, subject: &Subject<'_>) -> Option<Class> {
        self.shedder.as_ref()?;
        std::str::from_utf8(subject.custom(CLASS)?)
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

/// Statistics of adaptive limits and load shedding.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct OverloadStats {
    /// The adaptive limits, in the order of the policies.
    pub limits: Vec<AdaptiveStats>,
    /// Load shedding; `None` if it is not configured.
    pub shed: Option<ShedderStats>,
    /// Requests denied because their deadline had passed.
    pub late: u64,
}

/// Statistics of one adaptive limit.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct AdaptiveStats {
    /// The policy.
    pub policy: String,
    /// The control algorithm: `gradient2` or `aimd`.
    pub control: &'static str,
    /// The measurements and the current limit.
    pub snapshot: Snapshot,
    /// Requests in the queue.
    pub queued: u64,
    /// Requests denied.
    pub denied: RejectionStats,
}

impl<S: Store> EngineStats<'_, S> {
    /// Statistics of adaptive limits and load shedding; `None` if neither is configured.
    pub fn overload(&self) -> Option<OverloadStats> {
        let rules = self.engine.inner.rules.load();
        let adaptive_stats = |rule: &Rule| {
            let queue = rule.adaptive_queue.as_ref()?;
            let policy = rule.policy.name.clone();
            let control = queue.gate().control().name();
            let snapshot = queue.gate().snapshot();
            let queued = queue.len() as u64;
            Some(AdaptiveStats {
                policy,
                control,
                snapshot,
                queued,
                denied: rule.counters.rejections.stats(),
            })
        };
        let limits: Vec<_> = rules.policies.iter().filter_map(adaptive_stats).collect();
        let shed = rules
            .shedder
            .as_ref()
            .map(|shedder| shedder.shedder.snapshot());
        let late = self.engine.inner.stats.late.load(Ordering::Relaxed);
        (!limits.is_empty() || shed.is_some()).then_some(OverloadStats { limits, shed, late })
    }
}

impl fmt::Debug for LoadShedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadShedder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A source for the load of the machine; an unknown value is [`f64::NAN`].
#[derive(Clone)]
pub struct LoadSource(Arc<dyn Fn() -> Load + Send + Sync>);

impl LoadSource {
    /// Reads the load by a function.
    pub fn new(load: impl Fn() -> Load + Send + Sync + 'static) -> Self {
        Self(Arc::new(load))
    }

    fn read(&self) -> Load {
        (self.0)()
    }
}

impl fmt::Debug for LoadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadSource")
    }
}

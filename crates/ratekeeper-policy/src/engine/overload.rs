//! Under pressure: whom nobody waits for any more, who is shed, and who finds as many in flight as
//! are served well. All of it is known in this process, so it comes before the store is asked:
//! whoever is turned away here costs next to nothing.

use super::Engine;
use super::permits::{QueuedRequest, RejectionStats};
use super::reason::Reason;
use super::rules::{Registry, Rules};
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

/// How far an adaptive limit may be in use before that is pressure: a gate that is full has turned
/// some away already.
const TARGET_UTILIZATION: f64 = 0.85;

/// The name of the attribute that says how important a request is.
const CLASS: &str = "class";

/// The header in which gRPC clients say how long they wait.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Who sheds, by which settings.
pub(crate) struct LoadShedder {
    settings: Shed,
    shedder: Shedder<SharedClock>,
    clock: SharedClock,
}

/// A clock that shows what the store's clock showed when it was last looked at.
#[derive(Clone, Default)]
pub(crate) struct SharedClock(Arc<AtomicU64>);

impl SharedClock {
    pub(super) fn tell(&self, now: Timestamp) {
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
        clock.tell(now);
        let mut builder = settings.builder();
        if let Some(load) = load
            .filter(|_| settings.cpu.is_some() || settings.memory.is_some())
            .cloned()
        {
            builder = builder.pressure(move || {
                let load = load.read();
                // What is not known is less than any number.
                let by = |share: f64, well: Option<f64>| well.map_or(f64::NAN, |well| share / well);
                by(load.cpu, settings.cpu).max(by(load.memory, settings.memory))
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
        self.clock.tell(now);
        if self.shedder.admit(class) {
            Ok(())
        } else {
            Err(class)
        }
    }

    /// What a gate says of the pressure: how far it is in use. That it turns the less important
    /// away says nothing, it keeps room by that; and one that probes is in full use by its own
    /// doing.
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
    /// Who sheds by these settings: the same as before if they are the same.
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
                )))
            }
        }
        self.load_shedder.clone()
    }
}

impl<S: Store> Engine<S> {
    /// Turns a request away that comes too late, is shed, or finds no room; else holds its place
    /// until it has ended. If it may wait and has to, says where.
    pub(super) fn check_overload(
        &self,
        verdict: &mut PolicyVerdict,
        may_wait: bool,
    ) -> Option<QueuedRequest> {
        let state = &mut *verdict.state;
        let (rules, query) = (
            state.rules.as_deref().expect("a verdict has rules"),
            &state.query,
        );
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
        // Who acts later, and ends elsewhere, holds no place here.
        if query.is_reservation {
            None
        } else {
            self.acquire_permits(verdict, 0, may_wait)
        }
    }
}

impl Rules {
    /// How important requests are of which nothing says it; none where nothing is ever shed.
    pub(super) fn default_class(&self) -> Option<Class> {
        self.shedder
            .as_ref()
            .map(|shedder| shedder.settings.default)
    }

    /// Until when anybody waits for the answer to a request that came now; none if nobody says.
    pub(super) fn deadline_of(&self, subject: &Subject<'_>, now: Timestamp) -> Option<Timestamp> {
        let (start, deadline) = subject.times();
        let Some(shedder) = &self.shedder else {
            return deadline;
        };
        // What a client says of itself hurts nobody else.
        let timeout = subject.header(GRPC_TIMEOUT).and_then(grpc_timeout);
        let longest = [shedder.settings.patience, timeout]
            .into_iter()
            .flatten()
            .min();
        // Clocks of machines differ: nothing began in the future.
        let ends = longest.map(|longest| start.map_or(now, |start| start.min(now)) + longest);
        [deadline, ends].into_iter().flatten().min()
    }

    /// How important a request is, as far as it says so itself.
    pub(super) fn class_of(&self, subject: &Subject<'_>) -> Option<Class> {
        self.shedder.as_ref()?;
        std::str::from_utf8(subject.custom(CLASS)?)
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

/// How things stand under pressure.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct OverloadStats {
    /// The adaptive limits, in the order of the policies.
    pub limits: Vec<AdaptiveStats>,
    /// What is shed; none where nothing ever is.
    pub shed: Option<ShedderStats>,
    /// How many were turned away because nobody waited for them any more.
    pub late: u64,
}

/// How one adaptive limit stands.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct AdaptiveStats {
    /// The policy.
    pub policy: String,
    /// What it goes by: `gradient2` or `aimd`.
    pub control: &'static str,
    /// The figures.
    pub snapshot: Snapshot,
    /// How many wait in line for a place.
    pub queued: u64,
    /// How many were turned away.
    pub denied: RejectionStats,
}

impl<S: Store> Engine<S> {
    /// How adaptive limits stand, and what is shed; none where there is neither.
    pub fn overload_stats(&self) -> Option<OverloadStats> {
        let rules = self.inner.rules.load();
        let figures = |rule: &super::rules::Rule| {
            let queue = rule.adaptive_queue.as_ref()?;
            let (policy, control) = (rule.policy.name.clone(), queue.gate().control().name());
            let (snapshot, queued) = (queue.gate().snapshot(), queue.len() as u64);
            Some(AdaptiveStats {
                policy,
                control,
                snapshot,
                queued,
                denied: rule.counters.rejections.stats(),
            })
        };
        let limits: Vec<_> = rules.policies.iter().filter_map(figures).collect();
        let shed = rules
            .shedder
            .as_ref()
            .map(|shedder| shedder.shedder.snapshot());
        let late = self.inner.stats.late.load(Ordering::Relaxed);
        (!limits.is_empty() || shed.is_some()).then_some(OverloadStats { limits, shed, late })
    }
}

impl fmt::Debug for LoadShedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sheds")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Says how busy the machine is; what is not known is [`f64::NAN`].
#[derive(Clone)]
pub struct LoadSource(Arc<dyn Fn() -> Load + Send + Sync>);

impl LoadSource {
    /// As this function says.
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

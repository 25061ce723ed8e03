//! Under pressure: who is shed, and who finds as many in flight as are served well. Both are known in this process, so both
//! come before the store is asked: whoever is turned away here costs next to nothing.

use super::rules::{Registry, Rules};
use super::verdict::{Reason, Verdict};
use super::{Ending, Engine};
use crate::policy::Policy;
use crate::pressure::Shed;
use crate::stats::Event;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate::adaptive::{AdaptiveConcurrency, Snapshot};
use tollgate::{Class, Clock, Instant, Load, Shedder, Shedding, Store};

/// How far an adaptive limit may be in use before that is pressure: a gate that is full has turned some away already.
const WELL_USED: f64 = 0.85;

/// The name of the attribute that says how important a request is.
const CLASS: &str = "class";

/// Who sheds, by which settings.
pub(crate) struct Sheds {
    settings: Shed,
    shedder: Shedder<Told>,
    clock: Told,
}

/// A clock that shows what the store's clock showed when it was last looked at.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU64>);

impl Clock for Told {
    fn now(&self) -> Instant {
        Instant::from_unix_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Sheds {
    fn new(settings: Shed, load: Option<&LoadSource>, now: Instant) -> Self {
        let clock = Told::default();
        clock.0.store(now.as_unix_nanos(), Ordering::Relaxed);
        let mut builder = settings.builder();
        if let Some(load) = load.filter(|_| settings.cpu.is_some() || settings.memory.is_some()).cloned() {
            builder = builder.pressure(move || {
                let load = load.read();
                // What is not known is less than any number.
                let by = |share: f64, well: Option<f64>| well.map_or(f64::NAN, |well| share / well);
                by(load.cpu, settings.cpu).max(by(load.memory, settings.memory))
            });
        }
        Self { settings, shedder: builder.build_with_clock(clock.clone()), clock }
    }

    fn admits(&self, class: Option<Class>, now: Instant) -> Result<(), Class> {
        let class = class.unwrap_or(self.settings.default);
        self.clock.0.store(now.as_unix_nanos(), Ordering::Relaxed);
        if self.shedder.admit(class) { Ok(()) } else { Err(class) }
    }

    /// What a gate says of the pressure: how far it is in use. That it turns the less important away says nothing, it keeps
    /// room by that; and one that probes is in full use by its own doing.
    fn hear(&self, gate: &AdaptiveConcurrency) {
        if !gate.is_probing() {
            self.shedder.report(gate.in_flight() as f64 / gate.limit().max(1) as f64 / WELL_USED);
        }
    }
}

impl Registry {
    /// Who sheds by these settings: the same as before if they are the same.
    pub(super) fn sheds(&mut self, settings: Option<Shed>, now: Instant) -> Option<Arc<Sheds>> {
        let settings = settings?;
        match &self.shed {
            Some(known) if known.settings == settings => {}
            _ => self.shed = Some(Arc::new(Sheds::new(settings, self.load.as_ref(), now))),
        }
        self.shed.clone()
    }

    /// The gate of a policy: the same as before if it is to be the same, else one that begins where that was.
    pub(super) fn gate(&mut self, number: u32, policy: &Policy) -> Option<AdaptiveConcurrency> {
        let limit = policy.adaptive?;
        let gate = match self.gates.get(&number) {
            Some((known, gate)) if *known == limit => return Some(gate.clone()),
            Some((_, gate)) => limit.builder().start(gate.limit()).build(),
            None => limit.builder().build(),
        };
        self.gates.insert(number, (limit, gate.clone()));
        Some(gate)
    }
}

impl<S: Store> Engine<S> {
    /// Turns a request away that is shed, or finds no room; else holds its place until it has ended.
    pub(super) fn press(&self, verdict: &mut Verdict) {
        let parts = &mut *verdict.parts;
        let (rules, asking) = (parts.rules.as_deref().expect("a verdict has rules"), &parts.asking);
        let nothing_to_do = rules.sheds.is_none() && asking.gates.is_empty();
        if nothing_to_do || !matches!(parts.reason, Reason::Limits | Reason::NoPolicy) {
            return;
        }
        if let Some(Err(class)) = rules.sheds.as_ref().map(|sheds| sheds.admits(asking.class, parts.now)) {
            parts.reason = Reason::Shed(class);
            return;
        }
        // Who acts later, and ends elsewhere, holds no place here.
        if asking.acts_later {
            return;
        }
        // A gate keeps room for the more important, once anything says how important a request is.
        let class = asking.class.or_else(|| rules.sheds.as_ref().map(|sheds| sheds.settings.default));
        for &(number, enforced) in &asking.gates {
            let ruling = &rules.policies[number as usize];
            let Some(gate) = &ruling.gate else { continue };
            let permit = match class {
                Some(class) => gate.try_acquire_as_at(class, None, parts.now),
                None => gate.try_acquire_at(parts.now),
            };
            if let Some(sheds) = &rules.sheds {
                sheds.hear(gate);
            }
            match permit {
                Ok(permit) => parts.permits.push(permit),
                Err(_) if enforced => {
                    parts.permits.clear();
                    (parts.reason, parts.full) = (Reason::AtCapacity, number);
                    return;
                }
                Err(_) => ruling.figures.tally.add(Event::ShadowDenied),
            }
        }
    }

    /// A request has ended: what it held is measured and free.
    pub(super) fn finish(&self, verdict: &mut Verdict, ending: &Ending) {
        if verdict.parts.permits.is_empty() {
            return;
        }
        let (outcome, now) = (ending.outcome(), self.inner.store.now());
        verdict.parts.permits.drain(..).for_each(|permit| permit.finish_at(outcome, now));
    }
}

impl Rules {
    /// How important a request is, as far as it says so itself.
    pub(super) fn class_of(&self, subject: &crate::Subject<'_>) -> Option<Class> {
        self.sheds.as_ref()?;
        std::str::from_utf8(subject.custom(CLASS)?).ok()?.trim().parse().ok()
    }
}

/// How things stand under pressure.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct PressureFigures {
    /// The adaptive limits, in the order of the policies.
    pub limits: Vec<AdaptiveFigures>,
    /// What is shed; none where nothing ever is.
    pub shed: Option<Shedding>,
}

/// How one adaptive limit stands.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct AdaptiveFigures {
    /// The policy.
    pub policy: String,
    /// What it goes by: `gradient2`, `aimd` or `vegas`.
    pub control: &'static str,
    /// The figures.
    pub snapshot: Snapshot,
}

impl<S: Store> Engine<S> {
    /// How adaptive limits stand, and what is shed; none where there is neither.
    pub fn pressure(&self) -> Option<PressureFigures> {
        let rules = self.inner.rules.load();
        let figures = |ruling: &super::rules::Ruling| {
            let gate = ruling.gate.as_ref()?;
            let (policy, control) = (ruling.policy.name.clone(), gate.control().name());
            Some(AdaptiveFigures { policy, control, snapshot: gate.snapshot() })
        };
        let limits: Vec<_> = rules.policies.iter().filter_map(figures).collect();
        let shed = rules.sheds.as_ref().map(|sheds| sheds.shedder.snapshot());
        (!limits.is_empty() || shed.is_some()).then_some(PressureFigures { limits, shed })
    }
}

impl fmt::Debug for Sheds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sheds").field("settings", &self.settings).finish_non_exhaustive()
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

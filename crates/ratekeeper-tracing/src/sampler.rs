//! [`Sampler`]: a sampling filter for one layer or for all of them.

use crate::callsite_key;
use crate::callsite_state::{CallsiteState, CallsiteTable};
use crate::log_record::{self, Origin};
use crate::reporting_layer::ReportingLayer;
use crate::rules::Rules;
use ratekeeper::{Clock, Timestamp, clock::CoarseClock};
use std::fmt;
use std::sync::Arc;
use tracing_core::subscriber::Interest;
use tracing_core::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter};

/// Decides which events are shown, for each callsite; see the [crate] for a guide.
///
/// It is a handle: clones share their counts. As a [`Filter`] it works for one layer, as a
/// [`Layer`] for all.
pub struct Sampler<C: Clock = CoarseClock> {
    shared: Arc<SamplerState<C>>,
}

struct SamplerState<C: Clock> {
    rules: Rules,
    clock: C,
    since: Timestamp,
    sites: CallsiteTable<C>,
}

/// The statistics of a [`Sampler`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplerStats {
    /// All events.
    pub total: u64,
    /// Events that were shown.
    pub sampled: u64,
    /// When the sampler was created.
    pub since: Timestamp,
}

impl SamplerStats {
    /// Events that were not shown.
    pub fn suppressed(&self) -> u64 {
        self.total - self.sampled
    }

    /// The share of events that were shown; 1 if there were no events.
    pub fn ratio(&self) -> f64 {
        if self.total == 0 {
            1.0
        } else {
            self.sampled as f64 / self.total as f64
        }
    }
}

impl Sampler {
    /// Creates a sampler with these rules, on the kernel's coarse clock.
    pub fn new(rules: Rules) -> Self {
        Self::with_clock(rules, CoarseClock)
    }
}

impl<C: Clock> Sampler<C> {
    /// Creates a sampler with these rules, on a clock of your choice.
    pub fn with_clock(rules: Rules, clock: C) -> Self {
        let sites = CallsiteTable::new(&rules, &clock);
        Self {
            shared: Arc::new(SamplerState {
                rules,
                since: clock.now(),
                clock,
                sites,
            }),
        }
    }

    /// Wraps `layer` so that it sees only sampled events, and reports of how many were suppressed.
    ///
    /// Add other filters around the result, not to `layer`. Code that asks the subscriber for a
    /// layer by its type (as OpenTelemetry's does) does not find it inside; for these, use the
    /// sampler as the filter of the layer: `layer.with_filter(sampler.clone())`.
    pub fn layer<L, S>(&self, layer: L) -> Filtered<ReportingLayer<L, C>, Self, S>
    where
        L: Layer<S>,
        S: Subscriber,
    {
        self.reporting(layer).with_filter(self.clone())
    }

    /// Wraps `layer` so that it gets reports of how many events this sampler suppressed, if the
    /// sampler itself filters elsewhere.
    pub fn reporting<L>(&self, layer: L) -> ReportingLayer<L, C> {
        ReportingLayer::new(layer, self.clone())
    }

    /// The current statistics.
    pub fn stats(&self) -> SamplerStats {
        let (total, sampled) = self.shared.sites.total_and_shown();
        SamplerStats {
            total,
            sampled,
            since: self.shared.since,
        }
    }

    /// Registers a callsite, before its first event.
    fn register(&self, metadata: &'static Metadata<'static>) -> Interest {
        if !callsite_key::is_event(metadata) {
            return Interest::always();
        }
        if !log_record::is_log_record(metadata) {
            self.site_of(callsite_key::key(metadata), metadata, false);
        }
        Interest::sometimes()
    }

    /// Decides on an event by its callsite, before its fields are evaluated.
    #[inline]
    fn sample(&self, metadata: &Metadata<'_>) -> bool {
        // The events of a callsite that was not registered are decided later, with their fields:
        // the same event may be announced several times (records of `log` are), or be a query only.
        match self.shared.sites.find(callsite_key::key(metadata)) {
            Some(site) if !site.decide_on_event => site.sample(),
            _ => true,
        }
    }

    /// Decides on an event that could not be decided by its callsite alone.
    fn sample_event(&self, event: &Event<'_>) -> bool {
        let site = self.site_of_event(event);
        !site.decide_on_event || site.sample()
    }

    pub(crate) fn site_of_event(&self, event: &Event<'_>) -> &CallsiteState<C> {
        let metadata = event.metadata();
        if !log_record::is_log_record(metadata) {
            return self.site_of(callsite_key::key(metadata), metadata, true);
        }
        let key = log_record::key(event);
        match self.shared.sites.find(key) {
            Some(site) => site,
            None => self.site_of(key, &Origin::of(event).metadata(event), true),
        }
    }

    fn site_of(
        &self,
        key: u64,
        metadata: &Metadata<'_>,
        decide_on_event: bool,
    ) -> &CallsiteState<C> {
        let SamplerState {
            rules,
            clock,
            sites,
            ..
        } = &*self.shared;
        let new_site =
            || CallsiteState::new(key, decide_on_event, rules.sampling_of(metadata), clock);
        sites
            .find_or_insert(key, new_site)
            .unwrap_or_else(|| sites.shared(*metadata.level()))
    }

    pub(crate) fn is_shared(&self, site: &CallsiteState<C>) -> bool {
        self.shared.sites.is_shared(site)
    }
}

impl<S, C: Clock> Filter<S> for Sampler<C> {
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.register(metadata)
    }

    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        self.sample(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        self.sample_event(event)
    }
}

impl<S: Subscriber, C: Clock> Layer<S> for Sampler<C> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.register(metadata)
    }

    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.sample(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.sample_event(event)
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new(Rules::new())
    }
}

impl<C: Clock> Clone for Sampler<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for Sampler<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("rules", &self.shared.rules)
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite_state::MAX_CALLSITES;
    use crate::rules::LEVELS;
    use ratekeeper::ManualClock;
    use std::sync::Mutex;
    use tracing::debug;
    use tracing_subscriber::prelude::*;

    #[test]
    fn callsites_beyond_the_capacity_share_one_count_per_level() {
        struct Targets(Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Targets {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                self.0
                    .lock()
                    .unwrap()
                    .push(event.metadata().target().to_owned());
            }
        }
        let sampler = Sampler::with_clock(Rules::new(), ManualClock::new());
        let SamplerState {
            rules,
            clock,
            sites,
            ..
        } = &*sampler.shared;
        for key in 1..=MAX_CALLSITES as u64 {
            assert!(
                sites
                    .find_or_insert(key, || CallsiteState::new(
                        key,
                        false,
                        rules.sampling_of_level(LEVELS[0]),
                        clock
                    ))
                    .is_some()
            );
        }
        let targets = Arc::new(Mutex::new(Vec::new()));
        let layer = sampler.layer(Targets(Arc::clone(&targets)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for _ in 0..501 {
                debug!(target: "one", "again");
                debug!(target: "other", "again");
            }
        });
        // Ten at first, then number 1000 and the report of those suppressed until then.
        let mut expected = ["one", "other"].repeat(5);
        expected.extend(["one", env!("CARGO_CRATE_NAME")]);
        assert_eq!(*targets.lock().unwrap(), expected);
        assert_eq!(sampler.stats().total, 1002);
    }
}

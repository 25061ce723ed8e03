//! The sampler: a filter for one layer or for all of them.

use crate::callsite;
use crate::log_record::{self, Origin};
use crate::report::Reporting;
use crate::rules::Rules;
use crate::site::{Site, Sites};
use ratekeeper::{Clock, Timestamp, clock::CoarseClock};
use std::fmt;
use std::sync::Arc;
use tracing_core::subscriber::Interest;
use tracing_core::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter};

/// Decides which events are shown, callsite by callsite; see the [crate] for a tour.
///
/// It is a handle: clones share their counts. As a [`Filter`] it works for one layer, as a
/// [`Layer`] for all.
pub struct Sampler<C: Clock = CoarseClock> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: Clock> {
    rules: Rules,
    clock: C,
    since: Timestamp,
    sites: Sites<C>,
}

/// What a [`Sampler`] has done so far.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// All events that were to be decided on.
    pub total: u64,
    /// Those that were shown.
    pub sampled: u64,
    /// When counting began: when the sampler was made.
    pub since: Timestamp,
}

impl Stats {
    /// Those that were not shown.
    pub fn suppressed(&self) -> u64 {
        self.total - self.sampled
    }

    /// The part that was shown; 1 if there was none.
    pub fn ratio(&self) -> f64 {
        if self.total == 0 {
            1.0
        } else {
            self.sampled as f64 / self.total as f64
        }
    }
}

impl Sampler {
    /// A sampler with these rules, on the kernel's coarse clock.
    pub fn new(rules: Rules) -> Self {
        Self::with_clock(rules, CoarseClock)
    }
}

impl<C: Clock> Sampler<C> {
    /// A sampler with these rules, on a clock of your choice.
    pub fn with_clock(rules: Rules, clock: C) -> Self {
        let sites = Sites::new(&rules, &clock);
        Self {
            shared: Arc::new(Shared {
                rules,
                since: clock.now(),
                clock,
                sites,
            }),
        }
    }

    /// `layer`, seeing only what this sampler shows, and how much it did not.
    ///
    /// Filters of your own go around the result, not into `layer`. Code that asks the subscriber
    /// for a layer by its type (OpenTelemetry's does) does not find it in here; such a layer takes
    /// the sampler as its filter: `layer.with_filter(sampler.clone())`.
    pub fn layer<L, S>(&self, layer: L) -> Filtered<Reporting<L, C>, Self, S>
    where
        L: Layer<S>,
        S: Subscriber,
    {
        self.reporting(layer).with_filter(self.clone())
    }

    /// `layer`, told how much this sampler suppressed, where the sampler itself filters elsewhere.
    pub fn reporting<L>(&self, layer: L) -> Reporting<L, C> {
        Reporting::new(layer, self.clone())
    }

    /// How many events there were, how many were shown, and since when.
    pub fn stats(&self) -> Stats {
        let (total, sampled) = self.shared.sites.total_and_shown();
        Stats {
            total,
            sampled,
            since: self.shared.since,
        }
    }

    /// Meets a callsite, before its first event.
    fn meet(&self, metadata: &'static Metadata<'static>) -> Interest {
        if !callsite::is_event(metadata) {
            return Interest::always();
        }
        if !log_record::is_log_record(metadata) {
            self.site_of(callsite::key(metadata), metadata, false);
        }
        Interest::sometimes()
    }

    /// Decides when an event is announced: nothing of it is there but its callsite.
    #[inline]
    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        // A callsite that was not met is decided on when the event is there: what is announced may
        // then be announced again (records of `log` are), or be a question only.
        match self.shared.sites.find(callsite::key(metadata)) {
            Some(site) if !site.late => site.shows(),
            _ => true,
        }
    }

    /// Decides on an event that could not be decided on when it was announced.
    fn shows_late(&self, event: &Event<'_>) -> bool {
        let site = self.site_of_event(event);
        !site.late || site.shows()
    }

    pub(crate) fn site_of_event(&self, event: &Event<'_>) -> &Site<C> {
        let metadata = event.metadata();
        if !log_record::is_log_record(metadata) {
            return self.site_of(callsite::key(metadata), metadata, true);
        }
        let key = log_record::key(event);
        match self.shared.sites.find(key) {
            Some(site) => site,
            None => self.site_of(key, &Origin::of(event).metadata(event), true),
        }
    }

    fn site_of(&self, key: u64, metadata: &Metadata<'_>, late: bool) -> &Site<C> {
        let Shared {
            rules,
            clock,
            sites,
            ..
        } = &*self.shared;
        let made = || Site::new(key, late, rules.sampling_of(metadata), clock);
        sites
            .find_or_make(key, made)
            .unwrap_or_else(|| sites.shared(*metadata.level()))
    }

    pub(crate) fn is_shared(&self, site: &Site<C>) -> bool {
        self.shared.sites.is_shared(site)
    }
}

impl<S, C: Clock> Filter<S> for Sampler<C> {
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.meet(metadata)
    }

    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        self.shows(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        self.shows_late(event)
    }
}

impl<S: Subscriber, C: Clock> Layer<S> for Sampler<C> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.meet(metadata)
    }

    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.shows(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.shows_late(event)
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
    use crate::rules::LEVELS;
    use crate::site::MOST_SITES;
    use ratekeeper::ManualClock;
    use std::sync::Mutex;
    use tracing::debug;
    use tracing_subscriber::prelude::*;

    #[test]
    fn callsites_that_find_no_room_share_one_count_a_level() {
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
        let Shared {
            rules,
            clock,
            sites,
            ..
        } = &*sampler.shared;
        for key in 1..=MOST_SITES as u64 {
            assert!(
                sites
                    .find_or_make(key, || Site::new(
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
        // Ten at first, then number 1000 and what was suppressed until then.
        let mut expected = ["one", "other"].repeat(5);
        expected.extend(["one", env!("CARGO_CRATE_NAME")]);
        assert_eq!(*targets.lock().unwrap(), expected);
        assert_eq!(sampler.stats().total, 1002);
    }
}

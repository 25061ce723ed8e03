//! [`ReportingLayer`]: reports to a layer how many events were suppressed.

use crate::log_record::{Origin, is_log_record};
use crate::sampler::Sampler;
use ratekeeper::{Clock, clock::CoarseClock};
use tracing_core::callsite::Callsite;
use tracing_core::field::{FieldSet, Value};
use tracing_core::metadata::Kind;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::subscriber::Interest;
use tracing_core::{Dispatch, Event, Level, LevelFilter, Metadata, Subscriber, identify_callsite};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// A layer that gets reports of how many events a [`Sampler`] suppressed; created by
/// [`Sampler::layer`] and [`Sampler::reporting`].
///
/// After a shown event of a callsite with suppressed events it gets another event, with the same
/// level, target and location, and with the fields `message` and `suppressed`. No other layer sees
/// that one.
#[derive(Debug)]
pub struct ReportingLayer<L, C: Clock = CoarseClock> {
    layer: L,
    sampler: Sampler<C>,
}

const FIELDS: &[&str] = &["message", "suppressed"];
const MESSAGE: &str = "similar events were suppressed";

/// The callsite of all reports. Its byte gives it an address of its own, by which tracing
/// distinguishes callsites.
struct ReportCallsite(#[expect(dead_code, reason = "only its address counts")] u8);

static REPORT_CALLSITE: ReportCallsite = ReportCallsite(0);
static REPORT_METADATA: Metadata<'static> =
    report_metadata(Level::INFO, env!("CARGO_CRATE_NAME"), None, None, None);

impl Callsite for ReportCallsite {
    fn set_interest(&self, _interest: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        &REPORT_METADATA
    }
}

const fn report_metadata(
    level: Level,
    target: &'static str,
    file: Option<&'static str>,
    line: Option<u32>,
    module: Option<&'static str>,
) -> Metadata<'static> {
    let fields = FieldSet::new(FIELDS, identify_callsite!(&REPORT_CALLSITE));
    Metadata::new(
        "suppressed",
        target,
        level,
        file,
        line,
        module,
        fields,
        Kind::EVENT,
    )
}

/// The metadata of reports on events like `event`. Metadata must be `'static`, so it is leaked,
/// once per callsite.
fn leak_metadata(event: &Event<'_>, is_shared: bool) -> &'static Metadata<'static> {
    let from = event.metadata();
    let leak = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    let metadata = if is_shared {
        // It stands for many callsites.
        report_metadata(*from.level(), env!("CARGO_CRATE_NAME"), None, None, None)
    } else if is_log_record(from) {
        let origin = Origin::of(event);
        let from = origin.metadata(event);
        let (file, module) = (from.file().map(leak), from.module_path().map(leak));
        report_metadata(
            *from.level(),
            leak(from.target()),
            file,
            from.line(),
            module,
        )
    } else {
        report_metadata(
            *from.level(),
            from.target(),
            from.file(),
            from.line(),
            from.module_path(),
        )
    };
    Box::leak(Box::new(metadata))
}

impl<L, C: Clock> ReportingLayer<L, C> {
    pub(crate) fn new(layer: L, sampler: Sampler<C>) -> Self {
        Self { layer, sampler }
    }

    fn report<S: Subscriber>(&self, event: &Event<'_>, context: Context<'_, S>)
    where
        L: Layer<S>,
    {
        let site = self.sampler.site_of_event(event);
        let unreported = site.take_unreported();
        if unreported == 0 {
            return;
        }
        let metadata = site
            .report
            .get_or_init(|| leak_metadata(event, self.sampler.is_shared(site)));
        let mut fields = metadata.fields().iter();
        let (Some(message), Some(suppressed)) = (fields.next(), fields.next()) else {
            return;
        };
        let values: [_; 2] = [
            (&message, Some(&MESSAGE as &dyn Value)),
            (&suppressed, Some(&unreported as &dyn Value)),
        ];
        self.layer.on_event(
            &Event::new(metadata, &metadata.fields().value_set(&values)),
            context,
        );
    }
}

impl<L, S, C> Layer<S> for ReportingLayer<L, C>
where
    L: Layer<S>,
    S: Subscriber,
    C: Clock,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        self.layer.on_event(event, context.clone());
        self.report(event, context);
    }

    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.layer.on_register_dispatch(dispatch);
    }

    fn on_layer(&mut self, subscriber: &mut S) {
        self.layer.on_layer(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.layer.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.layer.enabled(metadata, context)
    }

    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        self.layer.event_enabled(event, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.layer.max_level_hint()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.layer.on_new_span(attributes, id, context);
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.layer.on_record(span, values, context);
    }

    fn on_follows_from(&self, span: &Id, follows: &Id, context: Context<'_, S>) {
        self.layer.on_follows_from(span, follows, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.layer.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.layer.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.layer.on_close(id, context);
    }

    fn on_id_change(&self, old: &Id, new: &Id, context: Context<'_, S>) {
        self.layer.on_id_change(old, new, context);
    }
}

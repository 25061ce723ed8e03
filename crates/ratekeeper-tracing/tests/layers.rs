//! The sampler together with other layers, filters, spans and queries.

mod support;

use ratekeeper::ManualClock;
use ratekeeper_tracing::{Rules, Sampler, Sampling};
use std::cell::Cell;
use std::time::Duration;
use support::{Lines, Output};
use tracing::{Level, debug, debug_span, info};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets, dynamic_filter_fn};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::{Registry, prelude::*};

#[test]
fn other_layers_see_everything() {
    let everything = Lines::default();
    let other = everything.layer::<Layered<_, Registry>>();
    let sampled = Lines::default();
    let sampler = Sampler::with_clock(Rules::new(), ManualClock::new());
    let _guard = tracing_subscriber::registry()
        .with(sampler.layer(sampled.layer()))
        .with(other)
        .set_default();
    (0..1001).for_each(|_| debug!("again"));
    assert_eq!(sampled.take_counts(), (11, 990));
    assert_eq!(everything.take_counts(), (1001, 0));
}

#[test]
fn spans_are_never_sampled_away() {
    let output = Output::new(Rules::new());
    for id in 0..100 {
        let _span = debug_span!("request", id).entered();
        info!("served");
    }
    assert_eq!(
        output.lines.take().last().unwrap(),
        "INFO request{id=99}: layers: served"
    );
}

#[test]
fn events_rejected_by_an_outer_filter_are_not_counted() {
    let output = Output::made_by(Rules::new(), |sampler, lines| {
        let only_shop = Targets::new().with_target("shop", LevelFilter::TRACE);
        Box::new(sampler.layer(lines.layer()).with_filter(only_shop))
    });
    for _ in 0..100 {
        debug!(target: "shop", "again");
        debug!(target: "bank", "again");
    }
    assert_eq!(output.lines.take(), ["DEBUG shop: again"; 10]);
    assert_eq!(output.sampler.stats().total, 100);
}

#[test]
fn events_rejected_by_a_later_filter_for_all_layers_are_not_counted() {
    let output = Output::made_by(Rules::new(), |sampler, lines| {
        let not_bank = dynamic_filter_fn(|metadata, _| metadata.target() != "bank");
        Box::new(sampler.layer(lines.layer()).and_then(not_bank))
    });
    for _ in 0..100 {
        debug!(target: "shop", "again");
        debug!(target: "bank", "again");
    }
    assert_eq!(output.lines.take(), ["DEBUG shop: again"; 10]);
    assert_eq!(output.sampler.stats().total, 100);
}

#[test]
fn as_a_filter_it_combines_with_others_and_reports_nothing() {
    let output = Output::made_by(Rules::new(), |sampler, lines| {
        Box::new(
            lines
                .layer()
                .with_filter(LevelFilter::INFO.and(sampler.clone())),
        )
    });
    for _ in 0..101 {
        info!("shown");
        debug!("not shown");
    }
    assert_eq!(output.lines.take_counts(), (101, 0));
    assert_eq!(output.sampler.stats().total, 101);
}

#[test]
fn for_all_layers_a_suppressed_event_does_not_even_evaluate_its_fields() {
    let output = Output::made_by(Rules::new(), |sampler, lines| {
        Box::new(sampler.reporting(lines.layer()).and_then(sampler.clone()))
    });
    let evaluated = Cell::new(0);
    let field = || evaluated.replace(evaluated.get() + 1);
    (0..1001).for_each(|_| debug!(number = field(), "again"));
    assert_eq!(output.lines.take_counts(), (11, 990));
    assert_eq!(evaluated.get(), 11);
}

#[test]
fn a_query_whether_an_event_would_be_shown_is_not_counted() {
    let output = Output::new(Rules::new());
    for _ in 0..1000 {
        if tracing::enabled!(Level::DEBUG) && tracing::event_enabled!(Level::DEBUG) {
            debug!("again");
        }
    }
    assert_eq!(output.lines.take(), ["DEBUG layers: again"; 10]);
    assert_eq!(output.sampler.stats().total, 1000);
}

#[test]
fn records_of_the_log_crate_are_sampled_by_their_origin() {
    let rules = Rules::new().target_level(
        "quiet",
        Level::INFO,
        Sampling::Sometimes {
            first: 1,
            every: 0,
            interval: Duration::from_secs(60),
        },
    );
    let output = Output::new(rules);
    let _ = tracing_log::LogTracer::init();
    for _ in 0..1001 {
        log::debug!("one");
        log::debug!(target: "other", "other");
        log::info!(target: "quiet", "once");
    }
    let lines = output.lines.take();
    let count = |line: &str| lines.iter().filter(|shown| *shown == line).count();
    assert_eq!(count("DEBUG layers: one"), 11);
    assert_eq!(count("DEBUG other: other"), 11);
    assert_eq!(count("INFO quiet: once"), 1);
    assert_eq!(
        count("DEBUG other: similar events were suppressed suppressed=990"),
        1
    );
    assert_eq!(output.sampler.stats().total, 3003);
}

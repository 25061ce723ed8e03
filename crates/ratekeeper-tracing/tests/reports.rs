//! Reports of suppressed events.

mod support;

use ratekeeper::{Clock, ManualClock};
use ratekeeper_tracing::{Rules, Sampler, Sampling};
use std::thread;
use std::time::Duration;
use support::{Lines, Output};
use tracing::{Level, debug, info, info_span};
use tracing_subscriber::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);

fn twice_then_every_fifth() -> Rules {
    Rules::new().level(
        Level::INFO,
        Sampling::Sometimes {
            first: 2,
            every: 5,
            interval: HOUR,
        },
    )
}

#[test]
fn a_shown_event_is_followed_by_a_report_of_suppressed_ones() {
    let output = Output::new(twice_then_every_fifth());
    let log = |number: u64| info!(target: "shop::cart", number, "added");
    (0..7).for_each(log);
    assert_eq!(
        output.lines.take(),
        [
            "INFO shop::cart: added number=0",
            "INFO shop::cart: added number=1",
            "INFO shop::cart: added number=5",
            "INFO shop::cart: similar events were suppressed suppressed=3",
        ]
    );
    output.clock.advance(HOUR);
    log(7);
    assert_eq!(
        output.lines.take(),
        [
            "INFO shop::cart: added number=7",
            "INFO shop::cart: similar events were suppressed suppressed=1"
        ]
    );
}

#[test]
fn a_report_is_in_the_span_of_its_event() {
    let output = Output::new(twice_then_every_fifth());
    let _order = info_span!("order", id = 42).entered();
    (0..6).for_each(|_| info!("added"));
    let lines = output.lines.take();
    assert_eq!(lines[2], "INFO order{id=42}: reports: added");
    assert_eq!(
        lines[3],
        "INFO order{id=42}: reports: similar events were suppressed suppressed=3"
    );
}

#[test]
fn stats_count_all_shown_and_since_when() {
    let output = Output::new(Rules::new());
    let start = output.clock.now();
    assert_eq!(
        (output.sampler.stats().total, output.sampler.stats().ratio()),
        (0, 1.0)
    );

    output.clock.advance(HOUR);
    (0..2000).for_each(|_| debug!("again"));
    (0..5).for_each(|_| info!(critical = true, "leader lost"));
    let stats = output.sampler.stats();
    assert_eq!((stats.total, stats.sampled, stats.since), (2005, 16, start));
    assert_eq!((stats.suppressed(), stats.ratio()), (1989, 16.0 / 2005.0));
}

#[test]
fn many_threads_report_every_suppressed_event() {
    const THREADS: usize = 4;
    const CALLS: usize = 10_000;
    let (lines, clock) = (Lines::default(), ManualClock::new());
    let sampler = Sampler::with_clock(Rules::new(), clock.clone());
    let subscriber = tracing_subscriber::registry().with(sampler.layer(lines.layer()));
    let dispatch = tracing::Dispatch::new(subscriber);
    let log = || debug!("again");
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                tracing::dispatcher::with_default(&dispatch, || (0..CALLS).for_each(|_| log()));
            });
        }
    });
    clock.advance(HOUR);
    tracing::dispatcher::with_default(&dispatch, log);
    let shown = 10 + (THREADS * CALLS).div_ceil(1000) - 1 + 1;
    let all = (THREADS * CALLS + 1) as u64;
    assert_eq!(lines.take_counts(), (shown, all - shown as u64));
    assert_eq!(
        (sampler.stats().total, sampler.stats().sampled),
        (all, shown as u64)
    );
}

//! Which events of each level and target are shown.

mod support;

use ratekeeper::Limit;
use ratekeeper_tracing::{Rules, Sampling};
use std::time::Duration;
use support::Output;
use tracing::{Level, debug, error, event, info, trace, warn};

const MINUTE: Duration = Duration::from_secs(60);

/// Asserts how many of the first events, of 10,000 more, and after the interval are shown.
fn assert_sometimes(log: fn(), first: usize, every: usize, interval: Duration) {
    let output = Output::new(Rules::new());
    let shown = |calls: usize| {
        (0..calls).for_each(|_| log());
        output.lines.take_counts().0
    };
    assert_eq!(shown(first), first);
    // Calls are numbered from 0: every `every`-th of those that follow.
    let later = 10_000 - first;
    assert_eq!(shown(later), 9_999 / every - (first - 1) / every);
    assert_eq!(shown(1), 1, "number 10,000");

    output.clock.advance(interval - Duration::from_nanos(1));
    assert_eq!(shown(1), 0);
    output.clock.advance(Duration::from_nanos(1));
    assert_eq!(shown(2), 1);
}

#[test]
fn debug_and_trace_show_the_first_10_every_1000th_and_one_an_hour() {
    assert_sometimes(|| debug!("again"), 10, 1000, 60 * MINUTE);
    assert_sometimes(|| trace!("again"), 10, 1000, 60 * MINUTE);
}

#[test]
fn info_shows_the_first_100_every_100th_and_one_in_ten_minutes() {
    assert_sometimes(|| info!("again"), 100, 100, 10 * MINUTE);
}

#[test]
fn warn_shows_the_first_1000_every_10th_and_one_a_minute() {
    assert_sometimes(|| warn!("again"), 1000, 10, MINUTE);
}

#[test]
fn error_shows_50_at_once_and_10_a_second() {
    let output = Output::new(Rules::new());
    let log = || (0..200).for_each(|_| error!("again"));
    log();
    assert_eq!(output.lines.take_counts(), (50, 0));
    output.clock.advance(Duration::from_secs(1));
    log();
    assert_eq!(output.lines.take_counts(), (10, 150));
}

#[test]
fn critical_is_always_shown_at_any_level() {
    let output = Output::new(Rules::new());
    (0..500).for_each(|_| error!(critical = true, "the ledger does not add up"));
    (0..500).for_each(|_| info!(critical = true, "leader lost"));
    assert_eq!(output.lines.take_counts(), (1000, 0));

    let output = Output::new(Rules::new().critical(|event| event.target() == "pager"));
    (0..500).for_each(|_| error!(target: "pager", "wake up"));
    (0..500).for_each(|_| error!(critical = true, "a field like any other now"));
    assert_eq!(output.lines.take_counts(), (550, 0));
}

#[test]
fn each_callsite_is_counted_on_its_own() {
    let output = Output::new(Rules::new());
    for _ in 0..500 {
        debug!("one");
        debug!("other");
    }
    debug!("rare");
    let lines = output.lines.take();
    assert_eq!(
        lines.iter().filter(|line| line.ends_with("one")).count(),
        10
    );
    assert_eq!(
        lines.iter().filter(|line| line.ends_with("other")).count(),
        10
    );
    assert_eq!(lines.last().unwrap(), "DEBUG sampling: rare");
}

#[test]
fn a_level_can_have_a_rule_of_its_own() {
    let once = Sampling::Sometimes {
        first: 1,
        every: 0,
        interval: Duration::ZERO,
    };
    let output = Output::new(
        Rules::new()
            .level(Level::INFO, once)
            .level(Level::WARN, Limit::per_second(3)),
    );
    (0..100).for_each(|_| info!("again"));
    assert_eq!(output.lines.take_counts().0, 1);
    (0..100).for_each(|_| warn!("again"));
    assert_eq!(output.lines.take_counts().0, 3);
}

#[test]
fn the_longest_target_decides_and_its_level_before_the_rest() {
    let first = |n| Sampling::Sometimes {
        first: n,
        every: 0,
        interval: Duration::ZERO,
    };
    let rules = Rules::new()
        .target("shop::cart::price", first(4))
        .target("shop", first(7))
        .target("shop", first(2))
        .target_level("shop::cart", Level::INFO, Sampling::All)
        .target("shop::cart", first(3));
    let output = Output::new(rules);
    macro_rules! shown {
        ($target:literal, $level:expr) => {{
            (0..1000).for_each(|_| event!(target: $target, $level, "again"));
            output.lines.take_counts().0
        }};
    }
    assert_eq!(shown!("shop", Level::WARN), 2);
    assert_eq!(shown!("shop::till", Level::WARN), 2);
    assert_eq!(shown!("shop::cart", Level::WARN), 3);
    assert_eq!(shown!("shop::cart::item", Level::INFO), 1000);
    assert_eq!(shown!("shop::cart::price", Level::INFO), 4);
    assert_eq!(shown!("shopping", Level::WARN), 1000);
}

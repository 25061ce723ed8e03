//! The limits, traffic and classes that the tests and the docs compare.

use crate::{ClassedLimit, QueuedLimit, SECOND, Schedule, SheddingLimit, Stream};
use ratekeeper::adaptive::{AdaptiveConcurrency, AdaptiveQueue, Control, QueueConfig};
use ratekeeper::{Concurrency, ManualClock, adaptive::Class, adaptive::Shedder};
use std::time::Duration;

/// The adaptive controls by name. AIMD uses half of the clients' timeout as its own; the others
/// have default settings.
pub fn controls() -> [(&'static str, Control); 2] {
    let aimd = Control::aimd().timeout(Duration::from_millis(500));
    [
        ("aimd", aimd.into()),
        ("gradient2", Control::gradient2().into()),
    ]
}

/// An adaptive limit between 5 and 200 that starts at 20.
pub fn adaptive(control: Control) -> impl Fn(ManualClock) -> AdaptiveConcurrency<ManualClock> {
    move |clock| {
        AdaptiveConcurrency::builder()
            .control(control)
            .build_with_clock(clock)
    }
}

/// An adaptive limit with a queue of default settings in front.
pub fn queued(
    control: Control,
    max_waiting: usize,
) -> impl Fn(ManualClock) -> QueuedLimit<ManualClock> {
    move |clock| {
        QueuedLimit::new(AdaptiveQueue::new(
            adaptive(control)(clock),
            QueueConfig::of(max_waiting),
        ))
    }
}

/// A fixed concurrency limit.
pub fn fixed(limit: u64) -> impl Fn(ManualClock) -> Concurrency<ManualClock> {
    move |clock| Concurrency::with_clock(limit, clock)
}

/// An adaptive limit with a class for each stream.
pub fn classed(
    control: Control,
    classes: &[Class],
) -> impl Fn(ManualClock) -> ClassedLimit<ManualClock> {
    move |clock| ClassedLimit::new(adaptive(control)(clock), classes)
}

/// A shedder alone, whose target is two and a half times the latency without load.
pub fn shed(classes: &[Class]) -> impl Fn(ManualClock) -> SheddingLimit<ManualClock> {
    move |clock| {
        let shedder = Shedder::builder().build_with_clock(clock.clone());
        SheddingLimit::new(shedder, clock, classes, Duration::from_millis(100))
    }
}

/// Four streams, the most important first: two streams of critical traffic, together `critical` of
/// the peak, sheddable_plus at half of the peak, and sheddable at `sheddable` of it.
pub fn four_classes(peak: f64, critical: f64, sheddable: Schedule<f64>) -> [Stream; 4] {
    let half = || Stream::of(critical * peak / 2.0);
    [
        half(),
        half(),
        Stream::of(0.5 * peak),
        Stream::planned(sheddable.map(|times| times * peak)),
    ]
}

/// Calls that come in bursts, half of the peak on average: a tenth of each second has eight times
/// the rate of the rest of it.
pub fn burst_load(peak: f64, length: u64) -> Schedule<f64> {
    let quiet = 0.5 * peak / (0.1 * 8.0 + 0.9);
    let burst =
        |plan: Schedule<f64>, at: u64| plan.then(at, 8.0 * quiet).then(at + SECOND / 10, quiet);
    (0..length / SECOND)
        .map(|second| second * SECOND)
        .fold(Schedule::always(quiet), burst)
}

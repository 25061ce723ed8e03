//! The gates that are compared, as the tests and the docs have them.

use crate::{Classed, Plan, Queued, SECOND, Shed, Stream};
use ratekeeper::adaptive::{AdaptiveConcurrency, AdaptiveQueue, Control, QueueConfig};
use ratekeeper::{Concurrency, ManualClock, adaptive::Class, adaptive::Shedder};
use std::time::Duration;

/// The adaptive limits by name. AIMD takes half of the clients' patience for its timeout; the
/// others are as they come.
pub fn controls() -> [(&'static str, Control); 2] {
    let aimd = Control::aimd().timeout(Duration::from_millis(500));
    [
        ("aimd", aimd.into()),
        ("gradient2", Control::gradient2().into()),
    ]
}

/// A limit that finds its number between 5 and 200, from 20 on.
pub fn adaptive(control: Control) -> impl Fn(ManualClock) -> AdaptiveConcurrency<ManualClock> {
    move |clock| {
        AdaptiveConcurrency::builder()
            .control(control)
            .build_with_clock(clock)
    }
}

/// The same with a short queue in front, as it comes.
pub fn queued(control: Control, room: usize) -> impl Fn(ManualClock) -> Queued<ManualClock> {
    move |clock| {
        Queued::new(AdaptiveQueue::new(
            adaptive(control)(clock),
            QueueConfig::of(room),
        ))
    }
}

/// A limit that stays as it is.
pub fn fixed(limit: u64) -> impl Fn(ManualClock) -> Concurrency<ManualClock> {
    move |clock| Concurrency::with_clock(limit, clock)
}

/// An adaptive limit that knows how important calls are: the class of each stream.
pub fn classed(
    control: Control,
    classes: &[Class],
) -> impl Fn(ManualClock) -> Classed<ManualClock> {
    move |clock| Classed::new(adaptive(control)(clock), classes)
}

/// A shedder alone, for which two and a half times the latency without load is well.
pub fn shed(classes: &[Class]) -> impl Fn(ManualClock) -> Shed<ManualClock> {
    move |clock| {
        let shedder = Shedder::builder().build_with_clock(clock.clone());
        Shed::new(shedder, clock, classes, Duration::from_millis(100))
    }
}

/// Four streams, one of each class, the most important first: critical traffic in two equal parts
/// of `critical` of the peak together, sheddable_plus at a half of the peak, and sheddable at
/// `sheddable` of it.
pub fn four_classes(peak: f64, critical: f64, sheddable: Plan<f64>) -> [Stream; 4] {
    let half = || Stream::of(critical * peak / 2.0);
    [
        half(),
        half(),
        Stream::of(0.5 * peak),
        Stream::planned(sheddable.map(|times| times * peak)),
    ]
}

/// Calls that come in bursts, half of the peak on average: a tenth of each second has eight times
/// as many as the rest of it.
pub fn burst_load(peak: f64, length: u64) -> Plan<f64> {
    let quiet = 0.5 * peak / (0.1 * 8.0 + 0.9);
    let burst = |plan: Plan<f64>, at: u64| plan.then(at, 8.0 * quiet).then(at + SECOND / 10, quiet);
    (0..length / SECOND)
        .map(|second| second * SECOND)
        .fold(Plan::always(quiet), burst)
}

//! The controllers in front of a service that is a formula: it works on `n` requests at once,
//! further ones wait.

use proptest::prelude::*;
use ratekeeper::Timestamp;
use ratekeeper::adaptive::{Control, Controller, Sample};
use std::time::Duration;

/// A service that works on `places` requests at once, each for `takes`, under constant full load.
struct Service {
    controller: Controller,
    places: u64,
    takes: Duration,
    now: Timestamp,
    least: u64,
    most: u64,
}

impl Service {
    fn under(control: impl Into<Control>, places: u64) -> Self {
        let controller = control.into().controller(2, 1_000, 20);
        let (least, most) = (u64::MAX, 0);
        Self {
            controller,
            places,
            takes: Duration::from_millis(10),
            now: Timestamp::UNIX_EPOCH,
            least,
            most,
        }
    }

    fn latency(&self, in_flight: u64) -> Duration {
        let rounds = (in_flight as f64 / self.places as f64).max(1.0);
        self.takes.mul_f64(rounds)
    }

    /// Runs under full load for `seconds`, in windows of two latencies; records the minimum and
    /// maximum of the limit outside of probes.
    fn run(&mut self, seconds: u64) -> &Self {
        let end = self.now + Duration::from_secs(seconds);
        (self.least, self.most) = (u64::MAX, 0);
        while self.now < end {
            let in_flight = self.controller.limit();
            let latency = self.latency(in_flight);
            self.now = self.now + latency * 2;
            let limit = self.controller.sample(Sample {
                latency,
                in_flight,
                dropped: false,
                now: self.now,
            });
            if self.controller.probing_until().is_none() {
                (self.least, self.most) = (self.least.min(limit), self.most.max(limit));
            }
        }
        self
    }
}

#[test]
fn gradient2_settles_at_one_and_a_half_and_its_queue() {
    for places in [1, 5, 20, 100] {
        let mut service = Service::under(Control::gradient2(), places);
        service.run(300);
        let service = service.run(60);
        let aim = places as f64 * 1.5 + 4.0;
        assert!(
            service.least as f64 >= aim - 3.0 && service.most as f64 <= aim + 3.0,
            "{places}: {} {}",
            service.least,
            service.most
        );
    }
}

/// A tenth of the capacity, later ten times as much.
#[test]
fn a_step_in_capacity_is_followed_down_and_up() {
    {
        let control = Control::from(Control::gradient2());
        let mut service = Service::under(control, 100);
        service.run(300);
        service.places = 10;
        service.run(60);
        let (low, high) = {
            let service = service.run(30);
            (service.least, service.most)
        };
        assert!(low >= 8 && high <= 30, "{control:?}: {low} {high}");
        service.places = 100;
        service.run(60);
        let service = service.run(30);
        assert!(
            service.least >= 95 && service.most <= 175,
            "{control:?}: {} {}",
            service.least,
            service.most
        );
    }
}

/// A dependency takes ten times as long, for an hour: the right limit does not change.
#[test]
fn in_a_long_incident_the_limit_does_not_grow() {
    {
        let control = Control::from(Control::gradient2());
        let mut service = Service::under(control, 50);
        service.run(300);
        let before = service.run(60).most;
        service.takes = Duration::from_millis(100);
        service.run(120);
        let service = service.run(3_600);
        assert!(
            service.most <= before + 3,
            "{control:?}: {} over {before}",
            service.most
        );
        assert!(
            service.least >= 40,
            "{control:?}: {} starves",
            service.least
        );
    }
}

#[test]
fn aimd_by_the_book() {
    let mut aimd =
        Control::from(Control::aimd().timeout(Duration::from_millis(100))).controller(5, 50, 40);
    let sample = |millis: u64, in_flight, dropped| Sample {
        latency: Duration::from_millis(millis),
        in_flight,
        dropped,
        now: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(aimd.sample(sample(10, 19, false)), 40); // less than half in use
    assert_eq!(aimd.sample(sample(10, 20, false)), 41);
    assert_eq!(aimd.sample(sample(10, 20, true)), 36); // nine tenths, whatever was in flight
    assert_eq!(aimd.sample(sample(100, 0, false)), 33); // late is as good as never
    for _ in 0..100 {
        aimd.sample(sample(1, 50, false));
    }
    assert_eq!(aimd.limit(), 50);
}

#[test]
fn the_settings_are_shown_and_named() {
    let named = [Control::from(Control::aimd()), Control::gradient2().into()].map(|c| c.name());
    assert_eq!(named, ["aimd", "gradient2"]);
    assert_eq!(
        Control::from(Control::aimd()).drops_after(),
        Some(Duration::from_secs(5))
    );
    assert_eq!(
        Control::from(Control::gradient2().timeout(Duration::from_secs(1))).drops_after(),
        Some(Duration::from_secs(1))
    );
}

fn samples() -> impl Strategy<Value = (u64, u64, bool, u64)> {
    let latency = prop_oneof![
        Just(0),
        1..1_000_000_u64,
        1_000_000..10_000_000_000_u64,
        Just(u64::MAX)
    ];
    (
        latency,
        prop_oneof![0..300_u64, Just(u64::MAX)],
        prop::bool::weighted(0.1),
        0..5_000_000_000_u64,
    )
}

proptest! {
    /// For any samples, in any order of time, the limit is in its range; idle samples never raise
    /// it, drops never do.
    #[test]
    fn the_limit_stays_in_its_range(
        control in prop_oneof![
            Just(Control::from(Control::aimd())), Just(Control::from(Control::gradient2())),
        ],
        min in 0..20_u64, max in 0..200_u64, start in any::<u64>(),
        seen in prop::collection::vec(samples(), 0..200),
    ) {
        let mut controller = control.controller(min, max, start);
        let mut twin = controller;
        let least = min.max(1);
        for (latency, in_flight, dropped, at) in seen {
            let before = (controller.limit(), controller.probing_until().is_some());
            let sample = Sample { latency: Duration::from_nanos(latency), in_flight, dropped, now: Timestamp::from_unix_nanos(at) };
            let limit = controller.sample(sample);
            prop_assert_eq!(limit, twin.sample(sample), "the same in, the same out");
            prop_assert!((least..=max.max(least)).contains(&limit));
            // The end of a probe restores the limit.
            if !before.1 && (dropped || in_flight < before.0 / 2) {
                prop_assert!(limit <= before.0);
            }
        }
    }
}

//! `Adaptive`: a rate that follows a scripted load, on the manual clock.

use ratekeeper::{Limit, ManualClock, adaptive::Adaptive, adaptive::Load, adaptive::RateChange};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A load that can be set, and the changes it caused.
struct ScriptedLoad {
    clock: ManualClock,
    load: Arc<Mutex<Load>>,
    changes: Arc<Mutex<Vec<RateChange>>>,
    adaptive: Adaptive<ManualClock>,
}

impl ScriptedLoad {
    fn new(min: Limit, max: Limit) -> Self {
        let (clock, load) = (
            ManualClock::new(),
            Arc::new(Mutex::new(Load {
                cpu: 0.0,
                memory: 0.0,
            })),
        );
        let changes = Arc::new(Mutex::new(Vec::new()));
        let (read, told) = (Arc::clone(&load), Arc::clone(&changes));
        let adaptive = Adaptive::between(min, max)
            .on_change(move |change| told.lock().unwrap().push(*change))
            .build_with_clock(move || *read.lock().unwrap(), clock.clone());
        Self {
            clock,
            load,
            changes,
            adaptive,
        }
    }

    /// The limit after `seconds` under this load, with a call each second.
    fn after(&self, seconds: u64, cpu: f64, memory: f64) -> String {
        *self.load.lock().unwrap() = Load { cpu, memory };
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            let _ = self.adaptive.check_n(0);
        }
        self.adaptive.limiter().limit().to_string()
    }
}

#[test]
fn it_starts_in_the_middle_and_moves_a_fifth_at_a_time_with_a_rest_between() {
    let world = ScriptedLoad::new(Limit::per_second(100), Limit::per_second(300));
    assert_eq!(world.adaptive.limiter().limit(), Limit::per_second(200));
    assert_eq!(world.after(4, 0.9, 0.1), "200/s");
    assert_eq!(
        world.after(1, 0.9, 0.1),
        "160/s",
        "the first look, after 5 s"
    );
    assert_eq!(world.after(29, 0.9, 0.1), "160/s", "it rests for 30 s");
    assert_eq!(world.after(1, 0.9, 0.1), "128/s");
    assert_eq!(world.after(30, 0.1, 0.9), "102/s", "memory counts as well");
    assert_eq!(world.after(30, 0.9, 0.9), "100/s", "not below the least");
    assert_eq!(world.after(30, 0.1, 0.1), "120/s");
    assert_eq!(
        world.after(300, 0.1, 0.1),
        "300/s",
        "not above the greatest"
    );
    assert_eq!(
        world.after(60, 0.7, 0.8),
        "300/s",
        "at the threshold is not above it"
    );
}

#[test]
fn every_change_is_reported_with_its_load() {
    let world = ScriptedLoad::new(Limit::per_second(100), Limit::per_second(300));
    world.after(5, 0.71, 0.2);
    world.after(30, 0.2, 0.2);
    let changes = world.changes.lock().unwrap();
    let told: Vec<_> = changes
        .iter()
        .map(|c| (c.from.to_string(), c.to.to_string(), c.load.cpu))
        .collect();
    assert_eq!(
        told,
        [
            ("200/s".into(), "160/s".into(), 0.71),
            ("160/s".into(), "192/s".into(), 0.2)
        ]
    );
    assert_eq!(changes[1].at - changes[0].at, Duration::from_secs(30));
}

#[test]
fn tokens_and_debt_carry_over_and_the_burst_moves_along() {
    let world = ScriptedLoad::new(
        Limit::per_second(10).burst(10),
        Limit::per_second(30).burst(50),
    );
    assert_eq!(
        world.adaptive.limiter().limit().to_string(),
        "20/s burst 30"
    );
    world.clock.advance(Duration::from_secs(5));
    assert!(world.adaptive.limiter().check_n(25).is_allowed());
    *world.load.lock().unwrap() = Load {
        cpu: 0.9,
        memory: 0.0,
    };
    world.adaptive.tick();
    assert_eq!(
        world.adaptive.limiter().limit().to_string(),
        "16/s burst 22"
    );
    assert_eq!(world.adaptive.limiter().tokens(), 5.0);
}

#[test]
fn an_unknown_load_is_no_reason_to_move() {
    let world = ScriptedLoad::new(Limit::per_second(100), Limit::per_second(300));
    assert_eq!(world.after(100, f64::NAN, f64::NAN), "200/s");
    assert_eq!(
        world.after(5, f64::NAN, 0.9),
        "160/s",
        "one of the two is enough"
    );
}

#[test]
fn small_limits_and_swapped_ends_move_too() {
    let world = ScriptedLoad::new(Limit::per_minute(6), Limit::per_minute(2));
    assert_eq!(world.adaptive.limiter().limit().to_string(), "4/min");
    assert_eq!(world.after(5, 0.9, 0.0), "3/min");
    assert_eq!(world.after(400, 0.9, 0.0), "2/min");
    assert_eq!(world.after(400, 0.0, 0.0), "6/min");
}

#[test]
fn all_settings_can_be_changed() {
    let clock = ManualClock::new();
    let adaptive = Adaptive::between(Limit::per_second(10), Limit::per_second(1_000))
        .cpu_above(0.3)
        .memory_above(0.4)
        .step(0.5)
        .every(Duration::from_secs(1))
        .cool_down(Duration::ZERO)
        .build_with_clock(
            || Load {
                cpu: 0.31,
                memory: 0.0,
            },
            clock.clone(),
        );
    let mut limits = Vec::new();
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        adaptive.tick();
        limits.push(adaptive.limiter().limit().rate().unwrap().count());
    }
    assert_eq!(limits, [252, 126, 63]);
}

#[test]
fn many_threads_check_the_load_once() {
    let looks = Arc::new(Mutex::new(0));
    let (clock, counted) = (ManualClock::new(), Arc::clone(&looks));
    let adaptive = Adaptive::between(Limit::per_second(100), Limit::per_second(300))
        .build_with_clock(
            move || {
                *counted.lock().unwrap() += 1;
                Load {
                    cpu: 0.9,
                    memory: 0.0,
                }
            },
            clock.clone(),
        );
    for _ in 0..10 {
        clock.advance(Duration::from_secs(35));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _ = adaptive.check();
                    }
                });
            }
        });
    }
    assert_eq!(*looks.lock().unwrap(), 10);
}

//! Load shedding by class: its order, evenness and stability, and the losses of critical traffic
//! under heavy overload.

use proptest::prelude::*;
use ratekeeper::{ManualClock, adaptive::Class, adaptive::Shedder};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next arrival at this rate, in seconds.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.next()).ln() / rate
    }
}

/// A server that works on `at_once` requests for 100 ms each and denies the others.
struct Server {
    at_once: usize,
    ends: Vec<f64>,
}

impl Server {
    fn in_use(&mut self, now: f64) -> f64 {
        self.ends.retain(|end| *end > now);
        self.ends.len() as f64 / self.at_once as f64
    }

    fn takes(&mut self, now: f64) -> bool {
        self.ends.retain(|end| *end > now);
        let room = self.ends.len() < self.at_once;
        if room {
            self.ends.push(now + 0.1);
        }
        room
    }
}

/// The counts of one class.
#[derive(Clone, Copy, Default, Debug)]
struct ClassCounts {
    offered: u64,
    served: u64,
}

impl ClassCounts {
    fn lost(&self) -> f64 {
        1.0 - self.served as f64 / self.offered as f64
    }
}

/// Two classes arrive at these rates, independently of responses, at a server with a capacity of
/// 1,000 per second. Returns their counts and how often the level turned from up to down.
fn overload(
    critical: f64,
    sheddable: f64,
    seconds: f64,
    seed: u64,
    tell_use: bool,
) -> (ClassCounts, ClassCounts, u32) {
    let clock = ManualClock::new();
    let shedder = Shedder::builder()
        .seed(seed)
        .build_with_clock(clock.clone());
    let mut random = Random(seed | 1);
    let mut server = Server {
        at_once: 100,
        ends: Vec::new(),
    };
    let (mut fates, mut next) = (
        [ClassCounts::default(); 2],
        [random.gap(critical), random.gap(sheddable)],
    );
    let (mut now, mut turns) = (0.0, ReversalCounter::default());
    while now < seconds {
        let which = usize::from(next[1] < next[0]);
        clock.advance(Duration::from_secs_f64(next[which] - now));
        now = next[which];
        next[which] += random.gap([critical, sheddable][which]);
        fates[which].offered += 1;
        if shedder.admit([Class::Critical, Class::Sheddable][which]) {
            // Up to 85 % in use is normal: beyond, chance alone makes it full.
            if tell_use {
                shedder.report(server.in_use(now) / 0.85);
            }
            if server.takes(now) {
                fates[which].served += 1;
            } else {
                shedder.refused();
            }
        }
        turns.see(shedder.level());
    }
    (fates[0], fates[1], turns.downward)
}

/// Counts how often a level that went up goes down.
#[derive(Default)]
struct ReversalCounter {
    level: f64,
    rises: bool,
    downward: u32,
}

impl ReversalCounter {
    fn see(&mut self, level: f64) {
        if level > self.level {
            self.rises = true;
        } else if level < self.level && std::mem::take(&mut self.rises) {
            self.downward += 1;
        }
        self.level = level;
    }
}

#[test]
fn critical_traffic_loses_less_than_1_percent_while_ten_times_what_fits_is_sheddable() {
    for seed in 1..=5 {
        let (critical, sheddable, turns) = overload(700.0, 10_000.0, 60.0, seed, true);
        assert!(
            critical.lost() < 0.01,
            "seed {seed}: {critical:?} lost {}",
            critical.lost()
        );
        // And some of what they leave is used: 700 a second are critical.
        let goodput = (critical.served + sheddable.served) as f64 / 60.0;
        assert!(goodput > 720.0, "seed {seed}: {goodput} a second");
        assert!(turns <= 12, "seed {seed}: {turns} turns in a minute");
    }
}

/// Without reports of how much is in use it learns only from calls denied further in, critical ones
/// among them.
#[test]
fn from_refused_calls_alone_it_reacts_a_little_later() {
    for seed in 1..=5 {
        let (critical, _, turns) = overload(700.0, 10_000.0, 60.0, seed, false);
        assert!(
            critical.lost() < 0.02,
            "seed {seed}: {critical:?} lost {}",
            critical.lost()
        );
        assert!(turns <= 12, "seed {seed}: {turns} turns in a minute");
    }
}

#[test]
fn without_pressure_nothing_is_shed() {
    let (critical, sheddable, turns) = overload(300.0, 300.0, 30.0, 9, true);
    assert_eq!((critical.lost(), sheddable.lost(), turns), (0.0, 0.0, 0));
}

/// A queue of one server whose delay is the pressure: every call waits, none is denied.
#[test]
fn the_delay_of_a_queue_works_as_pressure() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder().build_with_clock(clock.clone());
    let (mut random, mut free_at, mut now) = (Random(7), 0.0_f64, 0.0);
    let (mut critical, mut worst) = (ClassCounts::default(), 0.0_f64);
    while now < 120.0 {
        let gap = random.gap(10_700.0);
        clock.advance(Duration::from_secs_f64(gap));
        now += gap;
        let is_critical = random.next() < 700.0 / 10_700.0;
        let admitted = shedder.admit(if is_critical {
            Class::Critical
        } else {
            Class::Sheddable
        });
        if admitted {
            let delay = (free_at - now).max(0.0);
            shedder.report(delay / 0.05);
            free_at = free_at.max(now) + 0.001;
            if now > 10.0 {
                worst = worst.max(delay);
            }
        }
        if is_critical {
            critical.offered += 1;
            critical.served += u64::from(admitted);
        }
    }
    assert!(
        critical.lost() < 0.01,
        "{critical:?} lost {}",
        critical.lost()
    );
    assert!(
        worst < 0.5,
        "after the first seconds nobody waits long: {worst}"
    );
}

#[test]
fn a_partly_shed_class_is_shed_evenly_and_by_key() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder().build_with_clock(clock.clone());
    for _ in 0..1_000 {
        assert!(shedder.admit(Class::Sheddable));
    }
    shedder.report(2.0);
    clock.advance(TICK);
    let share = {
        shedder.tick();
        shedder.level()
    };
    assert!(share > 0.4 && share < 0.6, "{share}");
    let passed = (0..10_000)
        .filter(|_| shedder.admit(Class::Sheddable))
        .count();
    assert!(
        (passed as f64 / 10_000.0 - (1.0 - share)).abs() < 0.001,
        "{passed} at {share}"
    );
    // No run of one kind is long.
    let run = (0..1_000)
        .map(|_| shedder.admit(Class::Sheddable))
        .collect::<Vec<_>>();
    assert!(
        run.windows(4)
            .all(|four| four.contains(&true) && four.contains(&false))
    );
    let once: Vec<bool> = (0..1_000)
        .map(|key| shedder.admit_key(Class::Sheddable, key))
        .collect();
    let again: Vec<bool> = (0..1_000)
        .map(|key| shedder.admit_key(Class::Sheddable, key))
        .collect();
    assert_eq!(once, again);
    let passed = once.iter().filter(|passed| **passed).count();
    assert!((400..=600).contains(&passed), "{passed}");
}

#[test]
fn after_an_overload_traffic_comes_back_slowly_even_without_calls() {
    let build = |clock: &ManualClock| {
        let shedder = Shedder::builder().build_with_clock(clock.clone());
        for _ in 0..50 {
            (0..100).for_each(|_| _ = shedder.admit(Class::Sheddable));
            (0..100).for_each(|_| _ = shedder.admit(Class::Critical));
            shedder.report(5.0);
            clock.advance(TICK);
        }
        shedder
    };
    let clock = ManualClock::new();
    let shedder = build(&clock);
    shedder.tick();
    assert!(shedder.level() > 1.0 && shedder.snapshot().lowest_served() > Class::Sheddable);
    let before = shedder.level();
    clock.advance(Duration::from_millis(4_900));
    shedder.tick();
    assert_eq!(shedder.level(), before, "it rests");
    let mut seconds = 0.0;
    while shedder.level() > 0.0 {
        clock.advance(TICK);
        (0..100).for_each(|_| _ = shedder.admit(Class::Sheddable));
        (0..100).for_each(|_| _ = shedder.admit(Class::Critical));
        seconds += 0.1;
    }
    assert!((5.0..120.0).contains(&seconds), "{seconds} s");

    let clock = ManualClock::new();
    let shedder = build(&clock);
    clock.advance(Duration::from_secs(3_600));
    assert!(shedder.admit(Class::Sheddable));
    assert_eq!(shedder.level(), 0.0);
}

#[test]
fn spared_classes_are_never_shed() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder()
        .spare(Class::CriticalPlus)
        .pressure(|| 100.0)
        .build_with_clock(clock.clone());
    let bare = Shedder::builder()
        .pressure(|| 100.0)
        .build_with_clock(clock.clone());
    for _ in 0..500 {
        for class in Class::ALL {
            let spared = shedder.admit(class);
            assert!(spared || class != Class::CriticalPlus);
            bare.admit(class);
        }
        clock.advance(TICK);
    }
    assert_eq!(shedder.level(), 3.0);
    assert!(bare.level() > 3.9, "{}", bare.level());
    assert!(
        (0..100).any(|_| bare.admit(Class::CriticalPlus)),
        "somebody always passes"
    );
    assert!((0..100).all(|_| !bare.admit(Class::Critical)));
}

#[test]
fn classes_are_text() {
    for class in Class::ALL {
        assert_eq!(class.to_string().parse(), Ok(class));
        assert_eq!(class.name().to_uppercase().parse(), Ok(class));
    }
    let wrong = "urgent".parse::<Class>().unwrap_err().to_string();
    assert_eq!(
        wrong,
        "\"urgent\" is not a class; write critical_plus, critical, sheddable_plus or sheddable"
    );
    assert!(
        "x".repeat(10_000)
            .parse::<Class>()
            .unwrap_err()
            .to_string()
            .len()
            < 150
    );
}

#[test]
fn invalid_pressure_changes_nothing() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder()
        .pressure(|| f64::NAN)
        .build_with_clock(clock.clone());
    for _ in 0..50 {
        for nonsense in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            shedder.report(nonsense);
        }
        assert!(shedder.admit(Class::Sheddable));
        clock.advance(TICK);
    }
    shedder.report(f64::INFINITY);
    clock.advance(TICK);
    shedder.tick();
    assert!(shedder.level() > 0.0 && shedder.snapshot().pressure.is_finite());
}

proptest! {
    /// For any pressure: a class is shed only when those below are fully shed; it turns at most 12
    /// times a minute; and the same seed on the same clock does the same.
    #[test]
    fn it_keeps_order_and_stays_calm(
        seed: u64,
        ticks in prop::collection::vec((0.0..4.0_f64, [0_u8..50, 0..50, 0..50, 0..50]), 1..1_200),
    ) {
        let (clock, other_clock) = (ManualClock::new(), ManualClock::new());
        let shedder = Shedder::builder().seed(seed).build_with_clock(clock.clone());
        let other = Shedder::builder().seed(seed).build_with_clock(other_clock.clone());
        let mut turns = ReversalCounter::default();
        let mut counted = [0_u64; 4];
        for (pressure, arrivals) in &ticks {
            for (at, (class, many)) in Class::ALL.into_iter().zip(arrivals).enumerate() {
                for _ in 0..*many {
                    counted[at] += 1;
                    prop_assert_eq!(shedder.admit(class), other.admit(class));
                }
            }
            let now = shedder.snapshot();
            for pair in now.classes.windows(2) {
                prop_assert!(pair[0].share == 0.0 || pair[1].share == 1.0, "{:?}", now);
            }
            for (figures, counted) in now.classes.iter().zip(counted) {
                prop_assert_eq!(figures.admitted + figures.shed, counted);
            }
            for shedder in [&shedder, &other] {
                shedder.report(*pressure);
            }
            turns.see(shedder.level());
            clock.advance(TICK);
            other_clock.advance(TICK);
        }
        let minutes = (ticks.len() as f64 / 600.0).ceil() as u32;
        prop_assert!(turns.downward <= 12 * minutes, "{} in {} minutes", turns.downward, minutes);
    }
}

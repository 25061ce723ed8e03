//! The flood: random keys by the million against a table that holds few, while two abusers keep
//! calling. What the abusers were admitted is checked over every interval; what well-behaved new
//! keys were told is counted.

use super::bounds::{self, Admitted};
use ratekeeper::{Clock, Keyed, Limit, ManualClock, Timestamp, keyed::KeyedStats};

pub(crate) struct Flood {
    pub(crate) limit: Limit,
    /// Distinct random keys, one call each.
    pub(crate) keys: u64,
    /// The cap of the table.
    pub(crate) cap: usize,
    /// New keys a second of simulated time.
    pub(crate) per_second: u64,
}

pub(crate) struct Report {
    pub(crate) abusers: [Abuser; 2],
    /// New keys that were turned away, in each tenth of the flood.
    pub(crate) denied: [u64; 10],
    pub(crate) figures: KeyedStats,
    /// The most keys that the table told of at any time it was asked.
    pub(crate) most_keys: u64,
    /// Resident bytes beyond those of before there was a table, at the end of each tenth.
    pub(crate) resident: [u64; 10],
}

pub(crate) struct Abuser {
    pub(crate) name: &'static str,
    pub(crate) calls: u64,
    pub(crate) admitted: Vec<Admitted>,
    pub(crate) broken: Option<String>,
}

impl Report {
    pub(crate) fn denied(&self) -> u64 {
        self.denied.iter().sum()
    }
}

/// Slots of the table: two for each key it was made for, in lines of four.
pub(crate) fn slots(figures: &KeyedStats) -> u64 {
    (2 * figures.max_keys).next_multiple_of(4)
}

/// A bijection: distinct numbers stay distinct.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Resident bytes of this process; 0 where the system does not say.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0);
    pages * 4_096
}

impl Flood {
    pub(crate) fn run(&self) -> Report {
        let clock = ManualClock::new();
        let start = clock.now().as_unix_nanos();
        let empty = resident();
        let keyed = Keyed::<u64, _>::builder(self.limit)
            .max_keys(self.cap)
            .clock(clock.clone())
            .build();
        let abuser = |name| Abuser {
            name,
            calls: 0,
            admitted: Vec::new(),
            broken: None,
        };
        let mut abusers = [abuser("steady"), abuser("in bursts")];
        let (mut denied, mut most_keys, mut used) = ([0; 10], 0, [0; 10]);
        for number in 0..self.keys {
            let now =
                start + (u128::from(number) * 1_000_000_000 / u128::from(self.per_second)) as u64;
            let at = Timestamp::from_unix_nanos(now);
            let call = |key: u64| keyed.key(&key).at(at).check();
            if call(scattered(number)).is_denied() {
                denied[(number * 10 / self.keys) as usize] += 1;
            }
            // One calls all the time; the other lies low until it is forgotten, then calls as fast
            // as it can.
            let lies_low = number / 65_536 % 4 != 3;
            for (which, calls) in [(0, number % 8 == 0), (1, !lies_low)] {
                let decision = if calls {
                    call(scattered(u64::MAX - which))
                } else {
                    continue;
                };
                let abuser = &mut abusers[which as usize];
                abuser.calls += 1;
                if decision.is_allowed() {
                    let delay = decision.delay().as_nanos() as u64;
                    abuser.admitted.push(Admitted {
                        at: now,
                        cost: 1,
                        delay,
                    });
                }
            }
            if (number + 1) * 10 % self.keys < 10 {
                let tenth = (number * 10 / self.keys) as usize;
                used[tenth] = resident().saturating_sub(empty);
                clock.set(at);
                most_keys = most_keys.max(keyed.stats().keys);
            }
        }
        for abuser in &mut abusers {
            abuser.broken = bounds::broken(&self.limit, &abuser.admitted);
        }
        let figures = keyed.stats();
        Report {
            abusers,
            denied,
            most_keys: most_keys.max(figures.keys),
            figures,
            resident: used,
        }
    }
}

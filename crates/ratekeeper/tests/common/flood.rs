//! Flood simulation: millions of random keys against a small table, while two abusers keep calling.
//! Checks what the abusers were allowed over every interval, and counts how many new keys were
//! denied.

use ratekeeper::{Clock, Keyed, Limit, ManualClock, Timestamp, keyed::KeyedStats};
use ratekeeper_testkit::bounds::{self, AllowedCall};

pub(crate) struct Flood {
    pub(crate) limit: Limit,
    /// Distinct random keys, one call each.
    pub(crate) keys: u64,
    /// How many keys the table is made for.
    pub(crate) max_keys: usize,
    /// New keys per second of simulated time.
    pub(crate) per_second: u64,
}

pub(crate) struct Report {
    pub(crate) abusers: [Abuser; 2],
    /// New keys that were denied, in each tenth of the flood.
    pub(crate) denied: [u64; 10],
    pub(crate) stats: KeyedStats,
    /// The largest number of keys that the table reported.
    pub(crate) most_keys: u64,
    /// Resident bytes in addition to those before the table was created, at the end of each tenth.
    pub(crate) resident: [u64; 10],
}

pub(crate) struct Abuser {
    pub(crate) name: &'static str,
    pub(crate) calls: u64,
    pub(crate) allowed: Vec<AllowedCall>,
    pub(crate) violation: Option<String>,
}

impl Report {
    pub(crate) fn denied(&self) -> u64 {
        self.denied.iter().sum()
    }
}

/// Returns the slots of the table: two for each key it was made for, in cache lines of four.
pub(crate) fn slots(stats: &KeyedStats) -> u64 {
    (2 * stats.max_keys).next_multiple_of(4)
}

/// A bijection: distinct numbers stay distinct.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the resident bytes of this process; 0 where the system does not report them.
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
            .max_keys(self.max_keys)
            .clock(clock.clone())
            .build();
        let abuser = |name| Abuser {
            name,
            calls: 0,
            allowed: Vec::new(),
            violation: None,
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
            // One calls all the time; the other pauses until it is evicted, then calls as fast as
            // it can.
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
                    abuser.allowed.push(AllowedCall {
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
            abuser.violation = bounds::violation(&self.limit, &abuser.allowed);
        }
        let stats = keyed.stats();
        Report {
            abusers,
            denied,
            most_keys: most_keys.max(stats.keys),
            stats,
            resident: used,
        }
    }
}

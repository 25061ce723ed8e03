//! One arrival time a key, judged by numbers that come with each call.

use super::line::Rule;
use super::table::{KeyedStats, Table, TableSize};
use super::terms::LimitVersion;
use crate::algorithm::tat_word::decision;
use crate::algorithm::token_bucket::{Step, step};
use crate::clock::{Clock, DefaultClock, SystemClock, Timestamp};
use crate::decision::{Decision, Outcome};
use crate::limit::{Kind, Limit, MAX_FILL, TickLimit};
use core::fmt;
use core::hash::Hash;
use core::time::Duration;
use std::sync::Arc;

/// Calls of many subjects, each with a limit of its own choosing: a key has one arrival time,
/// whatever it is judged by.
///
/// This is what redis-cell keeps for `CL.THROTTLE`. When the parameters of a key change, the time at
/// which its bucket is full again stays.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{keyed::KeyedGcra, Clock, keyed::GcraParams};
///
/// let arrivals = KeyedGcra::new();
/// let now = arrivals.clock().now();
/// let thirty_a_minute = Throttle::new(16, 30, Duration::from_secs(60))?;
/// assert_eq!(arrivals.check("user-42", &thirty_a_minute, 1, now).remaining(), 15);
/// assert!(arrivals.check("user-42", &thirty_a_minute, 17, now).is_never());
/// # Ok::<_, ratekeeper::keyed::GcraParamsError>(())
/// ```
///
/// Its memory is fixed as that of a [`Keyed`](crate::Keyed) is, and keys for which there is no room
/// any more leave what they had used in a floor: a flood of keys can cause false denials, never a
/// false admission. All keys share the floor, whatever they are judged by.
///
/// A handle: clones share the keys.
pub struct KeyedGcra<C: Clock = DefaultClock> {
    inner: Arc<KeyedGcraState<C>>,
}

struct KeyedGcraState<C> {
    table: Table<C>,
    terms: Arc<LimitVersion>,
}

/// The numbers of one call on [`KeyedGcra`]: so many at once, and so many in each period from then
/// on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GcraParams {
    /// In nanoseconds: one tick each.
    normal: TickLimit,
}

impl GcraParams {
    /// `burst` at once, refilled at `count` in each `period`.
    ///
    /// One unit takes `period / count`, rounded up to a whole nanosecond. A burst that takes more
    /// than 142 years to come back is as much as does in 142 years. It is an error if `burst`,
    /// `count` or `period` is zero, or if one unit takes longer than that.
    #[inline]
    pub fn new(burst: u64, count: u64, period: Duration) -> Result<Self, GcraParamsError> {
        if burst == 0 || count == 0 || period.is_zero() {
            return Err(GcraParamsError::Zero);
        }
        let token = match u64::try_from(period.as_nanos()) {
            Ok(period) => period.div_ceil(count),
            Err(_) => {
                u64::try_from(period.as_nanos().div_ceil(u128::from(count))).unwrap_or(u64::MAX)
            }
        };
        if token > MAX_FILL {
            return Err(GcraParamsError::TooSlow);
        }
        let capacity = match burst.checked_mul(token) {
            Some(capacity) if capacity <= MAX_FILL => capacity,
            _ => MAX_FILL / token * token,
        };
        Ok(Self {
            normal: TickLimit {
                ticks: 1,
                token,
                capacity,
                kind: Kind::Bucket,
            },
        })
    }

    /// How long one unit takes.
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.normal.token)
    }

    /// How much may come at once.
    pub fn burst(&self) -> u64 {
        self.normal.burst()
    }
}

/// Numbers that limit nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GcraParamsError {
    /// The burst, the count or the period is zero.
    Zero,
    /// One unit takes longer than 142 years.
    TooSlow,
}

impl fmt::Display for GcraParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "the burst, the count and the period must all be more than zero",
            Self::TooSlow => {
                "one unit takes longer than 142 years; choose a shorter period or a larger count"
            }
        })
    }
}

impl core::error::Error for GcraParamsError {}

/// Makes [`KeyedGcra`]; what [`KeyedGcra::builder`] returns.
pub struct KeyedGcraBuilder<C: Clock = DefaultClock> {
    cap: TableSize,
    clock: C,
}

impl<C: Clock> KeyedGcraBuilder<C> {
    /// How many keys may be live at once before some are displaced; a million if not said. Each
    /// takes 32 bytes once it is used.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.cap.keys = keys;
        self
    }

    /// How many bytes it may use in all: if the table of [`max_keys`](Self::max_keys) would take
    /// more, it is made for fewer.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.cap.bytes = Some(bytes);
        self
    }

    /// Another clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> KeyedGcraBuilder<D> {
        KeyedGcraBuilder {
            cap: self.cap,
            clock,
        }
    }

    /// Makes it. Memory is reserved now and used as keys come.
    ///
    /// # Panics
    ///
    /// If the memory cannot even be reserved: more than the system would ever hand out was asked
    /// for.
    pub fn build(self) -> KeyedGcra<C> {
        self.try_build()
            .expect("memory for as many keys as were asked for")
    }

    /// The same; none if the memory cannot even be reserved.
    pub fn try_build(self) -> Option<KeyedGcra<C>> {
        let table = Table::try_new(self.cap, self.clock, 0)?;
        // Its states are counted in nanoseconds, and that is all that is taken from it.
        let nanosecond_ticks = Rule::Rate(Limit::per_second(1));
        let terms = table.new_line(0, "", nanosecond_ticks)?;
        Some(KeyedGcra {
            inner: Arc::new(KeyedGcraState { table, terms }),
        })
    }
}

impl KeyedGcra {
    /// For up to a million keys, on the operating system's monotonic clock.
    #[expect(
        clippy::new_without_default,
        reason = "a table of millions is made on purpose"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// To choose how many keys, how much memory, or another clock.
    pub fn builder() -> KeyedGcraBuilder {
        KeyedGcraBuilder {
            cap: TableSize::default(),
            clock: SystemClock,
        }
    }
}

impl<C: Clock> KeyedGcra<C> {
    /// The clock it was made with. It is read by callers, who may make many calls at one instant.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Charges `cost` to a key at `now` if all of it fits, and forgets; a cost of 0 asks and
    /// changes nothing.
    ///
    /// A key that is far more ahead than these numbers allow, because it was judged by others
    /// before, is turned away even if it asks for nothing.
    #[inline]
    pub fn check<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        by: &GcraParams,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        let KeyedGcraState { table, terms } = &*self.inner;
        let hash = table.hash(key);
        let normal = &by.normal;
        let Some(clock) = clock_of(terms, now) else {
            return out_of_reach(normal, terms, now);
        };
        let judge = |tat: u64| {
            let stepped = step(normal, tat, clock, cost, 0);
            match stepped {
                Step::Admit { tat: after, .. } if cost > 0 => {
                    (decision(normal, stepped, after - clock), Some(after))
                }
                _ => (decision(normal, stepped, tat.saturating_sub(clock)), None),
            }
        };
        table.decide_gcra(terms, hash, now, judge)
    }

    /// Fetches what is known of some keys from memory, for all of them at once, up to 64; returns
    /// for how many. The calls on them that follow do not wait for memory one after the other. It
    /// changes no decision.
    #[inline]
    pub fn warm<'a, Q: Hash + ?Sized + 'a>(&self, keys: impl IntoIterator<Item = &'a Q>) -> usize {
        let (mut hashes, mut many) = ([0; 64], 0);
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.inner.table.hash(key);
            many += 1;
        }
        // Nothing between the reads depends on one of them: they are under way together.
        let seen = hashes[..many]
            .iter()
            .fold(0, |seen, hash| seen ^ self.inner.table.touch(*hash));
        core::hint::black_box(seen);
        many
    }

    /// How many keys there are, and what became of others. Counting them reads the whole table.
    pub fn stats(&self) -> KeyedStats {
        self.inner.table.figures(self.clock().now())
    }
}

/// Nanoseconds since the origin; none before it, and none that leave no room for a full bucket
/// beyond.
#[inline]
fn clock_of(terms: &LimitVersion, now: Timestamp) -> Option<u64> {
    now.as_unix_nanos()
        .checked_sub(terms.origin)
        .filter(|clock| *clock < LATEST)
}

/// 292 years: beyond it comes the longest bucket, and that is all that a word holds.
const LATEST: u64 = 1 << 63;

/// An instant years before the keys were first counted, or centuries after it, is turned away
/// rather than moved: who is moved could be admitted twice.
#[cold]
fn out_of_reach(normal: &TickLimit, terms: &LimitVersion, now: Timestamp) -> Decision {
    let wait = terms.origin.saturating_sub(now.as_unix_nanos());
    let outcome = if wait > 0 {
        Outcome::Denied
    } else {
        Outcome::Never
    };
    Decision::new(normal, outcome, normal.capacity, wait)
}

impl<C: Clock> Clone for KeyedGcra<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<C: Clock> fmt::Debug for KeyedGcra<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for KeyedGcraBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrivalsBuilder")
            .field("max_keys", &self.cap.keys)
            .finish_non_exhaustive()
    }
}

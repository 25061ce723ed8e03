//! Keyed GCRA: one theoretical arrival time per key, with the parameters passed on each call.

use super::judge::CallRequest;
use super::limit_version::LimitVersion;
use super::registered_limit::Rule;
use super::table::{KeyedStats, Table, TableDecision, TableSize};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{Decision, Outcome};
use crate::limit::{Kind, Limit, MAX_FILL, TickLimit};
use core::fmt;
use core::hash::Hash;
use core::time::Duration;
use std::sync::Arc;

/// GCRA over many keys, with the parameters passed on each call: a key has one theoretical arrival
/// time, whatever parameters it is judged by.
///
/// This is what redis-cell stores for `CL.THROTTLE`. When the parameters of a key change, the time
/// at which its bucket is full again stays.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{keyed::KeyedGcra, Clock, keyed::GcraParams};
///
/// let gcra = KeyedGcra::new();
/// let now = gcra.clock().now();
/// let thirty_a_minute = GcraParams::new(16, 30, Duration::from_secs(60))?;
/// assert_eq!(gcra.check("user-42", &thirty_a_minute, 1, now).remaining(), 15);
/// assert!(gcra.check("user-42", &thirty_a_minute, 17, now).is_never());
/// # Ok::<_, ratekeeper::keyed::GcraParamsError>(())
/// ```
///
/// Its memory is fixed as that of a [`Keyed`](crate::Keyed) is, and keys that are evicted leave
/// what they had used in an eviction floor: a flood of keys can cause false denials, but never lets
/// more through than the limit. All keys share the floor, whatever parameters they are judged by.
///
/// This is a handle: clones share the keys.
pub struct KeyedGcra<C: Clock = SystemClock> {
    inner: Arc<KeyedGcraState<C>>,
}

/// What all clones of a [`KeyedGcra`] share.
struct KeyedGcraState<C> {
    table: Table<C>,
    version: Arc<LimitVersion>,
}

/// The parameters of one call on [`KeyedGcra`]: a burst, and how many in each period after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GcraParams {
    /// In nanoseconds: one tick each.
    normal: TickLimit,
}

impl GcraParams {
    /// Allows `burst` at once, refilled at `count` in each `period`.
    ///
    /// One unit takes `period / count`, rounded up to a whole nanosecond. A burst that takes more
    /// than 142 years to refill is reduced to what refills in 142 years. It is an error if `burst`,
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

    /// Returns how long one unit takes.
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.normal.token)
    }

    /// Returns how much may be used at once.
    pub fn burst(&self) -> u64 {
        self.normal.burst()
    }
}

/// Error: [`GcraParams`] that are not a limit.
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

/// Builder of a [`KeyedGcra`]; see [`KeyedGcra::builder`].
pub struct KeyedGcraBuilder<C: Clock = SystemClock> {
    size: TableSize,
    clock: C,
}

impl<C: Clock> KeyedGcraBuilder<C> {
    /// Sets how many keys may be in use at once before live ones are evicted; a million by default.
    /// Each takes 32 bytes once it is used.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.size.keys = keys;
        self
    }

    /// Sets how many bytes it may use in all: if the table of [`max_keys`](Self::max_keys) would
    /// take more, it is made for fewer keys.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.size.bytes = Some(bytes);
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> KeyedGcraBuilder<D> {
        KeyedGcraBuilder {
            size: self.size,
            clock,
        }
    }

    /// Builds it. Memory is reserved now and used as keys arrive.
    ///
    /// # Panics
    ///
    /// If the memory cannot be reserved, because it is more than the system can hand out.
    pub fn build(self) -> KeyedGcra<C> {
        self.try_build()
            .expect("not enough memory for this many keys")
    }

    /// Builds it, or returns `None` if the memory cannot be reserved.
    pub fn try_build(self) -> Option<KeyedGcra<C>> {
        let table = Table::try_new(self.size, self.clock, 0)?;
        // Its states are counted in nanoseconds; nothing else of this limit is used.
        let nanosecond_ticks = Rule::Rate(Limit::per_second(1));
        let version = table.register_limit(0, "", nanosecond_ticks)?;
        Some(KeyedGcra {
            inner: Arc::new(KeyedGcraState { table, version }),
        })
    }
}

impl KeyedGcra {
    /// Creates one for up to a million keys, on the operating system's monotonic clock.
    #[expect(
        clippy::new_without_default,
        reason = "a table of millions is made on purpose"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder, to choose the number of keys, the memory, or another clock.
    pub fn builder() -> KeyedGcraBuilder {
        KeyedGcraBuilder {
            size: TableSize::default(),
            clock: SystemClock,
        }
    }
}

impl<C: Clock> KeyedGcra<C> {
    /// Returns its clock. Callers read the time themselves, and may make many calls at one instant.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Charges `cost` to a key at `now` if all of it fits; a cost of 0 changes nothing. The charge
    /// is final.
    ///
    /// A key that is further ahead than these parameters allow, because earlier calls had others,
    /// is denied even at a cost of 0.
    #[inline]
    pub fn check<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        params: &GcraParams,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        let KeyedGcraState { table, version } = &*self.inner;
        if now.as_unix_nanos().saturating_sub(version.origin) >= MAX_CLOCK {
            return Decision::new(&params.normal, Outcome::Never, params.normal.capacity, 0);
        }
        let request = || CallRequest {
            limit: Some(params.normal),
            ..CallRequest::check(now, cost)
        };
        let decision = |decided: TableDecision<'_>| decided.call.decision;
        table.decide(version, table.hash(key), request, decision)
    }

    /// Fetches the home cache lines of up to 64 keys from memory, all at once, and returns how
    /// many. The calls on them that follow do not wait for memory one after the other. It changes
    /// no decision.
    #[inline]
    pub fn prefetch<'a, Q: Hash + ?Sized + 'a>(
        &self,
        keys: impl IntoIterator<Item = &'a Q>,
    ) -> usize {
        let mut hashes = [0; 64];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.inner.table.hash(key);
            count += 1;
        }
        // No read depends on another one: they are under way together.
        let bits = hashes[..count]
            .iter()
            .fold(0, |bits, hash| bits ^ self.inner.table.prefetch(*hash));
        core::hint::black_box(bits);
        count
    }

    /// Returns how many keys the table holds and how many it evicted. Reads the whole table.
    pub fn stats(&self) -> KeyedStats {
        self.inner.table.stats(self.clock().now())
    }
}

/// 292 years: an instant further ahead of the keys than this is a mistake, and never allowed.
const MAX_CLOCK: u64 = 1 << 63;

impl<C: Clock> Clone for KeyedGcra<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<C: Clock> fmt::Debug for KeyedGcra<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedGcra").finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for KeyedGcraBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedGcraBuilder")
            .field("max_keys", &self.size.keys)
            .finish_non_exhaustive()
    }
}

//! All that a node holds: a table in shards, each under a lock that is never held across anything
//! slow.

use super::node::{HeldLease, LeaseDemand, LeaseSettings, SpendOutcome};
use super::request::{LeaseCall, LeaseRequest};
use crate::key::Stem;
use crate::limits::Limits;
use crate::script::decide::BucketInfo;
use ratekeeper::{
    Ask, Decision, Mode, Outcome, Timestamp, Verdict, limit::MicrosLimit, store::AskResult,
    store::Source,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// A limit that is leased, as it is now.
#[derive(Debug)]
pub(crate) struct LeasedLimit {
    pub(crate) number: u64,
    pub(crate) form: MicrosLimit,
    pub(crate) stem: Stem,
    pub(crate) manner: LeaseSettings,
}

/// What this node holds.
pub(crate) struct LeaseTable {
    shards: Box<[Shard]>,
    hasher: foldhash::fast::RandomState,
    /// Whether any limit is leased: most stores need look no further.
    any: AtomicBool,
    /// Keys a shard.
    most: usize,
    /// How long an answer is waited for, in nanoseconds.
    timeout: u64,
    fetches: mpsc::UnboundedSender<LeaseCall>,
}

/// On lines of its own, so that neighbours do not wait for each other.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<ShardState>);

#[derive(Default)]
struct ShardState {
    entries: HashMap<u64, Entry, BuildHasherDefault<Ready>>,
    /// With so many entries it is time to look which are idle.
    crowded: usize,
    counts: LeaseStats,
}

/// One key.
struct Entry {
    key: Box<[u8]>,
    limit: Arc<LeasedLimit>,
    held: HeldLease,
    flight: Option<Arc<LeaseRequest>>,
    /// When the key would be fresh if nobody came, as Redis last said; of windows.
    fresh_at: u64,
    /// The time of the server when it last answered, in microseconds, and when that was asked for,
    /// by the clock of this node.
    server_time: Option<(u64, u64)>,
}

/// What became of leases since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Times that Redis was asked for one, and answered.
    pub calls: u64,
    /// Tokens that it gave.
    pub granted: u64,
    /// Tokens that were spent here.
    pub spent: u64,
    /// Decisions that asked nobody.
    pub decisions: u64,
    /// Tokens that ended before anybody asked for them, as far as was noticed.
    pub expired: u64,
}

/// The keys of the tables are hashes already.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// What can be said without asking Redis.
pub(crate) enum LocalAnswer {
    /// The verdict is where it was to be put.
    Decided,
    /// A lease is on its way.
    Wait(Arc<LeaseRequest>),
    /// Nothing: Redis must decide.
    Unknown,
}

const SHARDS: usize = 64;
/// As many asks as most requests have.
const FEW: usize = 8;

impl LeaseTable {
    pub(crate) fn new(
        max_keys: usize,
        timeout: Duration,
    ) -> (Self, mpsc::UnboundedReceiver<LeaseCall>) {
        let (fetches, incoming) = mpsc::unbounded_channel();
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        let most = max_keys.div_ceil(SHARDS);
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let leases = Self {
            shards,
            hasher: Default::default(),
            any: AtomicBool::new(false),
            most,
            timeout,
            fetches,
        };
        (leases, incoming)
    }

    /// Some limit is leased from now on.
    pub(crate) fn begin(&self) {
        self.any.store(true, Relaxed);
    }

    /// Whether any limit is leased.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Decides over all asks or none, if all of them are known here, and puts the verdict where it
    /// is to be: it is large to move. `may_fetch`: whether Redis can be asked for more.
    #[inline]
    pub(crate) fn decide(
        &self,
        asks: &[Ask<'_>],
        limits: &Limits,
        now: Timestamp,
        may_fetch: bool,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        if !self.are_any() || asks.is_empty() || !asks.iter().all(is_plain) {
            return LocalAnswer::Unknown;
        }
        match asks {
            [ask] => self.decide_one(ask, limits, now.as_unix_nanos(), may_fetch, verdict),
            asks => self.decide_all(asks, limits, now.as_unix_nanos(), may_fetch, verdict),
        }
    }

    #[inline]
    fn decide_one(
        &self,
        ask: &Ask<'_>,
        limits: &Limits,
        now: u64,
        may_fetch: bool,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        let hash = self.hash(ask);
        let mut inside = self.lock(hash);
        let ShardState {
            entries, counts, ..
        } = &mut *inside;
        let Some(entry) = entries.get_mut(&hash) else {
            drop(inside);
            self.begin_key(hash, ask, limits, now);
            return LocalAnswer::Unknown;
        };
        if !entry.is_of(ask) {
            return LocalAnswer::Unknown;
        }
        match entry.held.spend(now, ask.cost) {
            SpendOutcome::Paid { mark } => {
                counts.spent += ask.cost;
                counts.decisions += 1;
                let status = entry.paid(ask, now).settled_by([hash, mark], ask.cost);
                verdict.insert(Verdict::new(Source::Lease)).push(status);
                if may_fetch && entry.held.is_low(now) {
                    self.fetch(hash, entry, now, 1);
                }
                LocalAnswer::Decided
            }
            SpendOutcome::Denied { until } => {
                counts.decisions += 1;
                verdict
                    .insert(Verdict::new(Source::Lease))
                    .push(entry.denied(ask, now, until));
                LocalAnswer::Decided
            }
            SpendOutcome::Unknown => self.more(hash, entry, ask.cost, now, may_fetch),
        }
    }

    /// Several limits: every one is charged or none, with all their locks held.
    fn decide_all(
        &self,
        asks: &[Ask<'_>],
        limits: &Limits,
        now: u64,
        may_fetch: bool,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        let hashes: SmallVec<[u64; FEW]> = asks.iter().map(|ask| self.hash(ask)).collect();
        let mut order: SmallVec<[usize; FEW]> = hashes.iter().map(|hash| shard_of(*hash)).collect();
        order.sort_unstable();
        order.dedup();
        let mut guards: SmallVec<[MutexGuard<'_, ShardState>; FEW]> = order
            .iter()
            .map(|shard| lock(&self.shards[*shard]))
            .collect();
        let place = |hash: u64| {
            order
                .iter()
                .position(|shard| *shard == shard_of(hash))
                .unwrap_or(0)
        };
        let mut missing = false;
        for (ask, hash) in asks.iter().zip(&hashes) {
            match guards[place(*hash)].entries.get(hash) {
                Some(entry) if !entry.is_of(ask) => return LocalAnswer::Unknown,
                Some(_) => {}
                None => missing = true,
            }
        }
        if missing {
            drop(guards);
            // A request that is only partly leased is decided by Redis as a whole, so nothing need
            // be held for it.
            if asks.iter().all(|ask| {
                limits
                    .get(ask.limit)
                    .is_some_and(|limit| limit.lease.is_some())
            }) {
                asks.iter()
                    .zip(hashes)
                    .for_each(|(ask, hash)| self.begin_key(hash, ask, limits, now));
            }
            return LocalAnswer::Unknown;
        }
        let mut marks: SmallVec<[u64; FEW]> = SmallVec::new();
        let mut refused = None;
        for (ask, hash) in asks.iter().zip(&hashes) {
            let Some(entry) = guards[place(*hash)].entries.get_mut(hash) else {
                return LocalAnswer::Unknown;
            };
            match entry.held.spend(now, ask.cost) {
                SpendOutcome::Paid { mark } => marks.push(mark),
                other => {
                    refused = Some(other);
                    break;
                }
            }
        }
        if let Some(refused) = refused {
            for ((ask, hash), mark) in asks.iter().zip(&hashes).zip(&marks) {
                if let Some(entry) = guards[place(*hash)].entries.get_mut(hash) {
                    entry.held.give_back(now, *mark, ask.cost);
                }
            }
            let (at, binding) = (marks.len(), &asks[marks.len()]);
            if let SpendOutcome::Denied { until } = refused {
                let verdict = verdict.insert(Verdict::new(Source::Lease));
                for (number, (ask, hash)) in asks.iter().zip(&hashes).enumerate() {
                    let Some(entry) = guards[place(*hash)].entries.get(hash) else {
                        continue;
                    };
                    verdict.push(if number == at {
                        entry.denied(ask, now, until)
                    } else {
                        entry.paid(ask, now)
                    });
                }
                guards[0].counts.decisions += 1;
                return LocalAnswer::Decided;
            }
            return match guards[place(hashes[at])].entries.get_mut(&hashes[at]) {
                Some(entry) => self.more(hashes[at], entry, binding.cost, now, may_fetch),
                None => LocalAnswer::Unknown,
            };
        }
        let verdict = verdict.insert(Verdict::new(Source::Lease));
        for ((ask, hash), mark) in asks.iter().zip(&hashes).zip(&marks) {
            let ShardState {
                entries, counts, ..
            } = &mut *guards[place(*hash)];
            let Some(entry) = entries.get_mut(hash) else {
                continue;
            };
            counts.spent += ask.cost;
            verdict.push(entry.paid(ask, now).settled_by([*hash, *mark], ask.cost));
            if may_fetch && entry.held.is_low(now) {
                self.fetch(*hash, entry, now, 1);
            }
        }
        guards[0].counts.decisions += 1;
        LocalAnswer::Decided
    }

    /// Nothing is left: waits for the lease that is on its way, or sends for one.
    fn more(
        &self,
        hash: u64,
        entry: &mut Entry,
        cost: u64,
        now: u64,
        may_fetch: bool,
    ) -> LocalAnswer {
        if may_fetch {
            self.fetch(hash, entry, now, cost);
        }
        entry
            .flight
            .clone()
            .map_or(LocalAnswer::Unknown, LocalAnswer::Wait)
    }

    fn fetch(&self, hash: u64, entry: &mut Entry, now: u64, cost: u64) {
        let Some(mut wish) = entry.held.wish(now, cost, &entry.limit.manner) else {
            return;
        };
        wish.expires = entry.expires(now, self.timeout);
        let flight = LeaseRequest::new();
        entry.flight = Some(Arc::clone(&flight));
        let (key, limit) = (entry.key.clone(), Arc::clone(&entry.limit));
        if self
            .fetches
            .send(LeaseCall {
                hash,
                key,
                limit,
                wish,
                sent: now,
                flight,
            })
            .is_err()
        {
            entry.held.failed();
            entry.flight = None;
        }
    }

    /// What Redis answered; none if it did not.
    pub(crate) fn landed(&self, fetch: &LeaseCall, now: u64, answer: Option<BucketInfo>) {
        let mut inside = self.lock(fetch.hash);
        let ShardState {
            entries, counts, ..
        } = &mut *inside;
        // Of a limit that has changed since it is not kept: then the entry is another.
        let own = |entry: &&mut Entry| {
            entry
                .flight
                .as_ref()
                .is_some_and(|flight| Arc::ptr_eq(flight, &fetch.flight))
        };
        let Some(entry) = entries.get_mut(&fetch.hash).filter(own) else {
            return;
        };
        entry.flight = None;
        let (held, manner, LeaseDemand { least, .. }) =
            (&mut entry.held, &entry.limit.manner, fetch.wish);
        let Some(told) = answer else {
            held.failed();
            return;
        };
        counts.calls += 1;
        held.elsewhere = free(&entry.limit.form, &told);
        entry.fresh_at = now + 1_000 * told.reset_after;
        entry.server_time = Some((told.at, fetch.sent));
        let (tokens, lives) = told.leased;
        if tokens > 0 {
            held.granted(fetch.sent, now, tokens, lives, &fetch.wish, manner);
        } else if held.elsewhere >= least {
            // The clock of the server was stepped: it took the wish for one that nobody waits for.
            held.failed();
        } else {
            held.denied(
                fetch.sent,
                least,
                1_000 * retry_after(&entry.limit.form, &told, least),
                manner,
            );
        }
        counts.granted += tokens;
        counts.expired += std::mem::take(&mut held.expired);
    }

    /// A key that was not asked for before, if its limit is leased.
    fn begin_key(&self, hash: u64, ask: &Ask<'_>, limits: &Limits, now: u64) {
        let Some(limit) = limits.get(ask.limit).and_then(|limit| limit.lease.clone()) else {
            return;
        };
        let mut inside = self.lock(hash);
        if !limits
            .get(ask.limit)
            .and_then(|now| now.lease.clone())
            .is_some_and(|now| Arc::ptr_eq(&now, &limit))
        {
            return;
        }
        let ShardState {
            entries,
            crowded,
            counts,
        } = &mut *inside;
        if entries.len() >= (*crowded).max(64) {
            entries.retain(|_, entry| {
                let idle = entry.held.is_idle(now, &entry.limit.manner);
                counts.expired += if idle { entry.held.expired } else { 0 };
                !idle
            });
            *crowded = 2 * entries.len();
        }
        if entries.len() >= self.most || ask.cost > limit.manner.most() {
            return;
        }
        let held = HeldLease::asked_first(now, ask.cost);
        entries.entry(hash).or_insert_with(|| Entry {
            key: ask.key.into(),
            limit,
            held,
            flight: None,
            fresh_at: 0,
            server_time: None,
        });
    }

    /// Drops all that is held of a limit: it has changed.
    pub(crate) fn forget(&self, number: u64) {
        for shard in &self.shards {
            lock(shard)
                .entries
                .retain(|_, entry| entry.limit.number != number);
        }
    }

    /// Forgets that Redis turned a key away: an operator has freed it.
    pub(crate) fn forgive(&self, ask: &Ask<'_>) {
        let hash = self.hash(ask);
        if let Some(entry) = self
            .lock(hash)
            .entries
            .get_mut(&hash)
            .filter(|entry| entry.is_of(ask))
        {
            entry.held.forgive();
        }
    }

    /// Puts back what was taken and not used; whether its lease still lives.
    pub(crate) fn give_back(&self, [hash, mark]: [u64; 2], tokens: u64, now: Timestamp) -> bool {
        let mut inside = self.lock(hash);
        let ShardState {
            entries, counts, ..
        } = &mut *inside;
        let given = entries
            .get_mut(&hash)
            .is_some_and(|entry| entry.held.give_back(now.as_unix_nanos(), mark, tokens));
        counts.spent -= if given { tokens } else { 0 };
        given
    }

    /// Whose it was that was paid for by this.
    pub(crate) fn whose(&self, [hash, _]: [u64; 2]) -> Option<(Arc<LeasedLimit>, Box<[u8]>)> {
        let inside = self.lock(hash);
        inside
            .entries
            .get(&hash)
            .map(|entry| (Arc::clone(&entry.limit), entry.key.clone()))
    }

    pub(crate) fn counts(&self) -> LeaseStats {
        let mut all = LeaseStats::default();
        for shard in &self.shards {
            let LeaseStats {
                calls,
                granted,
                spent,
                decisions,
                expired,
            } = lock(shard).counts;
            all.calls += calls;
            all.granted += granted;
            all.spent += spent;
            all.decisions += decisions;
            all.expired += expired;
        }
        all
    }

    #[inline]
    fn hash(&self, ask: &Ask<'_>) -> u64 {
        self.hasher.hash_one((ask.limit.number(), ask.key))
    }

    #[inline]
    fn lock(&self, hash: u64) -> MutexGuard<'_, ShardState> {
        lock(&self.shards[shard_of(hash)])
    }
}

/// The table of a shard goes by the low bits, and by the highest seven.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[inline]
fn lock(shard: &Shard) -> MutexGuard<'_, ShardState> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it can be decided here at all: it takes something, now, as everyone does.
#[inline]
fn is_plain(ask: &Ask<'_>) -> bool {
    ask.mode == Mode::Enforce && ask.cost > 0 && ask.reserve == 0 && ask.max_wait.is_none()
}

impl Entry {
    /// The latest time of the server at which a wish of `now` is still waited for.
    fn expires(&self, now: u64, timeout: u64) -> u64 {
        let after = |(time, sent): (u64, u64)| {
            time.saturating_add((now.saturating_sub(sent).saturating_add(timeout)) / 1_000)
        };
        self.server_time.map_or(u64::MAX, after)
    }

    #[inline]
    fn is_of(&self, ask: &Ask<'_>) -> bool {
        self.limit.number == ask.limit.number()
            && *self.key == *ask.key
            && ask.cost <= self.limit.manner.most()
    }

    /// What is told to who has paid: what is held here, and what Redis had left when it was last
    /// asked.
    #[inline]
    fn paid(&self, ask: &Ask<'_>, now: u64) -> AskResult {
        let remaining = self.held.left(now) + self.held.elsewhere;
        AskResult::new(self.told(Outcome::Allowed, remaining, now, 0), ask.mode)
    }

    fn denied(&self, ask: &Ask<'_>, now: u64, until: u64) -> AskResult {
        let remaining = self.held.left(now).min(ask.cost - 1);
        AskResult::new(
            self.told(
                Outcome::Denied,
                remaining,
                now,
                (until - now).div_ceil(1_000),
            ),
            ask.mode,
        )
    }

    #[inline]
    fn told(&self, outcome: Outcome, remaining: u64, now: u64, retry_after: u64) -> Decision {
        let remaining = remaining.min(self.limit.manner.burst);
        match self.limit.form {
            MicrosLimit::Bucket {
                per_micro,
                token,
                capacity,
                ..
            } => self.limit.form.bucket_decision(
                outcome,
                capacity - remaining * token,
                retry_after.saturating_mul(per_micro),
            ),
            form => form.window_decision(
                outcome,
                remaining,
                self.fresh_at.saturating_sub(now).div_ceil(1_000),
                retry_after,
            ),
        }
    }
}

/// Tokens that Redis has left.
fn free(form: &MicrosLimit, told: &BucketInfo) -> u64 {
    match *form {
        MicrosLimit::Bucket {
            token, capacity, ..
        } => capacity.saturating_sub(told.first) / token,
        _ => told.first,
    }
}

/// Microseconds until Redis would have so many.
fn retry_after(form: &MicrosLimit, told: &BucketInfo, cost: u64) -> u64 {
    match *form {
        MicrosLimit::Bucket {
            per_micro,
            token,
            capacity,
            ..
        } => {
            let missing = told
                .first
                .saturating_add(cost.saturating_mul(token))
                .saturating_sub(capacity);
            missing.div_ceil(per_micro.max(1))
        }
        _ => told.retry_after,
    }
}

//! The lease table: the leases of all keys, in shards, each under a lock that is released before
//! slow work.

use super::node::{KeyLeases, LeaseDemand, LeaseSettings, SpendOutcome};
use super::request::{LeaseCall, LeaseRequest};
use crate::key::KeyPrefix;
use crate::limits::Limits;
use crate::script::decide::QuestionResult;
use ratekeeper::{
    Ask, Decision, Mode, Outcome, Timestamp, Verdict, store::AskResult, store::Source,
    store::backend::MicrosLimit,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The current version of a leased limit.
#[derive(Debug)]
pub(crate) struct LeasedLimit {
    pub(crate) number: u64,
    pub(crate) form: MicrosLimit,
    pub(crate) key_prefix: KeyPrefix,
    pub(crate) settings: LeaseSettings,
}

/// The leases that this node holds.
pub(crate) struct LeaseTable {
    shards: Box<[Shard]>,
    hasher: foldhash::fast::RandomState,
    /// Whether any limit is leased. Most stores need not look further.
    enabled: AtomicBool,
    /// The most keys in one shard.
    max_keys_per_shard: usize,
    /// How long an answer is waited for, in nanoseconds.
    timeout: u64,
    calls: mpsc::UnboundedSender<LeaseCall>,
}

/// On cache lines of its own, to avoid false sharing.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<ShardState>);

#[derive(Default)]
struct ShardState {
    entries: HashMap<u64, Entry, BuildHasherDefault<IdentityHasher>>,
    /// The number of entries at which idle ones are removed.
    sweep_threshold: usize,
    stats: LeaseStats,
}

/// One key.
struct Entry {
    key: Box<[u8]>,
    limit: Arc<LeasedLimit>,
    leases: KeyLeases,
    request: Option<Arc<LeaseRequest>>,
    /// For windows: when the limit would be full again without further calls, as Redis last
    /// answered.
    fresh_at: u64,
    /// The server's time at its last answer, in microseconds, and when that request was made, by
    /// the clock of this node.
    server_time: Option<(u64, u64)>,
}

/// Statistics of leases since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Lease requests that Redis answered.
    pub calls: u64,
    /// Tokens that it granted.
    pub granted: u64,
    /// Tokens that were spent on this node.
    pub spent: u64,
    /// Decisions made from leases, without asking Redis.
    pub decisions: u64,
    /// Tokens that were found to have expired unspent.
    pub expired: u64,
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// How a request can be decided from leases.
pub(crate) enum LocalAnswer {
    /// The verdict was written to `verdict`.
    Decided,
    /// A lease request is in flight; wait for it.
    Wait(Arc<LeaseRequest>),
    /// Redis must decide.
    Unknown,
}

/// Shards of the table, to spread the callers over locks.
const SHARDS: usize = 64;
/// Inline capacity for asks: most requests have no more.
const FEW: usize = 8;

impl LeaseTable {
    pub(crate) fn new(
        max_keys: usize,
        timeout: Duration,
    ) -> (Self, mpsc::UnboundedReceiver<LeaseCall>) {
        let (calls, incoming) = mpsc::unbounded_channel();
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        let max_keys_per_shard = max_keys.div_ceil(SHARDS);
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let leases = Self {
            shards,
            hasher: Default::default(),
            enabled: AtomicBool::new(false),
            max_keys_per_shard,
            timeout,
            calls,
        };
        (leases, incoming)
    }

    /// Some limit is leased from now on.
    pub(crate) fn enable(&self) {
        self.enabled.store(true, Relaxed);
    }

    /// Whether any limit is leased.
    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// Decides over all asks or none, if leases of all of them are known here. The verdict is large
    /// to move, so it is written to `verdict`. `may_request`: whether Redis can be asked for more.
    #[inline]
    pub(crate) fn decide(
        &self,
        asks: &[Ask<'_>],
        limits: &Limits,
        now: Timestamp,
        may_request: bool,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        if !self.is_enabled() || asks.is_empty() || !asks.iter().all(is_plain) {
            return LocalAnswer::Unknown;
        }
        match asks {
            [ask] => self.decide_one(ask, limits, now.as_unix_nanos(), may_request, verdict),
            asks => self.decide_all(asks, limits, now.as_unix_nanos(), may_request, verdict),
        }
    }

    #[inline]
    fn decide_one(
        &self,
        ask: &Ask<'_>,
        limits: &Limits,
        now: u64,
        may_request: bool,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        let hash = self.hash(ask);
        let mut shard = self.lock(hash);
        let ShardState { entries, stats, .. } = &mut *shard;
        let Some(entry) = entries.get_mut(&hash) else {
            drop(shard);
            self.insert_key(hash, ask, limits, now);
            return LocalAnswer::Unknown;
        };
        if !entry.is_of(ask) {
            return LocalAnswer::Unknown;
        }
        match entry.leases.spend(now, ask.cost) {
            SpendOutcome::Paid { mark } => {
                stats.spent += ask.cost;
                stats.decisions += 1;
                let status = entry
                    .paid(ask, now)
                    .with_external_charge([hash, mark], ask.cost);
                verdict.insert(Verdict::new(Source::Lease)).push(status);
                if may_request && entry.leases.is_low(now) {
                    self.request_lease(hash, entry, now, 1);
                }
                LocalAnswer::Decided
            }
            SpendOutcome::Denied { until } => {
                stats.decisions += 1;
                verdict
                    .insert(Verdict::new(Source::Lease))
                    .push(entry.denied(ask, now, until));
                LocalAnswer::Decided
            }
            SpendOutcome::Unknown => self.wait_or_request(hash, entry, ask.cost, now, may_request),
        }
    }

    /// Decides several limits: all are charged or none, with all their locks held.
    fn decide_all(
        &self,
        asks: &[Ask<'_>],
        limits: &Limits,
        now: u64,
        may_request: bool,
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
        let guard_index = |hash: u64| {
            order
                .iter()
                .position(|shard| *shard == shard_of(hash))
                .unwrap_or(0)
        };
        let mut missing = false;
        for (ask, hash) in asks.iter().zip(&hashes) {
            match guards[guard_index(*hash)].entries.get(hash) {
                Some(entry) if !entry.is_of(ask) => return LocalAnswer::Unknown,
                Some(_) => {}
                None => missing = true,
            }
        }
        if missing {
            drop(guards);
            // Redis decides a request that is only partly leased as a whole, so its keys need no
            // leases.
            if asks.iter().all(|ask| {
                limits
                    .get(ask.limit)
                    .is_some_and(|limit| limit.lease.is_some())
            }) {
                asks.iter()
                    .zip(hashes)
                    .for_each(|(ask, hash)| self.insert_key(hash, ask, limits, now));
            }
            return LocalAnswer::Unknown;
        }
        let mut marks: SmallVec<[u64; FEW]> = SmallVec::new();
        let mut unpaid = None;
        for (ask, hash) in asks.iter().zip(&hashes) {
            let Some(entry) = guards[guard_index(*hash)].entries.get_mut(hash) else {
                return LocalAnswer::Unknown;
            };
            match entry.leases.spend(now, ask.cost) {
                SpendOutcome::Paid { mark } => marks.push(mark),
                other => {
                    unpaid = Some(other);
                    break;
                }
            }
        }
        if let Some(unpaid) = unpaid {
            for ((ask, hash), mark) in asks.iter().zip(&hashes).zip(&marks) {
                if let Some(entry) = guards[guard_index(*hash)].entries.get_mut(hash) {
                    entry.leases.give_back(now, *mark, ask.cost);
                }
            }
            let at = marks.len();
            let binding = &asks[marks.len()];
            if let SpendOutcome::Denied { until } = unpaid {
                let verdict = verdict.insert(Verdict::new(Source::Lease));
                for (number, (ask, hash)) in asks.iter().zip(&hashes).enumerate() {
                    let Some(entry) = guards[guard_index(*hash)].entries.get(hash) else {
                        continue;
                    };
                    verdict.push(if number == at {
                        entry.denied(ask, now, until)
                    } else {
                        entry.paid(ask, now)
                    });
                }
                guards[0].stats.decisions += 1;
                return LocalAnswer::Decided;
            }
            return match guards[guard_index(hashes[at])].entries.get_mut(&hashes[at]) {
                Some(entry) => {
                    self.wait_or_request(hashes[at], entry, binding.cost, now, may_request)
                }
                None => LocalAnswer::Unknown,
            };
        }
        let verdict = verdict.insert(Verdict::new(Source::Lease));
        for ((ask, hash), mark) in asks.iter().zip(&hashes).zip(&marks) {
            let ShardState { entries, stats, .. } = &mut *guards[guard_index(*hash)];
            let Some(entry) = entries.get_mut(hash) else {
                continue;
            };
            stats.spent += ask.cost;
            verdict.push(
                entry
                    .paid(ask, now)
                    .with_external_charge([*hash, *mark], ask.cost),
            );
            if may_request && entry.leases.is_low(now) {
                self.request_lease(*hash, entry, now, 1);
            }
        }
        guards[0].stats.decisions += 1;
        LocalAnswer::Decided
    }

    /// Nothing is left: waits for the lease request in flight, or makes one.
    fn wait_or_request(
        &self,
        hash: u64,
        entry: &mut Entry,
        cost: u64,
        now: u64,
        may_request: bool,
    ) -> LocalAnswer {
        if may_request {
            self.request_lease(hash, entry, now, cost);
        }
        entry
            .request
            .clone()
            .map_or(LocalAnswer::Unknown, LocalAnswer::Wait)
    }

    fn request_lease(&self, hash: u64, entry: &mut Entry, now: u64, cost: u64) {
        let Some(mut demand) = entry.leases.demand(now, cost, &entry.limit.settings) else {
            return;
        };
        demand.expires = entry.expires(now, self.timeout);
        let request = LeaseRequest::new();
        entry.request = Some(Arc::clone(&request));
        let key = entry.key.clone();
        let limit = Arc::clone(&entry.limit);
        if self
            .calls
            .send(LeaseCall {
                hash,
                key,
                limit,
                demand,
                sent: now,
                request,
            })
            .is_err()
        {
            entry.leases.failed();
            entry.request = None;
        }
    }

    /// Applies the answer of Redis; `None` if it did not answer.
    pub(crate) fn complete(&self, call: &LeaseCall, now: u64, answer: Option<QuestionResult>) {
        let mut shard = self.lock(call.hash);
        let ShardState { entries, stats, .. } = &mut *shard;
        // The answer is dropped if the limit has changed since: the entry is another then.
        let own = |entry: &&mut Entry| {
            entry
                .request
                .as_ref()
                .is_some_and(|request| Arc::ptr_eq(request, &call.request))
        };
        let Some(entry) = entries.get_mut(&call.hash).filter(own) else {
            return;
        };
        entry.request = None;
        let (leases, settings, LeaseDemand { min, .. }) =
            (&mut entry.leases, &entry.limit.settings, call.demand);
        let Some(result) = answer else {
            leases.failed();
            return;
        };
        stats.calls += 1;
        leases.redis_remaining = free(&entry.limit.form, &result);
        entry.fresh_at = now + 1_000 * result.reset_after;
        entry.server_time = Some((result.at, call.sent));
        let (tokens, ttl) = result.leased;
        if tokens > 0 {
            leases.granted(call.sent, now, tokens, ttl, &call.demand, settings);
        } else if leases.redis_remaining >= min {
            // The server's clock was stepped: the demand seemed to have expired.
            leases.failed();
        } else {
            leases.denied(
                call.sent,
                min,
                1_000 * retry_after(&entry.limit.form, &result, min),
                settings,
            );
        }
        stats.granted += tokens;
        stats.expired += std::mem::take(&mut leases.expired);
    }

    /// Adds a key that was not asked for before, if its limit is leased.
    fn insert_key(&self, hash: u64, ask: &Ask<'_>, limits: &Limits, now: u64) {
        let Some(limit) = limits.get(ask.limit).and_then(|limit| limit.lease.clone()) else {
            return;
        };
        let mut shard = self.lock(hash);
        if !limits
            .get(ask.limit)
            .and_then(|now| now.lease.clone())
            .is_some_and(|now| Arc::ptr_eq(&now, &limit))
        {
            return;
        }
        let ShardState {
            entries,
            sweep_threshold,
            stats,
        } = &mut *shard;
        if entries.len() >= (*sweep_threshold).max(64) {
            entries.retain(|_, entry| {
                let idle = entry.leases.is_idle(now, &entry.limit.settings);
                stats.expired += if idle { entry.leases.expired } else { 0 };
                !idle
            });
            *sweep_threshold = 2 * entries.len();
        }
        if entries.len() >= self.max_keys_per_shard || ask.cost > limit.settings.max_cost() {
            return;
        }
        let leases = KeyLeases::first_ask(now, ask.cost);
        entries.entry(hash).or_insert_with(|| Entry {
            key: ask.key.into(),
            limit,
            leases,
            request: None,
            fresh_at: 0,
            server_time: None,
        });
    }

    /// Drops all leases of a limit that has changed.
    pub(crate) fn remove_limit(&self, number: u64) {
        for shard in &self.shards {
            lock(shard)
                .entries
                .retain(|_, entry| entry.limit.number != number);
        }
    }

    /// Forgets that Redis denied a key, after an operator has freed it.
    pub(crate) fn clear_denial(&self, ask: &Ask<'_>) {
        let hash = self.hash(ask);
        if let Some(entry) = self
            .lock(hash)
            .entries
            .get_mut(&hash)
            .filter(|entry| entry.is_of(ask))
        {
            entry.leases.clear_denial();
        }
    }

    /// Puts back tokens that were taken and not used. Returns whether their lease is still live.
    pub(crate) fn give_back(&self, [hash, mark]: [u64; 2], tokens: u64, now: Timestamp) -> bool {
        let mut shard = self.lock(hash);
        let ShardState { entries, stats, .. } = &mut *shard;
        let given = entries
            .get_mut(&hash)
            .is_some_and(|entry| entry.leases.give_back(now.as_unix_nanos(), mark, tokens));
        stats.spent -= if given { tokens } else { 0 };
        given
    }

    /// The limit and key of the lease that paid.
    pub(crate) fn limit_and_key(
        &self,
        [hash, _]: [u64; 2],
    ) -> Option<(Arc<LeasedLimit>, Box<[u8]>)> {
        let shard = self.lock(hash);
        shard
            .entries
            .get(&hash)
            .map(|entry| (Arc::clone(&entry.limit), entry.key.clone()))
    }

    pub(crate) fn stats(&self) -> LeaseStats {
        let mut all = LeaseStats::default();
        for shard in &self.shards {
            let LeaseStats {
                calls,
                granted,
                spent,
                decisions,
                expired,
            } = lock(shard).stats;
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

/// The hash map in a shard uses the low bits and the highest seven.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[inline]
fn lock(shard: &Shard) -> MutexGuard<'_, ShardState> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an ask can be decided from leases: it takes tokens, now, and has no reserve.
#[inline]
fn is_plain(ask: &Ask<'_>) -> bool {
    ask.mode == Mode::Enforce && ask.cost > 0 && ask.reserve == 0 && ask.max_wait.is_none()
}

impl Entry {
    /// The latest time of the server at which the answer to a demand made `now` is still waited
    /// for.
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
            && ask.cost <= self.limit.settings.max_cost()
    }

    /// The result of a paid ask: what is left here, and what Redis had left at its last answer.
    #[inline]
    fn paid(&self, ask: &Ask<'_>, now: u64) -> AskResult {
        let remaining = self.leases.left(now) + self.leases.redis_remaining;
        AskResult::new(self.decision(Outcome::Allowed, remaining, now, 0), ask.mode)
    }

    fn denied(&self, ask: &Ask<'_>, now: u64, until: u64) -> AskResult {
        let remaining = self.leases.left(now).min(ask.cost - 1);
        AskResult::new(
            self.decision(
                Outcome::Denied,
                remaining,
                now,
                (until - now).div_ceil(1_000),
            ),
            ask.mode,
        )
    }

    #[inline]
    fn decision(&self, outcome: Outcome, remaining: u64, now: u64, retry_after: u64) -> Decision {
        let remaining = remaining.min(self.limit.settings.burst);
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
fn free(form: &MicrosLimit, result: &QuestionResult) -> u64 {
    match *form {
        MicrosLimit::Bucket {
            token, capacity, ..
        } => capacity.saturating_sub(result.first) / token,
        _ => result.first,
    }
}

/// Microseconds until Redis would have this many.
fn retry_after(form: &MicrosLimit, result: &QuestionResult, cost: u64) -> u64 {
    match *form {
        MicrosLimit::Bucket {
            per_micro,
            token,
            capacity,
            ..
        } => {
            let missing = result
                .first
                .saturating_add(cost.saturating_mul(token))
                .saturating_sub(capacity);
            missing.div_ceil(per_micro.max(1))
        }
        _ => result.retry_after,
    }
}

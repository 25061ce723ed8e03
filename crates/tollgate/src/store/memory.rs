//! The store in this process: one table for all its limits.
//!
//! One ask is one compare-and-swap. Several are read first; if one denies, nothing is written. Otherwise their entries are
//! claimed in the order of their addresses, judged again, and written: whoever meets a claimed entry waits for those few
//! instructions, and nobody ever sees a charge that is then taken back.

mod detached;
mod straight;

use super::{
    Ask, Census, FEW, LimitHandle, Mode, NOT_OURS, NotDetached, NotSettled, Permits, Receipt, Source, Status, Store,
    Verdict,
};
use crate::algorithm::token_bucket::Charged;
use crate::clock::{Clock, DefaultClock, Instant, SystemClock, nanos};
use crate::decision::Decision;
use crate::keyed::table::{BYTES_A_KEY, Cap, Figures, Held, Standing, Table};
use crate::keyed::terms::{Asked, Call, Rule, Terms};
use crate::keyed::{TooManyLimits, charge_more, give_back, grant, reset};
use crate::limit::{Kind, Limit};
use crate::limiter::{Carry, Counts};
use crate::sync::{Ordering, relax};
use core::fmt;
use detached::Detached;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

/// Many limits and all their keys in one table of fixed size: several of them are decided at once, all or nothing.
///
/// ```
/// use tollgate::{Ask, Clock, Limit, MemoryStore, SystemClock};
///
/// let store = MemoryStore::new();
/// let per_user = store.limit("user", Limit::per_minute(60))?;
/// let everyone = store.limit("everyone", Limit::per_second(1_000))?;
///
/// let verdict = store.decide_now(&[Ask::new(&per_user, "u1"), Ask::new(&everyone, "")], SystemClock.now());
/// assert!(verdict.is_allowed());
/// # Ok::<_, tollgate::TooManyLimits>(())
/// ```
///
/// Memory, eviction and hashing are those of [`Keyed`](crate::Keyed). A handle: clones share it.
pub struct MemoryStore<C: Clock = DefaultClock> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    table: Table<C>,
    lines: AtomicU64,
    detached: Detached,
}

/// Makes a [`MemoryStore`]; what [`MemoryStore::builder`] returns.
pub struct MemoryStoreBuilder<C: Clock = DefaultClock> {
    cap: Cap,
    clock: C,
}

impl MemoryStore {
    /// A store for up to a million keys, on the operating system's monotonic clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// To choose how many keys, how much memory, or another clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { cap: Cap::default(), clock: SystemClock }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// See [`KeyedBuilder::max_keys`](crate::KeyedBuilder::max_keys).
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.cap.keys = keys;
        self
    }

    /// See [`KeyedBuilder::max_bytes`](crate::KeyedBuilder::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.cap.bytes = Some(bytes);
        self
    }

    /// Another clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder { cap: self.cap, clock }
    }

    /// Makes it. Memory is reserved now and used as keys come.
    ///
    /// # Panics
    ///
    /// If the memory cannot even be reserved: more than the system would ever hand out was asked for.
    pub fn build(self) -> MemoryStore<C> {
        self.try_build().expect("memory for as many keys as were asked for")
    }

    /// Makes it, if the memory can be reserved: for a cap that comes from a configuration.
    pub fn try_build(self) -> Result<MemoryStore<C>, TooManyKeys> {
        // Half of a cap in bytes is for states that do not fit the table.
        let table = Table::try_new(self.cap, self.clock, BYTES_A_KEY).ok_or(TooManyKeys(()))?;
        Ok(MemoryStore { inner: Arc::new(Inner { table, lines: AtomicU64::new(0), detached: Detached::new() }) })
    }
}

/// More keys than the system has memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyKeys(());

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no memory for a store of as many keys; lower max_keys")
    }
}

impl core::error::Error for TooManyKeys {}

/// # Limits
impl<C: Clock> MemoryStore<C> {
    /// Registers a limit. Its keys have nothing to do with those of any other limit, one of the same name included.
    ///
    /// It is an error once there have been 16 million limits and changes of limits.
    pub fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimits> {
        self.register(name, Rule::Rate(limit))
    }

    /// Registers a limit on how many are in flight.
    pub fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimits> {
        self.register(name, Rule::InFlight(limit))
    }

    fn register(&self, name: &str, rule: Rule) -> Result<LimitHandle, TooManyLimits> {
        let number = self.inner.lines.fetch_add(1, Ordering::Relaxed);
        let first = self.inner.table.new_line(number, name, rule).ok_or(TooManyLimits(()))?;
        Ok(LimitHandle { first })
    }

    /// Changes a limit for every key, at once, each keeping the tokens it has.
    pub fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.set_limit_with(handle, limit, Carry::Keep);
    }

    /// Changes a limit and says what becomes of the tokens.
    pub fn set_limit_with(&self, handle: &LimitHandle, limit: Limit, carry: Carry) {
        self.change(handle, Rule::Rate(limit), carry);
    }

    /// Changes how many may be in flight. Permits that are out stay out.
    pub fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.change(handle, Rule::InFlight(limit), Carry::Keep);
    }

    fn change(&self, handle: &LimitHandle, rule: Rule, carry: Carry) {
        let table = &self.inner.table;
        let same_sort = matches!(handle.first.rule, Rule::Rate(_)) == matches!(rule, Rule::Rate(_));
        if same_sort && table.knows(&handle.first) {
            table.change(&handle.first.line, rule, carry, || table.clock().now());
        }
    }

    /// Whether a limit is registered with this store.
    pub fn knows(&self, handle: &LimitHandle) -> bool {
        self.inner.table.knows(&handle.first)
    }

    /// What came on top of a limit's promise, or was not given back.
    pub fn counts(&self, handle: &LimitHandle) -> Counts {
        handle.first.line.counts()
    }

    /// How many keys of a limit have used something that has not come back yet. Reads the whole table.
    pub fn live(&self, handle: &LimitHandle) -> u64 {
        let table = &self.inner.table;
        match table.knows(&handle.first) {
            true => table.live(&handle.first.line, table.clock().now()),
            false => 0,
        }
    }

    /// How many keys of each of these limits are live, and how many were evicted, in their order. Reads the whole table,
    /// once.
    pub fn census(&self, limits: &[LimitHandle]) -> Vec<Census> {
        let table = &self.inner.table;
        table.census(limits.iter().map(|handle| &*handle.first), table.clock().now())
    }

    /// How many keys there are, and what became of others. Counting them reads the whole table.
    pub fn figures(&self) -> Figures {
        let table = &self.inner.table;
        table.figures(table.clock().now())
    }

    /// The clock it runs on.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }
}

/// # One key
impl<C: Clock> MemoryStore<C> {
    /// Gives a key up to `tokens` of what it has used; see [`Limiter::grant`](crate::Limiter::grant). Permits are not given.
    pub fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        if let Some(hash) = self.key_of_a_rate(handle, key) {
            let table = &self.inner.table;
            grant(table, &handle.first, hash, tokens, || table.clock().now(), None);
        }
    }

    /// Makes a key fresh. Older verdicts give nothing back to it; permits that are out stay out.
    pub fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        if let Some(hash) = self.key_of_a_rate(handle, key) {
            let table = &self.inner.table;
            reset(table, &handle.first, hash, || table.clock().now(), None);
        }
    }

    /// Where a key is. None if the limit is not of this store, or counts permits: only who holds one gives it back.
    fn key_of_a_rate(&self, handle: &LimitHandle, key: &[u8]) -> Option<u64> {
        let (table, first) = (&self.inner.table, &*handle.first);
        let is_rate = matches!(first.rule, Rule::Rate(_));
        (is_rate && table.knows(first)).then(|| table.hash_in(first.line.number, key))
    }
}

/// The asks of a call that are about one bucket.
struct Group<'a> {
    first: &'a Terms,
    hash: u64,
    enforce: Part,
    shadow: Part,
    peek: Part,
    /// The terms it was judged by, and how the account of the key stood before.
    terms: u32,
    standing: Standing,
}

/// Those of one mode: their costs add.
#[derive(Default)]
struct Part {
    asks: u32,
    /// None: more than can be counted.
    cost: Option<u64>,
    reserve: u64,
    longest: Option<u64>,
    call: Option<Call>,
}

impl Part {
    fn add(&mut self, ask: &Ask<'_>) {
        let before = if self.asks == 0 { Some(0) } else { self.cost };
        self.cost = before.and_then(|cost| cost.checked_add(ask.cost));
        self.reserve = self.reserve.max(ask.reserve);
        let longest = ask.max_wait.map(nanos);
        self.longest = if self.asks == 0 { longest } else { self.longest.min(longest) };
        self.asks += 1;
    }

    fn asked(&self, now: Instant, write: bool) -> Asked {
        // What cannot be counted never fits.
        Asked { now, cost: self.cost.unwrap_or(u64::MAX), longest: self.longest, reserve: self.reserve, write }
    }

    /// Whether it charges something.
    fn takes(&self) -> bool {
        self.asks > 0 && self.cost != Some(0)
    }

    fn is_denied(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.decision.is_denied())
    }
}

/// What an attempt to charge every group came to.
enum Charging {
    Done,
    Denied,
    /// A log may not grow, or a permit has no place: what its group is told.
    NoRoom(usize, Call),
}

/// # Deciding
impl<C: Clock> MemoryStore<C> {
    /// Charges every ask, or none of them, at an instant of your choice.
    pub fn decide_now(&self, asks: &[Ask<'_>], now: Instant) -> Verdict {
        let mut verdict = Verdict::new(Source::Memory);
        self.decide_in_place(asks, now, &mut verdict);
        verdict
    }

    fn decide_in_place(&self, asks: &[Ask<'_>], now: Instant, verdict: &mut Verdict) {
        if self.inner.detached.is_overdue(now) {
            self.end_overdue(now);
        }
        if self.decide_straight(asks, now, verdict).is_none() {
            self.decide_anyhow(asks, now, verdict);
        }
    }

    /// The same for keys that are not in the table or asked about twice, states of more than a word, and whoever was
    /// interrupted.
    #[inline(never)]
    fn decide_anyhow(&self, asks: &[Ask<'_>], now: Instant, verdict: &mut Verdict) {
        let table = &self.inner.table;
        let mut groups: SmallVec<[Group<'_>; FEW]> = SmallVec::new();
        let mut group_of: SmallVec<[Option<usize>; FEW]> = SmallVec::new();
        for ask in asks {
            let first = &*ask.limit.first;
            if !table.knows(first) {
                group_of.push(None);
                continue;
            }
            let hash = table.hash_in(first.line.number, ask.key);
            let known = groups.iter().position(|group| table.share_a_bucket(group.hash, hash));
            let at = known.unwrap_or_else(|| {
                let (enforce, shadow, peek) = Default::default();
                groups.push(Group { first, hash, enforce, shadow, peek, terms: 0, standing: Standing::default() });
                groups.len() - 1
            });
            groups[at].part_mut(ask.mode).add(ask);
            group_of.push(Some(at));
        }
        let foreign = group_of.contains(&None);
        let charged = match &mut groups[..] {
            _ if foreign => {
                self.look(&mut groups, now);
                false
            }
            [group] if group.shadow.asks == 0 && group.peek.asks == 0 => {
                let asked = group.enforce.asked(now, true);
                let (call, terms, standing) = table.call(group.first, group.hash, &asked, None);
                (group.terms, group.standing, group.enforce.call) = (terms.id, standing, Some(call));
                !group.enforce.is_denied()
            }
            groups => self.all_or_nothing(groups, now),
        };
        self.tell(asks, &groups, &group_of, charged, verdict);
    }

    /// Judges every group without writing; true if none denies.
    fn look(&self, groups: &mut [Group<'_>], now: Instant) -> bool {
        let table = &self.inner.table;
        for group in groups.iter_mut() {
            let (first, hash) = (group.first, group.hash);
            for part in [&mut group.enforce, &mut group.shadow, &mut group.peek] {
                if part.asks > 0 {
                    part.call = Some(table.call(first, hash, &part.asked(now, false), None).0);
                }
            }
        }
        !groups.iter().any(|group| group.enforce.is_denied() || group.peek.is_denied())
    }

    /// Judges every group and, if none denies, charges all; whether it did.
    fn all_or_nothing(&self, groups: &mut [Group<'_>], now: Instant) -> bool {
        let table = &self.inner.table;
        for tries in 0.. {
            if tries > 0 {
                relax(tries);
            }
            if !self.look(groups, now) {
                return false;
            }
            // Who only looks has seen all there is to see.
            let writes = |group: &Group<'_>| group.enforce.takes() || group.shadow.takes();
            let wanted: SmallVec<[(&Terms, u64); FEW]> =
                groups.iter().filter(|group| writes(group)).map(|group| (group.first, group.hash)).collect();
            if wanted.is_empty() {
                return true;
            }
            let Some(mut held) = table.hold(&wanted, now, tries) else { continue };
            match Self::charge(&mut held, groups, now, writes) {
                Charging::Done => {
                    held.commit();
                    return true;
                }
                // Somebody came first. What they left is what this call is told.
                Charging::Denied => {}
                Charging::NoRoom(at, call) => {
                    drop(held);
                    self.look(groups, now);
                    groups[at].enforce.call = Some(call);
                    return false;
                }
            }
        }
        false
    }

    /// Judges the groups on what is held for them; if none denies, leaves what they charge in it.
    fn charge(
        held: &mut Held<'_, C>,
        groups: &mut [Group<'_>],
        now: Instant,
        writes: impl Fn(&Group<'_>) -> bool,
    ) -> Charging {
        let writing = || groups.iter().enumerate().filter(|(_, group)| writes(group)).enumerate();
        let fits = |held: &mut Held<'_, C>, at: usize, part: &Part| {
            part.asks == 0 || held.judge(at, &part.asked(now, false)).decision.is_allowed()
        };
        for (at, (number, group)) in writing() {
            if held.has_no_room(at) {
                if group.enforce.takes() {
                    return Charging::NoRoom(number, held.judge(at, &group.enforce.asked(now, true)));
                }
                // Who takes nothing needs none.
                continue;
            }
            if !fits(held, at, &group.enforce) || !fits(held, at, &group.peek) {
                return Charging::Denied;
            }
        }
        // A log may still find that there are no bytes for it: those are charged first, and taken back if one is not.
        for logs in [true, false] {
            let mut at = 0;
            for (number, group) in groups.iter_mut().enumerate() {
                if !writes(group) {
                    continue;
                }
                at += 1;
                if held.is_log(at - 1) != logs {
                    continue;
                }
                (group.terms, group.standing) = (held.terms(at - 1).id, held.standing(at - 1));
                for part in [&mut group.enforce, &mut group.shadow] {
                    if part.takes() || part.asks > 0 && !held.has_no_room(at - 1) {
                        part.call = Some(held.judge(at - 1, &part.asked(now, true)));
                    }
                }
                if let Some(call) = group.enforce.call.take_if(|call| call.decision.is_denied()) {
                    return Charging::NoRoom(number, call);
                }
            }
        }
        Charging::Done
    }

    fn tell(
        &self,
        asks: &[Ask<'_>],
        groups: &[Group<'_>],
        group_of: &[Option<usize>],
        charged: bool,
        verdict: &mut Verdict,
    ) {
        for (ask, group) in asks.iter().zip(group_of) {
            let group = group.map(|at| &groups[at]);
            let part = group.map(|group| group.part(ask.mode));
            let (Some(group), Some(&Part { call: Some(ref call), cost, longest, reserve, .. })) = (group, part) else {
                // Not a limit of this store.
                verdict.push(Status::new(ask.limit.first.nothing_left().decision, ask.mode));
                continue;
            };
            let mut status = Status::new(patient(call.decision, longest, reserve), ask.mode);
            let takes = charged && ask.mode != Mode::Peek && ask.cost > 0 && call.decision.is_allowed();
            let terms = takes.then(|| self.inner.table.terms(group.terms));
            status.charged = terms.filter(|terms| terms.normal.kind != Kind::Unlimited).map(|terms| {
                let merged = cost.unwrap_or(u64::MAX);
                receipt(terms, group.hash, ask.cost, merged, call, &group.standing)
            });
            verdict.push(status);
        }
        self.keep_permits(verdict);
    }

    /// Lets a verdict that took permits know where they go back to.
    fn keep_permits(&self, verdict: &mut Verdict) {
        let permits = verdict.statuses().any(|status| status.charged.is_some_and(|receipt| receipt.permit));
        if permits {
            verdict.permits = Some(Arc::clone(&self.inner) as Arc<dyn Permits>);
        }
    }

    /// Corrects what a verdict charged, at an instant of your choice; see [`Store::settle`].
    pub fn settle_now(&self, verdict: Verdict, actual: &[u64], now: Instant) {
        self.settle_at(verdict, actual, || now);
    }

    fn settle_at(&self, verdict: Verdict, actual: &[u64], now: impl Fn() -> Instant) {
        self.settle_charges(verdict.statuses().map(|status| status.charged), actual, now);
    }

    fn settle_charges(
        &self,
        charges: impl Iterator<Item = Option<Receipt>>,
        actual: &[u64],
        now: impl Fn() -> Instant,
    ) {
        let table = &self.inner.table;
        for (charged, actual) in charges.zip(actual.iter().copied()) {
            match charged {
                Some(receipt) if receipt.permit || receipt.terms == NOT_OURS => {}
                Some(Receipt { terms, hash, account, cost, charged, alone, .. }) if actual < cost => {
                    give_back(table, terms, hash, account, &charged, cost - actual, alone && actual == 0, &now, None);
                }
                Some(Receipt { terms, hash, cost, .. }) if actual > cost => {
                    charge_more(table, terms, hash, actual - cost, &now, None);
                }
                _ => {}
            }
        }
    }
}

/// What is told to a caller that would wait so long. A class with a reserve may not go into debt, so waiting is no use to it.
fn patient(decision: Decision, longest: Option<u64>, reserve: u64) -> Decision {
    match longest {
        Some(longest) if reserve == 0 => decision.to_a_patient_caller(longest),
        _ => decision,
    }
}

/// What a call charged `cost` of, being one of those that charged `merged` together.
fn receipt(terms: &Terms, hash: u64, cost: u64, merged: u64, call: &Call, standing: &Standing) -> Receipt {
    let Standing { number: account, given, refunded } = *standing;
    let charged = Charged::new(&terms.normal, call.charged, call.clock, merged, refunded, given);
    let permit = terms.normal.kind == Kind::InFlight;
    Receipt { terms: terms.id, hash, account, cost, charged, permit, alone: cost == merged }
}

impl Group<'_> {
    fn part(&self, mode: Mode) -> &Part {
        match mode {
            Mode::Enforce => &self.enforce,
            Mode::Shadow => &self.shadow,
            Mode::Peek => &self.peek,
        }
    }

    fn part_mut(&mut self, mode: Mode) -> &mut Part {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Shadow => &mut self.shadow,
            Mode::Peek => &mut self.peek,
        }
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimits> {
        self.limit(name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimits> {
        self.concurrency(name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.set_limit(handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.set_concurrency(handle, limit);
    }

    fn now(&self) -> Instant {
        self.clock().now()
    }

    async fn decide(&self, asks: &[Ask<'_>]) -> Verdict {
        self.decide_now(asks, self.clock().now())
    }

    async fn decide_at(&self, asks: &[Ask<'_>], now: Instant) -> Verdict {
        self.decide_now(asks, now)
    }

    fn decide_here(&self, asks: &[Ask<'_>], now: Instant) -> Option<Verdict> {
        Some(self.decide_now(asks, now))
    }

    fn decide_into(&self, asks: &[Ask<'_>], now: Instant, verdict: &mut Verdict) -> bool {
        verdict.clear(Source::Memory);
        self.decide_in_place(asks, now, verdict);
        true
    }

    fn is_here(&self) -> bool {
        true
    }

    #[cfg(feature = "tokio")]
    fn sleep_until(&self, at: Instant) -> crate::Sleep {
        self.clock().sleep_until(at)
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        self.settle_at(verdict, actual, || self.clock().now());
    }

    async fn detach(&self, verdict: Verdict, until: Instant) -> Result<Vec<u8>, NotDetached> {
        self.detach_now(verdict, until, self.clock().now())
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), NotSettled> {
        self.settle_detached_now(receipt, actual, self.clock().now())
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        self.grant(handle, key, tokens);
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        self.reset(handle, key);
    }

    fn census(&self, limits: &[LimitHandle]) -> Option<Vec<Census>> {
        Some(self.census(limits))
    }
}

impl<C: Clock> Permits for Inner<C> {
    fn land(&self, hash: u64, cost: u64) {
        self.table.land(hash, cost);
    }
}

impl<C: Clock> Clone for MemoryStore<C> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<C: Clock> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for MemoryStoreBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStoreBuilder").field("max_keys", &self.cap.keys).finish_non_exhaustive()
    }
}

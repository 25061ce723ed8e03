//! The store itself.

use crate::board;
use crate::cluster::Servers;
use crate::connection_handle::ConnectionHandle;
use crate::detached::{self, ReceiptCharges, RedisCharge};
use crate::fallback::Fallback;
use crate::health::{Health, TROUBLES};
use crate::key::{Secret, Tag};
use crate::lease::table::{LeaseStats, LeaseTable, LocalAnswer};
use crate::limits::{Limits, RegisteredLimit, Rule};
use crate::limits_check::{LimitsCheck, LimitsMismatch};
use crate::permits::Permits;
use crate::request::{Receipt, Request};
use crate::script::PermitName;
use crate::script::amend::{Amend, Amendment, BEFORE};
use crate::script::decide::{Answer, FEW, Question};
use crate::secret::FleetSecret;
use crate::store_error::StoreError;
use ratekeeper::{
    Ask, Clock, Limit, MemoryStore, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    limit::MicrosLimit, store::DetachError, store::LimitHandle, store::LimitKeyStats,
    store::OnFailure, store::SettleError, store::ShardPrefix, store::Source,
    store::TooManyKeysError,
};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Limits that several processes hold together, on Redis or Valkey.
///
/// Every decision is one round trip, whatever the number of limits; what is asked at the same time
/// shares it. See the [crate] for an example. A handle: clones share it. It runs a thread of its
/// own, so that any executor will do, and none that is busy holds it up.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// Where limits are registered; it counts nothing.
    pub(crate) names: MemoryStore,
    pub(crate) limits: Limits,
    pub(crate) fallback: Fallback,
    pub(crate) health: Arc<Health>,
    pub(crate) lanes: Vec<ConnectionHandle>,
    pub(crate) secret: Arc<FleetSecret>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) leases: LeaseTable,
    /// Why the last heartbeat of this node failed, if it did.
    pub(crate) heartbeat: Arc<Mutex<Option<StoreError>>>,
    pub(crate) limits_check: Arc<LimitsCheck>,
    pub(crate) board: Arc<board::Door>,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    pub(crate) gone: Arc<tokio::sync::Notify>,
    /// Stores with limits of their own on these connections.
    pub(crate) children: Mutex<Vec<Weak<Inner>>>,
    /// The store whose connections these are, if they are another's; it is kept running.
    pub(crate) parent: Option<RedisStore>,
}

/// How the store is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RedisStatus {
    /// What is wrong and for how long; none if nothing is.
    pub trouble: Option<(Duration, StoreError)>,
    /// Why the last heartbeat of this node failed, if it did. Other nodes do not count it then, and
    /// where decisions are made all the same nothing else is wrong.
    pub heartbeat: Option<StoreError>,
    /// Nodes of the same prefix that have other limits than this one, if there are any.
    pub other_limits: Option<LimitsMismatch>,
    /// How many nodes share it, this one included, as far as is known.
    pub nodes: u64,
    /// What happened since the start.
    pub counts: RedisStats,
}

/// What happened since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RedisStats {
    /// Requests that Redis decided.
    pub decisions: u64,
    /// Calls of Redis that answered, for decisions and corrections.
    pub round_trips: u64,
    /// Requests that were decided without it.
    pub fallbacks: u64,
    /// What went wrong, by [`Trouble::name`].
    pub troubles: [(&'static str, u64); 8],
    /// Units that a settle could not give back, because the limit had changed.
    pub not_returned: u64,
    /// Units that were spent without Redis and that it has charged when it came back.
    pub debited: u64,
    /// What became of leases.
    pub leases: LeaseStats,
}

type RegisteredLimits = SmallVec<[Option<Arc<RegisteredLimit>>; FEW]>;

impl RedisStore {
    /// How it is.
    pub fn status(&self) -> RedisStatus {
        let Inner {
            health, fallback, ..
        } = &*self.inner;
        let (counts, leases) = (&health.counts, self.inner.leases.counts());
        RedisStatus {
            trouble: health
                .trouble()
                .map(|(since, trouble)| (since.elapsed(), trouble)),
            heartbeat: self.inner.heartbeat().clone(),
            other_limits: self
                .inner
                .limits_check
                .other_limits(std::time::Instant::now()),
            nodes: fallback.nodes(),
            counts: RedisStats {
                decisions: counts.decisions.load(Relaxed),
                round_trips: counts.round_trips.load(Relaxed),
                fallbacks: counts.fallbacks.load(Relaxed),
                troubles: std::array::from_fn(|at| {
                    (TROUBLES[at], counts.troubles[at].load(Relaxed))
                }),
                not_returned: counts.not_returned.load(Relaxed),
                debited: counts.debited.load(Relaxed),
                leases,
            },
        }
    }

    /// Tells the other nodes of this prefix which limits are in force here: each by its name and
    /// its numbers, in any order.
    ///
    /// Nodes whose limits differ share buckets all the same, and together admit what the loosest
    /// allows. What is said here goes with the next heartbeat, as a digest;
    /// [`status`](Self::status) tells how many nodes have said something else, and the log does so
    /// once, after [`rollout_grace`](crate::RedisStoreBuilder::rollout_grace). Nodes that say
    /// nothing are not compared.
    pub fn declare_limits(&self, limits: impl IntoIterator<Item = String>) {
        self.inner.limits_check.set_limits(limits);
    }

    /// A secret that all nodes share, for a purpose of your own; none while the nodes have not
    /// agreed on one.
    pub fn shared_secret(&self, purpose: &str) -> Option<[u8; 32]> {
        Some(self.inner.secret.get()?.derived(purpose))
    }

    /// A store on the same connections, with limits of its own.
    ///
    /// A store keeps what it knows of a limit for as long as it lives. Limits that come and go are
    /// registered with such a store, and forgotten by dropping it. The counts are in Redis: limits
    /// of one name and one algorithm are the same limit in both stores. Its limits are decided
    /// exactly: [`lease`](Store::lease) has no effect.
    pub fn with_own_limits(&self) -> Result<Self, TooManyKeysError> {
        let Inner {
            limits,
            fallback,
            health,
            lanes,
            secret,
            permits,
            heartbeat,
            limits_check,
            board,
            parent,
            ..
        } = &*self.inner;
        let parent = parent.as_ref().unwrap_or(self);
        let inner = Arc::new(Inner {
            names: MemoryStore::builder().max_keys(1).build(),
            limits: limits.none(),
            fallback: fallback.unused()?,
            health: Arc::clone(health),
            lanes: lanes.clone(),
            secret: Arc::clone(secret),
            permits: Arc::clone(permits),
            leases: LeaseTable::new(0, self.inner.timeout).0,
            heartbeat: Arc::clone(heartbeat),
            limits_check: Arc::clone(limits_check),
            board: Arc::clone(board),
            timeout: self.inner.timeout,
            on_failure: self.inner.on_failure,
            gone: Arc::default(),
            children: Mutex::default(),
            parent: Some(parent.clone()),
        });
        let mut children = parent
            .inner
            .children
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Whether Redis answers.
    pub fn is_healthy(&self) -> bool {
        self.inner.health.is_well()
    }

    fn limits_of(&self, asks: &[Ask<'_>]) -> RegisteredLimits {
        let of = |ask: &Ask<'_>| match self.inner.names.knows(ask.limit) {
            true => self.inner.limits.get(ask.limit),
            false => None,
        };
        asks.iter().map(of).collect()
    }

    /// What can be said without asking Redis, by what is held on lease.
    #[inline]
    fn here(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Option<Verdict>) -> LocalAnswer {
        let Inner {
            leases,
            limits,
            health,
            names,
            ..
        } = &*self.inner;
        match asks.iter().all(|ask| names.knows(ask.limit)) {
            true => leases.decide(asks, limits, now, !health.is_open(), verdict),
            false => LocalAnswer::Unknown,
        }
    }

    async fn decide_in(
        &self,
        asks: &[Ask<'_>],
        now: Option<Timestamp>,
        timeout: Duration,
    ) -> Verdict {
        if !self.inner.leases.are_any() {
            return self.decide_there(asks, timeout, None).await;
        }
        let inner = &self.inner;
        let now = now.unwrap_or_else(|| self.now());
        let (began, mut left, mut failed) = (now, timeout, None);
        let mut known = None;
        match self.here(asks, now, &mut known) {
            // Who has less time than the flight may take asks by itself.
            LocalAnswer::Wait(flight) if timeout >= inner.timeout => {
                failed = flight.ended().await.err();
                let now = self.now();
                self.here(asks, now, &mut known);
                left = timeout.saturating_sub(now.saturating_since(began));
            }
            LocalAnswer::Decided | LocalAnswer::Wait(_) | LocalAnswer::Unknown => {}
        }
        match known {
            Some(verdict) => verdict,
            None => self.decide_there(asks, left, failed).await,
        }
    }

    /// Asks Redis, unless that has `failed`.
    async fn decide_there(
        &self,
        asks: &[Ask<'_>],
        left: Duration,
        failed: Option<StoreError>,
    ) -> Verdict {
        let inner = &self.inner;
        let limits = self.limits_of(asks);
        let trouble = match inner.secret.get() {
            _ if failed.is_some() => failed.unwrap_or(StoreError::Broken),
            _ if inner.health.is_open() => StoreError::Broken,
            _ if left.is_zero() => StoreError::TimedOut,
            None => StoreError::NoSecret,
            Some(secret) => match self.ask(asks, &limits, &secret, left).await {
                Ok(verdict) => return verdict,
                Err(trouble) => trouble,
            },
        };
        inner.health.count(&trouble);
        if let StoreError::BadKey(_) = trouble {
            tracing::warn!(target: "ratekeeper::redis", "{trouble}");
        }
        inner.health.counts.fallbacks.fetch_add(1, Relaxed);
        inner
            .fallback
            .decide(asks, &limits, &inner.missing(asks, &limits))
    }

    async fn ask(
        &self,
        asks: &[Ask<'_>],
        limits: &RegisteredLimits,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<Verdict, StoreError> {
        let inner = &self.inner;
        let request = Request::new(asks, limits, secret, || inner.permits.name());
        let Some(first) = request.questions.first() else {
            return Ok(request.verdict(asks, &[]).0);
        };
        // Where its permits go back, if it is about any: what was given back before can be taken.
        let permits = request
            .questions
            .iter()
            .find(|question| matches!(question.limit, MicrosLimit::InFlight { .. }));
        let lane = &inner.lanes[inner.lane_of(&permits.unwrap_or(first).key)];
        let figures = match lane.decide(Arc::clone(&request.questions), timeout).await {
            Ok(Answer::ReplyReceiver { figures }) => figures,
            Ok(Answer::BadKey(at)) => {
                return Err(StoreError::BadKey(
                    String::from_utf8_lossy(&request.questions[at].key).into_owned(),
                ));
            }
            Err(trouble) => {
                // They may have been taken all the same.
                for question in request
                    .questions
                    .iter()
                    .filter(|question| !question.permits.is_empty())
                {
                    inner.give_up(
                        &question.key,
                        question.limit,
                        question.permits.clone(),
                        false,
                    );
                }
                return Err(trouble);
            }
        };
        inner.health.counts.decisions.fetch_add(1, Relaxed);
        let (mut verdict, receipts) = request.verdict(asks, &figures);
        let taken =
            |(question, _): &(&Question, _)| verdict.is_allowed() && !question.permits.is_empty();
        let taken = request
            .questions
            .iter()
            .zip(&figures)
            .filter(|(_, told)| told.fits)
            .filter(taken);
        let mut held = VerdictCharges {
            inner: Arc::clone(inner),
            receipts,
            permits: Vec::new(),
        };
        for (
            Question {
                key,
                limit,
                permits,
                ..
            },
            _,
        ) in taken
        {
            inner.permits.hold(key, *limit, permits);
            held.permits
                .push((Arc::clone(key), *limit, permits.clone()));
        }
        if !held.permits.is_empty() || held.receipts.iter().any(Option::is_some) {
            verdict.hold(Box::new(held));
        }
        Ok(verdict)
    }

    /// Corrects one key now.
    async fn amend_key(&self, handle: &LimitHandle, key: &[u8], what: Amend) {
        let inner = &self.inner;
        let limit = inner
            .names
            .knows(handle)
            .then(|| inner.limits.get(handle))
            .flatten();
        let counts = |limit: &Arc<RegisteredLimit>| {
            !matches!(
                limit.form,
                MicrosLimit::Unlimited | MicrosLimit::InFlight { .. }
            )
        };
        let (Some(limit), Some(secret)) = (limit.filter(counts), inner.secret.get()) else {
            return;
        };
        let key = secret.name(&limit.stem, key);
        let lane = &inner.lanes[inner.lane_of(&key)];
        let amendment = Amendment {
            key,
            limit: limit.form,
            what,
        };
        inner.report(lane.amend(vec![amendment], OPERATOR_WAITS).await);
    }
}

/// An operator waits longer than a caller.
const OPERATOR_WAITS: Duration = Duration::from_secs(1);

impl Inner {
    /// The stores on these connections that have limits of their own.
    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        self.children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Which server each ask is decided without.
    fn missing(&self, asks: &[Ask<'_>], limits: &RegisteredLimits) -> Servers {
        let secret = self.secret.get();
        let name = |(ask, limit): (&Ask<'_>, &Option<Arc<RegisteredLimit>>)| {
            Some(secret.as_ref()?.name(&limit.as_ref()?.stem, ask.key))
        };
        self.lanes[0].missing(asks.iter().zip(limits).map(name))
    }

    /// Where a key is asked about.
    pub(crate) fn lane_of(&self, key: &[u8]) -> usize {
        let letters = key.iter().rev().skip(1).take(4);
        letters.fold(0, |sum, letter| sum * 31 + usize::from(*letter)) % self.lanes.len()
    }

    /// `held`: the server has answered that it gave them.
    fn give_up(&self, key: &Arc<[u8]>, limit: MicrosLimit, names: Vec<PermitName>, held: bool) {
        let amendment = self.permits.give_up(key, limit, names);
        if !held || !self.health.is_well() {
            self.permits.give_up_again(amendment.clone());
        }
        // If it is lost they end by themselves.
        drop(self.lanes[self.lane_of(key)].amend_later(vec![amendment], OPERATOR_WAITS));
    }

    pub(crate) fn heartbeat(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.heartbeat
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn report<T>(&self, result: Result<T, StoreError>) {
        if let Err(trouble) = result {
            self.health.count(&trouble);
            tracing::warn!(target: "ratekeeper::redis", "a correction of what was charged is lost: {trouble}");
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        // The thread holds none.
        if Arc::strong_count(&self.inner) == 1 {
            self.inner.gone.notify_one();
        }
    }
}

/// What a verdict of this store is settled by. Dropped, it gives its permits up.
struct VerdictCharges {
    inner: Arc<Inner>,
    receipts: SmallVec<[Option<Receipt>; FEW]>,
    permits: Vec<(Arc<[u8]>, MicrosLimit, Vec<PermitName>)>,
}

impl Drop for VerdictCharges {
    fn drop(&mut self) {
        for (key, limit, names) in self.permits.drain(..) {
            self.inner.give_up(&key, limit, names, true);
        }
    }
}

impl Store for RedisStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(
            name,
            Rule::Rate(limit),
            self.inner.names.limit(name, limit)?,
        )
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(
            name,
            Rule::InFlight(limit),
            self.inner.names.concurrency(name, limit)?,
        )
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        if self.inner.names.knows(handle) && handle.limit().is_some() {
            self.inner.names.set_limit(handle, limit);
            self.set_rule(handle, Rule::Rate(limit));
        }
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        if self.inner.names.knows(handle) && handle.in_flight().is_some() {
            self.inner.names.set_concurrency(handle, limit);
            self.set_rule(handle, Rule::InFlight(limit));
        }
    }

    fn now(&self) -> Timestamp {
        self.inner.fallback.clock().now()
    }

    async fn decide(&self, asks: &[Ask<'_>]) -> Verdict {
        self.decide_in(asks, None, self.inner.timeout).await
    }

    async fn decide_at(&self, asks: &[Ask<'_>], now: Timestamp) -> Verdict {
        self.decide_in(asks, Some(now), self.inner.timeout).await
    }

    async fn decide_within(&self, asks: &[Ask<'_>], now: Timestamp, within: Duration) -> Verdict {
        // Falling back takes a moment too.
        let timeout = self.inner.timeout.min(within * 9 / 10);
        self.decide_in(asks, Some(now), timeout).await
    }

    #[inline]
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp) -> Option<Verdict> {
        let mut verdict = None;
        self.here(asks, now, &mut verdict);
        verdict
    }

    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        if self.inner.names.knows(handle) {
            self.inner
                .limits
                .change(handle, |limit, _| limit.on_failure = then);
        }
    }

    fn lease(&self, handle: &LimitHandle, staleness: Option<Duration>) {
        if self.inner.parent.is_none() && self.inner.names.knows(handle) {
            if staleness.is_some() {
                self.inner.leases.begin();
            }
            self.change(handle, |limit, _| limit.staleness = staleness);
        }
    }

    fn set_shared_name(&self, handle: &LimitHandle, name: &str) {
        if self.inner.names.knows(handle) {
            self.change(handle, |_, known| *known = name.into());
        }
    }

    fn set_shard_prefix(&self, handle: &LimitHandle, tag: Option<ShardPrefix>) {
        if self.inner.names.knows(handle) {
            // Where all keys are in one place they lie together anyway.
            let tag = tag.map_or_else(Tag::default, Tag::by);
            self.change(handle, |limit, _| limit.tag = limit.tag.take().map(|_| tag));
        }
    }

    async fn settle(&self, mut verdict: Verdict, actual: &[u64]) {
        match verdict.source() {
            Source::Redis => {}
            Source::Lease => return self.settle_lease(verdict, actual).await,
            _ => return self.inner.fallback.settle(verdict, actual),
        }
        let Some(mut held) = verdict
            .let_go()
            .and_then(|held| held.downcast::<VerdictCharges>().ok())
        else {
            return;
        };
        let VerdictCharges {
            receipts, permits, ..
        } = &mut *held;
        let mut amendments: Vec<Amendment> = Vec::new();
        for (receipt, actual) in receipts.drain(..).zip(actual) {
            let Some(receipt) = receipt else { continue };
            let now = self.inner.limits.numbered(receipt.number);
            if *actual < receipt.cost && now.is_none_or(|now| now.form != receipt.limit) {
                // What was charged before a change is not of what is counted now.
                self.inner
                    .health
                    .counts
                    .not_returned
                    .fetch_add(receipt.cost - actual, Relaxed);
                continue;
            }
            amendments.extend(receipt.corrected(*actual));
        }
        for (key, limit, names) in permits.drain(..) {
            let amendment = self.inner.permits.give_up(&key, limit, names);
            if !self.inner.health.is_well() {
                self.inner.permits.give_up_again(amendment.clone());
            }
            amendments.push(amendment);
        }
        self.amend_all(amendments).await;
    }

    async fn detach(&self, mut verdict: Verdict, until: Timestamp) -> Result<Vec<u8>, DetachError> {
        let inner = &self.inner;
        if verdict.source() == Source::LocalShare {
            let (places, receipt) = inner.fallback.detach(verdict, until)?;
            return Ok(ReceiptCharges::Local { places, receipt }.pack());
        }
        let mut shared = RedisCharge {
            number: detached::receipt_number(),
            until,
            charges: Vec::new(),
            permits: Vec::new(),
        };
        if let Some(mut held) = verdict
            .let_go()
            .and_then(|held| held.downcast::<VerdictCharges>().ok())
        {
            let named =
                |receipt: Receipt| Some((inner.limits.numbered(receipt.number)?.stem.id, receipt));
            shared.charges = held
                .receipts
                .drain(..)
                .map(|receipt| receipt.and_then(named))
                .collect();
            shared.permits = std::mem::take(&mut held.permits);
        }
        let live =
            u64::try_from(until.saturating_since(self.now()).as_micros()).unwrap_or(u64::MAX);
        for (key, limit, names) in &shared.permits {
            // If it is not told, or nobody waits for that, they end by themselves before their
            // time.
            let amendment = inner.permits.let_go(key, *limit, names.clone(), live);
            let told = inner.lanes[inner.lane_of(key)]
                .amend(vec![amendment.clone()], inner.timeout)
                .await;
            if told.is_err() {
                inner.permits.give_up_again(amendment);
            }
            inner.report(told);
        }
        Ok(ReceiptCharges::Shared(shared).pack())
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), SettleError> {
        let inner = &self.inner;
        let shared = match ReceiptCharges::unpack(receipt)? {
            ReceiptCharges::Local { places, receipt } => {
                return inner.fallback.settle_detached(&places, &receipt, actual);
            }
            ReceiptCharges::Shared(shared) => shared,
        };
        let now = self.now();
        if now >= shared.until {
            return Err(SettleError::Expired);
        }
        let (amendments, not_returned) = shared.settled(actual, &inner.limits, now);
        // All in one piece, so that it is done or was done before.
        let lane = amendments
            .first()
            .map_or(0, |first| inner.lane_of(&first.key));
        match inner.lanes[lane].amend(amendments, OPERATOR_WAITS).await {
            Ok(came) if came.contains(&Some(BEFORE)) => Err(SettleError::AlreadySettled),
            Ok(_) => {
                inner
                    .health
                    .counts
                    .not_returned
                    .fetch_add(not_returned, Relaxed);
                Ok(())
            }
            Err(trouble) => {
                inner.health.count(&trouble);
                Err(SettleError::Unreachable)
            }
        }
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        self.amend_key(handle, key, Amend::Grant(tokens)).await;
        self.inner.leases.forgive(&Ask::new(handle, key));
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        self.amend_key(handle, key, Amend::MakeFresh).await;
        self.inner.leases.forgive(&Ask::new(handle, key));
    }

    fn key_stats(&self, _limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        None
    }
}

impl RedisStore {
    fn register(
        &self,
        name: &str,
        rule: Rule,
        handle: LimitHandle,
    ) -> Result<LimitHandle, TooManyLimitsError> {
        let Inner {
            limits,
            fallback,
            on_failure,
            ..
        } = &*self.inner;
        limits.add(
            handle.number(),
            name,
            rule,
            fallback.register(name, &rule)?,
            *on_failure,
        );
        Ok(handle)
    }

    /// Changes a limit. What is held of it on lease is dropped: it was of what the limit was
    /// before.
    fn change(
        &self,
        handle: &LimitHandle,
        change: impl FnOnce(&mut RegisteredLimit, &mut Box<str>),
    ) {
        if self.inner.limits.change(handle, change) {
            self.inner.leases.forget(handle.number());
        }
    }

    /// Each where its key is asked about, so that what is said of it later comes later.
    /// All of them are queued before any is awaited.
    async fn amend_all(&self, mut amendments: Vec<Amendment>) {
        let mut outcomes = SmallVec::<[_; 2]>::new();
        for (at, lane) in self.inner.lanes.iter().enumerate() {
            let own: Vec<Amendment> = amendments
                .extract_if(.., |one| self.inner.lane_of(&one.key) == at)
                .collect();
            if !own.is_empty() {
                outcomes.push(lane.amend(own, self.inner.timeout));
            }
        }
        for outcome in outcomes {
            self.inner.report(outcome.await);
        }
    }

    /// What was paid for by a lease and not used goes back to that lease, if it still lives; what
    /// it cost more is charged in Redis.
    async fn settle_lease(&self, verdict: Verdict, actual: &[u64]) {
        let (inner, now) = (&self.inner, self.now());
        let mut amendments = Vec::new();
        for (status, actual) in verdict.statuses().zip(actual) {
            let Some((mark, cost)) = status.settles_by() else {
                continue;
            };
            if *actual < cost && !inner.leases.give_back(mark, cost - actual, now) {
                inner
                    .health
                    .counts
                    .not_returned
                    .fetch_add(cost - actual, Relaxed);
            }
            if *actual > cost
                && let Some((limit, key)) = inner.leases.whose(mark)
                && let Some(secret) = inner.secret.get()
            {
                let key = secret.name(&limit.stem, &key);
                amendments.push(Amendment {
                    key,
                    limit: limit.form,
                    what: Amend::ChargeMore(actual - cost),
                });
            }
        }
        self.amend_all(amendments).await;
    }

    fn set_rule(&self, handle: &LimitHandle, rule: Rule) {
        let Inner {
            limits, fallback, ..
        } = &*self.inner;
        self.change(handle, |limit, _| limit.rule = rule);
        if let Some(limit) = limits.get(handle) {
            fallback.set(&limit);
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

//! [`RedisStore`], its status and its statistics.

use crate::board;
use crate::cluster::Servers;
use crate::connection_handle::ConnectionHandle;
use crate::detached::{self, ReceiptCharges, RedisCharge};
use crate::fallback::Fallback;
use crate::health::{ERROR_NAMES, Health};
use crate::key::{Secret, SlotTag};
use crate::lease::table::{LeaseStats, LeaseTable, LocalAnswer};
use crate::limits::{Limits, RegisteredLimit, Rule};
use crate::limits_check::{LimitsCheck, LimitsMismatch};
use crate::permits::Permits;
use crate::request::{Receipt, Request};
use crate::script::PermitName;
use crate::script::amend::{ALREADY_DONE, Amend, Amendment};
use crate::script::decide::{Answer, FEW, Question};
use crate::secret::FleetSecret;
use crate::store_error::StoreError;
use ratekeeper::{
    Ask, Clock, Limit, MemoryStore, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    store::DetachError, store::LimitHandle, store::LimitKeyStats, store::LimitOptions,
    store::OnFailure, store::SettleError, store::Source, store::TooManyKeysError,
    store::backend::MicrosLimit,
};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Limits that several processes share on Redis or Valkey.
///
/// Every decision is one round trip, whatever the number of limits; concurrent decisions share
/// round trips. See the [crate] for an example. A `RedisStore` is a handle: clones share the store.
/// Its I/O runs on a thread of its own, so it works with any executor, and a busy executor does not
/// delay it.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) inner: Arc<Inner>,
}

/// The shared state of a store.
pub(crate) struct Inner {
    /// Registers limits and gives them their numbers; it counts nothing.
    pub(crate) registry: MemoryStore,
    pub(crate) limits: Limits,
    pub(crate) fallback: Fallback,
    pub(crate) health: Arc<Health>,
    pub(crate) connections: Vec<ConnectionHandle>,
    pub(crate) secret: Arc<FleetSecret>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) leases: LeaseTable,
    /// The error of this node's last heartbeat, if it failed.
    pub(crate) heartbeat: Arc<Mutex<Option<StoreError>>>,
    pub(crate) limits_check: Arc<LimitsCheck>,
    pub(crate) board: Arc<board::BoardHandle>,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    pub(crate) closed: Arc<tokio::sync::Notify>,
    /// Stores with limits of their own on these connections.
    pub(crate) children: Mutex<Vec<Weak<Inner>>>,
    /// The store that owns the connections, if this one is a child; holding it keeps its thread
    /// running.
    pub(crate) parent: Option<RedisStore>,
}

/// The state of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RedisStatus {
    /// The current error and how long decisions have been failing; `None` if they work.
    pub error: Option<(Duration, StoreError)>,
    /// The error of this node's last heartbeat, if it failed. Other nodes then do not count this
    /// one; if decisions still work, this is the only problem.
    pub heartbeat: Option<StoreError>,
    /// Nodes of the same prefix whose limits differ from this node's, if there are any.
    pub other_limits: Option<LimitsMismatch>,
    /// How many nodes share the limits, this one included, by the last heartbeat.
    pub nodes: u64,
    /// Statistics since the start.
    pub counts: RedisStats,
}

/// Statistics of a store since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RedisStats {
    /// Requests that Redis decided.
    pub decisions: u64,
    /// Calls that Redis answered, for decisions and amendments.
    pub round_trips: u64,
    /// Requests that were decided without Redis.
    pub fallbacks: u64,
    /// Errors, by [`StoreError::name`].
    pub errors: [(&'static str, u64); 8],
    /// Units that a settle could not give back, because the limit had changed.
    pub not_returned: u64,
    /// Units that were spent while Redis was down and charged there when it came back.
    pub debited: u64,
    /// Statistics of leases.
    pub leases: LeaseStats,
}

/// The registered limit of each ask; `None` for a limit of another store.
type RegisteredLimits = SmallVec<[Option<Arc<RegisteredLimit>>; FEW]>;

impl RedisStore {
    /// The current status and statistics.
    pub fn status(&self) -> RedisStatus {
        let Inner {
            health, fallback, ..
        } = &*self.inner;
        let counts = &health.counts;
        let leases = self.inner.leases.stats();
        RedisStatus {
            error: health
                .error()
                .map(|(since, error)| (since.elapsed(), error)),
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
                errors: std::array::from_fn(|at| {
                    (ERROR_NAMES[at], counts.errors[at].load(Relaxed))
                }),
                not_returned: counts.not_returned.load(Relaxed),
                debited: counts.debited.load(Relaxed),
                leases,
            },
        }
    }

    /// Declares the limits of this node, each with its name and numbers, in any order, so that
    /// other nodes of the prefix can compare them with theirs.
    ///
    /// Nodes whose limits differ share buckets all the same, and together allow what the loosest of
    /// them allows. The next heartbeat sends a digest of the limits declared here;
    /// [`status`](Self::status) has how many nodes have declared others, and the log reports it
    /// once, after [`rollout_grace`](crate::RedisStoreBuilder::rollout_grace). Nodes that declare
    /// nothing are not compared.
    pub fn declare_limits(&self, limits: impl IntoIterator<Item = String>) {
        self.inner.limits_check.set_limits(limits);
    }

    /// A secret that all nodes share, derived for a given purpose; `None` until the nodes have
    /// agreed on one.
    pub fn shared_secret(&self, purpose: &str) -> Option<[u8; 32]> {
        Some(self.inner.secret.get()?.derived(purpose))
    }

    /// A store on the same connections, with limits of its own.
    ///
    /// A store keeps its limits for as long as it lives. Register limits that come and go with such
    /// a child store, and drop it to remove them. The counts are in Redis: limits of the same name
    /// and algorithm are the same limit in both stores. The limits of a child are decided exactly:
    /// [`lease`](LimitOptions::lease) has no effect.
    pub fn with_own_limits(&self) -> Result<Self, TooManyKeysError> {
        let Inner {
            limits,
            fallback,
            health,
            connections,
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
            registry: MemoryStore::builder().max_keys(1).build(),
            limits: limits.empty_copy(),
            fallback: fallback.smaller_copy()?,
            health: Arc::clone(health),
            connections: connections.clone(),
            secret: Arc::clone(secret),
            permits: Arc::clone(permits),
            leases: LeaseTable::new(0, self.inner.timeout).0,
            heartbeat: Arc::clone(heartbeat),
            limits_check: Arc::clone(limits_check),
            board: Arc::clone(board),
            timeout: self.inner.timeout,
            on_failure: self.inner.on_failure,
            closed: Arc::default(),
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
        self.inner.health.is_healthy()
    }

    fn limits_of(&self, asks: &[Ask<'_>]) -> RegisteredLimits {
        let registered = |ask: &Ask<'_>| {
            if self.inner.registry.knows(ask.limit) {
                self.inner.limits.get(ask.limit)
            } else {
                None
            }
        };
        asks.iter().map(registered).collect()
    }

    /// Decides from this node's leases, without asking Redis, where possible.
    #[inline]
    fn decide_leased(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        verdict: &mut Option<Verdict>,
    ) -> LocalAnswer {
        let Inner {
            leases,
            limits,
            health,
            registry,
            ..
        } = &*self.inner;
        if asks.iter().all(|ask| registry.knows(ask.limit)) {
            leases.decide(asks, limits, now, !health.is_open(), verdict)
        } else {
            LocalAnswer::Unknown
        }
    }

    async fn decide_with_timeout(&self, asks: &[Ask<'_>], timeout: Duration) -> Verdict {
        if !self.inner.leases.is_enabled() {
            return self.decide_in_redis(asks, timeout, None).await;
        }
        let inner = &self.inner;
        let now = self.now();
        let began = now;
        let mut remaining_time = timeout;
        let mut failed = None;
        let mut known = None;
        match self.decide_leased(asks, now, &mut known) {
            // A caller with less time than the lease request may take asks Redis itself.
            LocalAnswer::Wait(request) if timeout >= inner.timeout => {
                failed = request.ended().await.err();
                let now = self.now();
                self.decide_leased(asks, now, &mut known);
                remaining_time = timeout.saturating_sub(now.saturating_since(began));
            }
            LocalAnswer::Decided | LocalAnswer::Wait(_) | LocalAnswer::Unknown => {}
        }
        match known {
            Some(verdict) => verdict,
            None => self.decide_in_redis(asks, remaining_time, failed).await,
        }
    }

    /// Asks Redis, unless a lease request just `failed`; falls back on errors.
    async fn decide_in_redis(
        &self,
        asks: &[Ask<'_>],
        remaining_time: Duration,
        failed: Option<StoreError>,
    ) -> Verdict {
        let inner = &self.inner;
        let limits = self.limits_of(asks);
        let error = match inner.secret.get() {
            _ if failed.is_some() => failed.unwrap_or(StoreError::Broken),
            _ if inner.health.is_open() => StoreError::Broken,
            _ if remaining_time.is_zero() => StoreError::TimedOut,
            None => StoreError::NoSecret,
            Some(secret) => match self.ask_redis(asks, &limits, &secret, remaining_time).await {
                Ok(verdict) => return verdict,
                Err(error) => error,
            },
        };
        inner.health.count_error(&error);
        if let StoreError::BadKey(_) = error {
            tracing::warn!(target: "ratekeeper::redis", "{error}");
        }
        inner.health.counts.fallbacks.fetch_add(1, Relaxed);
        inner
            .fallback
            .decide(asks, &limits, &inner.failing_servers(asks, &limits))
    }

    async fn ask_redis(
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
        // A request with permits goes where its permits are released, so that permits released
        // before it can be taken.
        let permits = request
            .questions
            .iter()
            .find(|question| matches!(question.limit, MicrosLimit::InFlight { .. }));
        let connection = &inner.connections[inner.connection_index(&permits.unwrap_or(first).key)];
        let results = match connection
            .decide(Arc::clone(&request.questions), timeout)
            .await
        {
            Ok(Answer::Decided { results }) => results,
            Ok(Answer::BadKey(at)) => {
                return Err(StoreError::BadKey(
                    String::from_utf8_lossy(&request.questions[at].key).into_owned(),
                ));
            }
            Err(error) => {
                // The permits may have been taken even so.
                for question in request
                    .questions
                    .iter()
                    .filter(|question| !question.permits.is_empty())
                {
                    inner.release_permits(
                        &question.key,
                        question.limit,
                        question.permits.clone(),
                        false,
                    );
                }
                return Err(error);
            }
        };
        inner.health.counts.decisions.fetch_add(1, Relaxed);
        let (mut verdict, receipts) = request.verdict(asks, &results);
        let taken =
            |(question, _): &(&Question, _)| verdict.is_allowed() && !question.permits.is_empty();
        let taken = request
            .questions
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.fits)
            .filter(taken);
        let mut charges = VerdictCharges {
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
            inner.permits.insert(key, *limit, permits);
            charges
                .permits
                .push((Arc::clone(key), *limit, permits.clone()));
        }
        if !charges.permits.is_empty() || charges.receipts.iter().any(Option::is_some) {
            verdict.set_extension(Box::new(charges));
        }
        Ok(verdict)
    }

    /// Amends one key now.
    async fn amend_key(&self, handle: &LimitHandle, key: &[u8], change: Amend) {
        let inner = &self.inner;
        let limit = inner
            .registry
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
        let key = secret.name(&limit.key_prefix, key);
        let connection = &inner.connections[inner.connection_index(&key)];
        let amendment = Amendment {
            key,
            limit: limit.form,
            change,
        };
        inner.report(connection.amend(vec![amendment], OPERATOR_TIMEOUT).await);
    }
}

/// How long an operator's change of a key may take; callers wait less.
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(1);

impl Inner {
    /// The stores on these connections with their own limits.
    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        self.children
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// For each ask, the number of the server whose failure made the request fall back.
    fn failing_servers(&self, asks: &[Ask<'_>], limits: &RegisteredLimits) -> Servers {
        let secret = self.secret.get();
        let name = |(ask, limit): (&Ask<'_>, &Option<Arc<RegisteredLimit>>)| {
            Some(secret.as_ref()?.name(&limit.as_ref()?.key_prefix, ask.key))
        };
        self.connections[0].failing_servers(asks.iter().zip(limits).map(name))
    }

    /// The index of the connection that handles a key.
    pub(crate) fn connection_index(&self, key: &[u8]) -> usize {
        let letters = key.iter().rev().skip(1).take(4);
        letters.fold(0, |sum, letter| sum * 31 + usize::from(*letter)) % self.connections.len()
    }

    /// `charges`: whether the server has confirmed that it gave the permits.
    fn release_permits(
        &self,
        key: &Arc<[u8]>,
        limit: MicrosLimit,
        names: Vec<PermitName>,
        charges: bool,
    ) {
        let amendment = self.permits.release(key, limit, names);
        if !charges || !self.health.is_healthy() {
            self.permits.release_later(amendment.clone());
        }
        // If the release is lost, the permits expire.
        drop(
            self.connections[self.connection_index(key)]
                .amend_later(vec![amendment], OPERATOR_TIMEOUT),
        );
    }

    pub(crate) fn heartbeat(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.heartbeat
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn report<T>(&self, result: Result<T, StoreError>) {
        if let Err(error) = result {
            self.health.count_error(&error);
            tracing::warn!(target: "ratekeeper::redis", "a refund or correction could not be sent to Redis and was dropped: {error}");
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        // The I/O thread holds no handle.
        if Arc::strong_count(&self.inner) == 1 {
            self.inner.closed.notify_one();
        }
    }
}

/// What a verdict of this store has charged, to settle it by. Dropping it releases the permits.
struct VerdictCharges {
    inner: Arc<Inner>,
    receipts: SmallVec<[Option<Receipt>; FEW]>,
    permits: Vec<(Arc<[u8]>, MicrosLimit, Vec<PermitName>)>,
}

impl Drop for VerdictCharges {
    fn drop(&mut self) {
        for (key, limit, names) in self.permits.drain(..) {
            self.inner.release_permits(&key, limit, names, true);
        }
    }
}

impl Store for RedisStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(
            name,
            Rule::Rate(limit),
            self.inner.registry.limit(name, limit)?,
        )
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(
            name,
            Rule::InFlight(limit),
            self.inner.registry.concurrency(name, limit)?,
        )
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        if self.inner.registry.knows(handle) && handle.limit().is_some() {
            self.inner.registry.set_limit(handle, limit);
            self.set_rule(handle, Rule::Rate(limit));
        }
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        if self.inner.registry.knows(handle) && handle.in_flight().is_some() {
            self.inner.registry.set_concurrency(handle, limit);
            self.set_rule(handle, Rule::InFlight(limit));
        }
    }

    fn now(&self) -> Timestamp {
        self.inner.fallback.clock().now()
    }

    async fn decide_within(&self, asks: &[Ask<'_>], within: Option<Duration>) -> Verdict {
        let own = self.inner.timeout;
        // Falling back takes a moment too.
        let timeout = within.map_or(own, |within| own.min(within * 9 / 10));
        self.decide_with_timeout(asks, timeout).await
    }

    #[inline]
    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        let mut leased = None;
        self.decide_leased(asks, now, &mut leased);
        leased.map(|leased| *verdict = leased).is_some()
    }

    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        if !self.inner.registry.knows(handle) {
            return false;
        }
        if let Some(then) = options.changed_on_failure() {
            let limits = &self.inner.limits;
            limits.change(handle, |limit, _| limit.on_failure = then);
        }
        // The limits of a child are decided exactly.
        let lease = options
            .changed_lease()
            .filter(|_| self.inner.parent.is_none());
        if let Some(staleness) = lease {
            if staleness.is_some() {
                self.inner.leases.enable();
            }
            self.change(handle, |limit, _| limit.staleness = staleness);
        }
        if let Some(name) = options.changed_shared_name() {
            self.change(handle, |_, known| *known = name.into());
        }
        if let Some(prefix) = options.changed_shard_prefix() {
            // Only Cluster keys have a slot tag.
            let tag = prefix.map_or_else(SlotTag::default, |prefix| {
                SlotTag::by_prefix(Arc::clone(prefix))
            });
            self.change(handle, |limit, _| limit.tag = limit.tag.take().map(|_| tag));
        }
        true
    }

    async fn settle(&self, mut verdict: Verdict, actual: &[u64]) {
        match verdict.source() {
            Source::Redis => {}
            Source::Lease => return self.settle_lease(verdict, actual).await,
            _ => return self.inner.fallback.settle(verdict, actual),
        }
        let Some(mut charges) = verdict
            .take_extension()
            .and_then(|charges| charges.downcast::<VerdictCharges>().ok())
        else {
            return;
        };
        let VerdictCharges {
            receipts, permits, ..
        } = &mut *charges;
        let mut amendments: Vec<Amendment> = Vec::new();
        for (receipt, actual) in receipts.drain(..).zip(actual) {
            let Some(receipt) = receipt else { continue };
            let now = self.inner.limits.numbered(receipt.number);
            if *actual < receipt.cost && now.is_none_or(|now| now.form != receipt.limit) {
                // Units charged before a change of the limit are not counted in the limit of now.
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
            let amendment = self.inner.permits.release(&key, limit, names);
            if !self.inner.health.is_healthy() {
                self.inner.permits.release_later(amendment.clone());
            }
            amendments.push(amendment);
        }
        self.amend_all(amendments).await;
    }

    async fn detach(&self, mut verdict: Verdict, until: Timestamp) -> Result<Vec<u8>, DetachError> {
        let inner = &self.inner;
        if verdict.source() == Source::LocalShare {
            let (indices, receipt) = inner.fallback.detach(verdict, until)?;
            return Ok(ReceiptCharges::Local { indices, receipt }.pack());
        }
        let mut shared = RedisCharge {
            number: detached::receipt_number(),
            until,
            charges: Vec::new(),
            permits: Vec::new(),
        };
        if let Some(mut charges) = verdict
            .take_extension()
            .and_then(|charges| charges.downcast::<VerdictCharges>().ok())
        {
            let named = |receipt: Receipt| {
                Some((
                    inner.limits.numbered(receipt.number)?.key_prefix.id,
                    receipt,
                ))
            };
            shared.charges = charges
                .receipts
                .drain(..)
                .map(|receipt| receipt.and_then(named))
                .collect();
            shared.permits = std::mem::take(&mut charges.permits);
        }
        let ttl = u64::try_from(until.saturating_since(self.now()).as_micros()).unwrap_or(u64::MAX);
        for (key, limit, names) in &shared.permits {
            // If Redis does not learn of it, or the caller stops waiting, the permits expire before
            // their time.
            let amendment = inner.permits.detach(key, *limit, names.clone(), ttl);
            let result = inner.connections[inner.connection_index(key)]
                .amend(vec![amendment.clone()], inner.timeout)
                .await;
            if result.is_err() {
                inner.permits.release_later(amendment);
            }
            inner.report(result);
        }
        Ok(ReceiptCharges::Shared(shared).pack())
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), SettleError> {
        let inner = &self.inner;
        let shared = match ReceiptCharges::unpack(receipt)? {
            ReceiptCharges::Local { indices, receipt } => {
                return inner.fallback.settle_detached(&indices, &receipt, actual);
            }
            ReceiptCharges::Shared(shared) => shared,
        };
        let now = self.now();
        if now >= shared.until {
            return Err(SettleError::Expired);
        }
        let (amendments, not_returned) = shared.settled(actual, &inner.limits, now);
        // All amendments go in one call, so that either all of them are executed or all were
        // executed before.
        let connection = amendments
            .first()
            .map_or(0, |first| inner.connection_index(&first.key));
        match inner.connections[connection]
            .amend(amendments, OPERATOR_TIMEOUT)
            .await
        {
            Ok(outcomes) if outcomes.contains(&Some(ALREADY_DONE)) => {
                Err(SettleError::AlreadySettled)
            }
            Ok(_) => {
                inner
                    .health
                    .counts
                    .not_returned
                    .fetch_add(not_returned, Relaxed);
                Ok(())
            }
            Err(error) => {
                inner.health.count_error(&error);
                Err(SettleError::Unreachable)
            }
        }
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        self.amend_key(handle, key, Amend::Grant(tokens)).await;
        self.inner.leases.clear_denial(&Ask::new(handle, key));
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        self.amend_key(handle, key, Amend::Reset).await;
        self.inner.leases.clear_denial(&Ask::new(handle, key));
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

    /// Changes a limit. Its leases are dropped, because they were granted under the limit before
    /// the change.
    fn change(
        &self,
        handle: &LimitHandle,
        change: impl FnOnce(&mut RegisteredLimit, &mut Box<str>),
    ) {
        if self.inner.limits.change(handle, change) {
            self.inner.leases.remove_limit(handle.number());
        }
    }

    /// Sends each amendment on the connection of its key, so that it comes after what was sent
    /// about the key before. All of them are queued before any is awaited.
    async fn amend_all(&self, mut amendments: Vec<Amendment>) {
        let mut outcomes = SmallVec::<[_; 2]>::new();
        for (at, connection) in self.inner.connections.iter().enumerate() {
            let own: Vec<Amendment> = amendments
                .extract_if(.., |one| self.inner.connection_index(&one.key) == at)
                .collect();
            if !own.is_empty() {
                outcomes.push(connection.amend(own, self.inner.timeout));
            }
        }
        for outcome in outcomes {
            self.inner.report(outcome.await);
        }
    }

    /// Settles a verdict that leases paid for: unused tokens go back to their lease, if it still
    /// lives; additional cost is charged in Redis.
    async fn settle_lease(&self, verdict: Verdict, actual: &[u64]) {
        let inner = &self.inner;
        let now = self.now();
        let mut amendments = Vec::new();
        for (status, actual) in verdict.results().zip(actual) {
            let Some((mark, cost)) = status.external_charge() else {
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
                && let Some((limit, key)) = inner.leases.limit_and_key(mark)
                && let Some(secret) = inner.secret.get()
            {
                let key = secret.name(&limit.key_prefix, &key);
                amendments.push(Amendment {
                    key,
                    limit: limit.form,
                    change: Amend::ChargeMore(actual - cost),
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

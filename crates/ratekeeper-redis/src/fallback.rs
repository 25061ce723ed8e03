//! Deciding without the server, by each limit's [`OnFailure`], on this node's share of the limit.
//!
//! Shares are buckets of this process, with the rate and burst divided by the number of nodes. They
//! start empty when the outage of their server starts: the tokens of the bucket are in Redis, and
//! other nodes may have spent them. What is spent here is charged there when the server answers
//! again. Each primary of a Cluster has outages of its own.

use crate::limits::{RegisteredLimit, Rule};
use crate::script::decide::FEW;
use ratekeeper::{
    Ask, Clock, Limit, MemoryStore, Mode, Outcome, Timestamp, store::LimitHandle, store::OnFailure,
    store::Source, store::backend::MicrosLimit,
};
use ratekeeper::{
    Verdict, keyed::TooManyLimitsError, store::AskResult, store::DetachError, store::SettleError,
    store::TooManyKeysError,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most keys whose spending during an outage is tracked. Spending of further keys is not
/// charged later.
const MAX_TRACKED_KEYS: usize = 65_536;

/// How long the number of nodes must stay lower before it is used: as long as a node counts as
/// alive without a heartbeat.
const FEWER_NODES_DELAY: Duration = Duration::from_secs(5);

/// Decides requests without Redis, and remembers outages.
pub(crate) struct Fallback {
    shares: MemoryStore,
    max_keys: usize,
    max_bytes: Option<usize>,
    nodes: AtomicU64,
    outages: Mutex<Outages>,
}

#[derive(Default)]
struct Outages {
    /// By the number of the server. A server without an entry is considered healthy.
    by_server: HashMap<u64, Outage>,
    /// When fewer nodes than the known number were first seen.
    fewer_since: Option<Timestamp>,
}

/// A period in which this node made decisions that a server should have made.
struct Outage {
    since: Timestamp,
    /// What was spent, by limit number and key.
    spent: HashMap<(u64, Box<[u8]>), u64>,
}

/// The number of the server where there is only one, or where it is not known.
pub(crate) const ONLY_SERVER: u64 = 0;

/// What a key spent here, to be charged in Redis.
pub(crate) struct LocalSpending {
    pub(crate) limit: u64,
    pub(crate) key: Box<[u8]>,
    pub(crate) tokens: u64,
}

impl Fallback {
    pub(crate) fn new(
        max_keys: usize,
        max_bytes: Option<usize>,
        nodes: u64,
    ) -> Result<Self, TooManyKeysError> {
        let mut builder = MemoryStore::builder().max_keys(max_keys);
        if let Some(bytes) = max_bytes {
            builder = builder.max_bytes(bytes);
        }
        let shares = builder.try_build()?;
        Ok(Self {
            shares,
            max_keys,
            max_bytes,
            nodes: AtomicU64::new(nodes.max(1)),
            outages: Mutex::default(),
        })
    }

    /// An empty fallback of a quarter of the size, for the limits of another store on the same
    /// Redis.
    pub(crate) fn smaller_copy(&self) -> Result<Self, TooManyKeysError> {
        let quarter = |size: usize| (size / 4).max(1);
        Self::new(
            quarter(self.max_keys),
            self.max_bytes.map(quarter),
            self.nodes(),
        )
    }

    pub(crate) fn clock(&self) -> &impl Clock {
        self.shares.clock()
    }

    /// The servers whose outage has not [ended](Self::end_outage).
    pub(crate) fn outages(&self) -> Vec<u64> {
        self.lock().by_server.keys().copied().collect()
    }

    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Sets how many nodes are alive. Returns whether that has changed, so that the shares must be
    /// set again.
    ///
    /// A lower number is used only after it has lasted for a while: a server that has lost its
    /// memory, or whose clock was stepped, has no heartbeats of the other nodes yet.
    pub(crate) fn set_nodes(&self, nodes: u64) -> bool {
        let nodes = nodes.max(1);
        let known = self.nodes();
        {
            let now = self.shares.clock().now();
            let mut outages = self.lock();
            let since = *outages.fewer_since.get_or_insert(now);
            if nodes < known && now.saturating_since(since) < FEWER_NODES_DELAY {
                return false;
            }
            outages.fewer_since = None;
        }
        self.nodes.swap(nodes, Ordering::Relaxed) != nodes
    }

    pub(crate) fn register(
        &self,
        name: &str,
        rule: &Rule,
    ) -> Result<LimitHandle, TooManyLimitsError> {
        match *rule {
            Rule::Rate(limit) => self.shares.limit(name, limit.share(self.nodes())),
            Rule::InFlight(max) => self.shares.concurrency(name, share_of(max, self.nodes())),
        }
    }

    /// Sets the share of a limit, after a change of the limit or of the number of nodes.
    pub(crate) fn set(&self, limit: &RegisteredLimit) {
        match limit.rule {
            Rule::Rate(rate) => self.set_if_new(&limit.share, rate.share(self.nodes())),
            Rule::InFlight(max) => self
                .shares
                .set_concurrency(&limit.share, share_of(max, self.nodes())),
        }
    }

    fn set_if_new(&self, handle: &LimitHandle, limit: Limit) {
        if handle.limit() != Some(limit) {
            self.shares.set_limit(handle, limit);
        }
    }

    /// Decides a request here. `servers` has, for each ask, the number of the server that should
    /// have decided; [`ONLY_SERVER`] where it has none.
    pub(crate) fn decide(
        &self,
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        servers: &[u64],
    ) -> Verdict {
        let now = self.shares.clock().now();
        let server_of = |at: usize| servers.get(at).copied().unwrap_or(ONLY_SERVER);
        let since: SmallVec<[Timestamp; FEW]> = {
            let mut outages = self.lock();
            (0..asks.len())
                .map(|at| outages.of(server_of(at), now).since)
                .collect()
        };
        let failure_mode = |at: usize| match limits[at].as_deref() {
            Some(limit) if limit.form == MicrosLimit::Unlimited => OnFailure::Open,
            Some(limit) => limit.on_failure,
            None => OnFailure::Closed,
        };
        let any_with = |choice: OnFailure| {
            (0..asks.len()).any(|at| failure_mode(at) == choice && asks[at].mode != Mode::Shadow)
        };
        if any_with(OnFailure::Closed) {
            return self.deny(asks, limits);
        }
        // Asks of limits with a local share. The others are allowed.
        let mut shared = Vec::with_capacity(asks.len());
        for ((ask, limit), since) in asks.iter().zip(limits).zip(&since) {
            if let Some(limit) = limit
                .as_ref()
                .filter(|limit| limit.on_failure == OnFailure::LocalShare)
            {
                self.drain_share(*since, &limit.share, ask);
                shared.push(Ask {
                    limit: &limit.share,
                    ..*ask
                });
            }
        }
        if shared.len() == asks.len() {
            let verdict = self
                .shares
                .decide_now(&shared, now)
                .with_source(Source::LocalShare);
            self.record_spending(asks, limits, server_of, now, &verdict);
            return verdict;
        }
        let mut shared_verdict = self
            .shares
            .decide_now(&shared, now)
            .with_source(Source::LocalShare);
        if shared.is_empty() {
            shared_verdict = shared_verdict.with_source(Source::Open);
        }
        self.record_spending(asks, limits, server_of, now, &shared_verdict);
        self.merge_open(asks, limits, shared_verdict)
    }

    /// A verdict over all asks, of which those without a local share are allowed.
    fn merge_open(
        &self,
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        shared_verdict: Verdict,
    ) -> Verdict {
        let mut verdict = Verdict::new(shared_verdict.source());
        let mut indices = Vec::new();
        for (at, (ask, limit)) in asks.iter().zip(limits).enumerate() {
            let shared = limit
                .as_ref()
                .is_some_and(|limit| limit.on_failure == OnFailure::LocalShare);
            match shared_verdict
                .results()
                .nth(indices.len())
                .filter(|_| shared)
            {
                Some(status) => {
                    verdict.push(*status);
                    indices.push(at);
                }
                None => verdict.push(AskResult::new(allowed(limit.as_deref()), ask.mode)),
            }
        }
        verdict.set_extension(Box::new(LocalAsks {
            shared_verdict,
            indices,
        }));
        verdict
    }

    fn deny(&self, asks: &[Ask<'_>], limits: &[Option<Arc<RegisteredLimit>>]) -> Verdict {
        let mut verdict = Verdict::new(Source::Closed);
        for (ask, limit) in asks.iter().zip(limits) {
            let decision = match limit.as_deref() {
                // A retry after one second: the store is probed again within a second.
                Some(RegisteredLimit {
                    form,
                    on_failure: OnFailure::Closed,
                    ..
                }) => denied(form),
                limit => allowed(limit),
            };
            verdict.push(AskResult::new(decision, ask.mode));
        }
        verdict
    }

    /// Empties a share as of `since`. Tokens taken later are not affected, so this may be repeated.
    fn drain_share(&self, since: Timestamp, share: &LimitHandle, ask: &Ask<'_>) {
        let is_bucket = share
            .limit()
            .is_some_and(|limit| matches!(limit.in_micros(), MicrosLimit::Bucket { .. }));
        if !is_bucket {
            return;
        }
        let peek = Ask {
            limit: share,
            mode: Mode::Peek,
            cost: 0,
            reserve: 0,
            max_wait: None,
            ..*ask
        };
        let peeked = self.shares.decide_now(&[peek], since);
        let left = peeked
            .results()
            .next()
            .map_or(0, |status| status.decision().remaining());
        if left > 0 {
            let drained = Ask {
                mode: Mode::Enforce,
                cost: left,
                ..peek
            };
            drop(self.shares.decide_now(&[drained], since));
        }
    }

    /// Records what the asks with a local share have spent.
    fn record_spending(
        &self,
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        server_of: impl Fn(usize) -> u64,
        now: Timestamp,
        verdict: &Verdict,
    ) {
        if !verdict.is_allowed() {
            return;
        }
        let mut outages = self.lock();
        for (at, (ask, limit)) in asks
            .iter()
            .zip(limits)
            .enumerate()
            .filter(|(_, (ask, _))| ask.mode == Mode::Enforce)
        {
            if limit
                .as_ref()
                .is_some_and(|limit| limit.on_failure == OnFailure::LocalShare)
            {
                outages.of(server_of(at), now).spend(ask);
            }
        }
    }

    /// Settles a verdict that was decided here.
    pub(crate) fn settle(&self, mut verdict: Verdict, actual: &[u64]) {
        let now = self.shares.clock().now();
        match verdict
            .take_extension()
            .and_then(|charges| charges.downcast::<LocalAsks>().ok())
        {
            Some(local) => {
                let LocalAsks {
                    shared_verdict,
                    indices,
                } = *local;
                let actual: Vec<u64> = indices
                    .iter()
                    .map_while(|index| actual.get(*index))
                    .copied()
                    .collect();
                self.shares.settle_now(shared_verdict, &actual, now);
            }
            None => self.shares.settle_now(verdict, actual, now),
        }
    }

    /// Detaches a verdict that was decided here: the indices of the asks that this node counted,
    /// and the receipt of them.
    pub(crate) fn detach(
        &self,
        mut verdict: Verdict,
        until: Timestamp,
    ) -> Result<(Vec<usize>, Vec<u8>), DetachError> {
        let now = self.shares.clock().now();
        let (indices, shared_verdict) = match verdict
            .take_extension()
            .and_then(|charges| charges.downcast::<LocalAsks>().ok())
        {
            Some(local) => (local.indices, local.shared_verdict),
            None => {
                let asks = verdict.results().len();
                ((0..asks).collect(), verdict)
            }
        };
        Ok((indices, self.shares.detach_now(shared_verdict, until, now)?))
    }

    pub(crate) fn settle_detached(
        &self,
        indices: &[usize],
        receipt: &[u8],
        actual: &[u64],
    ) -> Result<(), SettleError> {
        let actual: Vec<u64> = indices
            .iter()
            .map_while(|index| actual.get(*index))
            .copied()
            .collect();
        self.shares
            .settle_detached_now(receipt, &actual, self.shares.clock().now())
    }

    /// Ends the outage of a server. Returns what each key has spent, less what time has refilled
    /// here.
    pub(crate) fn end_outage(
        &self,
        server: u64,
        limits: &[Arc<RegisteredLimit>],
    ) -> Vec<LocalSpending> {
        let Some(Outage { spent, .. }) = self.lock().by_server.remove(&server) else {
            return Vec::new();
        };
        let now = self.shares.clock().now();
        let debit = |((number, key), tokens): ((u64, Box<[u8]>), u64)| {
            let limit = limits.get(number as usize)?;
            let peek = Ask::new(&limit.share, &*key).cost(0).mode(Mode::Peek);
            let peeked = self.shares.decide_now(&[peek], now);
            let decision = peeked.results().next()?.decision();
            // What has been refilled here would have been refilled in Redis too.
            let missing = decision.capacity().saturating_sub(decision.remaining());
            let tokens = tokens.min(missing);
            (tokens > 0).then_some(LocalSpending {
                limit: number,
                key,
                tokens,
            })
        };
        spent.into_iter().filter_map(debit).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The verdict of the asks that this node counted, and their indices.
struct LocalAsks {
    shared_verdict: Verdict,
    indices: Vec<usize>,
}

impl Outages {
    /// The outage of a server; it starts now if there is none.
    fn of(&mut self, server: u64, now: Timestamp) -> &mut Outage {
        self.by_server.entry(server).or_insert_with(|| Outage {
            since: now,
            spent: HashMap::new(),
        })
    }
}

impl Outage {
    fn spend(&mut self, ask: &Ask<'_>) {
        let number = ask.limit.number();
        let full = self.spent.len() >= MAX_TRACKED_KEYS;
        if ask.cost == 0 || ask.limit.limit().is_none() {
            return;
        }
        let name = (number, Box::from(ask.key));
        match self.spent.get_mut(&name) {
            Some(spent) => *spent = spent.saturating_add(ask.cost),
            None if full => {}
            None => drop(self.spent.insert(name, ask.cost)),
        }
    }
}

fn share_of(max: u64, nodes: u64) -> u64 {
    if max == 0 { 0 } else { (max / nodes).max(1) }
}

/// The decision of a limit that fails open.
fn allowed(limit: Option<&RegisteredLimit>) -> ratekeeper::Decision {
    limit.map_or_else(MicrosLimit::no_capacity, |_| {
        MicrosLimit::Unlimited.bucket_decision(Outcome::Allowed, 0, 0)
    })
}

/// The decision of a limit that fails closed.
fn denied(form: &MicrosLimit) -> ratekeeper::Decision {
    const LATER: u64 = 1_000_000;
    match *form {
        MicrosLimit::Bucket {
            per_micro,
            capacity,
            ..
        } => form.bucket_decision(Outcome::Denied, capacity, LATER.saturating_mul(per_micro)),
        MicrosLimit::Pacing {
            per_micro,
            max_ahead,
            ..
        } => form.bucket_decision(Outcome::Denied, max_ahead, LATER.saturating_mul(per_micro)),
        MicrosLimit::Unlimited => form.bucket_decision(Outcome::Allowed, 0, 0),
        MicrosLimit::Window { .. } | MicrosLimit::InFlight { .. } => {
            form.window_decision(Outcome::Denied, 0, LATER, LATER)
        }
    }
}

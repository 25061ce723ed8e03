//! Deciding without the server: by each limit's own choice, on this node's share of it.
//!
//! Shares are buckets of this process with the rate and the burst divided by the number of nodes.
//! They start empty when the outage of their server does: what the bucket held is in Redis, and may
//! have been spent by others. What is spent here is debited there when that server answers again.
//! Each primary of a Cluster has outages of its own.

use crate::limits::{RegisteredLimit, Rule};
use crate::script::decide::FEW;
use ratekeeper::{
    Ask, Clock, Limit, MemoryStore, Mode, Outcome, Timestamp, limit::MicrosLimit,
    store::LimitHandle, store::OnFailure, store::Source,
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

/// Of so many keys it is remembered what they spent without a server. What more spend is not
/// debited.
const MOST_SPENDERS: usize = 65_536;

/// As long as a node is alive without saying so.
const FEWER: Duration = Duration::from_secs(5);

pub(crate) struct Fallback {
    shares: MemoryStore,
    max_keys: usize,
    max_bytes: Option<usize>,
    nodes: AtomicU64,
    outages: Mutex<Outages>,
}

#[derive(Default)]
struct Outages {
    /// By the number of the server. One that has none is well, as far as decisions have shown.
    by_server: HashMap<u64, Outage>,
    /// Since when fewer nodes are alive than is known.
    fewer_since: Option<Timestamp>,
}

/// The time in which decisions were made here that a server should have made.
struct Outage {
    since: Timestamp,
    /// What keys of a limit have spent.
    spent: HashMap<(u64, Box<[u8]>), u64>,
}

/// The number of the server where there is one, or none is known.
pub(crate) const ONLY_SERVER: u64 = 0;

/// What a key spent here, to be debited.
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

    /// One for limits of another store on the same Redis.
    pub(crate) fn unused(&self) -> Result<Self, TooManyKeysError> {
        Self::new(self.max_keys, self.max_bytes, self.nodes())
    }

    pub(crate) fn clock(&self) -> &impl Clock {
        self.shares.clock()
    }

    /// The servers that have failed to decide and were not said to be [over](Self::over) since.
    pub(crate) fn outages(&self) -> Vec<u64> {
        self.lock().by_server.keys().copied().collect()
    }

    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// So many nodes are alive; whether that is news, so that the shares are to be set anew.
    ///
    /// That there are fewer is believed when it stays so: a server that has lost its memory, or
    /// whose clock was stepped, has not heard from the others yet.
    pub(crate) fn set_nodes(&self, nodes: u64) -> bool {
        let (nodes, known) = (nodes.max(1), self.nodes());
        {
            let now = self.shares.clock().now();
            let mut outages = self.lock();
            let since = *outages.fewer_since.get_or_insert(now);
            if nodes < known && now.saturating_since(since) < FEWER {
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
            Rule::InFlight(most) => self.shares.concurrency(name, part(most, self.nodes())),
        }
    }

    /// Sets the share of a limit that has changed, or of which there are other nodes now.
    pub(crate) fn set(&self, limit: &RegisteredLimit) {
        match limit.rule {
            Rule::Rate(rate) => self.set_if_new(&limit.share, rate.share(self.nodes())),
            Rule::InFlight(most) => self
                .shares
                .set_concurrency(&limit.share, part(most, self.nodes())),
        }
    }

    fn set_if_new(&self, handle: &LimitHandle, limit: Limit) {
        if handle.limit() != Some(limit) {
            self.shares.set_limit(handle, limit);
        }
    }

    /// Decides here. `servers`: which one each ask is decided without; [`ONLY_SERVER`] where there
    /// is none.
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
        let chosen = |at: usize| match limits[at].as_deref() {
            Some(limit) if limit.form == MicrosLimit::Unlimited => OnFailure::Open,
            Some(limit) => limit.on_failure,
            None => OnFailure::Closed,
        };
        let by = |choice: OnFailure| {
            (0..asks.len()).any(|at| chosen(at) == choice && asks[at].mode != Mode::Shadow)
        };
        if by(OnFailure::Closed) {
            return self.turned_away(asks, limits);
        }
        // Those that this node counts; the others pass.
        let mut shared = Vec::with_capacity(asks.len());
        for ((ask, limit), since) in asks.iter().zip(limits).zip(&since) {
            if let Some(limit) = limit
                .as_ref()
                .filter(|limit| limit.on_failure == OnFailure::LocalShare)
            {
                self.empty_as_of(*since, &limit.share, ask);
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
                .decided_by(Source::LocalShare);
            self.remember(asks, limits, server_of, now, &verdict);
            return verdict;
        }
        let mut own = self
            .shares
            .decide_now(&shared, now)
            .decided_by(Source::LocalShare);
        if shared.is_empty() {
            own = own.decided_by(Source::Open);
        }
        self.remember(asks, limits, server_of, now, &own);
        self.spread(asks, limits, own)
    }

    /// A verdict over all asks, of which those that are not shared pass.
    fn spread(
        &self,
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        own: Verdict,
    ) -> Verdict {
        let mut verdict = Verdict::new(own.source());
        let mut places = Vec::new();
        for (at, (ask, limit)) in asks.iter().zip(limits).enumerate() {
            let shared = limit
                .as_ref()
                .is_some_and(|limit| limit.on_failure == OnFailure::LocalShare);
            match own.statuses().nth(places.len()).filter(|_| shared) {
                Some(status) => {
                    verdict.push(*status);
                    places.push(at);
                }
                None => verdict.push(AskResult::new(passes(limit.as_deref()), ask.mode)),
            }
        }
        verdict.hold(Box::new(LocalAsks { own, places }));
        verdict
    }

    fn turned_away(&self, asks: &[Ask<'_>], limits: &[Option<Arc<RegisteredLimit>>]) -> Verdict {
        let mut verdict = Verdict::new(Source::Closed);
        for (ask, limit) in asks.iter().zip(limits) {
            let decision = match limit.as_deref() {
                // A second is as good a guess as any: the store is tried again within one.
                Some(RegisteredLimit {
                    form,
                    on_failure: OnFailure::Closed,
                    ..
                }) => closed(form),
                limit => passes(limit),
            };
            verdict.push(AskResult::new(decision, ask.mode));
        }
        verdict
    }

    /// A share starts with nothing in it. What was taken since is taken from nothing, so this may
    /// be done again and again.
    fn empty_as_of(&self, since: Timestamp, share: &LimitHandle, ask: &Ask<'_>) {
        let is_bucket = share
            .limit()
            .is_some_and(|limit| matches!(limit.in_micros(), MicrosLimit::Bucket { .. }));
        if !is_bucket {
            return;
        }
        let look = Ask {
            limit: share,
            mode: Mode::Peek,
            cost: 0,
            reserve: 0,
            max_wait: None,
            ..*ask
        };
        let seen = self.shares.decide_now(&[look], since);
        let left = seen
            .statuses()
            .next()
            .map_or(0, |status| status.decision().remaining());
        if left > 0 {
            let drained = Ask {
                mode: Mode::Enforce,
                cost: left,
                ..look
            };
            drop(self.shares.decide_now(&[drained], since));
        }
    }

    /// Notes what the asks that this node counts have spent.
    fn remember(
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

    /// Corrects what was charged here.
    pub(crate) fn settle(&self, mut verdict: Verdict, actual: &[u64]) {
        let now = self.shares.clock().now();
        match verdict
            .let_go()
            .and_then(|held| held.downcast::<LocalAsks>().ok())
        {
            Some(part) => {
                let LocalAsks { own, places } = *part;
                let actual: Vec<u64> = places
                    .iter()
                    .map_while(|place| actual.get(*place))
                    .copied()
                    .collect();
                self.shares.settle_now(own, &actual, now);
            }
            None => self.shares.settle_now(verdict, actual, now),
        }
    }

    /// Takes apart what was charged here: the places of the asks that were, and a receipt of them.
    pub(crate) fn detach(
        &self,
        mut verdict: Verdict,
        until: Timestamp,
    ) -> Result<(Vec<usize>, Vec<u8>), DetachError> {
        let now = self.shares.clock().now();
        let (places, own) = match verdict
            .let_go()
            .and_then(|held| held.downcast::<LocalAsks>().ok())
        {
            Some(part) => (part.places, part.own),
            None => {
                let asks = verdict.statuses().len();
                ((0..asks).collect(), verdict)
            }
        };
        Ok((places, self.shares.detach_now(own, until, now)?))
    }

    pub(crate) fn settle_detached(
        &self,
        places: &[usize],
        receipt: &[u8],
        actual: &[u64],
    ) -> Result<(), SettleError> {
        let actual: Vec<u64> = places
            .iter()
            .map_while(|place| actual.get(*place))
            .copied()
            .collect();
        self.shares
            .settle_detached_now(receipt, &actual, self.shares.clock().now())
    }

    /// The outage of a server is over: what each key has spent and not got back here.
    pub(crate) fn over(&self, server: u64, limits: &[Arc<RegisteredLimit>]) -> Vec<LocalSpending> {
        let Some(Outage { spent, .. }) = self.lock().by_server.remove(&server) else {
            return Vec::new();
        };
        let now = self.shares.clock().now();
        let debit = |((number, key), tokens): ((u64, Box<[u8]>), u64)| {
            let limit = limits.get(number as usize)?;
            let look = Ask::new(&limit.share, &*key).cost(0).mode(Mode::Peek);
            let seen = self.shares.decide_now(&[look], now);
            let decision = seen.statuses().next()?.decision();
            // What time has given back here it would have given back there.
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

/// The verdict of those asks that this node counts, and which they are.
struct LocalAsks {
    own: Verdict,
    places: Vec<usize>,
}

impl Outages {
    /// That of a server, which begins now if it had none.
    fn of(&mut self, server: u64, now: Timestamp) -> &mut Outage {
        self.by_server.entry(server).or_insert_with(|| Outage {
            since: now,
            spent: HashMap::new(),
        })
    }
}

impl Outage {
    fn spend(&mut self, ask: &Ask<'_>) {
        let (number, full) = (ask.limit.number(), self.spent.len() >= MOST_SPENDERS);
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

fn part(most: u64, nodes: u64) -> u64 {
    if most == 0 { 0 } else { (most / nodes).max(1) }
}

/// What is told by a limit that lets everyone in.
fn passes(limit: Option<&RegisteredLimit>) -> ratekeeper::Decision {
    limit.map_or_else(MicrosLimit::no_capacity, |_| {
        MicrosLimit::Unlimited.bucket_decision(Outcome::Allowed, 0, 0)
    })
}

/// What is told by a limit that lets nobody in.
fn closed(form: &MicrosLimit) -> ratekeeper::Decision {
    const LATER: u64 = 1_000_000;
    match *form {
        MicrosLimit::Bucket {
            per_micro,
            capacity,
            ..
        } => form.bucket_decision(Outcome::Denied, capacity, LATER.saturating_mul(per_micro)),
        MicrosLimit::Pacing {
            per_micro, longest, ..
        } => form.bucket_decision(Outcome::Denied, longest, LATER.saturating_mul(per_micro)),
        MicrosLimit::Unlimited => form.bucket_decision(Outcome::Allowed, 0, 0),
        MicrosLimit::Window { .. } | MicrosLimit::InFlight { .. } => {
            form.window_decision(Outcome::Denied, 0, LATER, LATER)
        }
    }
}

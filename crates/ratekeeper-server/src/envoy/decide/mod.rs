//! A request of Envoy, asked of the store: all its descriptors at once, all or nothing.

use super::config::{EnvoyConfig, LimitRef, overriding};
use super::matching::{self, RuleIndex};
use super::response::{self, DescriptorOutcome};
use super::rules::{Registry, Rule, RuleStats, Rules, Settings};
use crate::store::AnyStore;
use arc_swap::ArcSwapOption;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use ratekeeper::{
    Ask, Clock, Decision, Limit, Mode, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    store::LimitHandle, store::Source,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How many different limits requests may bring along. Each is remembered for as long as the server
/// runs.
const MOST_OVERRIDES: usize = 65_536;

/// The most descriptors of a request: all of them are decided at once. Envoy sends a few.
const MAX_DESCRIPTORS: usize = 128;

/// The most entries of a descriptor.
const MAX_ENTRIES: usize = 64;

/// How often a bucket is charged for what is left of it while others are charged at the same time.
const USE_UP_ATTEMPTS: usize = 3;

/// So many descriptors allocate nothing.
const FEW: usize = 8;

pub(super) type Few<T> = SmallVec<[T; FEW]>;

pub(crate) struct Envoy<C: Clock> {
    store: AnyStore<C>,
    /// None if there is no configuration.
    rules: ArcSwapOption<Rules>,
    registry: Registry,
    overrides: RwLock<HashMap<Limit, LimitHandle>>,
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecideError {
    /// The request says nothing that could be answered.
    Invalid(&'static str),
    /// Nobody knows: whoever asks decides by its own failure mode.
    Unavailable(&'static str),
}

/// What is known of one descriptor.
pub(super) struct MatchedDescriptor<'r> {
    /// None if the request brought its limit along.
    pub(super) rule: Option<&'r Rule>,
    pub(super) told: DescriptorStatus,
    handle: LimitHandleRef<'r>,
    bucket: Range<usize>,
    hits: Hits,
}

/// How its limit is told.
#[derive(Clone, Copy)]
pub(super) struct DescriptorStatus {
    pub(super) limit: Limit,
    pub(super) requests_per_unit: u32,
    pub(super) unit: i32,
}

enum LimitHandleRef<'r> {
    Rule(&'r LimitHandle),
    Override(LimitHandle),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hits {
    Charge(u64),
    Peek,
    Refund(u64),
}

impl Hits {
    fn charged(self) -> u64 {
        match self {
            Self::Charge(hits) => hits,
            Self::Peek | Self::Refund(_) => 0,
        }
    }
}

/// What the descriptor comes to before anybody is asked.
pub(super) enum Part {
    /// No limit applies.
    None,
    Unlimited,
    /// The number of its ask.
    Asked(usize),
}

impl MatchedDescriptor<'_> {
    pub(super) fn is_quota(&self) -> bool {
        self.rule.is_some_and(|rule| rule.config.quota)
    }

    /// Whether its limit has no room for it, whatever becomes of the request.
    pub(super) fn is_over(&self, decision: &Decision) -> bool {
        decision.is_denied() || (self.hits == Hits::Peek && decision.remaining() == 0)
    }

    /// Whether it is never over its limit, whatever the figures say.
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.config.shadow)
    }

    /// Whether it asks for several hits of the bucket of `other`.
    fn is_batch_on(&self, other: &Self, keys: &[u8]) -> bool {
        self.hits.charged() > 1 && self.shares_bucket(other, keys)
    }

    fn shares_bucket(&self, other: &Self, keys: &[u8]) -> bool {
        self.handle().number() == other.handle().number()
            && keys[self.bucket.clone()] == keys[other.bucket.clone()]
    }

    fn handle(&self) -> &LimitHandle {
        match &self.handle {
            LimitHandleRef::Rule(handle) => handle,
            LimitHandleRef::Override(handle) => handle,
        }
    }

    fn ask<'a>(&'a self, keys: &'a [u8]) -> Ask<'a> {
        let ask = Ask::new(self.handle(), &keys[self.bucket.clone()]);
        let watches = self
            .rule
            .is_some_and(|rule| rule.config.shadow || rule.config.quota);
        match self.hits {
            // Whether there is room for anything at all.
            Hits::Peek if watches => ask.cost(0).mode(Mode::Peek),
            Hits::Peek => ask.mode(Mode::Peek),
            // What was given back has been; these are the figures.
            Hits::Refund(_) => ask.cost(0).mode(Mode::Peek),
            Hits::Charge(cost) if watches => ask.cost(cost).mode(Mode::Shadow),
            Hits::Charge(cost) => ask.cost(cost),
        }
    }
}

impl<C: Clock> Envoy<C> {
    pub(crate) fn new(store: AnyStore<C>) -> Self {
        let zero = || AtomicU64::new(0);
        let (rules, registry) = (ArcSwapOption::empty(), Registry::default());
        Self {
            store,
            rules,
            registry,
            overrides: RwLock::default(),
            allowed: zero(),
            denied: zero(),
        }
    }

    /// Goes by this configuration from the next request on.
    pub(crate) fn replace(
        &self,
        config: EnvoyConfig,
        settings: Settings,
    ) -> Result<(), TooManyLimitsError> {
        self.rules.store(Some(Arc::new(self.registry.register(
            &self.store,
            config,
            settings,
        )?)));
        Ok(())
    }

    /// How many requests passed, and how many were turned away.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    pub(crate) fn figures(&self) -> Vec<RuleStats> {
        self.rules
            .load()
            .iter()
            .flat_map(|rules| rules.rules.iter())
            .map(Rule::figures)
            .collect()
    }

    /// Every limit in force, by the name that other nodes know it by too.
    pub(crate) fn shared_limits(&self) -> Vec<String> {
        self.rules
            .load()
            .iter()
            .flat_map(|rules| rules.shared_limits())
            .collect()
    }

    /// The answer to a request that needs it `within` some time.
    pub(crate) async fn judge(
        &self,
        request: &RateLimitRequest,
        within: Option<Duration>,
    ) -> Result<RateLimitResponse, DecideError> {
        if request.domain.is_empty() {
            return Err(DecideError::Invalid(
                "the domain is empty; name one of the configuration",
            ));
        }
        if request.descriptors.is_empty() {
            return Err(DecideError::Invalid(
                "there are no descriptors; send at least one",
            ));
        }
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(DecideError::Invalid(
                "there are more than 128 descriptors; send fewer, in several requests",
            ));
        }
        if request
            .descriptors
            .iter()
            .any(|descriptor| descriptor.entries.len() > MAX_ENTRIES)
        {
            return Err(DecideError::Invalid(
                "a descriptor has more than 64 entries; send fewer",
            ));
        }
        let rules = self.rules.load();
        let rules = rules.as_deref().filter(|rules| rules.settings.enabled);
        let response =
            match rules.and_then(|rules| Some((rules, rules.domains.get(&request.domain)?))) {
                None => response::no_limits(request.descriptors.len()),
                Some((rules, level)) => {
                    let mut keys = Vec::with_capacity(64);
                    let (found, parts) = self.found(rules, level, request, &mut keys)?;
                    let outcome = self.asked(&found, &keys, &rules.settings, within).await?;
                    count(&found, &outcome);
                    response::response(request, &rules.settings, &found, &parts, &outcome)
                }
            };
        if response::is_over(&response) {
            &self.denied
        } else {
            &self.allowed
        }
        .fetch_add(1, Relaxed);
        Ok(response)
    }

    fn found<'r>(
        &self,
        rules: &'r Rules,
        level: &matching::Level,
        request: &RateLimitRequest,
        keys: &mut Vec<u8>,
    ) -> Result<(Few<MatchedDescriptor<'r>>, Few<Part>), DecideError> {
        let mut found: Few<MatchedDescriptor<'r>> = SmallVec::new();
        let mut parts: Few<Part> = SmallVec::new();
        let mut replacing: Few<&'r str> = SmallVec::new();
        for descriptor in &request.descriptors {
            let start = keys.len();
            let hits = hits(request, descriptor);
            if let Some(own) = &descriptor.limit {
                let Some(limit) = overriding(own.requests_per_unit, own.unit) else {
                    return Err(DecideError::Invalid(
                        "the limit of a descriptor has no unit; send one from SECOND on",
                    ));
                };
                matching::whole(&request.domain, entries(descriptor), keys);
                let handle = LimitHandleRef::Override(self.overriding(&limit, rules.settings)?);
                let told = DescriptorStatus {
                    limit,
                    requests_per_unit: own.requests_per_unit,
                    unit: own.unit,
                };
                parts.push(Part::Asked(found.len()));
                found.push(MatchedDescriptor {
                    rule: None,
                    told,
                    handle,
                    bucket: start..keys.len(),
                    hits,
                });
                continue;
            }
            let Some(RuleIndex(place)) = matching::find(level, entries(descriptor), keys) else {
                parts.push(Part::None);
                continue;
            };
            let rule = &rules.rules[place];
            replacing.extend(rule.config.replaces.iter().map(String::as_str));
            match (rule.config.limit, &rule.known.handle) {
                (
                    LimitRef::To {
                        limit,
                        requests_per_unit,
                        unit,
                    },
                    Some(handle),
                ) => {
                    let told = DescriptorStatus {
                        limit,
                        requests_per_unit,
                        unit,
                    };
                    parts.push(Part::Asked(found.len()));
                    let (rule, handle, bucket) =
                        (Some(rule), LimitHandleRef::Rule(handle), start..keys.len());
                    found.push(MatchedDescriptor {
                        rule,
                        told,
                        handle,
                        bucket,
                        hits,
                    });
                }
                _ => parts.push(Part::Unlimited),
            }
        }
        if !replacing.is_empty() {
            drop_replaced(&replacing, &mut found, &mut parts);
        }
        Ok((found, parts))
    }

    /// The handle of a limit that a request brought along. Other nodes know it by what it says.
    fn overriding(&self, limit: &Limit, settings: Settings) -> Result<LimitHandle, DecideError> {
        if let Some(handle) = self
            .overrides
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(limit)
        {
            return Ok(handle.clone());
        }
        let mut overrides = self
            .overrides
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = overrides.get(limit) {
            return Ok(handle.clone());
        }
        let full = DecideError::Unavailable(
            "as many different limits were sent as are told apart; send fewer, or restart",
        );
        if overrides.len() >= MOST_OVERRIDES {
            return Err(full);
        }
        let handle = self
            .store
            .limit(&format!("envoy override {limit}"), *limit)
            .map_err(|_| full)?;
        self.store.on_failure(&handle, settings.on_failure);
        overrides.insert(*limit, handle.clone());
        Ok(handle)
    }

    async fn asked(
        &self,
        found: &[MatchedDescriptor<'_>],
        keys: &[u8],
        settings: &Settings,
        within: Option<Duration>,
    ) -> Result<DescriptorOutcome, DecideError> {
        for of in found {
            if let Hits::Refund(hits) = of.hits {
                let given = self
                    .store
                    .grant(of.handle(), &keys[of.bucket.clone()], hits);
                match within {
                    // It may come back later than the caller waits for; it is not asked about
                    // again.
                    Some(within) => drop(tokio::time::timeout(within, given).await),
                    None => given.await,
                }
            }
        }
        let asks: Few<Ask<'_>> = found.iter().map(|found| found.ask(keys)).collect();
        let now = self.store.now();
        if asks.is_empty() {
            return Ok(DescriptorOutcome::new(found, SmallVec::new(), false, now));
        }
        let verdict = self.decide(&asks, now, within).await;
        if verdict.is_denied() && verdict.source() == Source::Closed {
            return Err(DecideError::Unavailable(
                "the store does not answer, and limits are closed then",
            ));
        }
        let charged = verdict.is_allowed();
        let mut outcome = DescriptorOutcome::new(found, decisions(&verdict), !charged, now);
        let consume = settings.denied_hits_consume;
        if outcome.is_over && charged && !consume {
            // Quotas deny together. The limits that had room get back what they were charged.
            self.store.settle(verdict, &vec![0; asks.len()]).await;
            let others: Few<usize> = (0..found.len()).filter(|at| !outcome.over[*at]).collect();
            let peeks: Few<Ask<'_>> = others
                .iter()
                .map(|at| asks[*at].cost(0).mode(Mode::Peek))
                .collect();
            let verdict = self.decide(&peeks, now, self.left(within, now)).await;
            outcome.update(&others, &verdict);
        }
        let uses_up = |at: &usize| match found[*at].hits {
            Hits::Charge(_) if consume => outcome.over[*at] || !charged,
            Hits::Charge(_) => {
                outcome.over[*at]
                    && found
                        .iter()
                        .any(|other| other.is_batch_on(&found[*at], keys))
            }
            Hits::Peek | Hits::Refund(_) => false,
        };
        let short: Few<usize> = (0..found.len()).filter(uses_up).collect();
        if !short.is_empty() {
            self.use_up(found, keys, short, &mut outcome, within).await;
        }
        Ok(outcome)
    }

    /// Charges hits that did not fit as far as there is something left for them.
    ///
    /// The first decision charged nothing for them, and somebody else may be charged between it and
    /// this one: each bucket is charged alone and never for more than it has, so that no limit is
    /// exceeded; what was taken in between is looked at again.
    async fn use_up(
        &self,
        found: &[MatchedDescriptor<'_>],
        keys: &[u8],
        mut short: Few<usize>,
        outcome: &mut DescriptorOutcome,
        within: Option<Duration>,
    ) {
        for _ in 0..USE_UP_ATTEMPTS {
            let mut asks: Few<Ask<'_>> = SmallVec::new();
            for &at in &short {
                let same = short
                    .iter()
                    .zip(&asks)
                    .filter(|(other, _)| found[**other].shares_bucket(&found[at], keys));
                let taken: u64 = same.map(|(_, ask)| ask.cost).sum();
                let left = outcome.decisions[at].remaining().saturating_sub(taken);
                asks.push(
                    found[at]
                        .ask(keys)
                        .cost(found[at].hits.charged().min(left))
                        .mode(Mode::Shadow),
                );
            }
            if asks.iter().all(|ask| ask.cost == 0) {
                return;
            }
            let verdict = self
                .decide(&asks, outcome.now, self.left(within, outcome.now))
                .await;
            if matches!(verdict.source(), Source::Closed | Source::Open) {
                return;
            }
            outcome.update(&short, &verdict);
            short.retain(|at| outcome.decisions[*at].is_denied());
        }
    }

    /// What is left of the time that the caller has, for another call to the store.
    fn left(&self, within: Option<Duration>, start: Timestamp) -> Option<Duration> {
        within.map(|within| within.saturating_sub(self.store.now().saturating_since(start)))
    }

    async fn decide(&self, asks: &[Ask<'_>], now: Timestamp, within: Option<Duration>) -> Verdict {
        if let Some(verdict) = self.store.try_decide(asks, now) {
            return verdict;
        }
        match within {
            Some(within) => self.store.decide_within(asks, now, within).await,
            None => self.store.decide_at(asks, now).await,
        }
    }
}

fn decisions(verdict: &Verdict) -> Few<Decision> {
    verdict.statuses().map(|status| status.decision()).collect()
}

/// How much a descriptor asks for: its own number, else that of the request, else 1.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = match &descriptor.hits_addend {
        Some(own) => own.value,
        None => u64::from(request.hits_addend.max(1)),
    };
    match hits {
        0 => Hits::Peek,
        hits if descriptor.is_negative_hits => Hits::Refund(hits),
        hits => Hits::Charge(hits),
    }
}

fn entries(descriptor: &RateLimitDescriptor) -> impl ExactSizeIterator<Item = (&str, &str)> {
    descriptor
        .entries
        .iter()
        .map(|entry| (&*entry.key, &*entry.value))
}

/// Limits that another one replaces are neither asked nor told.
fn drop_replaced(replacing: &[&str], found: &mut Few<MatchedDescriptor<'_>>, parts: &mut [Part]) {
    let mut at = 0;
    for part in parts {
        let Part::Asked(ask) = part else { continue };
        let name = found[at].rule.map_or("", |rule| &rule.config.name);
        if !name.is_empty() && replacing.contains(&name) {
            found.remove(at);
            *part = Part::None;
        } else {
            *ask = at;
            at += 1;
        }
    }
}

fn count(found: &[MatchedDescriptor<'_>], outcome: &DescriptorOutcome) {
    for (found, over) in found.iter().zip(&outcome.over) {
        let Some(rule) = found.rule else { continue };
        let counts = &rule.known.counts;
        let watches = rule.config.shadow || (rule.config.quota && !outcome.are_quotas_over);
        match (over, outcome.is_over) {
            (true, _) if watches => counts.shadow_denied.fetch_add(1, Relaxed),
            (true, _) => counts.denied.fetch_add(1, Relaxed),
            (false, false) => counts.allowed.fetch_add(1, Relaxed),
            // Another one turned it away.
            (false, true) => continue,
        };
    }
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;

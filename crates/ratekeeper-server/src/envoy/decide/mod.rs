//! Decisions on requests of Envoy: all descriptors at once, all or nothing.

use super::config::{EnvoyConfig, LimitRef, override_limit};
use super::matching::{self, RuleIndex};
use super::response::{self, DescriptorOutcome};
use super::rules::{Registry, Rule, RuleStats, Rules, Settings};
use crate::envoy::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::store::AnyStore;
use arc_swap::ArcSwapOption;
use ratekeeper::{
    Ask, Clock, Decision, Limit, Mode, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    store::LimitHandle, store::LimitOptions, store::Source,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Number of different limits in requests. Each stays registered until the server stops.
const MAX_OVERRIDES: usize = 65_536;

/// Number of descriptors of a request, all of which are decided at once. Envoy sends a few.
const MAX_DESCRIPTORS: usize = 128;

/// Number of entries of a descriptor.
const MAX_ENTRIES: usize = 64;

/// Number of attempts to charge the rest of a bucket while others charge it concurrently.
const USE_UP_ATTEMPTS: usize = 3;

/// Number of descriptors without an allocation.
const INLINE_DESCRIPTORS: usize = 8;

pub(super) type Few<T> = SmallVec<[T; INLINE_DESCRIPTORS]>;

pub(crate) struct Envoy<C: Clock> {
    store: AnyStore<C>,
    /// `None` if there is no configuration.
    rules: ArcSwapOption<Rules>,
    registry: Registry,
    overrides: RwLock<HashMap<Limit, LimitHandle>>,
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// The reason why a request has no response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecideError {
    /// The request is invalid.
    Invalid(&'static str),
    /// No decision is possible; the caller decides by its own failure mode.
    Unavailable(&'static str),
}

/// A descriptor with a limit.
pub(super) struct MatchedDescriptor<'r> {
    /// `None` if the limit is in the request.
    pub(super) rule: Option<&'r Rule>,
    pub(super) limit: DescriptorLimit,
    handle: LimitHandleRef<'r>,
    bucket: Range<usize>,
    hits: Hits,
}

/// A limit, and its numbers for the response.
#[derive(Clone, Copy)]
pub(super) struct DescriptorLimit {
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

/// The match of a descriptor in the configuration.
pub(super) enum DescriptorMatch {
    /// No limit applies.
    None,
    Unlimited,
    /// Index of its [`MatchedDescriptor`].
    Limited(usize),
}

impl MatchedDescriptor<'_> {
    pub(super) fn is_quota(&self) -> bool {
        self.rule.is_some_and(|rule| rule.config.quota)
    }

    /// Whether it is over its limit, regardless of the decision on the request.
    pub(super) fn is_over(&self, decision: &Decision) -> bool {
        decision.is_denied() || (self.hits == Hits::Peek && decision.remaining() == 0)
    }

    /// Whether it is in shadow mode, which never denies.
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.config.shadow)
    }

    /// Whether it charges several hits to the bucket of `other`.
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
        let is_unenforced = self
            .rule
            .is_some_and(|rule| rule.config.shadow || rule.config.quota);
        match self.hits {
            // Never denied: only the remaining hits matter.
            Hits::Peek if is_unenforced => ask.cost(0).mode(Mode::Peek),
            Hits::Peek => ask.mode(Mode::Peek),
            // Hits were refunded before; this reads the numbers for the response.
            Hits::Refund(_) => ask.cost(0).mode(Mode::Peek),
            Hits::Charge(cost) if is_unenforced => ask.cost(cost).mode(Mode::Shadow),
            Hits::Charge(cost) => ask.cost(cost),
        }
    }
}

impl<C: Clock> Envoy<C> {
    pub(crate) fn new(store: AnyStore<C>) -> Self {
        Self {
            store,
            rules: ArcSwapOption::empty(),
            registry: Registry::default(),
            overrides: RwLock::default(),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        }
    }

    /// Replaces the configuration.
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

    /// Number of allowed and denied requests.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    pub(crate) fn stats(&self) -> Vec<RuleStats> {
        self.rules
            .load()
            .iter()
            .flat_map(|rules| rules.rules.iter())
            .map(Rule::stats)
            .collect()
    }

    /// The limits in force, by names that are the same on all nodes.
    pub(crate) fn shared_limits(&self) -> Vec<String> {
        self.rules
            .load()
            .iter()
            .flat_map(|rules| rules.shared_limits())
            .collect()
    }

    /// Decides a request whose caller waits for `timeout`.
    pub(crate) async fn decide(
        &self,
        request: &RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, DecideError> {
        if request.domain.is_empty() {
            return Err(DecideError::Invalid(
                "the domain is empty; send one of the configuration",
            ));
        }
        if request.descriptors.is_empty() {
            return Err(DecideError::Invalid("no descriptors; send at least one"));
        }
        if request.descriptors.len() > MAX_DESCRIPTORS {
            return Err(DecideError::Invalid(
                "more than 128 descriptors; send fewer, in several requests",
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
                    let (matched, matches) = self.match_all(rules, level, request, &mut keys)?;
                    let outcome = self
                        .decide_all(&matched, &keys, &rules.settings, timeout)
                        .await?;
                    count(&matched, &outcome);
                    response::response(request, &rules.settings, &matched, &matches, &outcome)
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

    /// Matches all descriptors, and writes their keys into `keys`.
    fn match_all<'r>(
        &self,
        rules: &'r Rules,
        level: &matching::Level,
        request: &RateLimitRequest,
        keys: &mut Vec<u8>,
    ) -> Result<(Few<MatchedDescriptor<'r>>, Few<DescriptorMatch>), DecideError> {
        let mut matched: Few<MatchedDescriptor<'r>> = SmallVec::new();
        let mut matches: Few<DescriptorMatch> = SmallVec::new();
        let mut replacing: Few<&'r str> = SmallVec::new();
        for descriptor in &request.descriptors {
            let start = keys.len();
            let hits = hits(request, descriptor);
            if let Some(own) = &descriptor.limit {
                let Some(limit) = override_limit(own.requests_per_unit, own.unit) else {
                    return Err(DecideError::Invalid("unit missing; use SECOND or longer"));
                };
                matching::override_bucket(&request.domain, entries(descriptor), keys);
                let handle =
                    LimitHandleRef::Override(self.override_handle(&limit, rules.settings)?);
                let limit = DescriptorLimit {
                    limit,
                    requests_per_unit: own.requests_per_unit,
                    unit: own.unit,
                };
                matches.push(DescriptorMatch::Limited(matched.len()));
                matched.push(MatchedDescriptor {
                    rule: None,
                    limit,
                    handle,
                    bucket: start..keys.len(),
                    hits,
                });
                continue;
            }
            let Some(RuleIndex(index)) = matching::find(level, entries(descriptor), keys) else {
                matches.push(DescriptorMatch::None);
                continue;
            };
            let rule = &rules.rules[index];
            replacing.extend(rule.config.replaces.iter().map(String::as_str));
            match (rule.config.limit, &rule.state.handle) {
                (
                    LimitRef::To {
                        limit,
                        requests_per_unit,
                        unit,
                    },
                    Some(handle),
                ) => {
                    let limit = DescriptorLimit {
                        limit,
                        requests_per_unit,
                        unit,
                    };
                    matches.push(DescriptorMatch::Limited(matched.len()));
                    matched.push(MatchedDescriptor {
                        rule: Some(rule),
                        limit,
                        handle: LimitHandleRef::Rule(handle),
                        bucket: start..keys.len(),
                        hits,
                    });
                }
                _ => matches.push(DescriptorMatch::Unlimited),
            }
        }
        if !replacing.is_empty() {
            drop_replaced(&replacing, &mut matched, &mut matches);
        }
        Ok((matched, matches))
    }

    /// The handle of a limit in a request, registered under the text of the limit.
    fn override_handle(
        &self,
        limit: &Limit,
        settings: Settings,
    ) -> Result<LimitHandle, DecideError> {
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
        let full = DecideError::Unavailable("too many different limits; send fewer, or restart");
        if overrides.len() >= MAX_OVERRIDES {
            return Err(full);
        }
        let handle = self
            .store
            .limit(&format!("envoy override {limit}"), *limit)
            .map_err(|_| full)?;
        let options = LimitOptions::new().on_failure(settings.on_failure);
        self.store.configure(&handle, options);
        overrides.insert(*limit, handle.clone());
        Ok(handle)
    }

    async fn decide_all(
        &self,
        matched: &[MatchedDescriptor<'_>],
        keys: &[u8],
        settings: &Settings,
        timeout: Option<Duration>,
    ) -> Result<DescriptorOutcome, DecideError> {
        for descriptor in matched {
            if let Hits::Refund(hits) = descriptor.hits {
                let refund =
                    self.store
                        .grant(descriptor.handle(), &keys[descriptor.bucket.clone()], hits);
                match timeout {
                    // It may complete after the timeout; it is not awaited again.
                    Some(timeout) => drop(tokio::time::timeout(timeout, refund).await),
                    None => refund.await,
                }
            }
        }
        let asks: Few<Ask<'_>> = matched
            .iter()
            .map(|descriptor| descriptor.ask(keys))
            .collect();
        let now = self.store.now();
        if asks.is_empty() {
            return Ok(DescriptorOutcome::new(matched, SmallVec::new(), false, now));
        }
        let verdict = self.ask_store(&asks, now, timeout).await;
        if verdict.is_denied() && verdict.source() == Source::Closed {
            return Err(DecideError::Unavailable(
                "the store is unavailable and on_failure is \"closed\"",
            ));
        }
        let charged = verdict.is_allowed();
        let mut outcome = DescriptorOutcome::new(matched, decisions(&verdict), !charged, now);
        let consume = settings.denied_hits_consume;
        if outcome.is_over && charged && !consume {
            // All quotas are over, so the request is denied: refund the limits that allowed it.
            self.store.settle(verdict, &vec![0; asks.len()]).await;
            let others: Few<usize> = (0..matched.len()).filter(|at| !outcome.over[*at]).collect();
            let peeks: Few<Ask<'_>> = others
                .iter()
                .map(|at| asks[*at].cost(0).mode(Mode::Peek))
                .collect();
            let verdict = self
                .ask_store(&peeks, now, self.remaining_timeout(timeout, now))
                .await;
            outcome.update(&others, &verdict);
        }
        let uses_up = |at: &usize| match matched[*at].hits {
            Hits::Charge(_) if consume => outcome.over[*at] || !charged,
            Hits::Charge(_) => {
                outcome.over[*at]
                    && matched
                        .iter()
                        .any(|other| other.is_batch_on(&matched[*at], keys))
            }
            Hits::Peek | Hits::Refund(_) => false,
        };
        let short: Few<usize> = (0..matched.len()).filter(uses_up).collect();
        if !short.is_empty() {
            self.use_up(matched, keys, short, &mut outcome, timeout)
                .await;
        }
        Ok(outcome)
    }

    /// Charges denied hits up to the rest of their buckets.
    ///
    /// The first decision did not charge them, and concurrent requests may have charged the buckets
    /// since: each bucket is charged separately and never more than it has, so no limit is
    /// exceeded; it is retried with the new rest.
    async fn use_up(
        &self,
        matched: &[MatchedDescriptor<'_>],
        keys: &[u8],
        mut short: Few<usize>,
        outcome: &mut DescriptorOutcome,
        timeout: Option<Duration>,
    ) {
        for _ in 0..USE_UP_ATTEMPTS {
            let mut asks: Few<Ask<'_>> = SmallVec::new();
            for &at in &short {
                let same = short
                    .iter()
                    .zip(&asks)
                    .filter(|(other, _)| matched[**other].shares_bucket(&matched[at], keys));
                let taken: u64 = same.map(|(_, ask)| ask.cost).sum();
                let left = outcome.decisions[at].remaining().saturating_sub(taken);
                asks.push(
                    matched[at]
                        .ask(keys)
                        .cost(matched[at].hits.charged().min(left))
                        .mode(Mode::Shadow),
                );
            }
            if asks.iter().all(|ask| ask.cost == 0) {
                return;
            }
            let verdict = self
                .ask_store(
                    &asks,
                    outcome.now,
                    self.remaining_timeout(timeout, outcome.now),
                )
                .await;
            if matches!(verdict.source(), Source::Closed | Source::Open) {
                return;
            }
            outcome.update(&short, &verdict);
            short.retain(|at| outcome.decisions[*at].is_denied());
        }
    }

    /// The rest of the caller's timeout, for another call to the store.
    fn remaining_timeout(&self, timeout: Option<Duration>, start: Timestamp) -> Option<Duration> {
        timeout.map(|timeout| timeout.saturating_sub(self.store.now().saturating_since(start)))
    }

    async fn ask_store(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        timeout: Option<Duration>,
    ) -> Verdict {
        let mut verdict = Verdict::new(Source::Memory);
        if self.store.try_decide(asks, now, &mut verdict) {
            return verdict;
        }
        self.store.decide_within(asks, timeout).await
    }
}

fn decisions(verdict: &Verdict) -> Few<Decision> {
    verdict.results().map(|status| status.decision()).collect()
}

/// The hits of a descriptor: its own number, else that of the request, else 1.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = match descriptor.hits_addend {
        Some(own) => own,
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

/// Removes limits that another one replaces: they are neither charged nor in the response.
fn drop_replaced(
    replacing: &[&str],
    matched: &mut Few<MatchedDescriptor<'_>>,
    matches: &mut [DescriptorMatch],
) {
    let mut at = 0;
    for descriptor_match in matches {
        let DescriptorMatch::Limited(ask) = descriptor_match else {
            continue;
        };
        let name = matched[at].rule.map_or("", |rule| &rule.config.name);
        if !name.is_empty() && replacing.contains(&name) {
            matched.remove(at);
            *descriptor_match = DescriptorMatch::None;
        } else {
            *ask = at;
            at += 1;
        }
    }
}

fn count(matched: &[MatchedDescriptor<'_>], outcome: &DescriptorOutcome) {
    for (descriptor, over) in matched.iter().zip(&outcome.over) {
        let Some(rule) = descriptor.rule else {
            continue;
        };
        let counters = &rule.state.counters;
        let is_unenforced = rule.config.shadow || (rule.config.quota && !outcome.are_quotas_over);
        match (over, outcome.is_over) {
            (true, _) if is_unenforced => counters.shadow_denied.fetch_add(1, Relaxed),
            (true, _) => counters.denied.fetch_add(1, Relaxed),
            (false, false) => counters.allowed.fetch_add(1, Relaxed),
            // Denied by another limit.
            (false, true) => continue,
        };
    }
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;

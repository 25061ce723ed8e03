//! Locked decisions: asks on one bucket form a group, and the groups are claimed together, charged
//! or left unchanged.

use super::super::{Ask, AskResult, INLINE_ENTRIES, Mode, Verdict};
use super::{MemoryStore, receipt, with_max_wait};
use crate::clock::{Clock, Timestamp, nanos};
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::table::{RefundTotals, Transaction};
use crate::limit::Kind;
use crate::sync::relax;
use smallvec::SmallVec;

/// The asks of a call on one bucket.
struct Group<'a> {
    first_version: &'a LimitVersion,
    hash: u64,
    enforce: ModeTotals,
    shadow: ModeTotals,
    peek: ModeTotals,
    /// The limit version it was judged by, and the refund totals of the key's slot before it.
    version: u32,
    refund_totals: RefundTotals,
}

/// The asks of one mode: their costs add up.
#[derive(Default)]
struct ModeTotals {
    asks: u32,
    /// `None`: more than can be counted.
    cost: Option<u64>,
    reserve: u64,
    max_wait: Option<u64>,
    call: Option<CallResult>,
}

impl ModeTotals {
    fn add(&mut self, ask: &Ask<'_>) {
        let before = if self.asks == 0 { Some(0) } else { self.cost };
        self.cost = before.and_then(|cost| cost.checked_add(ask.cost));
        self.reserve = self.reserve.max(ask.reserve);
        let max_wait = ask.max_wait.map(nanos);
        self.max_wait = if self.asks == 0 {
            max_wait
        } else {
            self.max_wait.min(max_wait)
        };
        self.asks += 1;
    }

    fn request(&self, now: Timestamp, write: bool) -> CallRequest {
        // What cannot be counted never fits.
        CallRequest {
            now,
            cost: self.cost.unwrap_or(u64::MAX),
            max_wait: self.max_wait,
            reserve: self.reserve,
            write,
            is_final: false,
            limit: None,
        }
    }

    /// Whether it charges something.
    fn charges(&self) -> bool {
        self.asks > 0 && self.cost != Some(0)
    }

    fn is_denied(&self) -> bool {
        self.call
            .as_ref()
            .is_some_and(|call| call.decision.is_denied())
    }
}

/// The outcome of an attempt to charge every group.
enum ChargeOutcome {
    Done,
    Denied,
    /// A log may not grow, or a permit has no slot: the group, and its result.
    Full(usize, CallResult),
}

impl<C: Clock> MemoryStore<C> {
    /// The slow path, for keys that are not in the table or asked about twice, for large states,
    /// and for calls that another thread interfered with.
    #[inline(never)]
    pub(super) fn decide_slow(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) {
        let table = &self.inner.table;
        let mut groups: SmallVec<[Group<'_>; INLINE_ENTRIES]> = SmallVec::new();
        let mut group_of: SmallVec<[Option<usize>; INLINE_ENTRIES]> = SmallVec::new();
        for ask in asks {
            let first_version = &*ask.limit.first_version;
            if !table.owns(first_version) {
                group_of.push(None);
                continue;
            }
            let hash = table.hash_for_limit(first_version.registered.number, ask.key);
            let known = groups
                .iter()
                .position(|group| table.is_same_bucket(group.hash, hash));
            let at = known.unwrap_or_else(|| {
                let (enforce, shadow, peek) = Default::default();
                groups.push(Group {
                    first_version,
                    hash,
                    enforce,
                    shadow,
                    peek,
                    version: 0,
                    refund_totals: RefundTotals::default(),
                });
                groups.len() - 1
            });
            groups[at].totals(ask.mode).add(ask);
            group_of.push(Some(at));
        }
        let foreign = group_of.contains(&None);
        let charged = match &mut groups[..] {
            _ if foreign => {
                self.peek_all(&mut groups, now);
                false
            }
            [group] if group.shadow.asks == 0 && group.peek.asks == 0 => {
                let request = group.enforce.request(now, true);
                let decided = table.decide(group.first_version, group.hash, || request, |it| it);
                group.version = decided.version.id;
                group.refund_totals = decided.refund_totals;
                group.enforce.call = Some(decided.call);
                !group.enforce.is_denied()
            }
            groups => self.all_or_nothing(groups, now),
        };
        self.write_verdict(asks, &mut groups, &group_of, charged, verdict);
    }

    /// Judges every group without writing; `true` if none denies.
    fn peek_all(&self, groups: &mut [Group<'_>], now: Timestamp) -> bool {
        let table = &self.inner.table;
        for group in groups.iter_mut() {
            let first_version = group.first_version;
            let hash = group.hash;
            for totals in [&mut group.enforce, &mut group.shadow, &mut group.peek] {
                if totals.asks > 0 {
                    let peek = || totals.request(now, false);
                    totals.call =
                        Some(table.decide(first_version, hash, peek, |decided| decided.call));
                }
            }
        }
        !groups
            .iter()
            .any(|group| group.enforce.is_denied() || group.peek.is_denied())
    }

    /// Judges every group and, if none denies, charges all; returns whether it did.
    fn all_or_nothing(&self, groups: &mut [Group<'_>], now: Timestamp) -> bool {
        let table = &self.inner.table;
        for attempts in 0.. {
            if attempts > 0 {
                relax(attempts);
            }
            if !self.peek_all(groups, now) {
                return false;
            }
            // Groups that only peek need no claim.
            let writes = |group: &Group<'_>| group.enforce.charges() || group.shadow.charges();
            let wanted: SmallVec<[(&LimitVersion, u64); INLINE_ENTRIES]> = groups
                .iter()
                .filter(|group| writes(group))
                .map(|group| (group.first_version, group.hash))
                .collect();
            if wanted.is_empty() {
                return true;
            }
            let Some(mut transaction) = table.transact(&wanted, now, attempts) else {
                continue;
            };
            match Self::charge(&mut transaction, groups, now, writes) {
                ChargeOutcome::Done => {
                    transaction.commit();
                    return true;
                }
                // Another call came first. What it left decides this one.
                ChargeOutcome::Denied => {}
                ChargeOutcome::Full(at, call) => {
                    drop(transaction);
                    self.peek_all(groups, now);
                    groups[at].enforce.call = Some(call);
                    return false;
                }
            }
        }
        false
    }

    /// Judges the groups on their claimed entries; if none denies, leaves what they charge in them.
    fn charge(
        transaction: &mut Transaction<'_, C>,
        groups: &mut [Group<'_>],
        now: Timestamp,
        writes: impl Fn(&Group<'_>) -> bool,
    ) -> ChargeOutcome {
        let writing = || {
            groups
                .iter()
                .enumerate()
                .filter(|(_, group)| writes(group))
                .enumerate()
        };
        let fits = |transaction: &mut Transaction<'_, C>, at: usize, totals: &ModeTotals| {
            totals.asks == 0
                || transaction
                    .judge(at, &totals.request(now, false))
                    .decision
                    .is_allowed()
        };
        for (at, (number, group)) in writing() {
            if transaction.has_no_slot(at) {
                if group.enforce.charges() {
                    return ChargeOutcome::Full(
                        number,
                        transaction.judge(at, &group.enforce.request(now, true)),
                    );
                }
                // What charges nothing needs no slot.
                continue;
            }
            if !fits(transaction, at, &group.enforce) || !fits(transaction, at, &group.peek) {
                return ChargeOutcome::Denied;
            }
        }
        // A log may still find that there are no bytes for it: logs are charged first, and their
        // charges taken back if one does not fit.
        for logs in [true, false] {
            let mut at = 0;
            for (number, group) in groups.iter_mut().enumerate() {
                if !writes(group) {
                    continue;
                }
                at += 1;
                if transaction.is_log(at - 1) != logs {
                    continue;
                }
                (group.version, group.refund_totals) = (
                    transaction.version(at - 1).id,
                    transaction.refund_totals(at - 1),
                );
                for totals in [&mut group.enforce, &mut group.shadow] {
                    if totals.charges() || totals.asks > 0 && !transaction.has_no_slot(at - 1) {
                        totals.call = Some(transaction.judge(at - 1, &totals.request(now, true)));
                    }
                }
                if let Some(call) = group.enforce.call.take_if(|call| call.decision.is_denied()) {
                    return ChargeOutcome::Full(number, call);
                }
            }
        }
        ChargeOutcome::Done
    }

    fn write_verdict(
        &self,
        asks: &[Ask<'_>],
        groups: &mut [Group<'_>],
        group_of: &[Option<usize>],
        charged: bool,
        verdict: &mut Verdict,
    ) {
        for (ask, group) in asks.iter().zip(group_of) {
            let mut result =
                AskResult::new(ask.limit.first_version.never_allowed().decision, ask.mode);
            // Otherwise it is not a limit of this store.
            if let Some(group) = group.map(|at| &mut groups[at]) {
                let Group {
                    hash,
                    version,
                    refund_totals,
                    ..
                } = *group;
                let totals = group.totals(ask.mode);
                // The rest belongs to the asks after this one.
                totals.cost = totals.cost.map(|cost| cost.saturating_sub(ask.cost));
                if let ModeTotals {
                    call: Some(call),
                    cost: later,
                    max_wait,
                    reserve,
                    ..
                } = totals
                {
                    result =
                        AskResult::new(with_max_wait(call.decision, *max_wait, *reserve), ask.mode);
                    let charges = charged
                        && ask.mode != Mode::Peek
                        && ask.cost > 0
                        && call.decision.is_allowed();
                    let version = charges.then(|| self.inner.table.version(version));
                    let version = version.filter(|version| version.normal.kind != Kind::Unlimited);
                    result.charged = version.map(|version| {
                        receipt(
                            version,
                            hash,
                            ask.cost,
                            later.unwrap_or(0),
                            call,
                            &refund_totals,
                        )
                    });
                }
            }
            verdict.push(result);
        }
        self.attach_permits(verdict);
    }
}

impl Group<'_> {
    fn totals(&mut self, mode: Mode) -> &mut ModeTotals {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Shadow => &mut self.shadow,
            Mode::Peek => &mut self.peek,
        }
    }
}

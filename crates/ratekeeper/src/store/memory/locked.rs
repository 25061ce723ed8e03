//! The other way: asks about one bucket are one group, and the groups are held together, charged or
//! left as they were.

use super::super::{Ask, AskResult, FEW, Mode, Verdict};
use super::{MemoryStore, patient, receipt};
use crate::clock::{Clock, Timestamp, nanos};
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::table::{RefundTotals, Transaction};
use crate::limit::Kind;
use crate::sync::relax;
use smallvec::SmallVec;

/// The asks of a call that are about one bucket.
struct Group<'a> {
    first: &'a LimitVersion,
    hash: u64,
    enforce: Part,
    shadow: Part,
    peek: Part,
    /// The terms it was judged by, and how the account of the key stood before.
    terms: u32,
    standing: RefundTotals,
}

/// Those of one mode: their costs add.
#[derive(Default)]
struct Part {
    asks: u32,
    /// None: more than can be counted.
    cost: Option<u64>,
    reserve: u64,
    longest: Option<u64>,
    call: Option<CallResult>,
}

impl Part {
    fn add(&mut self, ask: &Ask<'_>) {
        let before = if self.asks == 0 { Some(0) } else { self.cost };
        self.cost = before.and_then(|cost| cost.checked_add(ask.cost));
        self.reserve = self.reserve.max(ask.reserve);
        let longest = ask.max_wait.map(nanos);
        self.longest = if self.asks == 0 {
            longest
        } else {
            self.longest.min(longest)
        };
        self.asks += 1;
    }

    fn asked(&self, now: Timestamp, write: bool) -> CallRequest {
        // What cannot be counted never fits.
        CallRequest {
            now,
            cost: self.cost.unwrap_or(u64::MAX),
            longest: self.longest,
            reserve: self.reserve,
            write,
            kept: false,
        }
    }

    /// Whether it charges something.
    fn takes(&self) -> bool {
        self.asks > 0 && self.cost != Some(0)
    }

    fn is_denied(&self) -> bool {
        self.call
            .as_ref()
            .is_some_and(|call| call.decision.is_denied())
    }
}

/// What an attempt to charge every group came to.
enum Charging {
    Done,
    Denied,
    /// A log may not grow, or a permit has no place: what its group is told.
    NoRoom(usize, CallResult),
}

impl<C: Clock> MemoryStore<C> {
    /// The same for keys that are not in the table or asked about twice, states of more than a
    /// word, and whoever was interrupted.
    #[inline(never)]
    pub(super) fn decide_anyhow(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) {
        let table = &self.inner.table;
        let mut groups: SmallVec<[Group<'_>; FEW]> = SmallVec::new();
        let mut group_of: SmallVec<[Option<usize>; FEW]> = SmallVec::new();
        for ask in asks {
            let first = &*ask.limit.first;
            if !table.knows(first) {
                group_of.push(None);
                continue;
            }
            let hash = table.hash_in(first.registered.number, ask.key);
            let known = groups
                .iter()
                .position(|group| table.share_a_bucket(group.hash, hash));
            let at = known.unwrap_or_else(|| {
                let (enforce, shadow, peek) = Default::default();
                groups.push(Group {
                    first,
                    hash,
                    enforce,
                    shadow,
                    peek,
                    terms: 0,
                    standing: RefundTotals::default(),
                });
                groups.len() - 1
            });
            groups[at].part(ask.mode).add(ask);
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
                let (call, terms, standing) = table.decide(group.first, group.hash, &asked);
                (group.terms, group.standing, group.enforce.call) =
                    (terms.id, standing, Some(call));
                !group.enforce.is_denied()
            }
            groups => self.all_or_nothing(groups, now),
        };
        self.tell(asks, &mut groups, &group_of, charged, verdict);
    }

    /// Judges every group without writing; true if none denies.
    fn look(&self, groups: &mut [Group<'_>], now: Timestamp) -> bool {
        let table = &self.inner.table;
        for group in groups.iter_mut() {
            let (first, hash) = (group.first, group.hash);
            for part in [&mut group.enforce, &mut group.shadow, &mut group.peek] {
                if part.asks > 0 {
                    part.call = Some(table.decide(first, hash, &part.asked(now, false)).0);
                }
            }
        }
        !groups
            .iter()
            .any(|group| group.enforce.is_denied() || group.peek.is_denied())
    }

    /// Judges every group and, if none denies, charges all; whether it did.
    fn all_or_nothing(&self, groups: &mut [Group<'_>], now: Timestamp) -> bool {
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
            let wanted: SmallVec<[(&LimitVersion, u64); FEW]> = groups
                .iter()
                .filter(|group| writes(group))
                .map(|group| (group.first, group.hash))
                .collect();
            if wanted.is_empty() {
                return true;
            }
            let Some(mut held) = table.transact(&wanted, now, tries) else {
                continue;
            };
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
        held: &mut Transaction<'_, C>,
        groups: &mut [Group<'_>],
        now: Timestamp,
        writes: impl Fn(&Group<'_>) -> bool,
    ) -> Charging {
        let writing = || {
            groups
                .iter()
                .enumerate()
                .filter(|(_, group)| writes(group))
                .enumerate()
        };
        let fits = |held: &mut Transaction<'_, C>, at: usize, part: &Part| {
            part.asks == 0
                || held
                    .judge(at, &part.asked(now, false))
                    .decision
                    .is_allowed()
        };
        for (at, (number, group)) in writing() {
            if held.has_no_room(at) {
                if group.enforce.takes() {
                    return Charging::NoRoom(
                        number,
                        held.judge(at, &group.enforce.asked(now, true)),
                    );
                }
                // Who takes nothing needs none.
                continue;
            }
            if !fits(held, at, &group.enforce) || !fits(held, at, &group.peek) {
                return Charging::Denied;
            }
        }
        // A log may still find that there are no bytes for it: those are charged first, and taken
        // back if one is not.
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
        groups: &mut [Group<'_>],
        group_of: &[Option<usize>],
        charged: bool,
        verdict: &mut Verdict,
    ) {
        for (ask, group) in asks.iter().zip(group_of) {
            let mut status = AskResult::new(ask.limit.first.nothing_left().decision, ask.mode);
            // Otherwise it is not a limit of this store.
            if let Some(group) = group.map(|at| &mut groups[at]) {
                let Group {
                    hash,
                    terms,
                    standing,
                    ..
                } = *group;
                let part = group.part(ask.mode);
                // What is left of it is of the asks behind this one.
                part.cost = part.cost.map(|cost| cost.saturating_sub(ask.cost));
                if let Part {
                    call: Some(call),
                    cost: later,
                    longest,
                    reserve,
                    ..
                } = part
                {
                    status = AskResult::new(patient(call.decision, *longest, *reserve), ask.mode);
                    let takes = charged
                        && ask.mode != Mode::Peek
                        && ask.cost > 0
                        && call.decision.is_allowed();
                    let terms = takes.then(|| self.inner.table.terms(terms));
                    let terms = terms.filter(|terms| terms.normal.kind != Kind::Unlimited);
                    status.charged = terms.map(|terms| {
                        receipt(terms, hash, ask.cost, later.unwrap_or(0), call, &standing)
                    });
                }
            }
            verdict.push(status);
        }
        self.keep_permits(verdict);
    }
}

impl Group<'_> {
    fn part(&mut self, mode: Mode) -> &mut Part {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Shadow => &mut self.shadow,
            Mode::Peek => &mut self.peek,
        }
    }
}

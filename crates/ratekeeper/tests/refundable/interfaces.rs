//! One refundable bucket, behind every interface.

use ratekeeper::{
    Ask, Charge, Clock, Decision, Keyed, Limit, Limiter, ManualClock, MemoryStore, Mode, Verdict,
    keyed::ChargeToken, store::LimitHandle,
};

/// A charge.
pub(crate) enum Ticket {
    Charge(Charge<ManualClock>),
    Taken(ChargeToken),
    Verdict(Box<Verdict>),
}

/// One bucket on a manual clock.
pub(crate) trait Bucket {
    fn name(&self) -> &'static str;
    fn take(&mut self, cost: u64) -> (Decision, Option<Ticket>);
    /// A final charge; none if the interface has no such call.
    fn check(&mut self, cost: u64) -> Decision;
    fn peek(&mut self, cost: u64) -> Decision;
    fn settle(&mut self, ticket: Ticket, actual: u64);
    fn grant(&mut self, tokens: u64);
    fn reset(&mut self);
    fn set_limit(&mut self, limit: Limit);
    fn not_returned(&self) -> u64;
}

type Make = fn(Limit, &ManualClock) -> Box<dyn Bucket>;

pub(crate) fn all_buckets() -> [Make; 4] {
    [
        |limit, clock| Box::new(Limiter::with_clock(limit, clock.clone())),
        |limit, clock| Box::new(keyed(limit, clock)),
        |limit, clock| Box::new(OwnedChargeBucket(keyed(limit, clock))),
        |limit, clock| {
            let store = MemoryStore::builder()
                .max_keys(8)
                .clock(clock.clone())
                .build();
            let handle = store.limit("limit", limit).unwrap();
            Box::new(StoreBucket { store, handle })
        },
    ]
}

fn keyed(limit: Limit, clock: &ManualClock) -> Keyed<str, ManualClock> {
    Keyed::<str>::builder(limit)
        .max_keys(8)
        .clock(clock.clone())
        .build()
}

impl Bucket for Limiter<ManualClock> {
    fn name(&self) -> &'static str {
        "limiter"
    }

    fn take(&mut self, cost: u64) -> (Decision, Option<Ticket>) {
        let before = self.peek_n(cost);
        match Limiter::take(self, cost) {
            Ok(charge) => {
                assert!(before.is_allowed());
                (self.peek_n(0), Some(Ticket::Charge(charge)))
            }
            Err(denied) => (denied.decision(), None),
        }
    }

    fn check(&mut self, cost: u64) -> Decision {
        self.check_n(cost)
    }

    fn peek(&mut self, cost: u64) -> Decision {
        self.peek_n(cost)
    }

    fn settle(&mut self, ticket: Ticket, actual: u64) {
        let Ticket::Charge(charge) = ticket else {
            unreachable!()
        };
        charge.settle(actual);
    }

    fn grant(&mut self, tokens: u64) {
        Limiter::grant(self, tokens);
    }

    fn reset(&mut self) {
        Limiter::reset(self);
    }

    fn set_limit(&mut self, limit: Limit) {
        Limiter::set_limit(self, limit);
    }

    fn not_returned(&self) -> u64 {
        self.adjustments().not_returned
    }
}

impl Bucket for Keyed<str, ManualClock> {
    fn name(&self) -> &'static str {
        "keyed"
    }

    fn take(&mut self, cost: u64) -> (Decision, Option<Ticket>) {
        let (decision, taken) = self.key("k").take_token(cost);
        (
            decision,
            decision.is_allowed().then_some(Ticket::Taken(taken)),
        )
    }

    fn check(&mut self, cost: u64) -> Decision {
        self.check_n("k", cost)
    }

    fn peek(&mut self, cost: u64) -> Decision {
        self.key("k").peek_n(cost)
    }

    fn settle(&mut self, ticket: Ticket, actual: u64) {
        let Ticket::Taken(taken) = ticket else {
            unreachable!()
        };
        Keyed::settle(self, taken, actual);
    }

    fn grant(&mut self, tokens: u64) {
        self.key("k").grant(tokens);
    }

    fn reset(&mut self) {
        self.key("k").reset();
    }

    fn set_limit(&mut self, limit: Limit) {
        Keyed::set_limit(self, limit);
    }

    fn not_returned(&self) -> u64 {
        self.adjustments().not_returned
    }
}

/// A key whose charges own it.
struct OwnedChargeBucket(Keyed<str, ManualClock>);

impl Bucket for OwnedChargeBucket {
    fn name(&self) -> &'static str {
        "keyed, with charges that own their key"
    }

    fn take(&mut self, cost: u64) -> (Decision, Option<Ticket>) {
        match self.0.key("k").take(cost) {
            Ok(charge) => (self.0.key("k").peek_n(0), Some(Ticket::Charge(charge))),
            Err(denied) => (denied.decision(), None),
        }
    }

    fn check(&mut self, cost: u64) -> Decision {
        self.0.check_n("k", cost)
    }

    fn peek(&mut self, cost: u64) -> Decision {
        self.0.peek(cost)
    }

    fn settle(&mut self, ticket: Ticket, actual: u64) {
        let Ticket::Charge(charge) = ticket else {
            unreachable!()
        };
        charge.settle(actual);
    }

    fn grant(&mut self, tokens: u64) {
        self.0.grant(tokens);
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn set_limit(&mut self, limit: Limit) {
        self.0.set_limit(limit);
    }

    fn not_returned(&self) -> u64 {
        self.0.not_returned()
    }
}

struct StoreBucket {
    store: MemoryStore<ManualClock>,
    handle: LimitHandle,
}

impl StoreBucket {
    fn ask(&self, cost: u64, mode: Mode) -> (Decision, Verdict) {
        let verdict = self.store.decide_now(
            &[Ask::new(&self.handle, "k").cost(cost).mode(mode)],
            self.store.clock().now(),
        );
        let decision = verdict.statuses().next().unwrap().decision();
        (decision, verdict)
    }
}

impl Bucket for StoreBucket {
    fn name(&self) -> &'static str {
        "memory store"
    }

    fn take(&mut self, cost: u64) -> (Decision, Option<Ticket>) {
        let (decision, verdict) = self.ask(cost, Mode::Enforce);
        (
            decision,
            decision
                .is_allowed()
                .then(|| Ticket::Verdict(Box::new(verdict))),
        )
    }

    /// A store has no final charges: every charge is settled.
    fn check(&mut self, cost: u64) -> Decision {
        let (decision, verdict) = self.ask(cost, Mode::Enforce);
        self.store
            .settle_now(verdict, &[cost], self.store.clock().now());
        decision
    }

    fn peek(&mut self, cost: u64) -> Decision {
        self.ask(cost, Mode::Peek).0
    }

    fn settle(&mut self, ticket: Ticket, actual: u64) {
        let Ticket::Verdict(verdict) = ticket else {
            unreachable!()
        };
        self.store
            .settle_now(*verdict, &[actual], self.store.clock().now());
    }

    fn grant(&mut self, tokens: u64) {
        self.store.grant(&self.handle, b"k", tokens);
    }

    fn reset(&mut self) {
        self.store.reset(&self.handle, b"k");
    }

    fn set_limit(&mut self, limit: Limit) {
        self.store.set_limit(&self.handle, limit);
    }

    fn not_returned(&self) -> u64 {
        self.store.counts(&self.handle).not_returned
    }
}

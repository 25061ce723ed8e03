//! Windows, logs and refundable buckets on a [`Generation`]: packed into its word while the numbers
//! fit, else in [`LargeWords`] behind a short lock.

use super::{Generation, SealedError};
use crate::algorithm::refundable_bucket::RefundableBucket;
use crate::algorithm::sliding_log::Ring;
use crate::algorithm::state_op::{
    ChargeOp, GrantOp, MAX_STATE_WORDS, RefundOp, StateOp, SurchargeOp, WindowDecision,
    with_machine,
};
use crate::algorithm::tat_word::SEALED;
use crate::algorithm::{Refund, StateMachine, StepResult, WindowLimit};
use crate::append_vec::AppendVec;
use crate::clock::Timestamp;
use crate::decision::Decision;
use crate::limit::{Kind, TickLimit};
use crate::sync::{AtomicU64, Lock, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A state of more than one word. The lock guards the words; a sealed generation's words no longer
/// change, and are read without the lock to fill its successor.
pub(crate) struct LargeWords {
    pub(crate) lock: Lock,
    words: [AtomicU64; MAX_STATE_WORDS],
    /// The times of a log, by slot of its ring.
    times: AppendVec<AtomicU64>,
}

impl Generation {
    /// One call of `cost` at `now`; with `write` the new state is stored if the call is allowed, as
    /// a final charge if `is_final`.
    #[inline]
    pub(crate) fn window_step(
        &self,
        limit: &TickLimit,
        now: Timestamp,
        cost: u64,
        write: bool,
        is_final: bool,
    ) -> Result<WindowDecision, SealedError> {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_step(limit, now, cost, write);
        }
        self.apply(
            limit,
            &ChargeOp {
                limit,
                now,
                cost,
                write,
                is_final,
            },
        )
    }

    /// Settles a charge: gives back the unused part, if it is still counted.
    pub(crate) fn window_give_back(&self, limit: &TickLimit, now: Timestamp, refund: Refund) {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_give_back(limit, refund.charged_in, refund.unused);
        }
        let _ = self.apply(limit, &RefundOp { now, refund });
    }

    /// Takes up to `tokens` back out of the state on behalf of an operator. Returns how many.
    pub(crate) fn window_grant(&self, limit: &TickLimit, now: Timestamp, tokens: u64) -> u64 {
        if limit.kind == Kind::Log {
            let Ok(seen) = self.window_step(limit, now, 0, false, false) else {
                return 0;
            };
            let granted =
                tokens.min(limit.capacity - seen.decision.remaining().min(limit.capacity));
            let (large, windowed) = (self.large(), limit.windowed());
            let _guard = large.lock.lock();
            let ring = large.ring(&windowed);
            if let (StepResult::Admit(ring, _), _) =
                ring.step(&windowed, |at| large.time(at), now.as_unix_nanos(), 0)
            {
                let granted = granted.min(ring.length);
                large.set_ring(Ring {
                    head: ring.slot(granted),
                    length: ring.length - granted,
                    ..ring
                });
            }
            return granted;
        }
        self.apply(
            limit,
            &GrantOp {
                now: now.as_unix_nanos(),
                tokens,
            },
        )
        .unwrap_or(0)
    }

    /// Charges `extra` now without a check; the window becomes full at most.
    pub(crate) fn window_charge(&self, limit: &TickLimit, now: Timestamp, extra: u64) {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_charge(limit, now, extra);
        }
        let _ = self.apply(limit, &SurchargeOp { now, extra });
    }

    /// How many units the state of a sealed generation still counts at `now`.
    pub(crate) fn window_used(&self, limit: &TickLimit, word: u64, now: Timestamp) -> u64 {
        let now = now.as_unix_nanos();
        let remaining =
            |decision: Decision| limit.capacity - decision.remaining().min(limit.capacity);
        if limit.kind == Kind::Log {
            let large = self.large();
            let windowed = limit.windowed();
            let (result, _) = large
                .ring(&windowed)
                .step(&windowed, |at| large.time(at), now, 0);
            return remaining(Decision::windowed(limit, &result, now));
        }
        struct Used<'a>(&'a TickLimit, u64);
        impl StateOp for Used<'_> {
            type Out = Decision;

            fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, Decision) {
                (
                    None,
                    M::decision(self.0, &state.step(limit, self.1, 0), self.1),
                )
            }
        }
        remaining(self.read_op(limit, word, &Used(limit, now)))
    }

    /// Copies the state to a generation of the same algorithm and window; false if they differ.
    pub(crate) fn hand_over_window(&self, next: &Self, word: u64) -> bool {
        let (old, new) = (self.tick_limit(), next.tick_limit());
        if old.kind != new.kind || old.token != new.token || !old.is_windowed() {
            return false;
        }
        if old.kind == Kind::Log {
            // All times, including more than the new limit counts: it may be raised again while
            // they still count.
            let (from, windowed) = (self.large(), old.windowed());
            next.large()
                .set_log(from.log(&windowed).collect::<Vec<u64>>().into_iter());
            return true;
        }
        struct Copy<'a>(&'a Generation, &'a TickLimit);
        impl StateOp for Copy<'_> {
            type Out = ();

            fn apply<M: StateMachine>(&self, _: &M::Limit, state: M) -> (Option<M>, ()) {
                self.0.store(self.1, state);
                (None, ())
            }
        }
        self.read_op(&old, word, &Copy(next, &new));
        true
    }

    /// When a refundable bucket is full again, in ticks of its limit since the Unix epoch.
    pub(crate) fn refundable_tat(&self) -> u128 {
        self.large().state::<RefundableBucket>().tat()
    }

    /// Sets the TAT of a generation that is not published yet; earlier charges then give nothing
    /// back.
    pub(crate) fn set_refundable_tat(&self, tat: u128) {
        self.large().set_state(RefundableBucket::settled_at(tat));
    }

    pub(crate) fn large(&self) -> &LargeWords {
        self.large.get_or_init(|| Box::new(LargeWords::new()))
    }

    /// Applies `op` to the state, whichever algorithm it belongs to.
    #[inline(always)]
    fn apply<A: StateOp>(&self, limit: &TickLimit, op: &A) -> Result<A::Out, SealedError> {
        with_machine!(limit.kind, M => self.apply_as::<M, A>(limit, op))
    }

    #[inline(always)]
    fn apply_as<M: StateMachine, A: StateOp>(
        &self,
        limit: &TickLimit,
        op: &A,
    ) -> Result<A::Out, SealedError> {
        let limit = M::limit(limit);
        if M::fits_a_word(&limit) {
            let mut word = self.word.load(Ordering::Acquire);
            loop {
                if word == SEALED {
                    return Err(SealedError);
                }
                let (after, out) = op.apply(&limit, M::unpack(&limit, word));
                let Some(after) = after else { return Ok(out) };
                match self.word.compare_exchange_weak(
                    word,
                    after.pack(&limit),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => return Ok(out),
                    Err(seen) => word = seen,
                }
            }
        }
        let large = self.large();
        let _guard = large.lock.lock();
        self.read()?;
        let (after, out) = op.apply(&limit, large.state::<M>());
        if let Some(after) = after {
            large.set_state(after);
        }
        Ok(out)
    }

    /// Applies `op` to the state of a sealed generation whose word was `word`, without writing.
    fn read_op<A: StateOp>(&self, limit: &TickLimit, word: u64, op: &A) -> A::Out {
        with_machine!(limit.kind, M => {
            let limit = M::limit(limit);
            let state = if M::fits_a_word(&limit) { M::unpack(&limit, word) } else { self.large().state::<M>() };
            op.apply(&limit, state).1
        })
    }

    /// Sets the state of a generation that is not published yet.
    fn store<M: StateMachine>(&self, limit: &TickLimit, state: M) {
        let limit = M::limit(limit);
        if M::fits_a_word(&limit) {
            self.word
                .store(state.clip(&limit).pack(&limit), Ordering::Relaxed);
        } else {
            self.large().set_state(state);
        }
    }

    fn log_step(
        &self,
        limit: &TickLimit,
        now: u64,
        cost: u64,
        write: bool,
    ) -> Result<WindowDecision, SealedError> {
        let (large, windowed) = (self.large(), limit.windowed());
        let _guard = large.lock.lock();
        self.read()?;
        let step = |cost| {
            large
                .ring(&windowed)
                .step(&windowed, |at| large.time(at), now, cost)
        };
        let (result, charged_at) = step(cost);
        let info = if write {
            result
        } else {
            result.unwritten(|| step(0).0)
        };
        let decision = Decision::windowed(limit, &info, now);
        if let (StepResult::Admit(ring, _), true) = (result, write && cost > 0) {
            large.push(ring, charged_at, cost);
        }
        Ok(WindowDecision {
            decision,
            charged_in: charged_at,
        })
    }

    fn log_charge(&self, limit: &TickLimit, now: u64, extra: u64) {
        let (large, windowed) = (self.large(), limit.windowed());
        let _guard = large.lock.lock();
        let (result, charged_at) =
            large
                .ring(&windowed)
                .step(&windowed, |at| large.time(at), now, 0);
        if let StepResult::Admit(ring, info) = result {
            large.push(ring, charged_at, extra.min(info.remaining));
        }
    }

    /// Removes up to `unused` entries of the instant `charged_at`, and closes the gap.
    fn log_give_back(&self, limit: &TickLimit, charged_at: u64, unused: u64) {
        let (large, windowed) = (self.large(), limit.windowed());
        let _guard = large.lock.lock();
        let (mut ring, mut left, mut retained) = (large.ring(&windowed), unused, 0);
        for age in 0..ring.length {
            let time = large.time(ring.slot(age));
            if time == charged_at && left > 0 {
                left -= 1;
                continue;
            }
            large.set_time(ring.slot(retained), time);
            retained += 1;
        }
        ring.length = retained;
        large.set_ring(ring);
    }
}

impl LargeWords {
    fn new() -> Self {
        Self {
            lock: Lock::new(),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
            times: AppendVec::new(),
        }
    }

    fn state<M: StateMachine>(&self) -> M {
        M::from_words(|at| self.words[at].load(Ordering::Relaxed))
    }

    fn set_state<M: StateMachine>(&self, state: M) {
        state.to_words(|at, word| self.words[at].store(word, Ordering::Relaxed));
    }

    /// For states that are moved from or to a keyed table.
    #[cfg(feature = "std")]
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    #[cfg(feature = "std")]
    pub(crate) fn set_word(&self, at: usize, word: u64) {
        self.words[at].store(word, Ordering::Relaxed);
    }

    /// The times of a log, oldest first.
    pub(crate) fn log(&self, limit: &WindowLimit) -> impl Iterator<Item = u64> {
        let ring = self.ring(limit);
        (0..ring.length).map(move |age| self.time(ring.slot(age)))
    }

    pub(crate) fn set_log(&self, times: impl ExactSizeIterator<Item = u64>) {
        let length = times.len() as u64;
        self.set_ring(Ring {
            head: 0,
            length,
            size: length,
        });
        for (at, time) in times.enumerate() {
            self.set_time(at as u64, time);
        }
    }

    fn ring(&self, limit: &WindowLimit) -> Ring {
        let [head, length, size] =
            [0, 1, 2].map(|at: usize| self.words[at].load(Ordering::Relaxed));
        // Before the first write, or after `set_log` with fewer entries, `head` is 0: the ring can
        // be made larger without moving entries.
        Ring {
            head,
            length,
            size: size.max(limit.max),
        }
    }

    fn set_ring(&self, ring: Ring) {
        for (at, word) in [ring.head, ring.length, ring.size].into_iter().enumerate() {
            self.words[at].store(word, Ordering::Relaxed);
        }
    }

    fn time(&self, slot: u64) -> u64 {
        self.times
            .get(slot)
            .map_or(0, |time| time.load(Ordering::Relaxed))
    }

    fn set_time(&self, slot: u64, time: u64) {
        self.times
            .get_or_make(slot, || AtomicU64::new(0))
            .store(time, Ordering::Relaxed);
    }

    fn push(&self, mut ring: Ring, time: u64, units: u64) {
        for _ in 0..units {
            let slot = ring.push();
            self.set_time(slot, time);
        }
        self.set_ring(ring);
    }
}

//! Windows, logs and refundable buckets on a cell: packed into its word while the numbers fit, else
//! behind a short lock.

use super::cell::{Generation, SEALED, Sealed};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::refundable_bucket::RefundableBucket;
use crate::algorithm::sliding_log::Ring;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::sliding_window_strict::SlidingWindowStrict;
use crate::algorithm::{Refund, StateMachine, StepResult, WindowLimit};
use crate::chunks::AppendVec;
use crate::clock::Timestamp;
use crate::decision::Decision;
use crate::limit::{Kind, TickLimit};
use crate::sync::{AtomicU64, Lock, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A state of more than a word. The lock guards the words; a sealed cell's state is read by its
/// successor only.
pub(crate) struct LargeWords {
    pub(super) lock: Lock,
    words: [AtomicU64; MOST_WORDS],
    /// The times of a log, by place in its ring.
    times: AppendVec<AtomicU64>,
}

/// As many words as a state may have that is not a log.
pub(crate) const MOST_WORDS: usize = 12;

/// A call's decision, and what names the window it was charged in.
pub(crate) struct WindowDecision {
    pub(crate) decision: Decision,
    pub(crate) charged_in: u64,
}

/// Something done to a state: what becomes of the state (none: it stays) and what the caller
/// learns.
pub(crate) trait StateOp {
    type Out;
    fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, Self::Out);
}

/// A call of `cost`; with `write` an admission is written.
pub(crate) struct Step<'a> {
    pub(crate) limit: &'a TickLimit,
    pub(crate) now: u64,
    pub(crate) cost: u64,
    pub(crate) write: bool,
    /// Whether the charge is final; otherwise it is settled later.
    pub(crate) kept: bool,
}

impl StateOp for Step<'_> {
    type Out = WindowDecision;

    // Always: out of line the state and the figures go through memory, which costs more than the
    // decision.
    #[inline(always)]
    fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, WindowDecision) {
        let judged = state.step(limit, self.now, self.cost);
        // Who only asks is told what is there now.
        let told = if self.write {
            judged
        } else {
            judged.unwritten(|| state.step(limit, self.now, 0))
        };
        let decision = M::decision(self.limit, &told, self.now);
        match judged {
            StepResult::Admit(after, _) => {
                let after = if self.kept {
                    after.kept(limit, self.cost)
                } else {
                    after
                };
                let written = (self.write && self.cost > 0).then_some(after);
                (
                    written,
                    WindowDecision {
                        decision,
                        charged_in: after.charged_in(),
                    },
                )
            }
            // Who only looks learns which window it is, also of one that is more than full.
            _ if self.cost == 0 => {
                let here = state.charge_more(limit, self.now, 0);
                (
                    None,
                    WindowDecision {
                        decision,
                        charged_in: here.charged_in(),
                    },
                )
            }
            _ => (
                None,
                WindowDecision {
                    decision,
                    charged_in: 0,
                },
            ),
        }
    }
}

/// A charge is settled: what is unused comes back, if it is still counted.
pub(crate) struct GiveBack {
    pub(crate) now: u64,
    pub(crate) refund: Refund,
}

impl StateOp for GiveBack {
    type Out = ();

    fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, ()) {
        (Some(state.give_back(limit, self.now, &self.refund)), ())
    }
}

/// `extra` is charged now; the window is full at most.
pub(crate) struct ChargeMore {
    pub(crate) now: u64,
    pub(crate) extra: u64,
}

impl StateOp for ChargeMore {
    type Out = ();

    fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, ()) {
        (Some(state.charge_more(limit, self.now, self.extra)), ())
    }
}

/// Up to `tokens` less are counted. Returns how many.
pub(crate) struct Grant {
    pub(crate) now: u64,
    pub(crate) tokens: u64,
}

impl StateOp for Grant {
    type Out = u64;

    fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, u64) {
        let (after, gift) = state.grant(limit, self.now, self.tokens);
        (Some(after), gift)
    }
}

/// Runs `$body` with `$machine` standing for the machine of the kind.
macro_rules! with_machine {
    ($kind:expr, $machine:ident => $body:expr) => {
        match $kind {
            Kind::FixedWindow => {
                type $machine = FixedWindow<false>;
                $body
            }
            Kind::FirstHit => {
                type $machine = FixedWindow<true>;
                $body
            }
            Kind::SlidingWindow => {
                type $machine = SlidingWindow;
                $body
            }
            Kind::Refundable => {
                type $machine = RefundableBucket;
                $body
            }
            _ => {
                type $machine = SlidingWindowStrict;
                $body
            }
        }
    };
}

/// Runs `act` on a state that is packed into a word: what becomes of the word (none: it stays), and
/// what the caller learns.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn act_on_word<A: StateOp>(
    limit: &TickLimit,
    word: u64,
    act: &A,
) -> (Option<u64>, A::Out) {
    with_machine!(limit.kind, M => {
        let limit = M::limit(limit);
        let (after, out) = act.on(&limit, M::unpack(&limit, word));
        (after.map(|after| after.pack(&limit)), out)
    })
}

/// Runs `act` on a state of [`MOST_WORDS`] words or less.
#[cfg(feature = "std")]
pub(crate) fn act_on_words<A: StateOp>(limit: &TickLimit, words: &mut [u64], act: &A) -> A::Out {
    with_machine!(limit.kind, M => {
        let (after, out) = act.on(&M::limit(limit), M::from_words(|at| words[at]));
        if let Some(after) = after {
            after.to_words(|at, word| words[at] = word);
        }
        out
    })
}

/// A packed state as strict as both.
#[cfg(feature = "std")]
pub(crate) fn join_word(limit: &TickLimit, a: u64, b: u64) -> u64 {
    with_machine!(limit.kind, M => {
        let limit = M::limit(limit);
        M::unpack(&limit, a).join(&limit, M::unpack(&limit, b)).pack(&limit)
    })
}

/// When a refundable bucket is full again, in ticks since the Unix epoch.
#[cfg(feature = "std")]
pub(crate) fn refundable_tat(words: &[u64]) -> u128 {
    RefundableBucket::from_words(|at| words[at]).tat()
}

/// Leaves in `words` a state as strict as both.
#[cfg(feature = "std")]
pub(crate) fn join_words(limit: &TickLimit, words: &mut [u64], other: &[u64]) {
    let load = |from: &[u64]| -> [u64; MOST_WORDS] {
        core::array::from_fn(|at| from.get(at).copied().unwrap_or(0))
    };
    let (a, b) = (load(words), load(other));
    with_machine!(limit.kind, M => {
        let joined = M::from_words(|at| a[at]).join(&M::limit(limit), M::from_words(|at| b[at]));
        joined.to_words(|at, word| words[at] = word);
    });
}

impl Generation {
    /// One call of `cost` at `now`; with `write` an admission is written, as a final charge if it
    /// is `kept`.
    #[inline(never)]
    pub(super) fn window_step(
        &self,
        limit: &TickLimit,
        now: Timestamp,
        cost: u64,
        write: bool,
        kept: bool,
    ) -> Result<WindowDecision, Sealed> {
        self.window_call(limit, now, cost, write, kept)
    }

    /// The same in line, for the one place where every nanosecond counts.
    #[inline(always)]
    pub(super) fn window_call(
        &self,
        limit: &TickLimit,
        now: Timestamp,
        cost: u64,
        write: bool,
        kept: bool,
    ) -> Result<WindowDecision, Sealed> {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_step(limit, now, cost, write);
        }
        self.act(
            limit,
            &Step {
                limit,
                now,
                cost,
                write,
                kept,
            },
        )
    }

    /// Settles a charge: gives back what is unused, if it is still counted.
    pub(super) fn window_give_back(&self, limit: &TickLimit, now: Timestamp, refund: Refund) {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_give_back(limit, refund.charged_in, refund.unused);
        }
        let _ = self.act(limit, &GiveBack { now, refund });
    }

    /// An operator's gift: up to `tokens` less are counted. Returns how many.
    pub(super) fn window_grant(&self, limit: &TickLimit, now: Timestamp, tokens: u64) -> u64 {
        if limit.kind == Kind::Log {
            let Ok(seen) = self.window_step(limit, now, 0, false, false) else {
                return 0;
            };
            let gift = tokens.min(limit.capacity - seen.decision.remaining().min(limit.capacity));
            let (wide, windowed) = (self.wide(), limit.windowed());
            let _held = wide.lock.hold();
            let ring = wide.ring(&windowed);
            if let (StepResult::Admit(ring, _), _) =
                ring.step(&windowed, |at| wide.time(at), now.as_unix_nanos(), 0)
            {
                let gift = gift.min(ring.length);
                wide.set_ring(Ring {
                    head: ring.place(gift),
                    length: ring.length - gift,
                    ..ring
                });
            }
            return gift;
        }
        self.act(
            limit,
            &Grant {
                now: now.as_unix_nanos(),
                tokens,
            },
        )
        .unwrap_or(0)
    }

    /// Charges `extra` now; the window is full at most.
    pub(super) fn window_charge(&self, limit: &TickLimit, now: Timestamp, extra: u64) {
        let now = now.as_unix_nanos();
        if limit.kind == Kind::Log {
            return self.log_charge(limit, now, extra);
        }
        let _ = self.act(limit, &ChargeMore { now, extra });
    }

    /// What a sealed window had admitted and still counted.
    pub(super) fn window_used(&self, limit: &TickLimit, word: u64, now: Timestamp) -> u64 {
        let now = now.as_unix_nanos();
        let remaining =
            |decision: Decision| limit.capacity - decision.remaining().min(limit.capacity);
        if limit.kind == Kind::Log {
            let wide = self.wide();
            let windowed = limit.windowed();
            let (judged, _) = wide
                .ring(&windowed)
                .step(&windowed, |at| wide.time(at), now, 0);
            return remaining(Decision::windowed(limit, &judged, now));
        }
        struct Used<'a>(&'a TickLimit, u64);
        impl StateOp for Used<'_> {
            type Out = Decision;

            fn on<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, Decision) {
                (
                    None,
                    M::decision(self.0, &state.step(limit, self.1, 0), self.1),
                )
            }
        }
        remaining(self.act_on(limit, word, &Used(limit, now)))
    }

    /// Hands a state on as it is to a cell of the same algorithm and window; false if they differ.
    pub(super) fn hand_over_window(&self, next: &Self, word: u64) -> bool {
        let (old, new) = (self.normal(), next.normal());
        if old.kind != new.kind || old.token != new.token || !old.is_windowed() {
            return false;
        }
        if old.kind == Kind::Log {
            // All of them, more than the new limit counts included: it may grow again while they
            // still count.
            let (from, windowed) = (self.wide(), old.windowed());
            next.wide()
                .set_log(from.log(&windowed).collect::<Vec<u64>>().into_iter());
            return true;
        }
        struct Copy<'a>(&'a Generation, &'a TickLimit);
        impl StateOp for Copy<'_> {
            type Out = ();

            fn on<M: StateMachine>(&self, _: &M::Limit, state: M) -> (Option<M>, ()) {
                self.0.store(self.1, state);
                (None, ())
            }
        }
        self.act_on(&old, word, &Copy(next, &new));
        true
    }

    /// When a refundable bucket is full again, in ticks of its limit since the Unix epoch.
    pub(super) fn refundable_tat(&self) -> u128 {
        self.wide().state::<RefundableBucket>().tat()
    }

    /// Sets that of a cell that nobody else knows; no charge of before gives anything back.
    pub(super) fn set_refundable_tat(&self, tat: u128) {
        self.wide().set_state(RefundableBucket::settled_at(tat));
    }

    pub(crate) fn wide(&self) -> &LargeWords {
        self.wide.get_or_init(|| Box::new(LargeWords::new()))
    }

    /// Runs `act` on the state, whichever machine it belongs to.
    #[inline(always)]
    fn act<A: StateOp>(&self, limit: &TickLimit, act: &A) -> Result<A::Out, Sealed> {
        with_machine!(limit.kind, M => self.act_as::<M, A>(limit, act))
    }

    #[inline(always)]
    fn act_as<M: StateMachine, A: StateOp>(
        &self,
        limit: &TickLimit,
        act: &A,
    ) -> Result<A::Out, Sealed> {
        let limit = M::limit(limit);
        if M::fits_a_word(&limit) {
            let mut word = self.word.load(Ordering::Acquire);
            loop {
                if word == SEALED {
                    return Err(Sealed);
                }
                let (after, out) = act.on(&limit, M::unpack(&limit, word));
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
        let wide = self.wide();
        let _held = wide.lock.hold();
        self.read()?;
        let (after, out) = act.on(&limit, wide.state::<M>());
        if let Some(after) = after {
            wide.set_state(after);
        }
        Ok(out)
    }

    /// Runs `act` on the state of a sealed cell, of which `word` was the word.
    fn act_on<A: StateOp>(&self, limit: &TickLimit, word: u64, act: &A) -> A::Out {
        with_machine!(limit.kind, M => {
            let limit = M::limit(limit);
            let state = if M::fits_a_word(&limit) { M::unpack(&limit, word) } else { self.wide().state::<M>() };
            act.on(&limit, state).1
        })
    }

    /// Sets the state of a cell that nobody else knows yet.
    fn store<M: StateMachine>(&self, limit: &TickLimit, state: M) {
        let limit = M::limit(limit);
        if M::fits_a_word(&limit) {
            self.word
                .store(state.clip(&limit).pack(&limit), Ordering::Relaxed);
        } else {
            self.wide().set_state(state);
        }
    }

    fn log_step(
        &self,
        limit: &TickLimit,
        now: u64,
        cost: u64,
        write: bool,
    ) -> Result<WindowDecision, Sealed> {
        let (wide, windowed) = (self.wide(), limit.windowed());
        let _held = wide.lock.hold();
        self.read()?;
        let step = |cost| {
            wide.ring(&windowed)
                .step(&windowed, |at| wide.time(at), now, cost)
        };
        let (judged, charged_at) = step(cost);
        let told = if write {
            judged
        } else {
            judged.unwritten(|| step(0).0)
        };
        let decision = Decision::windowed(limit, &told, now);
        if let (StepResult::Admit(ring, _), true) = (judged, write && cost > 0) {
            wide.push(ring, charged_at, cost);
        }
        Ok(WindowDecision {
            decision,
            charged_in: charged_at,
        })
    }

    fn log_charge(&self, limit: &TickLimit, now: u64, extra: u64) {
        let (wide, windowed) = (self.wide(), limit.windowed());
        let _held = wide.lock.hold();
        let (judged, charged_at) = wide
            .ring(&windowed)
            .step(&windowed, |at| wide.time(at), now, 0);
        if let StepResult::Admit(ring, told) = judged {
            wide.push(ring, charged_at, extra.min(told.remaining));
        }
    }

    /// Takes out up to `unused` entries of the instant `charged_at`, and closes the gap.
    fn log_give_back(&self, limit: &TickLimit, charged_at: u64, unused: u64) {
        let (wide, windowed) = (self.wide(), limit.windowed());
        let _held = wide.lock.hold();
        let (mut ring, mut left, mut kept) = (wide.ring(&windowed), unused, 0);
        for age in 0..ring.length {
            let time = wide.time(ring.place(age));
            if time == charged_at && left > 0 {
                left -= 1;
                continue;
            }
            wide.set_time(ring.place(kept), time);
            kept += 1;
        }
        ring.length = kept;
        wide.set_ring(ring);
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

    /// For states that come from a table, or go there.
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
        (0..ring.length).map(move |age| self.time(ring.place(age)))
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
        // A ring that is not there yet, or was made for fewer, begins at 0.
        Ring {
            head,
            length,
            size: size.max(limit.most),
        }
    }

    fn set_ring(&self, ring: Ring) {
        for (at, word) in [ring.head, ring.length, ring.size].into_iter().enumerate() {
            self.words[at].store(word, Ordering::Relaxed);
        }
    }

    fn time(&self, place: u64) -> u64 {
        self.times
            .get(place)
            .map_or(0, |time| time.load(Ordering::Relaxed))
    }

    fn set_time(&self, place: u64, time: u64) {
        self.times
            .get_or_make(place, || AtomicU64::new(0))
            .store(time, Ordering::Relaxed);
    }

    fn push(&self, mut ring: Ring, time: u64, units: u64) {
        for _ in 0..units {
            let place = ring.push();
            self.set_time(place, time);
        }
        self.set_ring(ring);
    }
}

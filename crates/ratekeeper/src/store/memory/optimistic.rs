//! The straight way: every key is in the table, its state is a word, it is asked about once, and
//! nobody comes in between.

use super::super::{Ask, AskResult, FEW, Mode, Verdict};
use super::{MemoryStore, patient, receipt};
use crate::clock::{Clock, Timestamp, nanos};
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::table::{EntryView, RefundTotals};
use smallvec::SmallVec;

struct One<'a> {
    terms: &'a LimitVersion,
    hash: u64,
    seen: EntryView,
    standing: RefundTotals,
    asked: CallRequest,
    call: CallResult,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides what is not out of the ordinary, and tells it to `verdict`; otherwise none, and
    /// nothing is written.
    ///
    /// States are read and judged one by one, and claimed as they were read: if all can be, they
    /// were all so at that moment, and what was judged holds.
    pub(super) fn decide_straight(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        verdict: &mut Verdict,
    ) -> Option<()> {
        let table = &self.inner.table;
        let mut ones: SmallVec<[One<'_>; FEW]> = SmallVec::new();
        let mut denied = false;
        if asks.len() > FEW {
            return None;
        }
        for ask in asks {
            let first = &*ask.limit.first;
            let hash = table.hash_in(first.registered.number, ask.key);
            if !table.knows(first) || ones.iter().any(|one| table.share_a_bucket(one.hash, hash)) {
                return None;
            }
            table.touch_accounts(hash);
            let terms = table.current(first);
            let seen = table.seek(hash, terms.id).filter(|_| terms.fits_a_word())?;
            let standing = table.standing(hash, seen.place);
            let (longest, write) = (ask.max_wait.map(nanos), ask.mode != Mode::Peek);
            let asked = CallRequest {
                now,
                cost: ask.cost,
                longest,
                reserve: ask.reserve,
                write,
                kept: false,
            };
            let call = terms.judge_word(seen.word(), &asked);
            if call.late {
                return None;
            }
            denied |= ask.mode != Mode::Shadow && call.decision.is_denied();
            ones.push(One {
                terms,
                hash,
                seen,
                standing,
                asked,
                call,
            });
        }
        let mut writes: SmallVec<[(EntryView, u64); FEW]> = SmallVec::new();
        if !denied {
            writes.extend(
                ones.iter()
                    .filter_map(|one| Some((one.seen, one.call.after?))),
            );
            if !table.swap_all(&mut writes) {
                return None;
            }
        }
        for (ask, one) in asks.iter().zip(&ones) {
            let charged = one.call.after.is_some();
            if denied && charged {
                // It would have fitted, and is told what there is.
                let unwritten = one.terms.judge_word(
                    one.seen.word(),
                    &CallRequest {
                        write: false,
                        ..one.asked
                    },
                );
                verdict.push(AskResult::new(unwritten.decision, ask.mode));
                continue;
            }
            let told = patient(one.call.decision, one.asked.longest, one.asked.reserve);
            let mut status = AskResult::new(told, ask.mode);
            if charged {
                status.charged = Some(receipt(
                    one.terms,
                    one.hash,
                    ask.cost,
                    0,
                    &one.call,
                    &one.standing,
                ));
            }
            verdict.push(status);
        }
        self.keep_permits(verdict);
        Some(())
    }
}

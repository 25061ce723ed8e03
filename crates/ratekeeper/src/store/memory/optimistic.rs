//! Optimistic decisions: every key is in the table, its state is one word, no key is asked about
//! twice, and no other thread interferes.

use super::super::{Ask, AskResult, INLINE_ENTRIES, Mode, Verdict};
use super::{MemoryStore, receipt, with_max_wait};
use crate::clock::{Clock, Timestamp, nanos};
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::table::{EntryView, RefundTotals};
use smallvec::SmallVec;

/// An ask as it was read and judged, before it is written.
struct PendingAsk<'a> {
    version: &'a LimitVersion,
    hash: u64,
    entry: EntryView,
    refund_totals: RefundTotals,
    request: CallRequest,
    call: CallResult,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides the common case and writes it to `verdict`; `None` otherwise, and then nothing is
    /// written.
    ///
    /// States are read and judged one by one, and claimed as they were read: if all can be claimed,
    /// all were so at that moment, and what was judged holds.
    pub(super) fn try_decide_optimistic(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        verdict: &mut Verdict,
    ) -> Option<()> {
        let table = &self.inner.table;
        let mut pending: SmallVec<[PendingAsk<'_>; INLINE_ENTRIES]> = SmallVec::new();
        let mut denied = false;
        if asks.len() > INLINE_ENTRIES {
            return None;
        }
        for ask in asks {
            let first_version = &*ask.limit.first_version;
            let hash = table.hash_for_limit(first_version.registered.number, ask.key);
            if !table.owns(first_version)
                || pending
                    .iter()
                    .any(|ask_state| table.is_same_bucket(ask_state.hash, hash))
            {
                return None;
            }
            table.prefetch_refunds(hash);
            let version = table.current(first_version);
            let entry = table
                .try_find(hash, version.id)
                .filter(|_| version.fits_a_word())?;
            let refund_totals = table.refund_totals(hash, entry.slot);
            let max_wait = ask.max_wait.map(nanos);
            let write = ask.mode != Mode::Peek;
            let request = CallRequest {
                now,
                cost: ask.cost,
                max_wait,
                reserve: ask.reserve,
                write,
                is_final: false,
                limit: None,
            };
            let call = version.judge_word(entry.word(), &request);
            if call.needs_rebase {
                return None;
            }
            denied |= ask.mode != Mode::Shadow && call.decision.is_denied();
            pending.push(PendingAsk {
                version,
                hash,
                entry,
                refund_totals,
                request,
                call,
            });
        }
        let mut writes: SmallVec<[(EntryView, u64); INLINE_ENTRIES]> = SmallVec::new();
        if !denied {
            writes.extend(
                pending
                    .iter()
                    .filter_map(|ask_state| Some((ask_state.entry, ask_state.call.after?))),
            );
            if !table.swap_all(&mut writes) {
                return None;
            }
        }
        for (ask, ask_state) in asks.iter().zip(&pending) {
            let charged = ask_state.call.after.is_some();
            if denied && charged {
                // It would have fitted: its decision shows the numbers without the charge.
                let unwritten = ask_state.version.judge_word(
                    ask_state.entry.word(),
                    &CallRequest {
                        write: false,
                        ..ask_state.request
                    },
                );
                verdict.push(AskResult::new(unwritten.decision, ask.mode));
                continue;
            }
            let decision = with_max_wait(
                ask_state.call.decision,
                ask_state.request.max_wait,
                ask_state.request.reserve,
            );
            let mut result = AskResult::new(decision, ask.mode);
            if charged {
                result.charged = Some(receipt(
                    ask_state.version,
                    ask_state.hash,
                    ask.cost,
                    0,
                    &ask_state.call,
                    &ask_state.refund_totals,
                ));
            }
            verdict.push(result);
        }
        self.attach_permits(verdict);
        Some(())
    }
}

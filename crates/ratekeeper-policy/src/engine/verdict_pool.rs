//! Pool of verdict states: one per thread, so that verdicts do not allocate.

use super::permits::PolicyPermit;
use super::query::Query;
use super::reason::Reason;
use super::rules::Rules;
use arc_swap::Guard;
use ratekeeper::{Timestamp, store::Source};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The state of a verdict.
pub(super) struct VerdictState {
    /// `None` only in the pool.
    pub(super) rules: Option<Guard<Arc<Rules>>>,
    pub(super) query: Query,
    /// The verdict of the store; empty until the store has answered. Inline, since it is large to
    /// move.
    pub(super) inner: ratekeeper::Verdict,
    pub(super) has_store_verdict: bool,
    pub(super) reason: Reason,
    /// Whether no enforced limit denies the request.
    pub(super) is_within_limits: bool,
    /// When it was decided.
    pub(super) now: Timestamp,
    /// Permits under adaptive limits.
    pub(super) permits: SmallVec<[PolicyPermit; 2]>,
    /// The policy whose adaptive limit denied the request, as an index into the rules.
    pub(super) rejecting_policy: u32,
}

impl VerdictState {
    pub(super) fn rules(&self) -> &Rules {
        self.rules.as_deref().expect("a verdict has rules")
    }

    /// The verdict of the store, if it was asked.
    pub(super) fn store_verdict(&self) -> Option<&ratekeeper::Verdict> {
        self.has_store_verdict.then_some(&self.inner)
    }

    /// Takes the verdict of the store out, to settle it.
    pub(super) fn take_store_verdict(&mut self) -> Option<ratekeeper::Verdict> {
        let has_verdict = std::mem::take(&mut self.has_store_verdict);
        has_verdict
            .then(|| std::mem::replace(&mut self.inner, ratekeeper::Verdict::new(Source::Memory)))
    }

    /// The rules and the query.
    pub(super) fn rules_and_query(&mut self) -> (&Rules, &mut Query) {
        (
            self.rules.as_deref().expect("a verdict has rules"),
            &mut self.query,
        )
    }
}

/// A verdict state from the pool of this thread. It returns to the pool on drop.
pub(super) struct PooledState(Option<Box<VerdictState>>);

/// Maximum number of states pooled by a thread: about 100 KB.
const MAX_POOLED: usize = 64;

/// Boxed: the state is large to move.
type Spare = Box<VerdictState>;

thread_local!(static POOL: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) });

impl PooledState {
    pub(super) fn take() -> Self {
        // While a thread ends, it has no pool.
        let spare = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
        Self(Some(spare.unwrap_or_else(|| {
            let query = Query::default();
            let reason = Reason::NoPolicy;
            let now = Timestamp::from_unix_nanos(0);
            let inner = ratekeeper::Verdict::new(Source::Memory);
            let permits = SmallVec::new();
            let has_store_verdict = false;
            Box::new(VerdictState {
                rules: None,
                query,
                inner,
                has_store_verdict,
                reason,
                is_within_limits: true,
                now,
                permits,
                rejecting_policy: 0,
            })
        })))
    }
}

impl Drop for PooledState {
    fn drop(&mut self) {
        let Some(mut state) = self.0.take() else {
            return;
        };
        // Permits are released here, whatever becomes of the state.
        state.inner.clear(Source::Memory);
        state.has_store_verdict = false;
        state.release_permits(None);
        state.rules = None;
        state.reason = Reason::NoPolicy;
        state.is_within_limits = true;
        state.query.clear();
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED {
                pool.push(state);
            }
        });
    }
}

impl Deref for PooledState {
    type Target = VerdictState;

    #[inline]
    fn deref(&self) -> &VerdictState {
        self.0.as_deref().expect("the state is there until drop")
    }
}

impl DerefMut for PooledState {
    #[inline]
    fn deref_mut(&mut self) -> &mut VerdictState {
        self.0
            .as_deref_mut()
            .expect("the state is there until drop")
    }
}

//! Where the parts of a verdict are while it lasts.

use super::asking::Asking;
use super::places::Held;
use super::reason::Reason;
use super::rules::Rules;
use arc_swap::Guard;
use ratekeeper::{Timestamp, store::Source};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What there is of a verdict.
pub(super) struct Parts {
    /// None only among the spare ones.
    pub(super) rules: Option<Guard<Arc<Rules>>>,
    pub(super) asking: Asking,
    /// What the store said, if it was asked; else of no asks. Always there: it is large to move.
    pub(super) inner: ratekeeper::Verdict,
    pub(super) is_answered: bool,
    pub(super) reason: Reason,
    /// Whether no limit is against it.
    pub(super) fits: bool,
    /// When it was decided.
    pub(super) now: Timestamp,
    /// Places among those in flight under adaptive limits.
    pub(super) permits: SmallVec<[Held; 2]>,
    /// The policy whose adaptive limit had no room, by its place among the rules.
    pub(super) full: u32,
}

impl Parts {
    pub(super) fn rules(&self) -> &Rules {
        self.rules.as_deref().expect("a verdict has rules")
    }

    /// What the store said, if it was asked.
    pub(super) fn answer(&self) -> Option<&ratekeeper::Verdict> {
        self.is_answered.then_some(&self.inner)
    }

    /// The same, to be settled.
    pub(super) fn take_answer(&mut self) -> Option<ratekeeper::Verdict> {
        let answered = std::mem::take(&mut self.is_answered);
        answered
            .then(|| std::mem::replace(&mut self.inner, ratekeeper::Verdict::new(Source::Memory)))
    }

    /// The rules, and what is asked by them.
    pub(super) fn asking_by(&mut self) -> (&Rules, &mut Asking) {
        (
            self.rules.as_deref().expect("a verdict has rules"),
            &mut self.asking,
        )
    }
}

/// Where the parts of a verdict are. They come from those that earlier verdicts left on this
/// thread, so that none are allocated for each; and they are filled where they are.
pub(super) struct Place(Option<Box<Parts>>);

/// As many are kept by a thread for later: about 100 KB.
const MOST_SPARE: usize = 64;

/// What is large is not moved.
type Spare = Box<Parts>;

thread_local!(static SPARE: RefCell<Vec<Spare>> = const { RefCell::new(Vec::new()) });

impl Place {
    pub(super) fn take() -> Self {
        // A thread that ends has none.
        let spare = SPARE
            .try_with(|spare| spare.borrow_mut().pop())
            .ok()
            .flatten();
        Self(Some(spare.unwrap_or_else(|| {
            let (asking, reason, now) = (
                Asking::default(),
                Reason::NoPolicy,
                Timestamp::from_unix_nanos(0),
            );
            let (inner, permits) = (ratekeeper::Verdict::new(Source::Memory), SmallVec::new());
            let is_answered = false;
            Box::new(Parts {
                rules: None,
                asking,
                inner,
                is_answered,
                reason,
                fits: true,
                now,
                permits,
                full: 0,
            })
        })))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(mut parts) = self.0.take() else {
            return;
        };
        // Permits go back here, whatever becomes of the place.
        parts.inner.clear(Source::Memory);
        parts.is_answered = false;
        parts.free(None);
        parts.rules = None;
        parts.reason = Reason::NoPolicy;
        parts.fits = true;
        parts.asking.clear();
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST_SPARE {
                spare.push(parts);
            }
        });
    }
}

impl Deref for Place {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        self.0.as_deref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Place {
    #[inline]
    fn deref_mut(&mut self) -> &mut Parts {
        self.0
            .as_deref_mut()
            .expect("it is there until it is dropped")
    }
}

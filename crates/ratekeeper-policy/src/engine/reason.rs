//! What a verdict goes back to.

use super::asking::{Asking, Role};
use super::overrides::Override;
use crate::attribute::Attribute;
use ratekeeper::{Mode, Timestamp, adaptive::Class, store::Source};
use std::sync::Arc;

/// What a verdict goes back to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The limits of the policies that apply.
    Limits,
    /// No policy that limits anything applies.
    NoPolicy,
    /// The allow list: whatever the limits say.
    AllowList,
    /// The deny list.
    DenyList {
        /// In the words of the list.
        reason: Option<Box<str>>,
        /// Until when, if it ends.
        until: Option<Timestamp>,
    },
    /// An operator banned the key, or it was turned away too often.
    Ban(Ban),
    /// The request lacks an attribute of the key of a policy with `missing = "deny"`.
    MissingAttribute {
        /// The policy.
        policy: Box<str>,
        /// The attribute.
        attribute: Attribute,
    },
    /// The store does not answer, and the operator chose to let nobody in.
    Closed,
    /// There is too much, and requests of this class are among the least important.
    Shed(Class),
    /// As many requests of an adaptive policy are in flight as are served well.
    AtCapacity,
    /// The same, and as many wait in line as may.
    QueueFull,
    /// It waited in line for a place under an adaptive policy for as long as it may.
    WaitedTooLong,
    /// Its deadline had passed before anything was done for it.
    TooLate,
    /// Limits are switched off.
    Off,
}

/// Why a key is banned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ban {
    /// An operator said so.
    Operator(Arc<Override>),
    /// It was turned away too often.
    Penalty,
}

impl Reason {
    /// Every [name](Self::name).
    pub const NAMES: &'static [&'static str] = &[
        "limits",
        "no_policy",
        "allow_list",
        "deny_list",
        "ban",
        "missing_attribute",
        "closed",
        "shed",
        "at_capacity",
        "queue_full",
        "waited_too_long",
        "too_late",
        "off",
    ];

    /// Its name, as it is told to callers.
    pub const fn name(&self) -> &'static str {
        Self::NAMES[match self {
            Self::Limits => 0,
            Self::NoPolicy => 1,
            Self::AllowList => 2,
            Self::DenyList { .. } => 3,
            Self::Ban(_) => 4,
            Self::MissingAttribute { .. } => 5,
            Self::Closed => 6,
            Self::Shed(_) => 7,
            Self::AtCapacity => 8,
            Self::QueueFull => 9,
            Self::WaitedTooLong => 10,
            Self::TooLate => 11,
            Self::Off => 12,
        }]
    }
}

/// What the answer of a store to these asks goes back to.
pub(super) fn reason_of(asking: &Asking, answer: &ratekeeper::Verdict) -> Reason {
    let denying = || {
        asking
            .asked
            .iter()
            .zip(answer.statuses())
            .filter(|(_, status)| status.decision().is_denied())
    };
    let banned = denying().any(|(asked, _)| asked.role == Role::Ban);
    match answer.source() {
        // Who only watches closes nothing.
        Source::Closed
            if denying().any(|_| true)
                && denying().all(|(asked, _)| asked.mode == Mode::Shadow) =>
        {
            Reason::Limits
        }
        Source::Closed => Reason::Closed,
        Source::Open => Reason::Limits,
        _ if banned => Reason::Ban(Ban::Penalty),
        _ => Reason::Limits,
    }
}

//! The reason of a verdict.

use super::overrides::Override;
use super::query::{Query, Role};
use crate::attribute::Attribute;
use ratekeeper::{Mode, Timestamp, adaptive::Class, store::Source};
use std::sync::Arc;

/// The reason of a verdict.
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
        /// The reason given in the list.
        reason: Option<Box<str>>,
        /// When the entry expires, if it does.
        until: Option<Timestamp>,
    },
    /// The key is banned, by an operator or by a penalty.
    Ban(Ban),
    /// The request lacks an attribute of the key of a policy with `missing = "deny"`.
    MissingAttribute {
        /// The policy.
        policy: Box<str>,
        /// The attribute.
        attribute: Attribute,
    },
    /// The store cannot be reached, and the policy says `on_failure = "closed"`.
    Closed,
    /// The request was shed under overload: its class is among the least important.
    Shed(Class),
    /// The adaptive limit of a policy is reached.
    AtCapacity,
    /// The adaptive limit is reached, and its queue is full.
    QueueFull,
    /// The request waited in the queue of an adaptive limit until its timeout.
    WaitedTooLong,
    /// The deadline of the request had passed before it was decided.
    TooLate,
    /// Limits are disabled.
    Off,
}

/// Why a key is banned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ban {
    /// An operator banned it.
    Operator(Arc<Override>),
    /// It was denied too often.
    Penalty,
}

impl Reason {
    /// Its name in responses to callers.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::NoPolicy => "no_policy",
            Self::AllowList => "allow_list",
            Self::DenyList { .. } => "deny_list",
            Self::Ban(_) => "ban",
            Self::MissingAttribute { .. } => "missing_attribute",
            Self::Closed => "closed",
            Self::Shed(_) => "shed",
            Self::AtCapacity => "at_capacity",
            Self::QueueFull => "queue_full",
            Self::WaitedTooLong => "waited_too_long",
            Self::TooLate => "too_late",
            Self::Off => "off",
        }
    }
}

/// The reason for the answer of the store to a query.
pub(super) fn reason_of(query: &Query, answer: &ratekeeper::Verdict) -> Reason {
    let denying = || {
        query
            .items
            .iter()
            .zip(answer.results())
            .filter(|(_, status)| status.decision().is_denied())
    };
    let banned = denying().any(|(item, _)| item.role == Role::Ban);
    match answer.source() {
        // A shadow policy does not deny, even if the store is closed.
        Source::Closed
            if denying().any(|_| true) && denying().all(|(item, _)| item.mode == Mode::Shadow) =>
        {
            Reason::Limits
        }
        Source::Closed => Reason::Closed,
        Source::Open => Reason::Limits,
        _ if banned => Reason::Ban(Ban::Penalty),
        _ => Reason::Limits,
    }
}

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
    /// The allow list: limits are not checked.
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
    /// The store cannot be reached, and the policy has `on_failure = "closed"`.
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

    /// Its name in responses to callers.
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

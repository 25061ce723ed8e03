//! Verdicts that are settled later, by whoever brings what [`Store::detach`](super::Store::detach)
//! made of them.

use core::fmt;

/// Why what was detached is not settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NotSettled {
    /// It was, before.
    Before,
    /// Its time is over: permits have gone back, charges stay.
    Expired,
    /// What it charged was counted by a process that this one knows nothing of, such as the one
    /// before a restart.
    Elsewhere,
    /// No store of this kind has written it.
    Unreadable,
    /// The store that knows the counts does not answer. It may have settled it all the same: then
    /// the next try is told so.
    Unreachable,
}

impl fmt::Display for NotSettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "it was settled before",
            Self::Expired => "its time is over: permits have gone back, charges stay",
            Self::Elsewhere => {
                "it was charged by a process whose counts are gone or are not shared"
            }
            Self::Unreadable => "it is no receipt of this store",
            Self::Unreachable => "the store does not answer; try again",
        })
    }
}

impl core::error::Error for NotSettled {}

/// Why a verdict is not detached. It was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NotDetached {
    /// More are waiting to be settled than the store keeps.
    TooMany,
    /// The store cannot do it.
    Unable,
}

impl fmt::Display for NotDetached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => {
                "more is reserved and not yet settled than the store keeps; settle sooner, or reserve for a shorter time"
            }
            Self::Unable => "this store settles only in the process that has decided",
        })
    }
}

impl core::error::Error for NotDetached {}

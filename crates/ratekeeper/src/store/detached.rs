//! Verdicts that are settled later, by whoever brings what [`Store::detach`](super::Store::detach)
//! made of them.

use core::fmt;

/// Why what was detached is not settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SettleError {
    /// It was, before.
    AlreadySettled,
    /// Its time is over: permits have gone back, charges stay.
    Expired,
    /// What it charged was counted by a process that this one knows nothing of, such as the one
    /// before a restart.
    UnknownCharge,
    /// No store of this kind has written it.
    InvalidReceipt,
    /// The store that knows the counts does not answer. It may have settled it all the same: then
    /// the next try is told so.
    Unreachable,
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadySettled => "it was settled before",
            Self::Expired => "its time is over: permits have gone back, charges stay",
            Self::UnknownCharge => {
                "it was charged by a process whose counts are gone or are not shared"
            }
            Self::InvalidReceipt => "it is no receipt of this store",
            Self::Unreachable => "the store does not answer; try again",
        })
    }
}

impl core::error::Error for SettleError {}

/// Why a verdict is not detached. It was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DetachError {
    /// More are waiting to be settled than the store keeps.
    TooMany,
    /// The store cannot do it.
    Unable,
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => {
                "more is reserved and not yet settled than the store keeps; settle sooner, or reserve for a shorter time"
            }
            Self::Unable => "this store settles only in the process that has decided",
        })
    }
}

impl core::error::Error for DetachError {}

//! Errors of detached verdicts, which are settled later by the receipt that
//! [`Store::detach`](super::Store::detach) returns.

use core::fmt;

/// Error: a detached verdict was not settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SettleError {
    /// It was already settled.
    AlreadySettled,
    /// Its time is over: its permits were released, its charges stay.
    Expired,
    /// What it charged was counted by another process whose counts are lost or not shared, such as
    /// the process before a restart.
    UnknownCharge,
    /// It was not written by a store of this kind.
    InvalidReceipt,
    /// The store that holds the counts is unreachable. It may have settled the verdict all the
    /// same: then the next attempt returns [`AlreadySettled`](Self::AlreadySettled).
    Unreachable,
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadySettled => "the receipt was already settled",
            Self::Expired => "the receipt has expired: its permits were released, its charges stay",
            Self::UnknownCharge => {
                "the charge was made by a process whose counts are lost or not shared"
            }
            Self::InvalidReceipt => "this is not a receipt of this store",
            Self::Unreachable => "the store is unreachable; try again",
        })
    }
}

impl core::error::Error for SettleError {}

/// Error: a verdict was not detached, but cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DetachError {
    /// The store's limit of verdicts waiting to be settled is reached.
    TooMany,
    /// The store cannot settle later.
    Unable,
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => {
                "too many reservations are not yet settled; settle sooner, or reserve for a shorter time"
            }
            Self::Unable => "this store cannot settle later: it settles only in the process that decided",
        })
    }
}

impl core::error::Error for DetachError {}

//! The auditor against simple reference checks: every interval of whole times, one by one.

mod catches;
mod exact;
mod intervals;
mod plain;

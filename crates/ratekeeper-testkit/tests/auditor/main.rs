//! The auditor against checks so simple that they can be read: every interval of whole µs, one by
//! one.

mod catches;
mod exact;
mod intervals;
mod plain;

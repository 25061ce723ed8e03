//! Adaptive concurrency: permits, partitions and controllers.

mod controllers;
mod partitions;
mod permits;

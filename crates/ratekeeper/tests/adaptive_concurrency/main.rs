//! How many at once, found out: the gate, its partitions, its controllers.

mod controllers;
mod gate;
mod partitions;

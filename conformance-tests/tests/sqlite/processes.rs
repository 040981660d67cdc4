//! Holders and waiters in processes of their own (`taker`) on one file: those of every store, and what can happen to a file.

#[path = "../processes/bounds.rs"]
mod bounds;
#[path = "../processes/chaos.rs"]
mod chaos;
#[path = "../processes/endings.rs"]
mod endings;
mod file;
mod world;

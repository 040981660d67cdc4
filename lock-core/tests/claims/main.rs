//! What lock-core requests of a store, call by call, if a reply is missing or late, or a task or client goes away in
//! between.

mod answers;
mod doubts;
mod endings;
mod grants;
mod pauses;
mod renewals;
mod runs;
mod scripted;
mod sessions;
mod terms;
mod waits;

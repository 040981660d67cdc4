//! What lock-core asks a store for, call by call, where a reply is missing or late, or somebody goes away meanwhile.

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

//! Holders and waiters in processes of their own (`lock-holder`), on a real redis-server: killed, paused, and made to
//! exit.
//!
//! All of them, the server included, share one machine, so the server's record says when a lease ends and the lock
//! holders' lines contain the times of their events, on one clock. Lower bounds are strict; upper bounds are those of
//! the contract plus the lag of the machine, which a lag monitor measures.

#[path = "processes/bounds.rs"]
mod bounds;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "processes/endings.rs"]
mod endings;
#[path = "processes/environment.rs"]
mod environment;
#[path = "processes/late_write.rs"]
mod late_write;
#[path = "redis/stored.rs"]
mod stored;

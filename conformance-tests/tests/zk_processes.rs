//! Holders and waiters in processes of their own (`lock-holder`), on a real ZooKeeper: the cases of every store, and
//! those of a server.

#[path = "processes/bounds.rs"]
mod bounds;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "processes/endings.rs"]
mod endings;
#[path = "zk/environment.rs"]
mod environment;
#[path = "processes/late_write.rs"]
mod late_write;
#[path = "zk/stored.rs"]
mod stored;

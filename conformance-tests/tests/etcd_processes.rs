//! Holders and waiters in processes of their own (`lock-holder`), on a real etcd: the cases of every store, and those
//! of a server.

#[path = "processes/bounds.rs"]
mod bounds;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "processes/endings.rs"]
mod endings;
#[path = "etcd/environment.rs"]
mod environment;
#[path = "processes/late_write.rs"]
mod late_write;
#[path = "etcd/stored.rs"]
mod stored;

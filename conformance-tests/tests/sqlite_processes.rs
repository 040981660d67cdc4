//! Holders and waiters in processes of their own (`lock-holder`) on one SQLite file: the cases of every store, and
//! changes of the file.

#[path = "processes/bounds.rs"]
mod bounds;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "sqlite/damage.rs"]
mod damage;
#[path = "processes/endings.rs"]
mod endings;
#[path = "sqlite/environment.rs"]
mod environment;
#[path = "sqlite/file.rs"]
mod file;
#[path = "sqlite/place.rs"]
mod place;
#[path = "sqlite/stored.rs"]
mod stored;

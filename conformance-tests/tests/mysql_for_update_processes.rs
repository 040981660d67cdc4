//! Holders and waiters in processes of their own (`lock-holder`), on a real mariadbd with `strategy=for-update`: the
//! cases of every store, and those of a server.

#[path = "processes/bounds.rs"]
mod bounds;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "processes/endings.rs"]
mod endings;
#[path = "mysql/environment.rs"]
mod environment;
#[path = "processes/late_write.rs"]
mod late_write;
#[path = "mysql/record_for_update.rs"]
mod record;
#[path = "mysql/set_up.rs"]
mod set_up;
#[path = "mysql/stored.rs"]
mod stored;

use std::time::Duration;

use leasehold_core::backend::TtlScope;

const STRATEGY: environment::Strategy = environment::Strategy {
    settings: "?strategy=for-update",
    ttl_scope: TtlScope::Connection,
    shortest_ttl: Duration::from_secs(1),
    // The next waiter locks the row and raises the token, which is a durable write.
    takeover_slack: Duration::from_millis(50),
    // One for its calls, the one that waits, and those of its keeper for tokens and for places.
    connections_of_a_waiter: 4,
};

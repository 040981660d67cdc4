//! Holders and waiters in processes of their own (`lock-holder`), on a real mariadbd: the cases of every store, and
//! those of a server.

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
#[path = "mysql/record.rs"]
mod record;
#[path = "mysql/set_up.rs"]
mod set_up;
#[path = "mysql/stored.rs"]
mod stored;

use std::time::Duration;

use leasehold_core::backend::TtlScope;

const STRATEGY: environment::Strategy = environment::Strategy {
    settings: "",
    ttl_scope: TtlScope::Lease,
    shortest_ttl: Duration::from_millis(400),
    // A poll and an acquire.
    takeover_slack: Duration::from_millis(250),
    // One for its calls, and that of its keeper, which polls.
    connections_of_a_waiter: 2,
};

//! [Limits of exclusion](crate::backend::Capabilities::limits_of_exclusion) that stores share.

/// For leases that end by the wall clock of a server.
pub const STEP: &str = "the server's wall clock is stepped forward: leases at the store end early (a step back extends \
     them by its length: exclusion holds, but the lock of a dead holder stays blocked for the ttl and the step)";

/// For replicas that a server does not wait for, with [`OnRestart::Trust`](super::OnRestart::Trust).
pub const FAILOVER_TRUSTED: &str =
    "an asynchronous failover promotes a replica that has not seen the last writes (`restart=trust`)";

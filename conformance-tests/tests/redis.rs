//! Leasehold on real Redis servers.

mod redis {
    mod server;
}

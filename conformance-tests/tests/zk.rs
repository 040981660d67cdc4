//! Leasehold on real ZooKeeper servers: the suite on one server, for a user with the least permissions, and then the
//! tests that are specific to ZooKeeper.

mod zk {
    #[path = "../support/mod.rs"]
    mod common;
    mod fixed;
    mod fixture;
    mod forgotten;
    mod in_doubt_requests;
    mod limits;
    mod one_server;
    mod permissions;
    mod queues;
    mod refusals;
    #[path = "../support/refused_later.rs"]
    mod refused_later;
    mod resource_counts;
    mod reused;
    #[path = "../support/servers.rs"]
    mod servers;
    mod sessions;
    mod stored;
    mod support;
    mod tls;
    mod unreachable;

    leasehold_conformance::suite!(one_server::OneServer);
    #[path = "../support/wrong_tls.rs"]
    mod wrong_tls;
}

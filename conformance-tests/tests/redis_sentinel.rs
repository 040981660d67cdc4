//! Leasehold on a primary that three real Sentinels name: the cases that the topology can change, without a failover,
//! and then failovers and failing Sentinels.

mod redis_sentinel {
    #[path = "../support/mod.rs"]
    mod common;
    mod deployment;
    mod failover;
    #[path = "../redis/fixture.rs"]
    mod fixture;
    mod liar;
    mod minority;
    mod named;
    #[path = "../redis/received.rs"]
    mod received;
    mod refused;
    #[path = "../redis/replication.rs"]
    mod replication;
    #[path = "../redis/resource_counts.rs"]
    mod resource_counts;
    #[path = "../redis/stored.rs"]
    mod stored;

    leasehold_conformance::topology_suite!(named::Named);
}

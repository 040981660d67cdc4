//! Leasehold on real nodes of a Redis Cluster: the cases that the topology can change on one node, and then slots that
//! are moved and nodes that fail.

mod redis_cluster {
    #[path = "../support/mod.rs"]
    mod common;
    mod deployment;
    mod failover;
    #[path = "../redis/fixture.rs"]
    mod fixture;
    mod nodes;
    mod one_node;
    #[path = "../redis/received.rs"]
    mod received;
    #[path = "../redis/resource_counts.rs"]
    mod resource_counts;
    mod slots;
    #[path = "../redis/stored.rs"]
    mod stored;
    mod urls;

    leasehold_conformance::topology_suite!(one_node::OneNode);
}

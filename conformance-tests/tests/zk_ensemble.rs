//! Leasehold on real ZooKeeper ensembles of three servers: the cases that the topology can change, and then what
//! happens when one server or the leader fails.

mod zk {
    #[path = "../support/mod.rs"]
    mod common;
    mod fixture;
    mod reachable;
    mod resource_counts;
    mod reused;
    mod server_faults;
    #[path = "../support/servers.rs"]
    mod servers;
    mod stale_reads;
    mod stored;
    mod three_servers;

    leasehold_conformance::topology_suite!(three_servers::ThreeServers);
}

//! Leasehold on real quorums of three Redis servers: the cases that the topology can change, and then what happens when
//! one server fails.

mod redis_quorum {
    #[path = "../support/mod.rs"]
    mod common;
    mod fixture;
    mod minority;
    #[path = "../support/servers.rs"]
    mod servers;
    mod stored;

    leasehold_conformance::topology_suite!(fixture::ThreeServers);
}

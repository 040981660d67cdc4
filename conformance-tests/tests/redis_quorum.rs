//! Leasehold on real quorums of three Redis servers: the cases that the topology can change, and then what happens when
//! one server fails.

mod redis_quorum {
    mod attempts;
    #[path = "../support/mod.rs"]
    mod common;
    mod five;
    mod fixture;
    #[path = "../support/forgetful_path.rs"]
    mod forgetful_path;
    mod forgotten;
    mod group;
    mod leases;
    mod lists;
    mod minority;
    mod operators;
    mod restarts;
    mod scripts;
    #[path = "../support/servers.rs"]
    mod servers;
    mod stored;

    leasehold_conformance::topology_suite!(fixture::ThreeServers);
}

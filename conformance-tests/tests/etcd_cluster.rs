//! Leasehold on real etcd clusters of three members: the cases that the topology can change, and then what happens when
//! one member or the leader fails.

mod etcd {
    #[path = "../support/mod.rs"]
    mod common;
    mod fixture;
    mod member_faults;
    mod resource_counts;
    #[path = "../support/servers.rs"]
    mod servers;
    mod stored;
    mod three_members;

    leasehold_conformance::topology_suite!(three_members::ThreeMembers);
}

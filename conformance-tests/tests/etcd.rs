//! Leasehold on real etcd servers: the suite on one member, for a user with the least permissions, and then the tests
//! that are specific to etcd.

mod etcd {
    mod at_the_server;
    #[path = "../support/mod.rs"]
    mod common;
    mod fixture;
    #[path = "../support/forgetful_path.rs"]
    mod forgetful_path;
    mod one_member;
    mod queues;
    mod refusals;
    #[path = "../support/refused_later.rs"]
    mod refused_later;
    mod resource_counts;
    #[path = "../support/servers.rs"]
    mod servers;
    mod silent_server;
    mod slow_path;
    mod small_transactions;
    mod stored;
    mod support;
    mod tls;

    leasehold_conformance::suite!(one_member::OneMember);
    #[path = "../support/wrong_tls.rs"]
    mod wrong_tls;
}

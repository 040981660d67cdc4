//! Refusals that waiting cannot cure.

use leasehold::ErrorKind;
use leasehold_conformance::harness::FaultProxy;
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSettings};

use super::refused_later::a_refusal_ends_each_wait;

fn start(password: &str, prefix: &str) -> EtcdServer {
    let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
    server.side().enable_users().expect("users");
    let permissions = [(EtcdAccess::ReadWrite, EtcdKeys::with_prefix(prefix))];
    server.side().set_user("locker", password, &permissions).expect("a user");
    server
}

#[test]
fn a_refusal_that_waiting_cannot_cure_ends_a_wait_after_a_reconnect() {
    run(DEADLINE, || async {
        let server = start("pass-word", "leasehold/");
        let queue = || server.side().keys("leasehold/job/").expect("the keys").len();
        let full = start("pass-word", "leasehold/");
        full.side().raise_no_space().expect("an alarm");
        for (other, kind, hint) in [
            (start("other", "leasehold/"), ErrorKind::Auth, "password"),
            (start("pass-word", "other/"), ErrorKind::Auth, "leasehold acl"),
            (full, ErrorKind::Capacity, "NOSPACE"),
            (EtcdSettings::new().start().expect("a server"), ErrorKind::Auth, "knows no users"),
        ] {
            let proxy = FaultProxy::start(server.addr()).expect("a proxy");
            let connect = async |addr| {
                leasehold::connect(&format!("etcd://locker:pass-word@{addr}/")).await.expect("it serves the user")
            };
            let (ann, bob) = (connect(server.addr()).await, connect(proxy.addr()).await);
            a_refusal_ends_each_wait((&ann, &bob), || queue() == 2, (&proxy, other.addr()), (kind, hint)).await;
        }
    });
}

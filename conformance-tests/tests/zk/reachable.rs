//! Clients that reach one server of three only.

use leasehold_conformance::{DEADLINE, run};
use leasehold_core::LockClient;
use leasehold_test_servers::{ZooKeeperEnsemble, ZooKeeperSettings};

use super::common::{SOON, hold};
use super::stale_reads::close;

/// A session skips servers that do not serve it, and a new client finds the only one that does with its first attempt.
#[test]
fn a_client_finds_the_only_server_that_it_reaches() {
    run(DEADLINE * 2, || async {
        let ensemble = ZooKeeperSettings::new().start_ensemble().unwrap_or_else(|error| panic!("{error}"));
        let ann = client_of(&ensemble);
        let guard = hold(&ann, "kept").await;
        // Against the order in which a client tries them.
        for only in [0, 2, 1] {
            ensemble.proxy(only).heal();
            (0..ZooKeeperEnsemble::SERVERS)
                .filter(|server| *server != only)
                .for_each(|server| close(&ensemble, server));
            hold(&ann, "moved").await.release().await.expect("a release");
            // Each client may begin with any server.
            for _ in 0..3 {
                let bob = client_of(&ensemble);
                let attempt = bob.lock("first attempt").try_acquire().await.expect("one server serves");
                attempt.expect("the lock is free").release().await.expect("a release");
            }
        }
        assert!(guard.is_held());
    });
}

/// A client whose calls have time on a busy machine.
fn client_of(ensemble: &ZooKeeperEnsemble) -> LockClient {
    let hosts: Vec<_> = ensemble.proxied_addrs().iter().map(ToString::to_string).collect();
    let builder = leasehold::connect_builder_lazy(&format!("zk://{}/?timeout=10s&tick=200ms", hosts.join(",")));
    builder.expect("a URL").ttl(SOON * 3).wait(SOON).build().expect("a client")
}

//! A pause in which something on the path, such as a NAT gateway, forgot the connections of a client: nothing arrives on them any more, and
//! nobody says so.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_test_servers::MySqlSettings;

use super::set_up::set_up;
use super::strategy::MySqlFixture;
use super::support::{Stopwatch, own_servers};

/// The bound of a call, and the work around it.
const BOUND: Duration = Duration::from_millis(1300);

/// After that each idle connection is tested.
const PAUSE: Duration = Duration::from_secs(6);

#[test]
fn connections_that_the_path_forgot_cost_a_moment_and_no_call() {
    own_servers(|| async {
        let server = MySqlSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        set_up(&server);
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let (addr, settings) = (proxy.addr(), MySqlFixture::SETTINGS);
        let client = leasehold::connect(&format!("mysql://locker:pass-word@{addr}/locks?tls=off{settings}")).await;
        let lock = client.expect("no fault").lock("x");
        lock.try_acquire().await.expect("no fault").expect("it is free").release().await.expect("no fault");
        for _ in 0..2 {
            tokio::time::sleep(PAUSE).await;
            proxy.apply_to(Fault::DropTraffic, Reach::Open);
            let stopwatch = Stopwatch::start();
            let guard = lock.try_acquire().await.expect("a new connection").expect("it is free");
            stopwatch.within(BOUND, "one slow call");
            let stopwatch = Stopwatch::start();
            guard.release().await.expect("a release");
            stopwatch.within(BOUND / 4, "the next call is not slow");
        }
    });
}

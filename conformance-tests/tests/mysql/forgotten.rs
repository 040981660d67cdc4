//! Connections that the path forgot during a pause.

use leasehold_conformance::harness::FaultProxy;
use leasehold_test_servers::MySqlSettings;

use super::forgetful_path::costs_a_moment_and_no_call;
use super::set_up::set_up;
use super::strategy::MySqlFixture;
use super::support::own_servers;

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
            costs_a_moment_and_no_call(std::slice::from_ref(&proxy), &lock).await;
        }
    });
}

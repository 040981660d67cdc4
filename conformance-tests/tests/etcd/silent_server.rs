//! A server that accepts connections and never replies.

use std::net::TcpListener;
use std::time::Duration;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{DEADLINE, run};
use leasehold_core::backend::LockBackend as _;
use leasehold_core::{ErrorKind, FencingToken, LockClient, LockName};
use leasehold_test_servers::EtcdSettings;

use super::common::Stopwatch;
use super::forgetful_path::{PAUSE, costs_a_moment_and_no_call};

/// The default bound of a call, and the work around it.
const BOUND: Duration = Duration::from_millis(1300);

async fn administer(backend: &EtcdBackend) {
    let (name, admin) = (LockName::new("x").expect("a name"), backend.admin().expect("supported"));

    let stopwatch = Stopwatch::start();
    let error = admin.inspect(&name).await.expect_err("no reply");
    stopwatch.within(BOUND, "inspect");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

    let stopwatch = Stopwatch::start();
    let error = admin.list("", 10).await.expect_err("no reply");
    stopwatch.within(BOUND, "list");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");

    let stopwatch = Stopwatch::start();
    admin.break_lock(&name, FencingToken::new(7)).await.expect_err("no reply");
    stopwatch.within(BOUND, "break");

    let stopwatch = Stopwatch::start();
    let checks = admin.examine().await.expect("checks");
    stopwatch.within(BOUND, "examine");
    assert!(checks.len() > 1, "{checks:?}");
}

#[test]
fn each_call_of_an_operator_has_one_bound() {
    run(DEADLINE, || async {
        // A server that has never replied.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("etcd://{}/", silent.local_addr().expect("an address"));
        administer(&EtcdBackend::connect_lazy(&url).expect("a backend")).await;

        // A server that has replied before.
        let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let backend = EtcdBackend::connect(&format!("etcd://{}/", proxy.addr())).await.expect("a backend");
        proxy.apply(Fault::DropTraffic);
        administer(&backend).await;
    });
}

/// A pause in which the path forgot the connections of a client.
#[test]
fn connections_that_the_path_forgot_cost_a_moment_and_no_call() {
    run(DEADLINE, || async {
        let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let backend = EtcdBackend::connect(&format!("etcd://{}/", proxy.addr())).await.expect("a backend");
        let client = LockClient::new(backend);
        let lock = client.lock("x");
        lock.try_acquire().await.expect("no fault").expect("it is free").release().await.expect("a release");
        for _ in 0..2 {
            costs_a_moment_and_no_call(std::slice::from_ref(&proxy), &lock).await;
        }
        // Meanwhile the connection of the keep-alives is in use.
        let guard = lock.try_acquire().await.expect("no fault").expect("it is free");
        tokio::time::sleep(PAUSE).await;
        proxy.apply_to(Fault::DropTraffic, Reach::Open);
        guard.release().await.expect("a new connection");
    });
}

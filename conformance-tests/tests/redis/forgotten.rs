//! A pause in which something on the path, such as a NAT gateway, forgot the connections of a client: nothing arrives on them any more, and
//! nobody says so.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::RedisSettings;
use tokio::task::JoinSet;

use super::support::Stopwatch;

/// The bound of a call, and the work around it.
const BOUND: Duration = Duration::from_millis(1300);

const PAUSE: Duration = Duration::from_secs(6);

#[test]
fn connections_that_the_path_forgot_cost_a_moment_and_no_call() {
    run(DEADLINE, || async {
        let server = RedisSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let client = leasehold::connect(&format!("redis://{}", proxy.addr())).await.expect("no fault");
        let lock = client.lock("x");
        // After a crowd, the next request waits in the queue of the connection.
        for crowd in [1, 200] {
            let mut calls = JoinSet::new();
            for index in 0..crowd {
                let lock = client.lock(format!("crowd {index}"));
                calls.spawn(async move { lock.acquire().await.expect("no fault").release().await.expect("no fault") });
            }
            calls.join_all().await;
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

//! Connections that the path forgot during a pause.

use leasehold_conformance::harness::FaultProxy;
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::RedisSettings;
use tokio::task::JoinSet;

use super::forgetful_path::costs_a_moment_and_no_call;

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
            costs_a_moment_and_no_call(std::slice::from_ref(&proxy), &lock).await;
        }
    });
}

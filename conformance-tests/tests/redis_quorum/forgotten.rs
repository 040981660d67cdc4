//! Connections that the path forgot during a pause, to one server or to all of them.

use super::common::SOON;
use super::forgetful_path::costs_a_moment_and_no_call;
use super::group::case;

#[test]
fn connections_that_the_path_forgot_cost_a_moment_and_no_call() {
    case(3, async |group| {
        let client = group.client(SOON, "").await;
        let lock = client.lock("x");
        for forgotten in [1, 3, 3] {
            lock.try_acquire().await.expect("no fault").expect("it is free").release().await.expect("no fault");
            costs_a_moment_and_no_call(&group.proxies[..forgotten], &lock).await;
        }
    });
}

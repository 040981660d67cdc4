//! A pause in which something on the path, such as a NAT gateway, forgot the connections of a client: nothing arrives
//! on them any more, and neither side gets a notice.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_core::Lock;

use super::common::Stopwatch;

/// A connection that was idle for this long is tested before its next use.
pub(super) const PAUSE: Duration = Duration::from_secs(6);

/// The default bound of a call, and the work around it.
const BOUND: Duration = Duration::from_millis(1300);

/// After such a pause one call is slow, and none fails. The connections through these proxies are forgotten.
pub(super) async fn costs_a_moment_and_no_call(proxies: &[FaultProxy], lock: &Lock) {
    tokio::time::sleep(PAUSE).await;
    proxies.iter().for_each(|proxy| proxy.apply_to(Fault::DropTraffic, Reach::Open));
    let stopwatch = Stopwatch::start();
    let guard = lock.try_acquire().await.expect("a new connection").expect("it is free");
    stopwatch.within(BOUND, "one slow call");
    let stopwatch = Stopwatch::start();
    guard.release().await.expect("a release");
    stopwatch.within(BOUND / 4, "the next call is not slow");
}

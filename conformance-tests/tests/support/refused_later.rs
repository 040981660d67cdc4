//! A server that refuses a client only when it connects again.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::{ErrorKind, LockClient};

use super::common::{eventually, hold};

/// Far longer than a refused acquire may take.
const WAIT: Duration = Duration::from_secs(600);

/// A waiter may learn of it by its next poll only.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Another server takes the place of the one behind the proxy, and refuses `bob`, who waits for a lock of `ann`. That
/// ends his wait and the next one with an error that says what to change.
pub(super) async fn a_refusal_ends_each_wait(
    (ann, bob): (&LockClient, &LockClient),
    waits: impl Fn() -> bool,
    (proxy, other): (&FaultProxy, SocketAddr),
    (kind, hint): (ErrorKind, &str),
) {
    let guard = hold(ann, "job").await;
    let lock = bob.lock("job").wait(WAIT);
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    eventually("bob waits at the server", waits).await;
    assert!(!waiting.is_finished());
    proxy.redirect(other);
    proxy.apply(Fault::Disconnect);
    let ended = tokio::time::timeout(AT_ONCE, waiting).await.unwrap_or_else(|_| panic!("{hint}: the wait goes on"));
    let next = tokio::time::timeout(AT_ONCE, lock.acquire()).await.unwrap_or_else(|_| panic!("{hint}: it waits"));
    for ended in [ended.expect("no panic"), next] {
        let error = ended.err().unwrap_or_else(|| panic!("{hint}: it is not refused"));
        assert_eq!(error.kind(), kind, "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(hint) && !text.contains("pass-word"), "no {hint:?}, or a password, in {text}");
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

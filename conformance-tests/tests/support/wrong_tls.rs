//! TLS on which the URL and the server do not agree.

use std::time::Duration;

use leasehold_core::ErrorKind;

/// Far longer than the acquire may take.
const WAIT: Duration = Duration::from_secs(600);

/// A server that was just started may need long for its first handshakes.
const AT_ONCE: Duration = Duration::from_secs(30);

/// An acquire that waits ends at once, with this kind of error and this advice.
pub(super) async fn ends_a_wait(url: &str, kind: ErrorKind, advice: &str) {
    let client = leasehold::connect_lazy(url).unwrap_or_else(|error| panic!("{url}: {error:?}"));
    let lock = client.lock("job").wait(WAIT);
    let ended = tokio::time::timeout(AT_ONCE, lock.acquire()).await.unwrap_or_else(|_| panic!("{url}: it waits"));
    let error = ended.err().unwrap_or_else(|| panic!("{url}: it is not refused"));
    assert_eq!(error.kind(), kind, "{url}: {error:?}");
    assert!(error.to_string().contains(advice), "{url}: no {advice:?} in {error:?}");
}

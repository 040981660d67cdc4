//! What the server keeps about withdrawn claims and about the ttls in use. It is read at the server, because the
//! library would report the same without it.

use std::time::Duration;

use leasehold_conformance::{Direct, Fixture, Route};
use leasehold_core::backend::{Delivery, WITHDRAWN_TTL};
use leasehold_core::{ErrorKind, LockName};

use super::stored::{Stored, number};
use super::strategy::MySqlFixture;
use super::support::{case, client, hold};

const TTL: Duration = Duration::from_secs(30);

/// A client that has released a lock acquires it by another statement.
#[test]
fn a_withdrawn_claim_does_not_get_a_lock_that_its_client_has_released() {
    case(async |fixture| {
        let ann = Direct::new(&fixture, Route::Clear).await;
        let name = LockName::new("released before").expect("a name");
        let (holder, late) = (ann.claim(&name), ann.claim(&name));
        ann.granted(&holder, TTL).await;
        ann.release(&holder, Delivery::Confirmed).await.expect("a release");
        ann.release(&late, Delivery::InDoubt).await.expect("a withdrawal");
        let refused = ann.acquire(&late, TTL).await.expect_err("it was withdrawn");
        assert_eq!(refused.kind(), ErrorKind::Lost);
        assert_eq!(fixture.record(&name).await.lease(), None);
    });
}

/// A request may be late by much more than a second.
#[test]
fn the_server_remembers_a_withdrawn_claim() {
    case(async |fixture| {
        let ann = Direct::new(&fixture, Route::Clear).await;
        let claim = ann.claim(&LockName::new("withdrawn").expect("a name"));
        // The first withdrawal makes the row, the second one changes it.
        for _ in 0..2 {
            ann.release(&claim, Delivery::InDoubt).await.expect("a withdrawal");
            let text = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), withdrawn_until) FROM leasehold_locks \
                        WHERE name = 'withdrawn'";
            let left: u64 = number(&Stored(&*fixture.server()).query(text)[0], 0);
            // A busy machine may take some seconds to read it.
            assert!(left > WITHDRAWN_TTL.as_secs() / 2, "{left} s of {WITHDRAWN_TTL:?}");
        }
    });
}

/// Otherwise a client that comes after a failover waits for too short a time.
#[test]
fn the_server_has_a_longer_ttl_before_its_first_lease() {
    case(async |fixture: MySqlFixture| {
        let ann = client(&fixture, Duration::from_secs(4)).await;
        let _first = hold(&ann, "first").await;
        let ttl = Duration::from_secs(900);
        let _longer = ann.lock("longer").ttl(ttl).acquire().await.expect("a lock");
        let rows = Stored(&*fixture.server()).query("SELECT holder FROM leasehold_locks WHERE name = ''");
        let key = String::from_utf8_lossy(rows[0][0].as_deref().unwrap_or_default()).into_owned();
        let ttls = key.split(' ').filter_map(|entry| entry.split_once(':')?.0.parse::<u128>().ok());
        assert!(ttls.max().unwrap_or_default() >= ttl.as_millis(), "{key}");
    });
}

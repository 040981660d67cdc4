//! A key of another program under the name of a lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::{Direct, Route};
use leasehold_core::backend::{Delivery, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockName};
use tokio::task::JoinSet;

use super::fixture::Setup as _;
use super::setups::Plain;
use super::stored::Stored;
use super::support::{Redis, case};

const TTL: Duration = Duration::from_secs(10);

/// Replaces the records of these locks by lists.
fn replace(fixture: &Redis, names: &[LockName]) {
    let server = fixture.server();
    let stored = Stored::new(&server, Plain::PREFIX);
    for name in names {
        let key = stored.key(name);
        stored.query(&["DEL", &key]);
        stored.query(&["RPUSH", &key, "foreign"]);
    }
}

/// For one lock, and for several at once: their requests share a call, which reads the records in another way.
#[test]
fn a_key_of_another_type_is_unsupported_for_every_request() {
    case(async |fixture| {
        for count in [1, 3] {
            let ann = Arc::new(Direct::warm(&fixture, Route::Clear).await);
            let name = |nth| LockName::new(format!("foreign {nth} of {count}")).expect("a name");
            let names: Vec<_> = (0..count).map(name).collect();
            let (mut renewals, mut calls) = (Vec::new(), JoinSet::new());
            for name in &names {
                let claim = ann.claim(name);
                let grant = ann.granted(&claim, TTL).await;
                renewals.push(RenewRequest::new(claim, grant.confirmation.place, TTL));
            }
            replace(&fixture, &names);
            for reply in ann.renew_all(&renewals).await {
                let RenewReply::Unknown(error) = reply else { panic!("a foreign key was renewed: {reply:?}") };
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            }
            for renewal in renewals {
                let ann = ann.clone();
                calls.spawn(async move {
                    let acquired = ann.acquire(&renewal.claim, TTL).await.map(drop);
                    let released = ann.release(&renewal.claim, Delivery::Confirmed).await.map(drop);
                    [acquired, released].map(|reply| reply.expect_err("it is a foreign key").kind())
                });
            }
            assert_eq!(calls.join_all().await, vec![[ErrorKind::Unsupported; 2]; count]);
        }
    });
}

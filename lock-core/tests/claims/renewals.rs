//! Renewals that go out together.

use leasehold_core::backend::{RenewReply, RenewRequest};
use leasehold_core::{LockClient, LockGuard, LossReason};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, MS, Store, TTL, scripted, unknown};

const NAMES: [&str; 3] = ["ann", "bob", "cat"];

/// Three leases that are due together.
async fn three(client: &LockClient, store: &mut Store) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for (place, name) in (1..).zip(NAMES) {
        let lock = client.lock(name);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        store.grants(place, place).await;
        guards.push(acquire.await.unwrap().unwrap());
    }
    guards
}

async fn batch(store: &mut Store) -> [(RenewRequest, oneshot::Sender<RenewReply>); 3] {
    let first = store.renew().await;
    let mut next = async || timeout(AT_ONCE, store.renew()).await.expect("the others go along");
    [first, next().await, next().await]
}

fn held(guards: &[LockGuard]) -> Vec<bool> {
    guards.iter().map(LockGuard::is_held).collect()
}

/// Each reply of a call counts on its own, as soon as it arrives. A loss, an error or silence about one lease does not
/// affect the others.
#[tokio::test(start_paused = true)]
async fn one_bad_lease_of_a_batch_harms_no_other() {
    let (client, mut store) = scripted();
    let guards = three(&client, &mut store).await;
    let [(_, _silent), (_, bob), (cat, answer)] = batch(&mut store).await;
    bob.send(RenewReply::Lost).map_err(drop).unwrap();
    answer.send(RenewReply::Renewed(store.confirms(cat.place.get()))).map_err(drop).unwrap();
    sleep(MS).await;
    assert!(guards[2].validity() > TTL * 85 / 100, "{:?}", guards[2].validity());
    assert_eq!(held(&guards), [true, false, true]);
    let (lease, answer) = timeout(TTL / 3, store.renew()).await.expect("the silent one is asked again");
    assert_eq!(lease.claim.name().as_str(), "ann");
    answer.send(RenewReply::Unknown(unknown())).map_err(drop).unwrap();
    sleep(MS).await;
    assert_eq!(held(&guards), [true, false, true]);
}

/// After a panic, each open request of the batch is sent once more, alone, so that the other leases are renewed.
#[tokio::test(start_paused = true)]
async fn one_poisoned_lease_of_a_batch_harms_no_other() {
    let (client, mut store) = scripted();
    let guards = three(&client, &mut store).await;
    store.poison(guards[1].name());
    let begun = Instant::now();
    for name in ["ann", "cat"] {
        let (lease, answer) = timeout(TTL / 3 + AT_ONCE, store.renew()).await.expect("it is asked again at once");
        assert_eq!(lease.claim.name().as_str(), name);
        answer.send(RenewReply::Renewed(store.confirms(lease.place.get()))).map_err(drop).unwrap();
    }
    sleep(MS).await;
    assert!(begun.elapsed() < TTL / 3 + AT_ONCE * 2, "after {:?}", begun.elapsed());
    assert_eq!((client.stats().renewed, client.stats().renewal_errors), (2, 1));
    while begun.elapsed() < TTL * 2 {
        if let Ok((lease, answer)) = timeout(MS, store.renew()).await {
            assert_ne!(lease.claim.name(), guards[1].name());
            answer.send(RenewReply::Renewed(store.confirms(lease.place.get()))).map_err(drop).unwrap();
        }
    }
    assert_eq!(held(&guards), [true, false, true]);
    assert_eq!(guards[1].lost().await.reason, LossReason::Expired);
}

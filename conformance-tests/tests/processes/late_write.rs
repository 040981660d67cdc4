//! A holder is paused and writes after it resumes: the store itself refuses the late write.

use leasehold_conformance::harness::{HolderEvent, LockHolder};
use leasehold_conformance::history::check;

use super::chaos::holds;
use super::environment::{Environment, SOON, StoreUnderTest as _};

/// Waits for the result of a write: where it is, or the kind of the error.
fn written(lock_holder: &mut LockHolder) -> Result<String, String> {
    lock_holder
        .next(SOON, |line| match &line.event {
            HolderEvent::Wrote { key, .. } => Some(Ok(key.clone())),
            HolderEvent::Failed { doing, kind, .. } if doing == "write" => Some(Err(kind.clone())),
            _ => None,
        })
        .unwrap()
}

#[test]
fn the_late_write_of_a_paused_holder_is_refused_by_the_server() {
    let environment = Environment::new();
    let (mut first, low) = environment.holder(&["--stay"]);
    let mut second = environment.waiter(&["--stay"]);
    first.send("write in time").unwrap();
    let key = written(&mut first).expect("the lease is current");

    first.process().pause().unwrap();
    let (_, high) = second.acquired(SOON).unwrap();
    assert!(high > low);
    // This command waits until the holder resumes. Only the store checks it.
    first.send("write too late").unwrap();
    first.process().resume().unwrap();
    assert_eq!(written(&mut first), Err("Lost".to_owned()), "a late write was accepted");

    // The write of the second holder is accepted. Later writes of the first one are still refused.
    second.send("write of the second").unwrap();
    assert_eq!(written(&mut second).as_ref(), Ok(&key));
    first.send("write still too late").unwrap();
    assert_eq!(written(&mut first), Err("Lost".to_owned()));

    // The release of the lock does not give it back to the first holder.
    second.send("release").unwrap();
    second.next(SOON, |line| matches!(line.event, HolderEvent::Released { .. }).then_some(())).unwrap();
    first.send("write without a holder").unwrap();
    assert_eq!(written(&mut first), Err("Lost".to_owned()));

    assert_eq!(environment.accepted(&key), [format!("{low} in time"), format!("{high} of the second")]);
    for lock_holder in [&mut first, &mut second] {
        lock_holder.send("exit").unwrap();
        lock_holder.wait(SOON).unwrap();
    }
    check(&holds(&[first.events(), second.events()].concat())).unwrap();
}

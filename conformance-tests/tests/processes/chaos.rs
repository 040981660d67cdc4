//! Several processes contend for one lock: no increment is lost, and no two hold at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_conformance::harness::{HolderEvent, HolderLine, LockHolder, folder};
use leasehold_conformance::history::{Hold, check};
use leasehold_core::FencingToken;

use super::environment::{Environment, SOON, StoreUnderTest as _, name};

/// The holds in the events of the lock holders. A hold of a killed process ends with its last event, and a hold that
/// expired during a pause with the last event before the pause.
pub(crate) fn holds(events: &[HolderLine]) -> Vec<Hold> {
    let mut holds = Vec::new();
    let mut open: BTreeMap<u32, Hold> = BTreeMap::new();
    for line in events {
        let at = Duration::from_micros(line.at_us);
        let sees_an_end = matches!(line.event, HolderEvent::Lost { .. } | HolderEvent::Failed { .. });
        if let Some(hold) = open.get_mut(&line.pid).filter(|_| !sees_an_end) {
            hold.until = match line.event {
                // A process that stands still after its write reports it when the lease may have ended.
                HolderEvent::Counted { checked_us, .. } => Duration::from_micros(checked_us),
                _ => at,
            };
        }
        match line.event {
            HolderEvent::Acquired { token, .. } => {
                let hold = Hold { lock: name(), token: FencingToken::new(token), from: at, until: at };
                holds.extend(open.insert(line.pid, hold));
            }
            HolderEvent::Released { called_us, .. } => {
                holds.extend(
                    open.remove(&line.pid).map(|hold| Hold { until: Duration::from_micros(called_us), ..hold }),
                );
            }
            HolderEvent::Lost { .. } => holds.extend(open.remove(&line.pid)),
            _ => {}
        }
    }
    holds.extend(open.into_values());
    holds
}

/// The values of the counter, in order.
fn counted(events: &[HolderLine]) -> Vec<u64> {
    let number = |line: &HolderLine| match line.event {
        HolderEvent::Counted { number, .. } => Some(number),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn processes_that_are_killed_at_work_never_overlap() {
    let environment = Environment::new();
    let folder = folder("leasehold-counter-").unwrap();
    let file = folder.path().join("counter");
    let ttl = format!("{}ms", environment.shortest_ttl().as_millis());
    let arguments = ["--count", "1000000", "--counter", file.to_str().unwrap(), "--work", "2ms", "--ttl", &ttl];
    let mut lock_holders: Vec<LockHolder> = (0..4).map(|_| environment.lock_holder(&arguments)).collect();
    let mut events = Vec::new();
    let begin = Instant::now();
    let (mut kills, mut steps) = (0, 0);
    // Continues until there was enough work between the kills, however slow the machine is.
    while kills < 10 || steps < 100 {
        assert!(begin.elapsed() < Duration::from_secs(120), "only {steps} steps with {kills} kills");
        std::thread::sleep(environment.kill_pause());
        let lock_holder = &mut lock_holders[kills % 4];
        lock_holder.process().kill().unwrap();
        lock_holder.wait(SOON).unwrap();
        events.extend_from_slice(lock_holder.events());
        lock_holders[kills % 4] = environment.lock_holder(&arguments);
        kills += 1;
        steps = counted(&events).len();
    }
    for lock_holder in &mut lock_holders {
        lock_holder.process().kill().unwrap();
        lock_holder.wait(SOON).unwrap();
        events.extend_from_slice(lock_holder.events());
    }
    let mut numbers = counted(&events);
    numbers.sort_unstable();
    let steps = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), steps, "a value was counted twice");
    check(&holds(&events)).unwrap();
}

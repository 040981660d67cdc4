//! Users: tasks that acquire, hold, release, drop and cancel, and check what the client reports to them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Clock, OwnerToken, Stamp};
use leasehold_core::{HolderId, LockGuard, LockName, LossReason};
use tokio::time::{Instant, sleep, timeout};

use super::oracle::{Rule, id};
use super::process::Process;
use super::wire::QUIET_LATENCY;
use super::{Machine, RATES, Sabotage, World};

/// Timers have a resolution of one millisecond.
const TIMER: Duration = Duration::from_millis(2);

/// How long after the end of a lease the loss is reported at the latest.
const TELL: Duration = Duration::from_millis(5 + 2);

/// What a call may take beyond its bound.
const SLACK: Duration = Duration::from_millis(10);

/// Acquires and releases locks until `end`.
pub(super) async fn live(world: Arc<World>, machine: Arc<Machine>, end: Instant) {
    let mut holder = HolderId::new();
    while Instant::now() < end {
        machine.process.awake().await;
        let (idle, action, name, wait, hold, cancel) = {
            let mut chance = world.chance();
            let ttl = world.ttl.as_millis() as u64;
            let name = chance.below(world.names.len());
            let cancel = chance.permille(150).then(|| chance.spread(1, ttl));
            (
                chance.spread(1, ttl),
                chance.below(20),
                name,
                chance.spread(1, ttl * 3),
                chance.spread(1, ttl * 2),
                cancel,
            )
        };
        sleep(idle).await;
        machine.process.awake().await;
        let name = &world.names[name];
        let lock = machine.client().lock(name.as_str());
        let longer = world.sabotage == Some(Sabotage::AcquiresTakeLonger);
        let lock = lock.wait(if longer { wait + Duration::from_secs(1) } else { wait });
        let lock = match action {
            0 | 1 => lock.without_renewal(),
            2 | 3 => lock.max_hold(hold / 2 + world.ttl / 8),
            4 => lock.min_hold(hold / 2),
            5 | 6 => lock.holder(holder),
            _ => lock,
        };
        let begun = Instant::now();
        let acquired = async {
            match action {
                7..=9 => lock.try_acquire().await,
                _ => lock.acquire().await.map(Some),
            }
        };
        let acquired = match cancel {
            Some(after) => timeout(after, acquired).await,
            None => Ok(acquired.await),
        };
        let bound = if let 7..=9 = action { call_bound(&machine) } else { wait };
        check_bound(&world, "acquire", begun, bound);
        machine.process.awake().await;
        if let Ok(Ok(Some(guard))) = acquired {
            let shares = matches!(action, 5 | 6);
            let guard = Arc::new(guard);
            world.oracle.granted(&guard, &machine.process, shares);
            if shares && world.chance().permille(500) {
                // A second guard of the lease ends before or after the first one.
                if let Ok(Ok(second)) = timeout(hold, lock.acquire()).await {
                    machine.process.awake().await;
                    let second = Arc::new(second);
                    world.oracle.granted(&second, &machine.process, true);
                    drop(second);
                }
            }
            hold_for(&world, &machine, &guard, hold).await;
            end_it(&world, &machine, guard).await;
        }
        // Only one user uses a holder id at a time, and not for ever.
        if world.chance().permille(100) {
            holder = HolderId::new();
        }
    }
}

fn call_bound(machine: &Machine) -> Duration {
    machine.client().capabilities().call_bound * 5 / 4
}

fn check_bound(world: &World, what: &str, begun: Instant, bound: Duration) {
    let took = begun.elapsed();
    world.oracle.check(took <= bound + SLACK, Rule::Bounded, || format!("{what} took {took:?}, not {bound:?}"));
}

/// Holds a guard for a time or until the loss is reported, and checks that the loss is reported when it must be, and
/// only then.
async fn hold_for(world: &Arc<World>, machine: &Machine, guard: &LockGuard, length: Duration) {
    let (process, oracle) = (&machine.process, &world.oracle);
    let owner = *guard.lease_ref().claim.owner();
    let end = Instant::now() + length;
    // The oracle must not check in place of `lost()`, which is polled again only if the keeper has something to report.
    let mut lost = pin!(guard.lost());
    loop {
        let known = KnownValidity::of(world, process, guard, &owner);
        let next = (end.saturating_duration_since(Instant::now())).min(world.chance().spread(40, 20_000));
        // Not exactly when the validity ends: a check at that moment would hide a missing report.
        let look = if known.ends_within(process, next + TIMER * 2) {
            process.sleep_time(known.valid_until) + TELL
        } else {
            next
        };
        let mut told = timeout(look, lost.as_mut()).await;
        // After a pause, the keeper has its usual time for the report.
        while told.is_err() && !process.runs_since(TELL) {
            process.awake().await;
            told = timeout(TELL, lost.as_mut()).await;
        }
        process.awake().await;
        match told {
            Ok(loss) => {
                oracle.note("told", id(&owner), loss.reason as u64);
                known.check_reported(world, process, guard, loss.reason);
                return;
            }
            Err(_) => known.check_unreported(world, process, &owner),
        }
        oracle.look(guard.name());
        if Instant::now() >= end {
            return;
        }
    }
}

/// What a holder knew about its validity at its last check.
struct KnownValidity {
    looked: Duration,
    valid_until: Stamp,
    confirmations: u64,
}

impl KnownValidity {
    fn of(world: &World, process: &Process, guard: &LockGuard, owner: &OwnerToken) -> Self {
        let confirmations = world.oracle.confirmations(owner);
        Self { looked: world.oracle.now(), valid_until: process.now().plus(guard.validity()), confirmations }
    }

    fn ends_within(&self, process: &Process, time: Duration) -> bool {
        process.sleep_time(self.valid_until) <= time + Duration::from_millis(5)
    }

    fn check_reported(&self, world: &World, process: &Process, guard: &LockGuard, reason: LossReason) {
        let (oracle, now) = (&world.oracle, process.now());
        let token = guard.fencing_token();
        oracle.check(!guard.is_held(), Rule::ToldRightly, || format!("token {token} is lost and held"));
        match reason {
            LossReason::Expired | LossReason::MaxHold => {
                oracle.check(now >= self.valid_until, Rule::ToldRightly, || {
                    format!("token {token} is said to have expired at {now:?}, valid until {:?}", self.valid_until)
                });
            }
            LossReason::Gone => {
                let kept = world
                    .store
                    .inspect(guard.name())
                    .and_then(|seen| seen.holders.into_iter().next())
                    .map(|lease| lease.token);
                oracle.check(kept != Some(token), Rule::ToldRightly, || {
                    format!("token {token} is said to be gone, and the store has it")
                });
            }
            _ => {}
        }
    }

    fn check_unreported(&self, world: &World, process: &Process, owner: &OwnerToken) {
        let (oracle, now) = (&world.oracle, process.now());
        let late = now.since(self.valid_until);
        // A confirmation may have moved the end, and a sleep that began at another rate of the clock ends at another
        // time.
        let moved = oracle.confirmations(owner) != self.confirmations || !process.is_steady_since(world.ttl * 2);
        oracle.check(late <= Duration::from_millis(5) || moved, Rule::ToldInTime, || {
            format!(
                "claim {:016x} is not told {late:?} after its validity ended; looked at {:?}",
                id(owner),
                self.looked
            )
        });
        if let Some(gone) = oracle.gone_since(owner) {
            let late = oracle.now() - gone;
            oracle.check(late <= TIMER || !process.runs_since(TELL), Rule::ToldInTime, || {
                format!("claim {:016x} is not told {late:?} after the store said that it is gone", id(owner))
            });
        }
    }
}

/// Ends a guard in one way or another.
async fn end_it(world: &Arc<World>, machine: &Machine, guard: Arc<LockGuard>) {
    let Some(guard) = Arc::into_inner(guard) else { return };
    let (how, after) = {
        let mut chance = world.chance();
        (chance.below(10), chance.spread(1, 3000))
    };
    world.oracle.ending(&guard, false);
    if world.sabotage == Some(Sabotage::GuardsLeak) {
        tokio::spawn(async move {
            sleep(Duration::from_secs(100)).await;
            drop(guard);
        });
        return;
    }
    let begun = Instant::now();
    match how {
        0..=5 => {
            let _ = guard.release().await;
            check_bound(world, "release", begun, call_bound(machine));
        }
        6 => drop(timeout(after, guard.release()).await),
        _ => drop(guard),
    }
}

/// On a quiet network: acquires a lock a few times, while all the others do the same.
pub(super) async fn contend(world: Arc<World>, machine: Arc<Machine>) {
    let name = &world.names[0];
    for _ in 0..4 {
        let guard = match machine.client().lock(name.as_str()).wait(world.ttl * 2).acquire().await {
            Ok(guard) => Arc::new(guard),
            Err(error) => return world.oracle.broken(Rule::Served, format!("in calm network: {error:?}")),
        };
        world.oracle.granted(&guard, &machine.process, false);
        let hold = world.chance().between(1, 400);
        sleep(hold).await;
        world.oracle.look(name);
        if let Some(guard) = Arc::into_inner(guard) {
            world.oracle.ending(&guard, true);
            if world.chance().permille(500) {
                let released = guard.release().await;
                world.oracle.check(released.is_ok(), Rule::Served, || format!("in calm network: {released:?}"));
            } else {
                drop(guard);
            }
        }
    }
}

/// On a quiet network: a holder loses its connection for good, and a waiter takes over when its ttl has passed.
pub(super) async fn takeover(world: &Arc<World>, dying: &Arc<Machine>, waiting: &Arc<Machine>) {
    let name: &LockName = &world.names[0];
    let lock = |machine: &Machine| machine.client().lock(name.as_str()).wait(world.ttl * 4);
    let Ok(guard) = lock(dying).acquire().await else {
        return world.oracle.broken(Rule::Served, "no lock on a quiet network");
    };
    let guard = Arc::new(guard);
    world.oracle.granted(&guard, &dying.process, false);
    let waiter = tokio::spawn({
        let (world, machine, lock) = (world.clone(), waiting.clone(), lock(waiting));
        async move {
            let guard = lock.acquire().await.ok().map(Arc::new);
            if let Some(guard) = &guard {
                world.oracle.granted(guard, &machine.process, false);
            }
            (Instant::now(), guard)
        }
    });
    let life = world.chance().spread(50, world.ttl.as_millis() as u64 * 2);
    sleep(life).await;
    dying.process.cut(world.ttl * 10);
    sleep(QUIET_LATENCY).await;
    let left = world
        .store
        .inspect(name)
        .and_then(|seen| seen.holders.into_iter().next())
        .map_or(Duration::ZERO, |lease| lease.ttl_left);
    let due = Instant::now() + left + dying.client().capabilities().takeover_slack;
    let (taken, next) = waiter.await.expect("no task of a run panics");
    // The waiter's poll is in flight while the lease expires.
    let due = due + QUIET_LATENCY * 2;
    world.oracle.check(next.is_some() && taken <= due, Rule::Served, || {
        format!("a waiter of a dead holder took over {:?} too late", taken.saturating_duration_since(due))
    });
    drop(next);
    drop(guard);
    dying.process.cut(Duration::ZERO);
}

/// A lease is kept for a long time with a clock that drifts as far as it may, on a network that works.
pub(super) async fn long_hold(world: &Arc<World>, machine: &Machine) {
    let name = &world.names[0];
    let rate = world.chance().pick(&RATES);
    machine.process.set_rate(rate);
    let guard = match machine.client().lock(name.as_str()).acquire().await {
        Ok(guard) => Arc::new(guard),
        Err(error) => return world.oracle.broken(Rule::Served, format!("in calm network: {error:?}")),
    };
    world.oracle.granted(&guard, &machine.process, false);
    let end = Instant::now() + world.ttl * 60;
    while Instant::now() < end {
        sleep(world.ttl * 3).await;
        world.oracle.look(name);
        world.oracle.check(guard.is_held(), Rule::Served, || "a lease was lost on a quiet network".to_owned());
    }
}

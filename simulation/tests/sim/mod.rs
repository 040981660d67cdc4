//! The simulation: clients of lock-core on a simulated clock and a simulated network, with an oracle that sees
//! everything.
//!
//! A run has one seed, one thread and one paused tokio runtime, and depends on nothing else. True time is the runtime's
//! time, and the store's clock shows it. Fault phases alternate with quiet phases. In a fault phase clocks drift,
//! processes pause, connections break, and messages are lost, late or duplicated. In a quiet phase every waiter gets
//! its lock, and at the end nothing may be left at the store.

mod oracle;
mod process;
mod user;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::backend::{Clock, Event, Stamp};
use leasehold_core::memory::MemoryStore;
use leasehold_core::{KeeperRuntime, LockClient, LockName};
use tokio::time::{Instant, sleep, sleep_until};

use self::oracle::Oracle;
pub(crate) use self::oracle::{Rule, Violation};
use self::process::{ClockFault, LONGEST_SLEEP, Process, TRUE_RATE};
use self::wire::{LATEST, Network, QUIET_LATENCY, Wire};
use crate::chance::Chance;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<Sabotage>,
    /// The store loses its data now and then. Exclusion cannot hold then, but fencing must.
    pub(crate) store_forgets: bool,
}

/// Bugs that are introduced to prove that the oracle detects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    // In the backend.
    StampsTakenLate,
    TokensRepeat,
    ReleasesAreNotSent,
    RenewalsAreInvented,
    LossIsHidden,
    LossIsInvented,
    WaitersAreGranted,
    PushesConfirm,
    NobodyIsWoken,
    NoTombstones,
    UnsureIsForgotten,
    ReleasesAreGivenUp,
    ClaimsAreAbandoned,
    // In the process.
    MarginBelowTheDrift,
    ClockStandsStillInPauses,
    KeeperOversleeps,
    SleepsThroughSuspends,
    // In what users do.
    GuardsLeak,
    AcquiresTakeLonger,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The first.
    pub(crate) violation: Option<Violation>,
    /// Every rule that was broken.
    pub(crate) violated: Vec<Rule>,
    /// A hash of everything that happened, and the number of events.
    pub(crate) trace: u64,
    pub(crate) steps: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) simulated: Duration,
}

/// What all parts of a run share.
pub(crate) struct World {
    oracle: Oracle,
    store: MemoryStore,
    sabotage: Option<Sabotage>,
    store_forgets: bool,
    names: Vec<LockName>,
    ttl: Duration,
    chance: Mutex<Chance>,
    network: Mutex<Network>,
    /// The store is paused until then.
    stalled_until: Mutex<Option<Instant>>,
}

/// A machine: its process, and the process's current client.
struct Machine {
    process: Arc<Process>,
    client: Mutex<LockClient>,
    index: u64,
}

/// How fast clocks may run, in millionths of the rate of the store's clock. The slowest is only just within the margin
/// of 10 %. A faster clock only makes leases shorter.
const RATES: [u64; 2] = [901_000, 1_085_000];

pub(crate) fn run(scenario: Scenario, keeps_lines: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads");
    let (world, left) = runtime.block_on(async {
        let world = simulate(scenario, keeps_lines).await;
        // Everything that was started has ended by itself.
        (world, tokio::runtime::Handle::current().metrics().num_alive_tasks())
    });
    world.oracle.check(left == 0, Rule::NothingLeft, || format!("{left} tasks are left"));
    let simulated = world.oracle.violation().map_or_else(|| runtime.block_on(async { world.oracle.now() }), |v| v.at);
    let (trace, steps, lines) = world.oracle.trace();
    Outcome { violation: world.oracle.violation(), violated: world.oracle.violated(), trace, steps, lines, simulated }
}

struct TrueClock(Instant);

impl Clock for TrueClock {
    fn now(&self) -> Stamp {
        Stamp::from_start(self.0.elapsed())
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now())
    }
}

async fn simulate(scenario: Scenario, keeps_lines: bool) -> Arc<World> {
    let start = Instant::now();
    let mut chance = Chance::new(scenario.seed);
    let store = MemoryStore::new(Arc::new(TrueClock(start)));
    let names = ["a", "b"][..1 + chance.below(2)].iter().map(|name| LockName::new(name).expect("a name")).collect();
    let ttl = Duration::from_secs(chance.pick(&[5, 12, 30, 30, 60]));
    let machines = 2 + chance.below(3);
    let world = Arc::new(World {
        oracle: Oracle::new(start, store.clone(), keeps_lines),
        store,
        sabotage: scenario.sabotage,
        store_forgets: scenario.store_forgets,
        names,
        ttl,
        chance: Mutex::new(chance),
        network: Mutex::new(Network::QUIET),
        stalled_until: Mutex::default(),
    });
    let machines: Vec<_> = (0..machines as u64).map(|index| Arc::new(Machine::new(&world, start, index))).collect();
    for _ in 0..2 {
        fault_phase(&world, &machines).await;
        quiet_phase(&world, &machines).await;
        if world.oracle.violation().is_some() {
            break;
        }
    }
    user::long_hold(&world, &machines[0]).await;
    drop(machines);
    // A withdraw without a reply continues for a ttl, and a call that hangs for at most ten call bounds.
    sleep(world.ttl + LATEST + Duration::from_secs(40)).await;
    world
}

/// A phase in which anything may happen.
async fn fault_phase(world: &Arc<World>, machines: &[Arc<Machine>]) {
    let (length, network) = {
        let mut chance = world.chance();
        let network = Network {
            lost: chance.pick(&[0, 2, 20, 150]),
            late: chance.pick(&[0, 2, 20, 100]),
            doubled: chance.pick(&[0, 10, 100]),
        };
        (world.ttl * chance.pick(&[2, 3, 4, 6, 12]), network)
    };
    *world.network.lock().expect("no panic while it is locked") = network;
    let end = Instant::now() + length;
    let mut tasks = Vec::new();
    for machine in machines {
        let users = 1 + world.chance().below(3);
        for _ in 0..users {
            tasks.push(tokio::spawn(user::live(world.clone(), machine.clone(), end)));
        }
        tasks.push(tokio::spawn(inject_faults(world.clone(), machine.clone(), end)));
    }
    tasks.push(tokio::spawn(stall(world.clone(), end)));
    tasks.push(tokio::spawn(check_all(world.clone(), end)));
    if world.store_forgets {
        tasks.push(tokio::spawn(forget(world.clone(), end)));
    }
    for task in tasks {
        task.await.expect("no task of a run panics");
    }
}

/// Makes the oracle check all locks at random moments until `end`, whatever is still in flight.
async fn check_all(world: Arc<World>, end: Instant) {
    while Instant::now() < end {
        let pause = world.chance().spread(20, 4000);
        sleep(pause.min(end - Instant::now())).await;
        world.names.iter().for_each(|name| world.oracle.look(name));
    }
}

/// Makes faults happen to a machine during a fault phase.
async fn inject_faults(world: Arc<World>, machine: Arc<Machine>, end: Instant) {
    let longest = (world.ttl * 3).as_millis() as u64;
    let mean = world.ttl.as_millis() as u64;
    while Instant::now() < end {
        let (quiet, kind, length) = {
            let mut chance = world.chance();
            (chance.spread(mean / 8, mean * 4), chance.below(10), chance.spread(5, longest))
        };
        sleep(quiet).await;
        world.oracle.note("fault", machine.index, kind as u64);
        match kind {
            // The process is stopped, or the whole machine is suspended.
            0..=2 => {
                let suspended = world.chance().permille(500);
                let late = if suspended {
                    world.chance().between(1, LONGEST_SLEEP.as_millis() as u64)
                } else {
                    Duration::ZERO
                };
                world.oracle.pauses(&machine.process);
                machine.process.pause(length, late);
                sleep(length).await;
                machine.process.resume();
                world.oracle.resumes(&machine.process);
            }
            3..=5 => {
                machine.process.cut(length);
                sleep(length).await;
                machine.process.awake().await;
                machine.process.notify(Event::Resync);
            }
            6..=7 => {
                let [slow, fast] = RATES;
                let rate = slow + world.chance().next() % (fast - slow);
                machine.process.set_rate(rate);
            }
            8 => {
                let shuts_down = world.chance().permille(500);
                machine.restart(&world, shuts_down).await;
            }
            _ => {
                let name = world.chance().below(world.names.len());
                machine.process.awake().await;
                machine.process.notify(Event::Changed(world.names[name].clone()));
            }
        }
    }
    // The quiet phase begins with a working connection and clock, so that its bounds are exact.
    machine.process.cut(Duration::ZERO);
    machine.process.set_rate(TRUE_RATE);
}

/// Together with the longest delay of a message it is shorter than a tombstone lasts.
const LONGEST_STALL: Duration = Duration::from_secs(12);

/// The store pauses now and then, and afterwards executes everything that has arrived meanwhile.
async fn stall(world: Arc<World>, end: Instant) {
    let mean = world.ttl.as_millis() as u64;
    while Instant::now() < end {
        let (quiet, length) = {
            let mut chance = world.chance();
            (chance.spread(mean / 2, mean * 8), chance.spread(50, LONGEST_STALL.as_millis() as u64))
        };
        sleep(quiet).await;
        world.oracle.note("stall", 0, length.as_millis() as u64);
        *world.stalled_until.lock().expect("no panic while it is locked") = Some(Instant::now() + length);
        sleep(length).await;
    }
    *world.stalled_until.lock().expect("no panic while it is locked") = None;
}

async fn forget(world: Arc<World>, end: Instant) {
    while Instant::now() < end {
        let quiet = world.chance().spread(100, world.ttl.as_millis() as u64 * 8);
        sleep(quiet).await;
        world.oracle.store_forgets(world.ttl);
        world.store.forget_everything();
    }
}

/// A phase in which every waiter gets its lock, and at whose end nothing is left at the store.
async fn quiet_phase(world: &Arc<World>, machines: &[Arc<Machine>]) {
    *world.network.lock().expect("no panic while it is locked") = Network::QUIET;
    settle(world, machines).await;

    // All compete for one lock: each release must grant it to the next waiter at once.
    world.oracle.slowest_handoff();
    let contenders: Vec<_> =
        machines.iter().map(|machine| tokio::spawn(user::contend(world.clone(), machine.clone()))).collect();
    for task in contenders {
        task.await.expect("no task of a run panics");
    }
    // The time of the release, of the push, and of a place's renewal that was in flight.
    let (slowest, bound) = (world.oracle.slowest_handoff(), QUIET_LATENCY * 4 + Duration::from_millis(10));
    world.oracle.check(slowest <= bound, Rule::Served, || format!("a handoff took {slowest:?}"));

    user::takeover(world, &machines[0], &machines[1]).await;
    settle(world, machines).await;
}

/// Checks the store until the last late message has arrived and the last withdrawn claim has expired. Only then must
/// nothing be left: a late copy of a request that has had its reply can take a lock for a ttl.
async fn settle(world: &Arc<World>, machines: &[Arc<Machine>]) {
    check_all(world.clone(), Instant::now() + world.ttl + LATEST + Duration::from_secs(5)).await;
    let resource_counts = world.store.resource_counts();
    world.oracle.check(resource_counts.leases + resource_counts.places == 0, Rule::NothingLeft, || {
        format!("the store has {resource_counts:?}")
    });
    world.oracle.check_releases();
    for machine in machines {
        let stats = machine.client().stats();
        world.oracle.check(stats.held == 0 && stats.waiting == 0, Rule::NothingLeft, || format!("{stats:?}"));
    }
}

impl World {
    fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock().expect("no panic while it is locked")
    }

    fn network(&self) -> Network {
        *self.network.lock().expect("no panic while it is locked")
    }

    /// How long a message is in flight. `None` if it is lost.
    fn latency(&self) -> Option<Duration> {
        let network = self.network();
        let mut chance = self.chance();
        if chance.permille(network.lost) {
            None
        } else if chance.permille(network.late) {
            Some(chance.spread(5, LATEST.as_millis() as u64))
        } else {
            Some(chance.between(0, QUIET_LATENCY.as_millis() as u64))
        }
    }

    /// Waits while the store is paused. Requests that arrived meanwhile keep their order.
    async fn works(&self) {
        let until = *self.stalled_until.lock().expect("no panic while it is locked");
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }

    fn doubles(&self) -> bool {
        let doubled = self.network().doubled;
        self.chance().permille(doubled)
    }

    fn loses(&self) -> bool {
        let lost = self.network().lost;
        self.chance().permille(lost)
    }
}

impl Machine {
    fn new(world: &Arc<World>, start: Instant, index: u64) -> Self {
        let fault = match world.sabotage {
            Some(Sabotage::ClockStandsStillInPauses) => Some(ClockFault::StandsStillInPauses),
            Some(Sabotage::KeeperOversleeps) => Some(ClockFault::Oversleeps),
            Some(Sabotage::SleepsThroughSuspends) => Some(ClockFault::SleepsThroughSuspends),
            _ => None,
        };
        let process = Arc::new(Process::new(start, fault));
        Self { client: Mutex::new(client(world, &process)), process, index }
    }

    fn client(&self) -> LockClient {
        self.client.lock().expect("no panic while it is locked").clone()
    }

    /// Replaces the client by a new one. The old one is shut down, or kept alive by the guards that still use it.
    async fn restart(&self, world: &Arc<World>, shuts_down: bool) {
        let old = std::mem::replace(
            &mut *self.client.lock().expect("no panic while it is locked"),
            client(world, &self.process),
        );
        if shuts_down {
            let begun = Instant::now();
            let outcome = old.shutdown().await;
            world.oracle.note("shut down", self.index, u64::from(outcome.is_ok()));
            let bound = world.ttl + Duration::from_secs(10);
            world
                .oracle
                .check(begun.elapsed() <= bound, Rule::Bounded, || format!("shutdown took {:?}", begun.elapsed()));
        }
    }
}

fn client(world: &Arc<World>, process: &Arc<Process>) -> LockClient {
    let margin = if world.sabotage == Some(Sabotage::MarginBelowTheDrift) { 1 } else { 10 };
    LockClient::builder(Wire::new(world, process))
        .clock(process.clone())
        .seed(world.chance().next())
        .keeper(KeeperRuntime::CurrentRuntime)
        .ttl(world.ttl)
        .margin_percent(margin)
        .build()
        .expect("a client of a simulation")
}

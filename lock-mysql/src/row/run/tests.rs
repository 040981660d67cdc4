use leasehold_core::backend::kit::OnRestart;
use leasehold_core::backend::kit::restart::{CheckContext, Decision, Epoch, Grants};
use tokio::time::Instant;

use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One server with a table.
#[derive(Clone)]
struct Host {
    server: Server,
    row: Option<RunRow>,
}

impl Host {
    fn durable(id: &str) -> Self {
        Self { server: Server { id: id.to_owned(), started: None }, row: None }
    }

    fn volatile(id: &str, started: u64) -> Self {
        Self { server: Server { id: id.to_owned(), started: Some(started) }, row: None }
    }

    /// Another server that has replicated the table.
    fn replica(&self, id: &str) -> Self {
        Self { row: self.row.clone(), ..Self::durable(id) }
    }
}

/// The time of all servers and clients.
struct World {
    begin: Instant,
    time: Duration,
}

impl World {
    fn new() -> Self {
        Self { begin: Instant::now(), time: s(86_400) }
    }

    fn pass(&mut self, seconds: u64) {
        self.time += s(seconds);
    }

    /// A client acquires a lock with a new connection.
    fn acquire(&self, host: &mut Host, client: &mut Epoch, ttl: u64) -> Grants {
        let at = self.begin + self.time;
        let check = CheckContext { on_restart: OnRestart::default(), ttl: s(ttl), requested: at, now: at };
        for _ in 0..3 {
            let state =
                State { server: host.server.clone(), is_read_only: false, now: self.time, row: host.row.clone() };
            let row = |key| Some(RunRow { seen: state.server.text().into_bytes(), since: self.time, key });
            if state.note().is_some() {
                host.row = row(host.row.take().map_or(String::new(), |row| row.key));
                continue;
            }
            match client.evaluate(&state.reading(client.run()), check).expect("a known format") {
                Decision::Write(key) => host.row.as_mut().expect("it was noted").key = key,
                Decision::Grants(grants) => return grants,
            }
        }
        panic!("it writes again and again: {:?}", host.row);
    }
}

#[test]
fn a_replica_waits_from_its_first_use_on_whatever_its_uptime() {
    let (mut world, mut first) = (World::new(), Host::durable("first"));
    let mut client = Epoch::default();
    assert_eq!(world.acquire(&mut first, &mut client, 6), Grants::Allowed);
    let mut second = first.replica("second");
    world.pass(50);
    assert_eq!(world.acquire(&mut second, &mut client, 1), Grants::After(s(6)));
    world.pass(2);
    assert_eq!(world.acquire(&mut second, &mut client, 1), Grants::After(s(4)));
    assert_eq!(world.acquire(&mut second, &mut Epoch::default(), 1), Grants::After(s(4)), "a newcomer shares the wait");
    world.pass(4);
    assert_eq!(world.acquire(&mut second, &mut Epoch::default(), 1), Grants::Allowed);
    assert_eq!(world.acquire(&mut second, &mut client, 1), Grants::Allowed);
}

#[test]
fn a_durable_server_never_waits_for_itself() {
    let (mut world, mut host) = (World::new(), Host::durable("host"));
    let mut client = Epoch::default();
    for _ in 0..3 {
        assert_eq!(world.acquire(&mut host, &mut client, 6), Grants::Allowed);
        assert_eq!(world.acquire(&mut host, &mut Epoch::default(), 6), Grants::Allowed);
        world.pass(1);
    }
}

#[test]
fn another_restart_waits_for_the_uptime() {
    let world = World::new();
    let at = world.time.as_secs();
    let mut host = Host::volatile("host", at - 100);
    let mut client = Epoch::default();
    assert_eq!(world.acquire(&mut host, &mut client, 6), Grants::Allowed);
    for (up, grants) in [(3, Grants::After(s(4))), (7, Grants::Allowed)] {
        let mut again = Host { row: host.row.clone(), ..Host::volatile("host", at - up) };
        assert_eq!(world.acquire(&mut again, &mut client.clone(), 6), grants, "up for {up} s");
        assert_eq!(world.acquire(&mut again, &mut Epoch::default(), 6), grants, "up for {up} s, a newcomer");
    }
    // The row was lost too. The client still knows the earlier run.
    let mut again = Host::volatile("host", at - 3);
    assert_eq!(world.acquire(&mut again, &mut client.clone(), 6), Grants::After(s(4)));
    // Another server with a short uptime may have taken the place later.
    let mut other = Host { row: host.row, ..Host::volatile("other", at - 100) };
    assert_eq!(world.acquire(&mut other, &mut client, 6), Grants::After(s(6)));
}

#[test]
fn a_server_that_comes_back_waits_for_the_one_in_between() {
    let (mut world, mut first) = (World::new(), Host::durable("first"));
    let (mut client, mut absent) = (Epoch::default(), Epoch::default());
    world.acquire(&mut first, &mut client, 6);
    world.acquire(&mut first, &mut absent, 6);
    let mut second = first.replica("second");
    world.pass(50);
    world.acquire(&mut second, &mut client, 6);
    world.pass(6);
    assert_eq!(world.acquire(&mut second, &mut client, 6), Grants::Allowed);
    world.pass(50);

    // It has replicated the second server.
    let mut replicated = Host { row: second.row.clone(), ..first.clone() };
    for client in [&client, &absent, &Epoch::default()] {
        assert_eq!(world.acquire(&mut replicated, &mut client.clone(), 6), Grants::After(s(6)));
    }
    // It was cut off. Who knows the second server counts for itself.
    assert_eq!(world.acquire(&mut first, &mut client, 6), Grants::After(s(6)));
    world.pass(2);
    assert_eq!(world.acquire(&mut first, &mut client, 6), Grants::After(s(4)));
    assert_eq!(world.acquire(&mut first, &mut absent, 6), Grants::Allowed, "the limit: it cannot know");
}

/// The restart of a server says nothing about the leases of another one, which this client alone knows.
#[test]
fn of_two_earlier_runs_the_one_with_the_later_grants_counts() {
    let (mut world, mut first) = (World::new(), Host::durable("first"));
    let at = world.time.as_secs();
    let mut client = Epoch::default();
    assert_eq!(world.acquire(&mut first, &mut client, 6), Grants::Allowed);
    let mut second = Host::volatile("second", at - 100);
    assert_eq!(world.acquire(&mut second, &mut Epoch::default(), 6), Grants::Allowed);
    world.pass(50);
    let mut again = Host { row: second.row, ..Host::volatile("second", at + 1) };
    assert_eq!(world.acquire(&mut again.clone(), &mut Epoch::default(), 6), Grants::Allowed, "up for 48 s");
    assert_eq!(world.acquire(&mut again, &mut client, 6), Grants::After(s(6)), "the first server may grant until now");
}

#[test]
fn lost_data_is_another_run_of_the_same_server() {
    let (mut world, mut host) = (World::new(), Host::durable("host"));
    let mut client = Epoch::default();
    world.acquire(&mut host, &mut client, 6);
    world.pass(1);
    host.row = None;
    assert_eq!(world.acquire(&mut host, &mut client, 1), Grants::After(s(6)));
    assert_eq!(
        world.acquire(&mut host, &mut Epoch::default(), 1),
        Grants::After(s(6)),
        "it reads what the client wrote"
    );
}

#[test]
fn no_lock_is_granted_in_the_second_in_which_a_run_that_may_lose_data_started() {
    let state = |started, millis| {
        let server = Server { id: "host".to_owned(), started };
        State { server, is_read_only: false, now: Duration::from_millis(millis), row: None }
    };
    assert_eq!(state(Some(5), 5_200).starts_for(), Some(Duration::from_millis(800)));
    assert_eq!(state(Some(5), 6_000).starts_for(), None);
    assert_eq!(state(None, 5_200).starts_for(), None);
}

#[test]
fn the_stored_format_is_frozen() {
    let (world, mut host) = (World::new(), Host::volatile("f00", 86_000));
    world.acquire(&mut host, &mut Epoch::default(), 6);
    let row = host.row.expect("it was written");
    assert_eq!(row.seen, b"f00@86000");
    assert_eq!(row.key, "1 f00@86000~86400000000 6000:86472000");
}

use super::*;

const LONGEST: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Stamp {
    Stamp::from_start(Duration::from_secs(seconds))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn run(name: &str) -> RunId {
    RunId::new(name)
}

fn client_of(servers: usize, on_restart: OnRestart) -> Settling {
    let addresses = (0..servers).map(|number| format!("host{number}:6379")).collect();
    Settling::new(Quorum::new(servers).unwrap(), addresses, LONGEST, on_restart)
}

fn client() -> Settling {
    client_of(3, OnRestart::QuarantineKnown)
}

/// A reading of a server without any state, at this second of its clock and of the client's: it takes a second.
fn empty(name: &str, now: u64) -> Reading {
    Reading {
        run: run(name),
        time: seconds(1_000 + now),
        state: None,
        since: None,
        sent: at(now - 1),
        received: at(now),
    }
}

/// The same of a server of three that is settled.
fn settled(name: &str, number: usize, high: u64, now: u64) -> Reading {
    let state = ServerState { run: run(name), servers: 3, number, longest_ttl: LONGEST, floor: 1, high };
    Reading { state: Some(state), ..empty(name, now) }
}

/// A reading in which the key says that its run is unsettled since this second.
fn since(reading: Reading, since: u64) -> Reading {
    Reading { since: Some(Since { run: reading.run.clone(), time: seconds(1_000 + since) }), ..reading }
}

fn read<const N: usize>(client: &mut Settling, readings: [Reading; N]) {
    readings.into_iter().enumerate().for_each(|(server, reading)| client.read(server, reading));
}

fn step(client: &Settling, server: usize) -> SettlingStep {
    client.step(server).unwrap()
}

/// A request to settle a server may have no reply. The server that is settled already must not make it look restarted.
#[test]
fn a_first_start_that_was_cut_short_goes_on() {
    let mut client = client();
    read(&mut client, [empty("a", 5), empty("b", 5), empty("c", 5)]);
    read(&mut client, [settled("a", 0, 7, 6), empty("b", 6), empty("c", 6)]);
    for server in [1, 2] {
        assert_eq!(step(&client, server), SettlingStep::Settle { floor: 1_006_000_000 });
    }
    // The other client that was faster has `b` settled, and then its data were deleted.
    client.read(1, settled("b", 1, 7, 7));
    client.read(1, empty("b", 8));
    assert_eq!(step(&client, 1), SettlingStep::WriteSince);
    // It was restarted.
    client.read(2, empty("d", 8));
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
}

/// The client has not read the first server since it settled it.
#[test]
fn a_restart_during_a_first_start_is_a_restart() {
    let mut client = client();
    read(&mut client, [empty("a", 5), empty("b", 5), empty("c", 5)]);
    client.read(2, empty("d", 6));
    client.read(0, settled("a", 0, 7, 7));
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
}

#[test]
fn a_first_start_is_resumed_within_seconds_only() {
    let mut client = client();
    read(&mut client, [empty("a", 5), empty("b", 5), empty("c", 5)]);
    read(&mut client, [settled("a", 0, 7, 17), empty("b", 17), empty("c", 17)]);
    assert_eq!(step(&client, 1), SettlingStep::WriteSince);
}

#[test]
fn a_first_start_needs_all_servers_and_no_wait() {
    let mut client = client();
    assert_eq!(step(&client, 0), SettlingStep::Unreachable);
    client.read(0, empty("a", 5));
    client.read(2, empty("c", 7));
    assert_eq!((step(&client, 0), step(&client, 1)), (SettlingStep::WaitForServers, SettlingStep::Unreachable));
    client.read(1, empty("b", 6));
    for server in 0..3 {
        // The time of a majority: one clock may be years ahead.
        assert_eq!(step(&client, server), SettlingStep::Settle { floor: 1_006_000_000 });
    }
    client.unreachable(1);
    assert_eq!((step(&client, 0), step(&client, 1)), (SettlingStep::WaitForServers, SettlingStep::Unreachable));
    read(&mut client, [settled("a", 0, 9, 8), settled("b", 1, 9, 8), settled("c", 2, 9, 8)]);
    assert_eq!([0, 1, 2].map(|server| step(&client, server)), [const { SettlingStep::Settled }; 3]);
}

#[test]
fn a_restarted_server_waits_and_then_takes_its_floor_from_the_others() {
    let mut client = client();
    read(&mut client, [settled("a", 0, 70, 5), settled("b", 1, 90, 5), empty("c2", 5)]);
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
    // The key may still name an earlier run.
    client.read(2, since(empty("c1", 5), 3));
    client.read(2, Reading { run: run("c2"), ..since(empty("c1", 6), 3) });
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
    client.read(2, since(empty("c2", 7), 7));
    assert_eq!(step(&client, 2), SettlingStep::Wait(seconds(61)));
    // A clock that was set back would prolong the wait.
    client.read(2, since(empty("c2", 7), 8));
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
    client.read(2, since(empty("c2", 67), 7));
    assert_eq!(step(&client, 2), SettlingStep::Wait(seconds(1)));
    // What was requested before the reply that shows the end of the wait does not count, also if it arrives later.
    client.read(2, since(empty("c2", 68), 7));
    client.read(0, Reading { sent: at(67), ..settled("a", 0, 95, 99) });
    assert_eq!(step(&client, 2), SettlingStep::ReadAll);
    client.read(0, settled("a", 0, 95, 69));
    assert_eq!(step(&client, 2), SettlingStep::ReadAll);
    client.read(1, settled("b", 1, 93, 70));
    assert_eq!(step(&client, 2), SettlingStep::Settle { floor: 95 });
    // It stays ready in this run, and not in the next one.
    client.read(2, since(empty("c2", 80), 7));
    assert_eq!(step(&client, 2), SettlingStep::Settle { floor: 95 });
    client.read(2, since(empty("c3", 81), 81));
    assert_eq!(step(&client, 2), SettlingStep::Wait(seconds(61)));
    client.read(2, since(empty("c3", 142), 81));
    assert_eq!(step(&client, 2), SettlingStep::ReadAll);
    client.unreachable(1);
    assert_eq!(step(&client, 2), SettlingStep::WaitForServers);
}

#[test]
fn a_server_whose_data_were_deleted_waits_again_in_the_same_run() {
    let mut client = client();
    read(&mut client, [settled("a", 0, 70, 1), settled("b", 1, 90, 1), since(empty("c2", 5), 5)]);
    client.read(2, since(empty("c2", 66), 5));
    read(&mut client, [settled("a", 0, 70, 68), settled("b", 1, 90, 68)]);
    assert_eq!(step(&client, 2), SettlingStep::Settle { floor: 90 });
    client.read(2, since(settled("c2", 2, 90, 69), 5));
    assert_eq!(step(&client, 2), SettlingStep::Settled);
    client.read(2, empty("c2", 70));
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
    client.read(2, since(empty("c2", 71), 71));
    assert_eq!(step(&client, 2), SettlingStep::Wait(seconds(61)));
}

#[test]
fn a_restart_with_data_is_treated_as_one_without() {
    let mut client = client();
    let restarted = |now| Reading { run: run("c2"), ..settled("c1", 2, 99, now) };
    read(&mut client, [settled("a", 0, 70, 5), settled("b", 1, 90, 5), restarted(5)]);
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
    client.read(2, since(restarted(66), 5));
    read(&mut client, [settled("a", 0, 70, 67), settled("b", 1, 90, 67)]);
    // The server keeps its own, higher one.
    assert_eq!(step(&client, 2), SettlingStep::Settle { floor: 90 });
}

#[test]
fn a_floor_needs_a_server_of_every_majority() {
    let mut client = client_of(5, OnRestart::QuarantineKnown);
    let settled = |name: &str, number, high, now| {
        let mut reading = settled(name, number, high, now);
        reading.state.as_mut().unwrap().servers = 5;
        reading
    };
    read(&mut client, [since(empty("a2", 70), 5), settled("b", 1, 3, 72), settled("c", 2, 4, 72)]);
    // One of the other two may have accepted a higher token.
    assert_eq!(step(&client, 0), SettlingStep::WaitForServers);
    client.read(3, since(empty("d2", 70), 5));
    assert_eq!(step(&client, 0), SettlingStep::WaitForServers);
    client.read(4, settled("e", 4, 2, 72));
    assert_eq!(step(&client, 0), SettlingStep::Settle { floor: 4 });
    assert_eq!(step(&client, 3), SettlingStep::Settle { floor: 4 });
    // Three are lost, so three settled servers will never be there.
    client.read(4, since(empty("e2", 70), 5));
    assert_eq!(step(&client, 0), SettlingStep::ReadAll);
}

#[test]
fn the_clocks_have_to_do_if_a_majority_has_lost_its_data() {
    let mut client = client();
    read(&mut client, [settled("a", 0, 7, 1), settled("b", 1, 7, 1), settled("c", 2, 7, 1)]);
    read(&mut client, [empty("a2", 5), empty("b2", 5), empty("c2", 5)]);
    for server in 0..3 {
        assert_eq!(step(&client, server), SettlingStep::WriteSince);
        client.read(server, since(empty(["a2", "b2", "c2"][server], 6), 6));
        assert_eq!(step(&client, server), SettlingStep::Wait(seconds(61)));
    }
    // One that is down does not matter: two are lost.
    client.unreachable(1);
    client.read(0, since(empty("a2", 67), 6));
    assert_eq!(step(&client, 0), SettlingStep::ReadAll);
    client.read(0, since(empty("a2", 68), 6));
    assert_eq!(step(&client, 0), SettlingStep::ReadAll);
    client.read(2, since(empty("c2", 69), 6));
    assert_eq!(step(&client, 0), SettlingStep::Settle { floor: 1_069_000_000 });
    // One of them is settled now, or its old data is still there.
    client.read(2, settled("c2", 2, 2_000_000_000, 70));
    assert_eq!(step(&client, 0), SettlingStep::WaitForServers);
    client.read(1, since(empty("b2", 70), 6));
    assert_eq!(step(&client, 0), SettlingStep::Settle { floor: 2_000_000_000 });
}

#[test]
fn a_client_that_trusts_its_servers_does_not_wait_for_them() {
    let mut client = client_of(3, OnRestart::Trust);
    let restarted = |name: &str, number, now| Reading { run: run(name), ..settled("before", number, 7, now) };
    read(&mut client, [restarted("a", 0, 5), restarted("b", 1, 5), restarted("c", 2, 5)]);
    // Another client may have settled them since.
    assert_eq!(step(&client, 0), SettlingStep::ReadAll);
    read(&mut client, [restarted("a", 0, 6), restarted("b", 1, 6), restarted("c", 2, 6)]);
    assert_eq!(step(&client, 0), SettlingStep::Settle { floor: 1_006_000_000 });
    // One server alone waits: the others go on without it.
    read(&mut client, [settled("a", 0, 9, 7), settled("b", 1, 9, 7), restarted("c", 2, 7)]);
    assert_eq!(step(&client, 2), SettlingStep::WriteSince);
}

#[test]
fn a_newcomer_waits_if_anything_says_that_the_servers_were_used() {
    // Another client knows of a loss.
    let mut newcomer = client();
    read(&mut newcomer, [empty("a", 5), since(empty("b", 5), 3), empty("c", 5)]);
    assert_eq!((step(&newcomer, 0), step(&newcomer, 1)), (SettlingStep::WriteSince, SettlingStep::Wait(seconds(59))));
    // One server has kept its state, of another run.
    let mut newcomer = client();
    read(&mut newcomer, [Reading { run: run("a2"), ..settled("a", 0, 7, 5) }, empty("b", 5), empty("c", 5)]);
    assert_eq!(step(&newcomer, 1), SettlingStep::WriteSince);
    // The URL says so.
    let mut newcomer = client_of(3, OnRestart::Quarantine);
    read(&mut newcomer, [empty("a", 5), empty("b", 5), empty("c", 5)]);
    assert_eq!(step(&newcomer, 0), SettlingStep::WriteSince);
}

#[test]
fn servers_that_do_not_fit_are_refused() {
    let refused = |number: usize, change: fn(&mut Reading)| {
        let mut client = client();
        let mut readings = [settled("a", 0, 7, 5), settled("b", 1, 7, 5), settled("c", 2, 7, 5)];
        change(&mut readings[number]);
        read(&mut client, readings);
        let texts = [0, 1, 2].map(|server| client.step(server).unwrap_err().to_string());
        assert!(texts.iter().all(|text| *text == texts[0]));
        assert_eq!(client.describe(0, at(5)), texts[0]);
        texts[0].clone()
    };
    assert_eq!(
        refused(2, |it| it.state.as_mut().unwrap().servers = 5),
        "the server at host2:6379 is one of 5, and the URL names 3: every client must name the same servers"
    );
    assert_eq!(
        refused(1, |it| it.state.as_mut().unwrap().number = 0),
        "the server at host1:6379 is number 1 of 3, and number 2 in the URL: every client must name the servers in the \
         same order"
    );
    assert_eq!(
        refused(0, |it| it.state.as_mut().unwrap().longest_ttl = seconds(30)),
        "`longest_ttl` is 60000 ms, and 30000 ms at the server at host0:6379: it must be the same for all clients"
    );
    assert_eq!(
        refused(2, |it| it.run = run("a")),
        "host0:6379 and host2:6379 are the same server: a quorum needs independent ones"
    );
    let error = Error::from(Refused("a text".to_owned()));
    assert!(format!("{error:?}").contains("InvalidInput") && format!("{error:?}").contains("a text"));
}

#[test]
fn an_error_says_why_a_server_does_not_vote() {
    let mut client = client();
    assert_eq!(client.describe(0, at(5)), "not connected");
    client.read(0, empty("a", 5));
    assert_eq!(client.describe(0, at(5)), "not in use yet: all servers must reply before the first lock");
    read(&mut client, [settled("a", 0, 7, 5), settled("b", 1, 7, 5), empty("c", 5)]);
    assert_eq!(client.describe(0, at(5)), "votes");
    assert_eq!(client.describe(2, at(5)), "waits 61 s after a restart");
    client.read(2, since(empty("c", 15), 5));
    assert_eq!(client.describe(2, at(15)), "waits 51 s after a restart");
    assert_eq!(client.describe(2, at(17)), "waits 49 s after a restart");
    client.read(2, since(empty("c", 99), 5));
    assert_eq!(client.describe(2, at(99)), "is about to vote after a restart");
    client.unreachable(1);
    assert_eq!(client.describe(2, at(99)), "was restarted and waits until 2 others reply");
}

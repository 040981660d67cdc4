use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One server and its epoch key, on a clock that the test moves.
struct World {
    begin: Instant,
    time: Duration,
    run: u32,
    /// `None` for a promoted replica.
    started: Option<Duration>,
    key: String,
    message: String,
}

impl World {
    fn new() -> Self {
        let message = String::new();
        Self {
            begin: Instant::now(),
            time: s(1000),
            run: 1,
            started: Some(Duration::ZERO),
            key: String::new(),
            message,
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.time += s(seconds);
    }

    fn restart(&mut self) {
        self.run += 1;
        self.started = Some(self.time);
    }

    fn promote_a_replica(&mut self) {
        self.run += 1;
        self.started = None;
    }

    fn restart_empty(&mut self) {
        self.restart();
        self.key.clear();
    }

    fn now(&self) -> Instant {
        self.begin + self.time
    }

    fn reading(&self) -> Reading {
        let uptime = self.started.map(|started| self.time - started);
        Reading { run: format!("run{}", self.run), uptime, now: s(86_400) + self.time, key: self.key.clone() }
    }

    fn check_as(&mut self, client: &mut Epoch, ttl: Duration, on_restart: OnRestart) -> Grants {
        let check = CheckContext { on_restart, ttl, requested: self.now(), now: self.now() };
        for _ in 0..2 {
            match client.evaluate(&self.reading(), check).expect("a known format") {
                Decision::Write(key) => {
                    self.message = format!("{} {key}", self.reading().now.as_millis());
                    self.key = key;
                }
                Decision::Grants(grants) => return grants,
            }
        }
        panic!("it writes again and again: {}", self.key);
    }

    fn check(&mut self, client: &mut Epoch, ttl: Duration) -> Grants {
        self.check_as(client, ttl, OnRestart::QuarantineKnown)
    }

    /// A client that has just connected.
    fn client(&mut self) -> Epoch {
        let mut client = Epoch::default();
        assert_eq!(self.check(&mut client, Duration::ZERO), Grants::Allowed);
        client
    }
}

/// The seconds until a client is granted a lock with a ttl of 1 s after an empty restart, if another client then had a
/// lease of 6 s.
fn granted_after(before: Option<Duration>, holder_reconnects: bool, received: bool) -> u64 {
    let mut world = World::new();
    let (mut holder, mut client) = (world.client(), world.client());
    if let Some(ttl) = before {
        assert_eq!(world.check(&mut client, ttl), Grants::Allowed);
    }
    assert_eq!(world.check(&mut holder, s(6)), Grants::Allowed);
    if received {
        client.receive(&world.message, world.now());
    }
    world.restart_empty();
    // Both reconnect.
    world.check(&mut client, Duration::ZERO);
    if holder_reconnects {
        assert_ne!(world.check(&mut holder, Duration::ZERO), Grants::Allowed);
    }
    (0..100)
        .find(|_| {
            let granted = world.check(&mut client, s(1)) == Grants::Allowed;
            world.pass(u64::from(!granted));
            granted
        })
        .expect("it waits for ever")
}

#[test]
fn an_uptime_in_whole_seconds_does_not_prolong_the_wait() {
    let mut epoch = Epoch::default();
    let begin = Instant::now();
    let ms = Duration::from_millis;
    let mut uptime = |run: &str, reported: u64, requested: u64, replied: u64| {
        epoch.uptime(run, ms(reported), begin + ms(requested), begin + ms(replied))
    };
    assert_eq!(uptime("a", 0, 10, 30), ms(0));
    assert_eq!(uptime("a", 0, 600, 610), ms(570), "from the first reply to the second request");
    assert_eq!(uptime("a", 1000, 700, 710), ms(1000));
    assert_eq!(uptime("a", 1000, 910, 920), ms(1200));
    assert_eq!(uptime("a", 0, 100, 920), ms(1000), "a request that was sent before");
    assert_eq!(uptime("b", 0, 1000, 1010), ms(0), "another run");
    assert_eq!(uptime("b", 0, 1110, 1120), ms(100));
}

#[test]
fn a_client_waits_for_the_longest_ttl_that_it_used_or_learned_of() {
    for (before, holder_reconnects, waits) in [
        (None, true, 6),
        (None, false, 6),
        (Some(s(1)), true, 6),
        (Some(s(1)), false, 6),
        (Some(s(9)), true, 9),
        (Some(s(9)), false, 9),
    ] {
        let waited = granted_after(before, holder_reconnects, true);
        assert_eq!(waited, waits, "after {before:?}; the holder reconnects: {holder_reconnects}");
    }
    // The limit: after a lost message, the client knows only its own ttl, and what the holder writes when it
    // reconnects.
    assert_eq!(granted_after(None, false, false), 1);
    assert_eq!(granted_after(Some(s(1)), true, false), 6);
}

#[test]
fn a_new_client_reads_the_ttls_in_use() {
    let mut world = World::new();
    let mut holder = world.client();
    world.check(&mut holder, s(6));
    let mut client = world.client();
    world.restart_empty();
    assert_eq!(world.check(&mut client, Duration::ZERO), Grants::After(s(6)));
    // The key also warns new clients.
    let mut newcomer = Epoch::default();
    assert_eq!(world.check(&mut newcomer, s(1)), Grants::After(s(6)));
    world.restart_empty();
    assert_eq!(world.check(&mut newcomer, s(1)), Grants::After(s(6)), "also when the server restarts once more");
}

#[test]
fn a_client_that_knows_of_no_lease_decides_with_its_first_call() {
    let mut world = World::new();
    let mut client = world.client();
    world.restart_empty();
    assert_eq!(world.check(&mut client, Duration::ZERO), Grants::Undecided);
    assert_eq!(world.key, "");
    world.pass(1);
    assert_eq!(world.check(&mut client, s(3)), Grants::After(s(2)));
    world.pass(2);
    assert_eq!(world.check(&mut client, s(3)), Grants::Allowed);
    assert!(world.key.starts_with("1 run2 "), "{}", world.key);
    assert_eq!(world.check(&mut client, s(30)), Grants::Allowed, "the wait is over once");
}

#[test]
fn a_client_of_another_server_does_not_change_a_run_in_use() {
    let mut world = World::new();
    let mut stranger = world.client();
    world.check(&mut stranger, s(30));
    world.restart_empty();
    let mut user = world.client();
    assert_eq!(world.check(&mut user, s(10)), Grants::Allowed);
    let key = world.key.clone();
    assert_eq!(world.check(&mut stranger, Duration::ZERO), Grants::After(s(30)));
    assert_eq!(world.check(&mut stranger, s(30)), Grants::After(s(30)));
    assert_eq!(world.key, key);
    assert_eq!(world.check(&mut user, s(20)), Grants::Allowed);
    world.pass(30);
    assert_eq!(world.check(&mut stranger, s(30)), Grants::Allowed);
}

#[test]
fn a_client_with_trust_does_not_wait_and_others_still_do() {
    let mut world = World::new();
    let (mut trusting, mut usual) = (world.client(), world.client());
    world.check(&mut trusting, s(6));
    usual.receive(&world.message, world.now());
    world.restart_empty();
    assert_eq!(world.check_as(&mut trusting, Duration::ZERO, OnRestart::Trust), Grants::Allowed);
    assert_eq!(world.check(&mut usual, s(1)), Grants::After(s(6)));
    let mut newcomer = Epoch::default();
    assert_eq!(world.check(&mut newcomer, s(1)), Grants::After(s(6)));
    assert_eq!(world.check_as(&mut trusting, s(9), OnRestart::Trust), Grants::Allowed);
    assert_eq!(world.check(&mut newcomer, s(1)), Grants::After(s(9)), "its lease may be of the run before");
    world.promote_a_replica();
    assert_eq!(world.check_as(&mut trusting, s(9), OnRestart::Trust), Grants::Allowed);
}

#[test]
fn quarantine_also_waits_for_an_unknown_server() {
    let mut world = World::new();
    world.restart_empty();
    let mut careful = Epoch::default();
    assert_eq!(world.check_as(&mut careful, Duration::ZERO, OnRestart::Quarantine), Grants::Undecided);
    assert_eq!(world.check_as(&mut careful, s(4), OnRestart::Quarantine), Grants::After(s(4)));
    assert_eq!(world.check(&mut Epoch::default(), s(1)), Grants::After(s(4)));
    world.pass(4);
    assert_eq!(world.check_as(&mut careful, s(4), OnRestart::Quarantine), Grants::Allowed);
}

#[test]
fn a_server_with_its_data_knows_the_ttls_in_use() {
    let mut world = World::new();
    let mut holder = world.client();
    world.check(&mut holder, s(6));
    world.restart();
    world.pass(2);
    assert_eq!(world.check(&mut Epoch::default(), s(1)), Grants::After(s(4)));
    assert_eq!(world.check(&mut holder, s(6)), Grants::After(s(4)));
}

#[test]
fn a_ttl_is_written_before_its_first_use_and_again_in_time_and_expires_when_unused() {
    let mut world = World::new();
    let mut client = world.client();
    assert!(!client.needs_reading(Duration::ZERO, world.now()), "a release needs nothing");
    assert!(client.needs_reading(s(100), world.now()), "no other client knows the ttl");
    world.check(&mut client, s(100));
    assert_eq!(world.key, format!("1 run1 100000:{}", (86_400 + 1000 + 260) * 1000));
    world.pass(120);
    assert!(!client.needs_reading(s(100), world.now()) && !client.needs_reading(s(10), world.now()));
    world.pass(1);
    assert!(client.needs_reading(s(100), world.now()), "a client that missed a message would forget it too early");
    assert!(!client.needs_reading(s(10), world.now()));
    assert!(client.needs_reading(s(101), world.now()), "longer than all before");
    world.pass(138);
    world.restart_empty();
    assert_eq!(world.check(&mut client, s(1)), Grants::After(s(100)), "a lease of it may still last");
    world.pass(1);
    assert_eq!(world.check(&mut client, s(1)), Grants::Allowed, "no lease of the longer one is left");
}

#[test]
fn an_older_reading_that_arrives_later_changes_nothing() {
    let mut world = World::new();
    let mut client = world.client();
    let older = CheckContext {
        on_restart: OnRestart::default(),
        ttl: Duration::ZERO,
        requested: world.now(),
        now: world.now(),
    };
    let reading = world.reading();
    world.pass(1);
    world.check(&mut client, s(15));
    // Another connection requested its reading when no ttl was in use yet.
    assert!(matches!(client.evaluate(&reading, older), Ok(Decision::Write(_))), "the key that it read lacks the ttl");
    assert!(!client.needs_reading(s(15), world.now()), "other clients know the ttl");
}

#[test]
fn the_format_of_the_key_is_frozen() {
    let now = Instant::now();
    let key = Key::parse("1 f00 1000:5000 30000:9000 400:200").unwrap();
    assert_eq!(key.run, Some("f00"));
    assert_eq!(
        key.ttls(s(2), now).0,
        [(s(30), now + s(7))],
        "a ttl that is as long, and in use for as long, covers another one"
    );
    assert_eq!(Key::parse("").unwrap().run, None);
    for unknown in ["2 f00", "1", "1 f00 7", "1 f00 a:b", "x"] {
        assert!(Key::parse(unknown).is_err(), "{unknown}");
    }
    // After a step of the server's clock back by a day.
    let key = Key::parse("1 f00 1000:86400000").unwrap();
    assert_eq!(key.ttls(Duration::ZERO, now).0, [(s(1), now + s(62))]);
}

#[test]
fn beyond_the_limit_the_shortest_ttls_count_as_longer_ones() {
    let (mut ttls, now) = (Ttls::default(), Instant::now());
    for number in 1..=40 {
        ttls.add(s(number), now + s(100 - number));
    }
    assert_eq!(ttls.0.len(), MOST_TTLS);
    assert_eq!(ttls.longest(), s(40));
    for number in 1..=40 {
        assert!(ttls.has(s(number), now + s(100 - number)), "{number}");
    }
}

/// Its uptime says nothing. Clients share the time at which the first of them saw it as a primary, even if none lives
/// for long.
#[test]
fn a_promoted_replica_counts_from_its_first_sight() {
    let mut world = World::new();
    let (mut ann, mut bob) = (world.client(), world.client());
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.pass(50);
    world.promote_a_replica();
    assert_eq!(world.check(&mut Epoch::default(), s(1)), Grants::After(s(6)));
    world.pass(2);
    let seen = world.key.clone();
    assert!(seen.starts_with("1 run1 run2@87450000 1000:"), "{seen}");
    assert_eq!(world.check(&mut Epoch::default(), Duration::ZERO), Grants::After(s(4)), "a newcomer shares the wait");
    assert_eq!(world.check(&mut bob, s(1)), Grants::After(s(4)));
    assert_eq!(world.check(&mut bob, s(8)), Grants::After(s(6)), "its own longer ttl");
    assert!(world.key.starts_with("1 run1 run2@87450000 8000:"), "{}", world.key);
    world.pass(6);
    assert_eq!(world.check(&mut Epoch::default(), s(1)), Grants::Allowed);
    assert!(world.key.starts_with("1 run2 8000:"), "{}", world.key);
    assert_eq!(world.check(&mut bob, s(1)), Grants::Allowed, "it has read the first sight before");
    assert_eq!(world.check(&mut ann, s(6)), Grants::After(s(8)), "it sees this run for the first time");
}

/// Otherwise the next clients would read that a quarantine lasts.
#[test]
fn the_first_client_that_may_lock_after_a_quarantine_writes_that_the_run_is_in_use() {
    let mut world = World::new();
    let mut ann = world.client();
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.promote_a_replica();
    assert_eq!(world.check(&mut Epoch::default(), s(1)), Grants::After(s(6)));
    world.pass(6);
    let mut newcomer = Epoch::default();
    let quarantine = Quarantine::new(world.check(&mut newcomer, Duration::ZERO), world.now(), "", "");
    assert_eq!(quarantine.left(world.now()), None);
    assert!(quarantine.needs_reading(s(1), world.now()));
    assert_eq!(world.check(&mut newcomer, s(1)), Grants::Allowed);
    assert!(world.key.starts_with("1 run2 "), "{}", world.key);
}

#[test]
fn each_promotion_begins_a_quarantine() {
    let mut world = World::new();
    let mut ann = world.client();
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.promote_a_replica();
    let before_it_was_seen = world.key.clone();
    assert_eq!(world.check(&mut ann, s(6)), Grants::After(s(6)));
    world.pass(6);
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.pass(20);
    world.promote_a_replica();
    for key in [world.key.clone(), before_it_was_seen] {
        world.key = key;
        assert_eq!(world.check(&mut ann.clone(), s(6)), Grants::After(s(6)));
        assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::After(s(6)));
    }
}

/// Another client saw the run before the one that this client used in between.
#[test]
fn a_time_in_the_key_does_not_count_for_a_client_that_knows_a_later_run() {
    let mut world = World::new();
    let mut ann = world.client();
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.promote_a_replica();
    assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::After(s(6)));
    let (cut_off, run) = (world.key.clone(), world.run);
    world.run = 7;
    world.key = "1 run7 6000:87500000".to_owned();
    assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::Allowed);
    let mut bob = world.client();
    assert_eq!(world.check(&mut bob, s(6)), Grants::Allowed);
    world.pass(5);
    (world.key, world.run) = (cut_off, run);
    assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::After(s(1)));
    assert_eq!(world.check(&mut bob, s(6)), Grants::After(s(6)));
}

/// Otherwise no client would be served until the clock has caught up.
#[test]
fn a_clock_that_was_set_back_begins_the_quarantine_anew() {
    let mut world = World::new();
    let mut ann = world.client();
    assert_eq!(world.check(&mut ann, s(6)), Grants::Allowed);
    world.promote_a_replica();
    world.key = format!("1 run1 run2@{} 6000:87500000", 87_400_000 + 3_600_000);
    assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::After(s(6)));
    world.pass(6);
    assert_eq!(world.check(&mut Epoch::default(), s(6)), Grants::Allowed);
}

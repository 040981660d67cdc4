//! The redis-server of the harness: each fault that the suite injects has its documented effect.

use std::io;
use std::time::{Duration, Instant};

use leasehold_conformance::{Data, Fixture, ServerFault};
use leasehold_test_servers::{RedisServer, RedisSettings, Reply, SideConnection};

use super::support::{case, client, hold};

fn value(server: &RedisServer, key: &str) -> Reply {
    server.command(&["GET", key]).unwrap()
}

fn set(server: &RedisServer, key: &str) {
    assert_eq!(server.command(&["SET", key, "kept"]).unwrap().text(), "OK");
}

#[test]
fn starts_on_a_port_of_its_own_and_counts_what_clients_do() {
    let (one, other) = (RedisSettings::new().start().unwrap(), RedisSettings::new().start().unwrap());
    assert_ne!(one.addr(), other.addr());
    assert!(one.addr().port() < 32_768);
    set(&one, "k");
    assert_eq!(value(&other, "k"), Reply::Nil);

    let mut client = SideConnection::open(one.addr()).unwrap();
    let before = one.calls(&["eval", "get"]).unwrap();
    for _ in 0..3 {
        assert_eq!(client.command(&["EVAL", "return {1, redis.call('TIME')[1]}", "0"]).unwrap().items().len(), 2);
    }
    assert_eq!(one.calls(&["eval", "get"]).unwrap() - before, 3);
    assert_eq!(one.clients().unwrap().len(), 1, "only the client, not the harness");
    assert_eq!(client.command(&["NOSUCH"]).unwrap_err().kind(), io::ErrorKind::Other);
}

#[test]
fn a_monitor_counts_what_clients_send_and_not_what_scripts_call() {
    let server = RedisSettings::new().start().unwrap();
    let mut monitor = server.monitor(|command| command.starts_with("\"GET\"") || command.contains("wanted")).unwrap();
    let mut client = SideConnection::open(server.addr()).unwrap();
    for _ in 0..3 {
        client.command(&["EVAL", "return redis.call('GET', 'a')", "0"]).unwrap();
        client.command(&["EVAL", "return 'wanted'", "0"]).unwrap();
    }
    client.command(&["GET", "b"]).unwrap();
    assert_eq!(monitor.count(&server).unwrap(), 4);
    assert_eq!(monitor.count(&server).unwrap(), 4);
}

#[test]
fn keeps_or_loses_its_data_as_requested() {
    let mut server = RedisSettings::new().persistent().start().unwrap();
    let (addr, run) = (server.addr(), server.info("server", "run_id").unwrap());
    set(&server, "k");
    server.kill().unwrap();
    assert!(server.command(&["PING"]).is_err());
    server.start_again(Data::Kept).unwrap();
    assert_eq!((server.addr(), value(&server, "k").text()), (addr, "kept".to_owned()));
    assert_ne!(server.info("server", "run_id").unwrap(), run);
    server.stop().unwrap();
    server.start_again(Data::Lost).unwrap();
    assert_eq!(value(&server, "k"), Reply::Nil);

    let mut forgetful = RedisSettings::new().start().unwrap();
    forgetful.kill().unwrap();
    assert!(forgetful.start_again(Data::Kept).unwrap_err().to_string().contains("persistent()"));
    forgetful.start_again(Data::Lost).unwrap();
    assert!(forgetful.start_again(Data::Lost).is_err(), "it runs");
}

#[test]
fn pauses_with_its_connections_open() {
    let mut server = RedisSettings::new().start().unwrap();
    let mut client = SideConnection::open(server.addr()).unwrap();
    server.pause().unwrap();
    let begin = Instant::now();
    let waiter = std::thread::spawn(move || (client.command(&["PING"]).unwrap().text(), begin.elapsed()));
    let pause = Duration::from_millis(100);
    std::thread::sleep(pause);
    server.resume().unwrap();
    let (reply, took) = waiter.join().unwrap();
    assert_eq!(reply, "PONG");
    assert!(took >= pause, "answered after {took:?} by a paused server");
}

#[test]
fn takes_users_passwords_limits_and_a_unix_socket() {
    let server = RedisSettings::new()
        .unix_socket()
        .line("requirepass secret")
        .line("maxclients 50")
        .line("user leasehold on >pw ~locks:* +get")
        .start()
        .unwrap();
    assert!(server.unix_socket().unwrap().exists());
    assert_eq!(server.command(&["CONFIG", "GET", "maxclients"]).unwrap().items()[1].text(), "50");

    let mut client = SideConnection::open(server.addr()).unwrap();
    assert!(client.command(&["GET", "locks:a"]).unwrap_err().to_string().starts_with("NOAUTH"));
    assert!(client.command(&["AUTH", "leasehold", "wrong"]).unwrap_err().to_string().starts_with("WRONGPASS"));
    client.command(&["AUTH", "leasehold", "pw"]).unwrap();
    assert_eq!(client.command(&["GET", "locks:a"]).unwrap(), Reply::Nil);
    assert!(client.command(&["GET", "other"]).unwrap_err().to_string().starts_with("NOPERM"));
}

#[test]
#[cfg(target_os = "linux")]
fn its_wall_clock_can_be_stepped_and_no_other() {
    let (stepped, other) =
        (RedisSettings::new().steppable_clock().start().unwrap(), RedisSettings::new().start().unwrap());
    let time = |server: &RedisServer| -> i64 { server.command(&["TIME"]).unwrap().items()[0].text().parse().unwrap() };
    for (step, ahead) in [(0, 0), (60_000_000, 60), (-3_600_000_001, -3_540)] {
        stepped.step_clock(step).unwrap();
        let seen = time(&stepped) - time(&other);
        assert!((ahead - 2..=ahead + 2).contains(&seen), "{seen} s ahead, not {ahead}");
    }
    assert!(other.step_clock(1).is_err());
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let error = RedisSettings::new().line("maxclients many").start().unwrap_err().to_string();
    assert!(error.contains("does not start"), "{error}");
}

#[test]
fn leaves_no_process_and_no_folder() {
    let server = RedisSettings::new().unix_socket().start().unwrap();
    let (id, socket) = (server.id().unwrap(), server.unix_socket().unwrap());
    assert!(
        std::panic::catch_unwind(move || {
            let _server = server;
            std::panic::resume_unwind(Box::new("injected panic"));
        })
        .is_err()
    );
    assert!(!socket.parent().unwrap().exists());
    #[cfg(target_os = "linux")]
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    #[cfg(not(target_os = "linux"))]
    let _ = id;
}

/// Clients cannot observe the flush, so no case of the suite can check the fixture.
#[test]
fn the_fixture_flushes_scripts() {
    case(|fixture| async move {
        hold(&client(&fixture, Duration::from_secs(10)).await, "scripts").await.release().await.expect("a release");
        let has_none = || {
            let info = fixture.server().command(&["INFO", "memory"]).expect("INFO works").text();
            info.lines().any(|line| line.trim() == "number_of_cached_scripts:0")
        };
        assert!(!has_none(), "an acquire loads a script");
        Fixture::server(&fixture, ServerFault::FlushScripts).await.expect("a server can flush its scripts");
        assert!(has_none(), "Fixture::server(FlushScripts): the server still has scripts");
    });
}

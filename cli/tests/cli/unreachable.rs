//! The store is unavailable when a run starts.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;

use crate::process::{BOUND, Running, leasehold, outcome, outcome_of, output, until, until_within};
use crate::store::Store;
use crate::terminal::Terminal;

on_every_store!(
    a_wait_includes_reaching_the_store,
    without_a_wait_a_store_that_does_not_reply_ends_the_run,
    a_wait_for_the_store_ends_in_time_or_with_a_signal,
    a_terminal_shows_that_the_store_does_not_reply,
    many_runs_that_start_at_once_all_get_the_lock,
);

/// Longer than the bound of one call to the store.
const SILENCE: Duration = Duration::from_secs(3);

fn a_wait_includes_reaching_the_store(store: &Store) {
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0);
    store.stop_replying();
    let mut run = Running::start(store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
    std::thread::sleep(SILENCE);
    assert!(!run.has_ended() && !store.file("ran").exists());
    let lag_monitor = LagMonitor::start();
    store.reply_again();
    let back = Instant::now();
    assert_eq!(run.end(), (0, String::new(), String::new()));
    let took = back.elapsed();
    // A pause between two attempts, and an attempt that began while the store did not reply.
    assert!(took <= Duration::from_secs(4) + lag_monitor.allowance(), "{took:?}");
}

fn without_a_wait_a_store_that_does_not_reply_ends_the_run(store: &Store) {
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0);
    store.stop_replying();
    let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
    let (code, _, stderr) = outcome(store, &["run", "x", "--no-wait", "--", "touch", "ran"]);
    let took = begin.elapsed();
    store.reply_again();
    assert_eq!((code, stderr.lines().count()), (122, 1), "{stderr}");
    assert!(took <= Duration::from_secs(3) + lag_monitor.allowance(), "{took:?}");
    assert!(!store.file("ran").exists());
}

fn a_wait_for_the_store_ends_in_time_or_with_a_signal(store: &Store) {
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0);
    store.stop_replying();
    let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
    let (code, _, stderr) = outcome(store, &["run", "x", "--wait", "1500ms", "--", "touch", "ran"]);
    let took = begin.elapsed();
    assert_eq!((code, stderr.lines().count()), (122, 1), "{stderr}");
    assert!(took >= Duration::from_millis(1500), "{took:?}");
    assert!(took <= Duration::from_secs(4) + lag_monitor.allowance(), "{took:?}");
    let run = Running::start(store, &["run", "x", "--", "touch", "ran"]);
    std::thread::sleep(Duration::from_millis(500));
    let signalled = Instant::now();
    run.signal(rustix::process::Signal::TERM);
    let (code, ..) = run.end();
    assert_eq!(code, 143);
    // The client withdraws a claim that may have reached the store, with two calls at most.
    assert!(signalled.elapsed() <= Duration::from_secs(4) + lag_monitor.allowance(), "{:?}", signalled.elapsed());
    store.reply_again();
    assert!(!store.file("ran").exists());
}

fn a_terminal_shows_that_the_store_does_not_reply(store: &Store) {
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0);
    store.stop_replying();
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "echo", "my turn"]);
    terminal.shows("waiting ");
    // A file can be read while another process writes to it.
    terminal.shows(if store.stays_readable() { "does not grant it yet" } else { "s of 1m: the store does not reply" });
    store.reply_again();
    terminal.shows("my turn");
    terminal.ends_with(0);
}

/// Each run starts three processes, and all runs connect to the store at once. Two cores are busy with them for some
/// seconds, so a call has more time than by default: a release without a reply in time may end as one of a lost lease.
fn many_runs_that_start_at_once_all_get_the_lock(store: &Store) {
    const RUNS: usize = 100;
    let wait = format!("{}s", 2 * BOUND.as_secs());
    let args = ["run", "x", "--wait", &wait, "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN >> tokens"];
    let url = format!("{}{}timeout=10s", store.url(), if store.url().contains('?') { '&' } else { '?' });
    let start = || Running::spawn(leasehold(store, &args).env("LEASEHOLD_STORE", &url));
    let mut started: Vec<_> = (0..RUNS).map(|_| start()).collect();
    until_within(3 * BOUND, "everybody has ended", || started.iter_mut().all(Running::has_ended));
    for run in started {
        assert_eq!(run.end(), (0, String::new(), String::new()));
    }
    let tokens = std::fs::read_to_string(store.file("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), RUNS);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn a_wait_includes_the_start_of_the_server() {
    let store = Store::redis();
    store.stop_server();
    let mut run = Running::start(&store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!run.has_ended());
    store.start_server();
    assert_eq!(run.end(), (0, String::new(), String::new()));
    assert!(store.file("ran").exists());
}

/// The server accepts connections and sends nothing.
#[test]
fn each_question_to_a_silent_server_has_one_bound() {
    let (store, silent) = (Store::any(), TcpListener::bind("127.0.0.1:0").unwrap());
    let addr = silent.local_addr().unwrap();
    let mut urls = vec![format!("redis://{addr}")];
    urls.extend(["", "&strategy=for-update"].map(|strategy| format!("mysql://u:p@{addr}/locks?tls=off{strategy}")));
    if cfg!(feature = "etcd") {
        urls.push(format!("etcd://{addr}"));
    }
    if cfg!(feature = "zk") {
        urls.push(format!("zk://{addr}"));
    }
    for url in urls {
        let questions: [(&[&str], i32); 4] =
            [(&["status", "x"], 122), (&["ls"], 122), (&["break", "x", "--yes"], 122), (&["doctor"], 1)];
        for (args, code) in questions {
            let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
            let outcome = outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", &url)));
            // The default bound of a call, and the start of the process.
            let (took, bound) = (begin.elapsed(), Duration::from_millis(1500) + lag_monitor.allowance());
            assert!(outcome.0 == code && took <= bound, "{url} {args:?} after {took:?}: {outcome:?}");
        }
    }
}

/// The server accepts connections and sends nothing, or it does not even accept one, as behind a firewall that drops
/// packets.
#[test]
fn doctor_names_the_step_of_connecting_that_is_slow() {
    let store = Store::any();
    let [silent, full] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let (silent_addr, full_addr) = (silent.local_addr().unwrap(), full.local_addr().unwrap());
    rustix::net::listen(&full, 0).unwrap();
    let connect = || TcpStream::connect_timeout(&full_addr, Duration::from_millis(300)).ok();
    let _fillers: Vec<_> = std::iter::from_fn(connect).collect();
    let mut urls = vec![("redis://", "", "the log-in", "the TCP connection")];
    // sqlx takes these as one.
    let all = "TCP, TLS and the log-in";
    urls.extend(["", "&strategy=for-update"].map(|strategy| ("mysql://u:p@", strategy, all, all)));
    if cfg!(feature = "etcd") {
        urls.push(("etcd://", "", "the first reply", "the TCP connection"));
        urls.push(("etcd://u:p@", "", "the log-in", "the TCP connection"));
    }
    if cfg!(feature = "zk") {
        urls.push(("zk://", "", "the session", "the TCP connection"));
    }
    for (scheme, more, of_silent, of_full) in urls {
        for (addr, step) in [(silent_addr, of_silent), (full_addr, of_full)] {
            let path = if scheme.starts_with("mysql") { "/locks?tls=off" } else { "" };
            let url = format!("{scheme}{addr}{path}{more}");
            let (code, found, _) = outcome_of(&output(leasehold(&store, &["doctor"]).env("LEASEHOLD_STORE", &url)));
            let expected = format!("no connection to the server at {addr}: {step} took longer than ");
            assert!(code == 1 && found.contains(&expected), "{url}: no {expected:?} in {found}");
        }
    }
}

#[test]
fn an_error_that_waiting_cannot_cure_ends_the_run_at_once() {
    let store = Store::any();
    std::fs::write(store.file("text"), "no database ".repeat(1000)).unwrap();
    let lag_monitor = LagMonitor::start();
    let (mysql, redis) = (Store::mysql(), Store::redis());
    let file = |path: &str| format!("sqlite://{}", store.file(path).display());
    let stores = [
        (file("text"), 123, "the file is not a SQLite database"),
        (file("missing/locks.db"), 2, "/missing cannot be used: create it"),
        (file("text/locks.db"), 2, "/text is not a folder"),
        (file("text/deeper/locks.db"), 2, "/text/deeper cannot be used"),
        (store.url().replace("/locks.db", "?timeout=2s"), 2, "is a folder: name a file in it"),
        (redis.url().replace("redis://", "redis://nobody:hunter2@"), 123, "password"),
        (mysql.url().replace("locker", "nobody"), 123, "password"),
        (mysql.url().replace("/locks", "/missing"), 123, "database"),
    ];
    for (url, expected, hint) in stores {
        let begin = Instant::now();
        let mut command = leasehold(&store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
        let (code, _, stderr) = outcome_of(&output(command.env("LEASEHOLD_STORE", &url)));
        assert_eq!((code, stderr.lines().count()), (expected, 1), "{url}: {stderr}");
        assert!(stderr.contains(hint) && !stderr.contains("hunter2"), "{url}: {stderr}");
        assert!(begin.elapsed() <= Duration::from_secs(5) + lag_monitor.allowance(), "{:?}", begin.elapsed());
    }
    assert!(!store.file("ran").exists());
}

/// The limit of connections passes by itself: a wait goes on, and is in time.
#[test]
fn a_wait_includes_room_for_a_connection() {
    for store in [Store::redis(), Store::mysql(), Store::mysql_for_update()] {
        let fillers = store.fill_connections();
        for (wait, at_least) in [("--no-wait", 0), ("--wait=1500ms", 1500)] {
            let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
            let (code, _, stderr) = outcome(&store, &["run", "x", wait, "--", "touch", "ran"]);
            let took = begin.elapsed();
            assert_eq!((code, stderr.lines().count()), (123, 1), "{wait}: {stderr}");
            assert!(stderr.contains("connections"), "{wait}: {stderr}");
            assert!(took >= Duration::from_millis(at_least), "{wait}: {took:?}");
            // The bound of a call, and the start of the process.
            let bound = Duration::from_millis(at_least + 3000) + lag_monitor.allowance();
            assert!(took <= bound, "{wait}: {took:?}");
        }
        let before = store.refused_connections();
        let mut run = Running::start(&store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
        until("the run is refused again and again", || store.refused_connections() >= before + 2);
        assert!(!run.has_ended() && !store.file("ran").exists());
        store.limit_connections(1000);
        drop(fillers);
        assert_eq!(run.end(), (0, String::new(), String::new()));
        assert!(store.file("ran").exists());
    }
}

#[test]
fn more_runs_than_connections_all_get_the_lock() {
    all_get_the_lock(&Store::mysql());
}

/// A run needs two connections at the same time, and the idle ones of others must not take them away.
#[test]
fn more_runs_than_connections_of_for_update_all_get_the_lock() {
    all_get_the_lock(&Store::mysql_for_update());
}

/// There are fewer connections than runs that wait.
fn all_get_the_lock(store: &Store) {
    const RUNS: usize = 24;
    store.limit_connections(12);
    let wait = format!("{}s", 2 * BOUND.as_secs());
    let args = ["run", "x", "--wait", &wait, "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN >> tokens"];
    let mut started: Vec<_> = (0..RUNS).map(|_| Running::start(store, &args)).collect();
    // An idle connection is closed after 60 s, which would end a deadlock.
    until_within(BOUND / 2, "everybody has ended", || started.iter_mut().all(Running::has_ended));
    assert!(store.refused_connections() > 0, "there was room for all");
    for run in started {
        assert_eq!(run.end(), (0, String::new(), String::new()));
    }
    assert_eq!(std::fs::read_to_string(store.file("tokens")).unwrap().lines().count(), RUNS);
}

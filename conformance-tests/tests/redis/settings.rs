//! Valid and invalid settings of servers and users.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::redis::{ScriptCalls, acl};
use leasehold_conformance::harness::{Fault, FaultProxy, Port};
use leasehold_conformance::{DEADLINE, Data, Fixture, ServerFault, run};
use leasehold_core::{Error, ErrorKind, LockClient};
use leasehold_test_servers::{RedisServer, RedisSettings, certificates, percent_encoded};

use super::support::{case, client, hold};

const TTL: Duration = Duration::from_secs(2);

fn start(settings: RedisSettings) -> RedisServer {
    settings.start().unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that a lock works: acquire, wait, handoff.
async fn works(url: &str) {
    let (ann, bob) = (connect(url).await.expect("a client"), connect(url).await.expect("a client"));
    let guard = hold(&ann, "works").await;
    let waiting = tokio::spawn(async move { hold(&bob, "works").await.fencing_token() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    let token = guard.fencing_token();
    guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic") > token);
}

async fn connect(url: &str) -> Result<LockClient, Error> {
    leasehold::connect(url).await
}

#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, hint: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(hint), "no {hint:?} in {text}");
    assert!(!text.contains("hunter2"), "a password in {text}");
}

#[test]
fn a_unix_socket_works() {
    run(DEADLINE, || async {
        let server = start(RedisSettings::new().unix_socket());
        let socket = server.unix_socket().expect("it has one");
        works(&format!("redis+unix://{}", socket.display())).await;
        works(&format!("redis+unix://{}?db=2", socket.display())).await;
    });
}

#[test]
fn databases_and_prefixes_are_separate() {
    run(DEADLINE, || async {
        let server = start(RedisSettings::new());
        let url = server.url();
        works(&format!("{url}/3")).await;
        let mut guards = Vec::new();
        for url in [url.clone(), format!("{url}/3"), format!("{url}/?prefix=other:")] {
            let client = connect(&url).await.expect("a client");
            guards.push(hold(&client, "apart").await);
        }
        assert!(guards.iter().all(|guard| guard.is_held()));
    });
}

/// `redis-cli ACL SETUSER locks … $(leasehold acl redis)`: a shell splits the rules at spaces, and `redis-cli` passes the
/// words on as they are. A prefix has no spaces.
#[test]
fn a_shell_splits_the_rules_of_any_prefix() {
    run(DEADLINE, || async {
        let server = start(RedisSettings::new());
        let prefixes = ["it's:", "\"q\"#:", "$(ls)`ls`:", r"a*[b]?^\:", "~&+@all"];
        for (index, prefix) in prefixes.into_iter().enumerate() {
            let (user, rules) = (format!("user{index}"), acl(prefix, ScriptCalls::Eval).expect("a prefix"));
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"printf '%s\n' $(printf '%s\n' "$1")"#, "sh", &rules]).current_dir("/");
            let words = String::from_utf8(shell.output().expect("a shell").stdout).expect("text");
            let set = ["ACL", "SETUSER", &user, "on", ">hunter2"].into_iter().chain(words.lines());
            server.command(&set.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{prefix}: {error}"));
            let encoded = percent_encoded(prefix);
            works(&format!("redis://{user}:hunter2@{}/?prefix={encoded}", server.addr())).await;
        }
    });
}

#[test]
fn a_server_that_stops_for_moments_loses_no_lease() {
    run(DEADLINE, || async {
        let server = start(RedisSettings::new());
        let client = connect(&format!("{}/?timeout=1s", server.url())).await.expect("a client");
        let guards: Vec<_> = {
            let mut guards = Vec::new();
            for number in 0..50 {
                guards.push(client.lock(format!("moments {number}")).ttl(TTL).acquire().await.expect("free"));
            }
            guards
        };
        for _ in 0..8 {
            server.command(&["CLIENT", "PAUSE", "300", "ALL"]).expect("CLIENT PAUSE");
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        assert!(guards.iter().all(|guard| guard.is_held()), "{:?}", client.stats());
        assert_eq!(client.stats().lost, 0);
    });
}

#[test]
fn a_lazy_client_connects_within_the_wait_of_its_acquire() {
    run(DEADLINE, || async {
        let mut server = start(RedisSettings::new());
        server.kill().expect("it runs");
        let error = connect(&server.url()).await.expect_err("an eager client makes one attempt");
        assert_error(&error, ErrorKind::Unavailable, "cannot connect");
        let client = leasehold::connect_lazy(&server.url()).expect("nothing is sent yet");
        let lock = client.lock("lazy").ttl(TTL).wait(Duration::from_secs(30));
        assert_error(&lock.try_acquire().await.expect_err("one attempt"), ErrorKind::Unavailable, "cannot connect");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiting.is_finished(), "its wait is not over");
        server.start_again(Data::Lost).expect("a server");
        assert!(waiting.await.expect("no panic").expect("the server is there within the wait").is_held());
    });
}

/// The refusals are those of real servers. Waiting does not help, so a wait of minutes ends with the first one.
#[test]
fn what_waiting_cannot_cure_ends_a_wait_at_once() {
    run(DEADLINE, || async {
        let lines =
            |lines: &[&str]| start(lines.iter().fold(RedisSettings::new(), |settings, line| settings.line(*line)));
        let (plain, cluster) = (lines(&["databases 2"]), lines(&["cluster-enabled yes"]));
        let (no_scripts, no_set) = (lines(&["rename-command EVALSHA \"\""]), lines(&["rename-command SET \"\""]));
        let protected = lines(&["requirepass hunter2", "user limited on >hunter2 ~leasehold:* +@all -select"]);
        let at = |server: &RedisServer, user: &str, rest: &str| format!("redis://{user}{}{rest}", server.addr());
        works(&at(&protected, ":hunter2@", "")).await;
        for (url, kind, hint) in [
            (at(&plain, "", "/2"), ErrorKind::Unsupported, "`databases`"),
            (at(&cluster, "", "/1"), ErrorKind::Unsupported, "`redis+cluster://`"),
            (at(&cluster, "", ""), ErrorKind::Unsupported, "`redis+cluster://`"),
            (at(&no_scripts, "", ""), ErrorKind::Unsupported, "rename-command"),
            (at(&no_set, "", ""), ErrorKind::Unsupported, "rename-command"),
            (at(&protected, "", ""), ErrorKind::Auth, "password"),
            (at(&protected, ":hunter22@", ""), ErrorKind::Auth, "password"),
            (at(&plain, "nobody:hunter2@", ""), ErrorKind::Auth, "user"),
            (at(&protected, "limited:hunter2@", "/1"), ErrorKind::Auth, "acl"),
        ] {
            let client = leasehold::connect_lazy(&url).expect("nothing is sent yet");
            let lock = client.lock("refused").wait(Duration::from_secs(600));
            let ended = tokio::time::timeout(Duration::from_secs(10), lock.acquire()).await;
            let error = ended.unwrap_or_else(|_| panic!("it waits: {url}"));
            assert_error(&error.expect_err(&url), kind, hint);
        }
    });
}

/// The same after a reconnect to a server with another configuration.
#[test]
fn what_waiting_cannot_cure_ends_a_wait_after_a_reconnect() {
    run(DEADLINE, || async {
        let (server, other) = (start(RedisSettings::new()), start(RedisSettings::new().line("databases 1")));
        let proxy = FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        let client = connect(&format!("redis://{}/1", proxy.addr())).await.expect("a client");
        hold(&client, "before").await.release().await.expect("a release");
        proxy.redirect(other.addr());
        proxy.apply(Fault::Disconnect);
        let lock = client.lock("after").wait(Duration::from_secs(600));
        let ended = tokio::time::timeout(Duration::from_secs(10), lock.acquire()).await.expect("it does not wait");
        assert_error(&ended.expect_err("no such database"), ErrorKind::Unsupported, "`databases`");
    });
}

/// A server with TLS whose certificates are in a folder.
fn with_tls(folder: &Path, port: &Port) -> RedisServer {
    let file = |name: &str| folder.join(name).display().to_string();
    start(
        RedisSettings::new()
            .line(format!("tls-port {}", port.number()))
            .line(format!("tls-cert-file {}", file("own.pem")))
            .line(format!("tls-key-file {}", file("own.key")))
            .line(format!("tls-ca-cert-file {}", file("ca.pem")))
            .line("tls-auth-clients yes"),
    )
}

/// The authority, the server's and the client's certificate are replaced at their paths: a new connection reads them
/// again, and the lease goes on.
#[test]
fn rotated_certificates_are_read_for_the_next_connection() {
    run(DEADLINE, || async {
        let folder = leasehold_conformance::harness::folder("certificates").expect("a folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let port = Port::free().expect("a port");
        let server = with_tls(folder.path(), &port);
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        let url = format!("rediss://localhost:{}/?ca={ca}&cert={cert}&key={key}", port.number());
        let client = connect(&url).await.expect("a client");
        let guard = client.lock("held").ttl(Duration::from_secs(6)).acquire().await.expect("free");
        for _ in 0..2 {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            server.command(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key]).expect("a rotation");
            server.command(&["CONFIG", "SET", "tls-ca-cert-file", &ca]).expect("a rotation");
            let renewed = client.stats().renewed;
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect("CLIENT KILL");
            server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).expect("CLIENT KILL");
            hold(&client, "other").await.release().await.expect("a release");
            super::support::eventually("the lease is renewed", || client.stats().renewed > renewed).await;
        }
        assert!(guard.is_held());
        guard.release().await.expect("a release");
    });
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

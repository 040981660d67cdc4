//! What ends a connection that seems to be idle: limits of the server and of proxies. A lease by `SELECT … FOR UPDATE`
//! must outlast them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{Fixture, Route};
use leasehold_core::{ErrorKind, LockClient, LockGuard, LossReason};
use leasehold_test_servers::MySqlSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::record_for_update::HOLDER;
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, builder, client, eventually, hold, own_servers};

/// Renewed every 10 s: no renewal comes within a test.
const TTL: Duration = Duration::from_secs(30);

/// The limits of a server, in seconds, that end idle connections, idle transactions and statements.
const LIMITS: [&str; 8] = [
    "wait_timeout",
    "interactive_timeout",
    "net_read_timeout",
    "net_write_timeout",
    "idle_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "idle_write_transaction_timeout",
    "max_statement_time",
];

/// The URL of clients that reach the server by this proxy.
pub(super) fn url_by(fixture: &MySqlFixture, proxy: &FaultProxy, more: &str) -> String {
    let server = fixture.server().addr().to_string();
    fixture.url(Route::Clear, more).replace(&server, &proxy.addr().to_string())
}

/// The connections that hold locks, as the server sees it.
pub(super) fn holders(fixture: &MySqlFixture) -> Vec<String> {
    let rows = Stored(&*fixture.server()).query(&format!("SELECT CAST({HOLDER} AS CHAR) FROM leasehold_fences f"));
    let ids = rows.into_iter().filter_map(|row| row[0].clone());
    ids.map(|id| String::from_utf8_lossy(&id).into_owned()).collect()
}

/// The connection that holds the only lock.
fn holder(fixture: &MySqlFixture) -> Option<String> {
    holders(fixture).into_iter().next()
}

/// Asserts that the same connection holds the lock for `time`, and that no other client is granted it.
async fn keeps(fixture: &MySqlFixture, guard: &LockGuard, time: Duration, what: &str) {
    let (bob, first) = (client(fixture, SOON).await, holder(fixture));
    assert!(first.is_some(), "{what}: the server has no holder");
    let (lock, name) = (bob.lock(guard.name().as_str()).wait(time), guard.name().clone());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(time).await;
    assert_eq!(holder(fixture), first, "{what}: the server ended the connection that holds {name}");
    let waited = waiting.await.expect("no panic").map(|guard| guard.fencing_token());
    assert_eq!(waited.expect_err("two hold the lock").kind(), ErrorKind::Timeout, "{what}");
    assert!(guard.is_held(), "{what}");
}

/// Each limit is two seconds for every connection that is opened from now on.
#[test]
fn no_idle_limit_of_the_server_ends_a_lease() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        for limit in LIMITS {
            fixture.execute(&format!("SET GLOBAL {limit} = 2"));
        }
        let ann = client(&fixture, TTL).await;
        let guard = hold(&ann, "idle").await;
        keeps(&fixture, &guard, Duration::from_millis(4500), "all limits are 2 s").await;
        guard.release().await.expect("it was held");
    });
}

/// Asserts that a connect is refused with these words, and that a client that connects later is refused its first lock.
async fn is_refused(url: &str, words: &str) {
    let connected = MySqlBackend::connect(url).await.map(drop).expect_err("a limit is left");
    let client = LockClient::builder(MySqlBackend::connect_lazy(url).expect("a backend")).wait(SOON).build();
    let acquired = client.expect("a client").lock("job").acquire().await.expect_err("a limit is left");
    for error in [connected, acquired] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words), "no {words:?} in {error}");
    }
}

/// The maximum of the server is lower than what the lease needs.
#[test]
fn a_limit_that_cannot_be_set_is_an_error_that_says_so() {
    own_servers(|| async {
        let fixture = MySqlFixture::with_settings(MySqlSettings::new().option("maximum-wait-timeout=20"));
        is_refused(&fixture.url(Route::Clear, ""), "maximum").await;
    });
}

/// A proxy that keeps the limits of its connections answers to the client that they are removed.
#[test]
fn a_limit_that_a_proxy_keeps_is_an_error_that_says_so() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let server = fixture.server().addr();
        let proxy = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = proxy.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((client, _)) = proxy.accept().await {
                tokio::spawn(keep_limits(client, server));
            }
        });
        let url = fixture.url(Route::Clear, "").replace(&server.to_string(), &addr.to_string());
        is_refused(&url, "is there a proxy in between?").await;
    });
}

/// Forwards a connection, but sets the limits of statements to 9 s where the client sets them to 0.
async fn keep_limits(client: TcpStream, server: SocketAddr) -> io::Result<()> {
    const REMOVED: &[u8] = b"_time = 0";
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    let replies = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let mut bytes = vec![0; 1 << 16];
    // A client sends the statement in one piece.
    loop {
        let read = from_client.read(&mut bytes).await?;
        if read == 0 {
            break;
        }
        for at in REMOVED.len()..=read {
            if bytes[..at].ends_with(REMOVED) {
                bytes[at - 1] = b'9';
            }
        }
        to_server.write_all(&bytes[..read]).await?;
    }
    drop(to_server);
    let _ = replies.await;
    Ok(())
}

/// A proxy closes connections without traffic after 3 s and passes the end on to the server. `keepalive` is lower here.
#[test]
fn a_lease_is_used_more_often_than_idle_connections_are_closed() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let proxy = FaultProxy::start(fixture.server().addr()).expect("a proxy");
        let backend = MySqlBackend::connect(&url_by(&fixture, &proxy, "&keepalive=1s")).await.expect("a backend");
        let ann = LockClient::builder(backend).ttl(TTL).build().expect("a client");
        let guard = hold(&ann, "idle").await;
        // Nothing but the connection of the lease is used from here on.
        let mut last = proxy.stats().requests;
        for _ in 0..3 {
            let used = proxy.wait_for(Duration::from_millis(2500), |stats| stats.requests > last).await;
            assert!(used, "the connection of the lease was not used for 2.5 s");
            last = proxy.stats().requests;
        }
        // The holder learns at once that the path has closed its connection.
        proxy.apply(Fault::Disconnect);
        let loss =
            tokio::time::timeout(Duration::from_millis(2500), guard.lost()).await.expect("the next use tells it");
        assert_eq!(loss.reason, LossReason::Gone);
    });
}

/// Using the connection of a lease neither prolongs the lease nor ends it early: if its holder is cut off, the server
/// ends it after the rest of its ttl.
#[test]
fn a_lease_ends_with_its_ttl_although_its_connection_is_used() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        fixture.execute("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = ON");
        let ann = builder(&fixture, "&keepalive=2s").await.ttl(Duration::from_secs(90)).build().expect("a client");
        let guard = hold(&ann, "told").await;
        let told = || {
            let id = holder(&fixture).expect("the server has a holder");
            let rows = Stored(&*fixture.server()).query(&format!(
                "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE thread_id = {id} \
                 AND argument REGEXP '^SET SESSION wait_timeout = [0-9]+$' ORDER BY event_time DESC LIMIT 1"
            ));
            let text = String::from_utf8_lossy(rows[0][0].as_deref().unwrap_or_default()).into_owned();
            text.rsplit(' ').next().and_then(|seconds| seconds.parse::<u64>().ok()).expect("seconds")
        };
        assert_eq!(told(), 90, "the server ends the connection after another time than the ttl");
        // The second use is two seconds later. If the first one had begun the ttl again, it would set the same time.
        for left in [88, 86] {
            eventually("the connection is used for the rest of the ttl", || told() == left).await;
        }
        guard.release().await.expect("it was held");
    });
}

//! Refusals that waiting cannot cure: an acquire fails with the first one, and says what to change.

use std::cell::Cell;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use leasehold_conformance::harness::FaultProxy;
use leasehold_core::admin::CheckStatus;
use leasehold_test_servers::{MySqlServer, MySqlSettings};

use super::refused_later::a_refusal_ends_each_wait;
use super::set_up::set_up;
use super::strategy::MySqlFixture;
use super::support::own_servers;

/// Far longer than a refused acquire may take.
const WAIT: Duration = Duration::from_secs(60);

const AT_ONCE: Duration = Duration::from_secs(10);

const EXECUTING: &str = "SELECT '1' FROM information_schema.processlist WHERE user = 'locker' AND command <> 'Sleep'";

struct Refusal {
    what: &'static str,
    /// Makes the server unfit, after it was set up.
    statement: &'static str,
    user: &'static str,
    database: &'static str,
    more: &'static str,
    kind: ErrorKind,
    hint: &'static str,
}

/// A user and a server that fit.
const FIT: Refusal = Refusal {
    what: "",
    statement: "DO 0",
    user: "locker:pass-word",
    database: "locks",
    more: "tls=off",
    kind: ErrorKind::Unsupported,
    hint: "",
};

const REFUSALS: &[Refusal] = &[
    Refusal { what: "no TLS", more: "tls=verify", hint: "offers no TLS", ..FIT },
    Refusal { what: "another password", user: "locker:other", kind: ErrorKind::Auth, hint: "password", ..FIT },
    Refusal { what: "no such user", user: "stranger:x", kind: ErrorKind::Auth, hint: "password", ..FIT },
    Refusal { what: "another database", database: "mysql", kind: ErrorKind::Auth, hint: "acl mysql", ..FIT },
    Refusal {
        what: "no permission",
        statement: "REVOKE ALL PRIVILEGES, GRANT OPTION FROM 'locker'@'%'",
        kind: ErrorKind::Auth,
        hint: "acl mysql",
        ..FIT
    },
    Refusal { what: "no database", statement: "DROP DATABASE locks", hint: "does not exist", ..FIT },
];

impl Refusal {
    async fn is_met(&self, server: &MySqlServer) {
        let what = self.what;
        server.query(self.statement).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (user, database, port) = (self.user, self.database, server.addr().port());
        let url = format!("mysql://{user}@127.0.0.1:{port}/{database}?{}{}", self.more, MySqlFixture::SETTINGS);
        let client = leasehold::connect_lazy(&url).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let begin = Instant::now();
        let refused = client.lock("job").wait(WAIT).acquire().await;
        let error = refused.err().unwrap_or_else(|| panic!("{what}: it is not refused"));
        assert!(begin.elapsed() < AT_ONCE, "{what}: refused after {:?}: {error:?}", begin.elapsed());
        assert_eq!(error.kind(), self.kind, "{what}: {error:?}");
        assert!(error.to_string().contains(self.hint), "{what}: {error}");
    }
}

#[test]
fn a_refusal_that_waiting_cannot_cure_ends_an_acquire_at_once() {
    own_servers(|| async {
        for refusal in REFUSALS {
            let server = MySqlSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
            set_up(&server);
            refusal.is_met(&server).await;
        }
    });
}

/// The statements make the server unfit to which the client connects again.
#[test]
fn a_refusal_that_waiting_cannot_cure_ends_a_wait_after_a_reconnect() {
    own_servers(|| async {
        let start = || {
            let server = MySqlSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
            set_up(&server);
            server
        };
        let server = start();
        for (statement, kind, hint) in [
            ("ALTER USER 'locker'@'%' IDENTIFIED BY 'other'", ErrorKind::Auth, "password"),
            ("REVOKE ALL PRIVILEGES, GRANT OPTION FROM 'locker'@'%'", ErrorKind::Auth, "acl mysql"),
            ("DROP DATABASE locks", ErrorKind::Unsupported, "does not exist"),
        ] {
            let other = start();
            other.query(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
            let proxy = FaultProxy::start(server.addr()).expect("a proxy");
            let connect = async |addr| {
                let url = format!("mysql://locker:pass-word@{addr}/locks?tls=off{}", MySqlFixture::SETTINGS);
                leasehold::connect(&url).await.expect("it serves the user")
            };
            let (ann, bob) = (connect(server.addr()).await, connect(proxy.addr()).await);
            // A waiter has a statement at the server most of the time, and a holder has none.
            let seen = Cell::new(0);
            let waits = || {
                seen.set(seen.get() + server.query(EXECUTING).expect("the connections").len());
                seen.get() >= 20
            };
            a_refusal_ends_each_wait((&ann, &bob), waits, (&proxy, other.addr()), (kind, hint)).await;
        }
    });
}

/// InnoDB writes no statements at the isolation level of Leasehold, so the first write is refused.
#[test]
fn a_binary_log_of_statements_is_refused_and_examined() {
    own_servers(|| async {
        let settings = MySqlSettings::new().option("log-bin=log").option("binlog-format=STATEMENT");
        let server = settings.start().unwrap_or_else(|error| panic!("{error}"));
        set_up(&server);
        let refusal = Refusal { what: "a log of statements", hint: "`binlog_format`", ..FIT };
        refusal.is_met(&server).await;

        let port = server.addr().port();
        let url = format!("mysql://locker:pass-word@127.0.0.1:{port}/locks?tls=off{}", MySqlFixture::SETTINGS);
        let client = leasehold::connect_lazy(&url).expect("a client");
        let checks = client.examine().await.expect("the server is reached");
        let check = checks.iter().find(|check| check.about == "binary log").expect("the log is examined");
        assert!(matches!(check.status, CheckStatus::Error(_)), "{check:?}");
    });
}

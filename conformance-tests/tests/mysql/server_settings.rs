//! Settings of the server that a client must not depend on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::mysql::{MySqlBackend, read_only_grants};
use leasehold_conformance::{Fixture, Route};
use leasehold_core::ErrorKind;

use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, builder, case, client, hold, own_servers, patient_builder};

const CLIENTS: u64 = 64;

/// Every client acquires a lock of its own, one that all share and new ones. No two hold the shared one at once.
async fn crowd(fixture: &MySqlFixture, what: &str) {
    let inside = Arc::<AtomicU64>::default();
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let client = patient_builder(fixture, "&connections=1").await.ttl(SOON).build().expect("a client");
        let (inside, what) = (inside.clone(), what.to_owned());
        tasks.push(tokio::spawn(async move {
            for round in 0..3 {
                for name in [format!("own {number}"), "shared".to_owned(), format!("new {what} {number} {round}")] {
                    let guard = client.lock(&*name).acquire().await;
                    let guard = guard.unwrap_or_else(|error| panic!("{what}: {name} is not acquired: {error:?}"));
                    if name == "shared" {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{what}: two hold the lock");
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                    let released = guard.release().await;
                    released.unwrap_or_else(|error| panic!("{what}: {name} is not released: {error:?}"));
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// A setting of the whole server. Others may use the server, so the former value is restored.
struct Global<'a> {
    fixture: &'a MySqlFixture,
    name: String,
    former: String,
}

impl<'a> Global<'a> {
    /// Saves the first of these settings that the server has: MySQL and MariaDB have different names.
    fn save(fixture: &'a MySqlFixture, names: &[&str]) -> Self {
        let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        let found = Stored(&*fixture.server()).query(&format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({list})"));
        let text = |index: usize| String::from_utf8_lossy(found[0][index].as_deref().unwrap_or_default()).into_owned();
        Self { fixture, name: text(0), former: text(1) }
    }

    fn set(&self, value: &str) {
        self.fixture.execute(&format!("SET GLOBAL {} = '{value}'", self.name));
    }
}

impl Drop for Global<'_> {
    fn drop(&mut self) {
        self.set(&self.former);
    }
}

#[test]
fn every_isolation_level_serves_a_crowd() {
    case(async |fixture| {
        let global = Global::save(&fixture, &["transaction_isolation", "tx_isolation"]);
        for level in ["READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"] {
            global.set(level);
            crowd(&fixture, level).await;
        }
    });
}

#[test]
fn every_sql_mode_serves_a_crowd() {
    case(async |fixture| {
        let global = Global::save(&fixture, &["sql_mode"]);
        for mode in ["", "STRICT_ALL_TABLES", "ANSI"] {
            global.set(mode);
            crowd(&fixture, mode).await;
        }
    });
}

/// Each client sets these for its connections. The case has a server of its own, because they would also change the
/// connection of the fixture.
#[test]
fn other_defaults_of_the_server_change_nothing() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let settings = [
            ("time_zone", "'+05:30'"),
            ("autocommit", "0"),
            ("tx_read_only", "1"),
            ("innodb_lock_wait_timeout", "100000"),
        ];
        for (name, value) in settings {
            fixture.execute(&format!("SET GLOBAL {name} = {value}"));
        }
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let guard = hold(&ann, "default").await;
        let seen = bob.inspect("default").await.expect("a reply").expect("it is held");
        let left = seen.holder().expect("it is held").ttl_left;
        assert!(left <= SOON && left > SOON / 2, "{left:?} are left of {SOON:?}");
        assert!(bob.lock("default").try_acquire().await.expect("a reply").is_none());
        guard.release().await.expect("a release");
        hold(&bob, "default").await.release().await.expect("a release");
    });
}

#[test]
fn a_user_who_may_only_read_sees_who_holds_a_lock() {
    case(async |fixture| {
        let ann = client(&fixture, SOON).await;
        let guard = hold(&ann, "seen").await;
        let (database, _) = fixture.names();
        let user = format!("{}_r", fixture.server().user());
        let grants = read_only_grants(&database, &format!("'{user}'@'%'"));
        fixture.execute(&format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'Read-only-1'; {grants}"));
        let url = fixture.url_of(&user, "Read-only-1");
        let reader = leasehold::connect(&url).await.expect("a client");
        let seen = reader.inspect("seen").await.expect("it may read").expect("there is a row");
        assert_eq!(seen.holder().map(|lease| lease.token), Some(guard.fencing_token()));
        assert_eq!(reader.list("", 10).await.expect("it may read").locks.len(), 1);
        let refused = reader.lock("other").acquire().await.expect_err("it may not write");
        assert_eq!(refused.kind(), ErrorKind::Auth);
        let missing = url.replace(&format!("/{database}?"), "/mysql?");
        let refused = leasehold::connect(&missing).await.expect_err("it may not use this database");
        assert_eq!(refused.kind(), ErrorKind::Auth);
    });
}

#[test]
fn a_missing_table_is_an_error_that_says_how_to_create_it() {
    case(async |fixture| {
        let (database, account) = fixture.names();
        fixture.execute(&format!("GRANT ALL ON {database}.* TO {account}"));
        let url = fixture.url(Route::Clear, "");
        for table in MySqlFixture::TABLES {
            fixture.execute(&format!("DROP TABLE {table}"));
            let refused = MySqlBackend::connect(&url).await.expect_err("there is no table");
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("`leasehold schema mysql`"), "{refused}");
            MySqlBackend::create_schema(&url).await.expect("the user may create tables");
        }
        MySqlBackend::create_schema(&url).await.expect("the tables are there");
        hold(&client(&fixture, SOON).await, "created").await.release().await.expect("a release");
    });
}

#[test]
fn a_missing_permission_is_an_error_with_the_statement_that_gives_it() {
    case(async |fixture| {
        let (database, account) = fixture.names();
        let table = MySqlFixture::TABLE;
        fixture.execute(&format!("REVOKE INSERT, UPDATE ON {database}.{table} FROM {account}"));
        let ann = client(&fixture, SOON).await;
        let refused = ann.lock("job").acquire().await.expect_err("the user may not write");
        assert_eq!(refused.kind(), ErrorKind::Auth);
        let text = refused.to_string();
        let statement = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.{table} TO {account}");
        assert!(text.contains(&statement) && text.contains("`leasehold acl mysql`"), "{text}");
        fixture.execute(&statement);
        hold(&ann, "job").await.release().await.expect("the statement gave the permission");
    });
}

#[test]
fn one_connection_serves_many_tasks() {
    case(async |fixture| {
        let ann = builder(&fixture, "&connections=1").await.ttl(SOON).build().expect("a client");
        let tasks: Vec<_> = (0..50)
            .map(|number| {
                let ann = ann.clone();
                tokio::spawn(async move {
                    for _ in 0..5 {
                        hold(&ann, &format!("task {}", number % 25)).await.release().await.expect("a release");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

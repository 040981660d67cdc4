//! Runs the examples that take the URL of a store on each store.

use std::process::Command;

use leasehold_test_servers::{EtcdSettings, MySqlSettings, RedisSettings, ZooKeeperSettings};

/// Runs the examples that work on every store, and `own`. `cargo test` has built them unless it was told to build less.
fn run_all(url: &str, own: Option<&str>) {
    let folder = std::env::current_exe().expect("the path of this program").with_file_name("../examples");
    for name in ["quickstart", "fencing", "lost"].into_iter().chain(own) {
        let run = Command::new(folder.join(name)).arg(url).output();
        let output = run
            .unwrap_or_else(|error| panic!("{name}: {error}: build it with `cargo build --examples --all-features`"));
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn on_etcd() {
    let server = EtcdSettings::new().start().expect("an etcd server");
    run_all(&format!("etcd://{}", server.addr()), Some("fenced_etcd"));
}

#[test]
fn on_mysql() {
    let server = MySqlSettings::new().start().expect("a mariadbd");
    let grants = "GRANT ALL ON examples.* TO example";
    server.create("examples", leasehold::mysql::SCHEMA, "example", "example", grants).expect("a database");
    run_all(&format!("mysql://example:example@{}/examples?tls=off", server.addr()), Some("fenced_sql"));
}

#[test]
fn on_redis() {
    let server = RedisSettings::new().start().expect("a redis-server");
    run_all(&server.url(), None);
}

#[test]
fn on_sqlite() {
    run_all(&format!("sqlite://{}/examples.db", env!("CARGO_TARGET_TMPDIR")), None);
}

#[test]
fn on_zookeeper() {
    let server = ZooKeeperSettings::new().start().expect("a ZooKeeper server");
    run_all(&format!("zk://{}", server.addr()), Some("fenced_zk"));
}

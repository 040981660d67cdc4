//! A server with a replica, and a proxy whose address is that of the primary.

use std::time::{Duration, Instant};

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::LockClient;
use leasehold_test_servers::{MySqlServer, MySqlSettings};

use super::set_up::{PASSWORD, set_up};
use super::stored::{Stored, number};
use super::support::{SOON, eventually};

const REPLICATES: &str =
    "CREATE USER 'replica'@'%' IDENTIFIED BY 'replica'; GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%'";

pub(super) struct Replicated {
    pub(super) primary: MySqlServer,
    pub(super) replica: MySqlServer,
    pub(super) proxy: FaultProxy,
}

impl Replicated {
    pub(super) fn new() -> Self {
        let start = |settings: MySqlSettings| settings.start().unwrap_or_else(|error| panic!("{error}"));
        let primary = start(MySqlSettings::new().option("log-bin=log").option("server-id=1"));
        let replica = start(MySqlSettings::new().option("server-id=2").option("read-only=1"));
        Stored(&primary).query(REPLICATES);
        Stored(&replica).query(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'replica', \
             MASTER_PASSWORD = 'replica', MASTER_USE_GTID = slave_pos; START SLAVE",
            primary.addr().port()
        ));
        set_up(&primary);
        let proxy = FaultProxy::start(primary.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        Self { primary, replica, proxy }
    }

    pub(super) async fn client(&self, ttl: Duration, more: &str) -> LockClient {
        let url = format!("mysql://locker:{PASSWORD}@{}/locks?tls=off{more}", self.proxy.addr());
        let backend = MySqlBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
        LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
    }

    /// Waits until the replica has everything, and stops the replication.
    pub(super) async fn cut_off_the_replica(&self) {
        let position = &Stored(&self.primary).query("SELECT @@gtid_binlog_pos")[0];
        let position = String::from_utf8_lossy(position[0].as_deref().unwrap_or_default()).into_owned();
        eventually("the replica has everything", || {
            let waits = format!("SELECT MASTER_GTID_WAIT('{position}', 0)");
            number::<i64>(&Stored(&self.replica).query(&waits)[0], 0) == 0
        })
        .await;
        Stored(&self.replica).query("STOP SLAVE");
    }

    /// Ends the primary, and gives its address to the replica, which still refuses writes.
    pub(super) fn end_the_primary(&mut self) {
        self.primary.kill().expect("it runs");
        self.proxy.redirect(self.replica.addr());
        self.proxy.apply(Fault::Disconnect);
    }

    /// Makes the replica accept writes. Returns a time just before that.
    pub(super) fn promote(&self) -> Instant {
        let before = Instant::now();
        Stored(&self.replica).query("SET GLOBAL read_only = 0");
        before
    }
}

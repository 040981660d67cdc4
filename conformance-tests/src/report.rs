//! Reports the cases that met an unsupported fault, and those that had nothing to prove.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::LockBackend;
use leasehold_core::{LockClientBuilder, LockName};

use crate::fault::{PathFault, ServerFault, Tamper, Unsupported};
use crate::faulty::lock;
use crate::fixture::{Fixture, Record, ResourceCounts, Route};

/// The environment variable that names the file to which the cases append their lines:
/// `<case>\t<unsupported or empty>\t<what>: <reason>`. Without it nothing is written.
pub const REPORT_VARIABLE: &str = "LEASEHOLD_SUITE_REPORT";

/// Reports that a test outside the suite has nothing to prove, because of a fault or function that is not supported.
pub fn report_unsupported(test: &str, what: &str, unsupported: Unsupported) {
    append(test, "unsupported", &format!("{what}: {}", unsupported.reason));
}

/// Appends one line, in one write: several processes may write to one file.
fn append(case: &str, kind: &str, text: &str) {
    let Some(path) = std::env::var_os(REPORT_VARIABLE) else { return };
    let line = format!("{case}\t{kind}\t{text}\n");
    let opened = OpenOptions::new().append(true).create(true).open(&path);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("no report in {}: {error}", path.display()));
}

/// A fixture that reports unsupported faults and cases that have nothing to prove.
pub(crate) struct Reported<F> {
    case: &'static str,
    fixture: F,
    /// A case may repeat a fault many times.
    written: Mutex<HashSet<String>>,
}

impl<F> Reported<F> {
    pub(crate) fn new(case: &'static str, fixture: F) -> Self {
        Self { case, fixture, written: Mutex::default() }
    }

    fn unsupported<T>(&self, what: &str, outcome: Result<T, Unsupported>) -> Result<T, Unsupported> {
        outcome.inspect_err(|unsupported| self.write("unsupported", &format!("{what}: {}", unsupported.reason)))
    }

    fn write(&self, kind: &str, text: &str) {
        if lock(&self.written).insert(format!("{kind}\t{text}")) {
            append(self.case, kind, text);
        }
    }
}

#[async_trait]
impl<F: Fixture> Fixture for Reported<F> {
    async fn new() -> Self {
        Self::new("", F::new().await)
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        self.fixture.backend(route).await
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        self.unsupported("Retention", self.fixture.backend_with_retention(retention).await)
    }

    async fn operator(&self) -> Arc<dyn LockBackend> {
        self.fixture.operator().await
    }

    fn empty(&self, reason: &str) {
        self.write("empty", reason);
    }

    async fn connected(&self) {
        self.fixture.connected().await;
    }

    fn secrets(&self) -> Vec<String> {
        self.fixture.secrets()
    }

    fn ttl(&self) -> Duration {
        self.fixture.ttl()
    }

    fn late_requests_arrive(&self) -> bool {
        self.fixture.late_requests_arrive()
    }

    fn back_within(&self) -> Duration {
        self.fixture.back_within()
    }

    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        self.fixture.tune(builder)
    }

    async fn path(&self, fault: PathFault) {
        self.fixture.path(fault).await;
    }

    async fn heal(&self) {
        self.fixture.heal().await;
    }

    async fn deliver(&self) {
        self.fixture.deliver().await;
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let what = format!("{fault:?}");
        self.unsupported(&what, self.fixture.server(fault).await)
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        self.unsupported(&format!("{tamper:?}"), self.fixture.tamper(name, tamper).await)
    }

    fn record_step(&self) -> Duration {
        self.fixture.record_step()
    }

    async fn record(&self, name: &LockName) -> Record {
        self.fixture.record(name).await
    }

    async fn resource_counts(&self) -> ResourceCounts {
        self.fixture.resource_counts().await
    }

    async fn served(&self) -> u64 {
        self.fixture.served().await
    }
}

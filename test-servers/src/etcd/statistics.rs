//! What a server counts.

use std::collections::BTreeMap;
use std::io;

use super::side::EtcdSide;

/// The service of gRPC that every server has.
const HEALTH: &str = "grpc.health.v1.Health";

/// The statistics of a member since it was started.
#[derive(Clone, Debug)]
pub struct EtcdStatistics {
    samples: Vec<Sample>,
    /// The calls of the test by method.
    own_calls: BTreeMap<&'static str, u64>,
}

/// A line of the page: `name{label="value",…} number`.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    fn read(line: &str) -> Option<Self> {
        let (name, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let Some((name, labels)) = name.split_once('{') else {
            return Some(Self { name: name.to_owned(), labels: Vec::new(), value });
        };
        // No value that the server shows contains a comma or an escaped character.
        let labels = labels.strip_suffix('}')?.split(',');
        let labels = labels.filter_map(|label| label.split_once('='));
        let labels = labels.map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned())).collect();
        Some(Self { name: name.to_owned(), labels, value })
    }

    fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| label == name).map_or("", |(_, value)| value)
    }
}

impl EtcdStatistics {
    fn read(page: &str, own_calls: BTreeMap<&'static str, u64>) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        Self { samples: lines.filter_map(Sample::read).collect(), own_calls }
    }

    /// A number of the page `/metrics`, such as `etcd_server_leader_changes_seen_total`; the sum if it has several
    /// labels.
    pub fn number(&self, name: &str) -> f64 {
        self.samples.iter().filter(|sample| sample.name == name).map(|sample| sample.value).sum()
    }

    /// The number of requests of clients that it has served, by method of gRPC: `Txn`, `LeaseKeepAlive`. Each message
    /// on a stream is one.
    ///
    /// Calls of the test do not count. A call that the test gave up may count until the server has processed it.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let mut requests = self.by_method("grpc_server_handled_total", |sample| sample.label("grpc_type") == "unary");
        let received = self.by_method("grpc_server_msg_received_total", |sample| sample.label("grpc_type") != "unary");
        requests.extend(received);
        for (method, own) in &self.own_calls {
            if let Some(served) = requests.get_mut(*method) {
                *served = served.saturating_sub(*own);
            }
        }
        requests.retain(|_, served| *served > 0);
        requests
    }

    /// The number of open streams of clients by method of gRPC: `Watch`, `LeaseKeepAlive`.
    pub fn open_streams(&self) -> BTreeMap<String, u64> {
        let is_stream = |sample: &Sample| sample.label("grpc_type") != "unary";
        let mut open = self.by_method("grpc_server_started_total", is_stream);
        for (method, ended) in self.by_method("grpc_server_handled_total", is_stream) {
            if let Some(started) = open.get_mut(&method) {
                *started = started.saturating_sub(ended);
            }
        }
        open.retain(|_, streams| *streams > 0);
        open
    }

    /// The number of watches, on any number of streams.
    pub fn watches(&self) -> u64 {
        whole(self.number("etcd_debugging_mvcc_watcher_total"))
    }

    fn by_method(&self, name: &str, is_counted: impl Fn(&Sample) -> bool) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        let samples = self.samples.iter().filter(|sample| sample.name == name && is_counted(sample));
        // The health service has a method `Watch` too.
        for sample in samples.filter(|sample| sample.label("grpc_service") != HEALTH) {
            *counts.entry(sample.label("grpc_method").to_owned()).or_default() += whole(sample.value);
        }
        counts
    }
}

/// The page has only whole numbers here.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of events")]
fn whole(number: f64) -> u64 {
    number as u64
}

impl EtcdSide {
    /// Its statistics. No other call of the test may run meanwhile.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn statistics(&self) -> io::Result<EtcdStatistics> {
        Ok(EtcdStatistics::read(&self.page("metrics")?, self.own_calls()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_clients_are_counted_by_method() {
        let page = "# HELP x\n# TYPE x counter\n\
            grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\",grpc_type=\"unary\"} 5\n\
            grpc_server_handled_total{grpc_code=\"Internal\",grpc_method=\"Txn\",grpc_type=\"unary\"} 2\n\
            grpc_server_msg_received_total{grpc_method=\"Txn\",grpc_type=\"unary\"} 9\n\
            grpc_server_started_total{grpc_method=\"Watch\",grpc_type=\"bidi_stream\"} 4\n\
            grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Watch\",grpc_type=\"bidi_stream\"} 1\n\
            grpc_server_msg_received_total{grpc_method=\"Watch\",grpc_type=\"bidi_stream\"} 8\n\
            etcd_server_leader_changes_seen_total 1\nother 1.6777216e+07\n";
        let statistics = EtcdStatistics::read(page, BTreeMap::from([("Txn", 3), ("Status", 1)]));
        let requests = statistics.requests();
        assert_eq!(requests, BTreeMap::from([("Txn".to_owned(), 4), ("Watch".to_owned(), 8)]));
        assert_eq!(statistics.open_streams(), BTreeMap::from([("Watch".to_owned(), 3)]));
        assert!((statistics.number("other") - 16_777_216.0).abs() < 0.1);
    }
}

//! Log events are emitted when the keeper's state is unlocked: a subscriber may call the client.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::LockClient;
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use tracing::span;

const MS: Duration = Duration::from_millis(1);

/// Reads the client's counters at each event, as a subscriber does that adds them to its lines.
#[derive(Clone, Default)]
struct Asks {
    client: Arc<Mutex<Option<LockClient>>>,
    /// The texts of the events.
    events: Arc<Mutex<Vec<String>>>,
}

/// Collects the text of an event.
struct Message<'a>(&'a mut Vec<String>);

impl tracing::field::Visit for Message<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Asks {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold_core")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let client = self.client.lock().unwrap().clone();
        if let Some(client) = client {
            event.record(&mut Message(&mut self.events.lock().unwrap()));
            client.stats();
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_subscriber_may_call_the_client() {
    let asks = Asks::default();
    tracing::subscriber::set_global_default(asks.clone()).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let store = MemoryStore::default();
            let client = LockClient::new(MemoryBackend::new(&store));
            let other = LockClient::new(MemoryBackend::new(&store));
            *asks.client.lock().unwrap() = Some(client.clone());
            let guard = client.lock("job").acquire().await.unwrap();
            // Refused, queued, granted by a handoff.
            assert!(client.lock("job").try_acquire().await.unwrap().is_none());
            let waiter = tokio::spawn(async move { other.lock("job").acquire().await });
            tokio::time::sleep(50 * MS).await;
            guard.release().await.unwrap();
            let held = waiter.await.unwrap().unwrap();
            let waiter = tokio::spawn({
                let lock = client.lock("job");
                async move { lock.acquire().await }
            });
            tokio::time::sleep(50 * MS).await;
            drop(held);
            let guard = waiter.await.unwrap().unwrap();
            // Lost because it has expired, and because the store reports it.
            store.remove(guard.name());
            drop(guard);
            let fixed = client.lock("fixed").ttl(50 * MS).without_renewal().acquire().await.unwrap();
            fixed.lost().await;
            let gone = client.lock("gone").ttl(50 * MS).acquire().await.unwrap();
            store.remove(gone.name());
            gone.lost().await;
            *asks.client.lock().unwrap() = None;
        });
        done.send(asks.events.lock().unwrap().clone()).unwrap();
    });
    let events = ended.recv_timeout(Duration::from_secs(20)).expect("a subscriber that calls the client blocks it");
    for expected in ["granted", "queued", "lost"] {
        assert!(events.iter().any(|event| event == expected), "{expected}: {events:?}");
    }
}

//! The cost of a lock at the server: commands and connections.

use std::time::Duration;

use leasehold_conformance::Fixture;
use leasehold_core::{KeeperRuntime, LockClient, LockName};
use leasehold_test_servers::Monitor;

use super::support::{Redis, SOON, builder, case, client, hold};

/// Longer than a case: no lease or place is renewed during it, except with many clients.
const TTL: Duration = Duration::from_secs(30);

/// Counts every command that this many clients send from now on, after all of them are connected.
async fn monitor(fixture: &Redis, clients: u64) -> Monitor {
    assert!(fixture.connected_are(|| clients, SOON).await, "{clients} clients are not connected");
    fixture.server().monitor(|_| true).expect("MONITOR")
}

#[test]
fn acquire_and_release_are_one_command_each() {
    case(|fixture| async move {
        let ann = client(&fixture, TTL).await;
        // The first acquire publishes its ttl.
        hold(&ann, "warm").await.release().await.expect("a release");
        let mut monitor = monitor(&fixture, 1).await;
        for number in 0..10 {
            hold(&ann, &format!("cost {number}")).await.release().await.expect("a release");
        }
        assert_eq!(monitor.count(&fixture.server()).expect("the server runs"), 20);
    });
}

/// The commands of all clients for one handoff, with this many clients.
async fn per_handoff(fixture: &Redis, clients: usize, turns: usize) -> f64 {
    let mut all: Vec<LockClient> = Vec::new();
    for _ in 0..clients {
        // All keepers share one runtime: with a thread each, the test would measure the machine.
        let builder = builder(fixture, "").await.ttl(TTL).wait(Duration::from_secs(60));
        all.push(builder.keeper(KeeperRuntime::CurrentRuntime).build().expect("a client"));
    }
    let name = format!("handoff among {clients}");
    let lock = LockName::new(&name).unwrap();
    let first = hold(&all[0], &name).await;
    let mut tasks = Vec::new();
    for client in &all {
        let (client, name) = (client.clone(), name.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..turns {
                hold(&client, &name).await.release().await.expect("a release");
            }
        }));
    }
    while fixture.record(&lock).await.waiting() < clients as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut monitor = monitor(fixture, clients as u64).await;
    let before = monitor.count(&fixture.server()).expect("the server runs");
    first.release().await.expect("a release");
    for task in tasks {
        task.await.expect("no task panics");
    }
    let sent = monitor.count(&fixture.server()).expect("the server runs") - before;
    for client in all {
        client.shutdown().await.expect("a shutdown");
    }
    sent as f64 / (clients * turns) as f64
}

#[test]
fn a_handoff_costs_two_commands_from_two_clients_to_many() {
    case(|fixture| async move {
        for (clients, turns) in [(2, 100), (20, 20), (200, 5)] {
            let cost = per_handoff(&fixture, clients, turns).await;
            assert!(cost <= 2.2, "{cost:.2} commands for each handoff among {clients} clients");
        }
    });
}

#[test]
fn a_client_has_at_most_one_connection_per_runtime() {
    case(|fixture| async move {
        let ann = client(&fixture, TTL).await;
        let mut tasks = Vec::new();
        for number in 0..300 {
            let ann = ann.clone();
            tasks.push(tokio::spawn(async move {
                hold(&ann, &format!("connections {}", number % 30)).await.release().await.expect("a release");
            }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
        assert!(fixture.connected_are(|| 1, SOON).await, "the client is not connected");
        // The connection of this runtime, and that of the keeper, which also receives notifications.
        assert_eq!(fixture.resource_counts().await.connections, 2);
    });
}

//! Nodes that join, leave, or come back as others.

use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient, LockGuard};

use super::common::{SOON, Stopwatch, hold};
use super::deployment::{Deployment, case, outlasts, run, settings};

const TTL: Duration = Duration::from_secs(4);

/// One attempt. It is repeated while the nodes do not answer.
async fn attempt(client: &LockClient, lock: &str) -> Option<LockGuard> {
    let begin = Stopwatch::start();
    loop {
        match client.lock(lock).try_acquire().await {
            Ok(granted) => return granted,
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error:?}");
            }
        }
        begin.within(SOON, "an attempt is answered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The only node of the URL comes back blank, or was taken out of the cluster. The client knows the others, and keeps
/// its locks there.
#[test]
fn a_node_of_the_url_that_has_left_the_cluster_changes_nothing() {
    for is_blank in [true, false] {
        case(async move |mut deployment| {
            let ann = deployment.client(TTL).await;
            let is_own = |lock: &String| deployment.place(lock).2 == 0;
            let others: Vec<_> = (0..30).map(|number| format!("lock-{number}")).filter(|lock| !is_own(lock)).collect();
            let own = (0..).map(|number| format!("lock-{number}")).find(is_own).expect("a lock of the node");
            let mut guards = Vec::new();
            for lock in &others {
                guards.push(hold(&ann, lock).await);
            }
            if is_blank {
                deployment.kill_all_of(0);
                deployment.cluster.nodes[0].start_blank().expect("a start");
            } else {
                // As `redis-cli --cluster del-node`.
                let nodes = &deployment.cluster.nodes;
                let id = run(&nodes[0], &["CLUSTER", "MYID"]).text();
                nodes[1..].iter().for_each(|node| drop(node.command(&["CLUSTER", "FORGET", &id])));
                run(&nodes[0], &["FLUSHALL"]);
                run(&nodes[0], &["CLUSTER", "RESET", "SOFT"]);
                // The client connects to it again, and reads what it says now.
                run(&nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]);
                assert!(ann.lock(own.as_str()).try_acquire().await.is_err(), "no node serves it");
            }
            let begin = Stopwatch::start();
            while begin.elapsed() < TTL * 3 {
                assert!(guards.iter().all(LockGuard::is_held), "a lock of another node was lost");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            guards.remove(0).release().await.expect("a release");
            hold(&ann, &others[0]).await.release().await.expect("a release");
        });
    }
}

/// The first slot of a new node is taken over. Until that has ended, the node serves no slot by its own account.
#[test]
fn a_lock_outlasts_the_move_to_a_node_without_slots() {
    case(async |mut deployment| {
        let (ann, bob) = (deployment.client(TTL).await, deployment.client(TTL).await);
        let to = deployment.cluster.join(&settings()).expect("a node");
        let (key, slot, from) = deployment.place("moved");
        let cluster = &deployment.cluster;
        let guard = hold(&ann, "moved").await;
        let never = async |what: &str| {
            outlasts(&guard, TTL, what).await;
            assert!(attempt(&bob, "moved").await.is_none(), "two holders: {what}");
        };
        cluster.begin_to_move(slot, from, to).expect("a slot");
        never("the slot is being moved").await;
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        outlasts(&guard, TTL, "the record has moved").await;
        cluster.end_the_move(slot, from, to).expect("a slot");
        never("the slot has moved").await;
        assert!(Deployment::record(&cluster.nodes[to], "moved").lease().is_some(), "the new node has the lease");
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "moved").await.fencing_token() > token, "tokens rise");
    });
}

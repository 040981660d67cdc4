//! Servers that start, for the first time or again.

use std::sync::Arc;
use std::time::Duration;

use leasehold::redis::QuorumBackend;
use leasehold_conformance::harness::Fault;
use leasehold_conformance::{Data, Direct, Stopwatch};
use leasehold_core::LockClient;

use super::common::{SOON, eventually, hold};
use super::fixture::PREFIX;
use super::group::{Group, case, command, name};

const ALL: [usize; 3] = [0, 1, 2];

/// The shortest one.
const LONGEST_TTL: Duration = Duration::from_secs(1);

/// How long a server that was restarted gives no vote.
const WAIT: Duration = Duration::from_secs(2);

const SHORTEST: &str = "&longest_ttl=1s";

/// Two clients come to servers that were never used. Neither takes what the other one has just settled for a restart.
#[test]
fn two_clients_start_at_once() {
    case(3, async |group| {
        for round in 0..8 {
            let client = async || Direct::attach(Arc::new(group.connect(SHORTEST).await));
            let (ann, bob) = tokio::join!(client(), client());
            let stopwatch = Stopwatch::start();
            let (one, other) = (ann.claim(&name("one")), bob.claim(&name("other")));
            tokio::join!(ann.granted(&one, LONGEST_TTL), bob.granted(&other, LONGEST_TTL));
            eventually("all servers vote", || group.do_all_vote()).await;
            stopwatch.within(Duration::from_secs(1), &format!("round {round}: nobody waits at a first start"));
            drop((ann, bob));
            group.servers.iter().for_each(|server| drop(command(server, &["FLUSHALL"])));
        }
    });
}

/// The third server is restarted after it was read, and before it is settled.
#[test]
fn a_server_is_settled_in_the_run_that_was_read() {
    case(3, async |mut group| {
        // A request has a quarter of this.
        let more = "&timeout=3s&longest_ttl=1s";
        // The second server is settled between the first and the third, and slow.
        group.proxies[1].apply(Fault::Delay { requests: Duration::from_millis(400), replies: Duration::ZERO });
        let _ann = Direct::attach(Arc::new(group.connect(more).await));
        eventually("the first one is settled", || group.is_settled(0)).await;
        let stopwatch = Stopwatch::start();
        group.restart(2, Data::Lost);
        eventually("the third one is settled", || group.is_settled(2)).await;
        stopwatch.not_before(WAIT - Duration::from_millis(200), "it was settled for another run");
    });
}

/// The wait after a restart is over, and then the data are deleted in the same run.
#[test]
fn deleted_data_are_waited_for_again() {
    case(3, async |mut group| {
        let ann = group.direct(SHORTEST).await;
        let use_it = async || {
            ann.granted(&ann.claim(&name("x")), Duration::from_millis(100)).await;
        };
        for round in ["a restart", "FLUSHALL"] {
            match round {
                "FLUSHALL" => drop(command(&group.servers[2], &["FLUSHALL"])),
                _ => group.restart(2, Data::Lost),
            }
            let stopwatch = Stopwatch::start();
            use_it().await;
            eventually("it is settled", || group.is_settled(2)).await;
            stopwatch.not_before(WAIT - Duration::from_millis(200), round);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// A server that cannot be reached needs no reading of the others.
#[test]
fn nothing_is_read_while_a_server_is_down() {
    case(3, async |mut group| {
        let _ann = group.direct("").await;
        let reads = |command: &str| command.starts_with("\"EVAL") && command.contains("quorum:since");
        group.servers[2].kill().expect("a kill");
        tokio::time::sleep(Duration::from_millis(600)).await;
        let mut monitor = group.servers[0].monitor(reads).expect("a monitor");
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let count = monitor.count(&group.servers[0]).expect("a count");
        assert!(count <= 1, "the server was read {count} times");
    });
}

/// A majority is restarted at the same time. The holder keeps its lease, and nobody else gets the lock before every
/// forgotten lease has ended.
fn a_majority_is_restarted(data: Data) {
    case(3, async move |mut group| {
        let ttl = Duration::from_secs(5);
        let (ann, bob) = (group.client(ttl, "&longest_ttl=5s").await, group.direct("&longest_ttl=5s").await);
        let guard = hold(&ann, "held").await;
        // A vote that was not asked for before a majority had voted comes with the next renewal.
        eventually("all vote for the holder", || group.live(&ALL, "held") == 3).await;
        let kept = group.votes(&[0], "held")[0].clone().expect("a vote").owner;
        for server in [0, 1] {
            group.servers[server].kill().expect("a kill");
        }
        for server in [0, 1] {
            group.servers[server].start_again(data).expect("a start");
        }
        let stopwatch = Stopwatch::start();
        loop {
            let error = bob.acquire(&bob.claim(&name("other")), ttl).await.expect_err("a majority does not vote");
            // Before it is connected to both again it says that.
            if error.to_string().contains("after a restart") {
                break;
            }
            assert!(stopwatch.elapsed() < ttl, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while stopwatch.elapsed() < ttl {
            assert!(guard.is_held(), "the lease was lost after {:?}", stopwatch.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let votes_for_the_holder = || {
            let votes = group.votes(&ALL, "held");
            votes.iter().flatten().filter(|vote| vote.owner == kept && !vote.left.is_zero()).count()
        };
        eventually("the lease is put back", || votes_for_the_holder() == 3).await;
        eventually("all are settled", || ALL.iter().all(|server| group.is_settled(*server))).await;
        stopwatch.not_before(ttl, "a server that may have forgotten a lease votes early");
        bob.not_granted(&bob.claim(&name("held")), ttl).await;
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        let next = bob.granted(&bob.claim(&name("held")), ttl).await.token;
        assert!(next > token, "{token:?} was followed by {next:?}");
    });
}

#[test]
fn a_majority_that_is_restarted_with_its_data_loses_no_lease() {
    a_majority_is_restarted(Data::Kept);
}

#[test]
fn a_majority_that_is_restarted_without_its_data_loses_no_lease() {
    a_majority_is_restarted(Data::Lost);
}

/// What the URL says about restarts.
#[test]
fn a_url_says_whether_to_wait() {
    case(3, async |mut group| {
        // With `quarantine` also at a first start.
        let stopwatch = Stopwatch::start();
        let url = group.url("&longest_ttl=1s&restart=quarantine");
        let backend = QuorumBackend::connect(&url).await.expect("a quorum");
        let careful = LockClient::builder(backend).ttl(LONGEST_TTL).wait(SOON).build().expect("a client");
        let first = hold(&careful, "x").await;
        stopwatch.not_before(WAIT - Duration::from_millis(200), "`quarantine` waits at a first start");
        let first = {
            let token = first.fencing_token();
            first.release().await.expect("a release");
            token
        };
        careful.shutdown().await.expect("an end");
        // With `trust` not at all.
        let trusting = group.direct("&longest_ttl=1s&restart=trust").await;
        trusting.granted(&trusting.claim(&name("y")), LONGEST_TTL).await;
        ALL.iter().for_each(|server| group.servers[*server].kill().expect("a kill"));
        ALL.iter().for_each(|server| group.servers[*server].start_again(Data::Lost).expect("a start"));
        let stopwatch = Stopwatch::start();
        let token = granted_at_once(&trusting).await;
        stopwatch.within(Duration::from_secs(1), "`trust` does not wait");
        assert!(token > first.get(), "{first} was followed by {token}");
    });
}

/// The token of a grant in the first call, or in the second if the first one still found the old connections.
async fn granted_at_once(client: &Direct) -> u64 {
    let claim = client.claim(&name("x"));
    let _ = client.acquire(&client.claim(&name("y")), LONGEST_TTL).await;
    client.granted(&claim, LONGEST_TTL).await.token.get()
}

/// The state and the key of the wait are under the prefix, and nothing else is left of a restart.
#[test]
fn a_newcomer_waits_for_a_restart_that_others_have_seen() {
    case(3, async |mut group: Group| {
        let ann = group.direct("&longest_ttl=2s").await;
        ALL.iter().for_each(|server| group.servers[*server].kill().expect("a kill"));
        ALL.iter().for_each(|server| group.servers[*server].start_again(Data::Lost).expect("a start"));
        let since = format!("{PREFIX}quorum:since");
        let is_noted = |server: &usize| !command(&group.servers[*server], &["GET", &since]).text().is_empty();
        eventually("the restart is noted", || ALL.iter().all(is_noted)).await;
        drop(ann);
        let bob = group.direct("&longest_ttl=2s").await;
        let error = bob.acquire(&bob.claim(&name("x")), LONGEST_TTL).await.expect_err("a wait");
        assert!(error.to_string().contains("s after a restart"), "{error}");
    });
}

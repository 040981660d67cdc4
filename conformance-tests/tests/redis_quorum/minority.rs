//! One server of three fails while a client acquires, holds or releases. The client notices nothing, or a short delay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::redis::QuorumBackend;
use leasehold_conformance::harness::Fault;
use leasehold_conformance::{DEADLINE, Data, Direct, Fixture, Route, run};
use leasehold_core::backend::{AcquireOutcome, Delivery};
use leasehold_core::{LockClient, LockGuard, LockName};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::ThreeServers;
use super::group::{granted_by_all, reach_all};
use super::servers::Servers as _;
use super::stored::{State, Stored, Vote};

const TTL: Duration = Duration::from_secs(3);

/// A hold of more than the ttl.
const HOLD: Duration = Duration::from_secs(4);

/// The bound of the requests to one server.
const DELAY: Duration = Duration::from_millis(600);

/// The server that fails, and those that do not.
const ONE: usize = 2;
const OTHERS: [usize; 2] = [0, 1];

/// A fault of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinorityFault {
    Down,
    Paused,
    /// Each of its replies comes a second late.
    Slow,
    /// It starts again without its data.
    Restarted,
    ClockForward,
    ClockBack,
}

impl MinorityFault {
    fn begin(self, fixture: &ThreeServers) {
        let hour = 3_600_000_000;
        let mut servers = fixture.deployment();
        let server = servers.server_mut(ONE);
        let done = match self {
            Self::Down => server.kill(),
            Self::Paused => server.pause(),
            Self::Slow => {
                let proxy = fixture.proxies().nth(ONE).expect("a proxy for each server");
                proxy.apply(Fault::Delay { requests: Duration::ZERO, replies: Duration::from_secs(1) });
                Ok(())
            }
            Self::Restarted => server.kill().and_then(|()| server.start_again(Data::Lost)),
            Self::ClockForward => server.step_clock(hour),
            Self::ClockBack => server.step_clock(-hour),
        };
        done.unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }

    fn end(self, fixture: &ThreeServers) {
        let hour = 3_600_000_000;
        let mut servers = fixture.deployment();
        let server = servers.server_mut(ONE);
        let done = match self {
            Self::Down => server.start_again(Data::Kept),
            Self::Paused => server.resume(),
            Self::Slow => {
                fixture.proxies().nth(ONE).expect("a proxy for each server").heal();
                Ok(())
            }
            Self::Restarted => Ok(()),
            Self::ClockForward => server.step_clock(-hour),
            Self::ClockBack => server.step_clock(hour),
        };
        done.unwrap_or_else(|error| panic!("{self:?} does not end: {error}"));
    }
}

fn case<C, F>(case: C)
where
    C: FnOnce(ThreeServers) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE * 3, || async { case(ThreeServers::new().await).await });
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

async fn client(fixture: &ThreeServers) -> LockClient {
    LockClient::builder(fixture.backend(Route::Faulty).await).ttl(TTL).wait(SOON).build().expect("a client")
}

/// The votes of all servers, as they say.
fn votes(fixture: &ThreeServers, text: &str) -> Vec<Option<Vote>> {
    Stored { servers: fixture.deployment().servers() }.votes(&name(text))
}

/// The two servers that do not fail vote for this lease and no other, and have accepted its token: at the latest after
/// its next renewal, if the one that fails has voted sooner than one of them.
async fn the_others_vote_for(fixture: &ThreeServers, guard: &LockGuard) {
    let votes = || {
        let servers = fixture.deployment();
        let stored = Stored { servers: servers.servers() };
        OTHERS.map(|server| stored.vote(server, guard.name()))
    };
    eventually("both vote", || live(&votes()) == 2).await;
    let [Some(one), Some(other)] = votes() else { panic!("a vote is missing") };
    assert_eq!(one.owner, other.owner, "{one:?} {other:?}");
    let token = guard.fencing_token().get();
    assert!(one.fence >= token && other.fence >= token, "{token}: {one:?} {other:?}");
}

/// These two servers vote for nobody.
fn the_others_are_free(fixture: &ThreeServers, lock: &LockName) {
    let servers = fixture.deployment();
    let stored = Stored { servers: servers.servers() };
    let votes: Vec<_> = OTHERS.iter().map(|server| stored.vote(*server, lock)).collect();
    assert!(votes.iter().flatten().all(|vote| vote.left.is_zero()), "{votes:?}");
}

fn live(votes: &[Option<Vote>]) -> usize {
    votes.iter().flatten().filter(|vote| !vote.left.is_zero()).count()
}

/// The lease lasts until more than its ttl is over.
async fn stays_held(guard: &LockGuard) {
    let begin = Instant::now();
    while begin.elapsed() < HOLD {
        assert!(guard.is_held(), "the lease was lost after {:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A fault during each phase of a lock, one after the other.
fn shows_as_a_delay(fault: MinorityFault) {
    case(async move |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        hold(&ann, "warm").await.release().await.expect("a release");
        hold(&bob, "warm up").await.release().await.expect("a release");

        // While it acquires and holds, until more than the ttl is over.
        fault.begin(&fixture);
        let stopwatch = Stopwatch::start();
        let guard = hold(&ann, "held").await;
        stopwatch.within(DELAY, "an acquire is delayed");
        the_others_vote_for(&fixture, &guard).await;
        stays_held(&guard).await;
        the_others_vote_for(&fixture, &guard).await;
        let first = guard.fencing_token();
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        stopwatch.within(DELAY * 2, "a release is delayed");
        the_others_are_free(&fixture, &name("held"));
        let next = hold(&bob, "held").await;
        stopwatch.within(DELAY * 4, "a handoff is delayed");
        fault.end(&fixture);

        // A lease from before the fault.
        fault.begin(&fixture);
        stays_held(&next).await;
        the_others_vote_for(&fixture, &next).await;
        fault.end(&fixture);
        let second = next.fencing_token();
        assert!(second > first, "{first} was followed by {second}");
        next.release().await.expect("a release");
        let third = hold(&ann, "held").await.fencing_token();
        assert!(third > second, "{second} was followed by {third}");
    });
}

#[test]
fn a_server_that_is_down_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::Down);
}

#[test]
fn a_server_that_is_paused_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::Paused);
}

#[test]
fn a_slow_server_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::Slow);
}

#[test]
fn a_server_that_is_restarted_without_its_data_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::Restarted);
}

#[test]
fn a_server_whose_clock_is_set_forward_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::ClockForward);
}

#[test]
fn a_server_whose_clock_is_set_back_shows_as_a_delay() {
    shows_as_a_delay(MinorityFault::ClockBack);
}

/// The vote of a claim that was refused is gone from every server when the call returns.
#[test]
fn a_refused_claim_leaves_no_vote() {
    case(async |fixture| {
        let (ann, bob) = (Direct::warm(&fixture, Route::Clear).await, Direct::warm(&fixture, Route::Clear).await);
        let (lock, ttl) = (name("refused"), TTL);
        let held = ann.claim(&lock);
        granted_by_all(&ann, &held, ttl, || live(&votes(&fixture, "refused")) == 3).await;
        // A server of which the holder has no vote: the refused claim gets it, and must give it back.
        let key = Stored::key(&lock);
        fixture.deployment().side().command(&["DEL", &key]).expect("a key");
        let refused = bob.acquire(&bob.claim(&lock), ttl).await.expect("an attempt");
        assert!(matches!(refused, AcquireOutcome::Contended { .. }), "{refused:?}");
        let after = votes(&fixture, "refused");
        assert_eq!(live(&after), 2, "the refused claim has left its vote");
        // The holder joins the server with its next renewals.
        let place = leasehold_core::backend::PlaceNumber::NONE;
        for _ in 0..2 {
            ann.renew(leasehold_core::backend::RenewRequest::new(held.clone(), place, ttl)).await;
        }
        let owners: std::collections::HashSet<_> =
            votes(&fixture, "refused").iter().flatten().map(|it| it.owner).collect();
        assert_eq!((live(&votes(&fixture, "refused")), owners.len()), (3, 1), "the holder has all votes");
        ann.release(&held, Delivery::Confirmed).await.expect("a release");
        eventually("no vote is left", || live(&votes(&fixture, "refused")) == 0).await;
    });
}

/// A withdrawal in doubt, of a claim that no server knows, ends no vote of another claim. It only keeps late requests
/// from taking effect.
#[test]
fn a_withdrawal_in_doubt_ends_no_vote_of_another_claim() {
    case(async |fixture| {
        let (ann, bob) = (Direct::warm(&fixture, Route::Clear).await, Direct::warm(&fixture, Route::Clear).await);
        let (lock, ttl) = (name("others"), TTL * 5);
        granted_by_all(&ann, &ann.claim(&lock), ttl, || live(&votes(&fixture, "others")) == 3).await;
        let before: Vec<_> = votes(&fixture, "others").iter().flatten().map(|vote| vote.owner).collect();
        let other = bob.claim(&lock);
        let outcome = bob.release(&other, Delivery::InDoubt).await.expect("a withdrawal");
        assert_eq!(outcome, leasehold_core::backend::ReleaseOutcome::NotHeld);
        let after = votes(&fixture, "others");
        let owners: Vec<_> = after.iter().flatten().map(|vote| vote.owner).collect();
        assert_eq!((live(&after), &owners), (3, &before), "the holder has all votes");
    });
}

/// A vote whose withdrawal could not be sent ends when the server is connected to again, and not with its ttl. The call
/// returns `Contended`, so lock-core sends no release of the claim.
#[test]
fn a_vote_that_could_not_be_withdrawn_ends_with_the_next_connection() {
    case(async |fixture| {
        // The connection breaks within the time that the other replies are late, and that time is below the bound of a
        // request, which is two fifths of the bound of a call.
        let late = Fault::Delay { requests: Duration::ZERO, replies: Duration::from_secs(2) };
        let url = fixture.url(Route::Faulty, "").replace("timeout=1s", "timeout=10s");
        let backend = QuorumBackend::connect(&url).await.expect("a quorum");
        reach_all(&backend, 3).await;
        let (ann, bob) = (Direct::warm(&fixture, Route::Clear).await, Direct::attach(Arc::new(backend)));
        let (lock, ttl) = (name("residue"), Duration::from_secs(25));
        ann.granted(&ann.claim(&lock), ttl).await;
        // Otherwise the request may have to be repeated with the text of the script.
        for turn in 0.. {
            let warm = format!("warm {turn}");
            bob.granted(&bob.claim(&name(&warm)), ttl).await;
            if live(&votes(&fixture, &warm)) == 3 {
                break;
            }
        }
        // A server of which the holder has no vote. Its reply is lost, and its connection breaks before the others have
        // replied. So the withdrawal cannot follow the vote.
        fixture.deployment().server_mut(ONE).command(&["DEL", &Stored::key(&lock)]).expect("a key");
        let proxies: Vec<_> = fixture.proxies().collect();
        proxies.iter().enumerate().filter(|it| it.0 != ONE).for_each(|it| it.1.apply(late));
        proxies[ONE].apply(Fault::LoseReplies);
        let vote_lives = || votes(&fixture, "residue")[ONE].as_ref().is_some_and(|vote| !vote.left.is_zero());
        let breaks = async {
            eventually("the server has the vote", vote_lives).await;
            proxies[ONE].apply(Fault::Refuse);
            proxies[ONE].apply(Fault::Disconnect);
        };
        let claim = bob.claim(&lock);
        let (refused, ()) = tokio::join!(bob.acquire(&claim, ttl), breaks);
        assert!(matches!(refused, Ok(AcquireOutcome::Contended { .. })), "{refused:?}");
        assert!(vote_lives(), "the vote was withdrawn over a connection that had broken");
        proxies.iter().for_each(|proxy| proxy.heal());
        let stopwatch = Stopwatch::start();
        eventually("the vote is withdrawn", || !vote_lives()).await;
        stopwatch.within(DELAY * 2, "the vote is withdrawn by the next connection");
    });
}

/// What a server keeps of its fences as a whole is above each of them: servers that lose their data take their floor
/// from it, and tokens up to it are not given again.
#[test]
fn no_fence_is_above_what_the_state_of_its_server_says() {
    case(async |fixture| {
        let client = client(&fixture).await;
        // The state is written in steps of a second.
        for turn in 0..15 {
            let lock = format!("fence {turn}");
            hold(&client, &lock).await.release().await.expect("a release");
            let votes = votes(&fixture, &lock);
            let mut fences = 0;
            for (server, vote) in fixture.deployment().servers().iter().zip(&votes) {
                let high = State::of(server).expect("a state").high;
                // A server from which the vote was not needed any more may have none.
                let fence = vote.as_ref().map_or(0, |vote| vote.fence);
                assert!(fence <= high, "turn {turn}: the fence is {fence}, and the state says {high}");
                fences += usize::from(fence > 0);
            }
            assert!(fences >= 2, "turn {turn}: a majority has accepted a token: {votes:?}");
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    });
}

/// All servers are restarted without their data, one after the other. The holder puts its votes back, so that it holds
/// all the time, and later tokens are higher.
#[test]
fn a_rolling_restart_loses_no_lease() {
    case(async |fixture| {
        let url = fixture.url(Route::Clear, "").replace("longest_ttl=30s", "longest_ttl=6s");
        let client = || async {
            let backend = QuorumBackend::connect(&url).await.expect("a quorum");
            LockClient::builder(backend).ttl(TTL * 2).wait(SOON).build().expect("a client")
        };
        let (ann, bob) = (client().await, client().await);
        let guard = hold(&ann, "rolling").await;
        for server in 0..3 {
            {
                let mut servers = fixture.deployment();
                servers.server_mut(server).kill().expect("a kill");
                servers.server_mut(server).start_again(Data::Lost).expect("a start");
            }
            let stopwatch = Stopwatch::start();
            eventually("the vote is put back", || live(&votes(&fixture, "rolling")) == 3).await;
            let settled = || State::of(&fixture.deployment().servers()[server]).is_some_and(|state| state.is_settled);
            eventually("the server is settled", settled).await;
            stopwatch.not_before(Duration::from_secs(5), "a server that lost its data votes early");
            assert!(guard.is_held(), "the lease was lost");
        }
        let busy = bob.lock("rolling").try_acquire().await.expect("an attempt");
        assert!(busy.is_none(), "a second holder");
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "rolling").await.fencing_token() > token, "tokens rise");
    });
}

/// Without a majority, the error names each server that is missing, and why.
#[test]
fn an_error_names_each_server_and_why() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Clear).await;
        let addresses: Vec<_> = fixture.deployment().servers().iter().map(|server| server.addr().to_string()).collect();
        fixture.deployment().server_mut(0).kill().expect("a kill");
        fixture.deployment().server_mut(1).pause().expect("a pause");
        let error = ann.acquire(&ann.claim(&name("few")), TTL).await.expect_err("no majority");
        let text = error.to_string();
        assert!(text.contains("2 of 3 servers are needed"), "{text}");
        assert!(
            text.contains(&addresses[0]) && text.contains(&addresses[1]) && !text.contains(&addresses[2]),
            "{text}"
        );
        fixture.deployment().server_mut(1).resume().expect("a resume");
    });
}

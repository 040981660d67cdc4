//! The backend of a store in the same process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::record::ClaimState;
use super::store::{Line, MemoryStore};
use crate::admin::{Check, Listing};
use crate::backend::kit::Attachment;
use crate::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Confirmation, CoreHandle, Grant, LONGEST_PLACE_TTL,
    LockBackend, NoAdmin, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply, RenewRequest, Scope, StoreClock,
    Waiting, WatchNames,
};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::lock_info::LockInfo;
use crate::name::LockName;
use crate::token::FencingToken;

/// Locks in a [`MemoryStore`], for one client. Each client of the same store has a backend of its own.
///
/// Exclusion reaches as far as the store: the process. Every call returns at once.
#[derive(Debug)]
pub struct MemoryBackend {
    store: MemoryStore,
    line: Line,
}

impl MemoryBackend {
    /// A backend for `store` for one client.
    pub fn new(store: &MemoryStore) -> Self {
        Self { store: store.clone(), line: Arc::new(Attachment::new()) }
    }

    /// The store.
    pub const fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn stamp(&self) -> Result<Stamp> {
        let core = self.line.get();
        core.map(CoreHandle::stamp).ok_or_else(|| Error::invalid("attach the backend before it is called"))
    }
}

#[async_trait]
impl LockBackend for MemoryBackend {
    fn attach(&self, core: CoreHandle) {
        // Ignores a second client, which must not take over the handle of the first.
        self.line.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let (sent, ttl) = (self.stamp()?, request.ttl);
        match self.store.acquire(request, &self.line) {
            ClaimState::Holds { token, place, .. } => {
                Ok(AcquireOutcome::Granted(Grant::new(token, Confirmation { ttl, sent, place })))
            }
            ClaimState::Waits { place, retry_after } => {
                let confirmation = Confirmation { ttl: ttl.min(LONGEST_PLACE_TTL), sent, place };
                Ok(AcquireOutcome::Queued { confirmation, retry_after })
            }
            ClaimState::Absent { retry_after } => Ok(AcquireOutcome::Contended { retry_after }),
            ClaimState::Withdrawn => Err(Error::withdrawn()),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let sent = match self.stamp() {
            Ok(sent) => sent,
            Err(error) => return replies.fail_rest(&error),
        };
        let standings = self.store.renew(requests, &self.line);
        for (index, (request, standing)) in requests.iter().zip(standings).enumerate() {
            replies.put(index, answer(request, standing, sent));
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ended = self.store.release(request, &self.line);
        Ok(if ended { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scope: Scope::Process,
            clock: StoreClock::Client,
            min_ttl: Duration::from_millis(10),
            waiting: Waiting::ServerQueue,
            fifo: true,
            takeover_slack: Duration::from_millis(50),
            fencing: "a counter per name that outlives the lease",
            call_bound: Duration::from_millis(250),
            renew_batch: 500,
            limits_of_exclusion: &["a test tampers with the store"],
            ..Capabilities::new("memory")
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

#[async_trait]
impl Admin for MemoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        Ok(self.store.inspect(name))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        Ok(Listing::new(self.store.list(prefix, limit), Vec::new()))
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        Ok(self.store.break_lock(name, token))
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        NoAdmin.examine().await
    }
}

fn answer(request: &RenewRequest, standing: ClaimState, sent: Stamp) -> RenewReply {
    match standing {
        ClaimState::Holds { token, place, handed_off } => {
            let confirmation = Confirmation { ttl: request.ttl, sent, place };
            // A claim that got the lock by handoff, or under another place number, may not know its token yet.
            if handed_off || place != request.place {
                RenewReply::Granted(Grant::new(token, confirmation))
            } else {
                RenewReply::Renewed(confirmation)
            }
        }
        ClaimState::Waits { place, retry_after } => RenewReply::Waiting {
            confirmation: Confirmation { ttl: request.ttl.min(LONGEST_PLACE_TTL), sent, place },
            retry_after,
        },
        ClaimState::Absent { .. } | ClaimState::Withdrawn => RenewReply::Lost,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::backend::{Claim, Delivery, Event, LossNotice, Mode, OnContention, PlaceNumber, Restart, TtlScope};
    use crate::clock::SystemClock;
    use crate::error::ErrorKind;
    use crate::holder_info::HolderInfo;
    use crate::token::OwnerToken;

    const TTL: Duration = Duration::from_secs(30);

    struct Client {
        backend: MemoryBackend,
        pushed: Arc<Mutex<Vec<(OwnerToken, u64)>>>,
    }

    impl Client {
        fn new(store: &MemoryStore) -> Self {
            let (backend, pushed) = (MemoryBackend::new(store), Arc::new(Mutex::new(Vec::new())));
            let handle = tokio::runtime::Handle::current();
            backend.attach(CoreHandle::new(Arc::new(SystemClock::new()), handle, {
                let pushed = pushed.clone();
                move |event| match event {
                    Event::Granted { owner, token, .. } => pushed.lock().unwrap().push((owner, token.get())),
                    other => panic!("{other:?}"),
                }
            }));
            Self { backend, pushed }
        }

        async fn acquire(&self, claim: &Claim) -> AcquireOutcome {
            self.backend.acquire(&AcquireRequest::new(claim.clone(), TTL)).await.unwrap()
        }

        async fn release(&self, claim: &Claim) -> ReleaseOutcome {
            self.backend.release(&ReleaseRequest::new(claim.clone(), Delivery::Confirmed)).await.unwrap()
        }

        async fn renew(&self, claim: &Claim, place: u64) -> RenewReply {
            let (send, answered) = tokio::sync::oneshot::channel();
            let send = Mutex::new(Some(send));
            let replies = RenewReplies::new(1, move |_, answer| {
                let _ = send.lock().unwrap().take().unwrap().send(answer);
            });
            self.backend.renew(&[RenewRequest::new(claim.clone(), PlaceNumber::new(place), TTL)], &replies).await;
            answered.await.unwrap()
        }
    }

    fn claim(name: &str, owner: u8) -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([owner; 16]), holder)
    }

    fn token_of(acquisition: AcquireOutcome) -> u64 {
        match acquisition {
            AcquireOutcome::Granted(grant) => grant.token.get(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_handoff_is_told_to_the_client_that_waits_and_to_no_other() {
        let store = MemoryStore::default();
        let [first, second] = [Client::new(&store), Client::new(&store)];
        let [a, b] = [claim("n", 1), claim("n", 2)];
        assert_eq!(token_of(first.acquire(&a).await), 1);
        assert!(matches!(second.acquire(&b).await, AcquireOutcome::Queued { .. }));
        assert!(matches!(first.renew(&a, 1).await, RenewReply::Renewed(_)));
        assert!(matches!(second.renew(&b, 2).await, RenewReply::Waiting { .. }));
        assert_eq!(first.release(&a).await, ReleaseOutcome::Released);
        assert_eq!(*second.pushed.lock().unwrap(), [(*b.owner(), 2)]);
        assert!(first.pushed.lock().unwrap().is_empty());
        assert!(matches!(second.renew(&b, 2).await, RenewReply::Granted(grant) if grant.token == FencingToken::new(2)));
        assert!(matches!(first.renew(&a, 1).await, RenewReply::Lost));
        assert_eq!(store.renewals_of(a.name()), 4);
        assert_eq!((store.counts().renew_calls, store.counts().renewals), (4, 4));

        let seen = second.backend.inspect(a.name()).await.unwrap().unwrap();
        let lease = seen.holder().unwrap();
        assert_eq!((lease.token.get(), seen.waiters), (2, Some(0)));
        assert!(lease.ttl_left <= TTL);
        assert_eq!(lease.holder.as_ref().unwrap().label, "test");
    }

    #[tokio::test]
    async fn tokens_rise_whatever_is_forgotten() {
        let store = MemoryStore::default();
        let client = Client::new(&store);
        for expected in 1..=3 {
            let a = claim("n", expected);
            assert_eq!(token_of(client.acquire(&a).await), u64::from(expected));
            match expected {
                1 => store.remove(a.name()),
                2 => store.forget_everything(),
                _ => store.expire(a.name()),
            }
            assert!(matches!(client.renew(&a, 1).await, RenewReply::Lost));
        }
        assert_eq!(client.release(&claim("n", 3)).await, ReleaseOutcome::NotHeld);
    }

    #[tokio::test]
    async fn only_a_release_in_doubt_leaves_something() {
        let store = MemoryStore::default();
        let client = Client::new(&store);
        let [a, b] = [claim("a", 1), claim("b", 2)];
        assert_eq!(client.release(&a).await, ReleaseOutcome::NotHeld);
        assert_eq!(store.resource_counts().records, 0);
        for claim in [&a, &b] {
            let withdraw = ReleaseRequest::new(claim.clone(), Delivery::InDoubt);
            assert_eq!(client.backend.release(&withdraw).await.unwrap(), ReleaseOutcome::NotHeld);
        }
        assert_eq!((store.resource_counts().records, store.resource_counts().tombstones), (2, 2));
        let seen = client.backend.inspect(a.name()).await.unwrap().unwrap();
        assert_eq!((seen.last_token, seen.holders.len(), seen.waiters), (None, 0, Some(0)));
        let late = client.backend.acquire(&AcquireRequest::new(a, TTL)).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    }

    #[test]
    fn it_promises_what_the_documentation_says() {
        let it = MemoryBackend::new(&MemoryStore::default()).capabilities();
        let expected = Capabilities {
            backend: "memory",
            modes: &[Mode::Exclusive],
            scope: Scope::Process,
            clock: StoreClock::Client,
            ttl_granularity: Duration::from_millis(1),
            min_ttl: Duration::from_millis(10),
            max_ttl: Duration::from_secs(24 * 3600),
            ttl_scope: TtlScope::Lease,
            waiting: Waiting::ServerQueue,
            fifo: true,
            max_place_ttl: LONGEST_PLACE_TTL,
            loss_notice: LossNotice::NextRenewal,
            takeover_slack: Duration::from_millis(50),
            fencing: "a counter per name that outlives the lease",
            restart: Restart::KeepsNothing,
            call_bound: Duration::from_millis(250),
            renew_batch: 500,
            limits_of_exclusion: &["a test tampers with the store"],
        };
        assert_eq!(it, expected);
    }

    #[tokio::test]
    async fn names_that_are_free_do_not_pile_up() {
        let store = MemoryStore::default();
        let client = Client::new(&store);
        let held = claim("held", 1);
        client.acquire(&held).await;
        for index in 0..70_000 {
            let fresh = claim(&index.to_string(), 2);
            client.acquire(&fresh).await;
            client.release(&fresh).await;
        }
        let resource_counts = store.resource_counts();
        assert!(resource_counts.records < 5_000, "{resource_counts:?}");
        assert_eq!((resource_counts.leases, resource_counts.places, resource_counts.tombstones), (1, 0, 0));
        assert_eq!(token_of(client.acquire(&claim("0", 3)).await), 2);
        assert_eq!(token_of(client.acquire(&held).await), 1);
    }

    #[tokio::test]
    async fn a_claim_that_wants_no_place_is_told_how_long_the_holder_has() {
        let store = MemoryStore::default();
        let client = Client::new(&store);
        client.acquire(&claim("n", 1)).await;
        let request = AcquireRequest::new(claim("n", 2), TTL).on_contention(OnContention::Fail);
        let answer = client.backend.acquire(&request).await.unwrap();
        assert!(
            matches!(answer, AcquireOutcome::Contended { retry_after } if retry_after > TTL / 2 && retry_after <= TTL)
        );
        assert_eq!(store.resource_counts().places, 0);
    }
}

//! Watches the queues of a client's claims, and carries out what follows. One stream has the watches of all names.
//!
//! The task of the watcher runs on the keeper's runtime. It keeps the mirrors up to date, opens the stream again when
//! it breaks, and reads each queue after its watch was opened. The queues that have to be read at one time share a
//! request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, ResponseHeader, Txn, TxnOp, TxnOpResponse};
use leasehold_core::backend::kit::lock;
use leasehold_core::backend::{Claim, CoreHandle, Event, OwnerToken, PlaceNumber};
use leasehold_core::{FencingToken, LockName};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::keys::{Keys, range_end};
use crate::mirror::{Decision, Member, Mirror, Position};
use crate::pauses::Pauses;
use crate::slot::Slot;
use crate::transactions;
use crate::watch_stream::{Incoming, Outgoing, WatchStream};

/// A lock that is released sooner than this after its grant is mostly not watched at all. If no other lock was watched
/// at once in that time, one is: a client with a single lock learns of its loss at once.
const SHORT_HOLD: Duration = Duration::from_millis(20);

/// A contended lock is watched for so long after the client's last claim has ended. The next claim then has its place
/// in the queue without two more round trips.
const LINGER: Duration = Duration::from_millis(50);

/// A stream that was silent for so long is tested.
const SILENCE: Duration = Duration::from_secs(2);

/// The queues that a client watches.
#[derive(Default)]
pub(crate) struct Watcher {
    state: Mutex<State>,
    work: Notify,
}

#[derive(Default)]
struct State {
    queues: HashMap<LockName, Queue>,
    /// The names of the watches.
    watches: HashMap<i64, LockName>,
    last_watch: i64,
    to_open: Vec<LockName>,
    /// Locks that are to be watched later, in the order of these times.
    delayed: VecDeque<(Instant, LockName)>,
    /// When the last lock was watched at once.
    watched_at_once: Option<Instant>,
    /// Queues in which no claim is left, and when to end their watches.
    idle: VecDeque<(Instant, LockName)>,
    to_cancel: Vec<i64>,
    /// Queues whose watches were just opened.
    to_read: Vec<Watched>,
}

struct Queue {
    mirror: Mirror<Claim>,
    /// When its watch ends, if no claim is added until then.
    ends: Option<Instant>,
    /// The server may end its watch as often as it is opened.
    pauses: Pauses,
}

impl Watcher {
    /// Watches the queue of a claim that has a key.
    pub(crate) fn add(&self, core: &CoreHandle, claim: &Claim, key: &str, revision: i64, holds: bool) {
        let member = Member { key: key.as_bytes().to_vec(), revision, holds, of: claim.clone() };
        let (decisions, has_work) = {
            let mut state = lock(&self.state);
            let make = || Queue { mirror: Mirror::new(), ends: None, pauses: Pauses::default() };
            let queue = state.queues.entry(claim.name().clone()).or_insert_with(make);
            queue.ends = None;
            let decisions = queue.mirror.add(*claim.owner(), member);
            let is_watched = queue.mirror.watch().is_some();
            (decisions, !is_watched && state.wants_watch(claim.name(), holds))
        };
        if has_work {
            self.work.notify_one();
        }
        carry_out(core, decisions);
    }

    /// The claim has ended.
    pub(crate) fn remove(&self, claim: &Claim) {
        let mut state = lock(&self.state);
        let Some(queue) = state.queues.get_mut(claim.name()) else { return };
        queue.mirror.remove(claim.owner());
        if state.end_if_empty(claim.name()) {
            drop(state);
            self.work.notify_one();
        }
    }

    /// What the watch has delivered about a claim.
    pub(crate) fn position(&self, name: &LockName, owner: &OwnerToken) -> Position {
        lock(&self.state).queues.get(name).map_or(Position::Unknown, |queue| queue.mirror.position(owner))
    }

    /// Runs until it is aborted.
    pub(crate) async fn run(self: Arc<Self>, connections: Arc<Connections>, core: CoreHandle) {
        let mut pauses = Pauses::default();
        loop {
            let first = loop {
                if let Some(first) = lock(&self.state).next_to_open(&connections.shared.keys) {
                    break first;
                }
                self.wait_for_work().await;
            };
            if let Ok(stream) = self.open(&connections, first).await {
                self.serve(stream, &connections, &core).await;
            }
            lock(&self.state).stream_ended();
            sleep_until(pauses.next(Instant::now())).await;
        }
    }

    /// Waits until a lock is to be watched.
    async fn wait_for_work(&self) {
        let next = lock(&self.state).delayed.front().map(|(at, _)| *at);
        match next {
            Some(at) => tokio::select! {
                () = self.work.notified() => {}
                () = sleep_until(at) => {}
            },
            None => self.work.notified().await,
        }
    }

    async fn open(&self, connections: &Arc<Connections>, first: (i64, String)) -> Result<WatchStream, ()> {
        let until = connections.shared.until();
        let connection = connections.get(until).await.map_err(drop)?;
        match WatchStream::open(connection, first, until).await {
            Ok(stream) => Ok(stream),
            Err((connection, failure)) => {
                broken(connections, &connection, &failure).await;
                Err(())
            }
        }
    }

    /// Receives messages until the stream ends.
    async fn serve(&self, mut stream: WatchStream, connections: &Arc<Connections>, core: &CoreHandle) {
        let connection = stream.connection.clone();
        let (bound, mut heard, mut asked) = (connections.shared.settings.timeout, Instant::now(), None);
        let mut reads: Option<Reading> = None;
        loop {
            let next = self.send_requests(&stream, &connections.shared.keys);
            // One at a time: the queues whose watches open meanwhile share the next read.
            if reads.is_none() {
                reads = self.begin_reads(connections);
            }
            // Nothing reports a path that was forgotten, and a quiet queue sends nothing either. So a silent stream is
            // asked for its progress.
            let silent_at = match asked {
                None => heard + SILENCE,
                Some(asked) => asked + bound,
            };
            let is_used = !lock(&self.state).queues.is_empty();
            tokio::select! {
                message = stream.next() => match message {
                    Ok(message) => {
                        (heard, asked) = (Instant::now(), None);
                        carry_out(core, self.received(message));
                    }
                    Err(failure) => return broken(connections, &connection, &failure).await,
                },
                read = async { reads.as_mut().expect("it was begun").await }, if reads.is_some() => {
                    reads = None;
                    match read {
                        Ok(Ok(read)) => carry_out(core, self.read(read)),
                        Ok(Err((queues, Failure::TooManyOperations(_)))) if queues.len() > 1 => {
                            // The server allows fewer operations in a transaction. Smaller reads follow.
                            connections.shared.most_operations.refused(queues.len());
                            lock(&self.state).to_read.extend(queues);
                        }
                        // Without a reply, the watches begin anew.
                        Ok(Err(_)) | Err(_) => return,
                    }
                }
                () = self.work.notified() => {}
                () = async { sleep_until(next.expect("there is one")).await }, if next.is_some() => {}
                () = sleep_until(silent_at), if is_used => match asked {
                    None => {
                        asked = Some(Instant::now());
                        stream.send(Outgoing::Progress);
                    }
                    Some(_) => return broken(connections, &connection, &Failure::TimedOut).await,
                },
                () = connection.health.closed() => return,
            }
        }
    }

    /// Opens and cancels watches. Returns when the next one is to be opened or cancelled.
    fn send_requests(&self, stream: &WatchStream, keys: &Keys) -> Option<Instant> {
        let mut state = lock(&self.state);
        state.end_idle();
        for watch in std::mem::take(&mut state.to_cancel) {
            stream.send(Outgoing::Cancel(watch));
        }
        while let Some((number, queue)) = state.next_to_open(keys) {
            stream.send(Outgoing::Watch { number, queue });
        }
        [state.delayed.front(), state.idle.front()].into_iter().flatten().map(|(at, _)| *at).min()
    }

    fn received(&self, message: Incoming) -> Vec<Decision<Claim>> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let watch = match &message {
            Incoming::Created(watch) | Incoming::Cancelled(watch) | Incoming::Changes(watch, _) => *watch,
            Incoming::Progress => return Vec::new(),
        };
        let Some(name) = state.watches.get(&watch).cloned() else { return Vec::new() };
        let Some(Queue { mirror, pauses, .. }) = state.queues.get_mut(&name) else { return Vec::new() };
        match message {
            Incoming::Created(_) => {
                // Read only now: a change after the read is then certain to come by the watch.
                if mirror.created(watch) {
                    state.to_read.push((name, watch));
                }
                Vec::new()
            }
            Incoming::Cancelled(_) => {
                mirror.closed();
                state.watches.remove(&watch);
                // A server that always refuses must not be asked in a tight loop.
                let at = pauses.next(Instant::now());
                state.watch_later(at, name);
                Vec::new()
            }
            Incoming::Changes(_, changes) => {
                let decisions = mirror.changed(watch, changes);
                state.end_if_empty(&name);
                decisions
            }
            Incoming::Progress => Vec::new(),
        }
    }

    /// Begins to read the queues whose watches were just opened.
    fn begin_reads(&self, connections: &Arc<Connections>) -> Option<Reading> {
        let names: Vec<_> = {
            let mut state = lock(&self.state);
            let count = state.to_read.len().min(connections.shared.most_operations.get());
            state.to_read.drain(..count).collect()
        };
        if names.is_empty() {
            return None;
        }
        let connections = connections.clone();
        Some(tokio::spawn(async move {
            let queues: Vec<_> = names.iter().map(|(name, _)| connections.shared.keys.queue(name)).collect();
            match read(&connections, queues).await {
                Ok((revision, places)) => Ok(Reads { revision, queues: names.into_iter().zip(places).collect() }),
                Err(failure) => Err((names, failure)),
            }
        }))
    }

    fn read(&self, reads: Reads) -> Vec<Decision<Claim>> {
        let mut state = lock(&self.state);
        let mut decisions = Vec::new();
        for ((name, watch), places) in reads.queues {
            if let Some(queue) = state.queues.get_mut(&name) {
                decisions.extend(queue.mirror.read(watch, reads.revision, places));
                state.end_if_empty(&name);
            }
        }
        decisions
    }
}

/// Reads queues at one revision, which is returned too.
///
/// Not stale, for the read is linearizable. So it is at least as new as the watch that was created before, also if that
/// is on another member, and it has every key that the watch does not deliver.
async fn read(connections: &Arc<Connections>, queues: Vec<String>) -> Result<(i64, Vec<Places>), Failure> {
    let until = connections.shared.until();
    let options = |queue: &str| GetOptions::new().with_range(range_end(queue)).with_keys_only();
    let places = |get: &GetResponse| get.kvs().iter().map(|kv| (kv.key().to_vec(), kv.create_revision())).collect();
    if let [queue] = &queues[..] {
        let queue = queue.clone();
        let get = connections.send_repeatable(until, move |client| {
            let (queue, options) = (queue.clone(), options(&queue));
            async move {
                client.kv_client().max_decoding_message_size(Connection::max_reply()).get(queue, Some(options)).await
            }
        });
        let get = get.await?;
        let revision = get.header().map(ResponseHeader::revision).ok_or(Failure::UnexpectedReply)?;
        return Ok((revision, vec![places(&get)]));
    }
    let gets: Vec<_> = queues.iter().map(|queue| TxnOp::get(queue.as_str(), Some(options(queue)))).collect();
    let txn = Txn::new().and_then(gets);
    let reply = connections.send_repeatable(until, move |client| {
        let txn = txn.clone();
        async move { client.kv_client().max_decoding_message_size(Connection::max_reply()).txn(txn).await }
    });
    let reply = reply.await?;
    let queues = reply.op_responses().into_iter().map(|response| match response {
        TxnOpResponse::Get(get) => Ok(places(&get)),
        _ => Err(Failure::UnexpectedReply),
    });
    Ok((transactions::revision(&reply)?, queues.collect::<Result<_, _>>()?))
}

/// The keys of a queue, and their create revisions.
type Places = Vec<(Vec<u8>, i64)>;

/// A lock, and the number of its watch.
type Watched = (LockName, i64);

/// Queues that were read at one revision.
struct Reads {
    revision: i64,
    queues: Vec<(Watched, Places)>,
}

/// A read of queues. If it fails, they are still to be read.
type Reading = tokio::task::JoinHandle<Result<Reads, (Vec<Watched>, Failure)>>;

impl State {
    /// Has a lock watched soon. Returns whether the task has to be woken for it.
    fn wants_watch(&mut self, name: &LockName, holds: bool) -> bool {
        let now = Instant::now();
        let at_once = !holds || self.watched_at_once.is_none_or(|last| now >= last + SHORT_HOLD);
        if at_once {
            self.watched_at_once = Some(now);
            self.to_open.push(name.clone());
            return true;
        }
        self.watch_later(now + SHORT_HOLD, name.clone())
    }

    /// Has a lock watched at that time. Returns whether the task has to be woken for it.
    fn watch_later(&mut self, at: Instant, name: LockName) -> bool {
        let index = self.delayed.partition_point(|(other, _)| *other <= at);
        self.delayed.insert(index, (at, name));
        index == 0
    }

    /// The next watch to open: its number and what it watches.
    fn next_to_open(&mut self, keys: &Keys) -> Option<(i64, String)> {
        let now = Instant::now();
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            self.to_open.extend(self.delayed.pop_front().map(|(_, name)| name));
        }
        while let Some(name) = self.to_open.pop() {
            let Some(Queue { mirror, .. }) = self.queues.get_mut(&name) else { continue };
            if mirror.is_empty() || mirror.watch().is_some() {
                continue;
            }
            self.last_watch += 1;
            mirror.opening(self.last_watch);
            let queue = keys.queue(&name);
            self.watches.insert(self.last_watch, name);
            return Some((self.last_watch, queue));
        }
        None
    }

    /// Ends the watch of a lock of which no claim is left, now or soon. Returns whether the task has to be woken for
    /// it.
    fn end_if_empty(&mut self, name: &LockName) -> bool {
        let Some(queue) = self.queues.get_mut(name) else { return false };
        if !queue.mirror.is_empty() || queue.ends.is_some() {
            return false;
        }
        if queue.mirror.watch().is_some() && queue.mirror.is_contended() {
            let ends = Instant::now() + LINGER;
            queue.ends = Some(ends);
            self.idle.push_back((ends, name.clone()));
            return self.idle.len() == 1;
        }
        self.end(name)
    }

    /// Ends the watches of locks that no claim has used for some time.
    fn end_idle(&mut self) {
        let now = Instant::now();
        while self.idle.front().is_some_and(|(ends, _)| *ends <= now) {
            let Some((ends, name)) = self.idle.pop_front() else { return };
            // A claim may have been added meanwhile, and have ended.
            if self.queues.get(&name).is_some_and(|queue| queue.ends == Some(ends)) {
                self.end(&name);
            }
        }
    }

    /// Forgets a queue. Returns whether it was watched.
    fn end(&mut self, name: &LockName) -> bool {
        let watch = self.queues.remove(name).and_then(|queue| queue.mirror.watch());
        if let Some(watch) = watch {
            self.watches.remove(&watch);
            self.to_cancel.push(watch);
        }
        watch.is_some()
    }

    /// Every watch has ended.
    fn stream_ended(&mut self) {
        self.to_cancel.clear();
        self.to_read.clear();
        self.watches.clear();
        self.idle.clear();
        self.queues.retain(|_, queue| !queue.mirror.is_empty());
        for (name, Queue { mirror, .. }) in &mut self.queues {
            if mirror.watch().is_some() {
                mirror.closed();
                self.to_open.push(name.clone());
            }
        }
    }
}

/// A stream broke, so its connection may be of no use.
async fn broken(connections: &Arc<Connections>, connection: &Connection, failure: &Failure) {
    match failure {
        Failure::TimedOut => connection.health.doubt(),
        failure if failure.ends_connection() => connection.health.close(),
        _ => {
            // The log-in is out of date after a change of the user's permissions, and etcd 3.4 does not say so when it
            // refuses a watch. The reply to a read does, and closes the connection. Otherwise watches would be refused
            // until a renewal does that.
            let (key, until) = (connections.shared.keys.names_with(""), connections.shared.until());
            connection.is_alive(key.unwrap_or_default(), until).await;
        }
    }
    connections.failed(connection, failure);
}

/// Reports decisions to lock-core.
fn carry_out(core: &CoreHandle, decisions: Vec<Decision<Claim>>) {
    for decision in decisions {
        match decision {
            Decision::Granted { of: claim, revision } => {
                let (Some(key), Ok(number)) = (Slot::of(&claim).key(), u64::try_from(revision)) else { continue };
                let place = PlaceNumber::new(number);
                core.event(Event::Granted {
                    owner: *claim.owner(),
                    place,
                    token: FencingToken::new(number),
                    // The key exists, so the session lives, and its newest confirmation is one of the lease.
                    confirmation: Some(key.session.keeper.newest(place)),
                });
            }
            Decision::Gone { of: claim, owner } => {
                Slot::of(&claim).forget_key();
                core.event(Event::Gone { owner });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::HolderInfo;
    use leasehold_core::backend::SystemClock;

    use super::*;

    fn claim(name: &str) -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([1; 16]), holder)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_the_server_ends_is_opened_again_and_read() {
        let core = CoreHandle::new(Arc::new(SystemClock::new()), tokio::runtime::Handle::current(), |_| {});
        let (watcher, keys, claim) = (Watcher::default(), Keys::new("locks"), claim("job"));
        watcher.add(&core, &claim, "locks/job/1", 10, true);
        let next = || lock(&watcher.state).next_to_open(&keys);
        let mut last = 0;
        for _ in 0..3 {
            let (watch, queue) = next().expect("a watch");
            assert!(watch > last && queue == "locks/job/" && next().is_none());
            last = watch;
            watcher.received(Incoming::Created(watch));
            assert_eq!(std::mem::take(&mut lock(&watcher.state).to_read), [(claim.name().clone(), watch)]);
            watcher.received(Incoming::Cancelled(watch));
            assert!(next().is_none(), "without a pause");
            tokio::time::advance(Duration::from_millis(250)).await;
        }
        // One of a stream that has ended.
        let (watch, _) = next().expect("a watch");
        lock(&watcher.state).stream_ended();
        watcher.received(Incoming::Cancelled(watch));
        assert!(next().is_some_and(|(next, _)| next > watch) && next().is_none());
    }
}

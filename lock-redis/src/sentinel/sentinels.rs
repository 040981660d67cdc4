//! The Sentinels of one client: the connections to them, and asking all of them.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold_core::backend::kit::{PerRuntime, lock, tls_refusal};
use leasehold_core::backend::{Clock, Stamp, SystemClock};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Mutex as Turn, Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::member::Sentinel;
use super::naming::{Address, Naming};
use crate::connection::Role;
use crate::endpoint::Endpoint;
use crate::manager::{self, ConnectionManager};

pub(crate) struct Sentinels {
    pub(super) state: Arc<State>,
    pub(super) members: Vec<Arc<Sentinel>>,
    managers: PerRuntime<Managers>,
    /// The keeper's runtime, once the client has one.
    keeper: OnceLock<Id>,
    /// The task that follows hints.
    follower: Mutex<Option<AbortHandle>>,
    timeout: Duration,
}

/// What the connections to all Sentinels share.
pub(super) struct State {
    /// The name of the primary, for the Sentinels.
    pub(super) name: String,
    naming: Mutex<Naming>,
    /// The server that a majority has named last.
    named: watch::Sender<Option<Address>>,
    /// A Sentinel has reported a failover.
    pub(super) hinted: Notify,
    /// The identities of the Sentinels.
    pub(super) ids: Mutex<Vec<Option<String>>>,
    /// Why the last question had no answer.
    why: Mutex<Option<Error>>,
    /// Not that of the client: the Sentinels are asked before the backend is attached.
    clock: SystemClock,
}

/// The connections of one runtime, one for each Sentinel.
struct Managers {
    owned: Vec<ConnectionManager<Sentinel>>,
    shared: Connections,
    turn: Arc<Turn<()>>,
}

/// The same, to use.
pub(super) type Connections = Arc<[Arc<manager::Inner<Sentinel>>]>;

impl State {
    pub(super) fn now(&self) -> Stamp {
        self.clock.now()
    }

    pub(super) fn answer(&self, sentinel: usize, asked: Stamp, primary: Option<Address>) {
        let mut naming = lock(&self.naming);
        naming.answer(sentinel, asked, primary);
        // While no majority agrees, as in the middle of a failover, connections stay.
        if let Some(primary) = naming.primary() {
            self.named.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(primary);
                if is_new {
                    *known = Some(primary.clone());
                }
                is_new
            });
        }
    }

    /// What the naming says now.
    pub(super) fn naming<T>(&self, read: impl FnOnce(&Naming) -> T) -> T {
        read(&lock(&self.naming))
    }

    /// Resolves when a majority names another server.
    pub(super) async fn names_other(&self, than: &Address) {
        let is_other = |named: &Option<Address>| named.as_ref().is_some_and(|named| named != than);
        if self.named.subscribe().wait_for(is_other).await.is_err() {
            // This has the sender.
            std::future::pending().await
        }
    }

    /// Why no majority named a server in time.
    pub(super) fn why(&self) -> Option<Error> {
        lock(&self.why).clone()
    }
}

impl Sentinels {
    /// Of a primary with this name. Each endpoint is that of a Sentinel.
    pub(super) fn new(name: String, endpoints: Vec<Endpoint>, timeout: Duration) -> Self {
        let state = Arc::new(State {
            name,
            naming: Mutex::new(Naming::new(endpoints.len())),
            named: watch::Sender::new(None),
            hinted: Notify::new(),
            ids: Mutex::new(vec![None; endpoints.len()]),
            why: Mutex::new(None),
            clock: SystemClock::new(),
        });
        let member = |(number, endpoint)| Arc::new(Sentinel::new(state.clone(), number, endpoint));
        let members = endpoints.into_iter().enumerate().map(member).collect();
        let (managers, keeper, follower) = (PerRuntime::new(), OnceLock::new(), Mutex::default());
        Self { state, members, managers, keeper, follower, timeout }
    }

    /// Keeps connections to all Sentinels open on the keeper's runtime, and follows their hints.
    pub(crate) fn attach(&self, keeper: &Handle) {
        let _ = self.keeper.set(keeper.id());
        // Those from before the attach are not kept open.
        self.managers.remove(keeper);
        let (connections, turn) = self.connections_of(keeper);
        let (state, timeout) = (self.state.clone(), self.timeout);
        let task = keeper.spawn(async move {
            loop {
                state.hinted.notified().await;
                let _turn = turn.lock().await;
                // Each Sentinel sends its own hint when it has switched, so the last one of a majority finds that.
                let _ = ask(&state, &connections, Instant::now() + timeout).await;
            }
        });
        *lock(&self.follower) = Some(task.abort_handle());
    }

    /// The connections of the calling runtime, and the turn to ask.
    pub(super) fn connections(&self) -> Result<(Connections, Arc<Turn<()>>)> {
        Ok(self.connections_of(&PerRuntime::<Managers>::caller()?))
    }

    fn connections_of(&self, runtime: &Handle) -> (Connections, Arc<Turn<()>>) {
        let make = || {
            let is_kept = self.keeper.get() == Some(&runtime.id());
            let role = if is_kept { Role::CommandsAndPushes } else { Role::Commands };
            let make = |member: &Arc<Sentinel>| ConnectionManager::new(member.clone(), role, runtime);
            let owned: Vec<_> = self.members.iter().map(make).collect();
            let shared: Connections = owned.iter().map(|manager| manager.inner().clone()).collect();
            shared.iter().for_each(|manager| manager.request_connection());
            Managers { owned, shared, turn: Arc::default() }
        };
        let is_alive = |managers: &Managers| managers.owned.iter().all(|manager| !manager.is_stopped());
        self.managers.read(runtime, is_alive, make, |managers| (managers.shared.clone(), managers.turn.clone()))
    }

    /// Asks for the primary.
    ///
    /// # Errors
    /// No majority names one. The text names each Sentinel, and why.
    pub(crate) async fn primary(&self) -> Result<Address> {
        let (connections, _) = self.connections()?;
        // Half of a call is left to connect to the server.
        ask(&self.state, &connections, Instant::now() + self.timeout / 2).await
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.members.iter().map(|member| member.endpoint.address.as_str()).collect();
        write!(f, "{} (of the Sentinels {})", self.state.name, addresses.join(", "))
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.follower).take() {
            task.abort();
        }
    }
}

/// What one Sentinel said.
enum Said {
    Names(Address),
    NamesNone,
    Failed(Error),
}

/// Asks all Sentinels, and returns when a majority of them has named the same server. Cancel safe: the answers are
/// taken nevertheless.
pub(super) async fn ask(state: &Arc<State>, connections: &Connections, until: Instant) -> Result<Address> {
    let begin = state.now();
    let (answers, mut answered) = mpsc::unbounded_channel();
    for (sentinel, manager) in connections.iter().cloned().enumerate() {
        let answers = answers.clone();
        tokio::spawn(async move {
            // Fails when nobody waits any more.
            let _ = answers.send((sentinel, Sentinel::ask(&manager, until).await));
        });
    }
    drop(answers);
    let mut said: Vec<_> = connections.iter().map(|_| None).collect();
    while let Some((sentinel, answer)) = answered.recv().await {
        said[sentinel] = Some(match answer {
            Ok(Some(address)) => Said::Names(address),
            Ok(None) => Said::NamesNone,
            Err(error) => Said::Failed(error),
        });
        if let Some(primary) = state.naming(|naming| naming.primary_since(begin).cloned()) {
            *lock(&state.why) = None;
            return Ok(primary);
        }
    }
    let addresses: Vec<_> = connections.iter().map(|manager| manager.protocol.endpoint.address.as_str()).collect();
    let error = no_majority(&state.name, state.naming(Naming::majority), &addresses, &said);
    *lock(&state.why) = Some(error.clone());
    Err(error)
}

/// The error of too few Sentinels that agree. A reason that so many have that no majority is left is its kind, so that
/// the caller can do something about it.
fn no_majority(name: &str, majority: usize, addresses: &[&str], said: &[Option<Said>]) -> Error {
    let kinds = said.iter().flatten().filter_map(|said| match said {
        Said::Names(_) => None,
        Said::NamesNone => Some(ErrorKind::InvalidInput),
        Said::Failed(error) => Some(error.kind()),
    });
    let kinds: Vec<_> = kinds.collect();
    let is_common = |kind: &&ErrorKind| kinds.iter().filter(|other| other == kind).count() >= majority;
    let kind = kinds.iter().find(is_common).copied().unwrap_or(ErrorKind::Unavailable);
    let reasons = addresses.iter().zip(said).map(|(address, said)| match said {
        Some(Said::Names(primary)) => format!("{address}: names {primary}"),
        Some(Said::NamesNone) => format!("{address}: does not know `{name}`"),
        Some(Said::Failed(error)) => {
            let hint = match error.kind() {
                // Not for a certificate that it refuses.
                ErrorKind::Auth if tls_refusal(error).is_none() => {
                    " (`sentinel_user` and `sentinel_password` in the URL)"
                }
                _ => "",
            };
            let why = with_causes(error);
            if why.contains(address) { format!("{why}{hint}") } else { format!("{address}: {why}{hint}") }
        }
        None => format!("{address}: not asked"),
    });
    let reasons: Vec<_> = reasons.collect();
    let text = match addresses.len() {
        1 => format!("the Sentinel names no primary for `{name}`: {}", reasons.join("; ")),
        count => format!("no majority of the {count} Sentinels names a primary for `{name}`: {}", reasons.join("; ")),
    };
    Error::new(kind, text)
}

/// An error with what caused it.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(why) = cause {
        text.push_str(&format!(": {why}"));
        cause = why.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::errors::{Failure, not_connected};

    fn error(said: Vec<Said>) -> Error {
        let addresses = ["one:1", "two:2", "three:3"];
        no_majority("mymaster", 2, &addresses, &said.into_iter().map(Some).collect::<Vec<_>>())
    }

    fn failed(kind: ErrorKind, text: &'static str) -> Said {
        Said::Failed(Error::new(kind, text))
    }

    #[test]
    fn an_error_names_each_sentinel_and_why() {
        let address = Address { host: "10.0.0.7".to_owned(), port: 6379 };
        let said = vec![
            Said::Failed(
                Error::new(ErrorKind::Unavailable, "cannot connect to the server at one:1").with_cause("refused"),
            ),
            Said::NamesNone,
            Said::Names(address),
        ];
        let error = error(said);
        assert_eq!(
            error.to_string(),
            "no majority of the 3 Sentinels names a primary for `mymaster`: cannot connect to the server at one:1: \
             refused; two:2: does not know `mymaster`; three:3: names 10.0.0.7:6379"
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_reason_of_a_majority_is_the_kind_of_the_error() {
        use ErrorKind::{Auth, InvalidInput, Unavailable, Unsupported};
        for (kinds, kind) in [
            ([Auth, Auth, Unavailable], Auth),
            ([Unavailable, Unsupported, Unsupported], Unsupported),
            ([InvalidInput, InvalidInput, InvalidInput], InvalidInput),
            ([Auth, Unsupported, Unavailable], Unavailable),
        ] {
            let said = kinds.map(|kind| if kind == InvalidInput { Said::NamesNone } else { failed(kind, "why") });
            assert_eq!(error(said.into()).kind(), kind, "{kinds:?}");
        }
        let text = error(vec![failed(Auth, "the server requires a user"), Said::NamesNone, Said::NamesNone]);
        assert!(text.to_string().contains("one:1: the server requires a user (`sentinel_user` and"), "{text}");
        // A user does not help against a certificate that is refused.
        let alert = io::Error::new(io::ErrorKind::InvalidData, "received fatal alert: CertificateRequired");
        let refused = not_connected(Failure::Disconnected(alert.into()), "one:1");
        assert_eq!(refused.kind(), Auth);
        let text = error(vec![Said::Failed(refused), Said::NamesNone, Said::NamesNone]).to_string();
        assert!(text.contains("`cert=`") && !text.contains("sentinel_user"), "{text}");
    }
}

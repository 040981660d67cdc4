//! The backend: three verbs, each one script call.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    Acquisition, Answer, Answers, Capabilities, Certainty, Claim, Confirmation, CoreHandle, Extend, Extensions, Grant,
    IfHeld, LONGEST_PLACE_TTL, LeaseRef, LockBackend, Mode, Release,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use crate::calls::{Answered, Ask, Terms, Told, Want};
use crate::capabilities::{self, RENEW_BATCH};
use crate::conn::{Conn, Role, script_call};
use crate::errors::{BACKEND, Failure, refused};
use crate::line::{self, Line};
use crate::replies::{self, Acquired, Renewed};
use crate::settings::{Settings, read_url};
use crate::shared::{Shared, as_kept, lock, millis};

/// Locks on one Redis, version 6.2 or later.
pub struct RedisBackend {
    pub(crate) shared: Arc<Shared>,
    lines: Mutex<HashMap<runtime::Id, Line>>,
    capabilities: Capabilities,
}

impl RedisBackend {
    /// Connects to the server of a URL, and checks that it can be used for locks.
    ///
    /// # Errors
    /// `InvalidInput` for a URL that cannot be used or a tokio runtime without timers; `Unavailable` when the server cannot be
    /// reached within [`timeout`](Settings::timeout) or is not ready; `Auth` when it refuses the user, `Unsupported` when it cannot be
    /// used for locks, `Capacity` when it takes no more connections.
    ///
    /// # Cancel safety
    /// Dropped, it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let (client, settings) = read_url(url)?;
        Self::connect_with(&client, settings).await
    }

    /// The same from a client of the `redis` crate. Its address, database, user, password and TLS are used; its
    /// protocol and TCP settings are set by us.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropped, it leaves nothing behind.
    pub async fn connect_with(client: &redis::Client, settings: Settings) -> Result<Self> {
        let backend = Self::unconnected(client, settings)?;
        leasehold_core::backend::require_timers()?;
        backend.conn().await?;
        Ok(backend)
    }

    /// Reads a URL and sends nothing: the first call connects, and fails while the server cannot be reached or used. For a
    /// program that may start before its server.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (client, settings) = read_url(url)?;
        Self::unconnected(&client, settings)
    }

    fn unconnected(client: &redis::Client, settings: Settings) -> Result<Self> {
        let settings = settings.check()?;
        let capabilities = capabilities::of(&settings);
        Ok(Self { shared: Arc::new(Shared::new(client, settings)?), lines: Mutex::default(), capabilities })
    }

    /// The line of the runtime that calls.
    pub(crate) fn line(&self) -> Result<Arc<line::Inner>> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "called outside a tokio runtime, which the connection needs")
        })?;
        Ok(self.line_of(&runtime))
    }

    fn line_of(&self, runtime: &Handle) -> Arc<line::Inner> {
        let listens = self.shared.core.get().is_some_and(|core| core.keeper_runtime().id() == runtime.id());
        let role = if listens { Role::AsksAndListens } else { Role::Asks };
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get(&runtime.id())
            && !line.is_gone()
            && line.role() == role
        {
            return line.inner().clone();
        }
        lines.retain(|_, line| !line.is_gone());
        let line = Line::new(self.shared.clone(), role, runtime);
        let inner = line.inner().clone();
        inner.want();
        lines.insert(runtime.id(), line);
        inner
    }

    /// The connection of the runtime that calls, and when a call that begins now has to have ended.
    pub(crate) async fn conn(&self) -> Result<(Arc<Conn>, Instant)> {
        let until = Instant::now() + self.shared.bound();
        Ok((self.line()?.conn(until).await?, until))
    }

    async fn ask(&self, claim: &Claim, want: Want) -> Result<Answered> {
        let until = Instant::now() + self.shared.bound();
        self.line()?.ask(Ask { claim: claim.clone(), want }, until).await
    }

    async fn try_acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        if claim.mode() != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, "only exclusive locks are supported"));
        }
        let Capabilities { min_ttl, max_ttl, .. } = self.capabilities;
        if ttl < min_ttl || ttl > max_ttl {
            return Err(Error::invalid(format!("a ttl is {min_ttl:?} to {max_ttl:?}, not {ttl:?}")));
        }
        let terms = Terms { ttl, place: claim.wish() == IfHeld::Queue };
        self.shared.tombstones.acquiring(*claim.owner(), ttl, Instant::now());
        let Answered { sent, told } = self.ask(claim, Want::Acquire(terms)).await?;
        let confirmation = |ttl, place| Confirmation { ttl: as_kept(ttl), sent, place };
        match told {
            Told::Acquired(Acquired::Granted { place, token }) => {
                Ok(Acquisition::Granted(Grant::new(FencingToken::new(token), confirmation(ttl, place))))
            }
            Told::Acquired(Acquired::Queued { place, look_in }) => {
                Ok(Acquisition::Queued { confirmation: confirmation(ttl.min(LONGEST_PLACE_TTL), place), look_in })
            }
            Told::Acquired(Acquired::Held { look_in }) => Ok(Acquisition::Held { look_in }),
            Told::Acquired(Acquired::Withdrawn) => {
                Err(Error::new(ErrorKind::Lost, "this claim was withdrawn before the request arrived"))
            }
            Told::Released(_) => Err(Failure::Unreadable.into()),
        }
    }

    async fn try_release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        let tombstones = &self.shared.tombstones;
        let remember = (certainty == Certainty::Unsure).then(|| tombstones.ttl_of(claim.owner()));
        let Told::Released(was_held) = self.ask(claim, Want::Release(remember)).await?.told else {
            return Err(Failure::Unreadable.into());
        };
        tombstones.ended(claim.owner());
        Ok(if was_held { Release::Released } else { Release::NotHeld })
    }

    /// Renews at most [`RENEW_BATCH`] leases.
    async fn renew_some(&self, leases: &[LeaseRef], until: Instant) -> Result<Vec<Answer>> {
        let shared = &self.shared;
        let conn = self.line()?.conn(until).await?;
        let longest = leases.iter().map(|lease| lease.ttl).max().unwrap_or_default();
        let quarantine = conn.prepare(longest, until).await?;
        let mut command = script_call(&shared.scripts.renew, leases.len());
        for lease in leases {
            shared.keys.add_record(&mut command, lease.claim.name());
        }
        let ttl_of_most = leases.first().map_or(Duration::ZERO, |lease| lease.ttl);
        command.arg(shared.common_to_renewals(quarantine.is_none(), ttl_of_most));
        let (mut asks, mut others) = (Vec::with_capacity(24 * leases.len()), Vec::new());
        for (number, lease) in (1_u16..).zip(leases) {
            asks.extend(lease.place.get().to_be_bytes());
            asks.extend(lease.claim.owner().as_bytes());
            if lease.ttl != ttl_of_most || lease.extend == Extend::Exactly {
                others.extend(number.to_be_bytes());
                others.extend(millis(lease.ttl).to_be_bytes());
                others.push(if lease.extend == Extend::Exactly { b'e' } else { b'm' });
            }
        }
        command.arg(asks).arg(others);
        let core = shared.core()?;
        let sent = core.stamp();
        let value = conn.run(&shared.scripts.renew, &command, until).await?;
        let (time, answers) = replies::renewed(value, leases.len()).ok_or(Failure::Unreadable)?;
        shared.server_clock.saw(time, sent, core.stamp());
        let answer = |(lease, answer): (&LeaseRef, Renewed)| {
            let confirmation = |ttl, place| Confirmation { ttl: as_kept(ttl), sent, place };
            match answer {
                Renewed::Stands => Answer::Renewed(confirmation(lease.ttl, lease.place)),
                Renewed::Granted { place, token } => {
                    Answer::Granted(Grant::new(FencingToken::new(token), confirmation(lease.ttl, place)))
                }
                // While no grants are allowed, no look is worth it.
                Renewed::Waiting { place, look_in } => Answer::Waiting {
                    confirmation: confirmation(lease.ttl.min(LONGEST_PLACE_TTL), place),
                    look_in: look_in.max(quarantine.unwrap_or_default()),
                },
                Renewed::Lost => Answer::Lost,
                Renewed::Failed(text) => Answer::Unknown(refused(&text).during("renew", lease.claim.name(), BACKEND)),
            }
        };
        Ok(leases.iter().zip(answers).map(answer).collect())
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn attach(&self, core: CoreHandle) {
        let keeper = core.keeper_runtime().clone();
        if self.shared.core.attach(core) {
            // From now on, so that the first waiter already hears of its grant.
            self.line_of(&keeper);
        }
    }

    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        self.try_acquire(claim, ttl).await.map_err(|error| error.during("acquire", claim.name(), BACKEND))
    }

    async fn renew(&self, leases: &[LeaseRef], answers: &Answers) {
        let until = Instant::now() + self.shared.bound();
        for (batch, some) in leases.chunks(RENEW_BATCH).enumerate() {
            let told = self.renew_some(some, until).await;
            for (index, lease) in some.iter().enumerate() {
                let answer = match &told {
                    Ok(told) => told[index].clone(),
                    Err(error) => Answer::Unknown(error.clone().during("renew", lease.claim.name(), BACKEND)),
                };
                answers.put(batch * RENEW_BATCH + index, answer);
            }
        }
    }

    async fn release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.try_release(claim, certainty).await.map_err(|error| error.during("release", claim.name(), BACKEND))
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn extensions(&self) -> Extensions<'_> {
        let mut extensions = Extensions::default();
        extensions.inspect = Some(self);
        extensions.list = Some(self);
        extensions.break_lock = Some(self);
        extensions.examine = Some(self);
        extensions
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("address", &self.shared.address)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

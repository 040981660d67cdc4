//! The connections of one runtime.
//!
//! A call takes a connection, runs its statement and returns the connection. A connection whose statement was dropped
//! or timed out is closed: its reply may still arrive, and the next statement would take it for its own.
//!
//! A statement that waits for a row that another transaction has locked does not delay statements about other rows:
//! after [`SLOW_AFTER`] its connection does not count towards the limit any more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold_core::backend::kit::restart::Quarantine;
use leasehold_core::backend::kit::{Health, RuntimeTask};
use leasehold_core::{Error, ErrorKind};
use sqlx::AssertSqlSafe;
use sqlx::mysql::{MySql, MySqlArguments, MySqlQueryResult, MySqlRow};
use sqlx::query::Query;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::errors::Failure;
use crate::idle::{Idle, Opening};
use crate::session::{Session, SetUp};
use crate::shared::Shared;

/// A connection of the keeper's runtime that was idle for longer is tested before it is used. What fails there is
/// repeated.
pub(crate) const TEST_AFTER: Duration = Health::IDLE;

/// A statement without a reply for this time gives its permit to the next one.
const SLOW_AFTER: Duration = Duration::from_millis(50);

/// The most connections of a pool with slow statements, as a multiple of the limit.
const MAX_SLOW: usize = 8;

/// The connections of one runtime. Dropping it closes them.
pub(crate) struct RuntimePool {
    pub(crate) pool: Arc<Pool>,
    task: RuntimeTask,
}

impl RuntimePool {
    pub(crate) fn new(pool: Pool, runtime: &Handle) -> Self {
        let pool = Arc::new(pool);
        let (open, stopped) = (pool.clone(), pool.clone());
        let close_old = async move { open.idle.close_old(&open.shared).await };
        let task = RuntimeTask::begin(runtime, close_old, move || stopped.stop());
        Self { pool, task }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.task.has_ended()
    }
}

impl Drop for RuntimePool {
    fn drop(&mut self) {
        self.pool.stop();
    }
}

/// The most connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// For statements, which wait for a free connection.
    Calls(usize),
    /// For leases, each of which keeps a connection. Nothing waits for one to end.
    Leases(usize),
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    set_up: SetUp,
    limit: Limit,
    /// A connection that was idle for longer is tested before it is used. The server, or a proxy, may have closed it.
    test_after: Duration,
    permits: Semaphore,
    /// For connections whose statements are slow.
    slow: Semaphore,
    opening: Opening,
    idle: Arc<Idle>,
}

impl Pool {
    /// Opens connections when they are needed, up to the limit.
    pub(crate) fn new(shared: Arc<Shared>, set_up: SetUp, limit: Limit, test_after: Duration) -> Self {
        let (size, slow) = match limit {
            Limit::Calls(size) => (size, size * MAX_SLOW),
            Limit::Leases(size) => (size, 0),
        };
        Self {
            shared,
            set_up,
            limit,
            test_after,
            permits: Semaphore::new(size),
            slow: Semaphore::new(slow),
            opening: Opening::default(),
            idle: Arc::default(),
        }
    }

    /// For one new connection. Opening it needs no table.
    pub(crate) fn single(shared: &Arc<Shared>, set_up: SetUp) -> Self {
        Self::new(shared.clone(), set_up, Limit::Calls(1), TEST_AFTER)
    }

    fn stop(&self) {
        self.opening.stop();
        self.idle.stop();
    }

    /// Takes a connection, and opens one if none is idle or becomes idle meanwhile.
    ///
    /// # Errors
    /// `NotSent`: no connection became free, or none could be opened. `TimedOut`: the server does not reply.
    pub(crate) async fn checkout(&self, until: Instant) -> Result<Checkout<'_>, Failure> {
        let permit = self.permit(until).await.map_err(Failure::NotSent)?;
        let session = loop {
            let Some(session) = self.idle.pop() else { break self.open(until).await? };
            if self.shared.is_doubted(session.last_used()) {
                continue;
            }
            if !session.is_idle_for(self.test_after) {
                break session;
            }
            if let Some(session) = self.test(session, until).await? {
                break session;
            }
        };
        Ok(Checkout { pool: self, session: Some(session), permit })
    }

    async fn open(&self, until: Instant) -> Result<Session, Failure> {
        self.opening.next(&self.idle, &self.shared, self.set_up, until).await.map_err(Failure::NotSent)
    }

    /// Tests a connection that was idle. The path may have forgotten it without a notice. So if the reply takes long,
    /// another connection is opened beside it, and the first that works is used. `None`: the server has closed it.
    async fn test(&self, mut session: Session, until: Instant) -> Result<Option<Session>, Failure> {
        let now = Instant::now();
        let replies = {
            let mut replies = std::pin::pin!(session.replies(until));
            match timeout_at(now + until.saturating_duration_since(now) / 2, &mut replies).await {
                Ok(replies) => replies,
                Err(_) => {
                    // Other connections that were idle for as long are not tested one by one. A claim of `for-update`
                    // takes connections of two pools, and two tests would use up its bound.
                    self.shared.doubt_used_before(now);
                    tokio::select! {
                        replies = &mut replies => replies,
                        // The server is silent, on this connection and on a new one.
                        opened = self.open(until) => return opened.map(Some).map_err(|_| Failure::TimedOut),
                    }
                }
            }
        };
        match replies {
            Some(replies) => Ok(replies.then_some(session)),
            None => Err(Failure::TimedOut),
        }
    }

    async fn permit(&self, until: Instant) -> Result<SemaphorePermit<'_>, Error> {
        match self.limit {
            Limit::Calls(size) => match timeout_at(until, self.permits.acquire()).await {
                Ok(Ok(permit)) => Ok(permit),
                // Not `Capacity`, which ends the wait of every waiter: the server is slow, and connections become free
                // again.
                Ok(Err(_)) | Err(_) => {
                    let text = format!("all {size} connections were in use (`connections` in the URL)");
                    Err(Error::new(ErrorKind::Unavailable, text))
                }
            },
            Limit::Leases(size) => self.permits.try_acquire().map_err(|_| {
                let text =
                    format!("this client holds or waits for {size} locks, the most that `locks` in the URL allows");
                Error::new(ErrorKind::Capacity, text)
            }),
        }
    }

    /// Runs one statement.
    pub(crate) async fn execute(
        &self,
        statement: Query<'_, MySql, MySqlArguments>,
        until: Instant,
    ) -> Result<MySqlQueryResult, Failure> {
        let mut connection = self.checkout(until).await?;
        let done = connection.execute(statement, until).await;
        connection.put_back();
        done
    }

    /// As [`Checkout::execute_text`].
    pub(crate) async fn execute_text(&self, statements: String, until: Instant) -> Result<u64, Failure> {
        let mut connection = self.checkout(until).await?;
        let done = connection.execute_text(statements, until).await;
        connection.put_back();
        done
    }

    /// As [`Checkout::fetch_text`].
    pub(crate) async fn fetch_text(&self, queries: String, until: Instant) -> Result<Vec<MySqlRow>, Failure> {
        let mut connection = self.checkout(until).await?;
        let rows = connection.fetch_text(queries, until).await;
        connection.put_back();
        rows
    }
}

/// A connection that a call uses. Dropping it before a reply has arrived closes it.
pub(crate) struct Checkout<'a> {
    pool: &'a Pool,
    session: Option<Session>,
    permit: SemaphorePermit<'a>,
}

impl Checkout<'_> {
    pub(crate) async fn execute(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
        until: Instant,
    ) -> Result<MySqlQueryResult, Failure> {
        self.run(until, async |session| statement.execute(&mut session.connection).await).await
    }

    pub(crate) async fn fetch(
        &mut self,
        query: Query<'_, MySql, MySqlArguments>,
        until: Instant,
    ) -> Result<Vec<MySqlRow>, Failure> {
        self.run(until, async |session| query.fetch_all(&mut session.connection).await).await
    }

    /// Runs statements without arguments as text: the protocol of prepared statements does not have all of them, and
    /// has no packet with several. Returns how many rows they affected together.
    pub(crate) async fn execute_text(&mut self, statements: String, until: Instant) -> Result<u64, Failure> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements));
        let done = self.run(until, async |session| statements.execute(&mut session.connection).await).await?;
        Ok(done.rows_affected())
    }

    /// The rows of statements without arguments.
    pub(crate) async fn fetch_text(&mut self, queries: String, until: Instant) -> Result<Vec<MySqlRow>, Failure> {
        self.fetch_text_noting(queries, |_| {}, until).await
    }

    /// The same. Calls `note` with each row as it arrives, while the server executes the next statement.
    pub(crate) async fn fetch_text_noting(
        &mut self,
        queries: String,
        note: impl Fn(&MySqlRow),
        until: Instant,
    ) -> Result<Vec<MySqlRow>, Failure> {
        let queries = sqlx::raw_sql(AssertSqlSafe(queries));
        self.run(until, async |session| {
            let rows = queries.fetch(&mut session.connection).inspect_ok(note);
            rows.try_collect().await
        })
        .await
    }

    async fn run<T>(
        &mut self,
        until: Instant,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failure> {
        // Taken out, so that a dropped future drops it.
        let Some(mut session) = self.session.take() else { return Err(Failure::NotSent(Error::not_sent())) };
        let done = {
            let mut work = std::pin::pin!(work(&mut session));
            let done = match timeout_at(until.min(Instant::now() + SLOW_AFTER), &mut work).await {
                Ok(done) => Ok(done),
                Err(_) => {
                    if let Ok(slow) = self.pool.slow.try_acquire() {
                        self.permit = slow;
                    }
                    timeout_at(until, work).await
                }
            };
            let options = &self.pool.shared.options;
            let failure = |error| Failure::of(error).with_grants(options);
            done.map_err(|_| Failure::TimedOut).and_then(|done| done.map_err(failure))
        };
        if done.as_ref().err().is_none_or(Failure::keeps_connection) {
            self.session = Some(session.used());
        }
        if let Err(Failure::ReadOnly(_)) = done {
            self.leave_server();
        }
        done
    }

    /// Closes this connection and those that are idle, so that the next calls reconnect and may reach another server.
    pub(crate) fn leave_server(&mut self) {
        self.session = None;
        self.pool.idle.clear();
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.pool.shared
    }

    /// What followed from the last reading of the server's run on this connection.
    pub(crate) fn quarantine(&self) -> Option<Quarantine> {
        self.session.as_ref()?.quarantine
    }

    pub(crate) fn set_quarantine(&mut self, quarantine: Quarantine) {
        if let Some(session) = &mut self.session {
            session.quarantine = Some(quarantine);
        }
    }

    /// Makes the connection count as one with a slow statement, for a claim that keeps it. Returns false if there are
    /// too many.
    pub(crate) fn set_aside(&mut self) -> bool {
        let slow = self.pool.slow.try_acquire();
        slow.map(|slow| self.permit = slow).is_ok()
    }

    /// The number of the connection at the server.
    pub(crate) fn id(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.id)
    }

    /// The connection; `None` after a failure.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Returns the connection. Not in `Drop`: a connection in the middle of a transaction must not be used by others.
    pub(crate) fn put_back(mut self) {
        if let Some(session) = self.session.take()
            && !self.pool.shared.has_no_room()
        {
            self.pool.idle.put(session);
        }
    }
}

//! The worker thread. It runs requests that may have to wait for other processes, in order, and many in one
//! transaction.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::backend::kit::lock;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::boot_clock::Reading;
use crate::errors::{Failure, busy, slow, truncated};
use crate::file::File;
use crate::store::Store;

/// The most requests in one transaction. Other processes cannot write meanwhile.
const MAX_BATCH: usize = 64;

/// How long opening may wait for the disk. Creating a file, or its WAL, waits for the disk several times, and a busy
/// disk may take seconds.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often an idle worker checks its connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The pauses between attempts to begin a transaction while another process writes.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Sends requests to the worker thread. The first request starts the thread. It ends when the worker is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    file: Arc<File>,
    requests: Mutex<Option<Sender<Request>>>,
}

/// A request to the worker thread.
struct Request {
    state: Arc<RequestState>,
    until: Instant,
    work: Box<dyn Work>,
}

trait Work: Send {
    /// Runs the request inside a transaction.
    fn run(&mut self, store: &Store, now: &Reading);

    /// Sends the result to the caller. `outcome` is that of the transaction.
    fn reply(self: Box<Self>, outcome: Result<()>);
}

struct Job<T, F> {
    work: Option<F>,
    result: Option<Result<T, Failure>>,
    reply_to: oneshot::Sender<Result<T>>,
}

impl<T, F> Work for Job<T, F>
where
    T: Send,
    F: FnOnce(&Store, &Reading) -> Result<T, Failure> + Send,
{
    fn run(&mut self, store: &Store, now: &Reading) {
        self.result = self.work.take().map(|work| work(store, now));
    }

    fn reply(self: Box<Self>, outcome: Result<()>) {
        // A result counts only if it was committed. The error of the request itself says more than that of the
        // transaction.
        let reply = match (self.result, outcome) {
            (Some(Err(failure)), _) => Err(failure.into()),
            (_, Err(error)) => Err(error),
            (Some(Ok(done)), Ok(())) => Ok(done),
            // The request was not run. Dropping the sender tells the caller.
            (None, Ok(())) => return,
        };
        // The caller may be gone.
        let _ = self.reply_to.send(reply);
    }
}

/// Decides between the worker and the caller. A request that the caller abandons in the queue will never start.
#[derive(Debug, Default)]
struct RequestState {
    stage: AtomicU8,
    /// The worker tried to run the request, and found another process writing.
    was_busy: AtomicBool,
}

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const ABANDONED: u8 = 2;

impl RequestState {
    fn leave_queue(&self, stage: u8) -> bool {
        self.stage.compare_exchange(QUEUED, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_abandoned(&self) -> bool {
        self.stage.load(Ordering::Acquire) == ABANDONED
    }

    /// Why the request did not start in time.
    fn not_started(&self, file: &File) -> Error {
        match self.was_busy.load(Ordering::Acquire) {
            true if file.is_empty() => truncated(),
            true => busy(),
            false => slow(),
        }
    }
}

/// Abandons the request when the caller is dropped.
struct AbandonOnDrop(Arc<RequestState>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.leave_queue(ABANDONED);
    }
}

impl Worker {
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self { file, requests: Mutex::default() }
    }

    /// Runs `work` on the worker thread after all earlier requests. Returns by `until`.
    ///
    /// # Errors
    /// `Unavailable` if `work` did not start by then, and never will. `Indeterminate` if it started and has not
    /// finished.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        until: Instant,
        work: impl FnOnce(&Store, &Reading) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.run_by(until, until, work).await
    }

    /// Opens the file, and creates it if it does not exist. Returns by `until` if other processes keep writing, and
    /// within [`OPEN_TIMEOUT`] if the disk is slow.
    ///
    /// # Errors
    /// `Unavailable` if the file was not opened by then.
    pub(crate) async fn open(&self, until: Instant) -> Result<()> {
        let opened = self.run_by(until, until.max(Instant::now() + OPEN_TIMEOUT), |_, _| Ok(())).await;
        // Opening writes no lease.
        opened.map_err(Error::without_effect)
    }

    /// Runs `work` unless other processes keep writing until `busy_until`. Returns by `until`.
    async fn run_by<T: Send + 'static>(
        &self,
        busy_until: Instant,
        until: Instant,
        work: impl FnOnce(&Store, &Reading) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let (sender, reply) = oneshot::channel();
        let work = Box::new(Job { work: Some(work), result: None, reply_to: sender });
        let caller = AbandonOnDrop(Arc::default());
        self.send(Request { state: caller.0.clone(), until: busy_until, work })?;
        match tokio::time::timeout_at(until.into(), reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) | Err(_) if caller.0.leave_queue(ABANDONED) => Err(caller.0.not_started(&self.file)),
            Ok(Err(_)) | Err(_) => Err(Error::new(
                ErrorKind::Indeterminate,
                "the write did not finish in time (`timeout` in the URL); is the disk slow?",
            )),
        }
    }

    fn send(&self, request: Request) -> Result<()> {
        let mut requests = lock(&self.requests);
        let request = match &*requests {
            None => request,
            Some(sender) => match sender.send(request) {
                Ok(()) => return Ok(()),
                // The thread panicked. None of its queued requests can start any more.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, queue) = channel();
        let file = self.file.clone();
        let thread =
            std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(move || run_thread(&file, &queue));
        if let Err(error) = thread {
            let text = "cannot start the worker thread of the SQLite backend";
            return Err(Error::new(ErrorKind::Unavailable, text).with_source(error));
        }
        let _ = sender.send(request);
        *requests = Some(sender);
        Ok(())
    }
}

fn run_thread(file: &Arc<File>, queue: &Receiver<Request>) {
    loop {
        let first = match queue.recv_timeout(CHECK_INTERVAL) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                file.check_connection();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let mut waiting = VecDeque::from([first]);
        // A panic leaves only the callers of its batch without a reply.
        if catch_unwind(AssertUnwindSafe(|| run_batch(file, queue, &mut waiting))).is_err() {
            file.writer().close();
        }
    }
    // Closed here and not where the client is dropped, because closing the last connection waits for the disk.
    file.writer().close();
}

/// Runs the waiting requests, and those that arrive meanwhile and fit into the same transaction.
fn run_batch(file: &Arc<File>, queue: &Receiver<Request>, waiting: &mut VecDeque<Request>) {
    let mut pause = FIRST_PAUSE;
    loop {
        waiting.extend(queue.try_iter().take(MAX_BATCH.saturating_sub(waiting.len())));
        let now = Instant::now();
        // Requests that were never tried stay in the queue until their callers abandon them.
        waiting.retain(|request| {
            let is_over = request.until <= now && request.state.was_busy.load(Ordering::Acquire);
            !is_over && !request.state.is_abandoned()
        });
        if waiting.is_empty() {
            return;
        }
        let mut writer = file.writer();
        let begun = writer.store().and_then(|store| store.begin().map(|()| store));
        match begun {
            Ok(store) => {
                let healthy = transact(file, store, waiting.drain(..));
                if !healthy {
                    writer.close();
                }
                return;
            }
            Err(Failure::Busy) => {
                for request in &*waiting {
                    request.state.was_busy.store(true, Ordering::Release);
                }
            }
            Err(failure) => {
                writer.close();
                let error = failure.without_effect();
                for request in waiting.drain(..) {
                    request.work.reply(Err(error.clone()));
                }
                return;
            }
        }
        // Calls of this process may use the connection during the pause.
        drop(writer);
        std::thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Runs requests in the open transaction and replies to each. Returns whether the connection can be used again.
fn transact(file: &Arc<File>, store: &Store, requests: impl Iterator<Item = Request>) -> bool {
    let now = file.now();
    let mut done = Vec::with_capacity(MAX_BATCH);
    for mut request in requests {
        if store.is_in_transaction() && request.state.leave_queue(STARTED) {
            request.work.run(store, &now);
        }
        done.push(request);
    }
    let outcome = if store.is_in_transaction() {
        store.commit().map_err(|failure| {
            file.note_failure(&failure);
            Error::from(failure)
        })
    } else {
        Err(Error::new(
            ErrorKind::Unavailable,
            "the write was rolled back because another write in its transaction failed",
        ))
    };
    file.count_writes(u32::try_from(done.len()).unwrap_or(u32::MAX));
    for request in done {
        request.work.reply(outcome.clone());
    }
    outcome.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_clock::BootClock;
    use crate::settings::Settings;
    use crate::store::tests::UNCOMMITTABLE;

    fn worker(folder: &tempfile::TempDir) -> Arc<Worker> {
        let file =
            File::new(folder.path().join("locks.db"), Settings::default(), BootClock::of_this_machine().unwrap());
        Arc::new(Worker::new(Arc::new(file)))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(200)
    }

    fn later() -> Instant {
        Instant::now() + OPEN_TIMEOUT
    }

    #[tokio::test]
    async fn only_another_writer_makes_a_file_busy() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        worker.open(soon()).await.unwrap();
        let other = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let begin = Instant::now();
        for error in [worker.run(soon(), |_, _| Ok(())).await.unwrap_err(), worker.open(soon()).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("another process was writing"), "{error}");
        }
        assert!(begin.elapsed() < OPEN_TIMEOUT, "opening gives the disk this long, and not other processes");
    }

    #[tokio::test]
    async fn a_slow_disk_ends_a_call_but_not_an_open() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        worker.open(soon()).await.unwrap();
        // Stands in for a slow disk.
        let (begun, has_begun) = oneshot::channel();
        let (finish, finished) = std::sync::mpsc::channel();
        let slow = worker.run(Instant::now() + OPEN_TIMEOUT, move |_, _| {
            let _ = begun.send(());
            let _ = finished.recv();
            Ok(())
        });
        let queued_behind = async {
            has_begun.await.unwrap();
            let called = worker.run(soon(), |_, _| Ok(())).await;
            let is_over = async {
                tokio::time::sleep_until((soon() + Duration::from_millis(200)).into()).await;
                finish.send(()).unwrap();
            };
            let (opened, ()) = tokio::join!(worker.open(soon()), is_over);
            (called, opened)
        };
        let (slow, (called, opened)) = tokio::join!(slow, queued_behind);
        slow.unwrap();
        opened.unwrap();
        let error = called.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("is the disk slow"), "{error}");
    }

    #[tokio::test]
    async fn a_commit_that_fails_is_an_error_and_ends_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        let setup = format!("CREATE TEMP TABLE mark (a); {UNCOMMITTABLE}");
        worker.file.writer().store().unwrap().connection().execute_batch(&setup).unwrap();
        let insert = |store: &Store, _: &Reading| {
            store.connection().execute_batch("INSERT INTO child VALUES (1)")?;
            Ok(())
        };
        assert!(worker.run(later(), insert).await.is_err(), "an uncommitted write was reported as done");
        let count = |table: &'static str| {
            worker.run(later(), move |store, _| {
                let sql = format!("SELECT count(*) FROM {table}");
                Ok(store.connection().query_row(&sql, [], |row| row.get::<_, i64>(0))?)
            })
        };
        assert_eq!(count("child").await.unwrap(), 0);
        assert!(count("mark").await.is_err(), "the connection of the failed commit was used again");
    }

    #[tokio::test]
    async fn a_request_that_was_abandoned_while_another_wrote_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        worker.open(later()).await.unwrap();
        let other = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let done = Arc::new(AtomicU8::new(0));
        let work = || {
            let done = done.clone();
            move |_: &Store, _: &Reading| {
                done.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
        };
        // One that times out, and one whose caller is dropped.
        assert_eq!(worker.run(soon(), work()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let dropped = tokio::time::timeout(Duration::from_millis(50), worker.run(later(), work())).await;
        assert!(dropped.is_err());
        other.execute_batch("ROLLBACK").unwrap();
        worker.run(later(), |_, _| Ok(())).await.unwrap();
        assert_eq!(done.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn a_request_that_is_abandoned_at_the_last_moment_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        let (reply_to, reply) = oneshot::channel();
        let work = Job { work: Some(|_: &Store, _: &Reading| Ok(())), result: None, reply_to };
        let request = Request { state: Arc::default(), until: later(), work: Box::new(work) };
        assert!(request.state.leave_queue(ABANDONED));
        let mut writer = worker.file.writer();
        let store = writer.store().unwrap();
        store.begin().unwrap();
        assert!(transact(&worker.file, store, std::iter::once(request)));
        assert!(reply.await.is_err(), "it was run");
    }
}

//! The file's thread: what may have to wait for other processes is done here, in order, many requests in one transaction.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::boot_clock::Reading;
use crate::errors::{Failure, busy, slow, truncated};
use crate::file::File;
use crate::store::Store;

/// How many requests go into one transaction at most: other processes cannot write meanwhile.
const MAX_BATCH: usize = 64;

/// How long whoever waits for the file to be opened waits for the disk: making a file, or the log of one that nobody had open,
/// waits for it several times, and a disk that others keep busy may take seconds.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the connection is checked, whether or not there are requests.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The pauses between two attempts to begin while another process writes.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Requests for the file's thread. It is started by the first one, and ends with this.
#[derive(Debug)]
pub(crate) struct Worker {
    file: Arc<File>,
    requests: Mutex<Option<Sender<Request>>>,
}

/// A request, and what becomes of it.
struct Request {
    state: Arc<RequestState>,
    until: Instant,
    work: Box<dyn Work>,
}

trait Work: Send {
    /// Does it, in a transaction.
    fn run(&mut self, store: &Store, now: &Reading);

    /// Tells the caller what came of it, or why it was not done.
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
        // What was done is worth nothing when it was not committed, and its own error says more.
        let reply = match (self.result, outcome) {
            (Some(Err(failure)), _) => Err(failure.into()),
            (_, Err(error)) => Err(error),
            (Some(Ok(done)), Ok(())) => Ok(done),
            // The caller learns by the end of its channel.
            (None, Ok(())) => return,
        };
        // Whoever asked may be gone.
        let _ = self.reply_to.send(reply);
    }
}

/// Whether a request may still be begun: whoever gives up before it was begun knows that it never will.
#[derive(Debug, Default)]
struct RequestState {
    stage: AtomicU8,
    /// Another process was in the way of it.
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

    /// Why it was not begun in time.
    fn not_started(&self, file: &File) -> Error {
        match self.was_busy.load(Ordering::Acquire) {
            true if file.is_empty() => truncated(),
            true => busy(),
            false => slow(),
        }
    }
}

/// A caller that waits. Dropped, it gives up.
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

    /// Runs `work` on the file's thread, after everything that was asked for before; ends by `until`.
    ///
    /// # Errors
    /// `Unavailable` when it was not begun by then, and never will be; `Indeterminate` when it was begun and has not ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        until: Instant,
        work: impl FnOnce(&Store, &Reading) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.run_by(until, until, work).await
    }

    /// Opens the file, and makes it when it is not there: ends by `until` when other processes are in the way, and by
    /// [`OPEN_TIMEOUT`] when the disk is.
    ///
    /// # Errors
    /// `Unavailable` when it was not opened by then.
    pub(crate) async fn open(&self, until: Instant) -> Result<()> {
        let opened = self.run_by(until, until.max(Instant::now() + OPEN_TIMEOUT), |_, _| Ok(())).await;
        // Nothing was to be written.
        opened.map_err(Error::without_effect)
    }

    /// Runs `work` unless other processes are in the way until `busy_until`; ends by `until`.
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
            Ok(Err(_)) | Err(_) => {
                Err(Error::new(ErrorKind::Indeterminate, "the file did not take the write in time; is the disk slow?"))
            }
        }
    }

    fn send(&self, request: Request) -> Result<()> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let request = match &*requests {
            None => request,
            Some(sender) => match sender.send(request) {
                Ok(()) => return Ok(()),
                // The thread has ended by a panic. Nothing of what it had can still be begun.
                Err(unsent) => unsent.0,
            },
        };
        let (sender, queue) = channel();
        let file = self.file.clone();
        let thread =
            std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(move || run_thread(&file, &queue));
        if let Err(error) = thread {
            let text = "the thread of the SQLite backend cannot be started";
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
        // A panic leaves the callers of its batch without an answer, and nobody else.
        if catch_unwind(AssertUnwindSafe(|| run_batch(file, queue, &mut waiting))).is_err() {
            file.writer().close();
        }
    }
    // Here and not where the last client is dropped: closing the last connection to a file waits for the disk.
    file.writer().close();
}

/// Works on what waits, and on what comes meanwhile and fits into the same transaction.
fn run_batch(file: &Arc<File>, queue: &Receiver<Request>, waiting: &mut VecDeque<Request>) {
    let mut pause = FIRST_PAUSE;
    loop {
        waiting.extend(queue.try_iter().take(MAX_BATCH.saturating_sub(waiting.len())));
        let now = Instant::now();
        // Whoever was never tried is given up by nobody but himself.
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
        drop(writer);
        std::thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Runs requests in the transaction that was begun, and answers each. Says whether the connection is fit for the next one.
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
        Err(Error::new(ErrorKind::Unavailable, "the write was rolled back, because another one with it failed"))
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
    async fn only_a_file_that_another_writes_to_is_called_busy() {
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
        assert!(begin.elapsed() < OPEN_TIMEOUT, "an open waits so long for the disk, and not for others");
    }

    #[tokio::test]
    async fn a_slow_disk_ends_a_call_but_not_an_open() {
        let folder = tempfile::tempdir().unwrap();
        let worker = worker(&folder);
        worker.open(soon()).await.unwrap();
        // What the disk does to the file's thread.
        let (begun, has_begun) = oneshot::channel();
        let slow = worker.run(Instant::now() + OPEN_TIMEOUT, |_, _| {
            let _ = begun.send(());
            std::thread::sleep(Duration::from_millis(800));
            Ok(())
        });
        let behind_it = async {
            has_begun.await.unwrap();
            tokio::join!(worker.run(soon(), |_, _| Ok(())), worker.open(soon()))
        };
        let (slow, (called, opened)) = tokio::join!(slow, behind_it);
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
        assert!(worker.run(later(), insert).await.is_err(), "what was not committed is answered as done");
        let count = |table: &'static str| {
            worker.run(later(), move |store, _| {
                let sql = format!("SELECT count(*) FROM {table}");
                Ok(store.connection().query_row(&sql, [], |row| row.get::<_, i64>(0))?)
            })
        };
        assert_eq!(count("child").await.unwrap(), 0);
        assert!(count("mark").await.is_err(), "the connection of the failed commit is used again");
    }

    #[tokio::test]
    async fn what_was_given_up_while_another_wrote_is_never_done() {
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
        // One whose time is over, and one whose caller goes away.
        assert_eq!(worker.run(soon(), work()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let dropped = tokio::time::timeout(Duration::from_millis(50), worker.run(later(), work())).await;
        assert!(dropped.is_err());
        other.execute_batch("ROLLBACK").unwrap();
        worker.run(later(), |_, _| Ok(())).await.unwrap();
        assert_eq!(done.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn what_is_abandoned_at_the_last_moment_is_not_begun() {
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
        assert!(reply.await.is_err(), "it was done");
    }
}

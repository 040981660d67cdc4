//! Notifies waiting processes of releases.
//!
//! The notification file `…-bell` lies beside the lock file. Nobody reads its contents. A client that ends a lease with
//! waiters writes one byte to it *after* the commit is visible, and inotify wakes every process that watches it. The
//! WAL cannot serve for this: SQLite writes it before the commit is visible, and for every renewal of every lock.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::open_files::beside;

/// How often a listener wakes up to check when inotify is not available.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Notifies the listeners of all processes through the notification file of one lock file.
#[derive(Debug)]
pub(crate) struct ReleaseNotifier {
    locks: PathBuf,
}

impl ReleaseNotifier {
    pub(crate) fn new(locks: &Path) -> Self {
        Self { locks: locks.to_owned() }
    }

    /// The notification file lies beside the target of a symbolic link, not beside the link.
    fn path(&self) -> PathBuf {
        beside(&self.locks.canonicalize().unwrap_or_else(|_| self.locks.clone()), "-bell")
    }

    /// Wakes every listener. If the write fails, waiters lose time only: they check again within a second.
    pub(crate) fn notify(&self) {
        let path = self.path();
        match OpenOptions::new().write(true).open(&path) {
            Ok(mut file) => {
                let _ = file.write_all(b".");
            }
            // A listener creates the file before it listens, so without the file nobody listens.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot notify waiters of a release");
            }
        }
    }

    /// Creates the notification file with the owner and the permissions of the lock file.
    fn create_file(&self) -> std::io::Result<PathBuf> {
        let path = self.path();
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(false);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
            let locks = std::fs::metadata(&self.locks)?;
            let mode = locks.mode() & 0o777;
            let made = options.mode(mode).open(&path)?;
            let found = made.metadata()?;
            // Only the owner may change the file, so a failure leaves it as it is. Root gives it to the owner of the
            // lock file.
            if (found.uid(), found.gid()) != (locks.uid(), locks.gid()) {
                let _ = fchown(&made, Some(locks.uid()), Some(locks.gid()));
            }
            // The umask may have removed permission bits.
            if found.mode() & 0o777 != mode {
                let _ = made.set_permissions(PermissionsExt::from_mode(mode));
            }
        }
        #[cfg(not(unix))]
        options.open(&path)?;
        Ok(path)
    }
}

/// Wakes a listener in this process.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    is_woken: Mutex<bool>,
    condition: Condvar,
    event: file_watcher::WakeEvent,
}

impl Waker {
    pub(crate) fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_all();
        self.event.wake();
    }

    /// Waits until [`wake`](Self::wake) is called or the timeout expires.
    fn wait(&self, timeout: Duration) {
        let is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.condition.wait_timeout_while(is_woken, timeout, |is_woken| !*is_woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Waits for notifications.
pub(crate) struct Listener<'a> {
    notifier: &'a ReleaseNotifier,
    waker: &'a Waker,
    watcher: Option<file_watcher::FileWatcher>,
}

impl<'a> Listener<'a> {
    /// Receives every notification from now on, if inotify is available.
    pub(crate) fn new(notifier: &'a ReleaseNotifier, waker: &'a Waker) -> Self {
        let mut listener = Self { notifier, waker, watcher: None };
        listener.listen();
        listener
    }

    fn listen(&mut self) {
        self.watcher =
            match self.notifier.create_file().and_then(|path| file_watcher::FileWatcher::new(&path, &self.waker.event))
            {
                Ok(watcher) => Some(watcher),
                Err(error) => {
                    let path = self.notifier.locks.display();
                    tracing::debug!(
                        %path, %error,
                        "cannot watch for releases: polling every {} ms", POLL_INTERVAL.as_millis()
                    );
                    None
                }
            };
    }

    /// Waits for a notification, a call of the waker, or the timeout. Without inotify it waits [`POLL_INTERVAL`] at
    /// most.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        match &mut self.watcher {
            None => self.waker.wait(timeout.min(POLL_INTERVAL)),
            Some(watcher) => match watcher.wait(&self.waker.event, timeout) {
                Ok(file_watcher::Outcome::Woken) => {}
                // Somebody deleted the file. Notifiers would write to a new one, so the listener has to watch that.
                Ok(file_watcher::Outcome::FileGone) | Err(_) => self.listen(),
            },
        }
    }
}

/// Whether this system supports notifications.
pub(crate) fn is_supported() -> bool {
    file_watcher::is_supported()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod file_watcher {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use rustix::io::Errno;

    /// Interrupts [`FileWatcher::wait`].
    #[derive(Debug)]
    pub(super) struct WakeEvent(Option<OwnedFd>);

    impl Default for WakeEvent {
        fn default() -> Self {
            Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok())
        }
    }

    impl WakeEvent {
        pub(super) fn wake(&self) {
            if let Some(fd) = &self.0 {
                // The write fails when the counter is near its maximum. The event is set then in any case.
                let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
            }
        }
    }

    pub(super) struct FileWatcher(OwnedFd);

    pub(super) enum Outcome {
        /// A notification, a call of the waker, or the timeout.
        Woken,
        /// The notification file was deleted or moved.
        FileGone,
    }

    pub(super) fn is_supported() -> bool {
        inotify::init(CreateFlags::CLOEXEC).is_ok()
    }

    impl FileWatcher {
        pub(super) fn new(path: &Path, wake: &WakeEvent) -> std::io::Result<Self> {
            if wake.0.is_none() {
                return Err(Errno::MFILE.into());
            }
            let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            let events = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
            inotify::add_watch(&fd, path, events)?;
            Ok(Self(fd))
        }

        pub(super) fn wait(&mut self, wake: &WakeEvent, timeout: Duration) -> Result<Outcome, Errno> {
            let Some(wake) = &wake.0 else { return Err(Errno::BADF) };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
            let timeout = Timespec::try_from(timeout).ok();
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            let _ = rustix::io::read(wake, &mut [0; 8]);
            let mut buffer = [MaybeUninit::uninit(); 1024];
            let mut events = inotify::Reader::new(&self.0, &mut buffer);
            loop {
                match events.next() {
                    Ok(event) if event.events().contains(ReadFlags::MODIFY) => {}
                    Ok(_) => return Ok(Outcome::FileGone),
                    Err(Errno::WOULDBLOCK) => return Ok(Outcome::Woken),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod file_watcher {
    use std::path::Path;
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(super) struct WakeEvent;

    impl WakeEvent {
        pub(super) fn wake(&self) {}
    }

    pub(super) enum FileWatcher {}

    pub(super) enum Outcome {
        Woken,
        FileGone,
    }

    pub(super) fn is_supported() -> bool {
        false
    }

    impl FileWatcher {
        pub(super) fn new(_path: &Path, _wake: &WakeEvent) -> std::io::Result<Self> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        pub(super) fn wait(&mut self, _wake: &WakeEvent, _timeout: Duration) -> std::io::Result<Outcome> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn notifier(folder: &tempfile::TempDir) -> ReleaseNotifier {
        let locks = folder.path().join("locks.db");
        std::fs::write(&locks, "").unwrap();
        ReleaseNotifier::new(&locks)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listener_receives_notifications_wake_ups_and_the_loss_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (notifier, waker) = (notifier(&folder), Waker::default());
        // Nobody listens, so no file is created.
        notifier.notify();
        assert!(!notifier.path().exists());
        let mut listener = Listener::new(&notifier, &waker);
        assert!(listener.watcher.is_some());
        let begin = Instant::now();
        // A notification from before the wait counts, and counts once.
        notifier.notify();
        listener.wait(LONG);
        waker.wake();
        listener.wait(LONG);
        std::fs::remove_file(notifier.path()).unwrap();
        listener.wait(LONG);
        assert!(notifier.path().exists(), "the listener creates it again");
        notifier.notify();
        listener.wait(LONG);
        assert!(begin.elapsed() < LONG, "a notification was missed");
        listener.wait(Duration::from_millis(30));
        assert!(begin.elapsed() >= Duration::from_millis(30), "a notification was received twice");
    }

    #[test]
    fn a_listener_polls_without_inotify() {
        let folder = tempfile::tempdir().unwrap();
        let (notifier, waker) = (notifier(&folder), Waker::default());
        let mut listener = Listener { notifier: &notifier, waker: &waker, watcher: None };
        let begin = Instant::now();
        listener.wait(LONG);
        assert!(begin.elapsed() >= POLL_INTERVAL && begin.elapsed() < LONG);
        waker.wake();
        listener.wait(LONG);
    }

    #[test]
    #[cfg(unix)]
    fn the_notification_file_has_the_permissions_of_the_lock_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let notifier = notifier(&folder);
        std::fs::set_permissions(&notifier.locks, PermissionsExt::from_mode(0o660)).unwrap();
        let path = notifier.create_file().unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o660);
    }
}

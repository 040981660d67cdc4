//! How processes that wait are told that a lock was released.
//!
//! Beside the file of the locks lies one that nobody reads: `…-bell`. Whoever ends a lease that somebody waits for writes a byte to
//! it *after* the end is visible, and the system tells every process that watches it (inotify). The WAL itself is a bad notifier:
//! it is written before the commit shows, and for every renewal of every lock.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::open_files::beside;

/// How often somebody looks by himself who cannot hear.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The notifier of a file.
#[derive(Debug)]
pub(crate) struct ReleaseNotifier {
    locks: PathBuf,
}

impl ReleaseNotifier {
    pub(crate) fn new(locks: &Path) -> Self {
        Self { locks: locks.to_owned() }
    }

    /// It lies beside the file itself, and not beside a symbolic link to it.
    fn path(&self) -> PathBuf {
        beside(&self.locks.canonicalize().unwrap_or_else(|_| self.locks.clone()), "-bell")
    }

    /// Tells everybody who listens. A notifier that cannot be rung costs them time: they look by themselves within a second.
    pub(crate) fn notify(&self) {
        let path = self.path();
        match OpenOptions::new().write(true).open(&path) {
            Ok(mut file) => {
                let _ = file.write_all(b".");
            }
            // Whoever listens makes it first.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "those who wait for a lock cannot be told");
            }
        }
    }

    /// Makes it, for those who may write to the file of the locks.
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
            // It is somebody else's file if nothing of it may be changed. Root makes it for the owner of the locks.
            if (found.uid(), found.gid()) != (locks.uid(), locks.gid()) {
                let _ = fchown(&made, Some(locks.uid()), Some(locks.gid()));
            }
            // The user's mask may have taken something away.
            if found.mode() & 0o777 != mode {
                let _ = made.set_permissions(PermissionsExt::from_mode(mode));
            }
        }
        #[cfg(not(unix))]
        options.open(&path)?;
        Ok(path)
    }
}

/// Wakes a listener of the same process.
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

    /// Waits for an waker or the end of the time.
    fn wait(&self, timeout: Duration) {
        let is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.condition.wait_timeout_while(is_woken, timeout, |is_woken| !*is_woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Somebody who waits for the notifier.
pub(crate) struct Listener<'a> {
    notifier: &'a ReleaseNotifier,
    waker: &'a Waker,
    watcher: Option<file_watcher::FileWatcher>,
}

impl<'a> Listener<'a> {
    /// Hears every ring from now on, if the system can do that.
    pub(crate) fn new(notifier: &'a ReleaseNotifier, waker: &'a Waker) -> Self {
        let mut listener = Self { notifier, waker, watcher: None };
        listener.listen();
        listener
    }

    fn listen(&mut self) {
        self.watcher = match self
            .notifier
            .create_file()
            .and_then(|path| file_watcher::FileWatcher::new(&path, &self.waker.event))
        {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                let path = self.notifier.locks.display();
                tracing::debug!(%path, %error, "no watcher for releases: looking every {} ms", POLL_INTERVAL.as_millis());
                None
            }
        };
    }

    /// Waits for a ring, an waker or the end of the time; less where nothing can be heard.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        match &mut self.watcher {
            None => self.waker.wait(timeout.min(POLL_INTERVAL)),
            Some(watcher) => match watcher.wait(&self.waker.event, timeout) {
                Ok(file_watcher::Outcome::Woken) => {}
                // Somebody has deleted it: whoever rings would ring another one.
                Ok(file_watcher::Outcome::FileGone) | Err(_) => self.listen(),
            },
        }
    }
}

/// Whether this system can tell of a ring.
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

    /// Wakes who sleeps on his watcher.
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
                // It fails when it is is_woken already, very often.
                let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
            }
        }
    }

    pub(super) struct FileWatcher(OwnedFd);

    pub(super) enum Outcome {
        /// A ring, an waker, or nothing until the time was over.
        Woken,
        /// That there is no notifier there any more.
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
    fn a_ring_an_alarm_and_a_lost_bell_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (notifier, waker) = (notifier(&folder), Waker::default());
        // Nobody listens: nothing is made for it.
        notifier.notify();
        assert!(!notifier.path().exists());
        let mut listener = Listener::new(&notifier, &waker);
        assert!(listener.watcher.is_some());
        let begin = Instant::now();
        // Rung before the wait, and not heard twice.
        notifier.notify();
        listener.wait(LONG);
        waker.wake();
        listener.wait(LONG);
        std::fs::remove_file(notifier.path()).unwrap();
        listener.wait(LONG);
        assert!(notifier.path().exists(), "it is made again");
        notifier.notify();
        listener.wait(LONG);
        assert!(begin.elapsed() < LONG, "something was not noticed");
        listener.wait(Duration::from_millis(30));
        assert!(begin.elapsed() >= Duration::from_millis(30), "something was noticed twice");
    }

    #[test]
    fn whoever_cannot_hear_looks_by_himself() {
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
    fn it_is_for_those_who_may_write_to_the_locks() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let notifier = notifier(&folder);
        std::fs::set_permissions(&notifier.locks, PermissionsExt::from_mode(0o660)).unwrap();
        let path = notifier.create_file().unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o660);
    }
}

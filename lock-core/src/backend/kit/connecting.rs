//! The bounds of an attempt to connect.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::StoreUrl;
use super::store_url::within;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// How patient a client is when it connects. An attempt takes several steps, such as the lookup of the host, TCP, TLS
/// and the log-in, and continues when the call that began it has given up: on a slow path, no call could wait for all
/// steps.
///
/// At first, each step has the bound of a call, because a step that the network has lost never ends, and a new attempt
/// may get through. After a step has exceeded its bound, the steps of the next attempt have twice the time. So a client
/// connects over a slow path in the end, and an overloaded server gets fewer log-ins. A successful attempt resets the
/// bound.
#[derive(Debug)]
pub struct Connecting {
    first: Duration,
    longest: Duration,
    step: Mutex<Duration>,
    /// The attempts that have not ended.
    running: Mutex<Vec<Progress>>,
}

impl Connecting {
    /// The default for the longest time of an attempt. It is longer than the lookup of a resolver that first waits 5 s
    /// for a silent server.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

    const BOUNDS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(300);

    /// Takes the longest time of an attempt from a URL: `connect_timeout=`.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if it cannot be read.
    pub fn take_timeout(url: &mut StoreUrl) -> Result<Duration> {
        Ok(url.take_duration("connect_timeout")?.unwrap_or(Self::CONNECT_TIMEOUT))
    }

    /// Checks the bounds of that time: 10 ms to 5 minutes.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput), with the bounds.
    pub fn check_timeout(connect_timeout: Duration) -> Result<()> {
        within("connect_timeout", connect_timeout, &Self::BOUNDS)
    }

    /// With the bound of a call and that of a whole attempt. An attempt has at least the bound of a call.
    pub fn new(timeout: Duration, connect_timeout: Duration) -> Self {
        let longest = connect_timeout.max(timeout);
        Self { first: timeout, longest, step: Mutex::new(timeout), running: Mutex::default() }
    }

    /// Connects with a client library that takes several steps as one: together they have the bound of one step.
    /// `connect` gets their deadline, for [`attempt_until`](Self::attempt_until).
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn at_once<T, E, F>(&self, connect: impl FnOnce(Instant) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let step = *lock(&self.step);
        let until = Instant::now() + step;
        let connected = connect(until).await;
        match &connected {
            Ok(_) => self.succeeded(),
            Err(_) if Instant::now() >= until => self.timed_out(step),
            // A server that refuses at once is not slow, so the bound stays.
            Err(_) => {}
        }
        connected
    }

    /// Begins an attempt to connect to the server at this address.
    pub fn attempt<'a>(&'a self, address: &'a str) -> Attempt<'a> {
        self.begin(address, Some(*lock(&self.step)), Instant::now() + self.longest)
    }

    /// Begins an attempt whose steps share this deadline. Whether they meet it does not change the bound of the next
    /// attempt.
    pub fn attempt_until<'a>(&'a self, address: &'a str, until: Instant) -> Attempt<'a> {
        self.begin(address, None, until)
    }

    fn begin<'a>(&'a self, address: &'a str, step: Option<Duration>, until: Instant) -> Attempt<'a> {
        let progress = Progress::new(address);
        lock(&self.running).push(progress.clone());
        Attempt { connecting: self, address, step, until, progress }
    }

    /// The error of a call that gives up while its attempts to connect continue, usually just before the bound of their
    /// step. It names the slowest step so far of an attempt at each address.
    pub fn given_up(&self, address: &str) -> Error {
        let running = lock(&self.running);
        let slow = running.iter().filter_map(|it| Some((&*it.0.address, it.slowest()?)));
        let texts: BTreeMap<_, _> = slow.map(|(at, (what, took))| (at, too_slow(at, what, took))).collect();
        let text = match texts.is_empty() {
            true => format!("no connection to the server at {address} within `timeout` of the URL"),
            false => texts.into_values().collect::<Vec<_>>().join("; "),
        };
        Error::new(ErrorKind::Unavailable, text)
    }

    /// The error of a step that did not end within this bound. `what` names it: `the log-in`.
    pub fn too_slow(address: &str, what: &str, bound: Duration) -> Error {
        Error::new(ErrorKind::Unavailable, too_slow(address, what, bound))
    }

    /// A step did not end within this bound.
    fn timed_out(&self, step: Duration) {
        *lock(&self.step) = (step * 2).min(self.longest);
    }

    fn succeeded(&self) {
        *lock(&self.step) = self.first;
    }
}

fn too_slow(address: &str, what: &str, took: Duration) -> String {
    let took = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    format!("no connection to the server at {address}: {what} took longer than {took:?}")
}

/// One attempt to connect.
#[derive(Debug)]
pub struct Attempt<'a> {
    connecting: &'a Connecting,
    address: &'a str,
    /// The bound of each step, unless they share one.
    step: Option<Duration>,
    until: Instant,
    progress: Progress,
}

impl Attempt<'_> {
    /// Waits for a step. `what` names it in the error: `the log-in`.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the step takes too long. The attempt has failed.
    pub async fn step<T>(&self, what: &'static str, step: impl Future<Output = T>) -> Result<T> {
        let (begin, until) = (Instant::now(), self.step_until());
        self.progress.begins(what);
        match timeout_at(until, step).await {
            Ok(done) => Ok(done),
            Err(_) => {
                if let Some(step) = self.step {
                    self.connecting.timed_out(step);
                }
                let (what, took) = self.progress.slowest().unwrap_or((what, begin.elapsed()));
                Err(Connecting::too_slow(self.address, what, took.min(until.saturating_duration_since(begin))))
            }
        }
    }

    /// Where a future that takes several steps says which one it has come to.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// The deadline of a step that begins now.
    fn step_until(&self) -> Instant {
        self.step.map_or(self.until, |step| self.until.min(Instant::now() + step))
    }

    /// The deadline of the attempt.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The attempt has succeeded.
    pub fn succeeded(self) {
        self.connecting.succeeded();
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        lock(&self.connecting.running).retain(|it| !Arc::ptr_eq(&it.0, &self.progress.0));
    }
}

/// The step that an attempt has come to.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Steps>);

#[derive(Debug)]
struct Steps {
    address: String,
    state: Mutex<Option<Step>>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: &'static str,
    begin: Instant,
    /// The slowest step before this one, and how long it took.
    slowest: Option<(&'static str, Duration)>,
}

impl Step {
    fn slowest(&self) -> (&'static str, Duration) {
        let (what, took) = (self.what, self.begin.elapsed());
        self.slowest.filter(|slowest| slowest.1 > took).unwrap_or((what, took))
    }
}

impl Progress {
    fn new(address: &str) -> Self {
        Self(Arc::new(Steps { address: address.to_owned(), state: Mutex::default() }))
    }

    /// A step begins, and the one before it has ended.
    pub fn begins(&self, what: &'static str) {
        let mut state = lock(&self.0.state);
        let slowest = state.map(|step| step.slowest());
        *state = Some(Step { what, begin: Instant::now(), slowest });
    }

    /// The step that has begun last turns out to be this one.
    pub fn turns_out(&self, what: &'static str) {
        if let Some(step) = &mut *lock(&self.0.state) {
            step.what = what;
        }
    }

    /// The slowest step so far, and how long it has taken.
    fn slowest(&self) -> Option<(&'static str, Duration)> {
        lock(&self.0.state).map(|step| step.slowest())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_attempt_that_was_too_slow_gives_the_next_one_twice_the_time() {
        let connecting = Connecting::new(TIMEOUT, TIMEOUT * 10);
        for bound in [1, 2, 4, 8, 10, 10] {
            let (attempt, begin) = (connecting.attempt("host:1"), Instant::now());
            assert_eq!(attempt.step("a step that fits", async { 7 }).await.unwrap(), 7);
            let error = attempt.step("the log-in", pending::<()>()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(
                error.to_string(),
                format!("no connection to the server at host:1: the log-in took longer than {bound}s")
            );
            assert_eq!(begin.elapsed(), TIMEOUT * bound);
        }
        connecting.attempt("host:1").succeeded();
        assert!(connecting.attempt("host:1").step("it", tokio::time::sleep(TIMEOUT * 2)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn steps_that_cannot_be_told_apart_share_the_bound_of_one() {
        let connecting = Connecting::new(TIMEOUT, TIMEOUT * 10);
        let bound = async |connected: Result<(), ()>, is_slow: bool| {
            let begin = Instant::now();
            let connect = |until| async move {
                if is_slow {
                    tokio::time::sleep_until(until).await;
                }
                (until - begin, connected)
            };
            let mut bound = Duration::ZERO;
            let noted = async |until| {
                let (given, connected) = connect(until).await;
                bound = given;
                connected
            };
            assert_eq!(connecting.at_once(noted).await, connected);
            bound
        };
        for (connected, is_slow, expected) in
            [(Err(()), true, 1), (Err(()), true, 2), (Err(()), false, 4), (Ok(()), true, 4), (Ok(()), false, 1)]
        {
            assert_eq!(bound(connected, is_slow).await, TIMEOUT * expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_has_a_bound_whatever_its_steps() {
        let connecting = Connecting::new(TIMEOUT, TIMEOUT * 3);
        let (attempt, begin) = (connecting.attempt("host:1"), Instant::now());
        let mut steps = 0;
        while attempt.step("a step", tokio::time::sleep(TIMEOUT * 4 / 5)).await.is_ok() {
            steps += 1;
        }
        assert_eq!((steps, begin.elapsed()), (3, TIMEOUT * 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_gives_up_names_the_slowest_step_at_each_address() {
        let connecting = Connecting::new(TIMEOUT, TIMEOUT * 10);
        let text = || connecting.given_up("one:1, two:2").to_string();
        let no_step = "no connection to the server at one:1, two:2 within `timeout` of the URL";
        let begun = (connecting.attempt("one:1"), connecting.attempt_until("two:2", Instant::now() + TIMEOUT));
        assert_eq!(text(), no_step);
        let progress = begun.1.progress();
        let several = async {
            tokio::time::sleep(TIMEOUT * 6 / 10).await;
            progress.begins("TCP and TLS");
            pending::<()>().await;
        };
        let one = async {
            begun.0.step("the lookup of its name", tokio::time::sleep(TIMEOUT / 10)).await.unwrap();
            begun.0.step("the log-in", pending::<()>()).await
        };
        let until = tokio::time::sleep(TIMEOUT * 9 / 10);
        tokio::select! {
            _ = one => panic!("too soon"),
            _ = begun.1.step("the lookup of its name", several) => panic!("too soon"),
            () = until => {}
        }
        assert_eq!(
            text(),
            "no connection to the server at one:1: the log-in took longer than 800ms; \
             no connection to the server at two:2: the lookup of its name took longer than 600ms"
        );
        let progress = begun.0.progress();
        progress.turns_out("TLS");
        assert!(text().contains("one:1: TLS took longer than 800ms"), "{}", text());
        drop(begun);
        assert_eq!(text(), no_step);
    }
}

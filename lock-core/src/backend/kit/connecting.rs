//! The bounds of an attempt to connect.

use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Mutex;
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
        Self { first: timeout, longest: connect_timeout.max(timeout), step: Mutex::new(timeout) }
    }

    /// Connects with a client library whose steps cannot be told apart: together they have the bound of one step.
    /// `connect` gets their deadline.
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn at_once<T, E, F>(&self, connect: impl FnOnce(Instant) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let attempt = self.attempt("");
        let until = attempt.step_until();
        let connected = connect(until).await;
        match &connected {
            Ok(_) => attempt.succeeded(),
            Err(_) if Instant::now() >= until => attempt.timed_out(),
            // A server that refuses at once is not slow, so the bound stays.
            Err(_) => {}
        }
        connected
    }

    /// Begins an attempt to connect to the server at this address.
    pub fn attempt<'a>(&'a self, address: &'a str) -> Attempt<'a> {
        Attempt { connecting: self, address, step: *lock(&self.step), until: Instant::now() + self.longest }
    }
}

/// One attempt to connect.
#[derive(Debug)]
pub struct Attempt<'a> {
    connecting: &'a Connecting,
    address: &'a str,
    step: Duration,
    until: Instant,
}

impl Attempt<'_> {
    /// Waits for a step. `what` names it in the error: `the log-in`.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the step takes too long. The attempt has failed.
    pub async fn step<T>(&self, what: &str, step: impl Future<Output = T>) -> Result<T> {
        let (begin, until) = (Instant::now(), self.step_until());
        match timeout_at(until, step).await {
            Ok(done) => Ok(done),
            Err(_) => {
                self.timed_out();
                let (address, bound) = (self.address, until - begin);
                let text = format!("no connection to the server at {address}: {what} took longer than {bound:?}");
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    /// The deadline of a step that begins now.
    fn step_until(&self) -> Instant {
        self.until.min(Instant::now() + self.step)
    }

    /// A step did not end in time. The attempt has failed.
    fn timed_out(&self) {
        *lock(&self.connecting.step) = (self.step * 2).min(self.connecting.longest);
    }

    /// The deadline of the attempt.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The attempt has succeeded.
    pub fn succeeded(self) {
        *lock(&self.connecting.step) = self.connecting.first;
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
}

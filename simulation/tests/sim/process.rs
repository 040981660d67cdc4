//! A process of the simulation: its clock drifts, it can be paused or its machine suspended, and its connection can be
//! closed.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::{Clock, CoreHandle, Event, Stamp};
use tokio::time::Instant;

/// The process of one client, which uses its clock.
///
/// While it is paused, its clock appears to stand still and nothing leaves or reaches it. So anything that its tasks do
/// meanwhile could have happened just before the pause. When it continues, the clock jumps. After a pause, the timers
/// that came due meanwhile fire at once. While the whole machine is suspended timers stand still, so the rest of their
/// time is still to come.
pub(crate) struct Process {
    start: Instant,
    state: Mutex<State>,
}

struct State {
    /// The clock has run at this rate, in millionths of the true clock's rate, since this true time and this own time.
    rate: u64,
    since: (Duration, Duration),
    pause: Option<Pause>,
    /// When the process and its timers last continued.
    resumed: Duration,
    cut_until: Duration,
    fault: Option<ClockFault>,
    /// The connection to the newest client.
    core: Option<CoreHandle>,
}

/// A pause, in which nothing runs.
#[derive(Clone, Copy)]
struct Pause {
    until: Duration,
    /// The own time at which it began.
    stood: Stamp,
    /// How long after its end the timers fire that came due in it.
    timers_late: Duration,
}

/// A clock that breaks its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockFault {
    /// It does not count pauses.
    StandsStillInPauses,
    /// It makes its client sleep too long.
    Oversleeps,
    /// It makes its client sleep as if timers continued while the machine is suspended.
    SleepsThroughSuspends,
}

/// The longest time that the machine's clock lets a client sleep. So after a suspend, a timer has at most this time
/// left.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

const MILLION: u128 = 1_000_000;

/// The rate of a true clock.
pub(crate) const TRUE_RATE: u64 = 1_000_000;

impl Process {
    pub(crate) fn new(start: Instant, fault: Option<ClockFault>) -> Self {
        // Two clocks do not start with the same time.
        let since = (start.elapsed(), Duration::from_secs(1000));
        Self {
            start,
            state: Mutex::new(State {
                rate: TRUE_RATE,
                since,
                pause: None,
                resumed: Duration::ZERO,
                cut_until: Duration::ZERO,
                fault,
                core: None,
            }),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }

    /// The real time of the own clock, even during a pause.
    pub(crate) fn own_time(&self) -> Stamp {
        self.state().own_time(self.start.elapsed())
    }

    /// Changes the rate of the own clock.
    pub(crate) fn set_rate(&self, rate: u64) {
        let now = self.start.elapsed();
        let mut state = self.state();
        state.since = (now, state.own_time(now).since_start());
        state.rate = rate;
    }

    /// Whether the clock has kept its rate for this long. A sleep that began before the change ends a little early or
    /// late.
    pub(crate) fn is_steady_since(&self, length: Duration) -> bool {
        self.start.elapsed() >= self.state().since.0 + length
    }

    /// What the clock must show this long after it showed `then`, if its rate has not changed.
    pub(crate) fn shows_after(&self, then: Stamp, length: Duration) -> Stamp {
        then.plus(self.state().by_own_clock(length))
    }

    /// Pauses the process for this long. In a suspend, timers stand still and have `timers_late` left afterwards.
    pub(crate) fn pause(&self, length: Duration, timers_late: Duration) {
        let now = self.start.elapsed();
        let mut state = self.state();
        if state.pause.is_none() {
            let through = state.fault == Some(ClockFault::SleepsThroughSuspends) && !timers_late.is_zero();
            let timers_late = if through { length } else { timers_late };
            state.pause = Some(Pause { until: now + length, stood: state.own_time(now), timers_late });
        }
    }

    /// The process continues. The caller has waited until the end of the pause.
    pub(crate) fn resume(&self) {
        let now = self.start.elapsed();
        let mut state = self.state();
        state.resumed = now;
        if let Some(pause) = state.pause.take() {
            state.resumed += pause.timers_late.min(LONGEST_SLEEP);
            if state.fault == Some(ClockFault::StandsStillInPauses) {
                state.since = (now, pause.stood.since_start());
            }
        }
    }

    /// Whether the process has been paused at any time since then.
    pub(crate) fn was_paused_since(&self, then: Duration) -> bool {
        let state = self.state();
        state.pause.is_some() || state.resumed > then
    }

    /// Whether the process runs, and its timers have run for this long.
    pub(crate) fn runs_since(&self, length: Duration) -> bool {
        let state = self.state();
        state.pause.is_none() && self.start.elapsed() >= state.resumed + length
    }

    /// Waits until it is not paused.
    pub(crate) async fn awake(&self) {
        loop {
            let Some(pause) = self.state().pause else { return };
            // The pausing task resumes it in this same millisecond, perhaps after this task has woken.
            let until = (self.start + pause.until).max(Instant::now() + Duration::from_millis(1));
            tokio::time::sleep_until(until).await;
        }
    }

    /// Stores the newest client of this process.
    pub(crate) fn begins(&self, core: &CoreHandle) {
        self.state().core = Some(core.clone());
    }

    /// Sends the newest client a push about a claim that it does not know, as after a reconnect.
    pub(crate) fn notify(&self, event: Event) {
        let core = self.state().core.clone();
        if let Some(core) = core {
            core.event(event);
        }
    }

    /// Closes the connection until then: no message leaves or arrives.
    pub(crate) fn cut(&self, length: Duration) {
        self.state().cut_until = self.start.elapsed() + length;
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.start.elapsed() < self.state().cut_until
    }
}

impl State {
    fn own_time(&self, now: Duration) -> Stamp {
        let (true_since, own_since) = self.since;
        Stamp::from_start(own_since + self.by_own_clock(now - true_since))
    }

    fn by_own_clock(&self, length: Duration) -> Duration {
        Duration::from_nanos((length.as_nanos() * u128::from(self.rate) / MILLION) as u64)
    }
}

impl Clock for Process {
    fn now(&self) -> Stamp {
        let state = self.state();
        match state.pause {
            Some(pause) => pause.stood,
            None => state.own_time(self.start.elapsed()),
        }
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        let left = until.since(self.now());
        let state = self.state();
        let length = Duration::from_nanos((left.as_nanos() * MILLION).div_ceil(u128::from(state.rate)) as u64);
        match state.pause {
            _ if left.is_zero() => Duration::ZERO,
            Some(pause) => {
                let wakes = pause.until + pause.timers_late;
                length.min(wakes.saturating_sub(self.start.elapsed())).max(Duration::from_millis(1))
            }
            None if state.fault == Some(ClockFault::Oversleeps) => length + Duration::from_secs(20),
            None => length,
        }
    }
}

//! Upper bounds that allow for a busy machine: each is compared with a timing control that starts at the same time.

use std::future::Future;
use std::panic::Location;
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::support::Stopwatch;

/// What has not happened this long after its bound never will.
const NEVER: Duration = Duration::from_secs(3);

/// Waits for `work`, which must end within `bound`.
///
/// A timing control starts together with it: two threads, one after the other, that sleep for the bound and then wake
/// the case. Work that ends before the timing control is in time. Otherwise the work gets an extra time: twice the lag
/// of the timing control, or the lag of the lag monitor if that is longer. Work that ends later fails. It is still
/// waited for, so that the failure can say by how much it was late (the machine is too busy), or that it has not ended
/// after three more seconds (a wake-up was lost).
#[track_caller]
pub(crate) fn in_time<F: Future>(bound: Duration, what: &str, work: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
    async move {
        let stopwatch = Stopwatch::start();
        let (_armed, arrived) = arm(bound);
        let mut work = pin!(work);
        tokio::select! {
            biased;
            output = &mut work => return output,
            _ = arrived => {}
        }
        let control = stopwatch.elapsed().saturating_sub(bound);
        let extra = stopwatch.lag().max(control * 2);
        if let Ok(output) = tokio::time::timeout(extra, &mut work).await {
            return output;
        }
        let ended = tokio::time::timeout(NEVER.saturating_sub(extra), work).await;
        let late = stopwatch.elapsed().saturating_sub(bound);
        let how = if ended.is_ok() { format!("late by {late:?}") } else { format!("never within {late:?} more") };
        panic!("{what}: {how}; the bound is {bound:?}, and the timing control was {control:?} late (at {caller})");
    }
}

/// Starts a timing control. It ends at once when the sender is dropped.
fn arm(bound: Duration) -> (Sender<()>, oneshot::Receiver<()>) {
    let (armed, disarmed) = channel::<()>();
    let (fire, fired) = channel::<()>();
    let (notify, notified) = oneshot::channel();
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .expect("the system starts the threads of a timing control");
    };
    spawn(
        "timing control",
        Box::new(move || {
            if disarmed.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                let _ = fire.send(());
            }
        }),
    );
    spawn(
        "timing control wake-up",
        Box::new(move || {
            if fired.recv().is_ok() {
                let _ = notify.send(());
            }
        }),
    );
    (armed, notified)
}

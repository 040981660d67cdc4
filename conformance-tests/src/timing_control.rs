//! Upper bounds that a busy machine cannot break: each is held against a control that starts with it.

use std::future::Future;
use std::panic::Location;
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::support::Stopwatch;

/// Waits for what has to end within `bound`.
///
/// A control is armed together with it: two threads, one after the other, that do nothing but sleep for the bound and then
/// wake the case. What ends before the control arrives is in time. Else the machine was late too, just then, and what the
/// control was late is granted twice more, or what the lag monitor saw, if that is more. Whoever is later than that is late.
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
        match tokio::time::timeout(extra, &mut work).await {
            Ok(output) => output,
            Err(_) => panic!(
                "{what}: not after {:?}, the bound is {bound:?} and a control was {control:?} late (at {caller})",
                stopwatch.elapsed()
            ),
        }
    }
}

/// A control that ends at once when the sender is dropped.
fn arm(bound: Duration) -> (Sender<()>, oneshot::Receiver<()>) {
    let (armed, disarmed) = channel::<()>();
    let (fire, fired) = channel::<()>();
    let (notify, notified) = oneshot::channel();
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("the system gives threads for a control");
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

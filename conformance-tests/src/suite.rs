//! The list of all cases, and what runs one.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long a case may take. Most take a second; the long ones a few.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Gives one named test per case for a fixture.
///
/// ```text
/// mod redis {
///     conformance_tests::suite!(super::RedisFixture);
/// }
/// ```
/// runs `redis::ownership::stale_release_leaves_the_new_holder` and all the others.
#[macro_export]
macro_rules! suite {
    ($fixture:ty) => {
        type SuiteFixture = $fixture;
        $crate::for_each_case! { [$crate::suite_tests] }
    };
}

/// The tests of [`suite!`].
#[doc(hidden)]
#[macro_export]
macro_rules! suite_tests {
    ($($group:ident { $($case:ident)* })*) => {
        $(mod $group {
            $(#[test]
            fn $case() {
                $crate::run($crate::DEADLINE, || async {
                    let fixture = <super::SuiteFixture as $crate::Fixture>::new().await;
                    $crate::cases::$group::$case(&fixture).await;
                });
            })*
        })*
    };
}

/// The names of all cases.
#[doc(hidden)]
#[macro_export]
macro_rules! case_names {
    ($($group:ident { $($case:ident)* })*) => {
        &[$($(concat!(stringify!($group), "::", stringify!($case)),)*)*]
    };
}

/// All cases, `group::case`.
pub const CASES: &[&str] = crate::for_each_case! { [crate::case_names] };

/// Runs a case on a runtime of its own, on a thread of its own: one that blocks its thread, or never ends, fails
/// all the same.
///
/// # Panics
/// When the case does, or has not ended by the deadline.
pub fn run<C, F>(deadline: Duration, case: C)
where
    C: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let (done, ended) = channel();
    let name = std::thread::current().name().unwrap_or("case").to_owned();
    let body = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .thread_name("case")
            .enable_all()
            .build()
            .expect("the system gives threads for a runtime");
        runtime.block_on(case());
        // Before the runtime ends: a case must not depend on how long that takes.
        let _ = done.send(());
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).expect("the system gives a thread for a case");
    match ended.recv_timeout(deadline) {
        Ok(()) => {}
        Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        Err(RecvTimeoutError::Timeout) => panic!("the case has not ended after {deadline:?}"),
    }
}

//! The list of all cases, and the runner of one.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::fixture::Fixture;
use crate::report::Reported;

/// The time limit of a case: only a hang takes longer, also on a busy machine. Most take a second. The longest one
/// takes 29 s on an idle machine of two cores.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Generates one named test per case for a fixture.
///
/// ```text
/// mod redis {
///     leasehold_conformance::suite!(super::RedisFixture);
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
                let name = concat!(module_path!(), "::", stringify!($case));
                $crate::run_reported::<super::SuiteFixture>(name, |fixture| {
                    Box::pin($crate::cases::$group::$case(fixture))
                });
            })*
        })*
    };
}

/// Generates the cases that the topology of a store can change, as [`suite!`] does. It is for a backend that another
/// fixture runs the whole suite on, with one server.
///
/// A case is among them unless its group is one of those that `topology_group!` leaves out: groups about claims, leases
/// and the keeper, for which the backend runs the same code and sends the same requests to one server and to several.
#[macro_export]
macro_rules! topology_suite {
    ($fixture:ty) => {
        type SuiteFixture = $fixture;
        $crate::for_each_case! { [$crate::topology_tests] }
    };
}

/// The tests of [`topology_suite!`].
#[doc(hidden)]
#[macro_export]
macro_rules! topology_tests {
    ($($group:ident $cases:tt)*) => {
        $($crate::topology_group! { $group $cases })*
    };
}

/// Leaves out the groups that are independent of the topology.
#[doc(hidden)]
#[macro_export]
macro_rules! topology_group {
    (cancellation $cases:tt) => {};
    (defaults $cases:tt) => {};
    (errors $cases:tt) => {};
    (keeper $cases:tt) => {};
    (leaks $cases:tt) => {};
    (lease $cases:tt) => {};
    (names $cases:tt) => {};
    (ownership $cases:tt) => {};
    (reentry $cases:tt) => {};
    ($group:ident $cases:tt) => {
        $crate::suite_tests! { $group $cases }
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

/// A case that can be run.
pub type Case = for<'a> fn(&'a dyn Fixture) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs a case with a fresh fixture, as [`run`] does. The fixture is created inside the runtime and dropped outside it,
/// so its drop may block.
///
/// # Panics
/// If the case panics or does not end by the deadline.
pub fn run_case<F: Fixture>(deadline: Duration, case: Case) {
    on_a_runtime(deadline, move |runtime| {
        let fixture = runtime.block_on(F::new());
        runtime.block_on(case(&fixture));
    });
}

/// Runs a case as [`run_case`] does, and reports unsupported faults and cases with nothing to prove.
#[doc(hidden)]
pub fn run_reported<F: Fixture>(name: &'static str, case: Case) {
    on_a_runtime(DEADLINE, move |runtime| {
        let fixture = Reported::new(name, runtime.block_on(F::new()));
        runtime.block_on(case(&fixture));
    });
}

/// Runs a case on its own runtime and thread, so a case that blocks its thread or never ends fails too.
///
/// # Panics
/// If the case panics or does not end by the deadline.
pub fn run<C, F>(deadline: Duration, case: C)
where
    C: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    on_a_runtime(deadline, move |runtime| runtime.block_on(case()));
}

fn on_a_runtime(deadline: Duration, work: impl FnOnce(&Runtime) + Send + 'static) {
    let (done, ended) = channel();
    let name = std::thread::current().name().unwrap_or("case").to_owned();
    let body = move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(4).thread_name("case").enable_all().build();
        let runtime = runtime.expect("the system starts the threads of a runtime");
        work(&runtime);
        // Sent before the runtime ends: its shutdown does not count for the case.
        let _ = done.send(());
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).expect("the system starts a thread for a case");
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

//! Shared parts of the tests that are specific to etcd.

use leasehold_conformance::{DEADLINE, Fixture, run};

use super::one_member::OneMember;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(OneMember) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE, || async { case(OneMember::new().await).await });
}

//! Checks whether each node of a cluster is fit for locks.

use leasehold_core::Result;
use leasehold_core::admin::{Check, CheckStatus};
use tokio::time::Instant;

use super::nodes::Cluster;
use crate::examine::{checks_of, merge};
use crate::sentinel::half_until;

const CLOCKS: &str = "a lease whose slot is moved ends by the clock of its new node: too early, if that is ahead of \
                      the other one. Keep the clocks of all nodes with NTP";

impl Cluster {
    /// One line for each subject, with what was found on each node and the worst that it means.
    pub(crate) async fn checks(&self, until: Instant) -> Result<Vec<Check>> {
        self.refresh(until).await?;
        let mut checks = Vec::new();
        for at in self.topology.nodes() {
            // A node that is silent leaves time for the others.
            let until = half_until(until);
            let of_node = async {
                let connection = self.server(&at)?.manager()?.connection(until).await?;
                checks_of(&connection, until).await
            };
            let of_node = of_node.await.unwrap_or_else(|error| {
                let status = CheckStatus::error("its locks cannot be used until it is back, or replaced by a replica");
                vec![Check::new("server", error.to_string(), status)]
            });
            merge(&mut checks, of_node, &at.to_string());
        }
        for clock in checks.iter_mut().filter(|check| check.about == "clock" && check.status != CheckStatus::Ok) {
            clock.status = CheckStatus::warning(CLOCKS);
        }
        Ok(checks)
    }
}

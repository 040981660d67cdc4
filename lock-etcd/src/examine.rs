//! Checks whether the cluster is fit for locks.

use std::collections::BTreeSet;

use etcd_client::{AlarmAction, AlarmType, GetOptions, StatusResponse, Txn, TxnOp};
use leasehold_core::admin::{Check, CheckStatus};
use tokio::time::Instant;

use crate::backend::EtcdBackend;
use crate::connection::Connection;
use crate::errors::{Failure, TOO_FEW_OPERATIONS};
use crate::keys::range_end;
use crate::transactions::{DEFAULT_OPERATIONS, FEWEST_OPERATIONS};

/// The first versions of each line without the known defects of leases.
const FIXED: [(u32, u32, u32); 3] = [(3, 4, 38), (3, 5, 23), (3, 6, 5)];

impl EtcdBackend {
    pub(crate) async fn checks(&self) -> Vec<Check> {
        let shared = &self.inner.shared;
        let addresses: Vec<_> = shared.members.all().iter().map(|member| &*member.address).collect();
        let mut checks = vec![Check::new("server", addresses.join(", "), CheckStatus::Ok)];
        // All requests at once, because each may be silent until the bound.
        let until = shared.until();
        let members = (0..shared.members.all().len()).map(|member| {
            let shared = shared.clone();
            tokio::spawn(async move { status_of(&shared, member, until).await })
        });
        let members: Vec<_> = members.collect();
        let (transactions, alarms, locks) =
            tokio::join!(self.transactions(until), self.alarms(until), self.locks(until));
        let (mut states, mut down) = (Vec::new(), Vec::new());
        for (member, task) in members.into_iter().enumerate() {
            match task.await {
                Ok(Ok(status)) => states.push(status),
                Ok(Err(failure)) => down.push((member, Some(failure.without_effect()))),
                Err(_) => down.push((member, None)),
            }
        }
        checks.push(reachable(&addresses, &down));
        if !states.is_empty() {
            checks.push(versions(&states));
            checks.push(leader(&states));
            checks.push(database(&states));
        }
        checks.push(user(shared.user.as_ref().map(|(user, _)| user), &locks));
        checks.extend([transactions, alarms, locks]);
        checks
    }
}

/// May be stale: what the member itself knows. It is only shown.
async fn status_of(
    shared: &std::sync::Arc<crate::shared::Shared>,
    member: usize,
    until: Instant,
) -> Result<StatusResponse, Failure> {
    let connection = Connection::open(shared, member, until).await?;
    let client = connection.client();
    connection.call(async move { client.maintenance_client().status().await }, until).await
}

fn reachable(addresses: &[&str], down: &[(usize, Option<leasehold_core::Error>)]) -> Check {
    if down.is_empty() {
        let found = format!("{} of {} reachable", addresses.len(), addresses.len());
        return Check::new("members", found, CheckStatus::Ok);
    }
    let names: Vec<_> = down.iter().map(|(member, _)| addresses[*member]).collect();
    let why = down.iter().find_map(|(_, error)| error.as_ref()).map(|error| format!(": {error}")).unwrap_or_default();
    let found = format!("{} of {} down: {}{why}", down.len(), addresses.len(), names.join(", "));
    let status = match down.len() == addresses.len() {
        true => CheckStatus::error("start the members, or correct the addresses in the URL"),
        false => CheckStatus::warning(
            "start them: a cluster grants no lock without a majority, and a client connects to one member at a time",
        ),
    };
    Check::new("members", found, status)
}

fn versions(states: &[StatusResponse]) -> Check {
    let versions: BTreeSet<_> = states.iter().map(StatusResponse::version).collect();
    let found = versions.iter().copied().collect::<Vec<_>>().join(", ");
    let status = match versions.iter().all(|version| is_fixed(version)) {
        true => CheckStatus::Ok,
        false => CheckStatus::warning(
            "these versions can revoke a lease early, or confirm one that was revoked: use 3.4.38, 3.5.23, 3.6.5 or \
             later",
        ),
    };
    Check::new("server version", found, status)
}

/// Whether a version has no known defect of leases.
fn is_fixed(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    let version = (next(), next(), next());
    let same_line = FIXED.iter().find(|fixed| (fixed.0, fixed.1) == (version.0, version.1));
    same_line.map_or(version > FIXED[2], |fixed| version >= *fixed)
}

/// A cluster with users refuses those that are unknown to it.
fn user(user: Option<&String>, locks: &Check) -> Check {
    match user {
        Some(user) => Check::new("user", user.clone(), CheckStatus::Ok),
        None if locks.status == CheckStatus::Ok => {
            let hint = "anyone who reaches the members, with a certificate that they accept, may take and break every \
                        lock: set up the user that `leasehold acl etcd` prints, and write it into the URL";
            Check::new("user", "none", CheckStatus::warning(hint))
        }
        None => Check::new("user", "none", CheckStatus::Ok),
    }
}

fn leader(states: &[StatusResponse]) -> Check {
    if states.iter().any(|state| state.leader() != 0) {
        return Check::new("leader", "elected", CheckStatus::Ok);
    }
    let hint = "a majority of the members must be running and able to reach each other";
    Check::new("leader", "none", CheckStatus::error(hint))
}

fn database(states: &[StatusResponse]) -> Check {
    let largest = states.iter().map(StatusResponse::db_size).max().unwrap_or_default();
    Check::new("database", format!("{} KiB", largest >> 10), CheckStatus::Ok)
}

impl EtcdBackend {
    /// How many operations the server takes in a transaction. It does not say so: this searches for the most that it
    /// does not refuse.
    async fn transactions(&self, until: Instant) -> Check {
        let (mut taken, mut refused) = (0, DEFAULT_OPERATIONS + 1);
        let mut next = DEFAULT_OPERATIONS;
        while refused - taken > 1 {
            match self.takes(next, until).await {
                Ok(()) => taken = next,
                Err(Failure::TooManyOperations(_)) => refused = next,
                Err(failure) => return Check::failed("transactions", &failure.without_effect()),
            }
            next = taken.midpoint(refused);
        }
        let or_more = if taken == DEFAULT_OPERATIONS { " or more" } else { "" };
        let status = match taken >= FEWEST_OPERATIONS {
            true => CheckStatus::Ok,
            false => CheckStatus::error(TOO_FEW_OPERATIONS),
        };
        Check::new("transactions", format!("{taken} operations{or_more}"), status)
    }

    /// Sends a transaction with so many operations.
    async fn takes(&self, operations: usize, until: Instant) -> Result<(), Failure> {
        let connections = self.inner.caller().map_err(Failure::NotSent)?;
        let prefix = self.inner.shared.keys.names_with("").unwrap_or_default();
        let count = TxnOp::get(prefix, Some(GetOptions::new().with_count_only()));
        let txn = Txn::new().and_then(vec![count; operations]);
        let sent = connections.send_repeatable(until, move |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        });
        sent.await.map(drop)
    }

    async fn alarms(&self, until: Instant) -> Check {
        let listed = async {
            let connections = self.inner.caller().map_err(Failure::NotSent)?;
            let list = connections.send_repeatable(until, move |client| async move {
                client.maintenance_client().alarm(AlarmAction::Get, AlarmType::None, None).await
            });
            list.await
        };
        match listed.await {
            Ok(reply) if reply.alarms().is_empty() => Check::new("alarms", "none", CheckStatus::Ok),
            Ok(reply) => {
                let names: BTreeSet<_> = reply.alarms().iter().map(|alarm| format!("{:?}", alarm.alarm())).collect();
                let hint = "the server grants no lock: compact and defragment it, then `etcdctl alarm disarm`";
                let found = names.into_iter().collect::<Vec<_>>().join(", ");
                Check::new("alarms", found, CheckStatus::error(hint))
            }
            Err(failure) => Check::failed("alarms", &failure.without_effect()),
        }
    }

    async fn locks(&self, until: Instant) -> Check {
        let counted = async {
            let connections = self.inner.caller().map_err(Failure::NotSent)?;
            let prefix = self.inner.shared.keys.names_with("").unwrap_or_default();
            let options = GetOptions::new().with_range(range_end(&prefix)).with_count_only();
            let count = connections.send_repeatable(until, move |client| {
                let (prefix, options) = (prefix.clone(), options.clone());
                async move { client.kv_client().get(prefix, Some(options)).await }
            });
            count.await
        };
        match counted.await {
            Ok(reply) => Check::new("locks", format!("{} keys", reply.count()), CheckStatus::Ok),
            Err(failure) => Check::failed("locks", &failure.without_effect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_serves_a_client_without_a_user_is_a_warning() {
        let served = Check::new("locks", "0 keys", CheckStatus::Ok);
        let refused = Check::new("locks", "no permission", CheckStatus::error("grant it"));
        assert!(matches!(user(None, &served).status, CheckStatus::Warning(_)));
        assert_eq!(user(None, &refused).status, CheckStatus::Ok);
        assert_eq!(user(Some(&"locker".to_owned()), &served).status, CheckStatus::Ok);
    }

    #[test]
    fn versions_with_known_defects_are_named() {
        for version in ["3.4.38", "3.4.40", "3.5.23", "3.6.5", "3.7.0", "4.0.0", "3.6.6-rc.1"] {
            assert!(is_fixed(version), "{version}");
        }
        for version in ["3.4.23", "3.4.37", "3.5.22", "3.6.4", "3.3.27", "", "3"] {
            assert!(!is_fixed(version), "{version}");
        }
    }
}

//! Checks whether the Sentinels of a URL are fit for locks.

use leasehold_core::Result;
use leasehold_core::admin::{Check, CheckStatus};
use tokio::time::Instant;

use super::member::Sentinel;
use super::sentinels::Sentinels;

impl Sentinels {
    /// What each Sentinel says, and how many there are.
    ///
    /// # Errors
    /// The calling runtime has no connections.
    pub(crate) async fn checks(&self, until: Instant) -> Result<Vec<Check>> {
        let (connections, _) = self.connections()?;
        let mut tasks = tokio::task::JoinSet::new();
        for (number, manager) in connections.iter().cloned().enumerate() {
            tasks.spawn(async move {
                let answer = Sentinel::ask(&manager, until).await;
                (number, answer.map(|primary| primary.map(|it| it.to_string())), Sentinel::count(&manager, until).await)
            });
        }
        let mut said = tasks.join_all().await;
        said.sort_unstable_by_key(|(number, ..)| *number);
        let known = said.iter().filter_map(|(.., count)| *count).max();
        let primary = self.state.naming(|naming| naming.primary().map(ToString::to_string));
        let said = said.into_iter().map(|(number, answer, _)| (self.members[number].endpoint.address.clone(), answer));
        Ok(vec![check(&self.state.name, primary, known, said.collect())])
    }
}

fn check(
    name: &str,
    primary: Option<String>,
    known: Option<u64>,
    said: Vec<(String, Result<Option<String>>)>,
) -> Check {
    let count = said.len();
    let agree = said.iter().filter(|(_, answer)| matches!(answer, Ok(Some(named)) if Some(named) == primary.as_ref()));
    let mut found = match &primary {
        Some(primary) => format!("{} of {count} name {primary}", agree.count()),
        None => format!("no majority of {count} names a primary for `{name}`"),
    };
    let mut is_other = false;
    for (address, answer) in &said {
        let why = match answer {
            Ok(named) if *named == primary => continue,
            Ok(Some(other)) => format!("names {other}"),
            Ok(None) => format!("does not know `{name}`"),
            Err(error) => error.to_string(),
        };
        is_other = true;
        found.push_str(&format!("; {address}: {why}"));
    }
    let more = known.filter(|known| usize::try_from(*known).is_ok_and(|known| known > count));
    let status = match (&primary, more) {
        (None, _) => CheckStatus::error("no lock can be acquired, and no lease is renewed, until a majority agrees"),
        (_, Some(known)) => CheckStatus::warning(format!(
            "the URL names {count} of {known} Sentinels: name all of them, or a majority of those in the URL may miss \
             a failover"
        )),
        _ if is_other => CheckStatus::warning("correct this, or one more failure leaves no majority"),
        _ => CheckStatus::Ok,
    };
    Check::new("sentinels", found, status)
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn what_a_sentinel_lacks_is_said() {
        let named = |host: &str| Ok(Some(format!("{host}:6379")));
        let failed = || Err(Error::new(ErrorKind::Unavailable, "no reply"));
        let a = || Some("a:6379".to_owned());
        for (answers, primary, known, begin, status) in [
            ([named("a"), named("a"), named("a")], a(), Some(3), "3 of 3 name a:6379", "ok"),
            ([named("a"), named("a"), named("a")], a(), None, "3 of 3 name a:6379", "ok"),
            ([named("a"), named("a"), named("a")], a(), Some(5), "3 of 3 name a:6379", "warning"),
            ([named("a"), named("a"), named("b")], a(), Some(3), "2 of 3 name a:6379; s2: names b:6379", "warning"),
            ([named("a"), failed(), named("a")], a(), Some(3), "2 of 3 name a:6379; s1: no reply", "warning"),
            ([named("a"), Ok(None), failed()], None, None, "no majority of 3 names a primary for `m`; s0", "error"),
        ] {
            let said = answers.into_iter().enumerate().map(|(number, answer)| (format!("s{number}"), answer)).collect();
            let check = check("m", primary, known, said);
            let found = match check.status {
                CheckStatus::Ok => "ok",
                CheckStatus::Warning(_) => "warning",
                CheckStatus::Error(_) => "error",
            };
            assert!(check.found.starts_with(begin) && found == status, "{}: {found}", check.found);
        }
    }
}

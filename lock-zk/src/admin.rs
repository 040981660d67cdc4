//! Administration: inspect a lock, list locks, and break a lease.

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{FencingToken, LeaseInfo, LockInfo, LockName, Result};
use tokio::time::Instant;

use crate::backend::ZkBackend;
use crate::errors::Failure;
use crate::link::Link;
use crate::nodes::{is_lock, parse_all, read_data};
use crate::order::Child;
use crate::queue::{Shown, delete, delete_both, next_after, shown};

/// A listing takes at most this many call bounds.
const LIST_BOUNDS: u32 = 9;

/// The number of queues that are read at once. The server serves others between two requests.
const AT_ONCE: usize = 100;

impl ZkBackend {
    async fn try_inspect(&self, name: &LockName) -> Result<Option<LockInfo>, Failure> {
        let shared = &self.inner.shared;
        let until = shared.until();
        let link = self.inner.reader(until).await?;
        let shown = shown(&link, &shared.nodes.lock(name), until).await?;
        shown.as_ref().map(state_of).transpose()
    }

    async fn try_list(&self, prefix: &str, limit: usize) -> Result<Listing, Failure> {
        let shared = &self.inner.shared;
        let until = Instant::now() + shared.settings.timeout * LIST_BOUNDS;
        let limit = limit.min(Listing::MAX);
        let Some(begin) = LockName::encoded_prefix(prefix) else { return Ok(Listing::default()) };
        let link = self.inner.reader(until).await?;
        let root = shared.nodes.root();
        let mut names = match link.call(|client| client.list_children(root), until).await {
            Ok(names) => names,
            Err(Failure::NoNode) => return Ok(Listing::default()),
            Err(failure) => return Err(failure),
        };
        names.retain(|name| is_lock(name) && name.starts_with(&begin));
        names.sort();
        let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
        for chunk in names.chunks(AT_ONCE) {
            if locks.len() + unreadable.len() >= limit {
                break;
            }
            for (encoded, state) in read_all(&link, root, chunk, until).await {
                let name = LockName::decode(&encoded).map_or_else(|| ListedName::Cut(encoded), ListedName::Whole);
                match state {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(Failure::Refused(_)) if locks.len() + unreadable.len() >= limit => {}
                    Ok(Some(state)) => locks.push(Listed::new(name, state)),
                    Err(Failure::Refused(_)) => unreadable.push(name),
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(Listing::new(locks, unreadable))
    }

    async fn try_break(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>, Failure> {
        let shared = &self.inner.shared;
        let until = shared.until();
        let link = self.inner.reader(until).await.map_err(Failure::not_sent)?;
        let lock = shared.nodes.lock(name);
        let Some(holder) = shown(&link, &lock, until).await.map_err(Failure::not_sent)? else { return Ok(None) };
        if read_data(&holder.data).is_none() {
            return Err(Failure::other_format());
        }
        if holder.created.unsigned_abs() != token.get() {
            return Ok(None);
        }
        let raised = token.get() + 1;
        let path = |node: &Child| format!("{lock}/{}", node.name);
        let first = path(&holder.first);
        // The claim behind it must get a token above the raised one. Its client requests another place.
        if let Some(next) = next(&link, &lock, &holder.first, until).await.map_err(Failure::not_sent)? {
            let next = path(&next);
            let stat = link.call(|client| client.check_stat(&next), until).await.map_err(Failure::not_sent)?;
            // In one transaction: if the holder released between two, the first of them would end the lease of the
            // claim behind it, which nobody has inspected.
            if stat.is_some_and(|stat| stat.czxid.unsigned_abs() == raised)
                && delete_both(&link, &first, &next, until).await?
            {
                return Ok(Some(FencingToken::new(raised)));
            }
        }
        let is_deleted = delete(&link, &first, until).await?;
        Ok(is_deleted.then(|| FencingToken::new(raised)))
    }
}

/// The node behind another one.
async fn next(link: &Link, lock: &str, first: &Child, until: Instant) -> Result<Option<Child>, Failure> {
    match link.call(|client| client.list_children(lock), until).await {
        Ok(names) => Ok(next_after(&parse_all(&names)?, first.number).cloned()),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

type Read = (String, Result<Option<LockInfo>, Failure>);

/// Reads the queues of these names at once.
async fn read_all(link: &Link, root: &str, names: &[String], until: Instant) -> Vec<Read> {
    let mut reads: Vec<_> = names
        .iter()
        .map(|name| {
            Box::pin(async move {
                let shown = shown(link, &format!("{root}/{name}"), until).await;
                (name.clone(), shown.and_then(|shown| shown.as_ref().map(state_of).transpose()))
            })
        })
        .collect();
    let mut done: Vec<Option<Read>> = reads.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut is_ready = true;
        for (read, done) in reads.iter_mut().zip(&mut done) {
            if done.is_none() {
                match read.as_mut().poll(cx) {
                    std::task::Poll::Ready(state) => *done = Some(state),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

fn state_of(shown: &Shown) -> Result<LockInfo, Failure> {
    let (ttl, holder) = read_data(&shown.data).ok_or_else(Failure::other_format)?;
    let token = FencingToken::new(shown.created.unsigned_abs());
    // The server does not say when a session ends.
    Ok(LockInfo::new(Some(token), vec![LeaseInfo::of_unknown_age(token, ttl, holder)], Some(shown.waiters)))
}

#[async_trait]
impl Admin for ZkBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.try_inspect(name).await.map_err(Failure::without_effect)
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        self.try_list(prefix, limit).await.map_err(Failure::without_effect)
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        Ok(self.try_break(name, token).await?)
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        Ok(self.checks().await)
    }
}

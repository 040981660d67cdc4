//! Reads the queue of a lock.
//!
//! A read may be behind the leader, and shows at least what the session has done and seen before (`Session::catch_up`).
//! So a node of this session that is not shown is gone. Another node that is shown may be gone: a claim may take itself
//! for a waiter until its watch reports that, and not for the holder too early.

use tokio::time::Instant;

use crate::errors::Failure;
use crate::link::Link;
use crate::nodes::parse_all;
use crate::order::{Child, Standing, compare, earliest, standing};
use crate::slot::Node;

/// The place of a node at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    /// The node with this name is just before it.
    Behind(String),
    /// It is not there.
    Gone,
}

/// Reads the place of a node. `Gone` is certain, `Behind` may be old.
pub(crate) async fn position(link: &Link, node: &Node, until: Instant) -> Result<Position, Failure> {
    match link.call(|client| client.list_children(&node.lock), until).await {
        Ok(names) => position_in(link, &names, node, until).await,
        Err(Failure::NoNode) => Ok(Position::Gone),
        Err(failure) => Err(failure),
    }
}

/// The place of a node among these names.
pub(crate) async fn position_in(
    link: &Link,
    names: &[String],
    node: &Node,
    until: Instant,
) -> Result<Position, Failure> {
    match standing(&parse_all(names)?, &node.name) {
        Standing::First => Ok(Position::First),
        Standing::Behind(name) => Ok(Position::Behind(name)),
        Standing::Gone => Ok(Position::Gone),
        Standing::Tied { others, before } => {
            let mut nearest: Option<(i64, String)> = None;
            for name in others {
                let Some(created) = created(link, &format!("{}/{name}", node.lock), until).await? else { continue };
                if created < node.created && nearest.as_ref().is_none_or(|(known, _)| *known < created) {
                    nearest = Some((created, name));
                }
            }
            let before = nearest.map(|(_, name)| name).or(before);
            Ok(before.map_or(Position::First, Position::Behind))
        }
    }
}

/// The transaction that created a node. `None` if there is none: it was listed before, and is deleted now.
async fn created(link: &Link, path: &str, until: Instant) -> Result<Option<i64>, Failure> {
    let stat = link.call(|client| client.check_stat(path), until).await?;
    Ok(stat.map(|stat| stat.czxid))
}

/// A queue, as it is shown.
pub(crate) struct Shown {
    /// Its first node.
    pub(crate) first: Child,
    pub(crate) created: i64,
    pub(crate) data: Vec<u8>,
    /// How many nodes are behind the first one.
    pub(crate) waiters: u64,
}

/// Reads the first node of a queue. `None` if the queue is empty. It is as new as the link, which
/// [`reader`](crate::inner::Inner::reader) has synced.
pub(crate) async fn shown(link: &Link, lock: &str, until: Instant) -> Result<Option<Shown>, Failure> {
    loop {
        let names = match link.call(|client| client.list_children(lock), until).await {
            Ok(names) => names,
            Err(Failure::NoNode) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let children = parse_all(&names)?;
        let mut first: Option<Shown> = None;
        let candidates = earliest(&children);
        if candidates.is_empty() {
            return Ok(None);
        }
        for child in candidates {
            let path = format!("{lock}/{}", child.name);
            match link.call(|client| client.get_data(&path), until).await {
                Ok((data, stat)) => {
                    if first.as_ref().is_none_or(|first| stat.czxid < first.created) {
                        let waiters = children.len() as u64 - 1;
                        first = Some(Shown { first: child.clone(), created: stat.czxid, data, waiters });
                    }
                }
                Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        // Otherwise it was released meanwhile.
        if first.is_some() {
            return Ok(first);
        }
    }
}

/// The name of the node that is just behind another one.
pub(crate) fn next_after(children: &[Child], number: i64) -> Option<&Child> {
    let behind = children.iter().filter(|child| compare(child.number, number).is_gt());
    behind.reduce(|one, other| if compare(other.number, one.number).is_lt() { other } else { one })
}

/// Deletes the node of a lease in a transaction that changes its data first. A client that watches the node then learns
/// of the change and not of the deletion, and so that the lock was released, although it has not read the queue.
/// Returns whether the node was there.
pub(crate) async fn hand_over(link: &Link, path: &str, until: Instant) -> Result<bool, Failure> {
    let released = link.call(
        |client| {
            let mut multi = client.new_multi_writer();
            let added = multi.add_set_data(path, b"", None).and_then(|()| multi.add_delete(path, None));
            let committed = added.map(|()| multi.commit());
            async move { Ok(committed?.await?) }
        },
        until,
    );
    was_there(released.await.map(drop))
}

/// Deletes a node. Returns whether it was there.
pub(crate) async fn delete(link: &Link, path: &str, until: Instant) -> Result<bool, Failure> {
    was_there(link.call(|client| client.delete(path, None), until).await)
}

/// Deletes two nodes, or none if one of them is not there. Returns whether both were there.
pub(crate) async fn delete_both(link: &Link, one: &str, other: &str, until: Instant) -> Result<bool, Failure> {
    let deleted = link.call(
        |client| {
            let mut multi = client.new_multi_writer();
            let added = multi.add_delete(one, None).and_then(|()| multi.add_delete(other, None));
            let committed = added.map(|()| multi.commit());
            async move { Ok(committed?.await?) }
        },
        until,
    );
    was_there(deleted.await.map(drop))
}

fn was_there(deleted: Result<(), Failure>) -> Result<bool, Failure> {
    match deleted {
        Ok(()) => Ok(true),
        Err(Failure::NoNode) => Ok(false),
        Err(failure) => Err(failure),
    }
}

//! Decodes the replies of the scripts. Nothing from the server is trusted: an unexpected reply decodes to `None`.

use std::time::Duration;

use leasehold_core::backend::PlaceNumber;
use redis::Value;

use crate::cluster::MoreKeys;
use crate::run::State;

/// The part of a reply for one lock, or the error message of the server for it.
pub(crate) type PerLock<T> = Result<T, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { place: PlaceNumber, token: u64 },
    Queued { place: PlaceNumber, retry_after: Duration },
    Held { retry_after: Duration },
    Withdrawn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held,
    /// The server had lost the lease, and has it again.
    PutBack,
    Granted {
        place: PlaceNumber,
        token: u64,
    },
    Waiting {
        place: PlaceNumber,
        retry_after: Duration,
    },
    Lost,
    Failed(String),
}

impl Renewed {
    /// Whether the claim has the lease.
    pub(crate) const fn is_lease(&self) -> bool {
        matches!(self, Self::Held | Self::PutBack | Self::Granted { .. })
    }
}

/// The state of the server, from `epoch.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) state: State,
    pub(crate) version: (u32, u32),
    pub(crate) eviction: String,
    /// It is a node of a Redis Cluster.
    pub(crate) is_cluster: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) token: u64,
    pub(crate) left: Duration,
    pub(crate) holder: String,
    pub(crate) waiters: u64,
}

/// Decodes the reply to an acquire.
pub(crate) fn acquired(reply: &Value) -> Option<PerLock<Acquired>> {
    match reply {
        Value::Int(_) => {
            let token = number(reply)?;
            Some(Ok(Acquired::Granted { place: PlaceNumber::new(token), token }))
        }
        Value::Array(parts) => {
            let [Value::Int(code), place, value] = &parts[..] else { return None };
            Some(Ok(match code {
                1 => Acquired::Granted { place: PlaceNumber::new(number(place)?), token: number(value)? },
                2 => Acquired::Queued { place: PlaceNumber::new(number(place)?), retry_after: millis(value)? },
                3 => Acquired::Held { retry_after: millis(value)? },
                4 => Acquired::Withdrawn,
                _ => return None,
            }))
        }
        error => text(error).map(Err),
    }
}

/// Decodes the reply to a release: whether the owner had the lease or a place.
pub(crate) fn released(reply: &Value) -> Option<PerLock<bool>> {
    match reply {
        Value::Int(1) => Some(Ok(true)),
        Value::Int(0) => Some(Ok(false)),
        Value::Int(_) => None,
        error => text(error).map(Err),
    }
}

/// The keys that a call for one lock needs beside the record, and does not declare. It has changed nothing.
pub(crate) fn lacking(reply: &Value) -> Option<MoreKeys> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(5), keys, Value::Int(0)] = &parts[..] else { return None };
    MoreKeys::of(number(keys)?)
}

/// Splits a reply into one per lock, as if each lock had been alone. The reply for a single lock has no wrapper.
pub(crate) fn per_lock(value: Value, count: usize) -> Option<Vec<Value>> {
    if count == 1 {
        return Some(vec![value]);
    }
    let (_, replies) = with_status_codes(value, count, |time, code, rest| {
        Some(match code {
            b'n' => Value::Int(time),
            b'r' => Value::Int(1),
            b'f' => Value::Int(0),
            b'.' => rest.next()?,
            _ => return None,
        })
    })?;
    Some(replies)
}

/// Decodes the server's time, and a reply per lease.
pub(crate) fn renewed(value: Value, count: usize) -> Option<(i64, Vec<Renewed>)> {
    with_status_codes(value, count, |_, code, rest| {
        Some(match code {
            b'r' => Renewed::Held,
            b'p' => Renewed::PutBack,
            b'l' => Renewed::Lost,
            b'g' => Renewed::Granted { place: PlaceNumber::new(number(&rest.next()?)?), token: number(&rest.next()?)? },
            b'w' => Renewed::Waiting {
                place: PlaceNumber::new(number(&rest.next()?)?),
                retry_after: millis(&rest.next()?)?,
            },
            b'e' => Renewed::Failed(text(&rest.next()?)?),
            _ => return None,
        })
    })
}

/// Decodes the server's time, a status code per lock, and the values that follow the codes.
fn with_status_codes<T>(
    value: Value,
    count: usize,
    mut read: impl FnMut(i64, u8, &mut std::vec::IntoIter<Value>) -> Option<T>,
) -> Option<(i64, Vec<T>)> {
    let (time, rest) = timed(value)?;
    let mut rest = rest.into_iter();
    let codes = text(&rest.next()?)?;
    if codes.len() != count {
        return None;
    }
    let replies = codes.bytes().map(|code| read(time, code, &mut rest)).collect::<Option<Vec<_>>>()?;
    rest.next().is_none().then_some((time, replies))
}

/// Decodes a reply per lock: `None` if it has no record.
pub(crate) fn inspected(value: Value, count: usize) -> Option<Vec<PerLock<Option<Inspected>>>> {
    let (_, rest) = timed(value)?;
    let shown = |reply: &Value| match reply {
        Value::Array(parts) => {
            let [token, left, holder, waiters] = &parts[..] else { return None };
            let (token, waiters) = (number(token)?, number(waiters)?);
            Some(Ok(Some(Inspected { token, left: millis(left)?, holder: text(holder)?, waiters })))
        }
        none if is_none(none) => Some(Ok(None)),
        error => text(error).map(Err),
    };
    (rest.len() == count).then(|| rest.iter().map(shown).collect())?
}

/// Decodes the raised token: `Some(None)` if the lease has ended.
pub(crate) fn broken(value: &Value) -> Option<Option<u64>> {
    if is_none(value) { Some(None) } else { number(value).map(Some) }
}

/// Decodes the next cursor and keys. The cursor is 0 after the last step.
pub(crate) fn scanned(value: Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = value else { return None };
    let [cursor, Value::Array(keys)] = &parts[..] else { return None };
    // A key that is not UTF-8 is not one of Leasehold's.
    let keys = keys.iter().filter_map(|key| match key {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    });
    Some((text(cursor)?.parse().ok()?, keys.collect()))
}

fn is_none(value: &Value) -> bool {
    matches!(value, Value::Nil | Value::Boolean(false))
}

pub(crate) fn server(value: Value) -> Option<Server> {
    let Value::Array(parts) = value else { return None };
    let [id, uptime, now, key, version, eviction, role, former_history, offset, mode] = &parts[..] else { return None };
    let version = text(version)?;
    let mut numbers = version.split('.').map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let now = Duration::from_millis(text(now)?.parse().ok()?);
    let state = State {
        node: String::new(),
        id: text(id)?,
        uptime: millis(uptime)?,
        now,
        key: text(key)?,
        is_replica: text(role)? == "slave",
        former_history: text(former_history)?,
        has_replicated: text(offset)? != "0",
    };
    Some(Server { state, version, eviction: text(eviction)?, is_cluster: text(mode)? == "cluster" })
}

/// The channel and the payload of a message.
pub(crate) fn message(data: &[Value]) -> Option<(&[u8], &[u8])> {
    let [Value::BulkString(channel), Value::BulkString(payload)] = data else { return None };
    Some((channel, payload))
}

/// The owner of a place, if the holder of its lock has shortened the lease.
pub(crate) fn ends_sooner(payload: &[u8]) -> Option<[u8; 16]> {
    payload.try_into().ok()
}

/// The owner, place and token of a published grant.
pub(crate) fn handoff(payload: &[u8]) -> Option<([u8; 16], PlaceNumber, u64)> {
    let (owner, rest) = payload.split_first_chunk::<16>()?;
    let (place, rest) = rest.split_first_chunk::<8>()?;
    let (token, rest) = rest.split_first_chunk::<8>()?;
    rest.is_empty().then(|| (*owner, PlaceNumber::new(u64::from_be_bytes(*place)), u64::from_be_bytes(*token)))
}

fn timed(value: Value) -> Option<(i64, Vec<Value>)> {
    let Value::Array(mut parts) = value else { return None };
    let Some(Value::Int(time)) = parts.first() else { return None };
    let time = *time;
    parts.remove(0);
    Some((time, parts))
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn millis(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

/// Lossy, because another program may have cut a lock name or a label in the middle of a character.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(parts.into_iter().collect())
    }

    fn words(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn replies_are_decoded_per_lock() {
        let granted = |place, token| Some(Ok(Acquired::Granted { place: PlaceNumber::new(place), token }));
        assert_eq!(acquired(&Value::Int(3)), granted(3, 3));
        assert_eq!(acquired(&array([Value::Int(1), Value::Int(7), Value::Int(9)])), granted(7, 9));
        assert_eq!(acquired(&words("WRONGTYPE x")), Some(Err("WRONGTYPE x".to_owned())));
        assert_eq!(released(&Value::Int(1)), Some(Ok(true)));
        assert_eq!(per_lock(Value::Int(1), 1), Some(vec![Value::Int(1)]));
        let several = array([Value::Int(5), words("n.rf"), Value::Int(9)]);
        assert_eq!(per_lock(several, 4), Some([5, 9, 1, 0].map(Value::Int).to_vec()));

        let value = array([Value::Int(5), words("rpgle"), Value::Int(3), Value::Int(4), words("WRONGTYPE y")]);
        let (_, replies) = renewed(value, 5).unwrap();
        assert_eq!(
            replies,
            [
                Renewed::Held,
                Renewed::PutBack,
                Renewed::Granted { place: PlaceNumber::new(3), token: 4 },
                Renewed::Lost,
                Renewed::Failed("WRONGTYPE y".to_owned()),
            ]
        );
    }

    #[test]
    fn an_unexpected_reply_is_none() {
        assert_eq!(acquired(&Value::Okay), None);
        assert_eq!(acquired(&Value::Int(-7)), None);
        assert_eq!(acquired(&array([])), None);
        assert_eq!(acquired(&array([Value::Int(1), Value::Int(7)])), None);
        assert_eq!(acquired(&array([Value::Int(8), Value::Int(7), Value::Int(7)])), None);
        assert_eq!(released(&Value::Int(2)), None);
        assert_eq!(per_lock(Value::Int(7), 2), None);
        assert_eq!(per_lock(array([Value::Int(7), words("n")]), 2), None);
        assert_eq!(per_lock(array([Value::Int(7), words("n.")]), 2), None);
        assert_eq!(per_lock(array([Value::Int(7), words("nr"), Value::Int(9)]), 2), None);
        assert_eq!(per_lock(array([Value::Int(7), words("nx")]), 2), None);
        assert_eq!(renewed(array([Value::Int(5), words("rr")]), 1), None);
        assert_eq!(renewed(array([Value::Int(5), words("g"), Value::Int(1)]), 1), None);
        assert_eq!(renewed(array([Value::Int(5), words("r"), Value::Int(1)]), 1), None);
        assert_eq!(handoff(b"short"), None);
        assert_eq!(message(&[words("c")]), None);
    }

    #[test]
    fn a_published_grant_is_owner_place_and_token() {
        let mut payload = vec![b'o'; 16];
        payload.extend(3u64.to_be_bytes());
        payload.extend(4u64.to_be_bytes());
        assert_eq!(handoff(&payload), Some(([b'o'; 16], PlaceNumber::new(3), 4)));
        assert_eq!(ends_sooner(&payload), None);
        assert_eq!((ends_sooner(b"oooooooooooooooo"), handoff(b"oooooooooooooooo")), (Some([b'o'; 16]), None));
        let data = [words("c"), Value::BulkString(payload.clone())];
        assert_eq!(message(&data), Some((&b"c"[..], &payload[..])));
    }
}

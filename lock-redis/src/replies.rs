//! Reads what the scripts answer. Nothing of a server is trusted: what cannot be read is said to be so.

use std::time::Duration;

use leasehold_core::backend::PlaceNumber;
use redis::Value;

use crate::epoch::Reading;

/// One lock's part of an answer, or the server's words on what was wrong with it.
pub(crate) type PerLock<T> = Result<T, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { place: PlaceNumber, token: u64 },
    Queued { place: PlaceNumber, look_in: Duration },
    Held { look_in: Duration },
    Withdrawn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held,
    Granted { place: PlaceNumber, token: u64 },
    Waiting { place: PlaceNumber, look_in: Duration },
    Lost,
    Failed(String),
}

/// What the server is, from `epoch.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) reading: Reading,
    pub(crate) version: (u32, u32),
    pub(crate) eviction: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) token: u64,
    pub(crate) left: Duration,
    pub(crate) holder: String,
    pub(crate) waiters: u64,
}

/// The answer about a lock that was to be acquired.
pub(crate) fn acquired(answer: &Value) -> Option<PerLock<Acquired>> {
    match answer {
        Value::Int(_) => {
            let token = number(answer)?;
            Some(Ok(Acquired::Granted { place: PlaceNumber::new(token), token }))
        }
        Value::Array(parts) => {
            let [Value::Int(code), place, value] = &parts[..] else { return None };
            Some(Ok(match code {
                1 => Acquired::Granted { place: PlaceNumber::new(number(place)?), token: number(value)? },
                2 => Acquired::Queued { place: PlaceNumber::new(number(place)?), look_in: millis(value)? },
                3 => Acquired::Held { look_in: millis(value)? },
                4 => Acquired::Withdrawn,
                _ => return None,
            }))
        }
        error => text(error).map(Err),
    }
}

/// Whether lease or place was the owner's.
pub(crate) fn released(answer: &Value) -> Option<PerLock<bool>> {
    match answer {
        Value::Int(1) => Some(Ok(true)),
        Value::Int(0) => Some(Ok(false)),
        Value::Int(_) => None,
        error => text(error).map(Err),
    }
}

/// The answers about several locks, each as it would be alone. A call about one lock answers without anything around it.
pub(crate) fn per_lock(value: Value, count: usize) -> Option<Vec<Value>> {
    if count == 1 {
        return Some(vec![value]);
    }
    let (_, answers) = with_status_codes(value, count, |time, code, rest| {
        Some(match code {
            b'n' => Value::Int(time),
            b'r' => Value::Int(1),
            b'f' => Value::Int(0),
            b'.' => rest.next()?,
            _ => return None,
        })
    })?;
    Some(answers)
}

/// The server's time and an answer per lease.
pub(crate) fn renewed(value: Value, count: usize) -> Option<(i64, Vec<Renewed>)> {
    with_status_codes(value, count, |_, code, rest| {
        Some(match code {
            b'r' => Renewed::Held,
            b'l' => Renewed::Lost,
            b'g' => Renewed::Granted { place: PlaceNumber::new(number(&rest.next()?)?), token: number(&rest.next()?)? },
            b'w' => {
                Renewed::Waiting { place: PlaceNumber::new(number(&rest.next()?)?), look_in: millis(&rest.next()?)? }
            }
            b'e' => Renewed::Failed(text(&rest.next()?)?),
            _ => return None,
        })
    })
}

/// Reads the server's time, a code for each answer, and what the codes leave open.
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
    let answers = codes.bytes().map(|code| read(time, code, &mut rest)).collect::<Option<Vec<_>>>()?;
    rest.next().is_none().then_some((time, answers))
}

/// An answer per lock; `None` among them where there is no record.
pub(crate) fn inspected(value: Value, count: usize) -> Option<Vec<PerLock<Option<Inspected>>>> {
    let (_, rest) = timed(value)?;
    let shown = |answer: &Value| match answer {
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

/// The raised token; `Some(None)` where that lease is over.
pub(crate) fn broken(value: &Value) -> Option<Option<u64>> {
    if is_none(value) { Some(None) } else { number(value).map(Some) }
}

/// Where to go on, and keys. The last step gives the number 0.
pub(crate) fn scanned(value: Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = value else { return None };
    let [cursor, Value::Array(keys)] = &parts[..] else { return None };
    // A key that is no text is none of ours.
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
    let [run, uptime, now, key, version, eviction] = &parts[..] else { return None };
    let version = text(version)?;
    let mut numbers = version.split('.').map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let now = Duration::from_millis(text(now)?.parse().ok()?);
    let reading = Reading { run: text(run)?, uptime: millis(uptime)?, now, key: text(key)? };
    Some(Server { reading, version, eviction: text(eviction)? })
}

/// Channel and payload of a message.
pub(crate) fn message(data: &[Value]) -> Option<(&[u8], &[u8])> {
    let [Value::BulkString(channel), Value::BulkString(payload)] = data else { return None };
    Some((channel, payload))
}

/// The owner of a place whose lock's holder has shortened its lease.
pub(crate) fn ends_sooner(payload: &[u8]) -> Option<[u8; 16]> {
    payload.try_into().ok()
}

/// Owner, place and token of a grant that was published.
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

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn millis(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

/// A lock's name or a person's label may have been cut in the middle of a character by another program.
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
    fn answers_are_read_lock_by_lock() {
        let granted = |place, token| Some(Ok(Acquired::Granted { place: PlaceNumber::new(place), token }));
        assert_eq!(acquired(&Value::Int(3)), granted(3, 3));
        assert_eq!(acquired(&array([Value::Int(1), Value::Int(7), Value::Int(9)])), granted(7, 9));
        assert_eq!(acquired(&words("WRONGTYPE x")), Some(Err("WRONGTYPE x".to_owned())));
        assert_eq!(released(&Value::Int(1)), Some(Ok(true)));
        assert_eq!(per_lock(Value::Int(1), 1), Some(vec![Value::Int(1)]));
        let several = array([Value::Int(5), words("n.rf"), Value::Int(9)]);
        assert_eq!(per_lock(several, 4), Some([5, 9, 1, 0].map(Value::Int).to_vec()));

        let value = array([Value::Int(5), words("rgle"), Value::Int(3), Value::Int(4), words("WRONGTYPE y")]);
        let (_, answers) = renewed(value, 4).unwrap();
        assert_eq!(
            answers,
            [
                Renewed::Held,
                Renewed::Granted { place: PlaceNumber::new(3), token: 4 },
                Renewed::Lost,
                Renewed::Failed("WRONGTYPE y".to_owned()),
            ]
        );
    }

    #[test]
    fn what_is_not_an_answer_of_ours_is_none() {
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

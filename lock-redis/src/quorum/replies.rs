//! Decodes the replies of a quorum's server. Nothing from the server is trusted: an unexpected reply decodes to `None`.

use std::time::Duration;

use leasehold_core::backend::Stamp;
use leasehold_core::backend::kit::quorum::{
    HoldReply, RaiseReply, Reading, RunId, ServerState, Since, VoteReply, WithdrawReply,
};
use redis::Value;

use super::request::Operation;
use super::slot::Vote;
use crate::replies::{number, text};

/// The reply to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Vote(VoteReply),
    Raise(RaiseReply),
    Hold(HoldReply),
    Withdraw(WithdrawReply),
    /// Whether the server accepted the token of a break, or its fence.
    Break(Result<(), u64>),
}

/// Decodes the server's time, and a reply or an error text for each request.
pub(super) fn exchanged<'a>(
    value: Value,
    operations: impl Iterator<Item = (Operation, bool)> + 'a,
) -> Option<(u64, Vec<Result<Body, String>>)> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let time = number(&parts.next()?)?;
    let codes = text(&parts.next()?)?;
    let mut codes = codes.bytes();
    let mut bodies = Vec::new();
    for (operation, is_join) in operations {
        bodies.push(match (operation, codes.next()?) {
            (_, b'.') => Err(text(&parts.next()?)?),
            (Operation::Vote { .. }, code) => Ok(Body::Vote(match code {
                b'g' => VoteReply::Accepted,
                b'v' => VoteReply::Voted { fence: decimal(&parts.next()?)? },
                b'h' => VoteReply::Held {
                    fence: decimal(&parts.next()?)?,
                    left: Duration::from_millis(number(&parts.next()?)?),
                    holder: u32::try_from(number(&parts.next()?)?).ok()?,
                },
                b'u' => VoteReply::Unsettled,
                b'd' => VoteReply::Withdrawn,
                _ => return None,
            })),
            (Operation::Raise { .. }, code) => Ok(Body::Raise(match code {
                b'g' => RaiseReply::Accepted,
                b'l' => RaiseReply::Refused,
                _ => return None,
            })),
            (Operation::Hold { .. }, code) => Ok(Body::Hold(match code {
                b'r' => HoldReply::Renewed,
                b'p' => HoldReply::PutBack,
                b'j' => HoldReply::Joined,
                b'f' | b'l' if is_join => HoldReply::NotJoined,
                b'f' => HoldReply::Free,
                b'l' => HoldReply::Lost,
                _ => return None,
            })),
            (Operation::Withdraw { .. }, code) => Ok(Body::Withdraw(match code {
                b'1' => WithdrawReply::Ended,
                b'0' => WithdrawReply::None,
                _ => return None,
            })),
            (Operation::Break { .. }, code) => Ok(Body::Break(match code {
                b'g' => Ok(()),
                b'v' => Err(decimal(&parts.next()?)?),
                _ => return None,
            })),
        });
    }
    (codes.next().is_none() && parts.next().is_none()).then_some((time, bodies))
}

fn decimal(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// What a server says of itself.
pub(super) struct Server {
    pub(super) reading: Reading,
    pub(super) version: (u32, u32),
    pub(super) eviction: String,
    pub(super) role: String,
    pub(super) is_cluster: bool,
}

/// Decodes the reply of `state.lua`, which was requested at `sent` and arrived at `received`. `Some(Err)` for a state in
/// a format that this version does not know.
pub(super) fn server(value: &Value, sent: Stamp, received: Stamp) -> Option<Result<Server, ()>> {
    let Value::Array(parts) = value else { return None };
    let [run, time, state, since, version, eviction, role, cluster] = &parts[..] else { return None };
    let state = match bytes(state)? {
        [] => None,
        state => match server_state(state) {
            Some(state) => Some(state),
            None => return Some(Err(())),
        },
    };
    let since = text(since)?;
    let since = since
        .split_once(' ')
        .and_then(|(run, time)| Some(Since { run: RunId::new(run), time: Duration::from_micros(time.parse().ok()?) }));
    let time = Duration::from_micros(decimal(time)?);
    let reading = Reading { run: RunId::new(text(run)?), time, state, since, sent, received };
    let version = text(version)?;
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    let version = (numbers.next()??, numbers.next()??);
    let is_cluster = text(cluster)? == "1";
    Some(Ok(Server { reading, version, eviction: text(eviction)?, role: text(role)?, is_cluster }))
}

fn server_state(state: &[u8]) -> Option<ServerState> {
    let (&version, rest) = state.split_first()?;
    let (run, rest) = rest.split_at_checked(40)?;
    let [servers, number, rest @ ..] = rest else { return None };
    let (longest, rest) = rest.split_first_chunk::<4>()?;
    let (floor, rest) = rest.split_first_chunk::<8>()?;
    let high: &[u8; 8] = rest.try_into().ok()?;
    (version == 1).then(|| ServerState {
        run: RunId::new(String::from_utf8_lossy(run).into_owned()),
        servers: usize::from(*servers),
        number: usize::from(*number),
        longest_ttl: Duration::from_millis(u32::from_be_bytes(*longest).into()),
        floor: u64::from_be_bytes(*floor),
        high: u64::from_be_bytes(*high),
    })
}

/// The record of a lock on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// What is left of the vote.
    pub(super) left: Duration,
    pub(super) fence: u64,
    pub(super) token: u64,
    pub(super) vote: Vote,
    pub(super) holder: String,
}

/// Decodes the reply of `inspect.lua`. `Some(Err)` for a record in a format that this version does not know.
pub(super) fn record(value: &Value) -> Option<Result<Option<Record>, ()>> {
    let Value::Array(parts) = value else { return None };
    let [time, raw] = &parts[..] else { return None };
    let (time, raw) = (decimal(time)?, bytes(raw)?);
    if raw.is_empty() {
        return Some(Ok(None));
    }
    let Some(rest) = raw.strip_prefix(b"\x01q\0\0") else { return Some(Err(())) };
    let mut numbers = [0; 5];
    let mut rest = rest;
    for number in &mut numbers {
        let (bytes, after) = rest.split_first_chunk::<8>()?;
        (*number, rest) = (u64::from_be_bytes(*bytes), after);
    }
    let [deadline, _kept, _tombstones, fence, token] = numbers;
    let (vote, holder) = rest.split_first_chunk::<16>()?;
    let left = Duration::from_micros(deadline.saturating_sub(time));
    Some(Ok(Some(Record { left, fence, token, vote: *vote, holder: String::from_utf8_lossy(holder).into_owned() })))
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: &[&str]) -> Value {
        let parts = parts.iter().map(|part| match part.strip_prefix(':') {
            Some(number) => Value::Int(number.parse().unwrap()),
            None => Value::BulkString(part.as_bytes().to_vec()),
        });
        Value::Array(parts.collect())
    }

    #[test]
    fn each_request_has_its_reply() {
        let ttl = Duration::from_secs(1);
        let vote = (Operation::Vote { ttl, guess: 7 }, false);
        let hold = |is_join| (Operation::Hold { ttl, token: 7, exactly: false }, is_join);
        let requests = [vote, vote, (Operation::Break { token: 9, ttl }, false), vote, hold(true), hold(false)];
        let reply = array(&[":5", "gv.hlf", "12", "OOM", "13", ":250", ":77"]);
        let (time, bodies) = exchanged(reply, requests.into_iter()).unwrap();
        let held = VoteReply::Held { fence: 13, left: Duration::from_millis(250), holder: 77 };
        assert_eq!(time, 5);
        assert_eq!(
            bodies,
            [
                Ok(Body::Vote(VoteReply::Accepted)),
                Ok(Body::Vote(VoteReply::Voted { fence: 12 })),
                Err("OOM".to_owned()),
                Ok(Body::Vote(held)),
                Ok(Body::Hold(HoldReply::NotJoined)),
                Ok(Body::Hold(HoldReply::Free)),
            ]
        );
        for bad in [&[":5", "g"][..], &[":5", "ggg"], &[":5", "gx"], &[":5", "gv"], &[":5", "gg", "12"], &["5"]] {
            assert_eq!(exchanged(array(bad), [vote, vote].into_iter()), None, "{bad:?}");
        }
    }

    #[test]
    fn the_stored_formats_are_frozen() {
        let mut state = vec![1];
        state.extend([b'a'; 40]);
        state.extend([3, 2, 0, 0, 0xea, 0x60]);
        state.extend(7_u64.to_be_bytes());
        state.extend(9_u64.to_be_bytes());
        let read = server_state(&state).unwrap();
        assert_eq!((read.run.as_str(), read.servers, read.number), (&*"a".repeat(40), 3, 2));
        assert_eq!((read.longest_ttl, read.floor, read.high), (Duration::from_secs(60), 7, 9));
        state[0] = 2;
        assert_eq!((server_state(&state), server_state(&[1])), (None, None));
        let mut raw = b"\x01q\0\0".to_vec();
        [5_000_u64, 0, 0, 8, 6].iter().for_each(|number| raw.extend(number.to_be_bytes()));
        raw.extend([4; 16]);
        raw.extend(b"ann");
        let of =
            |raw: Vec<u8>| record(&Value::Array(vec![Value::BulkString(b"2000".to_vec()), Value::BulkString(raw)]));
        let read = of(raw).unwrap().unwrap().unwrap();
        assert_eq!((read.left, read.fence, read.token), (Duration::from_millis(3), 8, 6));
        assert_eq!((read.vote, &*read.holder), ([4; 16], "ann"));
        assert_eq!((of(Vec::new()), of(b"\x01x\0\0".to_vec())), (Some(Ok(None)), Some(Err(()))));
    }
}

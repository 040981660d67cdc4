//! What all connections of one client have in common.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::{Claim, CoreHandle, Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::calls::Terms;
use crate::keys::Keys;
use crate::scripts::Scripts;
use crate::server_clock::ServerClock;
use crate::settings::{self, Settings};

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) client: redis::Client,
    /// Where the server is, for errors and logs.
    pub(crate) address: String,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) core: OnceLock<CoreHandle>,
    pub(crate) epoch: Mutex<Epoch>,
    pub(crate) server_clock: ServerClock,
}

/// What this client knows of the server's runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epoch {
    /// The run on which it has held locks.
    pub(crate) run: String,
    /// The longest ttl that it has ever asked for.
    pub(crate) longest_ever: Duration,
    /// The longest ttl of its leases, and until when it may have one.
    longest: Noted,
    /// What others know of it, and when that was asked for.
    noted: Noted,
    asked: Option<Instant>,
}

/// A ttl, until a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    ttl: Duration,
    until: Option<Instant>,
}

impl Noted {
    fn covers(self, ttl: Duration, now: Instant) -> bool {
        ttl <= self.ttl && self.until.is_some_and(|until| now + ttl <= until)
    }
}

impl Epoch {
    /// Takes note of a call with this ttl. Whether others have to be told first.
    pub(crate) fn uses(&mut self, ttl: Duration, now: Instant) -> bool {
        self.longest_ever = self.longest_ever.max(ttl);
        if ttl >= self.longest.ttl || self.longest.until.is_none_or(|until| now >= until) {
            self.longest = Noted { ttl, until: Some(now + ttl) };
        }
        !ttl.is_zero() && !self.noted.covers(ttl, now)
    }

    /// The longest ttl of the leases that it may have.
    pub(crate) fn longest(&self) -> Duration {
        self.longest.ttl
    }

    /// Others were told of this ttl at this moment or later. What `epoch.lua` writes lasts for half a minute more: a call may
    /// be under way for some time. Each line asks on its own, so the answer to an older question may come later: it says nothing
    /// new.
    pub(crate) fn told(&mut self, ttl: Duration, at: Instant) {
        if self.asked.is_some_and(|newest| at < newest) {
            return;
        }
        self.asked = Some(at);
        self.noted = Noted { ttl, until: Some(at + ttl + Duration::from_secs(30)) };
    }
}

impl Shared {
    pub(crate) fn new(client: &redis::Client, settings: Settings) -> Result<Self> {
        Ok(Self {
            client: settings::prepare(client, settings.timeout)?,
            address: settings::address(client),
            keys: Keys::new(&settings.prefix, rand::random()),
            scripts: Scripts::new(),
            core: OnceLock::new(),
            epoch: Mutex::default(),
            server_clock: ServerClock::default(),
            settings,
        })
    }

    pub(crate) fn core(&self) -> Result<&CoreHandle> {
        self.core.get().ok_or_else(|| Error::new(ErrorKind::Unsupported, "the backend is not attached to a client yet"))
    }

    /// The first argument of every script, see `prelude.lua`.
    pub(crate) fn common(&self, grants: bool) -> Vec<u8> {
        self.packed(grants, 0, None, "")
    }

    /// The same with what acquires have in common.
    pub(crate) fn common_to_acquires(&self, number: usize, terms: Terms, any: &Claim) -> Vec<u8> {
        // A name that the key does not tell would be forgotten.
        let named = !self.keys.tells(any.name());
        self.packed(true, number, Some(terms), &any.holder().encode(named.then(|| any.name())))
    }

    /// The same with the ttl of most renewals.
    pub(crate) fn common_to_renewals(&self, grants: bool, ttl: Duration) -> Vec<u8> {
        self.packed(grants, 0, Some(Terms { ttl, place: false }), "")
    }

    fn packed(&self, grants: bool, acquires: usize, terms: Option<Terms>, holder: &str) -> Vec<u8> {
        // Only acquires need it, for the places that they may get.
        let channel = if acquires > 0 { self.keys.channel.as_bytes() } else { &[] };
        let terms = terms.unwrap_or(Terms { ttl: Duration::ZERO, place: false });
        let mut packed = Vec::with_capacity(17 + channel.len() + holder.len());
        packed.extend(u64::try_from(self.settings.retention.as_micros()).unwrap_or(u64::MAX).to_be_bytes());
        packed.extend(u16::try_from(acquires).unwrap_or(u16::MAX).to_be_bytes());
        packed.extend(millis(terms.ttl).to_be_bytes());
        packed.push(if grants { b'1' } else { b'0' });
        packed.push(if terms.place { b'q' } else { b'l' });
        packed.push(u8::try_from(channel.len()).unwrap_or(u8::MAX));
        packed.extend(channel);
        packed.extend(holder.as_bytes());
        packed
    }

    pub(crate) fn bound(&self) -> Duration {
        self.settings.timeout
    }
}

/// Locks, also after a panic: every critical section here leaves its data whole at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In whole milliseconds, rounded up. The longest ttl is a fiftieth of what fits.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// A ttl as the server keeps it.
pub(crate) fn as_kept(ttl: Duration) -> Duration {
    Duration::from_millis(millis(ttl).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_told_before_its_first_use_again_in_time_and_forgotten_when_its_leases_have_ended() {
        let (begin, mut epoch) = (Instant::now(), Epoch::default());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let ttl = Duration::from_secs;
        assert!(!epoch.uses(Duration::ZERO, begin) && epoch.longest().is_zero(), "a release needs nothing");
        assert!(epoch.uses(ttl(100), begin), "nobody knows it");
        epoch.told(epoch.longest(), begin);
        assert!(!epoch.uses(ttl(100), after(30)) && !epoch.uses(ttl(10), after(30)));
        assert_eq!(epoch.longest(), ttl(100), "a lease of it may still last");
        assert!(epoch.uses(ttl(101), after(30)), "longer than all before");
        assert!(epoch.uses(ttl(101), after(31)), "what was told would end before it");
        assert!(!epoch.uses(ttl(10), after(120)));
        assert!(epoch.uses(ttl(10), after(132)) && epoch.longest() == ttl(10), "no lease of the longer one is left");
        assert_eq!(epoch.longest_ever, ttl(101));
    }

    #[test]
    fn what_was_told_stays_told_when_an_older_question_is_answered_later() {
        let (begin, mut epoch) = (Instant::now(), Epoch::default());
        let after = |millis| begin + Duration::from_millis(millis);
        let ttl = Duration::from_secs(15);
        assert!(epoch.uses(ttl, begin));
        epoch.told(ttl, after(2));
        // Another line connected meanwhile, and asked when no ttl was in use yet.
        epoch.told(Duration::ZERO, after(1));
        assert!(!epoch.uses(ttl, after(3)), "it is known");
        epoch.told(Duration::ZERO, after(4));
        assert!(epoch.uses(ttl, after(5)), "a later answer may be another run's");
    }
}

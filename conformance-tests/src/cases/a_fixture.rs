//! The fixture itself: each method, held against an effect that can be seen. These cases stand first, by their place in the list
//! and by their name. A fixture whose method does nothing would let every case that relies on it pass; here it fails, and the
//! text begins with the method.

mod path;
mod server;
mod stored;

use std::time::Duration;

use leasehold_core::{ErrorKind, LockName};

pub use self::path::*;
pub use self::server::*;
pub use self::stored::*;
use crate::direct::Direct;
use crate::fixture::Fixture;
use crate::support::{BACK, becomes};

/// A ttl whose end plays no part.
fn long(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * 20
}

/// Sends one acquire of a new claim, which must not be answered; says with which error it ends.
async fn fails(client: &Direct, name: &LockName, ttl: Duration, what: &str) -> ErrorKind {
    match client.acquire(&client.claim(name), ttl).await {
        Err(error) => error.kind(),
        Ok(reply) => panic!("{what}: an acquire was answered with {reply:?}"),
    }
}

/// Sends acquires until one fails as it does where nothing can be sent. None of them may be answered.
async fn becomes_unavailable(client: &Direct, name: &LockName, ttl: Duration, what: &str) {
    let bound = BACK + client.capabilities().call_bound;
    let text = format!("{what}: an acquire fails with Unavailable");
    becomes(bound, &text, async || fails(client, name, ttl, what).await, |kind| *kind == ErrorKind::Unavailable).await;
}

/// Sends acquires until the server replies one, at most for the time in which a backend works again.
async fn gets_a_reply(client: &Direct, name: &LockName, ttl: Duration, what: &str) {
    gets_a_reply_within(Duration::ZERO, client, name, ttl, what).await;
}

/// The same where the backend may have to keep its grants back for so long.
async fn gets_a_reply_within(kept_back: Duration, client: &Direct, name: &LockName, ttl: Duration, what: &str) {
    let bound = BACK + client.capabilities().call_bound + kept_back;
    let text = format!("{what}: an acquire is answered again");
    let _ = becomes(bound, &text, async || client.acquire(&client.claim(name), ttl).await, Result::is_ok).await;
}

//! Cases that check the fixture itself, where no other case would notice that a method has no effect: a path that loses no pushes makes the
//! case about a lost push pass. They run first, by their place in the list and by their name. The message of a failure begins with the
//! name of the method.

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

/// A ttl that does not end during the case.
fn long(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * 20
}

/// Sends one acquire of a new claim, which must get no reply. Returns the kind of its error.
async fn fails(client: &Direct, name: &LockName, ttl: Duration, what: &str) -> ErrorKind {
    match client.acquire(&client.claim(name), ttl).await {
        Err(error) => error.kind(),
        Ok(reply) => panic!("{what}: an acquire got the reply {reply:?}"),
    }
}

/// Sends acquires until one fails with `Unavailable`. None of them may get a reply.
async fn becomes_unavailable(client: &Direct, name: &LockName, ttl: Duration, what: &str) {
    let bound = BACK + client.capabilities().call_bound;
    let text = format!("{what}: an acquire fails with Unavailable");
    becomes(bound, &text, async || fails(client, name, ttl, what).await, |kind| *kind == ErrorKind::Unavailable).await;
}

//! Cases that check the fixture itself, where no other case would notice that a method has no effect: a path that loses no pushes makes the
//! case about a lost push pass. They run first, by their place in the list and by their name. The message of a failure begins with the
//! name of the method.

mod path;
mod server;
mod stored;

use std::time::Duration;

pub use self::path::*;
pub use self::server::*;
pub use self::stored::*;
use crate::fixture::Fixture;

/// A ttl that does not end during the case.
fn long(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * 20
}

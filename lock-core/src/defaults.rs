//! The defaults, each with its reason.

use std::time::Duration;

/// How long a lease lasts unless it is renewed. A holder that died blocks the others for at most this long. A holder
/// that cannot reach the store has this long, minus the margin, until the lease is lost. 30 s outlasts a failover of
/// most stores, a long garbage collection elsewhere on the host and a rolling restart, and is short beside a nightly
/// job.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long acquire may take. Twice the default ttl: long enough to wait for the whole ttl of a holder that
/// has just died, and for a queue behind it. It is bounded, so that a program that waits in vain reports it.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// A lease is renewed this many times per ttl. With three, two renewals in a row may fail before the validity
/// ends, and a holder costs the store one small request per 10 s by default.
pub const RENEWALS_PER_TTL: u32 = 3;

/// The margin between the end of a holder's validity and the end of its lease at the store, in percent of the ttl. NTP
/// may slew a clock by 8.3 % while it corrects a large error (chrony's default); 10 % covers that.
pub const DEFAULT_MARGIN_PERCENT: u8 = 10;

/// The least margin. The timers of an ordinary machine are not more exact than this.
pub(crate) const LEAST_MARGIN: Duration = Duration::from_millis(1);

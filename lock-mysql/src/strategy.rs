//! Which strategy the clients of a database use. Leases of one strategy do not exclude those of the other, so the first
//! claim writes its strategy into the row with the empty name, as the format of that row, and clients of the other
//! strategy are refused.

use leasehold_core::{Error, ErrorKind};
use tokio::time::Instant;

use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::settings::Strategy;
use crate::sql::get;

/// The format of the row in a database of [`Strategy::Row`].
macro_rules! row {
    () => {
        "1r"
    };
}

/// The same for [`Strategy::ForUpdate`].
macro_rules! for_update {
    () => {
        "1u"
    };
}

pub(crate) use {for_update, row};

const READ: &str = "SELECT format FROM leasehold_locks WHERE name = ''";

/// Writes the row of [`Strategy::ForUpdate`], if there is none.
pub(crate) const MARK_FOR_UPDATE: &str = concat!(
    "INSERT INTO leasehold_locks (name, format, owner, fence, expires_at, withdrawn, withdrawn_until, holder) ",
    "VALUES ('', '",
    for_update!(),
    "', '', 0, '1970-01-02', '', UTC_TIMESTAMP(6), '') ON DUPLICATE KEY UPDATE name = name"
);

const IS_FOR_UPDATE: &str = "\
the clients of this database use `strategy=for-update`, and their leases and those of `strategy=row` do not exclude \
each other: add `strategy=for-update` to the URL, or use another database. To switch, stop all clients and run \
DELETE FROM leasehold_locks WHERE name = ''";

const IS_ROW: &str = "\
the clients of this database use `strategy=row`, the default, and their leases and those of `strategy=for-update` do \
not exclude each other: take `strategy=for-update` out of the URL, or use another database. To switch, stop all \
clients and run DELETE FROM leasehold_locks WHERE name = ''";

/// Refuses clients of this strategy if the format of the row is that of another one.
pub(crate) fn refuse_other(own: Strategy, format: &[u8]) -> Result<(), Failure> {
    let (known, other, text) = match own {
        Strategy::Row => (row!(), for_update!(), IS_FOR_UPDATE),
        Strategy::ForUpdate => (for_update!(), row!(), IS_ROW),
    };
    match format {
        format if format == known.as_bytes() => Ok(()),
        format if format == other.as_bytes() => Err(Failure::Refused(Error::new(ErrorKind::Unsupported, text))),
        _ => Err(Failure::other_format()),
    }
}

/// Takes a connection to show or end leases. A client of the other strategy is refused: it would see all locks as free.
pub(crate) async fn checkout(pool: &Pool, until: Instant) -> Result<Checkout<'_>, Failure> {
    let mut connection = pool.checkout(until).await?;
    check(&mut connection, until).await?;
    Ok(connection)
}

/// Reads the row, and refuses a client of the other strategy.
pub(crate) async fn check(connection: &mut Checkout<'_>, until: Instant) -> Result<(), Failure> {
    let rows = connection.fetch_text(READ.to_owned(), until).await?;
    match rows.first() {
        Some(row) => refuse_other(connection.shared().settings.strategy, &get::<Vec<u8>>(row, 0)?),
        None => Ok(()),
    }
}

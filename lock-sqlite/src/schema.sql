-- The locks of Leasehold in a SQLite file, one row each. A row outlives its lease to keep the fencing token.
--
-- Promises: a lease ends only by the clock of the boot that it names. `fence` only grows. A row whose `format` is not
-- '1x' is left unchanged. Leasehold does not touch anything else in this file.
--
-- name      the name of the lock as UTF-8 bytes: a BLOB, so that no collation merges two names
-- format    version and kind of the row: '1x' is version 1, exclusive
-- owner     the owner token of the lease's claim, 16 bytes; empty after a release
-- fence     the last fencing token
-- until     when the lease ends, or when a release ended it: µs of the clock since boot, including suspend
-- boot      the boot that `until` counts from: see boot_clock.rs
-- ttl       the requested ttl in µs; a lease that is found after a reboot gets it once more
-- wanted    until when somebody is known to wait, on the same clock; 0 if nobody has waited since the last grant
-- holder    holder information, for people
CREATE TABLE IF NOT EXISTS leasehold_locks (
    name   BLOB PRIMARY KEY NOT NULL,
    format TEXT NOT NULL,
    owner  BLOB NOT NULL,
    fence  INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    boot   INTEGER NOT NULL,
    ttl    INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    holder TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The version of this schema. Another version is an error, never a grant.
CREATE TABLE IF NOT EXISTS leasehold_format (
    version INTEGER PRIMARY KEY NOT NULL
) STRICT;

INSERT INTO leasehold_format (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM leasehold_format);

-- The locks of Leasehold in a SQLite file, one row each. A row outlives its lease to keep the fencing token.
--
-- Promises: a lease ends by the clock of the boot that it names and by no other; `fence` only grows; a row whose `format` is not
-- '1x' is left as it is. Everything else that this file keeps is not ours and is not touched.
--
-- name      the lock, its UTF-8 bytes as they are: a BLOB, so that no collation merges two names
-- format    version and kind of this row: '1x' is version 1, exclusive
-- owner     the owner token of the lease's claim, 16 bytes; empty after a release
-- fence     the last fencing token
-- until     when the lease ends, or ended by a release: µs of the machine's clock since boot, suspend included
-- boot      the boot that `until` counts from: see boot_clock.rs
-- ttl       what the lease was asked for, in µs: what it is given once more when it is found after a reboot
-- wanted    until when somebody is known to wait, on the same clock; 0 when nobody was since the last grant
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

-- The version of this schema; another one is an error, never a grant.
CREATE TABLE IF NOT EXISTS leasehold_format (
    version INTEGER PRIMARY KEY NOT NULL
) STRICT;

INSERT INTO leasehold_format (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM leasehold_format);

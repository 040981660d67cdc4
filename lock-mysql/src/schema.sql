-- The tables of Leasehold, format 1. Leasehold creates them only on request: `leasehold schema mysql` prints this file,
-- and `MySqlBackend::create_schema` runs it.
--
-- One row for each lock. Times are UTC. A row stays when its lock is free, because it keeps the fencing token.
--
-- The row with an empty name is no lock. Its format is that of the strategy that the clients of the database use: '1r',
-- or '1u' for `for-update`, which uses nothing else of this table. With '1r', it names the server that its clients use
-- and the ttls in use, for the quarantine after a failover. Its `withdrawn` is the server that a client saw last, its
-- `withdrawn_until` since when clients see it, and its `holder` the epoch key: '1', the run that its clients use, and
-- '<ttl in ms>:<end of use in ms of the server's clock>' for each ttl.
--
-- name             the name of the lock: bytes, so that no collation merges two names
-- format           the version and kind of the row
-- owner            the owner token of the claim that holds the lock or held it last; 16 zero bytes after a withdrawal
--                  or a break
-- fence            the last fencing token: at least the server's time in µs since the Unix epoch at its grant
-- expires_at       when the lease ends, unless it is renewed
-- withdrawn        the owner tokens of claims that were withdrawn, 16 bytes each, the newest last
-- withdrawn_until  until when these claims are remembered
-- holder           who holds the lock or held it last, for people

CREATE TABLE IF NOT EXISTS leasehold_locks (
  name             VARBINARY(1024)  NOT NULL PRIMARY KEY,
  format           BINARY(2)        NOT NULL,
  owner            BINARY(16)       NOT NULL,
  fence            BIGINT UNSIGNED  NOT NULL,
  expires_at       DATETIME(6)      NOT NULL,
  withdrawn        VARBINARY(4080)  NOT NULL,
  withdrawn_until  DATETIME(6)      NOT NULL,
  holder           VARBINARY(2048)  NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The strategy `for-update`: a claim holds a lock while its transaction has locked the row of the lock in the first
-- table. The second table keeps the fencing tokens, because a transaction that is rolled back would take its token
-- back.
--
-- name     the name of the lock
-- format   the version and kind of the row
-- fence    the last fencing token: at least the server's time in µs since the Unix epoch at its grant
-- ttl      the ttl of the last lease in seconds: after a restart of the server, the next grant waits until the server
--          has run for so long
-- started  when the server that granted the last lease was started, in seconds since the Unix epoch
-- holder   who was granted the lock last, for people

CREATE TABLE IF NOT EXISTS leasehold_for_update (
  name  VARBINARY(1024)  NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS leasehold_fences (
  name     VARBINARY(1024)  NOT NULL PRIMARY KEY,
  format   BINARY(2)        NOT NULL,
  fence    BIGINT UNSIGNED  NOT NULL,
  ttl      INT UNSIGNED     NOT NULL,
  started  BIGINT UNSIGNED  NOT NULL,
  holder   VARBINARY(2048)  NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

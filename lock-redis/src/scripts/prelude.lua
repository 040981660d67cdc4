-- Starts every script of this folder except epoch.lua. Defines the stored format.
--
-- RECORD   KEYS[i], one string per lock, big endian:
--            version u8 (1) | kind u8 ('x', exclusive) | flags u16 | deadline u64 | kept u64 |
--            with any flag: places u64 | place u64 | tombstones u64 |
--            fence u64 | owner 16 bytes | holder information, at most 512 bytes, for people; includes the lock's name
--            if the key has only its digest
--          flags       4: the three numbers follow; 1: the queue may have places; 2: the lease came from a place
--          deadline    when the lease ends, µs of the server's clock; 0 after a release
--          fence       the last fencing token
--          kept        when the server drops the record; later than necessary, so that most writes need not change it
--          places      the last place number that was assigned
--          place       the place number of the lease
--          tombstones  until when withdrawn owners may have a tombstone
--          Without flags, `places` and `place` equal the fence: a lease that never waited has its token as its place
--          number. So the numbers rise even after a record was lost. In a queue they count by one, so that a script can
--          scan it.
-- QUEUE    KEYS[i] .. ':q', a hash that exists only under contention:
--            'h'            the lowest number that may be in use
--            <number>       owner 16 bytes | deadline u64 | length of channel u8 | channel | holder information
--            'o' .. owner   number
--            's' .. first   last    } the numbers of adjacent abandoned places, as one gap. A reader that does not
--            'e' .. last    first   } know gaps scans the numbers one by one
-- TOMBSTONE  KEYS[i] .. ':t:' .. owner: this owner was withdrawn, and a late request of it must not take effect
--
-- The keys of a lock derive from KEYS[i] and share its hash tag, and therefore its slot. In a cluster, a call for one
-- lock declares them behind the record, in any order. While the slot is moved to another node, both nodes refuse a call
-- that declares a key which they do not have, also if it does not exist. Such a call is repeated with fewer keys, and
-- must use no other ones: a key that seems to be missing may be at the other node. If the script needs one of those,
-- nothing has changed, and the reply for the lock is {5, keys, 0}, with all keys that it needs beside the record.
--
-- ARGV[1] of every script: retention u64 µs | number of acquires u16 | ttl u32 ms | '1' if new grants are allowed, '0'
-- in quarantine | 'q' if acquires queue, 'l' if not | the keys that may be used beside the record: 'a' for all of them,
-- or a digit, 1 for the queue + 2 for the tombstone of the request's owner | length of channel u8 | the client's
-- channel | holder information of the acquires. The header of each script has the other arguments. Values per lock
-- share one argument, because an argument costs as much as reading a record. An error of one lock appears only in the
-- reply for that lock.
--
-- The main chunk of a script handles only the ordinary record, which has no flags; 24641536 is its first four bytes.
-- Everything else is in library.lua, which a script creates on first use, because creating the functions and their
-- shared variables costs more than the whole ordinary case. For the same reason, the reply for a single lock has no
-- table around it. Numbers for the server are passed as strings, because the conversion costs a sixth of a write.

local call = redis.pcall
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local raws, seen, replies, codes, lib
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local retention, acquires, ttl, grants, on_contention, usable, to_holder, at_channel = unpack('>I8I2I4c1c1c1B', ARGV[1])
-- How many of KEYS are records.
local locks = usable == 'a' and #KEYS or 1

-- Put before every script of this folder but epoch.lua when it is loaded. It says what is stored.
--
-- RECORD   KEYS[i], one string per lock, big endian:
--            version u8 (1) | kind u8 ('x', exclusive) | flags u16 | deadline u64 | kept u64 |
--            with any flag: places u64 | place u64 | tombstones u64 |
--            fence u64 | owner 16 bytes | holder information, at most 512 bytes, for people, with the lock's name where the key has
--            only its digest
--          flags       4: the three numbers follow; 1: and there may be places in the queue; 2: and the lease came from a place
--          deadline    when the lease ends, µs of the server's clock; 0 after a release
--          fence       the last fencing token
--          kept        when the server drops the record; further ahead than is needed, so that most writes can leave it alone
--          places      the last place number that was given out
--          place       the number of the lease
--          tombstones  until when withdrawn owners may have a tombstone
--          Without flags places and place are the fence: a lease that never waited has its token for a number. So numbers rise even
--          when a record was lost, and in a queue they count by one, so that it can be walked.
-- QUEUE    KEYS[i] .. ':q', a hash that exists only under contention:
--            'h'            the lowest number that may be taken
--            <number>       owner 16 bytes | deadline u64 | length of channel u8 | channel | holder information
--            'o' .. owner   number
--            's' .. first   last    } numbers between two places that were given up, each row of them as one gap. A reader who does not
--            'e' .. last    first   } know gaps walks the numbers one by one
-- GRAVE    KEYS[i] .. ':t:' .. owner: this owner was withdrawn, a late request of it must not apply
--
-- All keys of a lock are made from KEYS[i] and share its hash tag, hence its slot.
--
-- ARGV[1] of every script: retention u64 µs | how many acquires u16 | ttl u32 ms | '1' when new grants are allowed, '0' in quarantine |
-- 'q' when acquires want a place, 'l' when not | length of channel u8 | the client's channel | holder information of the acquires.
-- Then what the script's own header says; what it says of each lock is one argument for all, since an argument costs as much as reading
-- a record. What is wrong with one lock is answered for that one.
--
-- The main chunk of a script works on the ordinary record alone, the one without flags (24641536 is its first four bytes), and leaves
-- everything else to library.lua, which stands where it is needed and is made only then: functions, and the variables that they share,
-- cost more than the whole of the ordinary way. A call about one lock answers without a table around it, for the same reason. Numbers
-- that are passed to the server are strings: turning one into the other costs a sixth of a write.

local call = redis.pcall
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local raws, seen, answers, letters, lib
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local retention, acquires, ttl, grants, wish, to_holder, at_channel = unpack('>I8I2I4c1c1B', ARGV[1])

-- Put before every script of this folder when it is loaded. It keeps the format of what is stored.
--
-- RECORD   KEYS[i], one string per lock, big endian:
--            version u8 (1) | kind char ('x', exclusive) | flags u8 | deadline u64 | fence u64 | places u64 | place u64 |
--            tombstones u64 | owner 16 bytes | holder information, at most 512 bytes, for people
--          flags       1: there may be places in the queue; 2: the lease came from a place
--          deadline    when the lease ends, µs of the server's clock; 0 after a release
--          fence       the last fencing token
--          places      the last place number that was given out. It starts at TIME when the record is born, so that
--                      numbers rise even when the record was lost in between; from there it counts by one, so that
--                      the queue can be walked
--          place       the number of the lease
--          tombstones  until when withdrawn owners may have a tombstone
-- QUEUE    KEYS[i] .. ':q', a hash that exists only under contention:
--            'h'            the lowest number that may be taken
--            <number>       owner 16 bytes | deadline u64 | length of channel u8 | channel | holder information
--            'o' .. owner   number
-- GRAVE    KEYS[i] .. ':t:' .. owner: this owner was withdrawn, a late request of it must not apply
--
-- All keys of a lock are made from KEYS[i] and share its hash tag, hence its slot.
--
-- ARGV of every script: 1 channel of the client, 2 retention in µs, 3 '1' when new grants are allowed ('0' in quarantine).
-- Each claim is worked on under pcall: what is wrong with one lock is answered for that one.
-- A number in an answer is an answer, a string is an error.

local HEADER, HEADER_SIZE, ENTRY = '>Bc1BI8I8I8I8I8c16', 59, '>c16I8Bc0'
local NOBODY = string.rep('\0', 16)
-- The longest ttl of a place, in µs.
local PLACE_TTL = 10000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local channel, retention, grants = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local flags, deadline, fence, places, place, tombstones, owner, holder

-- Reads the record. A record that is not there reads as a lock that nobody ever held.
local function read(key)
  local raw = redis.call('GET', key)
  if not raw then
    flags, deadline, fence, places, place, tombstones, owner, holder = 0, 0, 0, now, 0, 0, NOBODY, ''
    return false
  end
  local version, kind = string.byte(raw, 1, 2)
  if version ~= 1 or kind ~= 120 or #raw < HEADER_SIZE then
    error('UNKNOWNFORMAT version ' .. tostring(version) .. ' kind ' .. tostring(kind), 0)
  end
  local at
  version, kind, flags, deadline, fence, places, place, tombstones, owner, at = struct.unpack(HEADER, raw)
  holder = string.sub(raw, at)
  return true
end

-- Writes the record. It lives `retention` beyond lease, token and now, so that neither a step of the clock nor a holder that
-- is late makes the tokens begin anew, and never less than a place, so that the queue is not forgotten.
local function write(key)
  local keep = math.max(deadline, fence, now) + ((flags % 2 == 1) and math.max(retention, PLACE_TTL) or retention)
  local raw = struct.pack(HEADER, 1, 'x', flags, deadline, fence, places, place, tombstones, owner) .. holder
  redis.call('SET', key, raw, 'PXAT', string.format('%d', math.max(keep, tombstones) / 1000 + 1))
end

-- Makes room for a write that ends or keeps what is already there: a full server refuses SET, unless the script has written
-- before, and PERSIST is not refused. Without it a full server would end every lease and keep every release.
local function write_though_full(key)
  local done, why = pcall(write, key)
  if not done then
    if not string.find(type(why) == 'table' and why.err or why, 'OOM', 1, true) then error(why, 0) end
    redis.call('PERSIST', key)
    write(key)
  end
end

local function take(who, number, till, info, came_from_place)
  fence = math.max(fence + 1, now)
  owner, place, deadline, holder = who, number, till, info
  flags = (flags % 2) + (came_from_place and 2 or 0)
end

-- Forgets the queue.
local function forget_queue(key)
  redis.call('DEL', key .. ':q')
  flags = flags - flags % 2
end

-- Gives a free lock to the oldest live place and tells its client. The place keeps its number and its own deadline, so that
-- dead waiters together cost at most one place ttl. Dead places are dropped on the way.
-- True when the record has changed and was not yet written.
local function settle(key)
  if flags % 2 == 0 or deadline > now or not grants then return false end
  local queue = key .. ':q'
  local number = tonumber(redis.call('HGET', queue, 'h') or places + 1)
  while number <= places do
    local field = string.format('%d', number)
    local entry = redis.call('HGET', queue, field)
    if entry then
      local who, till, to, at = struct.unpack(ENTRY, entry)
      if till > now then
        take(who, number, till, string.sub(entry, at), true)
        if number == places then
          forget_queue(key)
        else
          redis.call('HDEL', queue, field, 'o' .. who)
          redis.call('HSET', queue, 'h', string.format('%d', number + 1))
        end
        write(key)
        -- Only a hint: whoever misses it looks by himself. So it must not undo the grant when it is refused.
        redis.pcall('PUBLISH', to, struct.pack('>c16I8I8', who, number, fence))
        return false
      end
      redis.call('HDEL', queue, field, 'o' .. who)
    end
    number = number + 1
  end
  forget_queue(key)
  return true
end

-- The place of an owner: number, deadline and the rest of the entry. Nil when it has none that lives; a dead one is dropped, so
-- that its owner may start a new one at the end.
local function find_place(key, who)
  if flags % 2 == 0 then return end
  local number = redis.call('HGET', key .. ':q', 'o' .. who)
  local entry = number and redis.call('HGET', key .. ':q', number)
  if not entry then return end
  local _, till = struct.unpack('>c16I8', entry)
  if till > now then return number, till, string.sub(entry, 25) end
  redis.call('HDEL', key .. ':q', number, 'o' .. who)
end

local function put_place(key, who, number, till, rest)
  local queue = key .. ':q'
  redis.call('HSET', queue, number, struct.pack('>c16I8', who, till) .. rest)
  redis.call('PEXPIRE', queue, PLACE_TTL / 1000)
end

-- How long the holder's lease still lasts, in ms.
local function left()
  return math.max(math.ceil((deadline - now) / 1000), 0)
end

local function text_of(why)
  return type(why) == 'table' and why.err or tostring(why)
end

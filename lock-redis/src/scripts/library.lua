-- Everything except the ordinary record: the queue, tombstones and extended records. Included where a script says
-- `--@ library.lua`.

local call, sub, format, max = redis.call, string.sub, string.format, math.max
local ORDINARY, EXTENDED = 24641536, 4
-- The longest ttl of a place, in µs.
local PLACE_TTL = 10000000
local lib = {}

-- The record, or nil.
function lib.read(key)
  local raw = call('GET', key)
  if not raw then return end
  local it, at = {key = key, queue = key .. ':q', places = 0, place = 0, tombstones = 0}, nil
  local head = #raw >= 44 and unpack('>I4', raw) or 0
  if head == ORDINARY then
    head, it.deadline, it.kept, it.fence, it.owner, at = unpack('>I4I8I8I8c16', raw)
    it.places, it.place = it.fence, it.fence
  elseif head >= ORDINARY + EXTENDED and head < ORDINARY + 2 * EXTENDED and #raw >= 68 then
    head, it.deadline, it.kept, it.places, it.place, it.tombstones, it.fence, it.owner, at =
      unpack('>I4I8I8I8I8I8I8c16', raw)
  else
    local version, kind = string.byte(raw, 1, 2)
    error('UNKNOWNFORMAT version ' .. tostring(version) .. ' kind ' .. tostring(kind), 0)
  end
  it.queued, it.came_from_place, it.holder = head % 2 == 1, head % 4 > 1, sub(raw, at)
  return it
end

-- A record for a lock that nobody has held.
function lib.new(key)
  return {key = key, queue = key .. ':q', holder = '', deadline = 0, fence = 0, kept = 0, places = 0, place = 0,
    tombstones = 0, owner = string.rep('\0', 16), queued = false, came_from_place = false}
end

-- How long the server has to keep the record: `retention` after the lease, the token and now. Then neither a clock step
-- nor a late holder makes the tokens start over. A record with a queue is kept at least as long as a place.
local function needed(it)
  local stay = it.queued and max(retention, PLACE_TTL) or retention
  return max(max(it.deadline, it.fence, now) + stay, it.tombstones)
end

-- Writes the record; with `even_if_full`, also on a full server. A full server refuses SET unless the script has
-- written before. It does not refuse PEXPIREAT. Without this, a full server would end every lease, and nobody could
-- release one.
function lib.write(it, even_if_full)
  local need = needed(it)
  local late = it.kept < need
  if late then it.kept = need + retention end
  local raw
  if it.queued or it.came_from_place or it.places ~= it.fence or it.place ~= it.fence or it.tombstones > now then
    local flags = EXTENDED + (it.queued and 1 or 0) + (it.came_from_place and 2 or 0)
    raw = pack('>I4I8I8I8I8I8I8c16', ORDINARY + flags, it.deadline, it.kept, it.places, it.place, it.tombstones,
      it.fence, it.owner)
  else
    raw = pack('>I4I8I8I8c16', ORDINARY, it.deadline, it.kept, it.fence, it.owner)
  end
  raw = raw .. it.holder
  local till = format('%d', it.kept / 1000 + 1)
  local done = late and redis.pcall('SET', it.key, raw, 'PXAT', till) or redis.pcall('SET', it.key, raw, 'KEEPTTL')
  if done.err and even_if_full and string.find(done.err, 'OOM', 1, true) then
    call('PEXPIREAT', it.key, till)
    done = redis.pcall('SET', it.key, raw, 'PXAT', till)
  end
  if done.err then error(done.err, 0) end
end

-- Called before each use of the queue or of a tombstone, and before anything is written. Ends the work on this lock if
-- the request may not use it (prelude.lua).
function lib.need(queue, tombstone)
  if usable == 'a' then return end
  local has_queue, has_tombstone = usable % 2 == 1, usable > '1'
  if queue and not has_queue or tombstone and not has_tombstone then
    error({keys = ((queue or has_queue) and 1 or 0) + ((tombstone or has_tombstone) and 2 or 0)}, 0)
  end
end

-- Whether this owner has a tombstone.
function lib.is_withdrawn(it, owner)
  if it.tombstones <= now then return false end
  lib.need(false, true)
  return call('EXISTS', it.key .. ':t:' .. owner) == 1
end

function lib.delete_queue(it)
  if not it.queued then return end
  call('DEL', it.queue)
  it.queued = false
end

-- Hands a free lock to the oldest live place and notifies its client. The place keeps its number and its own deadline,
-- so all dead waiters together delay the lock by at most one place ttl. Removes dead places on the way. Returns true if
-- the record has changed and is not written yet.
function lib.settle(it)
  if not it.queued or it.deadline > now or grants ~= '1' then return false end
  lib.need(true, false)
  -- Without 'h' the queue has expired or was deleted, and has no places.
  local number = tonumber(call('HGET', it.queue, 'h') or it.places + 1)
  while number <= it.places do
    local field = format('%d', number)
    local entry = call('HGET', it.queue, field)
    if entry then
      local owner, till, channel, at = unpack('>c16I8Bc0', entry)
      if till > now then
        it.fence, it.owner, it.place, it.deadline, it.holder =
          max(it.fence + 1, now), owner, number, till, sub(entry, at)
        it.came_from_place = true
        if number == it.places then
          lib.delete_queue(it)
        else
          call('HDEL', it.queue, field, 'o' .. owner)
          call('HSET', it.queue, 'h', format('%d', number + 1))
        end
        lib.write(it, true)
        -- Only a hint: a client that misses it finds the grant when it renews. If it is refused, the grant must stay.
        redis.pcall('PUBLISH', channel, pack('>c16I8I8', owner, number, it.fence))
        return false
      end
      call('HDEL', it.queue, field, 'o' .. owner)
      number = number + 1
    else
      -- A gap of abandoned places: one step passes all of them.
      local last = call('HGET', it.queue, 's' .. field)
      if last then call('HDEL', it.queue, 's' .. field, 'e' .. last) end
      number = (tonumber(last) or number) + 1
    end
  end
  lib.delete_queue(it)
  return true
end

-- Notifies the client of the oldest place that the holder's lease ends earlier than it knows. Sends only the owner.
-- Only a hint.
function lib.notify_head(it)
  local entry = it.queued and call('HGET', it.queue, call('HGET', it.queue, 'h') or '')
  if not entry then return end
  local owner, _, channel = unpack('>c16I8Bc0', entry)
  redis.pcall('PUBLISH', channel, owner)
end

-- Removes a place. At the head, this advances the head. Behind the head, the place becomes a gap and merges with
-- adjacent gaps, so a handoff never scans abandoned places. Removing the last place deletes the queue.
function lib.drop_place(it, number, owner)
  local head, first, last = tonumber(call('HGET', it.queue, 'h')), tonumber(number), tonumber(number)
  call('HDEL', it.queue, number, 'o' .. owner)
  local before = call('HGET', it.queue, 'e' .. format('%d', first - 1))
  if before then
    call('HDEL', it.queue, 's' .. before, 'e' .. format('%d', first - 1))
    first = tonumber(before)
  end
  local behind = call('HGET', it.queue, 's' .. format('%d', last + 1))
  if behind then
    call('HDEL', it.queue, 's' .. format('%d', last + 1), 'e' .. behind)
    last = tonumber(behind)
  end
  if head and first > head then
    local from, to = format('%d', first), format('%d', last)
    call('HSET', it.queue, 's' .. from, to, 'e' .. to, from)
  elseif last < it.places then
    call('HSET', it.queue, 'h', format('%d', last + 1))
  else
    lib.delete_queue(it)
  end
end

-- Finds the place of an owner: its number, its deadline and the rest of the entry. Returns nil if there is no live one.
-- Removes a dead one, so that the owner can get a new place at the end.
function lib.find_place(it, owner)
  if not it.queued then return end
  lib.need(true, false)
  local number = call('HGET', it.queue, 'o' .. owner)
  local entry = number and call('HGET', it.queue, number)
  if not entry then return end
  local _, till = unpack('>c16I8', entry)
  if till > now then return number, till, sub(entry, 25) end
  lib.drop_place(it, number, owner)
end

-- Writes a place that lasts for ttl, limited to the longest ttl of a place. `till` is its deadline so far.
function lib.put_place(it, owner, number, till, ttl, rest)
  local deadline = max(till, now + math.min(ttl, PLACE_TTL))
  call('HSET', it.queue, number, pack('>c16I8', owner, deadline) .. rest, 'o' .. owner, number)
  -- The places in a queue that is not written for this long are all dead.
  call('PEXPIRE', it.queue, '10000')
end

-- Gives an owner a new place at the end of the queue.
function lib.new_place(it, owner, ttl)
  lib.need(true, false)
  local number = format('%d', it.places + 1)
  -- A queue without the flag belongs to an earlier record that is gone.
  if not it.queued then call('DEL', it.queue) end
  call('HSETNX', it.queue, 'h', number)
  -- From the length of the channel on, the entry is a copy of the argument.
  lib.put_place(it, owner, number, 0, ttl, sub(ARGV[1], at_channel - 1))
  it.queued, it.places = true, it.places + 1
  lib.write(it)
end

-- Removes the place of an owner. Returns true if it had one.
function lib.leave_queue(it, owner)
  local number = lib.find_place(it, owner)
  if not number then return false end
  lib.drop_place(it, number, owner)
  return true
end

-- How long the holder's lease still lasts, in ms.
function lib.left(it)
  return it.deadline > now and math.ceil((it.deadline - now) / 1000) or 0
end

function lib.error_text(why)
  return type(why) == 'table' and why.err or tostring(why)
end

-- The reply for a lock whose work has ended with an error.
function lib.failed(why)
  if type(why) == 'table' and why.keys then return {5, why.keys, 0} end
  return lib.error_text(why)
end

return lib

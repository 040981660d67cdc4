-- Ends each of several leases or places, and hands each lock that becomes free to the oldest live place. Follows
-- acquire.lua.
--
-- KEYS[i]      the record of a lock, after those of the acquires
-- ARGV[2]      owner 16 bytes, per lock
-- ARGV[3]      for each withdrawn owner: its number u16, from 1 | ttl of the tombstone, u32 ms. Omitted if there is
--              none
-- replies      for one lock: an entry of the list. For several, they follow those of the acquires, with these status
--              codes:
--                r                            1
--                f                            0
--                .                            the value is an entry of the list
--              The list:
--                1        the lease or place belonged to this owner and has ended
--                0        this owner had neither
--                {5, keys, 0}  see prelude.lua
--                error    this lock is unchanged, except that a free lock may have gone to its queue
-- promises     The token stays in the record. Leases and places of other owners are not affected. No request of a
--              withdrawn owner that is still in flight takes effect during the ttl of the tombstone.

local withdrawn
if ARGV[3] then
  withdrawn = {}
  for at = 1, #ARGV[3], 6 do
    local i, ms = unpack('>I2I4', ARGV[3], at)
    withdrawn[i] = ms
  end
end
for i = acquires + 1, locks do
  local key, owner, reply = KEYS[i], sub(owners, 16 * i - 15, 16 * i), nil
  local raw
  if raws and not seen[key] then
    raw, seen[key] = raws[i], true
  end
  if raw == nil then raw = call('GET', key) end
  -- The ordinary case. Without flags, the owner is at byte 29. For a key of another type GET returns an error, which is
  -- a table: the library reports it.
  if type(raw) == 'string' and not withdrawn and string.find(raw, owner, 29, true) == 29 then
    local head, deadline = unpack('>I4I8', raw)
    if head == 24641536 and deadline > now then
      -- The server keeps the record until `retention` after the lease, and so also after this earlier end.
      -- A server that is full, or a user without the permission, refuses SETRANGE. The library has another way.
      if call('SETRANGE', key, '4', '\0\0\0\0\0\0\0\0') == #raw then reply = 1 end
    end
  end
  if not reply then
    lib = lib or (function()
      --@ library.lua
    end)()
    local ok
    ok, reply = pcall(function()
      local it, ms = lib.read(key), withdrawn and withdrawn[i]
      -- Before the first write.
      lib.need(it and it.queued, ms)
      if ms then
        it = it or lib.new(key)
        -- The record comes first, because it makes acquire check for the tombstone.
        it.tombstones = math.max(it.tombstones, now + ms * 1000)
        lib.write(it, true)
        redis.call('SET', key .. ':t:' .. owner, '', 'PX', string.format('%d', ms))
      end
      if not it then return 0 end
      local ended, changed = 0, false
      if it.owner == owner and it.deadline > now then
        ended, changed, it.deadline = 1, true, 0
      elseif lib.leave_queue(it, owner) then
        ended, changed = 1, not it.queued
      end
      local fence = it.fence
      changed = lib.settle(it) or (changed and it.fence == fence)
      if changed then lib.write(it, true) end
      return ended
    end)
    if not ok then reply = lib.failed(reply) end
  end
  if locks == 1 then return reply end
  if reply == 1 then
    codes[i] = 'r'
  elseif reply == 0 then
    codes[i] = 'f'
  else
    codes[i], replies[#replies + 1] = '.', reply
  end
end
replies[2] = table.concat(codes)
return replies

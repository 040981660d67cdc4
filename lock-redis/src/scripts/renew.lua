-- Renews each of several leases and places.
--
-- KEYS[i]      the record of a lock
-- ARGV[2]      per lock: place u64, as far as it is known | owner 16 bytes. One argument, because an argument costs as
--              much as an ordinary renewal without its write
-- ARGV[3]      for each lock with another ttl than in ARGV[1], or with a renewal that may shorten: its number u16, from
--              1 | ttl u32 ms | 'm' (at least) or 'e' (exactly)
-- ARGV[4]      only if the server may have lost leases: see put_back.lua
-- replies      TIME in µs, a string with a status code per lock, then the values of the codes that have some, in order:
--                r        the lease was renewed
--                p        the server had lost the lease, which is back with its token and its place
--                g        the lease was renewed, and came from a place or has another number: place, fencing token
--                w        the place was renewed: place, ms that the holder's lease lasts
--                l        this owner has neither
--                e        error: the message
--              or {5, keys, 0}: see prelude.lua
-- promises     Nothing is created, except that a lease of an earlier run is put back. A lease that has ended stays
--              ended, even if nobody else holds the lock.

local common_deadline, sub, find = now + ttl * 1000, string.sub, string.find
local packed, requests, exceptions = pack('>I8', common_deadline), ARGV[2], {}
for at = 1, #ARGV[3], 7 do
  local i, wanted, extend = unpack('>I2I4c1', ARGV[3], at)
  exceptions[i] = {wanted, extend}
end
local put_back = ARGV[4] and (function()
  --@ put_back.lua
end)()
replies, codes = {now, ''}, {}
for i = 1, locks do
  local key, request, code = KEYS[i], sub(requests, 24 * i - 23, 24 * i), nil
  local raw
  -- The ordinary case below may write a record twice, but always the same bytes.
  if raws and not seen[key] then raw = raws[i] end
  if raw == nil then raw = call('GET', key) end
  -- The ordinary case: the client knows the place, and the record lives long enough. Place and owner are at byte 21.
  -- For a key of another type, `raw` is an error, which is a table.
  if type(raw) == 'string' and not exceptions[i] and find(raw, request, 21, true) == 21 then
    local head, deadline, kept, fence = unpack('>I4I8I8I8', raw)
    if head == 24641536 and deadline > now
        and kept >= (fence > common_deadline and fence or common_deadline) + retention then
      code = 'r'
      -- Only eight bytes change.
      if common_deadline > deadline and call('SETRANGE', key, '4', packed) ~= #raw then code = nil end
    end
  end
  if not code then
    lib = lib or (function()
      --@ library.lua
    end)()
    if raws then seen[key] = true end
    local ok, number, value
    ok, code, number, value = pcall(function()
      local known, owner = unpack('>I8c16', request)
      local wanted, extend = ttl, 'm'
      if exceptions[i] then wanted, extend = exceptions[i][1], exceptions[i][2] end
      local till = now + wanted * 1000
      local it = lib.read(key)
      -- Before a free lock goes to its queue, which is older than the lease.
      if put_back and not (it and it.owner == owner and it.deadline > now)
          and put_back(i, it or lib.new(key), owner, known, till) then
        return 'p'
      end
      if not it then return 'l' end
      -- Any request hands the lock of a dead holder to its queue, so no waiter depends on the others.
      if lib.settle(it) then lib.write(it, true) end
      if it.owner == owner and it.deadline > now then
        local ends_sooner = extend == 'e' and till < it.deadline
        -- Before the first write.
        lib.need(ends_sooner and it.queued, false)
        it.deadline = extend == 'e' and till or math.max(it.deadline, till)
        lib.write(it, true)
        if ends_sooner then lib.notify_head(it) end
        -- 'g' also tells a client that its place has become a lease: it may have missed the message.
        if it.place == known and not it.came_from_place then return 'r' end
        return 'g', it.place, it.fence
      end
      local place, deadline, rest = lib.find_place(it, owner)
      if not place then return 'l' end
      lib.put_place(it, owner, place, extend == 'e' and 0 or deadline, wanted * 1000, rest)
      return 'w', tonumber(place), lib.left(it)
    end)
    if not ok then
      local failed = lib.failed(code)
      -- The only lock of the call.
      if type(failed) == 'table' then return failed end
      code, number = 'e', failed
    end
    if number then replies[#replies + 1] = number end
    if value then replies[#replies + 1] = value end
  end
  codes[i] = code
end
replies[2] = table.concat(codes)
return replies

-- Tries once to acquire each of several locks, all with the same ttl. Must not be called in quarantine. release.lua
-- follows in the same script, so that requests that wait for the connection share one call.
--
-- KEYS[i]      the record of a lock, the acquires first
-- ARGV[2]      owner 16 bytes, per lock
-- replies      for one lock: an entry of the list. For several: TIME in µs, a string with a status code per lock (the
--              acquires first), then the values of the codes that have one, in order:
--                n                            granted; the token is the TIME, and the place has the same number
--                .                            the value is an entry of the list
--              The list:
--                token                        granted; the place has the same number
--                {1, place, token}            granted, now or by an earlier copy of this request
--                {2, place, ms}               queued at this place; the holder's lease lasts for ms
--                {3, 0, ms}                   held by another owner, and the request does not queue
--                {4, 0, 0}                    withdrawn: this request came too late
--                {5, keys, 0}                 see prelude.lua
--                error                        this lock is unchanged, except that a free lock may have gone to its
--                                             queue
-- promises     A free lock goes to the oldest live place, and never past it. A repeated request of a claim that holds
--              or waits sets the deadline to at least now + ttl and returns the same place. A token is higher than all
--              earlier ones.

ttl = ttl * 1000
local owners, sub = ARGV[2], string.sub
local holder = acquires > 0 and sub(ARGV[1], at_channel + to_holder)
for i = 1, acquires do
  local key, owner = KEYS[i], sub(owners, 16 * i - 15, 16 * i)
  local raw
  -- A lock that is in the batch twice is read again, because the first request may have changed it.
  if raws and not seen[key] then
    raw, seen[key] = raws[i], true
  end
  if raw == nil then raw = call('GET', key) end
  -- A missing record counts as an ordinary one that is free. That case needs no library.
  local head, deadline, kept, fence, tombstones, reply = 24641536, 0, 0, 0, 0, nil
  if raw then
    head = 0
    if #raw >= 44 then head, deadline, kept, fence = unpack('>I4I8I8I8', raw) end
  end
  if head ~= 24641536 or deadline > now then
    lib = lib or (function()
      --@ library.lua
    end)()
    local ok
    ok, reply = pcall(function()
      local it = lib.read(key) or lib.new(key)
      -- A copy of a withdrawn claim's request that arrives late has no effect.
      if lib.is_withdrawn(it, owner) then return {4, 0, 0} end
      -- First: if the lease has ended, the lock belongs to the oldest live place, and this request must not pass it.
      lib.settle(it)
      if it.deadline <= now then
        fence, kept, tombstones = math.max(it.fence, it.places), it.kept, it.tombstones
        return
      end
      if it.owner == owner then
        it.deadline = math.max(it.deadline, now + ttl)
        lib.write(it, true)
        return {1, it.place, it.fence}
      end
      local place, till, rest = lib.find_place(it, owner)
      if place then
        lib.put_place(it, owner, place, till, ttl, rest)
        return {2, tonumber(place), lib.left(it)}
      end
      if on_contention == 'l' then return {3, 0, lib.left(it)} end
      lib.new_place(it, owner, ttl)
      return {2, it.places, lib.left(it)}
    end)
    if not ok then reply = lib.failed(reply) end
  end
  if not reply then
    -- At least TIME, so that tokens keep rising after the record was lost.
    fence, deadline = fence + 1, now + ttl
    if fence < now then fence = now end
    local need, head, done = (fence > deadline and fence or deadline) + retention, nil, nil
    if tombstones > need then need = tombstones end
    -- `kept` reaches further than necessary, so that most writes can leave the expiry alone.
    local late = kept < need
    if late then kept = need + retention end
    if tombstones > now then
      head = pack('>I4I8I8I8I8I8I8', 24641540, deadline, kept, fence, fence, tombstones, fence)
    else
      head = pack('>I4I8I8I8', 24641536, deadline, kept, fence)
    end
    local record = head .. owner .. holder
    if not late then
      done = call('SET', key, record, 'KEEPTTL')
    elseif raw then
      done = call('SET', key, record, 'PXAT', string.format('%d', kept / 1000 + 1))
    else
      done = call('SET', key, record, 'PXAT', string.format('%d', kept / 1000 + 1), 'NX')
    end
    -- NX refused the write: the key exists, with a value that is not a string.
    reply = done and (done.err or fence) or call('GET', key).err
  end
  if locks == 1 then return reply end
  if reply == now then
    codes[i] = 'n'
  else
    codes[i], replies[#replies + 1] = '.', reply
  end
end

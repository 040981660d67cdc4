-- Reads locks for people. Writes nothing.
--
-- KEYS[i]      the record of a lock
-- replies      TIME in µs, then one of these per lock:
--                nil                              there is no record
--                {token, ms, holder, waiters}     the last fencing token (0 if there was none), the ms that the lease
--                                                 still lasts (0 if the lock is free), the last holder's information,
--                                                 the number of live places
--                error
--              or {5, keys, 0}: see prelude.lua
-- promises     Expired leases and places are not shown.

lib = (function()
  --@ library.lua
end)()

local function show(key)
  local it = lib.read(key)
  if not it then return false end
  local waiters = 0
  if it.queued then
    lib.need(true, false)
    local fields = redis.call('HGETALL', it.queue)
    for i = 1, #fields, 2 do
      if string.byte(fields[i]) < 58 and #fields[i + 1] >= 24 then
        local _, till = struct.unpack('>c16I8', fields[i + 1])
        if till > now then waiters = waiters + 1 end
      end
    end
  end
  local left = lib.left(it)
  return {it.fence, left, it.holder, waiters}
end

replies = {now}
for i = 1, locks do
  local ok, shown = pcall(show, KEYS[i])
  local failed = not ok and lib.failed(shown)
  -- The only lock of the call.
  if type(failed) == 'table' then return failed end
  replies[i + 1] = ok and shown or failed
end
return replies

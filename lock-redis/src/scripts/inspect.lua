-- Shows a lock to people. Writes nothing.
--
-- KEYS[1]      the record of a lock
-- answers      nil when there is no record; else TIME in µs, last fencing token (0 when there was none), ms that the lease lasts (0 when
--              it is free), holder information, number of live places
-- promises     a dead lease and dead places are not shown

lib = (function()
  --@ library.lua
end)()
local it = lib.read(KEYS[1])
if not it then return false end
local waiters = 0
if it.queued then
  local fields = redis.call('HGETALL', it.queue)
  for i = 1, #fields, 2 do
    if string.byte(fields[i]) < 58 and #fields[i + 1] >= 24 then
      local _, till = struct.unpack('>c16I8', fields[i + 1])
      if till > now then waiters = waiters + 1 end
    end
  end
end
local left = lib.left(it)
return {now, it.fence, left, left > 0 and it.holder or '', waiters}

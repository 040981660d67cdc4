-- Shows a lock to people. Writes nothing.
--
-- KEYS[1]      the record of a lock
-- ARGV         the common ones
-- answers      nil when there is no record; else TIME in µs, last fencing token (0 when there was none), ms that the lease lasts (0 when
--              it is free), holder information, number of live places
-- promises     a dead lease and dead places are not shown

if not read(KEYS[1]) then return false end
local waiters = 0
if flags % 2 == 1 then
  local fields = redis.call('HGETALL', KEYS[1] .. ':q')
  for i = 1, #fields, 2 do
    if string.byte(fields[i]) < 58 and #fields[i + 1] >= 24 then
      local _, till = struct.unpack('>c16I8', fields[i + 1])
      if till > now then waiters = waiters + 1 end
    end
  end
end
return {now, fence, left(), deadline > now and holder or '', waiters}

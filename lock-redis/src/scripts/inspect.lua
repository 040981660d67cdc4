-- Shows locks to people. Writes nothing.
--
-- KEYS[i]      the record of a lock
-- answers      TIME in µs, then one answer per lock:
--                nil                              there is no record
--                {token, ms, holder, waiters}     last fencing token (0 when there was none), ms that the lease lasts (0 when it is
--                                                 free), last holder's information, number of live places
--                error
-- promises     a dead lease and dead places are not shown

lib = (function()
  --@ library.lua
end)()

local function show(key)
  local it = lib.read(key)
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
  return {it.fence, left, it.holder, waiters}
end

answers = {now}
for i = 1, #KEYS do
  local fine, shown = pcall(show, KEYS[i])
  answers[i + 1] = fine and shown or not fine and lib.text_of(shown)
end
return answers

-- Ends a lease for an operator, and hands the lock to the oldest live place.
--
-- KEYS[1]      the record of a lock
-- ARGV[2]      the token of the lease
-- replies      the raised token, or nil if that lease has ended; {5, keys, 0}: see prelude.lua
-- promises     Later leases are not affected. Every later token is higher than the raised one. A lease that has ended
--              is not put back (`put_back.rs`).

lib = (function()
  --@ library.lua
end)()
local it, token = lib.read(KEYS[1]) or lib.new(KEYS[1]), tonumber(ARGV[2])
-- Before the first write.
local ok, why = pcall(lib.need, it.queued, false)
if not ok then return lib.failed(why) end
if it.deadline <= now or it.fence ~= token then
  -- The server has lost this lease or runs with old data, and its holder could still put it back. A token that is far
  -- ahead of the clock is a mistake: it would keep the record for as long.
  local could_come_back = it.fence < token or it.fence == token and it.deadline > 0
  if could_come_back and it.deadline <= now and token <= now + 3600000000 then
    it.fence = token + 1
    lib.write(it, true)
  end
  return false
end
-- Every later grant, also the one by `settle` below, gets a token above this one.
local raised = math.max(it.fence + 1, now)
it.fence, it.deadline, it.came_from_place = raised, 0, false
-- If `settle` has granted the lock, it has written the record too.
if lib.settle(it) or it.fence == raised then lib.write(it, true) end
return raised

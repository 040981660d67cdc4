-- Ends a lease for an operator, and hands the lock to the oldest live place.
--
-- KEYS[1]      the record of a lock
-- ARGV[2]      the token of the lease
-- replies      the raised token, or nil if that lease has ended
-- promises     Later leases are not affected. Every later token is higher than the raised one.

lib = (function()
  --@ library.lua
end)()
local it = lib.read(KEYS[1])
if not it or it.deadline <= now or it.fence ~= tonumber(ARGV[2]) then return false end
-- Every later grant, also the one by `settle` below, gets a token above this one.
local raised = math.max(it.fence + 1, now)
it.fence, it.deadline, it.came_from_place = raised, 0, false
-- If `settle` has granted the lock, it has written the record too.
if lib.settle(it) or it.fence == raised then lib.write(it, true) end
return raised

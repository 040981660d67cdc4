-- Runs a script of the user only while the lease is current. That script is defined before the prelude, as
-- `body(KEYS, ARGV)`.
--
-- KEYS[1]      the record of the lock; the user's KEYS follow, with the lock's hash tag
-- ARGV[2..]    owner, fencing token; the user's ARGV follow
-- replies      {0} if the lease is not current, and {2, why} if the record cannot be read: nothing was changed;
--              otherwise {1, the result of the user's script}
-- promises     Atomic: no other claim is granted the lock between the check and the write.

local function shifted(list, by)
  local rest = {}
  for i = by + 1, #list do rest[i - by] = list[i] end
  return rest
end

lib = (function()
  --@ library.lua
end)()
local ok, it = pcall(lib.read, KEYS[1])
if not ok then return {2, lib.error_text(it)} end
if not it or it.owner ~= ARGV[2] or it.deadline <= now or string.format('%d', it.fence) ~= ARGV[3] then return {0} end
return {1, body(shifted(KEYS, 1), shifted(ARGV, 3))}

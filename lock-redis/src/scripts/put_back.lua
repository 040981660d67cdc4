-- Puts leases back that the server granted in an earlier run and has lost. Included by renew.lua if it has ARGV[4].
-- `put_back.rs` has the rules. The client checks 1, 2 and 5, and this script 3, 4 and 6.
--
-- ARGV[4]      length u8 | run_id | length u8 | master_replid2 | for each lease that may be put back: its number u16,
--              from 1 | token u64 | length u16 | holder information
-- returns      a function that puts back the lease of a request, if it may, and returns whether it did

local process, history, at = unpack('>Bc0Bc0', ARGV[4])
local tokens, holders, is_same_run = {}, {}, nil
while at <= #ARGV[4] do
  local i, token, holder
  i, token, holder, at = unpack('>I2I8I2c0', ARGV[4], at)
  tokens[i], holders[i] = token, holder
end

-- Asked once for each call, and only before a write.
local function check_run()
  if is_same_run == nil then
    local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
    local function field(name) return string.match(info, '%f[%w_]' .. name .. ':([^\r]*)') or '' end
    is_same_run = field('run_id') == process and field('master_replid2') == history
  end
  if not is_same_run then error('OTHERRUN', 0) end
end

-- `it` is the record, or a new one. Its owner has no lease.
return function(i, it, owner, place, till)
  local token = tokens[i]
  if not token or it.fence > token then return false end
  if it.fence == token and (it.owner ~= owner or it.deadline == 0) then return false end
  if lib.is_withdrawn(it, owner) then return false end
  check_run()
  if it.fence < token then
    -- All of it is older than the lease. Places are kept only if they are numbered as the place of the lease is: a
    -- handoff scans the numbers one by one.
    if not lib.leave_queue(it, owner) then
      lib.delete_queue(it)
      it.places = math.max(it.places, place, now)
    end
    it.fence, it.owner, it.place, it.holder = token, owner, place, holders[i]
  end
  it.deadline, it.came_from_place = till, false
  lib.write(it, true)
  return true
end

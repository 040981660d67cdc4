-- Reads on a new connection, and while a server is unsettled, what decides whether it may vote.
--
-- KEYS[1]      the state: see exchange.lua
-- KEYS[2]      since when a run is known to be unsettled: "<run> <TIME in µs>"
-- ARGV[1]      nothing, or 's': writes KEYS[2] for the present run, unless it names that run and a time that has passed:
--              the clock may have been set back, and a wait that begins in the future would be too long
-- replies      run id, TIME in µs, the state or '', KEYS[2] or '', redis_version, maxmemory_policy, role, cluster_enabled
-- promises     The first time that a run is seen unsettled stays.

local info = redis.call('INFO', 'server') .. redis.call('INFO', 'memory') .. redis.call('INFO', 'replication')
  .. redis.call('INFO', 'cluster')
local function field(name) return string.match(info, '%f[%w_]' .. name .. ':([^\r]*)') or '' end
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000000 + time[2])
local run, since = field('run_id'), redis.call('GET', KEYS[2]) or ''
local known = string.sub(since, 1, 41) == run .. ' ' and tonumber(string.sub(since, 42))
if ARGV[1] == 's' and not (known and known <= tonumber(now)) then
  since = run .. ' ' .. now
  redis.call('SET', KEYS[2], since)
end
return {
  run, now, redis.call('GET', KEYS[1]) or '', since, field('redis_version'), field('maxmemory_policy'), field('role'),
  field('cluster_enabled')
}

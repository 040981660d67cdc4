-- Run on every new connection before any other script, and before a ttl is used that others cannot know: reads which run of the server
-- this is and what the epoch key says, and writes the key if it still says what the writer read. What it has to say, and what follows
-- from it, is decided in epoch.rs.
--
-- KEYS[1]      the epoch key: "1 <run id>", and then each ttl in use and until when leases of it may last: " <ms>:<ms of the
--              server's clock>"
-- ARGV         nothing, or: what the key said, '' for no key; what it has to say; the channel on which all clients hear of it
-- answers      run id, ms that the server has run, TIME in ms, the key or '', redis_version, maxmemory_policy
-- promises     the key is written only if nobody has written it since it was read

local info = redis.call('INFO', 'server') .. redis.call('INFO', 'memory')
-- The server takes the difference of two whole seconds: it may be up for almost one less. Below zero after a clock was set back to
-- before its start: as if it had just started.
local uptime = math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)')) - 1) * 1000
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

local key = redis.call('GET', KEYS[1]) or ''
if ARGV[2] and key == ARGV[1] then
  key = ARGV[2]
  local why = redis.pcall('SET', KEYS[1], key).err
  if why then
    if not string.find(why, 'OOM', 1, true) then error(why, 0) end
    -- A full server refuses SET unless the script has written before, and DEL is not refused. Without it a renewal to a longer
    -- ttl would be lost in front of a full server.
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[1], key)
  end
  -- Only a hint: it must not undo what was written when it is refused.
  redis.pcall('PUBLISH', ARGV[3], now .. ' ' .. key)
end
return {
  string.match(info, 'run_id:(%w+)'), uptime, now, key,
  string.match(info, 'redis_version:([%w%.]+)'), string.match(info, 'maxmemory_policy:([%w%-]+)')
}

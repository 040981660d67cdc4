-- Runs on every new connection before any other script, and before a ttl is used that other clients cannot know. Reads
-- the run of the server and the epoch key. Writes the key if it still has the value that the writer read.
-- `backend/restart.rs` of lock-core decides what to write, and what follows from a reading.
--
-- KEYS[1]      the epoch key: "1 <run>", then " <ms>:<ms of the server's clock>" for each ttl in use: the ttl, and the
--              end of its use; before the ttls maybe " <run>@<ms of the server's clock>", during a quarantine: the run
--              that follows, and its first sight
-- ARGV         nothing; or the value that was read ('' for no key), the value to write, and the channel on which all
--              clients receive it
-- replies      run id, uptime in ms, TIME in ms, the key or '', redis_version, maxmemory_policy, role, master_replid2,
--              master_repl_offset, redis_mode; '' for a field that the server does not have
-- promises     The key is written only if nobody has written it since it was read.

local info = redis.call('INFO', 'server') .. redis.call('INFO', 'memory') .. redis.call('INFO', 'replication')
local function field(name) return string.match(info, '%f[%w_]' .. name .. ':([^\r]*)') or '' end
-- The server subtracts two times in whole seconds, so it may have run for almost a second less. The difference is
-- negative after the clock was set back to before the start of the server. It then counts as zero.
local uptime = math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)')) - 1) * 1000
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))

local key = redis.call('GET', KEYS[1]) or ''
if ARGV[2] and key == ARGV[1] then
  key = ARGV[2]
  local why = redis.pcall('SET', KEYS[1], key).err
  if why then
    if not string.find(why, 'OOM', 1, true) then error(why, 0) end
    -- A full server refuses SET unless the script has written before. It does not refuse DEL. Without this, a renewal
    -- to a longer ttl would fail on a full server.
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[1], key)
  end
  -- Only a hint. If it is refused, the write must stay.
  redis.pcall('PUBLISH', ARGV[3], now .. ' ' .. key)
end
return {
  field('run_id'), uptime, now, key, field('redis_version'), field('maxmemory_policy'),
  field('role'), field('master_replid2'), field('master_repl_offset'),
  field('redis_mode')
}

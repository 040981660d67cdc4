-- Run on every new connection before any other script, and before a ttl longer than any before: says whether leases from before
-- a restart may still be believed in by their holders, and writes down what other clients need to know.
--
-- KEYS[1]      the epoch key: "1 <run id> <longest ttl in use, ms>"
-- ARGV         run id that this client knew or '', its longest ttl in ms, 'known', 'quarantine' or 'trust'
-- answers      run id, ms until new grants are allowed, longest ttl in use in ms, redis_version, maxmemory_policy
-- promises     while grants have to wait, the key names another run than this one, so that a newcomer waits as well

local info = redis.call('INFO', 'server') .. redis.call('INFO', 'memory')
local run = string.match(info, 'run_id:(%w+)')
-- Below zero after a clock was set back to before the server's start: as if it had just started.
local uptime = math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)'))) * 1000
local version = string.match(info, 'redis_version:([%w%.]+)')
local policy = string.match(info, 'maxmemory_policy:([%w%-]+)')

local known, longest, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local raw = redis.call('GET', KEYS[1])
local stored_run, stored_longest
if raw then
  local format
  format, stored_run, stored_longest = string.match(raw, '^(%d+) (%S+) (%d+)$')
  if format ~= '1' then return redis.error_reply('UNKNOWNFORMAT of the key ' .. KEYS[1]) end
  longest = math.max(longest, tonumber(stored_longest))
end

local function note(which)
  local new = string.format('1 %s %d', which, longest)
  -- A client that has not locked yet has nothing to tell.
  if new == raw or longest == 0 then return end
  local why = redis.pcall('SET', KEYS[1], new).err
  if not why then return end
  if not string.find(why, 'OOM', 1, true) then error(why, 0) end
  -- A full server refuses SET unless the script has written before, and DEL is not refused. Without it a renewal to a longer
  -- ttl would be lost in front of a full server.
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[1], new)
end

local before
if mode ~= 'trust' then
  if stored_run and stored_run ~= run then
    before = stored_run
  elseif known ~= '' and known ~= run then
    before = known
  elseif not stored_run and known == '' and mode == 'quarantine' then
    before = '-'
  end
end
local wait = 0
if before and uptime < longest then
  wait = longest - uptime
  note(before)
elseif mode == 'trust' and stored_run then
  -- Those who do not trust go on waiting.
  note(stored_run)
else
  note(run)
end
return {run, wait, longest, version, policy}

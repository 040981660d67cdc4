-- Run on every new connection before any other script, and before a ttl longer than any before: says whether leases from before
-- a restart may still be believed in by their holders, and writes down what other clients need to know.
--
-- KEYS[1]      the epoch key: "1 <run id>", and then each ttl in use and until when leases of it may last: " <ms>:<ms of the
--              server's clock>". A ttl stays for twice its length and a minute, and is written anew before: so the longest one is
--              forgotten when nobody uses it any more
-- ARGV         run id that this client knew or '', its longest ttl in ms, 'known', 'quarantine' or 'trust'
-- answers      run id, ms until new grants are allowed, redis_version, maxmemory_policy
-- promises     while grants have to wait, the key names another run than this one, so that a newcomer waits as well

local MANY = 16
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'memory')
local run = string.match(info, 'run_id:(%w+)')
-- The server takes the difference of two whole seconds: it may be up for almost one less. Below zero after a clock was set back to
-- before its start: as if it had just started.
local uptime = math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(%-?%d+)')) - 1) * 1000
local version = string.match(info, 'redis_version:([%w%.]+)')
local policy = string.match(info, 'maxmemory_policy:([%w%-]+)')

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local known, own, mode = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local raw = redis.call('GET', KEYS[1])
local stored_run
local longest, ttls = own, {}
if raw then
  local format, list
  format, stored_run, list = string.match(raw, '^(%d+) (%S+)([%d: ]*)$')
  if format ~= '1' then return redis.error_reply('UNKNOWNFORMAT of the key ' .. KEYS[1]) end
  for ttl, till in string.gmatch(list, ' (%d+):(%d+)') do
    ttl, till = tonumber(ttl), tonumber(till)
    if till > now then
      ttls[#ttls + 1] = {ttl, till}
      longest = math.max(longest, ttl)
    end
  end
end

-- The ttls in use with this client's own. One that is as long and lasts as long stands for another.
local function with_own()
  local new = {own, now + 2 * own + 60000}
  local all = {}
  for _, it in ipairs(ttls) do
    if it[1] >= own and it[2] >= now + own + 60000 then return ttls end
    if it[1] > new[1] or it[2] > new[2] then all[#all + 1] = it end
  end
  all[#all + 1] = new
  table.sort(all, function(a, b) return a[1] < b[1] end)
  while #all > MANY do
    local shortest = table.remove(all, 1)
    all[1] = {all[1][1], math.max(all[1][2], shortest[2])}
  end
  return all
end

local function note(which)
  local new = '1 ' .. which
  for _, it in ipairs(with_own()) do new = new .. string.format(' %d:%d', it[1], it[2]) end
  -- A client that has not locked yet has nothing to tell.
  if new == raw or own == 0 then return end
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
return {run, wait, version, policy}

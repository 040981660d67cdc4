-- Ends each of several leases or places, and hands each lock that becomes free to the oldest live place.
--
-- KEYS[i]      the record of a lock
-- ARGV         after the common ones, per lock: owner, '0' or how long to remember that this owner was withdrawn, in ms
-- answers      TIME in µs, then per lock:
--                1        the lease or place was this owner's and has ended
--                0        this owner had neither
--                error    nothing was changed for this lock, but that a free lock may have gone to its queue
-- promises     the token stays behind in a short record; what another owner has is never touched; with a time to remember, no
--              request of this owner that is still under way takes effect within it

local function release(key, who, remember)
  read(key)
  local changed, ended = false, 0
  if remember > 0 then
    -- The record first: it is what makes acquire look for the tombstone.
    tombstones = math.max(tombstones, now + remember)
    write_though_full(key)
    redis.call('SET', key .. ':t:' .. who, '', 'PX', string.format('%d', remember / 1000))
  end
  if owner == who and deadline > now then
    deadline, owner, holder, changed, ended = 0, NOBODY, '', true, 1
  else
    local number = find_place(key, who)
    if number then
      redis.call('HDEL', key .. ':q', number, 'o' .. who)
      ended = 1
      if redis.call('HLEN', key .. ':q') == 1 then
        forget_queue(key)
        changed = true
      end
    end
  end
  local fence_before = fence
  changed = settle(key) or (changed and fence == fence_before)
  if changed then write_though_full(key) end
  return ended
end

local answers = {now}
for i = 1, #KEYS do
  local fine, code = pcall(release, KEYS[i], ARGV[2 * i + 2], ARGV[2 * i + 3] * 1000)
  answers[i + 1] = fine and code or text_of(code)
end
return answers

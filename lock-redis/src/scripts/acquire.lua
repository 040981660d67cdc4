-- Tries once to get each of several locks.
--
-- KEYS[i]      the record of a lock
-- ARGV         after the common ones, per lock: owner, ttl in ms, 'q' (queue when held) or 'l' (leave), holder information
-- answers      TIME in µs, then per lock three values:
--                1, place, fencing token      granted, now or by an earlier copy of this request
--                2, place, ms                 has a place; the holder's lease lasts that long
--                3, 0, ms                     held by another, and no place wanted
--                4, 0, 0                      withdrawn before: this request came too late
--                error, 0, 0                  nothing was changed for this lock, but that a free lock may have gone to its queue
-- promises     a free lock goes to the oldest live place, never past it; a repeated request of a claim that holds or waits sets the
--              deadline to at least now + ttl and answers the same place; a token is higher than every one before it

local function acquire(key, who, ttl, wish, info)
  read(key)
  if tombstones > now and redis.call('EXISTS', key .. ':t:' .. who) == 1 then return 4, 0, 0 end
  settle(key)
  if deadline > now then
    if owner == who then
      deadline = math.max(deadline, now + ttl)
      write_though_full(key)
      return 1, place, fence
    end
    local number, till, rest = find_place(key, who)
    if number then
      put_place(key, who, number, math.max(till, now + math.min(ttl, PLACE_TTL)), rest)
      return 2, tonumber(number), left()
    end
    if wish == 'l' then return 3, 0, left() end
    number = string.format('%d', places + 1)
    -- What lies here without the flag belongs to a record that is gone.
    if flags % 2 == 0 then redis.call('DEL', key .. ':q') end
    redis.call('HSETNX', key .. ':q', 'h', number)
    redis.call('HSET', key .. ':q', 'o' .. who, number)
    put_place(key, who, number, now + math.min(ttl, PLACE_TTL), struct.pack('Bc0', #channel, channel) .. info)
    flags, places = flags - flags % 2 + 1, places + 1
    write(key)
    return 2, places, left()
  end
  places = places + 1
  take(who, places, now + ttl, info, false)
  write(key)
  return 1, place, fence
end

local answers = {now}
for i = 1, #KEYS do
  local a = 4 * i
  local fine, code, number, value = pcall(acquire, KEYS[i], ARGV[a], ARGV[a + 1] * 1000, ARGV[a + 2], ARGV[a + 3])
  if not fine then code, number, value = text_of(code), 0, 0 end
  answers[3 * i - 1], answers[3 * i], answers[3 * i + 1] = code, number, value
end
return answers

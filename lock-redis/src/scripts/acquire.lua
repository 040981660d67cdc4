-- Tries once to get each of several locks, all with the same ttl. Not to be called in quarantine. release.lua follows in the same
-- script: what waits for the connection goes out in one call.
--
-- KEYS[i]      the record of a lock, the acquires first
-- ARGV[2]      owner 16 bytes, per lock
-- answers      for one lock, as in the list. For several: TIME in µs, a string with a letter per lock, those of the acquires first,
--              and then what the letters leave open, in order:
--                n                            granted; the token is the TIME, and the place has the same number
--                .                            as in the list
--              The list:
--                token                        granted; the place has the same number
--                {1, place, token}            granted, now or by an earlier copy of this request
--                {2, place, ms}               has a place; the holder's lease lasts that long
--                {3, 0, ms}                   held by another, and no place wanted
--                {4, 0, 0}                    withdrawn before: this request came too late
--                error                        nothing was changed for this lock, but that a free lock may have gone to its queue
-- promises     a free lock goes to the oldest live place, never past it; a repeated request of a claim that holds or waits sets the
--              deadline to at least now + ttl and answers the same place; a token is higher than every one before it

ttl = ttl * 1000
local owners, sub = ARGV[2], string.sub
local holder = acquires > 0 and sub(ARGV[1], at_channel + to_holder)
for i = 1, acquires do
  local key, who = KEYS[i], sub(owners, 16 * i - 15, 16 * i)
  local raw
  if raws and not seen[key] then
    raw, seen[key] = raws[i], true
  end
  if raw == nil then raw = call('GET', key) end
  local head, deadline, kept, fence, tombstones, answer = 24641536, 0, 0, 0, 0, nil
  if raw then
    head = 0
    if #raw >= 44 then head, deadline, kept, fence = unpack('>I4I8I8I8', raw) end
  end
  if head ~= 24641536 or deadline > now then
    lib = lib or (function()
      --@ library.lua
    end)()
    local fine
    fine, answer = pcall(function()
      local it = lib.read(key) or lib.new(key)
      if it.tombstones > now and redis.call('EXISTS', key .. ':t:' .. who) == 1 then return {4, 0, 0} end
      lib.settle(it)
      if it.deadline <= now then
        fence, kept, tombstones = math.max(it.fence, it.places), it.kept, it.tombstones
        return
      end
      if it.owner == who then
        it.deadline = math.max(it.deadline, now + ttl)
        lib.write(it, true)
        return {1, it.place, it.fence}
      end
      local place, till, rest = lib.find_place(it, who)
      if place then
        lib.put_place(it, who, place, till, ttl, rest)
        return {2, tonumber(place), lib.left(it)}
      end
      if wish == 'l' then return {3, 0, lib.left(it)} end
      lib.new_place(it, who, ttl)
      return {2, it.places, lib.left(it)}
    end)
    if not fine then answer = lib.text_of(answer) end
  end
  if not answer then
    fence, deadline = fence + 1, now + ttl
    if fence < now then fence = now end
    local need, head, done = (fence > deadline and fence or deadline) + retention, nil, nil
    if tombstones > need then need = tombstones end
    local late = kept < need
    if late then kept = need + retention end
    if tombstones > now then
      head = pack('>I4I8I8I8I8I8I8', 24641540, deadline, kept, fence, fence, tombstones, fence)
    else
      head = pack('>I4I8I8I8', 24641536, deadline, kept, fence)
    end
    local record = head .. who .. holder
    if not late then
      done = call('SET', key, record, 'KEEPTTL')
    elseif raw then
      done = call('SET', key, record, 'PXAT', string.format('%d', kept / 1000 + 1))
    else
      done = call('SET', key, record, 'PXAT', string.format('%d', kept / 1000 + 1), 'NX')
    end
    -- Without an answer there was something that is no string.
    answer = done and (done.err or fence) or call('GET', key).err
  end
  if #KEYS == 1 then return answer end
  if answer == now then
    letters[i] = 'n'
  else
    letters[i], answers[#answers + 1] = '.', answer
  end
end

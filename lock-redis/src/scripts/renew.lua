-- Renews each of several leases and places.
--
-- KEYS[i]      the record of a lock
-- ARGV[2]      per lock: place u64, as far as it is known | owner 16 bytes. One argument, since each costs as much as the rest of an
--              ordinary renewal but its write
-- ARGV[3]      for each lock with another ttl than in ARGV[1], or with one that may shorten: its number u16, from 1 | ttl u32 ms |
--              'm' (at least) or 'e' (exactly)
-- answers      TIME in µs, then one string with a letter per lock, then for the letters with more to tell, in order:
--                r        the lease stands
--                g        the lease stands, and came from a place or has another number: place, fencing token
--                w        the place stands: place, ms that the holder's lease lasts
--                l        this owner has neither
--                e        error: what was wrong
-- promises     nothing is created; a lease that has ended stays ended, also while nobody else has the lock

local till_of_most, sub, find = now + ttl * 1000, string.sub, string.find
local packed, asks, others = pack('>I8', till_of_most), ARGV[2], {}
for at = 1, #ARGV[3], 7 do
  local i, wanted, extend = unpack('>I2I4c1', ARGV[3], at)
  others[i] = {wanted, extend}
end
answers, letters = {now, ''}, {}
for i = 1, #KEYS do
  local key, ask, letter = KEYS[i], sub(asks, 24 * i - 23, 24 * i), nil
  local raw
  -- The ordinary way below may write a record twice: it only ever writes the same.
  if raws and not seen[key] then raw = raws[i] end
  if raw == nil then raw = call('GET', key) end
  if raw and not others[i] and find(raw, ask, 21, true) == 21 then
    local head, deadline, kept, fence = unpack('>I4I8I8I8', raw)
    if head == 24641536 and deadline > now and kept >= (fence > till_of_most and fence or till_of_most) + retention then
      letter = 'r'
      -- Eight bytes are all that changes.
      if till_of_most > deadline and call('SETRANGE', key, '4', packed) ~= #raw then letter = nil end
    end
  end
  if not letter then
    lib = lib or (function()
      --@ library.lua
    end)()
    if raws then seen[key] = true end
    local fine, number, value
    fine, letter, number, value = pcall(function()
      local known, who = unpack('>I8c16', ask)
      local wanted, extend = ttl, 'm'
      if others[i] then wanted, extend = others[i][1], others[i][2] end
      local till = now + wanted * 1000
      local it = lib.read(key)
      if not it then return 'l' end
      if lib.settle(it) then lib.write(it, true) end
      if it.owner == who and it.deadline > now then
        local ends_sooner = extend == 'e' and till < it.deadline
        it.deadline = extend == 'e' and till or math.max(it.deadline, till)
        lib.write(it, true)
        if ends_sooner then lib.notify_head(it) end
        if it.place == known and not it.came_from_place then return 'r' end
        return 'g', it.place, it.fence
      end
      local place, deadline, rest = lib.find_place(it, who)
      if not place then return 'l' end
      lib.put_place(it, who, place, extend == 'e' and 0 or deadline, wanted * 1000, rest)
      return 'w', tonumber(place), lib.left(it)
    end)
    if not fine then
      letter, number = 'e', lib.text_of(letter)
    end
    if number then answers[#answers + 1] = number end
    if value then answers[#answers + 1] = value end
  end
  letters[i] = letter
end
answers[2] = table.concat(letters)
return answers

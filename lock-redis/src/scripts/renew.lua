-- Renews each of several leases and places.
--
-- KEYS[i]      the record of a lock
-- ARGV[i + 1]  owner 16 bytes | ttl u32 ms | 'm' (at least) or 'e' (exactly) | place u64, as far as it is known
-- answers      TIME in µs, then one string with a letter per lock, then for the letters with more to tell, in order:
--                r        the lease stands
--                g        the lease stands, and came from a place or has another number: place, fencing token
--                w        the place stands: place, ms that the holder's lease lasts
--                l        this owner has neither
--                e        error: what was wrong
-- promises     nothing is created; a lease that has ended stays ended, also while nobody else has the lock

local call, pack, unpack = redis.pcall, struct.pack, struct.unpack
local letters, answers, retention, lib = {}, {now, ''}, (unpack('>I8', ARGV[1])), nil
for i = 1, #KEYS do
  local key = KEYS[i]
  local who, ttl, extend, known = unpack('>c16I4c1I8', ARGV[i + 1])
  local raw, letter, till = call('GET', key), nil, now + ttl * 1000
  if raw and #raw >= 44 then
    local head, deadline, fence, kept, owner = unpack('>I4I8I8I8c16', raw)
    if head == 24641536 and owner == who and deadline > now and fence == known
      and kept >= (fence > till and fence or till) + retention then
      letter = 'r'
      -- Eight bytes are all that changes.
      if (till > deadline or extend == 'e') and call('SETRANGE', key, 4, pack('>I8', till)) ~= #raw then
        letter = nil
      end
    end
  end
  if not letter then
    lib = lib or (function()
      --@ library.lua
    end)()
    local fine, number, value
    fine, letter, number, value = pcall(function()
      local it = lib.read(key)
      if not it then return 'l' end
      if lib.settle(it) then lib.write(it, true) end
      if it.owner == who and it.deadline > now then
        it.deadline = extend == 'e' and till or math.max(it.deadline, till)
        lib.write(it, true)
        if it.place == known and not it.came_from_place then return 'r' end
        return 'g', it.place, it.fence
      end
      local place, deadline, rest = lib.find_place(it, who)
      if not place then return 'l' end
      lib.put_place(it, who, place, extend == 'e' and 0 or deadline, ttl * 1000, rest)
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

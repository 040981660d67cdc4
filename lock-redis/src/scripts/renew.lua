-- Renews each of several leases and places.
--
-- KEYS[i]      the record of a lock
-- ARGV         after the common ones, per lock: owner, ttl in ms, 'm' (at least) or 'e' (exactly), place as far as it is known
-- answers      TIME in µs, then one string with a letter per lock, then for the letters with more to tell, in order:
--                r        the lease stands
--                g        the lease stands, and came from a place or has another number: place, fencing token
--                w        the place stands: place, ms that the holder's lease lasts
--                l        this owner has neither
--                e        error: what was wrong
-- promises     nothing is created; a lease that has ended stays ended, also while nobody else has the lock

local function renew(key, who, ttl, exactly, known)
  if not read(key) then return 'l' end
  if settle(key) then write_though_full(key) end
  if owner == who and deadline > now then
    deadline = exactly and now + ttl or math.max(deadline, now + ttl)
    write_though_full(key)
    if flags < 2 and place == known then return 'r' end
    return 'g', place, fence
  end
  local number, till, rest = find_place(key, who)
  if not number then return 'l' end
  local asked = now + math.min(ttl, PLACE_TTL)
  put_place(key, who, number, exactly and asked or math.max(till, asked), rest)
  return 'w', tonumber(number), left()
end

local letters, answers = {}, {now, ''}
for i = 1, #KEYS do
  local a = 4 * i
  local fine, letter, number, value =
    pcall(renew, KEYS[i], ARGV[a], ARGV[a + 1] * 1000, ARGV[a + 2] == 'e', tonumber(ARGV[a + 3]))
  if not fine then
    letter, number = 'e', text_of(letter)
  end
  letters[i] = letter
  if number then answers[#answers + 1] = number end
  if value then answers[#answers + 1] = value end
end
answers[2] = table.concat(letters)
return answers

-- Ends each of several leases or places, and hands each lock that becomes free to the oldest live place. Stands behind acquire.lua.
--
-- KEYS[i]      the record of a lock, behind those of the acquires
-- ARGV[2]      owner 16 bytes, per lock
-- ARGV[3]      for each owner that is withdrawn: its number u16, from 1 | how long to remember it, u32 ms. Left out where there is none
-- answers      for one lock, as in the list. For several they stand behind those of the acquires, and the letters are
--                r                            1
--                f                            0
--                .                            as in the list
--              The list:
--                1        the lease or place was this owner's and has ended
--                0        this owner had neither
--                error    nothing was changed for this lock, but that a free lock may have gone to its queue
-- promises     the token stays behind in the record; what another owner has is never touched; of a withdrawn owner no request that is
--              still under way takes effect within the time to remember

local withdrawn
if ARGV[3] then
  withdrawn = {}
  for at = 1, #ARGV[3], 6 do
    local i, ms = unpack('>I2I4', ARGV[3], at)
    withdrawn[i] = ms
  end
end
for i = acquires + 1, #KEYS do
  local key, who, answer = KEYS[i], sub(owners, 16 * i - 15, 16 * i), nil
  local raw
  if raws and not seen[key] then
    raw, seen[key] = raws[i], true
  end
  if raw == nil then raw = call('GET', key) end
  if raw and not withdrawn and string.find(raw, who, 29, true) == 29 then
    local head, deadline = unpack('>I4I8', raw)
    if head == 24641536 and deadline > now then
      -- The server keeps the record until `retention` after the lease, so after its release as well.
      if call('SETRANGE', key, '4', '\0\0\0\0\0\0\0\0') == #raw then answer = 1 end
    end
  end
  if not answer then
    lib = lib or (function()
      --@ library.lua
    end)()
    local fine
    fine, answer = pcall(function()
      local it, ms = lib.read(key), withdrawn and withdrawn[i]
      if ms then
        it = it or lib.new(key)
        -- The record first: it is what makes acquire look for the tombstone.
        it.tombstones = math.max(it.tombstones, now + ms * 1000)
        lib.write(it, true)
        redis.call('SET', key .. ':t:' .. who, '', 'PX', string.format('%d', ms))
      end
      if not it then return 0 end
      local ended, changed = 0, false
      if it.owner == who and it.deadline > now then
        ended, changed, it.deadline = 1, true, 0
      elseif lib.leave_queue(it, who) then
        ended, changed = 1, not it.queued
      end
      local fence = it.fence
      changed = lib.settle(it) or (changed and it.fence == fence)
      if changed then lib.write(it, true) end
      return ended
    end)
    if not fine then answer = lib.text_of(answer) end
  end
  if #KEYS == 1 then return answer end
  if answer == 1 then
    letters[i] = 'r'
  elseif answer == 0 then
    letters[i] = 'f'
  else
    letters[i], answers[#answers + 1] = '.', answer
  end
end
answers[2] = table.concat(letters)
return answers

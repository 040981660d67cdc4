-- Votes, withdrawals, renewals and all else that concerns locks, on one server of a quorum: one operation for each lock,
-- in one call.
--
-- STATE        KEYS[1], one string per server, big endian:
--                version u8 (1) | run id 40 | servers u8 | number u8 | longest ttl u32 ms | floor u64 | high u64
--                run id   of the run in which this server was settled. It votes only in that run
--                number   its place in the URL, from 0
--                floor    no token up to this one may be given again. For a lock without a record, because the record
--                         may have been lost, and for one whose record may be old
--                high     at least the highest token that this server has accepted for any lock. Servers that lost their
--                         data take their floor from it. Raised in steps of a second, so that most votes need not write
--                         it, and the fence of a lock without a record is no higher. So a fence that only follows this
--                         server's clock does not raise it: one that is years ahead would move all tokens
-- RECORD       KEYS[i + 1], one string per lock, big endian:
--                version u8 (1) | kind u8 ('q') | flags u16 (0) | deadline u64 | kept u64 | tombstones u64 | fence u64 |
--                token u64 | vote 16 bytes | holder information, as in the records of a single server
--                deadline    when the vote ends, µs of the server's clock; 0 after a withdrawal
--                kept        when the server drops the record; later than necessary, so that most writes need not
--                            change it
--                tombstones  until when withdrawn votes may have a tombstone
--                fence       the highest token that this server has accepted for the lock
--                token       that of the lease, for people and for break; 0 while it is not known. The fence may be
--                            above it: a guess of a claim that lost, or a floor
--                vote        the owner token of the claim, changed for each of its attempts
-- TOMBSTONE    KEYS[i + 1] .. ':t:' .. vote: this vote was withdrawn, and a late request of it must not take effect
--
-- ARGV[1]      run id 40, of the run that the client read on this connection | retention u64 µs
-- ARGV[2]      for each lock: operation c1 | index of the holder in ARGV u8, or 0 | ttl u32 ms | token u64 | vote 16
-- ARGV[3] ...  holder information
--
-- operations   v  vote, and accept the token as the guess of the client
--              a  accept the token, for a vote that this server has given
--              r  renew
--              j  renew, or vote for a lease that holds by the votes of others
--              p  renew, or put back a vote that this server gave in an earlier run and that still counts
--              R, J, P  the same, exactly: the deadline may become earlier
--              w  withdraw
--              t  withdraw, and keep late requests from taking effect for this ttl
--              b  break: end this vote, if it stands, and accept the token. For this ttl, the vote is not joined or put
--                 back by a holder that does not know of the break
-- replies      TIME in µs, a code for each lock, and what follows the codes in their order:
--                g           it voted and accepted the token, or accepted the token
--                v, fence    it voted, or the broken vote has ended, and the token is not above the fence
--                h, fence, ms, number  another vote stands for so long. Equal votes have equal numbers
--                u           it is not settled
--                d           the vote was withdrawn before
--                l           another vote stands; for `a`: the vote does not stand, or the token is below the fence
--                f           no vote stands, and none was given
--                r           renewed
--                p           put back
--                j           joined
--                1, 0        the vote stood and is withdrawn; it did not stand
--                ., text     an error; this lock is unchanged
-- promises     A vote stands alone until its deadline. The fence never falls while the server keeps its data.

local call = redis.pcall
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local pack, unpack, spread, sub, max = struct.pack, struct.unpack, unpack, string.sub, math.max
local run, retention = unpack('>c40I8', ARGV[1])
local raws = redis.call('MGET', spread(KEYS))
local state, floor, high = raws[1], 0, 0
if state then
  if sub(state, 1, 1) ~= '\1' then return redis.error_reply('UNKNOWNFORMAT') end
  floor, high = unpack('>I8I8', state, 48)
end
local settled = state and sub(state, 2, 41) == run
local written, codes, values = {}, {}, {}

for i = 2, #KEYS do
  local key, code = KEYS[i], nil
  local op, holder, ttl, token, vote = unpack('>c1BI4I8c16', ARGV[2], 30 * i - 59)
  local exactly = op < 'a'
  if exactly then op = string.lower(op) end
  local tombstone = key .. ':t:' .. vote
  local raw = written[key] or raws[i]
  local deadline, kept, tombstones, fence, of_lease, owner, info = 0, 0, 0, now - retention, 0, vote, ''
  local why
  -- No record that was dropped had a higher token. If this clock is years ahead, it must not move the tokens.
  local is_far = state and fence > high
  if is_far then fence = high end
  if raw then
    if sub(raw, 1, 4) == '\1q\0\0' then
      deadline, kept, tombstones, fence, of_lease, owner = unpack('>I8I8I8I8I8c16', raw, 5)
    else
      why = 'UNKNOWNFORMAT'
    end
  end
  -- Also with a record: a server that restarted with old data has an old one.
  if fence < floor then fence = floor end
  local stands = deadline > now
  local mine = stands and owner == vote
  -- What is written, if anything: deadline, fence, token of the lease.
  local till, to, lease

  if why then
    code = '.'
  elseif op == 'w' and not mine then
    code = '0'
  elseif op == 'w' or op == 't' then
    code = mine and '1' or '0'
    if op == 't' then
      tombstones = max(tombstones, now + ttl * 1000)
      -- The record comes first, because it makes a vote check for the tombstone.
      till, to, lease = mine and 0 or deadline, fence, of_lease
    else
      till, to, lease = 0, fence, of_lease
    end
    vote, info = owner, raw and sub(raw, 61) or ''
  elseif op == 'a' then
    -- A token that equals the fence is another claim's or a break's, unless this is the second copy of the request.
    if not settled or not mine or token < fence or token == fence and of_lease ~= token then
      code = 'l'
    else
      code = 'g'
      if token > fence then till, to, lease, info = deadline, token, token, sub(raw, 61) end
    end
  elseif op == 'b' then
    if token > fence then
      code, to = 'g', token
    else
      code, to = 'v', fence
      values[#values + 1] = string.format('%d', fence)
    end
    till, lease, tombstones = mine and 0 or deadline, of_lease, max(tombstones, now + ttl * 1000)
    vote, info = owner, raw and sub(raw, 61) or ''
  elseif op == 'v' then
    if not settled then
      code = 'u'
    elseif stands and not mine then
      code = 'h'
      values[#values + 1] = string.format('%d', fence)
      values[#values + 1] = math.ceil((deadline - now) / 1000)
      values[#values + 1] = unpack('>I4', owner, 13)
    elseif tombstones > now and call('EXISTS', tombstone) ~= 0 then
      code = 'd'
    else
      -- A guess far ahead would keep the record for as long, and every later guess would be refused.
      if token > now + 3600000000 then token = 0 end
      till = now + ttl * 1000
      if mine and deadline > till then till = deadline end
      if token > fence or mine and token == fence then
        code, to, lease = 'g', token, token
      else
        code, to, lease = 'v', fence, 0
        values[#values + 1] = string.format('%d', fence)
      end
      info = ARGV[holder] or ''
    end
  elseif mine then
    code, till, to, info = 'r', now + ttl * 1000, fence, sub(raw, 61)
    -- A client that does not know the token must not hide it.
    lease = token > 0 and token or of_lease
    if not exactly and deadline > till then till = deadline end
  elseif stands then
    code = 'l'
  else
    code = 'f'
    if op == 'j' and settled then
      code = 'j'
    elseif op == 'p' and not settled then
      -- An error here must not end the script, because earlier locks may be written.
      local about = call('INFO', 'server')
      if type(about) == 'table' then
        why, code = about.err, '.'
      elseif string.match(about, 'run_id:(%w+)') == run then
        -- Until it is settled, this server gives no vote to anybody. So the vote was not interrupted.
        code = 'p'
      end
    end
    if code == 'j' or code == 'p' then
      if tombstones > now and call('EXISTS', tombstone) ~= 0 then
        code = 'f'
      else
        -- The fence may be above the token: a guess of a claim that lost.
        till, to, lease, info = now + ttl * 1000, max(fence, token), token, ARGV[holder] or ''
      end
    end
  end

  if till then
    -- Before the record: a token above `high` could be given twice after this server has lost its data.
    if to > high and state then
      -- With a step, each lock without a record would begin that much higher.
      local next = is_far and to or to + 1000000
      local reply = call('SETRANGE', KEYS[1], '55', pack('>I8', next))
      if type(reply) == 'table' then why = reply.err else high = next end
    end
    if not why then
      -- Without the record, a vote would not check for its tombstone.
      local need = max(max(till, to, now) + retention, tombstones)
      local late = kept < need
      if late then kept = need + retention end
      local record = pack('>c4I8I8I8I8I8c16', '\1q\0\0', till, kept, tombstones, to, lease, vote) .. info
      local reply
      if late then
        local at = string.format('%d', kept / 1000 + 1)
        if raw then
          reply = call('SET', key, record, 'PXAT', at)
        else
          -- MGET shows no value of another type.
          reply = call('SET', key, record, 'PXAT', at, 'NX')
          if not reply then reply = {err = 'WRONGTYPE'} end
        end
      else
        reply = call('SET', key, record, 'KEEPTTL')
      end
      if reply.err and raw and (op == 'w' or op == 't' or code == 'r') and string.find(reply.err, 'OOM', 1, true) then
        -- A full server refuses SET unless the script has written before. It does not refuse DEL.
        call('DEL', key)
        reply = call('SET', key, record, 'PXAT', string.format('%d', kept / 1000 + 1))
      end
      why = reply.err
      if not why then written[key] = record end
      if not why and (op == 't' or op == 'b') then
        reply = call('SET', tombstone, '', 'PX', string.format('%d', ttl))
        why = reply.err
      end
    end
    if why then
      -- The values of the code, if it has any, were those of this lock.
      if code == 'v' then values[#values] = nil end
      code = '.'
    end
  end
  if code == '.' then values[#values + 1] = why end
  codes[i - 1] = code
end
return {now, table.concat(codes), spread(values)}

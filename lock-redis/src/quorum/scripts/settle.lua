-- Settles a server in its present run: from then on it votes.
--
-- KEYS[1]      the state: see exchange.lua
-- ARGV         run id, number of servers, the server's number from 0, longest ttl in ms, floor
-- replies      1; 0 if another run runs, or another client was faster
-- promises     The floor and `high` never fall while the server keeps its data.

local state = redis.call('GET', KEYS[1])
if string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') ~= ARGV[1] then return 0 end
if state and string.sub(state, 2, 41) == ARGV[1] then return 0 end
local floor, high = tonumber(ARGV[5]), tonumber(ARGV[5])
if state then
  local old_floor, old_high = struct.unpack('>I8I8', state, 48)
  floor, high = math.max(floor, old_floor), math.max(high, old_high)
end
redis.call('SET', KEYS[1], struct.pack('>Bc40BBI4I8I8', 1, ARGV[1], ARGV[2], ARGV[3], ARGV[4], floor, high))
return 1

-- Reads the record of a lock on one server.
--
-- KEYS[1]      the record: see exchange.lua
-- replies      TIME in µs, and the record or ''

local time = redis.call('TIME')
return {string.format('%d', time[1] * 1000000 + time[2]), redis.call('GET', KEYS[1]) or ''}

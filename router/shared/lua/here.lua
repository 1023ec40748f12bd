-- A router is there, and asks who else is.
--
-- KEYS routers, this router's own
-- ARGV prefix of routers' keys, name, ms of its lease, then fields and values
-- returns for each router that is there: its fields and values
local routers, own = KEYS[1], KEYS[2]
local prefix, name, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
redis.call('HSET', own, unpack(ARGV, 4))
redis.call('PEXPIRE', own, lease_ms)
redis.call('ZADD', routers, now + lease_ms, name)
redis.call('ZREMRANGEBYSCORE', routers, '-inf', now)
local found = {}
for _, other in ipairs(redis.call('ZRANGE', routers, 0, -1)) do
  found[#found + 1] = redis.call('HGETALL', prefix .. other)
end
return found

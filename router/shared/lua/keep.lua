-- A router says again what it knows of a submission that it answers. Of two routers the one with the
-- higher fence is believed: the workers have decided, this records it.
--
-- KEYS claim, index, live submissions of the tenant
-- ARGV router, submission, ms of a lease, ms of the index, tenant, fence,
--      attempt, epochs of prefill and decode worker (all empty: there is none), 1: it has a quota,
--      tokens that its tenant was charged, as far as the router knows: its first one knows best
-- returns 1, or 0 if another router has a higher fence
local claim, index, live = KEYS[1], KEYS[2], KEYS[3]
local router, submission, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local mine = router .. ' ' .. submission
local owner = redis.call('HGET', index, 'router')
if owner and owner ~= router and tonumber(redis.call('HGET', index, 'fence')) >= tonumber(ARGV[6]) then
  return 0
end
local holder = redis.call('GET', claim)
if not holder or string.match(holder, ' (%S+)$') == submission then
  redis.call('SET', claim, mine, 'PX', lease_ms)
end
if ARGV[7] ~= '' then
  redis.call('HSET', index, 'router', router, 'tenant', ARGV[5], 'fence', ARGV[6],
    'attempt', ARGV[7], 'prefill', ARGV[8], 'decode', ARGV[9])
  redis.call('HSETNX', index, 'charged', ARGV[11])
  redis.call('PEXPIRE', index, ARGV[4])
end
if ARGV[10] == '1' then
  local time = redis.call('TIME')
  redis.call('ZADD', live, time[1] * 1000 + time[2] / 1000 + lease_ms, submission)
  redis.call('PEXPIRE', live, lease_ms)
end
return 1

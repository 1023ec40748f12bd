-- A submission is over: its label is free, and its tenant's tokens are settled to those that it had.
-- May be run again: what is settled stays so.
--
-- KEYS claim, index, live submissions of the tenant, its quotas
-- ARGV router, submission, ms of quotas, tokens a minute (empty: no quota),
--      tokens that it had, tokens that were charged, as far as the router knows
local claim, index, live, quotas = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local router, submission, per_min = ARGV[1], ARGV[2], tonumber(ARGV[4])
local charged = redis.call('HGET', index, 'charged') or ARGV[6]
local more = tonumber(ARGV[5]) - tonumber(charged)
if redis.call('GET', claim) == router .. ' ' .. submission then
  redis.call('DEL', claim)
end
local owner = redis.call('HGET', index, 'router')
if owner == router then
  redis.call('DEL', index)
elseif owner then  -- it goes on there, and this much of it is settled
  redis.call('HSET', index, 'charged', ARGV[5])
end
if redis.call('ZREM', live, submission) == 1 and per_min then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + time[2] / 1000
  local had = redis.call('HMGET', quotas, 'tokens', 'tokens_at')
  local left = per_min
  if had[1] then
    left = math.min(per_min, had[1] + math.max(0, now - had[2]) * per_min / 60000)
  end
  redis.call('HSET', quotas, 'tokens', string.format('%.6f', math.min(per_min, left - more)),
    'tokens_at', string.format('%.3f', now))
  redis.call('PEXPIRE', quotas, ARGV[3])
end
return 1

-- Make a label a submission's, and take what it needs of its tenant's quotas: both or neither.
-- May be run again for the same submission: it takes nothing twice.
-- The quotas are those of router/tenants/bucket.py, kept in the store.
--
-- KEYS claim, live submissions of the tenant, its quotas
-- ARGV router, submission, ms of a lease, prefix of routers' keys, ms of quotas,
--      requests a second, tokens a minute, concurrent (each may be empty: no quota), tokens
-- returns {'held', router, submission} | {'short', quota, ms until it is there, left} | {'ok'}
local claim, live, quotas = KEYS[1], KEYS[2], KEYS[3]
local router, submission, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local per_s, per_min, most = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local tokens = tonumber(ARGV[9])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- What this router holds itself it knows better than we; what a dead one holds is nobody's, and
-- what another one holds for this very submission has passed on to this router.
local mine = router .. ' ' .. submission
local holder = redis.call('GET', claim)
if holder and holder ~= mine then
  local who, what = string.match(holder, '^(%S+) (%S+)$')
  if who and who ~= router and what ~= submission and redis.call('EXISTS', ARGV[4] .. who) == 1 then
    return {'held', who, what}
  end
end

local has_quota = per_s or per_min or most
if has_quota and not redis.call('ZSCORE', live, submission) then
  local function level(name, per_ms, capacity)
    local had = redis.call('HMGET', quotas, name, name .. '_at')
    if not had[1] then
      return capacity
    end
    return math.min(capacity, had[1] + math.max(0, now - had[2]) * per_ms)
  end
  local function set(name, left)
    redis.call('HSET', quotas, name, string.format('%.6f', left),
      name .. '_at', string.format('%.3f', now))
  end
  local function short(name, lacking, per_ms, left)
    return {'short', name, tostring(lacking / per_ms), tostring(left)}
  end
  redis.call('ZREMRANGEBYSCORE', live, '-inf', now)
  if most and redis.call('ZCARD', live) >= most then
    return {'short', 'concurrent', '', '0'}
  end
  local requests, left
  if per_s then
    requests = level('requests', per_s / 1000, math.max(1, per_s))
    if requests < 1 - 1e-6 then
      return short('requests', 1 - requests, per_s / 1000, requests)
    end
  end
  if per_min then
    left = level('tokens', per_min / 60000, per_min)
    local lacking = math.min(tokens, per_min) - left
    if lacking > 1e-6 then
      return short('tokens', lacking, per_min / 60000, left)
    end
  end
  if requests then set('requests', requests - 1) end
  if left then set('tokens', left - tokens) end
  redis.call('PEXPIRE', quotas, ARGV[5])
  redis.call('ZADD', live, now + lease_ms, submission)
  redis.call('PEXPIRE', live, lease_ms)
end
redis.call('SET', claim, mine, 'PX', lease_ms)
return {'ok'}

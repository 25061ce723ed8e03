-- This node is alive. KEYS: the nodes, the secret. ARGV: this node, or nothing if it is not counted, how long it is alive from now in µs, what it would have
-- the secret be. Answers how many nodes are alive, or -1 if that key is not one of ours, and the secret, or nothing if that
-- is not.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local nodes, secret = -1, ''
if is(KEYS[1], 'zset') then
  -- Who is alive until so late said so before the clock was set back, and will say so again.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + 60000000), '+inf')
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
  if ARGV[1] ~= '' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
    redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000) + 1)
  end
  nodes = redis.call('ZCARD', KEYS[1])
end
if is(KEYS[2], 'string') then
  redis.call('SET', KEYS[2], ARGV[3], 'NX')
  secret = redis.call('GET', KEYS[2])
end
return { nodes, secret }

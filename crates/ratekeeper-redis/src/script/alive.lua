-- This node is alive. KEYS: the nodes, the secret. ARGV: this node, or nothing if it is not counted, how long it is alive from now in µs, what it would have
-- the secret be, the digest of the limits of this node, or nothing if it does not know them. Answers how many nodes are
-- alive, or -1 if that key is not one of ours; the secret, or nothing if that is not; how many nodes have other limits.
-- A node is its name, and behind a colon the digest of its limits if it told one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local nodes, secret, others = -1, '', 0
if is(KEYS[1], 'zset') then
  -- Who is alive until so late said so before the clock was set back, and will say so again.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + 60000000), '+inf')
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
  local node = ARGV[4] == '' and ARGV[1] or ARGV[1] .. ':' .. ARGV[4]
  for _, known in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf')) do
    local name, digest = string.match(known, '^([^:]*):?(.*)$')
    if name == ARGV[1] then
      if known ~= node then redis.call('ZREM', KEYS[1], known) end
    elseif ARGV[4] ~= '' and digest ~= '' and digest ~= ARGV[4] then
      others = others + 1
    end
  end
  if ARGV[1] ~= '' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), node)
    redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000) + 1)
  end
  nodes = redis.call('ZCARD', KEYS[1])
end
if is(KEYS[2], 'string') then
  redis.call('SET', KEYS[2], ARGV[3], 'NX')
  secret = redis.call('GET', KEYS[2])
end
return { nodes, secret, others }

-- The heartbeat of a node.
-- KEYS: the nodes (a sorted set), the secret.
-- ARGV: this node's name, or empty if it is not counted; how long it counts as alive from now, in
-- µs; the secret that it offers; the digest of its limits, or empty if they are not known.
-- Returns how many nodes are alive, or -1 if that key is of another type; the secret, or an empty
-- string if that key is of another type; how many nodes have other limits.
-- A member of the set is a node's name, followed by a colon and the digest of its limits if it sent
-- one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local nodes, secret, others = -1, '', 0
if is(KEYS[1], 'zset') then
  -- Nodes that seem alive for so long were added before the clock was set back, and will be added
  -- again.
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

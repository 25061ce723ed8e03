-- The board: notices that nodes leave for each other. KEYS: the board, a hash. A notice is when it ends, in ms by this clock, a
-- space and its text; without the space it is the mark that it was taken down. A mark stays as long as the notice would have: what
-- is missing before its time was lost. `#version` is another after every change; who changes something brings it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local board, verb, MOST = KEYS[1], ARGV[1], 20000
local function get(field) return redis.call('HGET', board, field) end
local function put(field, value) redis.call('HSET', board, field, value) end
local function number(value) return string.format('%.0f', value) end
local function ends(value) return tonumber(string.match(value, '^%d+') or '0') end
-- What is over goes; answers what is left.
local function sweep()
  local all, left = redis.call('HGETALL', board), {}
  for at = 1, #all, 2 do
    if string.sub(all[at], 1, 1) ~= '#' then
      if ends(all[at + 1]) <= now then
        redis.call('HDEL', board, all[at])
      else
        left[#left + 1] = all[at]
        left[#left + 1] = all[at + 1]
      end
    end
  end
  return left
end
local function has_room() return redis.call('HLEN', board) < MOST or #sweep() / 2 < MOST - 1 end
local function write(field, lasts, rest)
  put(field, number(now + lasts) .. rest)
  -- It lives as long as what is on it.
  if redis.call('PTTL', board) < lasts then redis.call('PEXPIRE', board, number(lasts)) end
end

if verb == 'put' then
  -- ARGV: a version, the name, how long it lasts in ms, the text. Answers 1, or 0 if there is no room.
  if not get(ARGV[3]) and not has_room() then return 0 end
  write(ARGV[3], tonumber(ARGV[4]), ' ' .. ARGV[5])
  put('#version', ARGV[2])
  return 1
elseif verb == 'remove' then
  -- ARGV: a version, the name, how long the mark stays if nobody knows when the notice would have ended. Answers whether it
  -- was there.
  local before = get(ARGV[3])
  local there = before and ends(before) > now and string.find(before, ' ', 1, true)
  if before or has_room() then
    write(ARGV[3], there and ends(before) - now or tonumber(ARGV[4]), '')
    put('#version', ARGV[2])
  end
  return there and 1 or 0
elseif verb == 'restore' then
  -- ARGV: a version, then names, how long they last and the rest: put back where there is nothing.
  for at = 3, #ARGV, 3 do
    if not get(ARGV[at]) then write(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]) end
  end
  put('#version', ARGV[2])
  return 1
end
-- ARGV: the version that is known. Answers the time, the version, and what there is if it is not what is known.
local version = get('#version') or ''
local answer = { now, version }
if version == ARGV[2] then return answer end
for _, part in ipairs(sweep()) do answer[#answer + 1] = part end
return answer

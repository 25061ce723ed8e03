-- The notice board: short texts that nodes share. KEYS: the board, a hash.
-- The value of a notice is the time in ms when it ends, by this clock, followed by a space and its
-- text. Without the space it is the mark of a removed notice. A mark stays as long as the notice
-- would have, so a notice that is missing before its end was lost.
-- The field `#version` changes with the board; the caller of a change brings the new version.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local board, verb, MAX_NOTICES = KEYS[1], ARGV[1], 20000
local function get(field) return redis.call('HGET', board, field) end
local function put(field, value) redis.call('HSET', board, field, value) end
local function number(value) return string.format('%.0f', value) end
local function ends(value) return tonumber(string.match(value, '^%d+') or '0') end
-- Deletes what has ended and returns what is left.
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
local function has_space() return redis.call('HLEN', board) < MAX_NOTICES or #sweep() / 2 < MAX_NOTICES - 1 end
local function write(field, lasts, rest)
  put(field, number(now + lasts) .. rest)
  -- The board expires with the last of its notices.
  if redis.call('PTTL', board) < lasts then redis.call('PEXPIRE', board, number(lasts)) end
end

if verb == 'put' then
  -- ARGV: the version, the name, how long the notice lasts in ms, the text. Returns 1, or 0 if the
  -- board is full.
  if not get(ARGV[3]) and not has_space() then return 0 end
  write(ARGV[3], tonumber(ARGV[4]), ' ' .. ARGV[5])
  put('#version', ARGV[2])
  return 1
elseif verb == 'remove' then
  -- ARGV: the version, the name, how long to keep the mark if the end of the notice is not known.
  -- Returns whether there was a notice.
  local before = get(ARGV[3])
  local there = before and ends(before) > now and string.find(before, ' ', 1, true)
  if before or has_space() then
    write(ARGV[3], there and ends(before) - now or tonumber(ARGV[4]), '')
    put('#version', ARGV[2])
  end
  return there and 1 or 0
elseif verb == 'restore' then
  -- ARGV: the version, then names, how long each lasts, and the rest of the value. Existing fields
  -- are kept.
  for at = 3, #ARGV, 3 do
    if not get(ARGV[at]) then write(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]) end
  end
  put('#version', ARGV[2])
  return 1
end
-- ARGV: the known version. Returns the time, the version, and the contents if the version differs.
local version = get('#version') or ''
local answer = { now, version }
if version == ARGV[2] then return answer end
for _, part in ipairs(sweep()) do answer[#answer + 1] = part end
return answer

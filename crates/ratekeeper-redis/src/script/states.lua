-- Shared by both scripts: limits, keys and their states. Numbers are doubles, exact below 2^53;
-- times are in µs.
--
-- `now` is set before this. ARGV[1] holds the limits, 25 bytes each: a kind and three numbers.
--     0 bucket      units a µs, units a token, units in a full bucket
--     1 pacing      units a µs, units a call, units that may be ahead
--     2 fixed       window, most
--     3 first hit   window, most
--     4 sliding     window, most, grain
--     5 strict      window, most, steps
--     6 log         window, most
--     7 in flight   TTL of a permit, most
--     8 refundable  units a µs, units a token, units in a full bucket
-- The first ARGV[2] keys are strings, and are read at once. The others are lists or sets, and are
-- read as needed.
local call, pack, unpack_ = redis.call, struct.pack, struct.unpack
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local BIG, MAX_STEP_BACK = 4503599627370496, 60000000

local kind, n1, n2, n3 = {}, {}, {}, {}
do
  local at, packed, count = 1, ARGV[1], 0
  while at <= #packed do
    count = count + 1
    kind[count], n1[count], n2[count], n3[count], at = unpack_('>Bddd', packed, at)
  end
end

local texts = tonumber(ARGV[2])
local text = {}
if texts > 0 then
  text = call('MGET', unpack(KEYS, 1, texts))
  local absent = {}
  for k = 1, texts do
    if not text[k] then absent[#absent + 1] = KEYS[k] end
  end
  -- MGET returns nothing for a key of another type, as for a missing one; EXISTS tells them apart.
  if #absent > 0 and call('EXISTS', unpack(absent)) > 0 then
    for k = 1, texts do
      if not text[k] and call('EXISTS', KEYS[k]) == 1 then text[k] = '?' end
    end
  end
end

-- The state of a key: s1 is nil before it was read, and false if the key holds data of another
-- kind.
local s1, s2, s3, s4 = {}, {}, {}, {}
-- The time of the state: now, or the stored time if that is ahead.
local at = {}
-- Refunded, given, how long to remember that, number of resets: only of keys that were given
-- something back.
local cold = {}
-- Tokens out on lease and until when: the newest group, and all before it. Only of buckets that
-- have some out.
local lent = {}
-- The limit by which to write the key back.
local dirty = {}
-- Whether the state was stored in other units.
local other = {}

local function whole(x)
  return x == floor(x) and x > -BIG * 2 and x < BIG * 2
end

-- The time at which a state is decided. If the server's clock was set back, the stored time stands,
-- unless it is far ahead. Then the state is written back whatever becomes of the call; otherwise it
-- would be as far ahead at the next call, and time would never pass.
local function time_of(stored, k, l)
  if stored <= now then return now end
  if stored - now > MAX_STEP_BACK then
    dirty[k] = l
    return now
  end
  return stored
end

-- Converts units of one limit to those of another. Beyond what a double holds exactly, rounds down
-- further.
local function scaled(level, to, from)
  local product = level * to
  local result = floor(product / from)
  if product >= 2 * BIG or product <= -2 * BIG then result = result - 2 end
  return result
end

-- The capacity that leases do not occupy.
local function available_capacity(k, l)
  local out = lent[k]
  if not out then return n3[l] end
  return max(0, n3[l] - (out[1] + out[3]) * n2[l])
end

-- The level at `to`. Refill beyond the capacity is lost.
local function refilled(level, from, to, rate, capacity)
  if rate > 0 and level < capacity then level = level + min(to - from, ceil((capacity - level) / rate)) * rate end
  return min(level, capacity)
end

-- Ends leases whose time is over, each freeing its capacity at its time. Returns the level at
-- `time`.
local function end_leases(k, l, level, last, time)
  local out = lent[k]
  for i = 3, 1, -2 do
    if out[i] > 0 and time >= out[i + 1] then
      local ends = max(last, out[i + 1])
      level, last = refilled(level, last, ends, n1[l], available_capacity(k, l)), ends
      out[i] = 0
    end
  end
  local capacity = available_capacity(k, l)
  if out[1] + out[3] == 0 then lent[k] = nil end
  return refilled(level, last, time, n1[l], capacity)
end

-- Buckets: s1 units available, at time at; s2 units a token. Queues: s1 units ahead, negative; s2
-- units a µs.
local function load_units(k, l)
  local rate, full = n1[l], n3[l]
  local queue = kind[l] == 1
  local measure = queue and rate or n2[l]
  if queue then full = 0 end
  local level, last, was = s1[k], at[k], s2[k]
  if level == nil then
    local stored = text[k]
    if not stored then
      s1[k], s2[k], at[k] = full, measure, now
      return true
    end
    local held, out
    if #stored == 56 or #stored == 88 and not queue then
      local refunded, given, until_, resets
      level, last, was, refunded, given, until_, resets = unpack_('>ddddddd', stored)
      held = { refunded, given, until_, resets }
      if #stored == 88 then out = { unpack_('>dddd', stored, 57) } end
      for i = 1, 4 do
        if not whole(held[i]) or held[i] < 0 then level = nil end
        if out and (not whole(out[i]) or out[i] < 0) then level = nil end
      end
      if out and held[1] + held[2] + held[3] + held[4] == 0 then held = nil end
    elseif #stored == 24 then
      level, last, was = unpack_('>ddd', stored)
    end
    if not (level and whole(level) and whole(last) and whole(was) and last >= 0 and was >= 1) then
      s1[k] = false
      return false
    end
    if was ~= measure then
      level, was, other[k] = scaled(level, measure, was), measure, true
      if not whole(min(level, full)) then
        s1[k] = false
        return false
      end
    end
    cold[k], lent[k] = held, out
    local time = time_of(last, k, l)
    if last > time then
      -- Leases keep the time they have left, by the clock of now.
      if out then out[2], out[4] = max(0, out[2] - (last - time)), max(0, out[4] - (last - time)) end
      last = time
    end
    if out then
      level = end_leases(k, l, level, last, time)
    else
      level = refilled(level, last, time, rate, full)
    end
    s1[k], s2[k], at[k] = level, was, time
    return true
  end
  if level == false then return false end
  -- Another node's numbers, or those of before a change, in the same batch.
  if was ~= measure then
    s1[k], s2[k], other[k] = scaled(level, measure, was), measure, true
  end
  s1[k] = min(s1[k], queue and full or available_capacity(k, l))
  return true
end

-- Refundable buckets: s1 units ahead at time at, which may be negative; s2 units a token; s4 number
-- of resets and of times its charges were voided. books: the units ahead of the settled charges
-- alone; of all before the newer generation plus its settled ones; the pending units of the older
-- and of the newer generation; when each began; the latest charge. The formulas are those of
-- algorithm/refundable_bucket.rs in the core.
local books = {}

-- Voids the charges so far: they can no longer be settled, and what they took stays.
local function void_charges(k, ahead)
  s1[k], books[k], s4[k] = ahead, { ahead, ahead, 0, 0, 0, 0, 0 }, ((s4[k] or 0) + 1) % BIG
end

local function load_refundable(k, l)
  local rate, token = n1[l], n2[l]
  if s1[k] == false then return false end
  if s1[k] == nil then
    local stored = text[k]
    if not stored then
      s1[k], s2[k], at[k], books[k] = 0, token, now, { 0, 0, 0, 0, 0, 0, 0 }
      return true
    end
    local values = #stored == 88 and { unpack_('>ddddddddddd', stored) }
    for i = 1, 11 do
      -- The first three may be negative.
      if not (values and whole(values[i]) and (i < 4 or values[i] >= 0)) then
        s1[k] = false
        return false
      end
    end
    local last, was = values[4], values[5]
    if was < 1 then
      s1[k] = false
      return false
    end
    local time = time_of(last, k, l)
    local function passed(ahead) return max(-BIG, ahead - min(2 * BIG, max(0, time - last) * rate)) end
    s1[k], s2[k], s4[k], at[k] = passed(values[1]), was, values[11], time
    books[k] = { passed(values[2]), passed(values[3]), values[6], values[7], values[8], values[9], values[10] }
    if last > time then void_charges(k, max(0, s1[k])) end
  end
  if s2[k] ~= token then
    -- Rounded up: never more is left than before.
    void_charges(k, -scaled(-max(0, s1[k]), token, s2[k]))
    s2[k], other[k] = token, true
  end
  return true
end

-- Lowers the units ahead to what the settled and the pending charges account for. These were made
-- at the latest charge or before.
local function lower(k, ahead, book, rate)
  local base = max(-BIG, (book[7] - at[k]) * rate)
  ahead = min(ahead, max(base, book[1]) + book[3] + book[4])
  book[1], book[2] = min(book[1], ahead), min(book[2], ahead)
  return ahead
end

-- The units ahead and the books without the pending charges whose time has passed. The state is not
-- changed.
local function aged(k, rate)
  local ahead, book, time = s1[k], books[k], at[k]
  if book[2] > 0 or time <= book[7] then return ahead, book end
  book = { unpack(book) }
  for _ = 1, 2 do
    if book[2] <= 0 then
      book[1], book[2] = max(book[1], book[2]), ahead
      book[3], book[4] = book[4], 0
      book[5], book[6] = book[6], time
    end
  end
  return lower(k, ahead, book, rate), book
end

-- Books what a charge of that time has used.
local function book_used(k, book, charged_at, used, newer, rate)
  if used <= 0 then return end
  local base = max(-BIG, (charged_at - at[k]) * rate)
  book[1] = max(book[1], base) + used
  if newer then book[2] = max(book[2], base) + used end
end

-- Windows: s1 counts by window; s2 the time of the newest (a start, or the number of a step); s3
-- their window; s4 number of resets.
local COUNTS = { [2] = 1, [3] = 1, [4] = 2 }

local function roll(k, l)
  local window, counts, start = n1[l], s1[k], s2[k]
  if kind[l] == 3 then
    if counts[1] == 0 or now - start >= window then
      s1[k], s2[k] = { 0 }, max(now, start)
    end
  elseif kind[l] == 2 then
    local here = now - now % window
    if here > start then s1[k], s2[k] = { 0 }, here end
  elseif kind[l] == 4 then
    local here = now - now % window
    if here > start then
      s1[k], s2[k] = { 0, here - start == window and counts[1] or 0 }, here
    end
  else
    local step = window / n3[l]
    local passed = floor(now / step) - start
    if passed > 0 then
      local rolled = {}
      for i = 1, n3[l] + 1 do rolled[i] = counts[i + passed] or 0 end
      s1[k], s2[k] = rolled, start + passed
    end
  end
end

-- What was used in the window of a limit, by a state stored with another window.
local function used(l, counts, start, window)
  if kind[l] == 2 or kind[l] == 3 then
    return now - start < window and counts[1] or 0
  elseif kind[l] == 4 then
    local past = now - start
    if past < window then return counts[1] + ceil(counts[2] * (window - max(past, 0)) / window) end
    if past < 2 * window then return ceil(counts[1] * (2 * window - past) / window) end
    return 0
  end
  local total = 0
  for i = 1, #counts do total = total + counts[i] end
  return total
end

local function fresh(k, l)
  local window = n1[l]
  s3[k] = window
  if kind[l] == 5 then
    local counts = {}
    for i = 1, n3[l] + 1 do counts[i] = 0 end
    s1[k], s2[k] = counts, floor(now / (window / n3[l]))
  elseif kind[l] == 3 then
    s1[k], s2[k] = { 0 }, now
  else
    s1[k], s2[k] = kind[l] == 4 and { 0, 0 } or { 0 }, now - now % window
  end
end

local function load_counts(k, l)
  local window = n1[l]
  if s1[k] == false then return false end
  if s1[k] == nil then
    local stored = text[k]
    if not stored then
      fresh(k, l)
      return true
    end
    -- Their window, the newest, the counts, and the number of resets.
    local size = #stored / 8
    local least = 2 + (COUNTS[kind[l]] or 2)
    if size ~= floor(size) or size < least or size > 14 then
      s1[k] = false
      return false
    end
    local values = { unpack_('>' .. string.rep('d', size), stored) }
    for i = 1, size do
      if not whole(values[i]) or values[i] < 0 then
        s1[k] = false
        return false
      end
    end
    local counts, expected = {}, COUNTS[kind[l]]
    for i = 3, size - 1 do counts[i - 2] = values[i] end
    if expected and #counts ~= expected or values[1] < 1 or #counts < 1 then
      s1[k] = false
      return false
    end
    s1[k], s2[k], s3[k], s4[k] = counts, values[2], values[1], values[size]
    -- The clock was set back far: the counts stay, in the window of now.
    local ahead = values[2]
    if kind[l] == 5 then ahead = ahead * (values[1] / (#counts - 1)) end
    if ahead - now > MAX_STEP_BACK and ahead - now > values[1] then
      s2[k] = kind[l] == 5 and floor(now / (values[1] / (#counts - 1))) or kind[l] == 3 and now or now - now % values[1]
      dirty[k] = l
    end
  end
  if s3[k] ~= window then
    local spent = used(l, s1[k], s2[k], s3[k])
    if kind[l] == 5 and floor(now / (s3[k] / (#s1[k] - 1))) - s2[k] >= #s1[k] then spent = 0 end
    fresh(k, l)
    local counts = s1[k]
    counts[kind[l] == 5 and #counts or 1] = min(spent, n2[l])
  end
  roll(k, l)
  return true
end

local function push(k, time, count)
  local entry = string.format('%.0f', time)
  while count > 0 do
    local some, now_many = {}, min(count, 1000)
    for i = 1, now_many do some[i] = entry end
    call('RPUSH', KEYS[k], unpack(some))
    count = count - now_many
  end
end

-- Moves the times of a log back: the clock was set back far, and the entries count by the clock of
-- now.
local function move_log(k, l, by)
  local times = call('LRANGE', KEYS[k], 0, -1)
  for i = 1, #times do
    local time = tonumber(times[i])
    if not (time and whole(time)) then return false end
    times[i] = time - by
  end
  call('DEL', KEYS[k])
  for i = 1, #times do push(k, times[i], 1) end
  call('PEXPIRE', KEYS[k], expiry(n1[l]))
  return true
end

-- The reply of a command; nil if the key is of another type. Other errors are not the key's fault
-- and are raised.
local function of_our_type(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then return nil end
    error(answer.err)
  end
  return answer
end

-- A log is a list of times, oldest first. s1 is its length, s2 its newest time.
local function load_log(k, l)
  if s1[k] == nil then
    local length = of_our_type('LLEN', KEYS[k])
    if not length then
      s1[k] = false
      return false
    end
    local last = length > 0 and call('LINDEX', KEYS[k], -1)
    -- The key has ended meanwhile: see log_time.
    if not last then length = 0 end
    local newest = tonumber(last or 0)
    if not (newest and whole(newest) and newest >= 0) then
      s1[k] = false
      return false
    end
    if newest - now > MAX_STEP_BACK then
      if not move_log(k, l, newest - now) then
        s1[k] = false
        return false
      end
      newest = now
    end
    s1[k], s2[k] = length, newest
  end
  return s1[k] ~= false
end

-- An entry of a log: nil if it is not a time, false if the key has ended since its length was read.
-- That happens when the server's clock is stepped while the script runs: a TTL that was set after the
-- step back is in the past of the script.
local function log_time(k, age)
  local entry = call('LINDEX', KEYS[k], age)
  if not entry then return false end
  local time = tonumber(entry)
  return time and whole(time) and time or nil
end

-- How many entries of a log have left the window; nil if an entry is not a time.
local function expired(k, window, time)
  local low, high = 0, s1[k]
  while low < high do
    local middle = floor((low + high) / 2)
    -- The oldest first: most calls find few expired entries.
    if low == 0 and high == s1[k] then middle = 0 end
    local entry = log_time(k, middle)
    if entry == false then
      s1[k], s2[k] = 0, 0
      return 0
    elseif not entry then
      s1[k] = false
      return nil
    end
    if entry + window <= time then low = middle + 1 else high = middle end
  end
  return low
end

-- Writes `count` entries to a log of which `gone` have expired.
local function log_write(k, window, time, gone, count)
  local key = KEYS[k]
  if gone > 0 then call('LTRIM', key, gone, -1) end
  push(k, time, count)
  s1[k], s2[k] = s1[k] - gone + count, time
  call('PEXPIRE', key, expiry(time - now + window))
end

-- The suffix of the names of detached permits, which are not renewed: they end at the time set when
-- they were detached.
local DETACHED = '*'

-- Keeps the key as long as permits that end after so many µs; others may end later.
local function keep_permits(key, micros)
  local long = expiry(micros)
  if call('PTTL', key) < tonumber(long) then call('PEXPIRE', key, long) end
end

local function permits(k)
  if s1[k] == nil then
    s1[k] = of_our_type('ZCOUNT', KEYS[k], string.format('(%.0f', now), '+inf') or false
  end
  return s1[k]
end

-- Permits that end later than this were given before the clock was set back far: let them end when
-- new ones would. Detached permits may end later; their names are one letter longer.
local function end_late_permits(k, l)
  local ends, key = now + n1[l], KEYS[k]
  local late = call('ZRANGEBYSCORE', key, string.format('(%.0f', ends + MAX_STEP_BACK), '+inf', 'LIMIT', 0, 1000)
  for i = 1, #late do
    if #late[i] ~= 17 then call('ZADD', key, 'XX', string.format('%.0f', ends), late[i]) end
  end
end

local function write_back()
  for k, l in pairs(dirty) do
    local key = KEYS[k]
    if kind[l] < 2 then
      local full = kind[l] == 0 and n3[l] or 0
      local level, time, held, out = s1[k], at[k], cold[k], lent[k]
      if level >= full and not held and not out then
        call('DEL', key)
      else
        local packed
        if out then
          held = held or { 0, 0, 0, 0 }
          packed = pack('>ddddddddddd', level, time, s2[k], held[1], held[2], held[3], held[4], out[1], out[2], out[3], out[4])
        elseif held then
          packed = pack('>ddddddd', level, time, s2[k], held[1], held[2], held[3], held[4])
        else
          packed = pack('>ddd', level, time, s2[k])
        end
        if n1[l] == 0 then
          call('SET', key, packed)
        else
          local fills = time - now + (full - level) / n1[l]
          if held then fills = max(fills, held[3] - now) end
          if out then fills = fills + max(out[2], out[4], time) - time end
          call('PSETEX', key, expiry(fills), packed)
        end
      end
    elseif kind[l] == 8 then
      local ahead, time, book = s1[k], at[k], books[k]
      if ahead <= 0 and book[3] + book[4] + (s4[k] or 0) == 0 then
        call('DEL', key)
      else
        local packed = pack('>ddddddddddd', ahead, book[1], book[2], time, s2[k], book[3], book[4], book[5], book[6], book[7], s4[k] or 0)
        call('PSETEX', key, expiry(time - now + max(0, ahead) / n1[l]), packed)
      end
    else
      local counts, window = s1[k], s3[k]
      local ends
      if kind[l] == 5 then
        ends = (s2[k] + n3[l] + 1) * (window / n3[l])
      else
        ends = s2[k] + window * (kind[l] == 4 and 2 or 1)
      end
      local packed = pack('>dd', window, s2[k])
      for i = 1, #counts do packed = packed .. pack('>d', counts[i]) end
      packed = packed .. pack('>d', s4[k] or 0)
      call('PSETEX', key, expiry(ends - now), packed)
    end
  end
end

-- Decides requests one after the other, each over all of its limits or none.
--
-- ARGV[3] holds the requests: the number of asks, then each ask: its key, its limit and flags:
--     1   shadow
--     2   peek
--     4   the names of its permits come last
--     8   three numbers follow: cost, reserve, longest wait in µs or -1
--     16  a lease of at least the cost; after those numbers come how many tokens are wanted, their TTL,
--         and the time after which the request is void
--
-- Returns integers. First the time. Then for each ask of a bucket or queue one integer: the units
-- ahead. For other limits three: what remains, and the µs until the limit is full again and until
-- the same call is allowed. The first is -1 - value if the ask does not fit. For a lease two more:
-- the tokens granted and their TTL. For a request with a key that holds data of another kind: BAD
-- and the index of the ask.
-- At the end, for each charged bucket or window that was refunded or reset or has tokens out on
-- lease: the index of the ask among all, what was refunded and given, the number of resets, and the
-- tokens out on lease.
local BAD = 9007199254740991
local answer, tail = { now }, {}
local answered = 1

-- Each of these decides one ask, and charges it if `write` is set and it fits. Returns whether it
-- fits and its numbers; nil if the key is bad.
local function units(k, l, cost, reserve, wait, write)
  if not load_units(k, l) then return nil end
  local rate, token, capacity = n1[l], n2[l], n3[l]
  local need = cost * token
  local ahead
  if kind[l] == 0 then
    ahead = capacity - s1[k]
    capacity = capacity - reserve * token
    local max_wait = (reserve == 0 and wait > 0) and wait * rate or 0
    if need > capacity or ahead + need > capacity + max_wait or ahead + need > BIG then return false, ahead end
  else
    ahead = -s1[k]
    capacity = capacity - reserve * token
    local longest = wait >= 0 and min(capacity, wait * rate) or capacity
    if cost > floor(capacity / token) + 1 or ahead > longest or ahead + need > BIG then return false, ahead end
  end
  if write and cost > 0 then
    s1[k] = s1[k] - need
    dirty[k] = l
    ahead = ahead + need
  end
  return true, ahead
end

local function refundable(k, l, cost, reserve, _, write)
  if not load_refundable(k, l) then return nil end
  local token, capacity = n2[l], n3[l] - reserve * n2[l]
  local state, book = aged(k, n1[l])
  local ahead, need = max(0, state), cost * token
  if need > capacity or ahead + need > capacity then return false, ahead end
  if write and cost > 0 then
    s1[k], books[k], dirty[k] = ahead + need, { unpack(book) }, l
    books[k][4], books[k][7] = book[4] + need, at[k]
    -- More is pending than can be counted exactly: none of it can be refunded.
    if books[k][4] > BIG then void_charges(k, s1[k]) end
    ahead = ahead + need
  end
  return true, ahead
end

local function counts(k, l, cost, reserve, _, write)
  if not load_counts(k, l) then return nil end
  local which, window, most = kind[l], n1[l], n2[l] - reserve
  local held, start = s1[k], s2[k]
  local fits, retry
  if which < 4 then
    fits = cost <= max(0, most - held[1])
    retry = start + window - now
    if fits and write and cost > 0 then
      held[1] = held[1] + cost
      dirty[k] = l
    end
    return fits, max(0, most - held[1]), held[1] == 0 and 0 or retry, fits and 0 or max(0, retry)
  elseif which == 4 then
    local grain = n3[l]
    local grains = ceil(window / grain)
    local inside = grains - floor(max(0, now - start) / grain)
    fits = cost <= most and held[2] * inside + (held[1] + cost) * grains <= most * grains
    if fits and write and cost > 0 then
      held[1] = held[1] + cost
      dirty[k] = l
    end
    if fits then
      retry = 0
    elseif cost > most then
      retry = 0
    elseif held[1] + cost <= most then
      local share = min(grains, floor((most - held[1] - cost) * grains / max(1, held[2])))
      retry = start + min(window, (grains - share) * grain) - now
    else
      local share = min(grains, floor((most - cost) * grains / max(1, held[1])))
      retry = start + window + min(window, (grains - share) * grain) - now
    end
    local fresh_in = held[1] > 0 and start + 2 * window - now or held[2] > 0 and start + window - now or 0
    return fits, max(0, most - held[1] - ceil(held[2] * inside / grains)), fresh_in, max(0, retry)
  end
  local steps = n3[l]
  local length, total, newest = window / steps, 0, nil
  for i = 1, steps + 1 do
    total = total + held[i]
    if held[i] > 0 then newest = i end
  end
  fits = cost <= most and total + cost <= most
  retry = 0
  if fits then
    if write and cost > 0 then
      held[steps + 1] = held[steps + 1] + cost
      total, newest = total + cost, steps + 1
      dirty[k] = l
    end
  elseif cost <= most then
    local over = total + cost - most
    local dropped = 0
    while over > 0 and dropped <= steps do
      dropped = dropped + 1
      over = over - held[dropped]
    end
    retry = (start + dropped) * length - now
  end
  return fits, max(0, most - total), newest and (start + newest) * length - now or 0, max(0, retry)
end

local function log(k, l, cost, reserve, _, write)
  if not load_log(k, l) then return nil end
  local window, most = n1[l], n2[l] - reserve
  local time = max(now, s2[k])
  local gone = expired(k, window, time)
  if not gone then return nil end
  local live, newest = s1[k] - gone, s2[k]
  if cost <= most and live + cost <= most then
    if write and cost > 0 then
      log_write(k, window, time, gone, cost)
      live, newest = live + cost, time
    end
    return true, most - live, live > 0 and newest + window - now or 0, 0
  end
  local retry = 0
  if cost <= most then
    local entry = log_time(k, gone + live + cost - most - 1)
    if not entry then return nil end
    retry = entry + window - now
  end
  return false, max(0, most - live), live > 0 and newest + window - now or 0, max(0, retry)
end

local function in_flight(k, l, cost, reserve, _, write, name)
  local live, most = permits(k), n2[l] - reserve
  if not live then return nil end
  if live + cost > most then
    end_late_permits(k, l)
    return false, max(0, most - live), 0, 0
  end
  if write and cost > 0 then
    local key, ends = KEYS[k], string.format('%.0f', now + n1[l])
    call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
    for i = 1, #name, 16 do call('ZADD', key, ends, string.sub(name, i, i + 15)) end
    keep_permits(key, n1[l])
    live = live + cost
    s1[k] = live
  end
  return true, most - live, 0, 0
end

-- How many of the free tokens one node is granted: at most half of them or an eighth of the limit,
-- but at least what it needs now.
local function grantable(free, most, least, want)
  if free < max(1, least) then return 0 end
  return min(free, max(least, min(want, floor(free / 2), floor(most / 8))))
end

-- Leases of a bucket are taken from it, and remembered until they have certainly ended.
local function lease_units(k, l, least, want, ttl)
  if not load_units(k, l) then return nil end
  local token, full = n2[l], n3[l]
  local given = grantable(floor(max(0, s1[k]) / token), floor(full / token), least, want)
  if given > 0 then
    local time, out = at[k], lent[k]
    if not out then
      out = { 0, 0, 0, 0 }
      lent[k] = out
    end
    if out[1] == 0 or out[2] < time + ttl then
      if out[1] > 0 then out[3], out[4] = out[3] + out[1], out[2] end
      out[1], out[2] = 0, max(time + 2 * ttl, out[3] > 0 and out[4] or 0)
    end
    out[1] = out[1] + given
    s1[k] = s1[k] - given * token
    dirty[k] = l
  end
  return given > 0, full - s1[k], 0, 0, given, ttl
end

-- Leases of a window are charged to it and end with it; those of a window in steps, with the step.
local function lease_counts(k, l, least, want)
  local fits, free = counts(k, l, 0, 0, -1, false)
  if fits == nil then return nil end
  local given = grantable(free, n2[l], least, want)
  local ends = kind[l] == 5 and (s2[k] + 1) * (n1[l] / n3[l]) or s2[k] + n1[l]
  local remaining, fresh_in, retry
  fits, remaining, fresh_in, retry = counts(k, l, max(1, given, least), 0, -1, given > 0)
  return given > 0, remaining, fresh_in, retry, given, max(0, ends - now)
end

-- Leases of a log are entered when they are granted. The caller sends a window that is longer by
-- their TTL.
local function lease_log(k, l, least, want, ttl)
  local fits, free = log(k, l, 0, 0, -1, false)
  if fits == nil then return nil end
  local given = grantable(free, n2[l], least, want)
  local remaining, fresh_in, retry
  fits, remaining, fresh_in, retry = log(k, l, max(1, given, least), 0, -1, given > 0)
  if fits == nil then return nil end
  return given > 0, remaining, fresh_in, retry, given, ttl
end

local lease = { [0] = lease_units, [2] = lease_counts, [4] = lease_counts, [5] = lease_counts, [6] = lease_log }

local deciders = { [0] = units, units, counts, counts, counts, counts, log, in_flight, refundable }

local keys, limits, flags, costs, reserves, waits, names = {}, {}, {}, {}, {}, {}, {}
local fit, f1, f2, f3, f4, f5 = {}, {}, {}, {}, {}, {}
local wants, ttl, expires = {}, {}, {}

local function ask(i, write)
  local l = limits[i]
  fit[i], f1[i], f2[i], f3[i] = deciders[kind[l]](keys[i], l, costs[i], reserves[i], waits[i], write, names[i])
end

-- The fast path, for most requests: one unit of one bucket that was stored with the same units.
-- Returns the number to answer; nil if the slow path must decide.
local function plain(k, l)
  local rate, token, full = n1[l], n2[l], n3[l]
  local level = s1[k]
  if level == nil then
    local stored = text[k]
    if stored then
      if #stored ~= 24 then return nil end
      local last, was
      level, last, was = unpack_('>ddd', stored)
      if was ~= token or level % 1 ~= 0 or last % 1 ~= 0 or last > now or last < 0 or level > full or level < -BIG then
        return nil
      end
      -- Beyond what a double holds exactly, the bucket is full anyway.
      level = level + (now - last) * rate
      if level > full then level = full end
    else
      level = full
    end
    s1[k], s2[k], at[k] = level, token, now
  elseif level == false or s2[k] ~= token or level > full or cold[k] or lent[k] then
    return nil
  end
  local ahead = full - level
  if ahead + token > full then return -1 - ahead end
  s1[k] = level - token
  dirty[k] = l
  return ahead + token
end

local packed, place, asked = ARGV[3], 1, 0
local size = #packed
while place <= size do
  local count, key, limit, flag, after = unpack_('>HHHB', packed, place)
  local quick = count == 1 and flag == 0 and kind[limit] == 0 and plain(key, limit)
  if quick then
    answered = answered + 1
    answer[answered] = quick
    place, count = after, 0
    asked = asked + 1
  else
    place = place + 2
  end
  for i = 1, count do
    local flag
    keys[i], limits[i], flag, place = unpack_('>HHB', packed, place)
    costs[i], reserves[i], waits[i], wants[i] = 1, 0, -1, nil
    local leases = flag >= 16
    if leases then flag = flag - 16 end
    if flag >= 8 then
      costs[i], reserves[i], waits[i], place = unpack_('>ddd', packed, place)
      flag = flag - 8
    end
    if leases then wants[i], ttl[i], expires[i], place = unpack_('>ddd', packed, place) end
    if flag >= 4 then
      names[i] = string.sub(packed, place, place + 16 * costs[i] - 1)
      place = place + 16 * costs[i]
      flag = flag - 4
    end
    flags[i] = flag
  end
  local bad, denied
  if count == 0 then
    -- The fast path has answered.
  elseif count == 1 and wants[1] then
    -- A void request would not be spent: ask for more than there can be.
    local least = now > expires[1] and BIG or costs[1]
    fit[1], f1[1], f2[1], f3[1], f4[1], f5[1] = lease[kind[limits[1]]](keys[1], limits[1], least, wants[1], ttl[1])
    if fit[1] == nil then bad = 1 end
    denied = true
  elseif count == 1 and flags[1] == 0 then
    ask(1, true)
    if fit[1] == nil then bad = 1 end
    denied = not fit[1]
  else
    for i = 1, count do
      ask(i, false)
      if fit[i] == nil then
        bad = i
        break
      end
      if not fit[i] and flags[i] ~= 1 then denied = true end
    end
    if not bad and not denied then
      -- Shadow asks come after those that decide.
      for i = 1, count do
        if flags[i] == 0 then ask(i, true) end
      end
      for i = 1, count do
        if flags[i] == 1 then ask(i, true) end
      end
    end
  end
  if bad then
    answer[answered + 1], answer[answered + 2] = BAD, bad - 1
    answered = answered + 2
  else
    for i = 1, count do
      answered = answered + 1
      answer[answered] = fit[i] and f1[i] or -1 - f1[i]
      if kind[limits[i]] > 1 and kind[limits[i]] < 8 then
        -- In a log out of order these times may be past; they are returned as 0.
        answer[answered + 1], answer[answered + 2] = max(0, f2[i]), max(0, f3[i])
        answered = answered + 2
      end
      if wants[i] then
        answer[answered + 1], answer[answered + 2] = f4[i], f5[i]
        answered = answered + 2
      end
      local held, resets, out = cold[keys[i]], s4[keys[i]], lent[keys[i]]
      -- The charge is settled by the time it was booked.
      if kind[limits[i]] == 8 then held = { books[keys[i]][7], 0, 0, resets or 0 } end
      if (held or out or resets and resets > 0) and not denied and fit[i] then
        held = held or { 0, 0, 0, resets or 0 }
        local size = #tail
        tail[size + 1], tail[size + 2], tail[size + 3], tail[size + 4] = asked + i - 1, held[1], held[2], held[4]
        tail[size + 5] = out and out[1] + out[3] or 0
      end
    end
  end
  asked = asked + count
end
for i = 1, #tail do answer[answered + i] = tail[i] end
write_back()
return answer

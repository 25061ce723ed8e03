-- Amends what was charged before, one key after the other.
--
-- ARGV[3] holds the amendments: a kind, the key, the limit, and seven numbers. Returns the outcome
-- of each, in whole tokens rounded up, or -1 if the key holds data of another kind.
--     0 refund          units unused, when it was charged, units ahead after and before the charge,
--                       refunded and given by then, number of resets.
--                       Windows: count, when, which window (its start, number or time).
--                       Refundable buckets: units unused, when it was booked, units charged,
--                       tokens to charge in addition.
--     1 charge more     how many
--     2 grant           how many
--     3 reset
--     4 renew permits   their TTL from now, or 0 to release them; the names follow
--     5 detach permits  their TTL from now, without renewal; the names follow
--     6 nothing
-- A kind plus 16 is executed once: after the numbers come the key of the mark, its TTL in ms, and
-- the number of the attempt.
local answer = {}
local ALREADY_DONE = 9007199254740991

local function amend_units(what, k, l, a, b, c, d, e, f, g)
  if not text[k] and s1[k] == nil and what ~= 1 then return 0 end
  if not load_units(k, l) then return -1 end
  local rate, token, full = n1[l], n2[l], n3[l]
  local queue = kind[l] == 1
  -- Tokens out on lease are neither ahead nor available.
  local base = queue and 0 or available_capacity(k, l)
  local ahead, held = base - s1[k], cold[k]
  local function keep()
    if not cold[k] then cold[k] = { 0, 0, 0, 0 } end
    -- Until time has repaid all that was charged before this.
    local until_ = at[k] + (rate > 0 and ceil(ahead / rate) or 0)
    cold[k][3] = max(cold[k][3], until_)
    return cold[k]
  end
  local changed, shifts = 0, false
  if what == 0 then
    if (held and held[4] or 0) ~= g or other[k] then return 0 end
    if queue then
      -- A slot at the end of the queue that has not begun can be given back.
      if c - (at[k] - b) * rate ~= ahead or held and held[2] ~= f then return 0 end
      changed = min(ahead, a)
    else
      local refunded = held and (held[1] - e) % BIG or 0
      local given = held and (held[2] - f) % BIG or 0
      local rest = c - min(BIG, (at[k] - b) * rate)
      if rest > full and a == c - d and base == full then
        -- All of it, before its time has come: give back what no later charge was promised.
        local since = max(0, ahead + given - rest)
        changed = max(0, a - since)
        shifts = since > 0
      else
        local unrepaid = max(0, rest - min(refunded, d))
        local debt = max(0, ahead + given - base)
        changed = max(0, min(a, unrepaid) - debt)
      end
    end
    if changed == 0 then return 0 end
    if not queue then
      local kept = keep()
      kept[1] = (kept[1] + changed) % BIG
      if shifts then kept[2] = (kept[2] + changed) % BIG end
    end
    s1[k] = min(base, s1[k] + changed)
  elseif what == 1 then
    local most = queue and floor(full / token) + 1 or floor(full / token)
    changed = min(a, most) * token
    s1[k] = s1[k] - changed
  elseif what == 2 then
    changed = min(ahead, a * token)
    if changed <= 0 then return 0 end
    local kept = keep()
    kept[2] = (kept[2] + changed) % BIG
    s1[k] = s1[k] + changed
  else
    local kept = keep()
    kept[4] = (kept[4] + 1) % BIG
    -- Earlier charges may be as far ahead as a full bucket and a debt: remember the reset that
    -- long.
    if rate > 0 then kept[3] = max(kept[3], at[k] + ceil(full / rate)) end
    s1[k], changed = base, ahead
  end
  dirty[k] = l
  return ceil(changed / token)
end

local function amend_refundable(what, k, l, a, b, c, d, g)
  if not text[k] and s1[k] == nil and what ~= 1 and d == 0 then return 0 end
  local rate, token, full = n1[l], n2[l], n3[l]
  -- A refund in units of before a change would void the pending charges made since.
  local was = s2[k] or text[k] and #text[k] == 88 and unpack_('>d', text[k], 33) or token
  if what == 0 and d == 0 and was ~= token then return 0 end
  if not load_refundable(k, l) then return -1 end
  local before = max(0, s1[k])
  if what == 0 then
    local book = books[k]
    if (s4[k] or 0) == g and b >= book[5] then
      local newer = b >= book[6]
      local place = newer and 4 or 3
      book[place] = max(0, book[place] - c)
      book_used(k, book, b, max(0, c - a), newer, rate)
      s1[k] = lower(k, s1[k], book, rate)
      dirty[k] = l
    end
    a = d
  end
  local changed = before - max(0, s1[k])
  if what < 2 then
    local extra = min(a, floor(full / token)) * token
    if extra > 0 then
      local ahead, book = aged(k, rate)
      book = { unpack(book) }
      book_used(k, book, at[k], extra, true, rate)
      s1[k], books[k], dirty[k] = max(0, ahead) + extra, book, l
      if what == 1 then changed = extra end
    end
  elseif what == 2 then
    changed = min(before, a * token)
    s1[k] = s1[k] - changed
    books[k][1], books[k][2] = books[k][1] - changed, books[k][2] - changed
    dirty[k] = l
  else
    changed = before
    void_charges(k, 0)
    dirty[k] = l
  end
  return ceil(changed / token)
end

local function total(held)
  local sum = 0
  for i = 1, #held do sum = sum + held[i] end
  return sum
end

local function amend_counts(what, k, l, a, c, g)
  if not text[k] and s1[k] == nil and what ~= 1 then return 0 end
  if not load_counts(k, l) then return -1 end
  local held, which, most = s1[k], kind[l], n2[l]
  local newest = which == 5 and #held or 1
  local changed = 0
  if what == 0 then
    if (s4[k] or 0) ~= g then return 0 end
    local place
    if c == s2[k] then
      place = newest
    elseif which == 4 and s2[k] - c == n1[l] then
      place = 2
    elseif which == 5 and c < s2[k] and s2[k] - c <= n3[l] then
      place = newest - (s2[k] - c)
    end
    if not place then return 0 end
    changed = min(a, held[place])
    held[place] = held[place] - changed
  elseif what == 1 then
    -- A full window stays full.
    local counted = which == 5 and total(held) or held[1]
    changed = max(0, min(a, most - counted))
    held[newest] = held[newest] + changed
  elseif what == 2 then
    local gift = min(a, held[newest])
    if which == 4 then
      local past = max(0, now - s2[k])
      gift = min(a, held[1] + ceil(held[2] * (n1[l] - past) / n1[l]), most)
      changed = min(gift, held[1])
      held[1] = held[1] - changed
      changed = gift
    else
      held[newest], changed = held[newest] - gift, gift
    end
  else
    changed = total(held)
    for i = 1, #held do held[i] = 0 end
    s4[k] = ((s4[k] or 0) + 1) % BIG
  end
  dirty[k] = l
  return changed
end

local function amend_log(what, k, l, a, c)
  if not load_log(k, l) then return -1 end
  local window, most = n1[l], n2[l]
  local key = KEYS[k]
  if what == 3 then
    s1[k], s2[k] = 0, 0
    return call('DEL', key)
  end
  if s1[k] == 0 and what ~= 1 then return 0 end
  local changed
  if what == 0 then
    changed = a > 0 and call('LREM', key, a, string.format('%.0f', c)) or 0
    s1[k] = nil
    return changed
  end
  local time = max(now, s2[k])
  local gone = expired(k, window, time)
  if not gone then return -1 end
  local live = s1[k] - gone
  if what == 2 then
    changed = min(a, live)
    call('LTRIM', key, gone + changed, -1)
    s1[k] = nil
    return changed
  end
  changed = max(0, min(a, most - live))
  if changed > 0 then log_write(k, window, time, gone, changed) end
  return changed
end

local function amend_permits(k, a, names)
  local key, done = KEYS[k], 0
  for i = 1, #names, 16 do
    local name = string.sub(names, i, i + 15)
    local did
    if a > 0 then
      did = of_our_type('ZADD', key, 'XX', 'CH', string.format('%.0f', now + a), name)
    else
      did = of_our_type('ZREM', key, name, name .. DETACHED)
    end
    if not did then return -1 end
    done = done + did
  end
  if a > 0 then keep_permits(key, a) end
  s1[k] = nil
  return done
end

local function detach_permits(k, a, names)
  local key, done = KEYS[k], 0
  for i = 1, #names, 16 do
    local name = string.sub(names, i, i + 15)
    local did = of_our_type('ZREM', key, name)
    if not did then return -1 end
    -- Permits that have expired or were released stay so.
    if did == 1 then call('ZADD', key, string.format('%.0f', now + a), name .. DETACHED) end
    done = done + did
  end
  if done > 0 then keep_permits(key, a) end
  s1[k] = nil
  return done
end

-- Whether to execute the amendment now. If not, also the outcome: 0 if the same attempt arrived
-- twice, else ALREADY_DONE.
local function is_first(mark, keep, attempt)
  if call('SET', KEYS[mark], attempt, 'NX', 'PX', string.format('%.0f', keep)) then return true end
  return false, of_our_type('GET', KEYS[mark]) == attempt and 0 or ALREADY_DONE
end

local packed, place = ARGV[3], 1
while place <= #packed do
  local what, k, l, a, b, c, d, e, f, g
  what, k, l, a, b, c, d, e, f, g, place = unpack_('>BHHddddddd', packed, place)
  local which, outcome, first, names = kind[l], nil, true, nil
  if what >= 16 then
    local mark, keep, attempt
    what = what - 16
    mark, keep, attempt, place = unpack_('>Hdc16', packed, place)
    first, outcome = is_first(mark, keep, attempt)
  end
  if what == 4 or what == 5 then
    names = string.sub(packed, place, place + b - 1)
    place = place + b
  end
  if not first then
    -- The outcome is known.
  elseif what == 6 then
    outcome = 0
  elseif what == 5 then
    outcome = detach_permits(k, a, names)
  elseif what == 4 then
    outcome = amend_permits(k, a, names)
  elseif which < 2 then
    outcome = amend_units(what, k, l, a, b, c, d, e, f, g)
  elseif which == 8 then
    outcome = amend_refundable(what, k, l, a, b, c, d, g)
  elseif which < 6 then
    outcome = amend_counts(what, k, l, a, c, g)
  else
    outcome = amend_log(what, k, l, a, c)
  end
  answer[#answer + 1] = outcome
end
write_back()
return answer

-- Corrects what was charged before, one key after the other.
--
-- ARGV[3] holds the amendments: what to do, the key, the limit, and seven numbers. Answers for each what came of it, in whole
-- tokens rounded up, or -1 if the key is not one of ours.
--   0 give back     units unused, when it was charged, units ahead after and before, refunded and given by then,
--                   how often made fresh (windows: how many, when, and which, by its start or number or time; refundable
--                   buckets: units unused, when it was booked, units charged, tokens to charge beyond it)
--   1 charge more   how many
--   2 grant         how many
--   3 make fresh
--   4 renew or give up permits: how long they live from now, or 0; the names follow
--   5 let permits go: how long they live from now, though nobody renews them; the names follow
--   6 nothing
-- What is 16 more is done once: behind the numbers are the key that remembers it, for how many ms, and who does it.
local answer = {}
local BEFORE = 9007199254740991

local function amend_units(what, k, l, a, b, c, d, e, f, g)
  if not text[k] and s1[k] == nil and what ~= 1 then return 0 end
  if not load_units(k, l) then return -1 end
  local rate, token, full = n1[l], n2[l], n3[l]
  local queue = kind[l] == 1
  -- What is out on lease is neither ahead nor to be had.
  local base = queue and 0 or room_of(k, l)
  local ahead, held = base - s1[k], cold[k]
  local function keep()
    if not cold[k] then cold[k] = { 0, 0, 0, 0 } end
    -- Until time has repaid all that was charged before this.
    local until_ = at[k] + (rate > 0 and ceil(ahead / rate) or 0)
    cold[k][3] = max(cold[k][3], until_)
    return cold[k]
  end
  local come, shifts = 0, false
  if what == 0 then
    if (held and held[4] or 0) ~= g or other[k] then return 0 end
    if queue then
      -- What is at the end of the queue and has not begun can be taken back.
      if c - (at[k] - b) * rate ~= ahead or held and held[2] ~= f then return 0 end
      come = min(ahead, a)
    else
      local refunded = held and (held[1] - e) % BIG or 0
      local given = held and (held[2] - f) % BIG or 0
      local rest = c - min(BIG, (at[k] - b) * rate)
      if rest > full and a == c - d and base == full then
        -- All of it, and its time has not come: what nobody was promised since comes back.
        local since = max(0, ahead + given - rest)
        come = max(0, a - since)
        shifts = since > 0
      else
        local unrepaid = max(0, rest - min(refunded, d))
        local debt = max(0, ahead + given - base)
        come = max(0, min(a, unrepaid) - debt)
      end
    end
    if come == 0 then return 0 end
    if not queue then
      local kept = keep()
      kept[1] = (kept[1] + come) % BIG
      if shifts then kept[2] = (kept[2] + come) % BIG end
    end
    s1[k] = min(base, s1[k] + come)
  elseif what == 1 then
    local most = queue and floor(full / token) + 1 or floor(full / token)
    come = min(a, most) * token
    s1[k] = s1[k] - come
  elseif what == 2 then
    come = min(ahead, a * token)
    if come <= 0 then return 0 end
    local kept = keep()
    kept[2] = (kept[2] + come) % BIG
    s1[k] = s1[k] + come
  else
    local kept = keep()
    kept[4] = (kept[4] + 1) % BIG
    -- Charges of before may be as far ahead as a full bucket and a debt: remember this as long.
    if rate > 0 then kept[3] = max(kept[3], at[k] + ceil(full / rate)) end
    s1[k], come = base, ahead
  end
  dirty[k] = l
  return ceil(come / token)
end

local function amend_refundable(what, k, l, a, b, c, d, g)
  if not text[k] and s1[k] == nil and what ~= 1 and d == 0 then return 0 end
  local rate, token, full = n1[l], n2[l], n3[l]
  -- A refund in the units of before a change would make the pending charges of since void.
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
  local come = before - max(0, s1[k])
  if what < 2 then
    local extra = min(a, floor(full / token)) * token
    if extra > 0 then
      local ahead, book = aged(k, rate)
      book = { unpack(book) }
      book_used(k, book, at[k], extra, true, rate)
      s1[k], books[k], dirty[k] = max(0, ahead) + extra, book, l
      if what == 1 then come = extra end
    end
  elseif what == 2 then
    come = min(before, a * token)
    s1[k] = s1[k] - come
    books[k][1], books[k][2] = books[k][1] - come, books[k][2] - come
    dirty[k] = l
  else
    come = before
    void_charges(k, 0)
    dirty[k] = l
  end
  return ceil(come / token)
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
  local come = 0
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
    come = min(a, held[place])
    held[place] = held[place] - come
  elseif what == 1 then
    -- What is full stays full.
    local counted = which == 5 and total(held) or held[1]
    come = max(0, min(a, most - counted))
    held[newest] = held[newest] + come
  elseif what == 2 then
    local gift = min(a, held[newest])
    if which == 4 then
      local past = max(0, now - s2[k])
      gift = min(a, held[1] + ceil(held[2] * (n1[l] - past) / n1[l]), most)
      come = min(gift, held[1])
      held[1] = held[1] - come
      come = gift
    else
      held[newest], come = held[newest] - gift, gift
    end
  else
    come = total(held)
    for i = 1, #held do held[i] = 0 end
    s4[k] = ((s4[k] or 0) + 1) % BIG
  end
  dirty[k] = l
  return come
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
  local come
  if what == 0 then
    come = a > 0 and call('LREM', key, a, string.format('%.0f', c)) or 0
    s1[k] = nil
    return come
  end
  local time = max(now, s2[k])
  local gone = expired(k, window, time)
  if not gone then return -1 end
  local live = s1[k] - gone
  if what == 2 then
    come = min(a, live)
    call('LTRIM', key, gone + come, -1)
    s1[k] = nil
    return come
  end
  come = max(0, min(a, most - live))
  if come > 0 then log_write(k, window, time, gone, come) end
  return come
end

local function amend_permits(k, a, names)
  local key, done = KEYS[k], 0
  for i = 1, #names, 16 do
    local name = string.sub(names, i, i + 15)
    local did
    if a > 0 then
      did = of_our_type('ZADD', key, 'XX', 'CH', string.format('%.0f', now + a), name)
    else
      did = of_our_type('ZREM', key, name, name .. LET_GO)
    end
    if not did then return -1 end
    done = done + did
  end
  if a > 0 then keep_permits(key, a) end
  s1[k] = nil
  return done
end

local function let_permits_go(k, a, names)
  local key, done = KEYS[k], 0
  for i = 1, #names, 16 do
    local name = string.sub(names, i, i + 15)
    local did = of_our_type('ZREM', key, name)
    if not did then return -1 end
    -- What has ended or was given up stays so.
    if did == 1 then call('ZADD', key, string.format('%.0f', now + a), name .. LET_GO) end
    done = done + did
  end
  if done > 0 then keep_permits(key, a) end
  s1[k] = nil
  return done
end

-- Whether it is done now; else what came of it: nothing more where the same comes twice.
local function is_first(mark, keep, who)
  if call('SET', KEYS[mark], who, 'NX', 'PX', string.format('%.0f', keep)) then return true end
  return false, of_our_type('GET', KEYS[mark]) == who and 0 or BEFORE
end

local packed, place = ARGV[3], 1
while place <= #packed do
  local what, k, l, a, b, c, d, e, f, g
  what, k, l, a, b, c, d, e, f, g, place = unpack_('>BHHddddddd', packed, place)
  local which, came, first, names = kind[l], nil, true, nil
  if what >= 16 then
    local mark, keep, who
    what = what - 16
    mark, keep, who, place = unpack_('>Hdc16', packed, place)
    first, came = is_first(mark, keep, who)
  end
  if what == 4 or what == 5 then
    names = string.sub(packed, place, place + b - 1)
    place = place + b
  end
  if not first then
    -- It has been told.
  elseif what == 6 then
    came = 0
  elseif what == 5 then
    came = let_permits_go(k, a, names)
  elseif what == 4 then
    came = amend_permits(k, a, names)
  elseif which < 2 then
    came = amend_units(what, k, l, a, b, c, d, e, f, g)
  elseif which == 8 then
    came = amend_refundable(what, k, l, a, b, c, d, g)
  elseif which < 6 then
    came = amend_counts(what, k, l, a, c, g)
  else
    came = amend_log(what, k, l, a, c)
  end
  answer[#answer + 1] = came
end
write_back()
return answer

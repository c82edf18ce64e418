-- What reserving one and reserving many share: why a claim is refused, and how a record begins.

local function with_available(outcome, position, pool)
  local available = pool.cap and math.max(0, pool.cap - pool.completed - pool.reserved) or ''
  return outcome .. '|' .. position .. '|' .. available
end

-- Nil when nothing speaks against the claim. The order of the checks is the precedence of refusals.
local function objection(pool, position, quantity, rev, holdings, now_ms)
  if not pool then
    return 'unknown_pool|' .. position
  end
  if rev ~= '0' and rev ~= select(2, late_and_rev(pool)) then
    return 'stale|' .. position
  end
  local cap = pool.cap
  local is_full = cap and pool.completed + pool.reserved + quantity > cap
  if not is_full and not pool.status then
    return nil
  end
  if pool.status then
    if pool.status == 'p' then
      return with_available('paused', position, pool)
    end
    if pool.status == 'c' or (pool.closes and now_ms >= pool.closes) then
      return with_available('closed', position, pool)
    end
    if pool.opens and now_ms < pool.opens then
      -- Joined as a number, an instant of fifteen digits would be written in exponents.
      return with_available('not_open', position, pool) .. '|' .. string.format('%.0f', pool.opens)
    end
    if pool.per_customer then
      if not holdings then
        return 'customer_required|' .. position
      end
      if holdings.held + quantity > pool.per_customer then
        return with_available('limit_reached', position, pool) .. '|' .. (holdings[1] and holdings[1].id or '')
      end
    end
  end
  if not is_full then
    return nil
  end
  if pool.completed + quantity > cap then
    return with_available('sold_out', position, pool)
  end
  return with_available('all_reserved', position, pool) .. '|' .. pool.first * 1000
end

-- Nil when the claim can be granted, else the reply. `holdings` is the customer's counter, given where the pool has
-- a customer limit and the customer is named. With due buckets left over the count is too high to refuse on, and
-- `available` too low to be told.
local function refused(pool, position, quantity, rev, holdings, now_ms)
  local reply = objection(pool, position, quantity, rev, holdings, now_ms)
  return reply and pool and pool.more and 'roll' or reply
end

-- A reservation that exists is the same request only with the same fingerprint. `counts` says whether it is alive:
-- before its end, and no pool swept past it.
local function answer_existing(text, fingerprint, pools, now_ms)
  local state, expires, stored_fingerprint = string.match(text,
    '^(%a)|%d+|%d+|(%d+)|%d*|%d*|%d?|%d*|%d?|%d*|[^|]*|[^|]*|%d+|(%x+)|')
  if stored_fingerprint ~= fingerprint then
    return 'id_conflict'
  end
  expires = expires + 0
  local counts = state == 'R' and expires * 1000 > now_ms
  for position = 1, #pools do
    counts = counts and pools[position] and expires > pools[position].swept_to
  end
  return 'existing|' .. now_ms .. '|' .. (counts and '1' or '0') .. '|' .. text
end

-- `times` is created_ms|expires_s.
local function first_record(times, counted, ttl, tail)
  return 'R|1|' .. times .. '||||||' .. counted .. '|||' .. ttl .. '|' .. tail
end

-- Giving the units of a stored reservation another end.

-- Counts a claim's units until `expires`, and no longer until the end that `before` has, if they counted until then.
local function move_units(tenant_key, expiries_key, before, claim, expires)
  local pool, bucket = claim.pool, bucket_name(claim.name, expires)
  -- Where they count until this very second, taking them out would read the bucket as it was before they came in.
  if expires == before.expires and is_counted(before, claim) then
    return
  end
  local units = redis.call('HINCRBY', tenant_key, bucket, claim.quantity)
  if units == claim.quantity then
    redis.call('ZADD', expiries_key, 0, bucket)
  end
  uncount(tenant_key, expiries_key, before, claim)
  pool.reserved = pool.reserved + claim.quantity
  if pool.first == 0 or expires < pool.first then
    pool.first = expires
  end
end

-- The customer goes on holding what is held, until `expires`.
local function move_holding(holdings, id, expires)
  for index = 1, #holdings do
    if holdings[index].id == id then
      holdings[index].second = expires
    end
  end
  holdings.dirty = true
end

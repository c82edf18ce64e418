-- Judging a reservation that has ended by itself: on exact counts, so what is due goes first.

-- Sweeps the pools of all claims, the reservation's own units among what goes. False when due buckets are left over.
local function sweep_claims(sweep, tenant_key, expiries_key, claims, now_ms)
  for _, claim in ipairs(claims) do
    if claim.pool then
      sweep_pool(sweep, tenant_key, expiries_key, claim.pool, now_ms)
      if claim.pool.more then
        return false
      end
    end
  end
  return true
end

-- By how many units a pool would pass its cap with this claim counted or completed, of which the claim can cause no
-- more than its own quantity. Its own units, where they still count, do not stand in its way.
local function excess(record, claim)
  local pool = claim.pool
  if not pool or not pool.cap then
    return 0
  end
  local others = pool.reserved - (is_counted(record, claim) and claim.quantity or 0)
  return math.min(claim.quantity, math.max(0, pool.completed + others + claim.quantity - pool.cap))
end
